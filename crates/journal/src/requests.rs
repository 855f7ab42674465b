//! Changes of the small tables, as data. They ride in the same commits as the events and are answered after
//! the fsync.

use crate::{
    WriteError,
    lanes::Head,
    rows::{AgentRow, CredentialRow, KeyRow, SandboxRow, SessionRow, SnapshotRow},
};
use protocol::{AgentName, CredentialId, KeyId, Seq, SessionId, Tenant};
use tokio::sync::oneshot;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) change: Change,
    pub(crate) reply: oneshot::Sender<Result<Outcome, WriteError>>,
}

#[derive(Debug)]
pub(crate) enum Change {
    /// Takes a session's lease.
    Acquire(SessionId),
    /// Takes one event's body out and leaves its hash.
    Erase {
        session: SessionId,
        seq: Seq,
    },
    /// Drops events before a seq, a bounded number at a time.
    Cut {
        session: SessionId,
        first_seq: Seq,
    },
    /// The next numbers of a tenant's named counter; the last of them is the answer.
    Count {
        tenant: Tenant,
        counter: String,
        many: u32,
    },
    PutAgent(Box<AgentRow>),
    RemoveAgent {
        tenant: Tenant,
        name: AgentName,
    },
    PutKey(Box<KeyRow>),
    RemoveKey(KeyId),
    PutCredential(Box<CredentialRow>),
    RemoveCredential {
        tenant: Tenant,
        id: CredentialId,
    },
    PutSandbox(Box<SandboxRow>),
    /// Of a sandbox that is there; its other columns stay.
    PutSnapshot {
        sandbox: String,
        snapshot: Box<SnapshotRow>,
    },
    RemoveSandbox(String),
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Done,
    /// Ask again: a bounded part was done.
    More,
    Number(u64),
    Acquired(Box<Acquired>),
}

#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) row: SessionRow,
    pub(crate) no: i64,
    pub(crate) head: Head,
}
