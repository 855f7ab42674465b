//! Why a file in a place could not be reached.

use rustix::io::Errno;
use std::{io, path::PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// Empty where a name is needed, absolute, with `..` or NUL in it, or too long.
    #[error("{} is not a path below the folder; use a relative path without \"..\"", .0.display())]
    BadPath(PathBuf),
    #[error("there is no {}", .0.display())]
    NotFound(PathBuf),
    #[error("{} goes through something that is not a folder", .0.display())]
    NotFolder(PathBuf),
    #[error("{} is not a regular file", .0.display())]
    NotFile(PathBuf),
    /// A link on the way leads out of the folder, or no link may be followed here.
    #[error("{} goes through a link that may not be followed", .0.display())]
    Link(PathBuf),
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    #[error("the folder {} is not empty; remove it with everything in it, or empty it first", .0.display())]
    NotEmpty(PathBuf),
    #[error("{} may not be reached: permission denied", .0.display())]
    Denied(PathBuf),
    #[error("there is no room to write {}: the disk or quota is full", .0.display())]
    Full(PathBuf),
    #[error("{} holds more than {limit} entries", path.display())]
    TooMany { path: PathBuf, limit: usize },
    #[error("{} is nested more than {limit} deep", path.display())]
    TooDeep { path: PathBuf, limit: usize },
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl FilesError {
    pub(crate) fn new(what: &'static str, path: impl Into<PathBuf>, error: Errno) -> Self {
        let path = path.into();
        match error {
            Errno::NOENT => Self::NotFound(path),
            Errno::NOTDIR => Self::NotFolder(path),
            Errno::LOOP | Errno::XDEV => Self::Link(path),
            Errno::EXIST => Self::Exists(path),
            Errno::NOTEMPTY => Self::NotEmpty(path),
            Errno::ISDIR => Self::NotFile(path),
            Errno::ACCESS | Errno::PERM => Self::Denied(path),
            Errno::NOSPC | Errno::DQUOT => Self::Full(path),
            Errno::NAMETOOLONG => Self::BadPath(path),
            error => Self::Io { what, path, source: error.into() },
        }
    }
}
