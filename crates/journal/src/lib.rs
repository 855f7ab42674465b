//! The durable, numbered record of every session, and the small tables beside it.
//! SKELETON: signatures only; the journal room's owner replaces the bodies.
#![allow(
    unused,
    missing_debug_implementations,
    clippy::todo,
    clippy::needless_pass_by_value,
    reason = "skeleton"
)]

use bytes::Bytes;
use protocol::*;
use std::{path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// Where the store is and how much room it keeps.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data folder; the store is `outlast.db` in it, blobs are in `blobs/`.
    pub dir: PathBuf,
    /// A file of this size is kept so that running work can be recorded when the disk is full.
    pub reserve_bytes: u64,
    /// New work is refused while less than this is free.
    pub low_water_bytes: u64,
}

/// Why a store could not be opened; every message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("skeleton")]
    Skeleton,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("no such session")]
    NotFound,
    /// The cursor lies before what is kept.
    #[error("events before {first_seq} are no longer kept")]
    Expired { first_seq: Seq },
    #[error("the store cannot be read: {0}")]
    Storage(String),
}

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("no such row")]
    NotFound,
    #[error("the name is taken")]
    Conflict,
    #[error("another server owns the session now")]
    Fenced,
    #[error("an event of {bytes} bytes is over the limit")]
    TooLarge { bytes: usize },
    #[error("the disk is full")]
    Full,
    #[error("the store is closed")]
    Closed,
    #[error("the store failed: {0}")]
    Storage(String),
}

/// Is there room for new work?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    Enough,
    Low,
}

#[derive(Clone)]
pub struct Journal;

impl Journal {
    /// Opens or makes the store; blocking.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        todo!()
    }
    /// Writes what is enqueued, checkpoints and closes. Later writes fail with `Closed`.
    pub async fn close(&self) {
        todo!()
    }
    /// Cheap enough to ask before every piece of new work.
    pub fn space(&self) -> Space {
        todo!()
    }

    // Sessions.
    /// A writer for a session that does not exist yet: its first append makes the row in the same commit.
    pub fn begin(&self, row: NewSession) -> Writer {
        todo!()
    }
    /// Takes a stored session's lease: bumps its epoch (durably) so that every older writer is fenced off.
    pub async fn acquire(&self, session: SessionId) -> Result<(Writer, SessionRow), WriteError> {
        todo!()
    }
    pub async fn session(&self, session: SessionId) -> Result<Option<SessionRow>, ReadError> {
        todo!()
    }
    pub async fn find(&self, tenant: &Tenant, session: &SessionRef) -> Result<Option<SessionRow>, ReadError> {
        todo!()
    }
    pub async fn sessions(&self, query: SessionQuery) -> Result<SessionPage, ReadError> {
        todo!()
    }
    /// Sessions whose state says `live`: what a server has to take up when it starts.
    pub async fn live_sessions(&self) -> Result<Vec<SessionId>, ReadError> {
        todo!()
    }
    /// A turn by its client's id.
    pub async fn turn_by_client_id(
        &self,
        session: SessionId,
        client_id: &str,
    ) -> Result<Option<TurnRow>, ReadError> {
        todo!()
    }
    /// Turns without an outcome, in the order they were accepted.
    pub async fn open_turns(&self, session: SessionId) -> Result<Vec<TurnRow>, ReadError> {
        todo!()
    }
    pub async fn tenant_usage(&self, tenant: &Tenant) -> Result<TenantUsage, ReadError> {
        todo!()
    }

    // Events.
    pub async fn read(&self, session: SessionId, after: Seq, limit: usize) -> Result<Page, ReadError> {
        todo!()
    }
    /// One event, whole.
    pub async fn event(&self, session: SessionId, seq: Seq) -> Result<Option<StoredEvent>, ReadError> {
        todo!()
    }
    pub fn follow(&self, session: SessionId, after: Seq) -> Follower {
        todo!()
    }

    // Small tables.
    pub async fn put_agent(&self, row: AgentRow) -> Result<(), WriteError> {
        todo!()
    }
    pub async fn agents(&self, tenant: &Tenant) -> Result<Vec<AgentRow>, ReadError> {
        todo!()
    }
    /// The newest version, or the one named.
    pub async fn agent(
        &self,
        tenant: &Tenant,
        name: &AgentName,
        version: Option<u32>,
    ) -> Result<Option<AgentRow>, ReadError> {
        todo!()
    }
    pub async fn remove_agent(&self, tenant: &Tenant, name: &AgentName) -> Result<(), WriteError> {
        todo!()
    }
    pub async fn put_key(&self, row: KeyRow) -> Result<(), WriteError> {
        todo!()
    }
    pub async fn keys(&self) -> Result<Vec<KeyRow>, ReadError> {
        todo!()
    }
    pub async fn remove_key(&self, id: KeyId) -> Result<(), WriteError> {
        todo!()
    }
    pub async fn put_credential(&self, row: CredentialRow) -> Result<(), WriteError> {
        todo!()
    }
    pub async fn credentials(&self, tenant: &Tenant) -> Result<Vec<CredentialRow>, ReadError> {
        todo!()
    }
    pub async fn credential(
        &self,
        tenant: &Tenant,
        id: CredentialId,
    ) -> Result<Option<CredentialRow>, ReadError> {
        todo!()
    }
    pub async fn remove_credential(&self, tenant: &Tenant, id: CredentialId) -> Result<(), WriteError> {
        todo!()
    }
}

