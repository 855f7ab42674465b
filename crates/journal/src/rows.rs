//! The rows that callers read and write, as plain data. Nothing here knows how they are stored.

use protocol::{
    Agent, AgentName, Alias, ApiKey, Credential, ForkPoint, PlaceKind, Seq, SessionId, SessionKind, Status,
    Tenant, Timestamp, TurnId, UsageSums,
};

/// What a session's row holds that never changes.
#[derive(Debug, Clone)]
pub struct NewSession {
    pub id: SessionId,
    pub tenant: Tenant,
    pub kind: SessionKind,
    pub place: PlaceKind,
    pub sandbox: String,
    /// A shell has none.
    pub agent: Option<AgentName>,
    pub agent_version: Option<u32>,
    pub alias: Option<Alias>,
    pub created_at: Timestamp,
    pub forked_from: Option<ForkPoint>,
    /// The session room's own JSON: how to start it again. Sealed where it holds secrets.
    pub spec: String,
}

/// What changes: the session room writes it whole, beside the events that changed it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionState {
    pub status: Status,
    pub status_reason: Option<String>,
    pub model: Option<String>,
    pub name: Option<String>,
    pub last_active_at: Timestamp,
    /// A server has something to take up after a crash.
    pub live: bool,
    /// The session room's own JSON: the agent's session id, the output cursor, settings.
    pub memo: String,
    /// What its turns have used.
    pub usage: UsageSums,
}

impl SessionState {
    /// What a row says until its writer has said something.
    pub(crate) fn before_the_first(created_at: Timestamp) -> Self {
        Self {
            status: Status::Starting,
            status_reason: None,
            model: None,
            name: None,
            last_active_at: created_at,
            live: false,
            memo: "{}".to_owned(),
            usage: UsageSums::default(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct SessionRow {
    pub fixed: NewSession,
    pub state: SessionState,
    pub first_seq: Seq,
    pub last_seq: Seq,
    pub epoch: u64,
}

#[derive(Debug, Clone)]
pub struct SessionQuery {
    pub tenant: Tenant,
    pub agent: Option<AgentName>,
    pub status: Option<Status>,
    pub kind: Option<SessionKind>,
    /// None means all of them.
    pub limit: Option<usize>,
    /// `SessionPage::next` of the page before.
    pub cursor: Option<i64>,
}

#[derive(Debug, Clone)]
pub struct SessionPage {
    /// Newest first.
    pub sessions: Vec<SessionRow>,
    pub next: Option<i64>,
}

/// A turn's row: a view of its events, written in the same commit.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnRow {
    pub turn: TurnId,
    pub client_id: Option<String>,
    /// A hash of what was asked, to tell a repeat from a reuse.
    pub digest: [u8; 32],
    pub accepted_seq: Seq,
    pub started: bool,
    /// The seq of `turn_ended`.
    pub ended_seq: Option<Seq>,
}

/// Counted in the same commits as what they count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantUsage {
    pub sessions: u64,
    pub events: u64,
    pub bytes: u64,
    /// Of all turns ever, those of removed sessions too.
    pub used: UsageSums,
}

#[derive(Debug, Clone)]
pub struct AgentRow {
    pub agent: Agent,
    /// The content's hash, so that the same folder deployed again makes no new version.
    pub digest: [u8; 32],
}

#[derive(Debug, Clone)]
pub struct KeyRow {
    pub key: ApiKey,
    pub hash: [u8; 32],
}

/// A sandbox: what sessions that share files have in common. A session without a key has one of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    pub id: String,
    pub tenant: Tenant,
    /// The caller's name for it, one of a kind within the tenant.
    pub key: Option<String>,
    pub created_at: Timestamp,
    /// The last whole one; none before the first.
    pub snapshot: Option<SnapshotRow>,
}

/// A snapshot that is durable in its own store; here is only its name and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    pub id: String,
    pub taken_at: Timestamp,
    pub files: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone)]
pub struct CredentialRow {
    pub credential: Credential,
    /// The values, encrypted by the session room.
    pub sealed: Vec<u8>,
}
