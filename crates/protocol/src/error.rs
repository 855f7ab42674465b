//! The closed set of error codes. A code is stable: clients match on it; the sentence beside it is for people.

use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What went wrong, for programs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Code {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// The body, a field or a parameter is not what the call takes.
    InvalidRequest = "invalid_request",
    /// The id in the path is not an id.
    InvalidId = "invalid_id",
    /// No key, or one that is not known.
    Unauthorized = "unauthorized",
    /// The key is known and may not do this.
    Forbidden = "forbidden",
    /// No such route.
    NotFound = "not_found",
    MethodNotAllowed = "method_not_allowed",
    SessionNotFound = "session_not_found",
    AgentNotFound = "agent_not_found",
    CredentialNotFound = "credential_not_found",
    KeyNotFound = "key_not_found",
    PermissionNotFound = "permission_not_found",
    /// The session's workspace holds nothing of that name.
    FileNotFound = "file_not_found",
    /// The path leaves the workspace, or what it names is not what the call is about.
    BadPath = "bad_path",
    /// The session's files are in a snapshot; they can be changed once it is resumed.
    NotRunning = "not_running",
    /// The file ends before the range that was asked for.
    BadRange = "bad_range",
    /// The session's status does not allow this.
    WrongStatus = "wrong_status",
    /// The session has ended and stays so.
    SessionEnded = "session_ended",
    /// A turn is running and the caller asked to be refused then.
    Busy = "busy",
    /// The client's prompt id was used before, with other content.
    IdReused = "id_reused",
    /// The name is taken.
    Conflict = "conflict",
    QueueFull = "queue_full",
    /// A quota of the tenant.
    QuotaExceeded = "quota_exceeded",
    RateLimited = "rate_limited",
    /// The server's own limit.
    CapacityReached = "capacity_reached",
    PayloadTooLarge = "payload_too_large",
    UnsupportedMediaType = "unsupported_media_type",
    /// The cursor lies before the first event that retention has kept.
    CursorExpired = "cursor_expired",
    /// The agent cannot do this.
    Unsupported = "unsupported",
    /// The agent's process or its handshake failed.
    AgentFailed = "agent_failed",
    /// A policy refuses the command; nothing of it was run.
    CommandRefused = "command_refused",
    /// The machine or the engine does not answer.
    Unreachable = "unreachable",
    /// The machine lets nobody in with what was given.
    AuthRefused = "auth_refused",
    HostKeyUnknown = "host_key_unknown",
    /// The machine's key is not the one that is expected.
    HostKeyWrong = "host_key_wrong",
    ContainerNotFound = "container_not_found",
    /// The other side refused or broke.
    RemoteFailed = "remote_failed",
    /// The place could not be made.
    SandboxFailed = "sandbox_failed",
    /// The disk is full; nothing acknowledged is lost.
    StorageFull = "storage_full",
    /// Another server owns the session now.
    Fenced = "fenced",
    TimedOut = "timed_out",
    ShuttingDown = "shutting_down",
    Internal = "internal",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error as every door reports it: a stable code and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub code: Code,
    pub message: Cow<'static, str>,
}

impl Fault {
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidRequest, message)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

/// An error on the REST wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// What happened and what to do about it.
    pub error: String,
    pub status_code: u16,
    pub code: Code,
    /// Also in the server's log, beside what it knows of the failure.
    pub request_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_spelt_once() {
        for code in Code::ALL {
            assert_eq!(serde_json::to_string(code).unwrap(), format!("\"{code}\""));
        }
    }
}
