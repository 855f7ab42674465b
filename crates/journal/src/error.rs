//! What can go wrong, one enum per operation that a caller can tell apart. Every message that a person may see
//! says what to do next.

use protocol::Seq;
use std::path::PathBuf;

/// Why a store could not be opened; every message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{} is in use by another outlast server; stop that one, or choose another data folder with --data",
        .dir.display()
    )]
    InUse { dir: PathBuf },
    #[error("{} is not an outlast database; move it away, or choose another data folder with --data", .path.display())]
    NotOurs { path: PathBuf },
    #[error(
        "{} has schema {found}, and this program reads up to {supported}; use outlast {needed} or newer",
        .path.display()
    )]
    Newer { path: PathBuf, found: i64, supported: i64, needed: String },
    #[error(
        "{} is damaged ({reason}); nothing was changed. Restore the data folder from a backup with `outlast restore`",
        .path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    #[error("there is no outlast database in {}; name the data folder with --data", .dir.display())]
    Missing { dir: PathBuf },
    #[error("{} cannot be used: {reason}; check the path, its permissions and the disk", .path.display())]
    Io { path: PathBuf, reason: String },
}

impl OpenError {
    pub(crate) fn io(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), reason: error.to_string() }
    }
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

#[derive(Debug, Clone, thiserror::Error)]
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

/// Why a backup or a restore was not made. Nothing half-made is left behind.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{} is there already; name a folder that does not exist", .path.display())]
    Exists { path: PathBuf },
    #[error("{} holds data already; restore into an empty data folder", .dir.display())]
    HoldsData { dir: PathBuf },
    #[error("the backup does not verify: {first}; use another backup")]
    Broken { first: String },
    #[error("blob {address} is missing from {}; run `outlast audit verify` on the data folder", .dir.display())]
    BlobMissing { dir: PathBuf, address: String },
    #[error("the copy failed at {}: {reason}", .path.display())]
    Io { path: PathBuf, reason: String },
}
