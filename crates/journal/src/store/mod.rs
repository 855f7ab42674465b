//! What a store has to do: commit what was taken from the lanes, whole or not at all, and answer reads.
//!
//! Three small traits. `Store` is owned by the committer's thread; `Events` and `Tables` are a reader's, of which
//! there are a few, each on a blocking thread. Numbering, hashing, blobs, following, retries and fairness are
//! above this line, so that a second store brings only its SQL. The conformance suite in `tests/` is its judge.

pub(crate) mod sqlite;

use crate::chain::Hash;
use crate::{
    AgentRow, CredentialRow, KeyRow, ReadError, SandboxRow, SessionPage, SessionQuery, SessionRow,
    StoredEvent, TenantUsage, TurnRow, WriteError, blobs::Address, lanes::Commit, requests::Outcome,
};
use protocol::{AgentName, CredentialId, EventKind, Seq, SessionId, SessionRef, Tenant, Timestamp};

/// The writing side. One of them exists, on the committer's thread.
pub(crate) trait Store: Send {
    /// Stores everything durably, or nothing. A share that cannot be stored is left out and told why; the
    /// others are not harmed by it.
    fn commit(&mut self, commit: &Commit) -> Result<Verdicts, StoreError>;

    /// Bounded chores between two commits: the rest of a removed session, the log's size.
    fn upkeep(&mut self) -> Result<Upkeep, StoreError>;

    /// Leaves everything in its final place.
    fn close(self: Box<Self>);
}

/// What became of each part of a commit, in its order.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) shares: Vec<Verdict>,
    pub(crate) requests: Vec<Result<Outcome, WriteError>>,
    /// Blobs whose last reference went.
    pub(crate) orphans: Vec<Address>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Stored under this row key.
    Stored {
        no: i64,
    },
    Removed,
    Fenced,
    /// The id or the alias is taken.
    Conflict,
    /// A rule of the store was broken; only a mistake above can do that.
    Refused(String),
}

#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    pub(crate) orphans: Vec<Address>,
    pub(crate) more: bool,
}

/// Why nothing of a commit was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreError {
    /// No room: the same commit again, later.
    Full(String),
    /// Somebody else holds the database: again, later.
    Busy(String),
    /// The disk did not confirm a write. Nobody knows what is on it.
    Sync(String),
    /// The database is damaged.
    Damaged(String),
    Failed(String),
}

/// A stored event; its body may still be in a blob.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) event: StoredEvent,
    pub(crate) blob: Option<Address>,
}

#[derive(Debug)]
pub(crate) struct FoundPage {
    pub(crate) events: Vec<Found>,
    pub(crate) last_seq: Seq,
}

/// Reading events. No call leaves a transaction open.
pub(crate) trait Events {
    fn page(&mut self, session: SessionId, after: Seq, limit: usize) -> Result<FoundPage, ReadError>;
    fn event(&mut self, session: SessionId, seq: Seq) -> Result<Option<Found>, ReadError>;
    /// The hash and time of an event, for a fork to begin after it.
    fn mark(&mut self, session: SessionId, seq: Seq) -> Result<Option<(Hash, Timestamp)>, ReadError>;
    /// The session's own events of one kind after a seq, in order.
    fn of_kind(
        &mut self,
        session: SessionId,
        kind: EventKind,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Found>, ReadError>;
    fn has_blob(&mut self, address: &Address) -> Result<bool, ReadError>;
}

/// Reading rows. Another tenant's rows are never among the answers.
pub(crate) trait Tables {
    fn session(&mut self, session: SessionId) -> Result<Option<SessionRow>, ReadError>;
    fn find(&mut self, tenant: &Tenant, session: &SessionRef) -> Result<Option<SessionRow>, ReadError>;
    fn sessions(&mut self, query: &SessionQuery) -> Result<SessionPage, ReadError>;
    fn live_sessions(&mut self) -> Result<Vec<(SessionId, String)>, ReadError>;
    fn turn_by_client_id(
        &mut self,
        session: SessionId,
        client_id: &str,
    ) -> Result<Option<TurnRow>, ReadError>;
    fn open_turns(&mut self, session: SessionId) -> Result<Vec<TurnRow>, ReadError>;
    fn tenant_usage(&mut self, tenant: &Tenant) -> Result<TenantUsage, ReadError>;
    fn agents(&mut self, tenant: &Tenant) -> Result<Vec<AgentRow>, ReadError>;
    fn agent(
        &mut self,
        tenant: &Tenant,
        name: &AgentName,
        version: Option<u32>,
    ) -> Result<Option<AgentRow>, ReadError>;
    fn keys(&mut self) -> Result<Vec<KeyRow>, ReadError>;
    fn credentials(
        &mut self,
        tenant: &Tenant,
        only: Option<CredentialId>,
    ) -> Result<Vec<CredentialRow>, ReadError>;
    fn has_forks(&mut self, session: SessionId) -> Result<bool, ReadError>;
    fn sandbox(&mut self, id: &str) -> Result<Option<SandboxRow>, ReadError>;
    fn sandbox_by_key(&mut self, tenant: &Tenant, key: &str) -> Result<Option<SandboxRow>, ReadError>;
    fn sandbox_sessions(&mut self, id: &str) -> Result<Vec<SessionId>, ReadError>;
    fn sandbox_has_others(&mut self, id: &str, except: SessionId) -> Result<bool, ReadError>;
    fn snapshots(&mut self) -> Result<Vec<String>, ReadError>;
}

pub(crate) trait Reader: Events + Tables + Send {}
impl<T: Events + Tables + Send> Reader for T {}
