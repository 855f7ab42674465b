//! Snapshots of a workspace: faithful, incremental by content, verified, and whole or absent.
//!
//! The session room takes one when it pauses or ends a session and restores one when it resumes cold; files are
//! listed and read from one when nothing runs. Objects are named by their hash and kept behind [`Store`]. Every
//! function here blocks and is meant for a blocking thread; [`Watch`] stops it and tells how far it is.
//!
//! Refuses to follow a link, to leave the folder, to pass its limits, to name a snapshot before all of it is
//! durable, and to restore a byte that does not hash to what was taken.

mod collect;
mod content;
mod error;
mod manifest;
mod merge;
mod object;
mod objects;
mod options;
mod pack;
mod read;
mod restore;
mod store;
mod take;
mod wire;

#[cfg(test)]
mod tests;

pub use collect::{Collected, Copied};
pub use error::SnapshotError;
pub use merge::merge;
pub use object::{NotAnId, ObjectId, SnapshotId};
pub use options::{
    DEPTH, Existing, IdRange, Limits, Owners, PATH_BYTES, Progress, RestoreOptions, SNAPSHOT_BYTES,
    SNAPSHOT_FILES, SpecialBits, Sync, TakeOptions, Watch,
};
pub use read::Diff;
pub use restore::{Restored, clear_drafts};
pub use store::{Listed, Local, Store};
pub use take::{Skipped, Taken};

use crate::files::{FileEntry, Page};
use std::{
    collections::HashMap,
    ffi::OsStr,
    io::Write,
    ops::Range,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Stores tell time by their own clock, in ticks; so much it may differ from ours.
const CLOCK_SLACK: Duration = Duration::from_secs(1);

/// Snapshots in one store. A cheap handle; clones share the store and what is in use.
#[derive(Debug, Clone)]
pub struct Snapshots {
    store: Arc<dyn Store>,
    in_use: Arc<Mutex<InUse>>,
}

/// What garbage collection must leave alone beyond what it is told to keep.
#[derive(Debug, Default)]
struct InUse {
    next: u64,
    uses: HashMap<u64, Use>,
}

#[derive(Debug, Clone, Copy)]
struct Use {
    since: Instant,
    snapshot: Option<SnapshotId>,
}

impl Snapshots {
    pub fn new(store: impl Store + 'static) -> Self {
        Self { store: Arc::new(store), in_use: Arc::default() }
    }

    /// Takes a snapshot of `folder`. What is unchanged since `previous` is neither read nor stored again.
    ///
    /// `previous` must stay among the kept ones until the new id is recorded where `keep` is read from.
    pub fn take(
        &self,
        folder: &Path,
        previous: Option<&SnapshotId>,
        options: &TakeOptions<'_>,
    ) -> Result<Taken, SnapshotError> {
        let _use = self.begin(previous.copied());
        take::take(&*self.store, folder, previous, options, protocol::Timestamp::now())
    }

    /// Makes the folder `into` from a snapshot: beside it first, then renamed, so that it is whole or absent.
    pub fn restore(
        &self,
        id: &SnapshotId,
        into: &Path,
        options: &RestoreOptions<'_>,
    ) -> Result<Restored, SnapshotError> {
        let _use = self.begin(Some(*id));
        restore::restore(&*self.store, id, into, options)
    }

    /// What is at `path`; the empty path is the workspace itself. Links are told, never followed.
    pub fn look(&self, id: &SnapshotId, path: &Path) -> Result<FileEntry, SnapshotError> {
        let _use = self.begin(Some(*id));
        read::look(&*self.store, id, path)
    }

    /// What a folder of the snapshot holds behind the name `after`, at most `limit` entries.
    pub fn list(
        &self,
        id: &SnapshotId,
        path: &Path,
        after: Option<&OsStr>,
        limit: usize,
    ) -> Result<Page, SnapshotError> {
        let _use = self.begin(Some(*id));
        read::list(&*self.store, id, path, after, limit)
    }

    /// The part of a regular file that `range` covers; shorter where the file ends.
    pub fn read_file(
        &self,
        id: &SnapshotId,
        path: &Path,
        range: Range<u64>,
    ) -> Result<Vec<u8>, SnapshotError> {
        let _use = self.begin(Some(*id));
        read::read_file(&*self.store, id, path, range)
    }

    /// Writes what lies at and below `path` as a tar archive.
    pub fn tar(
        &self,
        id: &SnapshotId,
        path: &Path,
        into: &mut dyn Write,
        watch: &Watch<'_>,
    ) -> Result<(), SnapshotError> {
        let _use = self.begin(Some(*id));
        read::tar(&*self.store, id, path, into, watch)
    }

    /// How much lies between two snapshots. Times alone are no change.
    pub fn diff(&self, a: &SnapshotId, b: &SnapshotId) -> Result<Diff, SnapshotError> {
        let _uses = (self.begin(Some(*a)), self.begin(Some(*b)));
        read::diff(&*self.store, a, b)
    }

    /// Removes every object that no snapshot of `keep` needs and that has been idle for `grace`, which must be
    /// longer than it takes to record a snapshot after taking it. Snapshots in use here are kept too, and so is
    /// whatever a running [`take`](Self::take) may have found in the store. A kept snapshot that cannot be read
    /// whole stops it before anything is removed.
    pub fn collect(
        &self,
        keep: impl IntoIterator<Item = SnapshotId>,
        grace: Duration,
        watch: &Watch<'_>,
    ) -> Result<Collected, SnapshotError> {
        let started = Instant::now();
        let (used, oldest) = {
            let in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
            let used: Vec<_> = in_use.uses.values().filter_map(|used| used.snapshot).collect();
            let oldest = in_use.uses.values().map(|used| used.since.elapsed()).max();
            (used, oldest.unwrap_or_default())
        };
        // Nothing that was written or found since the oldest use began, or since this began, may go.
        let idle = || grace.max(oldest) + started.elapsed() + CLOCK_SLACK;
        collect::collect(&*self.store, keep.into_iter(), &used, &idle, watch)
    }

    /// Keeps garbage collection from a snapshot between the calls that read it.
    pub fn hold(&self, id: &SnapshotId) -> Held {
        self.begin(Some(*id))
    }

    /// Copies what the snapshots of `keep` need into another store, durably; what is there already stays. For
    /// backups and their return.
    pub fn copy(
        &self,
        keep: impl IntoIterator<Item = SnapshotId>,
        into: &dyn Store,
        watch: &Watch<'_>,
    ) -> Result<Copied, SnapshotError> {
        collect::copy(&*self.store, keep.into_iter(), into, watch)
    }

    /// Makes every object young, so that a server that collects garbage beside a backup leaves them all for its
    /// grace.
    pub fn refresh(&self) -> Result<(), SnapshotError> {
        let mut all = Vec::new();
        self.store.list(&mut |listed| all.push(listed.id)).map_err(SnapshotError::Store)?;
        all.iter().try_for_each(|id| self.store.refresh(id).map(|_| ())).map_err(SnapshotError::Store)
    }

    fn begin(&self, snapshot: Option<SnapshotId>) -> Held {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        let number = in_use.next;
        in_use.next += 1;
        in_use.uses.insert(number, Use { since: Instant::now(), snapshot });
        Held { number, in_use: Arc::clone(&self.in_use) }
    }
}

/// A snapshot that is in use until this is dropped.
#[derive(Debug)]
pub struct Held {
    number: u64,
    in_use: Arc<Mutex<InUse>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner).uses.remove(&self.number);
    }
}
