//! Where an occupant's processes and files are: a workspace each, and the keeper that holds what runs in it.
//!
//! The session room calls this one: it makes a workspace, starts processes in it under terms that say how they are
//! contained, and is handed numbered output that it acknowledges once recorded. Processes outlive the server; the
//! next one takes them up by their [`Tie`]. This room is the only one that spawns. It knows nothing of journals,
//! sessions or agents, and it never follows a link out of a workspace.

mod copy;
mod error;
mod file;
pub mod files;
pub mod keeper;
mod owner;
mod process;
mod project;
pub mod remote;
mod room;
pub mod snapshot;
mod terms;
#[cfg(test)]
mod tests;
mod usage;
mod workspaces;

pub use ::keeper::OUTPUT_BYTES as SPOOL_BYTES;
pub use copy::tree as copy_tree;
pub use error::{PlaceError, SpawnError, StdinError};
pub use owner::Owner;
pub use process::{Chunk, Exit, Handle, Output, Process, STDIN_BYTES, Signal, Stdin};
pub use project::{Naming, Project, ProjectError, ProjectRules};
pub use room::{FoundShell, Hold, Known, Spawned, StartedShell, TakenUp, Tie};
pub use terms::{HOME_INSIDE, Outlook, Terms, Walls};
pub use usage::usage;

use owner::Ids;
use room::Rooms;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};
use workspaces::Workspaces;

/// Lets the groups of sandboxes have their limits beside this process, where it is alone in a group of its own. For a
/// server, once, at its start.
pub fn settle() -> std::io::Result<()> {
    ::keeper::cgroup::settle()
}

/// All workspaces of one data folder, and what runs in them. A cheap handle.
#[derive(Debug, Clone)]
pub struct Place {
    workspaces: Workspaces,
    rooms: Rooms,
}

/// A process to start, in the workspace's home unless it says otherwise.
#[derive(Clone, Default)]
pub struct Spawn {
    /// A bare name is looked up in `env`'s PATH, never the server's; a relative path lies below `cwd`.
    pub program: String,
    pub args: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// As the process sees it; none is the home.
    pub cwd: Option<String>,
}

impl std::fmt::Debug for Spawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Environments hold secrets, and so do arguments now and then.
        f.debug_struct("Spawn").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Place {
    /// Workspaces in `data/places`, keepers in `data/keepers`. A keeper whose server has not come back for `orphan`
    /// ends its processes and itself.
    pub fn new(data: &Path, orphan: Duration) -> Self {
        let workspaces = Workspaces::new(data.join("places"), Ids::new(data));
        Self { rooms: Rooms::new(data, orphan, workspaces.clone()), workspaces }
    }

    /// Makes the workspace `id` as a private copy of `from`, whole or not at all. In a sandbox it gets an owner that
    /// no other workspace has, where the server may give one.
    pub async fn create(&self, id: &str, from: &Path, walls: Walls) -> Result<(), PlaceError> {
        self.workspaces.create(id, from, walls).await
    }

    /// An owner for a workspace that the caller makes itself; the workspace's own when it is there.
    pub async fn owner(&self, id: &str, walls: Walls) -> Result<Owner, PlaceError> {
        self.workspaces.owner(id, walls).await
    }

    /// The workspace that an owner was drawn for was not made.
    pub fn give_back(&self, owner: Owner) {
        self.workspaces.give_back(owner);
    }

    pub async fn exists(&self, id: &str) -> bool {
        self.workspaces.exists(id).await
    }

    /// Where the workspace's files are on this machine.
    pub fn folder(&self, id: &str) -> PathBuf {
        self.workspaces.folder(id)
    }

    /// The path that processes see as their home and start in. A project has its own.
    pub fn home(&self, id: &str, walls: Walls) -> PathBuf {
        match walls {
            Walls::None => self.folder(id),
            Walls::Sandbox | Walls::Project => PathBuf::from(HOME_INSIDE),
        }
    }

    /// Writes one file below home, whole or not at all, making its folders. A link in the file's own place is
    /// replaced; a link among its folders is refused.
    pub async fn write_file(&self, id: &str, path: &str, content: &[u8]) -> Result<(), PlaceError> {
        self.workspaces.write_file(id, path, content).await
    }

    /// Starts a process in the workspace's room, which is opened on these terms when nothing runs in it. What was
    /// started and never taken from the result ends by itself.
    pub async fn spawn(&self, id: &str, spawn: Spawn, terms: Terms) -> Result<Spawned, SpawnError> {
        self.rooms.spawn(id, spawn, terms).await
    }

    /// Takes up a process that this server or another one started; its output is read on from `stdout`.
    pub async fn take_up(&self, id: &str, tie: &Tie, stdout: u64) -> Result<TakenUp, PlaceError> {
        self.rooms.take_up(id, tie, Some(stdout)).await
    }

    /// The same, of a process whose output nobody records: read on from what of it the keeper still has.
    pub async fn take_up_kept(&self, id: &str, tie: &Tie) -> Result<TakenUp, PlaceError> {
        self.rooms.take_up(id, tie, None).await
    }

    /// Starts a shell in the workspace's room, as [`Self::spawn`] does a process; in the state that one had before it.
    pub async fn start_shell(
        &self,
        id: &str,
        spawn: Spawn,
        terms: Terms,
        before: Option<keeper::SavedState>,
    ) -> Result<StartedShell, SpawnError> {
        self.rooms.start_shell(id, spawn, terms, before).await
    }

    pub async fn take_up_shell(&self, id: &str, tie: &Tie) -> Result<FoundShell, PlaceError> {
        self.rooms.take_up_shell(id, tie).await
    }

    /// Makes an empty workspace.
    pub async fn create_empty(&self, id: &str, walls: Walls) -> Result<(), PlaceError> {
        self.workspaces.create_empty(id, walls).await
    }

    /// Is anything running in the workspace that this server knows of?
    pub async fn is_occupied(&self, id: &str) -> bool {
        self.rooms.is_occupied(id).await
    }

    /// Ends what a stopped server left running and nobody is tied to. For the server's start, before any spawn.
    pub async fn adopt(&self, known: Known) {
        self.rooms.adopt(known).await;
    }

    /// The ids of all workspaces that are there.
    pub async fn workspaces(&self) -> Vec<String> {
        self.workspaces.list().await
    }

    /// Removes the workspace; one that is not there is removed already.
    pub async fn destroy(&self, id: &str) -> Result<(), PlaceError> {
        self.workspaces.destroy(id).await
    }

    /// Removes what a killed server left half made or half removed. For the server's start, before any create.
    pub async fn sweep(&self) -> Result<(), PlaceError> {
        self.workspaces.sweep().await
    }
}
