//! What the tools take. Unknown arguments, wrong types and arguments of another transport are refused with a
//! sentence that names the argument; what the values mean is the sessions' business.

use super::own::Own;
use protocol::{
    Budget, Code, DockerTarget, ExecCommand, Fault, OpenShell, OutputStream, PlaceKind, SessionRef,
    SshTarget, Transport,
};
use rmcp::model::JsonObject;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::{collections::BTreeMap, time::Duration};

/// Seconds that a command may take, and that a caller may wait for one.
pub(super) const MAX_SECS: u64 = 3600;

/// Reads a tool's arguments.
pub(super) fn read<T: DeserializeOwned>(given: Option<JsonObject>) -> Result<T, Fault> {
    let given = Value::Object(given.unwrap_or_default());
    serde_path_to_error::deserialize(given)
        .map_err(|error| Fault::invalid(sentence(&error.path().to_string(), &error.inner().to_string())))
}

/// `path` is serde's, with `.` for the whole.
fn sentence(path: &str, message: &str) -> String {
    let named = |prefix: &str| message.strip_prefix(prefix).and_then(|rest| rest.split_once('`'));
    let inside = path.rsplit_once('.').map_or("", |(outer, _)| outer);
    if let Some((field, _)) = named("missing field `") {
        return match path {
            "." => format!("the argument `{field}` is missing"),
            path => format!("`{field}` of the argument `{path}` is missing"),
        };
    }
    if let Some((field, expected)) = named("unknown field `") {
        let expected = expected.trim_start_matches(", ");
        return match inside {
            "" => format!("there is no argument `{field}`: {expected}"),
            inside => format!("there is no `{field}` in the argument `{inside}`: {expected}"),
        };
    }
    match path {
        "." => format!("the arguments are not what this tool takes: {message}"),
        path => format!("the argument `{path}` is not what this tool takes: {message}"),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    transport: Kind,
    place: Option<LocalPlace>,
    host: Option<String>,
    user: Option<String>,
    port: Option<u16>,
    password: Option<String>,
    key_path: Option<String>,
    fingerprint: Option<String>,
    container: Option<String>,
    shell: Option<String>,
    cwd: Option<String>,
    env: Option<BTreeMap<String, String>>,
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
    output_budget: Option<Budget>,
    workspace: Option<String>,
    auto_snapshot: Option<bool>,
    paths: Option<Vec<String>>,
    checkpoint_ignores: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Local,
    Ssh,
    Docker,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Ssh => "ssh",
            Self::Docker => "docker",
        }
    }
}

/// How much of this machine a shell sees; each sees more than the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LocalPlace {
    Sandbox,
    Project,
    Host,
}

impl From<LocalPlace> for PlaceKind {
    fn from(place: LocalPlace) -> Self {
        match place {
            LocalPlace::Sandbox => Self::Sandbox,
            LocalPlace::Project => Self::Project,
            LocalPlace::Host => Self::Host,
        }
    }
}

impl Create {
    /// The shell that is meant. `own` is what somebody who opens it for himself brings along.
    pub(super) fn shell(self, own: Option<&Own>) -> Result<OpenShell, Fault> {
        self.check_transport()?;
        let place = self.place(own)?;
        let local = own.filter(|_| self.transport == Kind::Local);
        // His folder means something where his files are to be seen, and his environment where nothing is kept out.
        let seen = local.filter(|_| matches!(place, Some(LocalPlace::Host | LocalPlace::Project)));
        let whole = local.filter(|_| place == Some(LocalPlace::Host));
        Ok(OpenShell {
            place: place.map(PlaceKind::from),
            cwd: self.cwd.or_else(|| seen.map(|own| own.cwd.clone())),
            env: self.env.unwrap_or_default(),
            own_env: whole.map(|own| own.env.clone()),
            umask: seen.and_then(|own| own.umask),
            allow: self.allow.unwrap_or_default(),
            deny: self.deny.unwrap_or_default(),
            output_budget: self.output_budget,
            workspace: self.workspace,
            auto_snapshot: self.auto_snapshot.unwrap_or(false),
            paths: self.paths.unwrap_or_default(),
            checkpoint_ignores: self.checkpoint_ignores.unwrap_or_default(),
            transport: match self.transport {
                Kind::Local => Transport::Local,
                Kind::Ssh => Transport::Ssh(SshTarget {
                    host: required("host", self.host, Kind::Ssh)?,
                    user: self.user,
                    port: self.port,
                    password: self.password,
                    key_path: self.key_path,
                    fingerprint: self.fingerprint,
                }),
                Kind::Docker => Transport::Docker(DockerTarget {
                    container: required("container", self.container, Kind::Docker)?,
                    user: self.user,
                    shell: self.shell,
                }),
            },
        })
    }

