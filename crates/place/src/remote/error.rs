//! What can go wrong with another machine, told apart as far as a caller can act on it.

use crate::keeper::KeeperError;
use std::{io, path::PathBuf, time::Duration};

#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("{0}")]
    BadTarget(String),
    #[error("{program} cannot be run: {source}; install the OpenSSH client")]
    NoClient { program: &'static str, source: io::Error },
    #[error("{whom} cannot be reached: {why}")]
    Unreachable { whom: String, why: String },
    #[error("{whom} did not answer within {limit:?}; check the address, or raise the connect time-out")]
    TimedOut { whom: String, limit: Duration },
    #[error("{whom} let nobody in: {why}; check the user, the password or the key")]
    AuthRefused { whom: String, why: String },
    /// `offered` is the fingerprint of the key that the host has.
    #[error(
        "the key of {whom} is not known{}; if it is the right one, give it as the fingerprint or add it to known_hosts",
        with_key(.offered)
    )]
    HostKeyUnknown { whom: String, offered: Option<String> },
    #[error("the key of {whom} is not the one that is expected{}; somebody may be in between", with_key(.offered))]
    HostKeyWrong { whom: String, offered: Option<String> },
    #[error("{whom} runs no commands: {why}; an account with a shell is needed")]
    NoShell { whom: String, why: String },
    #[error("{whom} takes no more sessions: {why}; end some, or raise MaxSessions there")]
    Full { whom: String, why: String },
    #[error("there is no container {0}")]
    NoContainer(String),
    #[error("the container {container} is {state}; start it first")]
    NotRunning { container: String, state: String },
    #[error("no container engine answers at {}: {source}", socket.display())]
    NoEngine { socket: PathBuf, source: io::Error },
    #[error("{} may not be used by this server's user: {source}", socket.display())]
    NoPermission { socket: PathBuf, source: io::Error },
    /// The plain mode may still work.
    #[error("no keeper can run on {whom}: {why}")]
    NoKeeper { whom: String, why: String },
    /// The keeper that is meant is gone, and its shells with it.
    #[error("the shells on {whom} are lost: {why}")]
    Lost { whom: String, why: String },
    /// In the words of the other side.
    #[error("{whom}: {why}")]
    Refused { whom: String, why: String },
    /// It may be tried again.
    #[error("the connection to {whom} broke: {why}")]
    Broken { whom: String, why: String },
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    #[error("cannot {what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl RemoteError {
    /// Whether trying again can help: the way is blocked, and nobody has said no.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Full { .. }
            | Self::NoEngine { .. }
            | Self::NotRunning { .. }
            | Self::Broken { .. }
            | Self::Keeper(_)
            | Self::Io { .. } => true,
            Self::BadTarget(_)
            | Self::NoClient { .. }
            | Self::AuthRefused { .. }
            | Self::HostKeyUnknown { .. }
            | Self::HostKeyWrong { .. }
            | Self::NoShell { .. }
            | Self::NoContainer(_)
            | Self::NoPermission { .. }
            | Self::NoKeeper { .. }
            | Self::Lost { .. }
            | Self::Refused { .. } => false,
        }
    }

    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

fn with_key(fingerprint: &Option<String>) -> String {
    fingerprint.as_ref().map(|fingerprint| format!(" ({fingerprint})")).unwrap_or_default()
}
