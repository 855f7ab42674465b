//! What a call is about: a session by its id or by an alias, as one path component.

use protocol::{Alias, Session, SessionId, SessionRef};
use std::fmt;

/// A session as a path component. Ids and aliases hold nothing that a URL would have to escape.
#[derive(Clone, PartialEq, Eq)]
pub struct Target(String);

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<SessionId> for Target {
    fn from(id: SessionId) -> Self {
        Self(id.to_string())
    }
}

impl From<&Session> for Target {
    fn from(session: &Session) -> Self {
        session.id.into()
    }
}

impl From<&Alias> for Target {
    fn from(alias: &Alias) -> Self {
        Self(alias.as_str().to_owned())
    }
}

impl From<&SessionRef> for Target {
    fn from(session: &SessionRef) -> Self {
        match session {
            SessionRef::Id(id) => (*id).into(),
            SessionRef::Alias(alias) => alias.into(),
        }
    }
}

impl From<&Target> for Target {
    fn from(target: &Target) -> Self {
        target.clone()
    }
}