    /// An argument of another transport would be dropped in silence.
    fn check_transport(&self) -> Result<(), Fault> {
        let given = [
            ("place", self.place.is_some(), &[Kind::Local][..]),
            ("host", self.host.is_some(), &[Kind::Ssh]),
            ("user", self.user.is_some(), &[Kind::Ssh, Kind::Docker]),
            ("port", self.port.is_some(), &[Kind::Ssh]),
            ("password", self.password.is_some(), &[Kind::Ssh]),
            ("key_path", self.key_path.is_some(), &[Kind::Ssh]),
            ("fingerprint", self.fingerprint.is_some(), &[Kind::Ssh]),
            ("container", self.container.is_some(), &[Kind::Docker]),
            ("shell", self.shell.is_some(), &[Kind::Docker]),
        ];
        let stray = given.iter().find(|(_, given, of)| *given && !of.contains(&self.transport));
        if let Some((name, _, of)) = stray {
            let of: Vec<_> = of.iter().map(|kind| kind.as_str()).collect();
            return Err(Fault::invalid(format!(
                "the argument `{name}` belongs to the transport {}; this one is {}",
                of.join(" and "),
                self.transport.as_str()
            )));
        }
        if self.password.is_some() && self.key_path.is_some() {
            return Err(Fault::invalid("give `password` or `key_path`, not both"));
        }
        Ok(())
    }

    fn place(&self, own: Option<&Own>) -> Result<Option<LocalPlace>, Fault> {
        let Some(own) = own.filter(|_| self.transport == Kind::Local) else { return Ok(self.place) };
        let place = self.place.unwrap_or(own.place);
        if place > own.place {
            return Err(Fault::new(
                Code::Forbidden,
                format!(
                    "this connection was opened with `--place {}`, which is narrower than {}",
                    PlaceKind::from(own.place),
                    PlaceKind::from(place)
                ),
            ));
        }
        Ok(Some(place))
    }
}

fn required(name: &str, value: Option<String>, kind: Kind) -> Result<String, Fault> {
    value.filter(|value| !value.is_empty()).ok_or_else(|| {
        Fault::invalid(format!("the argument `{name}` is missing; the transport {} needs it", kind.as_str()))
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exec {
    session_id: String,
    command: String,
    budget: Option<Budget>,
    timeout_secs: Option<u64>,
    yield_secs: Option<u64>,
    stdin: Option<Stdin>,
}

/// Whether a command's input can be written to while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Stdin {
    Empty,
    Open,
}

impl Exec {
    pub(super) fn command(self) -> Result<(SessionRef, ExecCommand), Fault> {
        if self.command.contains('\0') {
            return Err(Fault::invalid("the argument `command` holds a NUL, which no shell can read"));
        }
        if self.timeout_secs.is_some_and(|secs| !(1..=MAX_SECS).contains(&secs)) {
            return Err(Fault::invalid(format!("the argument `timeout_secs` must be 1 to {MAX_SECS}")));
        }
        let command = ExecCommand {
            command: self.command.into_bytes(),
            budget: self.budget,
            timeout_secs: self.timeout_secs,
            yield_secs: within("yield_secs", self.yield_secs)?,
            open_stdin: self.stdin == Some(Stdin::Open),
        };
        Ok((session(&self.session_id)?, command))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    pub(super) session_id: String,
    pub(super) command_id: u64,
    pub(super) text: String,
    pub(super) eof: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Poll {
    pub(super) session_id: String,
    pub(super) command_id: u64,
    wait_secs: Option<u64>,
    pub(super) budget: Option<Budget>,
}

impl Poll {
    pub(super) fn wait(&self) -> Result<Duration, Fault> {
        Ok(Duration::from_secs(within("wait_secs", self.wait_secs)?.unwrap_or(0)))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Output {
    pub(super) session_id: String,
    pub(super) command_id: u64,
    pub(super) stream: OutputStream,
    pub(super) offset: Option<u64>,
    pub(super) limit: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signal {
    pub(super) session_id: String,
    pub(super) command_id: u64,
    signal: String,
}

/// The signals that people send, by the numbers that they have on Linux.
const SIGNALS: [(&str, i32); 12] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
];

/// Their names, for the schema.
pub(super) fn signal_names() -> Vec<&'static str> {
    SIGNALS.iter().map(|(name, _)| *name).collect()
}

impl Signal {
    pub(super) fn number(&self) -> Result<i32, Fault> {
        let name = self.signal.to_ascii_uppercase();
        let bare = name.strip_prefix("SIG").unwrap_or(&name);
        SIGNALS.iter().find(|(name, _)| *name == bare).map(|(_, number)| *number).ok_or_else(|| {
            Fault::invalid(format!("the argument `signal` must be one of {}", signal_names().join(", ")))
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OneSession {
    pub(super) session_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TakeCheckpoint {
    pub(super) session_id: String,
    pub(super) label: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Restore {
    pub(super) session_id: String,
    pub(super) checkpoint_id: Option<String>,
}

pub(super) fn session(id: &str) -> Result<SessionRef, Fault> {
    id.parse().map_err(|error| Fault::new(Code::InvalidId, format!("the argument `session_id`: {error}")))
}

fn within(name: &str, secs: Option<u64>) -> Result<Option<u64>, Fault> {
    match secs {
        Some(secs) if secs > MAX_SECS => {
            Err(Fault::invalid(format!("the argument `{name}` must be 0 to {MAX_SECS}")))
        }
        secs => Ok(secs),
    }
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
