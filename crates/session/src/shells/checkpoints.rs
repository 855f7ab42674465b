//! Checkpoints of a shell's files: kept in the snapshot store, brought back in place while everything stands still.
//!
//! A sandbox's checkpoints are of its whole home, a project's of its folder; on the bare host they are of the folder
//! that the caller named, and never of a home folder that nobody named.

use super::{afar::Afar, grip::Grip, memo::ShellSpec};
use crate::{Shared, faults, policy::walls, spec::internal};
use journal::NewSession;
use place::snapshot::Owners;
use protocol::{Checkpoint, Code, Fault, PlaceKind, RestoredCheckpoint, SnapshotTaken, Timestamp};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, pin::Pin, sync::Arc};

/// Checkpoints of one shell; the oldest goes when there is one more.
pub(super) const MOST: usize = 256;
/// A name that what a cut-off restore left is known by.
const DRAFT: &str = ".outlast-restore-checkpoint-";

/// A checkpoint, as the session remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) id: String,
    pub(super) label: Option<String>,
    pub(super) created: Timestamp,
}

impl Kept {
    pub(super) fn told(&self) -> Checkpoint {
        Checkpoint { id: self.id.clone(), label: self.label.clone(), created: self.created }
    }
}

/// The name that a checkpoint is kept under in the store.
pub(super) fn row(fixed: &NewSession, id: &str) -> String {
    format!("{}.{id}", fixed.id)
}

/// What came of it.
pub(super) enum Did {
    /// None if nothing has changed since the last one.
    Took {
        kept: Option<Kept>,
        files: u64,
    },
    Restored {
        undo: Kept,
        told: RestoredCheckpoint,
    },
}

pub(super) type Doing = Pin<Box<dyn Future<Output = Result<Did, Fault>> + Send>>;

/// Everything that a checkpoint needs, looked up beforehand.
pub(super) enum Ground {
    Near(Box<Near>),
    Far(Box<Afar>),
}

/// Files on this machine.
pub(super) struct Near {
    spot: Spot,
    still: Still,
}

/// Where the files are.
struct Spot {
    shared: Arc<Shared>,
    fixed: NewSession,
    folder: PathBuf,
    draft: PathBuf,
}

type Moved = Pin<Box<dyn Future<Output = Result<(), place::keeper::KeeperError>> + Send>>;

/// How everything is made to stand still meanwhile.
enum Still {
    /// Nothing runs.
    Empty,
    By {
        freeze: Moved,
        thaw: Moved,
    },
    /// This machine can freeze nothing.
    Cannot,
}

impl Ground {
    pub(super) fn new(
        shared: &Arc<Shared>,
        fixed: &NewSession,
        spec: &ShellSpec,
        cwd: Option<&str>,
        grip: Option<&Grip>,
    ) -> Result<Self, Fault> {
        match (fixed.place, grip) {
            (PlaceKind::Ssh | PlaceKind::Docker, Some(_)) => {
                Afar::new(shared, fixed, spec, cwd).map(|afar| Self::Far(Box::new(afar)))
            }
            (PlaceKind::Ssh | PlaceKind::Docker, None) => {
                let text = "The shell's machine is not reached just now; run a command first, or try again";
                Err(Fault::new(Code::NotRunning, text))
            }
            (PlaceKind::Sandbox | PlaceKind::Project | PlaceKind::Host, grip) => {
                Near::new(shared, fixed, spec, grip).map(|near| Self::Near(Box::new(near)))
            }
        }
    }
}

impl Near {
    fn new(
        shared: &Arc<Shared>,
        fixed: &NewSession,
        spec: &ShellSpec,
        grip: Option<&Grip>,
    ) -> Result<Self, Fault> {
        if !spec.paths.is_empty() || !spec.checkpoint_ignores.is_empty() {
            let text = "Checkpoints of local shells hold the whole workspace; open the shell without paths and \
                        checkpoint_ignores";
            return Err(Fault::new(Code::Unsupported, text));
        }
        let draft = format!("{DRAFT}{}", uuid::Uuid::now_v7().simple());
        let (folder, draft) = match fixed.place {
            PlaceKind::Project => {
                let folder = project_folder(shared, spec)?;
                let draft = folder.join(draft);
                (folder, draft)
            }
            PlaceKind::Sandbox => {
                let folder = shared.place.folder(&fixed.sandbox);
                let draft = folder.with_file_name(draft);
                (folder, draft)
            }
            PlaceKind::Host => {
                let folder = host_folder(shared, spec)?;
                let draft = folder.join(draft);
                (folder, draft)
            }
            PlaceKind::Ssh | PlaceKind::Docker => return Err(internal("a far shell's files are not near")),
        };
        let still = match grip {
            None => Still::Empty,
            Some(grip) if grip.keeper().can_freeze() => {
                Still::By { freeze: grip.freeze(), thaw: grip.thaw() }
            }
            Some(_) => Still::Cannot,
        };
        let spot = Spot { shared: Arc::clone(shared), fixed: fixed.clone(), folder, draft };
        Ok(Self { spot, still })
    }

