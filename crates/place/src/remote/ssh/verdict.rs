//! What the SSH client says, understood. Pure: text in, meaning out.

use crate::remote::RemoteError;

/// What the client made of its configuration and a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) user: String,
    pub(crate) host: String,
    pub(crate) port: String,
    /// By which name the host's key is looked up, if by another.
    pub(crate) alias: Option<String>,
    /// As the client spells them, separated by spaces.
    pub(crate) known_hosts: String,
    /// Whether nobody stands between.
    pub(crate) direct: bool,
}

impl Resolved {
    /// From the answer to `ssh -G`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(each, _)| *each == name).map(|(_, value)| value.trim().to_owned())
        };
        let none = |value: &String| value != "none";
        Some(Self {
            user: value("user")?,
            host: value("hostname")?,
            port: value("port")?,
            alias: value("hostkeyalias").filter(none),
            known_hosts: value("userknownhostsfile").filter(none).unwrap_or_default(),
            direct: value("proxyjump").filter(none).is_none() && value("proxycommand").filter(none).is_none(),
        })
    }
}

/// Why a connection was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    HostKey {
        changed: bool,
        offered: Option<String>,
    },
    /// The host has no key of the kinds that were asked for.
    NoSuchKeyKind,
    Auth(String),
    Unreachable(String),
    Other(String),
}

impl Refusal {
    pub(super) fn error(self, whom: String) -> RemoteError {
        match self {
            Self::HostKey { changed: true, offered } => RemoteError::HostKeyWrong { whom, offered },
            Self::HostKey { changed: false, offered } => RemoteError::HostKeyUnknown { whom, offered },
            Self::NoSuchKeyKind => {
                let why = "it has no host key of a kind that is taken".to_owned();
                RemoteError::Refused { whom, why }
            }
            Self::Auth(why) => RemoteError::AuthRefused { whom, why },
            Self::Unreachable(why) => RemoteError::Unreachable { whom, why },
            Self::Other(why) => RemoteError::Refused { whom, why },
        }
    }
}

const UNREACHABLE: [&str; 12] = [
    "Could not resolve hostname",
    "Connection refused",
    "No route to host",
    "Network is unreachable",
    "timed out",
    "Connection closed by",
    "Connection reset by",
    "banner exchange",
    "kex_exchange_identification",
    "Host is down",
    "Broken pipe",
    "Software caused connection abort",
];
const AUTH: [&str; 3] =
    ["Permission denied", "Too many authentication failures", "no authentication methods"];

/// From what the client wrote with its first level of debugging.
pub(super) fn of_connect(text: &str) -> Refusal {
    let said: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("debug")).collect();
    let has = |part: &str| said.iter().any(|line| line.contains(part));
    let offered = text.lines().find_map(|line| {
        let (_, key) = line.split_once("Server host key: ")?;
        key.split_whitespace().nth(1).map(str::to_owned)
    });
    let last = |parts: &[&str]| {
        let found = said.iter().rev().find(|line| parts.iter().any(|part| line.contains(part)));
        found.map(|line| (*line).to_owned())
    };
    if has("Host key verification failed") {
        return Refusal::HostKey { changed: has("IDENTIFICATION HAS CHANGED"), offered };
    }
    if has("no matching host key type found") {
        return Refusal::NoSuchKeyKind;
    }
    if let Some(why) = last(&AUTH) {
        return Refusal::Auth(why);
    }
    if let Some(why) = last(&UNREACHABLE) {
        return Refusal::Unreachable(why);
    }
    Refusal::Other(said.last().map_or_else(|| "it gave no reason".to_owned(), |line| (*line).to_owned()))
}

/// What became of a session that never ran its script.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The host lets this connection have no more.
    Full(String),
    /// The master is gone.
    Dead,
    NoShell(String),
}

pub(super) fn of_session(complaints: &str) -> SessionEnd {
    let line = |parts: &[&str]| {
        complaints.lines().find(|line| parts.iter().any(|part| line.contains(part))).map(str::to_owned)
    };
    if let Some(why) = line(&["session request failed", "open failed"]) {
        return SessionEnd::Full(why);
    }
    let dead = [
        "Control socket connect",
        "mux_client",
        "UNKNOWN port",
        "Connection closed",
        "master is dead",
        "Broken pipe",
        "closed by remote host",
        "Shared connection",
    ];
    if line(&dead).is_some() {
        return SessionEnd::Dead;
    }
    SessionEnd::NoShell(complaints.to_owned())
}

/// A path as one word of a client's option.
pub(super) fn word(path: &str) -> String {
    let mut out = String::from("\"");
    for each in path.chars() {
        match each {
            '"' | '\\' => out.extend(['\\', each]),
            '%' => out.push_str("%%"),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_another() {
        let key = "debug1: Server host key: ssh-ed25519 SHA256:abc\n";
        let offered = Some("SHA256:abc".to_owned());
        let unknown = format!("{key}No ED25519 host key is known for h.\nHost key verification failed.\n");
        assert_eq!(of_connect(&unknown), Refusal::HostKey { changed: false, offered: offered.clone() });
        let changed = format!(
            "{key}@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n"
        );
        assert_eq!(of_connect(&changed), Refusal::HostKey { changed: true, offered });
        for (text, wanted) in [
            (
                "debug1: x\nme@h: Permission denied (publickey,password).",
                Refusal::Auth("me@h: Permission denied (publickey,password).".to_owned()),
            ),
            (
                "ssh: connect to host h port 1: Connection refused",
                Refusal::Unreachable("ssh: connect to host h port 1: Connection refused".to_owned()),
            ),
            (
                "ssh: Could not resolve hostname h: Name or service not known",
                Refusal::Unreachable(
                    "ssh: Could not resolve hostname h: Name or service not known".to_owned(),
                ),
            ),
            (
                "Unable to negotiate with 1.2.3.4 port 22: no matching host key type found. Their offer: x",
                Refusal::NoSuchKeyKind,
            ),
            ("", Refusal::Other("it gave no reason".to_owned())),
        ] {
            assert_eq!(of_connect(text), wanted, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_session_is_told_from_another() {
        let full = "mux_client_request_session: session request failed: Session open refused by peer";
        assert_eq!(of_session(&format!("{full}\nConnection closed")), SessionEnd::Full(full.to_owned()));
        for dead in ["Connection closed by UNKNOWN port 65535", "Control socket connect(c): refused"] {
            assert_eq!(of_session(dead), SessionEnd::Dead);
        }
        assert_eq!(of_session("nologin"), SessionEnd::NoShell("nologin".to_owned()));
    }

    #[test]
    fn a_resolved_target_is_read() {
        let text =
            "user me\nhostname db\nport 2222\nhostkeyalias none\nproxyjump j\nuserknownhostsfile ~/a ~/b\n";
        let resolved = Resolved::parse(text).unwrap();
        assert_eq!((&*resolved.user, &*resolved.host, &*resolved.port), ("me", "db", "2222"));
        assert_eq!((resolved.alias, resolved.direct, &*resolved.known_hosts), (None, false, "~/a ~/b"));
        assert_eq!(Resolved::parse("user me\n"), None);
    }

    #[test]
    fn a_path_stays_one_word() {
        assert_eq!(word("/a b/100%"), "\"/a b/100%%\"");
        assert_eq!(word("/\"x\\"), "\"/\\\"x\\\\\"");
    }
}
