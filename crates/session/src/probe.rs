//! What this machine can isolate, found out by doing it: a throw-away sandbox in a folder of the caller's.
//!
//! For `doctor`, which must not know of places. It asks for every limit that there is, whatever the operator set, so
//! that what is missing shows.

use crate::policy::Sandboxing;
use place::{Place, PlaceError, Spawn, SpawnError, Walls, keeper::KeeperError};
use protocol::{Bounds, McpServers, PlaceKind, Policy};
use std::{collections::BTreeMap, path::Path, time::Duration};

/// The name of the workspace, and of the folder that it is copied from.
const PROBE: &str = "probe";
const FROM: &str = "from";
/// What runs inside.
const PROGRAM: &str = "true";
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Asked for where the operator names none: high enough to bind nothing, and still a limit.
const FULL_CPU: u32 = 100;
/// After this long the keeper ends by itself, should the caller be killed.
const ORPHAN: Duration = Duration::from_secs(30);
/// The whole attempt.
const PATIENCE: Duration = Duration::from_secs(60);

/// A sandbox that stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Limits in force, in words.
    pub limits: Vec<&'static str>,
    /// What was asked for and is not in force, each with what to do.
    pub missing: Vec<String>,
    pub pausing: Pausing,
    pub users: Users,
}

/// What pausing a session can mean here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pausing {
    Freezes,
    /// Nothing can be frozen.
    Stops,
}

/// Who sandboxes are on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    OneEach,
    /// Only root can give others than its own.
    ServersOwn,
}

/// Why there is no sandbox: what happened, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {fix}")]
pub struct NoSandbox {
    pub what: String,
    pub fix: String,
}

impl NoSandbox {
    fn new(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into() }
    }
}

/// Makes a sandbox below `folder`, which is the caller's to remove, runs a program in it, and takes it down.
pub async fn probe_sandbox(folder: &Path, sandboxing: &Sandboxing) -> Result<Probe, NoSandbox> {
    let attempt = tokio::time::timeout(PATIENCE, attempt(folder, sandboxing));
    attempt.await.unwrap_or_else(|_| {
        Err(NoSandbox::new(
            format!("a sandbox was not done within {PATIENCE:?}"),
            "look at the machine's load and try again",
        ))
    })
}

async fn attempt(folder: &Path, sandboxing: &Sandboxing) -> Result<Probe, NoSandbox> {
    let from = folder.join(FROM);
    std::fs::create_dir(&from)
        .map_err(|error| unprepared(&PlaceError::Io { what: "make", path: from.clone(), source: error }))?;
    let place = Place::new(folder, ORPHAN);
    place.create(PROBE, &from, Walls::Sandbox).await.map_err(|error| unprepared(&error))?;
    let owner = place.owner(PROBE, Walls::Sandbox).await.map_err(|error| unprepared(&error))?;
    let wanted = Sandboxing { limits: every_limit(sandboxing.limits), ..sandboxing.clone() };
    let applied =
        wanted.apply(PlaceKind::Sandbox, &Policy::default(), None, &McpServers::new()).map_err(|fault| {
            NoSandbox::new(fault.message, "correct the section [sandbox] of the configuration")
        })?;
    let spawn = Spawn {
        program: PROGRAM.to_owned(),
        args: Vec::new(),
        env: BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]),
        cwd: None,
    };
    let mut spawned = place.spawn(PROBE, spawn, applied.terms).await.map_err(|error| unspawned(&error))?;
    let exit = spawned.process.handle.wait().await;
    let keeper = spawned.hold.keeper();
    let probe = Probe {
        limits: keeper.limit_names(),
        missing: keeper.missing().to_vec(),
        pausing: if keeper.can_freeze() { Pausing::Freezes } else { Pausing::Stops },
        users: if owner.uid == rustix::process::geteuid().as_raw() {
            Users::ServersOwn
        } else {
            Users::OneEach
        },
    };
    spawned.hold.end().await;
    if exit.code == Some(0) {
        return Ok(probe);
    }
    Err(NoSandbox::new(
        format!("the program {PROGRAM:?} failed inside a sandbox: {exit:?}"),
        "check that it works outside, and what sandbox.root holds",
    ))
}

fn every_limit(given: Bounds) -> Bounds {
    let usual = Sandboxing::default().limits;
    Bounds {
        memory_mb: given.memory_mb.or(usual.memory_mb),
        processes: given.processes.or(usual.processes),
        cpu_percent: given.cpu_percent.or(Some(FULL_CPU)),
        open_files: given.open_files.or(usual.open_files),
        ..given
    }
}

fn unprepared(error: &PlaceError) -> NoSandbox {
    NoSandbox::new(
        format!("no workspace could be made: {error}"),
        "check who owns the data folder and whether it has room",
    )
}

fn unspawned(error: &SpawnError) -> NoSandbox {
    match error {
        SpawnError::NoRoom(KeeperError::NotStarted { what, fix }) => NoSandbox::new(what, fix),
        SpawnError::NoRoom(error) => NoSandbox::new(
            error.to_string(),
            "programs must be allowed to run from the data folder: it may not be mounted noexec",
        ),
        SpawnError::NotFound { .. } => {
            NoSandbox::new(error.to_string(), "a sandbox.root must hold the programs that agents need")
        }
        SpawnError::NotExecutable { .. }
        | SpawnError::BadProgram { .. }
        | SpawnError::BadText
        | SpawnError::TooLarge
        | SpawnError::NoHome { .. }
        | SpawnError::Failed { .. } => NoSandbox::new(
            format!("a sandbox stood, and nothing could be started in it: {error}"),
            "look at the message, and check what sandbox.root holds",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sandbox_stands_here_and_leaves_nothing_running() {
        let folder = tempfile::tempdir().unwrap();
        let probe = probe_sandbox(folder.path(), &Sandboxing::default()).await.unwrap();
        assert!(probe.limits.contains(&"open files"), "{probe:?}");
        assert_eq!(
            probe.limits.len() + probe.missing.len(),
            4,
            "each is in force or said to be missing: {probe:?}"
        );
        let root = rustix::process::geteuid().is_root();
        assert_eq!(probe.users, if root { Users::OneEach } else { Users::ServersOwn });
        assert_eq!(
            std::fs::read_dir(folder.path().join("keepers")).unwrap().count(),
            0,
            "its keeper is gone"
        );
    }

    #[tokio::test]
    async fn what_cannot_be_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let bad = Sandboxing { root: Some("/no/such/root".into()), ..Sandboxing::default() };
        let error = probe_sandbox(folder.path(), &bad).await.unwrap_err();
        assert!(!error.what.is_empty() && !error.fix.is_empty(), "{error:?}");
        let nowhere =
            probe_sandbox(&folder.path().join("no/such"), &Sandboxing::default()).await.unwrap_err();
        assert!(nowhere.what.contains("workspace"), "{nowhere:?}");
    }
}
