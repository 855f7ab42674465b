//! What can be reached, as a caller names it. No secret is part of a target, so that it can be written down.

use super::RemoteError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A fingerprint is this and then 43 characters.
const PIN_PREFIX: &str = "SHA256:";
const PIN_CHARS: usize = 43;
/// Longer names are nobody's.
const NAME_BYTES: usize = 255;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    Ssh(Ssh),
    Docker(Docker),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ssh {
    /// A name, an address, or an alias of the SSH configuration.
    pub host: String,
    pub user: Option<String>,
    pub port: Option<u16>,
    /// Tried alone, and not the user's own keys.
    pub key_path: Option<PathBuf>,
    /// The host's key must have it, whatever any list says.
    pub fingerprint: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Docker {
    /// The engine's, which may be Podman's.
    pub socket: PathBuf,
    pub container: String,
    /// As the engine takes it: a name or a number, and a group behind a colon.
    pub user: Option<String>,
    pub workdir: Option<String>,
}

/// A password. It is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password")
    }
}

impl Target {
    /// Refuses what could be taken for something else: an option, a command, another path of the engine's.
    pub fn check(&self) -> Result<(), RemoteError> {
        let bad = |what: &str, value: &str, rule: &str| {
            Err(RemoteError::BadTarget(format!("{value:?} cannot be {what}: {rule}")))
        };
        match self {
            Self::Ssh(ssh) => {
                if !plain(&ssh.host, "._:%-[]") {
                    return bad("a host", &ssh.host, "letters, digits, \".\", \":\", \"_\" and \"-\" only");
                }
                if let Some(user) = ssh.user.as_ref().filter(|user| !plain(user, "._@+-")) {
                    return bad("a user", user, "letters, digits, \".\", \"_\", \"@\", \"+\" and \"-\" only");
                }
                if ssh.port == Some(0) {
                    return bad("a port", "0", "name one from 1 to 65535");
                }
                if let Some(pin) = ssh.fingerprint.as_ref().filter(|pin| !is_pin(pin)) {
                    return bad("a fingerprint", pin, "SHA256: and 43 characters, as `ssh-keygen -lf` shows");
                }
                match &ssh.key_path {
                    Some(path) if !path.is_absolute() => {
                        bad("a key's path", &path.to_string_lossy(), "it must be absolute")
                    }
                    Some(_) | None => Ok(()),
                }
            }
            Self::Docker(docker) => {
                if !plain(&docker.container, "._-") {
                    return bad(
                        "a container",
                        &docker.container,
                        "letters, digits, \".\", \"_\" and \"-\" only",
                    );
                }
                match docker.user.as_ref().filter(|user| !plain(user, "._:-")) {
                    Some(user) => bad("a user", user, "letters, digits, \".\", \"_\", \":\" and \"-\" only"),
                    None => Ok(()),
                }
            }
        }
    }
}

fn plain(text: &str, more: &str) -> bool {
    !text.is_empty()
        && text.len() <= NAME_BYTES
        && !text.starts_with(['-', '.'])
        && text.chars().all(|each| each.is_ascii_alphanumeric() || more.contains(each))
}

fn is_pin(text: &str) -> bool {
    text.strip_prefix(PIN_PREFIX).is_some_and(|rest| {
        rest.len() == PIN_CHARS
            && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(host: &str) -> Ssh {
        Ssh { host: host.to_owned(), ..Ssh::default() }
    }

    #[test]
    fn names_that_could_mean_something_else_are_refused() {
        let pin = format!("SHA256:{}", "a".repeat(43));
        for host in ["a", "web-1.example.org", "10.0.0.1", "::1", "fe80::1%eth0", "my_alias"] {
            assert!(Target::Ssh(ssh(host)).check().is_ok(), "{host}");
        }
        for host in ["", "-oProxyCommand=x", "a b", "a\nb", "u@h", "a/b", "$(x)", "a`b`", "ssh://a", "a\0"] {
            assert!(Target::Ssh(ssh(host)).check().is_err(), "{host:?}");
        }
        for (user, pin, key) in [
            (Some("-x"), None, None),
            (Some("a b"), None, None),
            (None, Some("MD5:aa"), None),
            (None, Some(&pin[..49]), None),
            (None, None, Some("id")),
        ] {
            let target = Ssh {
                user: user.map(str::to_owned),
                fingerprint: pin.map(str::to_owned),
                key_path: key.map(PathBuf::from),
                ..ssh("a")
            };
            assert!(Target::Ssh(target.clone()).check().is_err(), "{target:?}");
        }
        assert!(Target::Ssh(Ssh { fingerprint: Some(pin), ..ssh("a") }).check().is_ok());
        let docker = |container: &str| {
            let socket = PathBuf::from("/run/docker.sock");
            Target::Docker(Docker { socket, container: container.to_owned(), user: None, workdir: None })
        };
        assert!(docker("web_1").check().is_ok());
        for container in ["", "a/b", "..", "a?b", "-a", "a b"] {
            assert!(docker(container).check().is_err(), "{container:?}");
        }
    }
}