    /// Does something while everything stands still.
    async fn still<T>(self, work: impl AsyncFnOnce(&Spot) -> Result<T, Fault>) -> Result<T, Fault> {
        let Self { spot, still } = self;
        match still {
            Still::Empty | Still::Cannot => work(&spot).await,
            Still::By { freeze, thaw } => {
                freeze.await.map_err(|error| {
                    Fault::new(Code::SandboxFailed, format!("What runs could not be held still: {error}"))
                })?;
                let done = work(&spot).await;
                if let Err(error) = thaw.await {
                    tracing::error!(session = %spot.fixed.id, %error, "a shell could not be thawed");
                }
                done
            }
        }
    }
}

impl Spot {
    async fn keep(&self, id: &str, previous: Option<&str>) -> Result<Option<SnapshotTaken>, Fault> {
        let owners = self.owners().await?;
        let previous = previous.map(|id| row(&self.fixed, id));
        let name = row(&self.fixed, id);
        self.shared.sandboxes.keep(&self.fixed.tenant, &name, previous.as_deref(), &self.folder, owners).await
    }

    async fn bring_back(&self, id: &str) -> Result<u64, Fault> {
        let owners = self.owners().await?;
        let name = row(&self.fixed, id);
        self.shared.sandboxes.bring_back(&name, &self.folder, &self.draft, owners).await
    }

    /// Files of a sandbox have its one owner; others have those that the machine knows.
    async fn owners(&self) -> Result<Owners, Fault> {
        if self.fixed.place != PlaceKind::Sandbox {
            return Ok(Owners::default());
        }
        let walls = walls(self.fixed.place);
        let owner = self.shared.place.owner(&self.fixed.sandbox, walls).await;
        Ok(owner.map_err(|error| faults::place(&error))?.owners(walls))
    }
}

/// A project's own folder, unless the server's data lies in it: that changes with every checkpoint.
fn project_folder(shared: &Shared, spec: &ShellSpec) -> Result<PathBuf, Fault> {
    let folder =
        spec.project.as_ref().map(PathBuf::from).ok_or_else(|| internal("a project without a folder"))?;
    let data = std::fs::canonicalize(&shared.options.data).unwrap_or_else(|_| shared.options.data.clone());
    if data.starts_with(&folder) {
        let text = "The project holds the server's own data, so that no checkpoint of it can be taken; work in a \
                    folder below it";
        return Err(Fault::new(Code::Unsupported, text));
    }
    Ok(folder)
}

/// The folder that a shell on the bare host is about.
fn host_folder(shared: &Shared, spec: &ShellSpec) -> Result<PathBuf, Fault> {
    let named = spec.workspace.as_ref().or(spec.cwd.as_ref());
    let Some(folder) = named.map(PathBuf::from) else {
        return Err(Fault::invalid(
            "Name the folder that checkpoints are of with session_create's workspace, or open the shell in it \
             with cwd",
        ));
    };
    let env = spec.own_env.as_ref().unwrap_or(&shared.options.shells.host_env);
    let home = env.get("HOME").map(PathBuf::from);
    if spec.workspace.is_none() && (folder.parent().is_none() || home.as_deref() == Some(&folder)) {
        return Err(Fault::invalid(
            "A home folder is not taken as a checkpoint's by itself; name a folder with session_create's workspace",
        ));
    }
    Ok(folder)
}

/// Takes a checkpoint. With `previous`, only if something has changed since, where that can be told.
pub(super) fn take(ground: Ground, number: u64, label: Option<String>, previous: Option<String>) -> Doing {
    Box::pin(async move {
        let (id, files) = match ground {
            Ground::Near(near) => {
                let id = format!("c{number}");
                let taken = near.still(async |spot| spot.keep(&id, previous.as_deref()).await).await?;
                match taken {
                    Some(taken) => (id, taken.files),
                    None => return Ok(Did::Took { kept: None, files: 0 }),
                }
            }
            Ground::Far(afar) => afar.take(label.as_deref()).await?,
        };
        Ok(Did::Took { kept: Some(Kept { id, label, created: Timestamp::now() }), files })
    })
}

/// Takes a checkpoint, by which it can be undone, and brings the files back to another.
pub(super) fn restore(ground: Ground, number: u64, to: String) -> Doing {
    Box::pin(async move {
        let (undo, files_changed) = match ground {
            Ground::Near(near) => {
                if matches!(near.still, Still::Cannot) && near.spot.fixed.place == PlaceKind::Sandbox {
                    let text =
                        "This machine can hold nothing still, so that files in use cannot be brought back";
                    return Err(Fault::new(Code::Unsupported, text));
                }
                let undo = format!("c{number}");
                let changed = near.still(async |spot| {
                    spot.keep(&undo, None).await?;
                    spot.bring_back(&to).await
                });
                let changed = changed.await?;
                (undo, changed)
            }
            Ground::Far(afar) => afar.restore(&to).await?,
        };
        let label = Some(format!("before {to} was restored"));
        let told = RestoredCheckpoint { restored_to: to, files_changed, undo: undo.clone() };
        Ok(Did::Restored { undo: Kept { id: undo, label, created: Timestamp::now() }, told })
    })
}
