//! The journal's and the place's errors as callers see them. One table, so that every command says the same.

use crate::spec::internal;
use journal::{ReadError, WriteError};
use place::{PlaceError, SpawnError, remote::RemoteError};
use protocol::{Code, Fault, SessionRef};

pub(crate) fn read(error: ReadError) -> Fault {
    match error {
        ReadError::NotFound => Fault::new(Code::SessionNotFound, "Session not found"),
        ReadError::Expired { first_seq } => Fault::new(
            Code::CursorExpired,
            format!("Events before {first_seq} are no longer kept; start again with after={}", first_seq - 1),
        ),
        ReadError::Storage(message) => internal(message),
    }
}

pub(crate) fn write(error: WriteError) -> Fault {
    match error {
        WriteError::NotFound => Fault::new(Code::SessionNotFound, "Session not found"),
        WriteError::Conflict => Fault::new(Code::Conflict, "The name is taken"),
        WriteError::Fenced => Fault::new(Code::Fenced, "Another server owns the session now; ask again"),
        WriteError::TooLarge { bytes } => {
            Fault::new(Code::PayloadTooLarge, format!("An event of {bytes} bytes is over the limit"))
        }
        WriteError::Full => full(),
        WriteError::Closed => {
            Fault::new(Code::ShuttingDown, "The server is shutting down; ask again in a moment")
        }
        WriteError::Storage(message) => internal(message),
    }
}

pub(crate) fn full() -> Fault {
    Fault::new(
        Code::StorageFull,
        "The server's disk is full: new work is refused until there is room; nothing acknowledged is lost",
    )
}

pub(crate) fn place(error: &PlaceError) -> Fault {
    Fault::new(Code::SandboxFailed, format!("The session's workspace could not be made: {error}"))
}

pub(crate) fn spawn(error: &SpawnError) -> Fault {
    if let SpawnError::NoRoom(error) = error {
        return Fault::new(Code::SandboxFailed, format!("The sandbox could not be made: {error}"));
    }
    Fault::new(Code::AgentFailed, format!("The agent could not be started: {error}"))
}

pub(crate) fn shell(error: &SpawnError) -> Fault {
    match error {
        SpawnError::NoRoom(error) => {
            Fault::new(Code::SandboxFailed, format!("The shell's place could not be made: {error}"))
        }
        SpawnError::NoHome { home } => {
            Fault::new(Code::BadPath, format!("The folder {} is not there", home.display()))
        }
        other => Fault::new(Code::SandboxFailed, format!("The shell could not be started: {other}")),
    }
}

pub(crate) fn remote(error: &RemoteError) -> Fault {
    let code = match error {
        RemoteError::BadTarget(_) => Code::InvalidRequest,
        RemoteError::Unreachable { .. } | RemoteError::NoEngine { .. } => Code::Unreachable,
        RemoteError::TimedOut { .. } => Code::TimedOut,
        RemoteError::AuthRefused { .. } | RemoteError::NoPermission { .. } => Code::AuthRefused,
        RemoteError::HostKeyUnknown { .. } => Code::HostKeyUnknown,
        RemoteError::HostKeyWrong { .. } => Code::HostKeyWrong,
        RemoteError::NoContainer(_) => Code::ContainerNotFound,
        RemoteError::NotRunning { .. } => Code::NotRunning,
        RemoteError::Full { .. } => Code::CapacityReached,
        RemoteError::NoClient { .. } | RemoteError::NoShell { .. } | RemoteError::NoKeeper { .. } => {
            Code::Unsupported
        }
        RemoteError::Lost { .. }
        | RemoteError::Refused { .. }
        | RemoteError::Broken { .. }
        | RemoteError::Keeper(_)
        | RemoteError::Io { .. } => Code::RemoteFailed,
    };
    let text = error.to_string();
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    Fault::new(code, first + chars.as_str())
}

pub(crate) fn no_session(session: &SessionRef) -> Fault {
    let name = match session {
        SessionRef::Id(id) => id.to_string(),
        SessionRef::Alias(alias) => alias.to_string(),
    };
    Fault::new(Code::SessionNotFound, format!("Session {name} not found"))
}
