//! What can go wrong with a call, as a caller can tell it apart.

use protocol::{BodyError, Code, ErrorBody};

/// Every message says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server understood the call and refused it.
    #[error("{}", .body.error)]
    Refused { status: u16, body: ErrorBody },
    /// Something answered with an error that is not an Outlast server's own: a proxy, or another program.
    #[error(
        "{url} answered {status} without an Outlast error; check that the address is right and what stands in front of it"
    )]
    Foreign { url: String, status: u16 },
    /// No connection, or one that was lost before the answer was whole.
    #[error("cannot reach {url}: {cause}; start it with `outlast serve`, or check the address")]
    Unreachable { url: String, cause: String },
    /// The server accepted the connection and then said nothing.
    #[error(
        "{url} did not answer within {secs} s; the call may still take effect, so look before you repeat it"
    )]
    TimedOut { url: String, secs: u64 },
    /// An answer that breaks the contract.
    #[error("the server's answer cannot be used: {0}; check that client and server have the same version")]
    Protocol(String),
    /// A newer server sent what this client does not know.
    #[error("the server is newer than this client: {0}; update the client")]
    Newer(String),
    #[error("{0:?} is not a server address; write it as http://HOST:PORT or https://HOST")]
    Address(String),
    #[error("the key holds characters that no key has; copy it again")]
    Key,
    #[error("the HTTP client cannot be set up: {0}")]
    Setup(String),
    /// Reading what was to be uploaded.
    #[error("cannot read what is to be uploaded: {0}")]
    Archive(#[from] std::io::Error),
}

impl Error {
    /// The HTTP status, when there was an answer.
    pub const fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } | Self::Foreign { status, .. } => Some(*status),
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Protocol(_)
            | Self::Newer(_)
            | Self::Address(_)
            | Self::Key
            | Self::Setup(_)
            | Self::Archive(_) => None,
        }
    }

    /// The stable code, when the server gave one.
    pub const fn code(&self) -> Option<Code> {
        match self {
            Self::Refused { body, .. } => Some(body.code),
            _ => None,
        }
    }

    /// May the same call succeed a little later, without anyone doing anything? A follower then reconnects.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Protocol(_) => true,
            Self::Refused { status, .. } | Self::Foreign { status, .. } => {
                *status >= 500 || matches!(*status, 408 | 425 | 429)
            }
            Self::Newer(_) | Self::Address(_) | Self::Key | Self::Setup(_) | Self::Archive(_) => false,
        }
    }

    /// Was the call perhaps never heard, or its answer lost? A prompt with an id is then sent again. One that
    /// was waited for in vain is not: the next wait would be as long.
    pub fn lost(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Foreign { status, .. } => matches!(*status, 502..=504),
            Self::Refused { body, .. } => body.code == Code::ShuttingDown,
            Self::TimedOut { .. }
            | Self::Protocol(_)
            | Self::Newer(_)
            | Self::Address(_)
            | Self::Key
            | Self::Setup(_)
            | Self::Archive(_) => false,
        }
    }
}

/// An event that cannot be read.
impl From<BodyError> for Error {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Newer { .. } | BodyError::UnknownType(_) => Self::Newer(error.to_string()),
            BodyError::Json(_) => Self::Protocol(error.to_string()),
        }
    }
}