/// What a session's row holds that never changes.
#[derive(Debug, Clone)]
pub struct NewSession {
    pub id: SessionId,
    pub tenant: Tenant,
    pub kind: SessionKind,
    pub place: PlaceKind,
    pub sandbox: String,
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

#[derive(Debug, Clone, Copy, Default)]
pub struct TenantUsage {
    pub sessions: u64,
    pub events: u64,
    pub bytes: u64,
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

#[derive(Debug, Clone)]
pub struct CredentialRow {
    pub credential: Credential,
    /// The values, encrypted by the session room.
    pub sealed: Vec<u8>,
}

/// An event on its way in. The body is encoded (and redacted) by the caller.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub actor: Actor,
    pub kind: EventKind,
    pub body: String,
}

/// One session's share of a commit: all of it is stored, or none.
#[derive(Debug, Clone, Default)]
pub struct Append {
    pub at: Timestamp,
    pub events: Vec<NewEvent>,
    pub state: Option<SessionState>,
    pub turns: Vec<TurnRow>,
}

/// The one pen for one session. Appends are numbered at once and durable later, in order.
pub struct Writer;

/// How far a session's record is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Durable {
    Upto(Seq),
    /// Another writer holds the lease; nothing after the last `Upto` was stored.
    Fenced,
    /// The store is closed or broken.
    Lost(String),
}

impl Writer {
    pub fn session(&self) -> SessionId {
        todo!()
    }
    /// The last number given out.
    pub fn last_seq(&self) -> Seq {
        todo!()
    }
    /// Numbers and enqueues; never waits. Returns the last seq. An event over the limit refuses the whole append.
    pub fn append(&mut self, append: Append) -> Result<Seq, WriteError> {
        todo!()
    }
    pub fn durable(&self) -> watch::Receiver<Durable> {
        todo!()
    }
    /// Bytes enqueued and not yet durable.
    pub fn pending_bytes(&self) -> usize {
        todo!()
    }
    /// Deletes the session and its events; leaves a tombstone in the tenant's chain.
    pub async fn remove(self, actor: Actor, at: Timestamp) -> Result<(), WriteError> {
        todo!()
    }
}

/// A stored event with its body as text.
#[derive(Debug, Clone)]
pub struct StoredEvent {
    pub seq: Seq,
    pub at: Timestamp,
    pub actor: Actor,
    pub kind: EventKind,
    pub version: u32,
    pub body: Bytes,
}

impl StoredEvent {
    pub fn decode(&self) -> Result<Body, BodyError> {
        todo!()
    }
    /// Appends the flat wire form.
    pub fn write_json(&self, session: SessionId, out: &mut String) {
        todo!()
    }
}

/// A page read from the store: consecutive events, bounded in number and bytes.
#[derive(Debug, Clone)]
pub struct Page {
    pub events: Vec<StoredEvent>,
    /// The last durable seq when the page was read.
    pub last_seq: Seq,
}

/// Consecutive events that became durable together, or a page of older ones.
#[derive(Debug)]
pub struct Batch {
    pub session: SessionId,
    pub events: Vec<StoredEvent>,
}

impl Batch {
    /// One encoding of the whole batch, made once and shared by everyone who follows at the tail.
    pub fn encoded(&self, encode: impl FnOnce(&Self) -> Bytes) -> Bytes {
        todo!()
    }
}

/// Replays from a seq and then tails, without a gap or a double.
#[derive(Debug)]
pub struct Follower;

impl Follower {
    /// The next events; waits at the tail. Cancel-safe. `NotFound` once the session is removed.
    pub async fn next(&mut self) -> Result<Arc<Batch>, ReadError> {
        todo!()
    }
}
