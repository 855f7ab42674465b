//! The files of sandboxes: taking and restoring their snapshots, looking into them and changing them from outside,
//! and letting go of what nothing needs. The one owner of `snapshots/` in the data folder and of the sandboxes' rows.
//!
//! The session task takes a snapshot when it pauses or ends and restores one when it resumes cold; file calls come
//! from the doors through `Sessions`. Everything that touches a disk runs on blocking threads, a bounded number at
//! once, so that no snapshot holds up other sessions. A caller that goes away stops its work.
//!
//! Refuses to name a snapshot before it is durable, to change files that are in a snapshot only, and to leave the
//! folder it is given.

mod access;
mod content;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use access::{Files, Written};
pub use content::Content;

use crate::{faults, spec::internal};
use journal::{Journal, SandboxRow, SnapshotRow, WriteError};
use place::snapshot::{
    self, Collected, Existing, Limits, Local, Owners, RestoreOptions, SnapshotError, SnapshotId, Snapshots,
    TakeOptions, Watch,
};
use protocol::{Code, Fault, SnapshotRestored, SnapshotTaken, Tenant, Timestamp};
use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::task::AbortHandle;
use work::{Work, cancellable};

/// Below the data folder.
const SNAPSHOTS_FOLDER: &str = "snapshots";
/// Between two collections of garbage, and how long an object must have been idle to be garbage: longer than any
/// snapshot takes to be recorded after it was taken, and than a backup of the journal takes.
const COLLECT_EVERY: Duration = Duration::from_secs(30 * 60);
const COLLECT_GRACE: Duration = Duration::from_secs(60 * 60);

/// A cheap handle.
#[derive(Debug, Clone)]
pub(crate) struct Sandboxes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    journal: Journal,
    snapshots: Snapshots,
    limits: Limits,
    work: Work,
    /// One take or restore of a sandbox at a time.
    turns: ByName,
    entries: ByName,
    collector: Mutex<Option<AbortHandle>>,
}

