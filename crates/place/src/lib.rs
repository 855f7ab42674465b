//! Where an occupant's processes and files are. For now that is the bare host; sandboxes, containers and
//! remote machines join the same closed set.
//!
//! The session room calls this one: it makes a workspace, starts processes in it, and is handed numbered
//! output that it acknowledges once recorded, so that a keeper can take the host's place without a change
//! above. This room is the only one that spawns, and the only one with `unsafe`. It knows nothing of
//! journals, sessions or agents, and it never follows a link out of a workspace.

mod copy;
mod error;
mod file;
pub mod files;
mod host;
pub mod keeper;
mod process;
pub mod snapshot;
mod spawner;
#[cfg(test)]
mod tests;

pub use copy::tree as copy_tree;
pub use error::{PlaceError, SpawnError, StdinError};
pub use host::Host;
pub use process::{Chunk, Exit, Handle, Output, Process, READ_BYTES, STDIN_BYTES, Signal, Stdin};
use protocol::PlaceKind;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Where processes and files are. A closed set; more kinds come later.
#[derive(Debug, Clone)]
pub enum Place {
    Host(Host),
}

/// A process to start, in the workspace's home.
#[derive(Clone)]
pub struct Spawn {
    /// A bare name is looked up in `env`'s PATH, never the server's; a relative path lies below home.
    pub program: String,
    pub args: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
}

impl std::fmt::Debug for Spawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Environments hold secrets, and so do arguments now and then.
        f.debug_struct("Spawn").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Place {
    pub fn kind(&self) -> PlaceKind {
        match self {
            Self::Host(_) => PlaceKind::Host,
        }
    }

    /// Makes the workspace `id` as a private copy of `from`, whole or not at all.
    pub async fn create(&self, id: &str, from: &Path) -> Result<(), PlaceError> {
        match self {
            Self::Host(host) => host.create(id, from).await,
        }
    }

    pub async fn exists(&self, id: &str) -> bool {
        match self {
            Self::Host(host) => host.exists(id).await,
        }
    }

    /// The path that processes see as their home and start in.
    pub fn home(&self, id: &str) -> PathBuf {
        match self {
            Self::Host(host) => host.home(id),
        }
    }

    /// Writes one file below home, whole or not at all, making its folders. A link in the file's own place is
    /// replaced; a link among its folders is refused.
    pub async fn write_file(&self, id: &str, path: &str, content: &[u8]) -> Result<(), PlaceError> {
        match self {
            Self::Host(host) => host.write_file(id, path, content).await,
        }
    }

    /// Starts a process. It dies with the [`Handle`] and, on the host, with the server.
    pub async fn spawn(&self, id: &str, spawn: Spawn) -> Result<Process, SpawnError> {
        match self {
            Self::Host(host) => host.spawn(id, spawn).await,
        }
    }

    /// Removes the workspace; one that is not there is removed already.
    pub async fn destroy(&self, id: &str) -> Result<(), PlaceError> {
        match self {
            Self::Host(host) => host.destroy(id).await,
        }
    }

    /// Removes what a killed server left half made or half removed. For the server's start, before any create.
    pub async fn sweep(&self) -> Result<(), PlaceError> {
        match self {
            Self::Host(host) => host.sweep().await,
        }
    }
}
