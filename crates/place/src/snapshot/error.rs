//! What can go wrong with a snapshot. One enum, since a caller treats taking, restoring and reading alike: the
//! folder was at fault, the store was, a bound was passed, or it was told to stop.

use super::{ObjectId, SnapshotId};
use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("stopped before the snapshot's work was done")]
    Cancelled,
    #[error("the folder holds more than {limit} bytes; remove what is not needed or raise the limit")]
    TooLarge { limit: u64 },
    #[error("the folder holds more than {limit} files and folders; remove some or raise the limit")]
    TooMany { limit: u64 },
    #[error("the folder is nested more than {limit} deep")]
    TooDeep { limit: usize },
    #[error("a path in the folder is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error("{} is not a folder", .0.display())]
    NoFolder(PathBuf),
    #[error("{} exists already and was not to be replaced", .0.display())]
    Exists(PathBuf),
    #[error("there is no snapshot {0} in the store")]
    NoSnapshot(SnapshotId),
    #[error("the snapshot holds no {}", .0.display())]
    NotFound(PathBuf),
    #[error("{} is not a regular file in the snapshot", .0.display())]
    NotFile(PathBuf),
    #[error("{} is not a folder in the snapshot", .0.display())]
    NotFolder(PathBuf),
    /// `file` is the file that was being written or read, where it was one.
    #[error(
        "the stored object {object}{} is damaged; restore an earlier snapshot or the store's backup",
        part(file)
    )]
    Damaged { object: ObjectId, file: Option<PathBuf> },
    #[error("the stored object {object}{} is gone from the store", part(file))]
    Missing { object: ObjectId, file: Option<PathBuf> },
    #[error(
        "the stored object {object} was written by a newer version (format {version}); upgrade this server"
    )]
    Newer { object: ObjectId, version: u8 },
    #[error("the snapshot store failed: {0}")]
    Store(#[source] io::Error),
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl SnapshotError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io { what, path: path.into(), source: source.into() }
    }

    /// Names the file that a fault of the store was met in.
    pub(crate) fn in_file(self, path: &[u8]) -> Self {
        match self {
            Self::Damaged { object, file: None } => Self::Damaged { object, file: Some(path_of(path)) },
            Self::Missing { object, file: None } => Self::Missing { object, file: Some(path_of(path)) },
            other => other,
        }
    }
}

pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn part(file: &Option<PathBuf>) -> String {
    file.as_ref().map(|file| format!(" (part of {})", file.display())).unwrap_or_default()
}