/// A lock for each name that somebody holds or waits for.
#[derive(Debug, Default)]
struct ByName(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl ByName {
    async fn lock(&self, name: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| lock.strong_count() > 0);
            match locks.get(name).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::default();
                    locks.insert(name.to_owned(), Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let collector = self.collector.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(collector) = collector.take() {
            collector.abort();
        }
    }
}

impl Sandboxes {
    /// Opens the store of snapshots below `data`, making it where there is none, and clears what restores that were
    /// cut off left in `places`. Collects garbage from now on, in the background.
    pub(crate) async fn open(
        data: &Path,
        places: &Path,
        journal: Journal,
        limits: Limits,
    ) -> io::Result<Self> {
        let (data, places) = (data.to_owned(), places.to_owned());
        let opening = tokio::task::spawn_blocking(move || {
            if places.is_dir()
                && let Err(error) = snapshot::clear_drafts(&places)
            {
                tracing::warn!(%error, "what restores left half made could not be cleared");
            }
            Self::without_collector(&data, journal, limits)
        });
        let sandboxes = opening.await.map_err(io::Error::other)??;
        let collector = tokio::spawn(collect_always(Arc::downgrade(&sandboxes.inner)));
        *sandboxes.inner.collector.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(collector.abort_handle());
        Ok(sandboxes)
    }

    fn without_collector(data: &Path, journal: Journal, limits: Limits) -> io::Result<Self> {
        let store = Local::open(data.join(SNAPSHOTS_FOLDER))?;
        Ok(Self {
            inner: Arc::new(Inner {
                journal,
                snapshots: Snapshots::new(store),
                limits,
                work: Work::new(),
                turns: ByName::default(),
                entries: ByName::default(),
                collector: Mutex::default(),
            }),
        })
    }

    /// Takes a snapshot of `folder` and makes it the sandbox's last good one, durably. A failure, a crash or a
    /// dropped call leaves the one before. `owners` says how ids on disk are seen inside.
    pub(crate) async fn snapshot(
        &self,
        tenant: &Tenant,
        sandbox: &str,
        folder: &Path,
        owners: Owners,
    ) -> Result<SnapshotTaken, Fault> {
        let _turn = self.turn(sandbox).await;
        let row = self.row_or_new(tenant, sandbox).await?;
        let previous = row.snapshot.map(|snapshot| parse(&snapshot.id)).transpose()?;
        let (snapshots, limits) = (self.inner.snapshots.clone(), self.inner.limits);
        let folder = folder.to_owned();
        let taken = cancellable(&self.inner.work.takes, move |cancel| {
            let watch = Watch { cancel: Some(cancel), progress: None };
            take(&snapshots, &folder, previous.as_ref(), &TakeOptions { limits, owners, watch })
        })
        .await?
        .map_err(snapshot_fault)?;
        self.record(sandbox, taken).await
    }

    /// Keeps the state of a folder under a name of its own, durably; `previous` is the name that the last one was kept
    /// under, whose content is not read again. None if nothing differs from that.
    pub(crate) async fn keep(
        &self,
        tenant: &Tenant,
        name: &str,
        previous: Option<&str>,
        folder: &Path,
        owners: Owners,
    ) -> Result<Option<SnapshotTaken>, Fault> {
        let _turn = self.turn(name).await;
        let previous = match previous {
            Some(previous) => self.last(previous).await?,
            None => None,
        };
        let (snapshots, limits) = (self.inner.snapshots.clone(), self.inner.limits);
        let folder = folder.to_owned();
        let taken = cancellable(&self.inner.work.takes, move |cancel| {
            let watch = Watch { cancel: Some(cancel), progress: None };
            let taken = take(&snapshots, &folder, previous.as_ref(), &TakeOptions { limits, owners, watch })?;
            let same = match &previous {
                Some(previous) => {
                    let diff = snapshots.diff(previous, &taken.id)?;
                    diff.added + diff.removed + diff.changed == 0
                }
                None => false,
            };
            Ok((!same).then_some(taken))
        });
        let Some(taken) = taken.await?.map_err(snapshot_fault)? else { return Ok(None) };
        self.row_or_new(tenant, name).await?;
        self.record(name, taken).await.map(Some)
    }

    async fn record(&self, sandbox: &str, taken: snapshot::Taken) -> Result<SnapshotTaken, Fault> {
        let id = taken.id.to_string();
        let snapshot = SnapshotRow {
            id: id.clone(),
            taken_at: Timestamp::now(),
            files: taken.files,
            bytes: taken.bytes,
        };
        self.inner.journal.put_snapshot(sandbox, snapshot).await.map_err(faults::write)?;
        let skipped = taken.skipped;
        Ok(SnapshotTaken {
            snapshot: id,
            files: taken.files,
            bytes: taken.bytes,
            left_out: skipped.sockets + skipped.devices + skipped.unreadable + skipped.mounts,
            torn: skipped.torn,
        })
    }

    /// Makes a folder that is in use equal to what was kept under a name, by way of the folder `draft`. Everything that
    /// could write there must stand still. How many entries changed.
    pub(crate) async fn bring_back(
        &self,
        name: &str,
        folder: &Path,
        draft: &Path,
        owners: Owners,
    ) -> Result<u64, Fault> {
        if self.restore(name, draft, Some(owners)).await?.is_none() {
            return Err(Fault::new(Code::NotFound, "The checkpoint is not kept any more"));
        }
        let (folder, draft) = (folder.to_owned(), draft.to_owned());
        let leave =
            (draft.parent() == Some(&folder)).then(|| draft.file_name().map(ToOwned::to_owned)).flatten();
        let merged = cancellable(&self.inner.work.restores, move |_| {
            let merged = snapshot::merge(&draft, &folder, leave.as_deref());
            if let Err(error) = std::fs::remove_dir_all(&draft) {
                tracing::warn!(%error, "what a restore left could not be removed");
            }
            merged
        });
        merged.await?.map_err(|error| {
            tracing::error!(%error, "a checkpoint was brought back in part");
            Fault::new(
                Code::SandboxFailed,
                format!("The checkpoint could only be brought back in part: {error}"),
            )
        })
    }

    /// Makes the folder `into` from the sandbox's last snapshot, verified, whole or not at all; none when there is
    /// no snapshot. A folder that is there is refused. `owners` as in [`Self::snapshot`]; without, all of it belongs
    /// to the server's user.
    pub(crate) async fn restore(
        &self,
        sandbox: &str,
        into: &Path,
        owners: Option<Owners>,
    ) -> Result<Option<SnapshotRestored>, Fault> {
        let _turn = self.turn(sandbox).await;
        let Some(id) = self.last(sandbox).await? else { return Ok(None) };
        let (snapshots, into) = (self.inner.snapshots.clone(), into.to_owned());
        let restored = cancellable(&self.inner.work.restores, move |cancel| {
            let watch = Watch { cancel: Some(cancel), progress: None };
            let options =
                RestoreOptions { owners, existing: Existing::Refuse, watch, ..RestoreOptions::default() };
            if let Some(parent) = into.parent() {
                std::fs::create_dir_all(parent).map_err(SnapshotError::Store)?;
            }
            snapshots.restore(&id, &into, &options)
        })
        .await?
        .map_err(snapshot_fault)?;
        Ok(Some(SnapshotRestored {
            snapshot: id.to_string(),
            files: restored.files,
            bytes: restored.bytes,
            lost: restored.owners_lost + restored.xattrs_lost,
        }))
    }

    /// What is in the sandbox's last snapshot; none when it has none.
    pub(crate) async fn last_taken(&self, sandbox: &str) -> Result<Option<SnapshotTaken>, Fault> {
        let row = self.inner.journal.sandbox(sandbox).await.map_err(faults::read)?;
        Ok(row.and_then(|row| row.snapshot).map(|kept| SnapshotTaken {
            snapshot: kept.id,
            files: kept.files,
            bytes: kept.bytes,
            left_out: 0,
            torn: 0,
        }))
    }

    /// Can a snapshot still be restored? One that nothing names any more may be collected at any time.
    pub(crate) async fn is_kept(&self, snapshot: &str) -> bool {
        let keep = self.inner.journal.snapshots().await.unwrap_or_default();
        keep.iter().any(|id| id == snapshot)
    }

    /// The sandbox's files: on disk when `folder` is there, else in its last snapshot.
    pub(crate) async fn files(&self, sandbox: &str, folder: PathBuf) -> Result<Files, Fault> {
        let opened = self.look(move || place::files::Files::open(&folder)).await?;
        match opened {
            Ok(files) => return Ok(Files::live(self.clone(), files)),
            Err(place::files::FilesError::NotFound(_)) => {}
            // Its text has a path of this machine in it.
            Err(error) => return Err(internal(error)),
        }
        let id = self.last(sandbox).await?.ok_or_else(|| {
            Fault::new(Code::FileNotFound, "The session has no files: it has no workspace and no snapshot")
        })?;
        Ok(Files::snapshot(self.clone(), id))
    }

    /// Lets go of a sandbox, unless a session still names it; what only it needed is collected later. The last
    /// session's removal does the same in its own commit, so a sandbox that is not there is no news.
    pub(crate) async fn forget(&self, sandbox: &str) -> Result<(), Fault> {
        match self.inner.journal.remove_sandbox(sandbox).await {
            Ok(()) | Err(WriteError::NotFound) => Ok(()),
            Err(error) => Err(faults::write(error)),
        }
    }

    /// Removes what no sandbox's last snapshot needs.
    pub(crate) async fn collect(&self, grace: Duration) -> Result<Collected, Fault> {
        let keep = self.inner.journal.snapshots().await.map_err(faults::read)?;
        let keep = keep.iter().map(|id| parse(id)).collect::<Result<Vec<_>, _>>()?;
        let snapshots = self.inner.snapshots.clone();
        cancellable(&self.inner.work.collections, move |cancel| {
            snapshots.collect(keep, grace, &Watch { cancel: Some(cancel), progress: None })
        })
        .await?
        .map_err(snapshot_fault)
    }

    async fn turn(&self, sandbox: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.inner.turns.lock(sandbox).await
    }

    /// Whoever fills, enters or clears a sandbox's folder holds this while it does. Several sessions may share one.
    pub(crate) async fn entry(&self, sandbox: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.inner.entries.lock(sandbox).await
    }

    /// The row is there before the work begins: one that is gone afterwards was removed meanwhile, and is not made
    /// again for nobody.
    async fn row_or_new(&self, tenant: &Tenant, sandbox: &str) -> Result<SandboxRow, Fault> {
        let found = self.inner.journal.sandbox(sandbox).await.map_err(faults::read)?;
        if let Some(row) = found {
            return Ok(row);
        }
        let row = SandboxRow {
            id: sandbox.to_owned(),
            tenant: tenant.clone(),
            key: None,
            created_at: Timestamp::now(),
            snapshot: None,
        };
        match self.inner.journal.put_sandbox(row.clone()).await {
            Ok(()) => Ok(row),
            Err(error) => Err(faults::write(error)),
        }
    }

    async fn last(&self, sandbox: &str) -> Result<Option<SnapshotId>, Fault> {
        let row = self.inner.journal.sandbox(sandbox).await.map_err(faults::read)?;
        row.and_then(|row| row.snapshot).map(|snapshot| parse(&snapshot.id)).transpose()
    }
}

/// A previous snapshot that cannot be read makes the next one slower, not impossible.
fn take(
    snapshots: &Snapshots,
    folder: &Path,
    previous: Option<&SnapshotId>,
    options: &TakeOptions<'_>,
) -> Result<snapshot::Taken, SnapshotError> {
    match snapshots.take(folder, previous, options) {
        Err(
            error @ (SnapshotError::NoSnapshot(_)
            | SnapshotError::Damaged { .. }
            | SnapshotError::Missing { .. }),
        ) if previous.is_some() => {
            tracing::warn!(%error, "the snapshot before cannot be built on; everything is read again");
            snapshots.take(folder, None, options)
        }
        taken => taken,
    }
}

async fn collect_always(inner: Weak<Inner>) {
    loop {
        let Some(inner) = inner.upgrade() else { return };
        match (Sandboxes { inner }).collect(COLLECT_GRACE).await {
            Ok(Collected { removed: 0, .. }) => {}
            Ok(collected) => tracing::info!(?collected, "snapshot objects that nothing needs were removed"),
            Err(fault) => {
                tracing::warn!(%fault, "snapshot garbage was not collected; nothing was removed that is needed");
            }
        }
        tokio::time::sleep(COLLECT_EVERY).await;
    }
}

fn parse(id: &str) -> Result<SnapshotId, Fault> {
    id.parse().map_err(internal)
}

/// One table from what snapshots meet to what callers are told.
fn snapshot_fault(error: SnapshotError) -> Fault {
    let text = error.to_string();
    let code = match error {
        SnapshotError::TooLarge { .. } | SnapshotError::TooMany { .. } => Code::QuotaExceeded,
        SnapshotError::TooDeep { .. } | SnapshotError::TooLong { .. } => Code::BadPath,
        SnapshotError::NotFound(_) => Code::FileNotFound,
        SnapshotError::NotFile(_) | SnapshotError::NotFolder(_) => Code::BadPath,
        SnapshotError::Cancelled => Code::ShuttingDown,
        SnapshotError::Store(source) | SnapshotError::Io { source, .. }
            if source.kind() == io::ErrorKind::StorageFull =>
        {
            return faults::full();
        }
        SnapshotError::NoFolder(_)
        | SnapshotError::Exists(_)
        | SnapshotError::NoSnapshot(_)
        | SnapshotError::Damaged { .. }
        | SnapshotError::Missing { .. }
        | SnapshotError::Newer { .. }
        | SnapshotError::Store(_)
        | SnapshotError::Io { .. } => {
            tracing::error!(error = text, "a snapshot failed");
            Code::SandboxFailed
        }
    };
    Fault::new(code, text)
}

/// Makes every object of the folder's snapshots young, so that a server beside us keeps them while they are copied;
/// blocking. Before the journal is copied.
pub fn hold_snapshots(data: &Path) -> io::Result<()> {
    if !data.join(SNAPSHOTS_FOLDER).is_dir() {
        return Ok(());
    }
    let store = Local::open(data.join(SNAPSHOTS_FOLDER))?;
    Snapshots::new(store).refresh().map_err(io::Error::other)
}

/// Copies the objects of these snapshots from one data folder or backup to another; blocking. What is there stays.
pub fn copy_snapshots(from: &Path, to: &Path, ids: &[String]) -> io::Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let ids =
        ids.iter().map(|id| id.parse().map_err(io::Error::other)).collect::<Result<Vec<SnapshotId>, _>>()?;
    let source = Snapshots::new(Local::open(from.join(SNAPSHOTS_FOLDER))?);
    let target = Local::open(to.join(SNAPSHOTS_FOLDER))?;
    source.copy(ids, &target, &Watch::default()).map(|_| ()).map_err(io::Error::other)
}
