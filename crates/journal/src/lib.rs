//! The durable, numbered record of every session, and the small tables beside it.
//!
//! The session room writes through a [`Writer`] per session and reads through [`Journal`]; doors follow through a
//! [`Follower`]; the binary opens, closes, backs up, restores and verifies. What is acknowledged is on disk; what
//! is visible is durable. This room knows neither sessions' rules nor HTTP, and never looks inside a body.
//!
//! ```text
//! Writer ──lane──► committer ──one transaction, one fsync──► store
//!   ▲ Durable         │ batch                                  ▲ pages
//!   └─────────────────┴──► hub ──► Follower ───────────────────┘
//! ```

mod attachment;
mod audit;
mod backup;
mod blobs;
mod chain;
mod committer;
mod error;
mod event;
mod faults;
mod figures;
mod follow;
mod journal;
mod lanes;
mod readers;
mod requests;
mod rows;
mod space;
mod store;
mod writer;

pub use attachment::{Attachment, Draft};
pub use audit::{Audit, Break, Flaw, verify};
pub use backup::{Progress, backup, restore, snapshots_in};
pub use error::{BackupError, OpenError, ReadError, WriteError};
pub use event::{Append, Batch, NewEvent, Page, StoredEvent};
pub use faults::{Fault, Faults};
pub use figures::{COMMIT_MICROS, Figures};
pub use follow::{Follower, Seat};
pub use journal::{Journal, Options, Tuning};
pub use rows::{
    AgentRow, CredentialRow, KeyRow, NewSession, SandboxRow, SessionPage, SessionQuery, SessionRow,
    SessionState, SnapshotRow, TenantUsage, TurnRow,
};
pub use space::Space;
pub use writer::{Durable, Writer};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No lock here guards a half-made change: what a panicking thread left behind is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
