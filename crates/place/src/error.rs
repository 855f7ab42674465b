//! What can go wrong in a place, one enum for each operation that a caller tells apart.

use std::{io, path::PathBuf};

/// Why a workspace or a file in it could not be made, written or removed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error("{0:?} cannot name a workspace: it must be one plain path component")]
    BadId(String),
    #[error("the workspace {0} exists already")]
    Exists(String),
    #[error("there is no workspace {0}")]
    NoWorkspace(String),
    #[error("there is no folder {} to copy from", .0.display())]
    NoSource(PathBuf),
    /// Absolute, empty, or with `..` in it.
    #[error("{0:?} is not a path below the workspace")]
    BadPath(String),
    #[error("{0:?} goes through a link or something else that is not a folder")]
    NotFolder(String),
    #[error("all users that sandboxes can have are in use; end sessions that are not needed")]
    NoOwner,
    /// A process that should have been running is not there.
    #[error("{why}")]
    Lost { why: String },
    #[error("the folder holds more than {limit} entries")]
    TooMany { limit: usize },
    #[error("the folder holds more than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the folder is nested more than {limit} deep")]
    TooDeep { limit: usize },
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl PlaceError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io { what, path: path.into(), source: source.into() }
    }
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// `searched` are the files that were looked for.
    #[error("the program {program:?} was not found; looked for {}", list(searched))]
    NotFound { program: String, searched: Vec<PathBuf> },
    #[error("{} is not an executable file; set its mode or name another program", path.display())]
    NotExecutable { path: PathBuf },
    #[error("{program:?} is not a program's name, a path below the workspace or an absolute path")]
    BadProgram { program: String },
    #[error("arguments and environment must be free of NUL, and a variable's name of \"=\"")]
    BadText,
    #[error("the arguments and environment are larger than the system takes")]
    TooLarge,
    /// The keeper did not start: the machine cannot give what the terms ask for. The message says what to do.
    #[error(transparent)]
    NoRoom(crate::keeper::KeeperError),
    #[error("the workspace has no home at {}", home.display())]
    NoHome { home: PathBuf },
    /// Present and executable, and yet the system would not run it: a script whose interpreter is missing, a
    /// program for another machine, no memory, too many processes.
    #[error("cannot start {}: {source}", path.display())]
    Failed { path: PathBuf, source: io::Error },
}

fn list(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "nothing, since PATH is empty".to_owned();
    }
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Why input was not taken. Nothing of it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StdinError {
    #[error("the process's input is closed")]
    Closed,
    #[error("the process is not reading its input, and the bound on what may wait is reached")]
    Full,
}
