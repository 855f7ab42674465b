//! A session as callers see it.

use crate::{AgentName, Alias, ForkPoint, Seq, SessionId, Tenant, Timestamp, UsageSums};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = crate::IdError;
            fn from_str(text: &str) -> Result<Self, crate::IdError> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(crate::IdError { what: $what, rule: concat!("one of" $(, " ", $text)*) }),
                }
            }
        }
    };
}

words!(
    /// Where a session is in its life. The machine that moves between these is drawn in the session room.
    Status, "a status" {
        Starting = "starting",
        Active = "active",
        Paused = "paused",
        Ended = "ended",
        Error = "error",
    }
);

words!(
    /// What lives in the session.
    SessionKind, "a kind" {
        Agent = "agent",
        Shell = "shell",
    }
);

words!(
    /// Where its processes and files are.
    PlaceKind, "a place" {
        /// Its own namespaces, limits and files on this machine.
        Sandbox = "sandbox",
        /// This machine's files to read, its own folder to write.
        Project = "project",
        /// The bare machine: nothing is contained.
        Host = "host",
        /// Another machine.
        Ssh = "ssh",
        /// A container that is somebody else's.
        Docker = "docker",
    }
);

words!(
    /// What a key may do. Each includes the ones before it.
    Scope, "a scope" {
        Read = "read",
        Write = "write",
        Admin = "admin",
    }
);

/// A session, in the shape of the REST contract; fields of ours come after the contract's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Session {
    pub id: SessionId,
    pub tenant_id: Tenant,
    /// The agent's name; empty for a shell.
    pub agent_name: String,
    /// The place's own id; the session's unless it shares one.
    pub sandbox_id: String,
    pub status: Status,
    /// The model asked for; null means the agent's default.
    pub model: Option<String>,
    /// The node that hosts it; null on a server alone.
    pub runner_id: Option<String>,
    pub created_at: Timestamp,
    pub last_active_at: Timestamp,
    pub kind: SessionKind,
    pub place: PlaceKind,
    /// The deployed version it was made from.
    pub agent_version: Option<u32>,
    pub name: Option<String>,
    pub alias: Option<Alias>,
    /// Why the status is what it is, when it was not asked for.
    pub status_reason: Option<String>,
    /// The first event still kept, and the last one made.
    pub first_seq: Seq,
    pub last_seq: Seq,
    pub forked_from: Option<ForkPoint>,
    /// The folder that its agent was started in, when the caller named one.
    #[serde(default)]
    pub cwd: Option<String>,
    /// What its own turns have used; a fork begins at nothing.
    #[serde(default)]
    pub usage: UsageSums,
}

impl Session {
    pub fn agent(&self) -> Option<AgentName> {
        AgentName::new(self.agent_name.clone()).ok()
    }
}
