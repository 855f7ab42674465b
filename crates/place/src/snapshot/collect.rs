//! Garbage collection: mark what the kept snapshots need, then remove the rest if it has been idle long enough.
//!
//! A copy of a store is the same marking, with the marked objects written elsewhere.
//!
//! Nothing is removed unless every kept snapshot was read whole. The idle time is what protects a snapshot in the
//! making, whose objects no index names yet; the store checks it again in the step that removes.

use super::{ObjectId, Progress, SnapshotError, SnapshotId, Store, Watch, objects::Objects};
use std::{collections::HashSet, time::Duration};

/// What garbage collection did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collected {
    /// Objects still needed.
    pub needed: u64,
    /// Objects not needed but not idle for long enough.
    pub young: u64,
    pub removed: u64,
    pub freed_bytes: u64,
}

/// `idle` says, at any moment, how long an object must have been idle by then.
pub(crate) fn collect(
    store: &dyn Store,
    keep: impl Iterator<Item = SnapshotId>,
    used: &[SnapshotId],
    idle: &dyn Fn() -> Duration,
    watch: &Watch<'_>,
) -> Result<Collected, SnapshotError> {
    let mut needed = HashSet::new();
    for id in keep {
        watch.check()?;
        mark(store, &id, &mut needed)?;
    }
    for id in used {
        match mark(store, id, &mut needed) {
            // Asked for by someone who will be told that it is not there.
            Err(SnapshotError::NoSnapshot(_)) => {}
            marked => marked?,
        }
    }
    let mut collected = Collected::default();
    let mut garbage = Vec::new();
    store
        .list(&mut |listed| {
            if needed.contains(&listed.id) {
                collected.needed += 1;
            } else if listed.idle < idle() {
                collected.young += 1;
            } else {
                garbage.push((listed.id, listed.bytes));
            }
        })
        .map_err(SnapshotError::Store)?;
    for (id, bytes) in garbage {
        watch.check()?;
        if store.delete(&id, idle()).map_err(SnapshotError::Store)? {
            collected.removed += 1;
            collected.freed_bytes += bytes;
            watch.tell(Progress { files: collected.removed, bytes: collected.freed_bytes });
        } else {
            collected.young += 1;
        }
    }
    Ok(collected)
}

/// What a copy into another store did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    pub objects: u64,
    pub bytes: u64,
}

/// Frames given to the other store at once: their syncs share the disk's commits.
const COPY_FRAMES: usize = 16;

pub(crate) fn copy(
    store: &dyn Store,
    keep: impl Iterator<Item = SnapshotId>,
    into: &dyn Store,
    watch: &Watch<'_>,
) -> Result<Copied, SnapshotError> {
    let mut copied = Copied::default();
    let mut done = HashSet::new();
    for id in keep {
        let mut needed = HashSet::new();
        mark(store, &id, &mut needed)?;
        // The root names the others, so it comes last: a copy that breaks off has no half snapshot.
        needed.remove(&id.0);
        let parts: Vec<_> = needed.into_iter().filter(|object| done.insert(*object)).collect();
        for batch in parts.chunks(COPY_FRAMES).chain([&[id.0][..]]) {
            watch.check()?;
            let mut frames = Vec::with_capacity(batch.len());
            for object in batch {
                if into.refresh(object).map_err(SnapshotError::Store)? {
                    continue;
                }
                let frame = store.get(object).map_err(SnapshotError::Store)?;
                let frame = frame.ok_or(SnapshotError::Missing { object: *object, file: None })?;
                copied.objects += 1;
                copied.bytes += frame.len() as u64;
                frames.push((*object, frame));
            }
            into.put(&frames).map_err(SnapshotError::Store)?;
        }
        watch.tell(Progress { files: copied.objects, bytes: copied.bytes });
    }
    Ok(copied)
}

fn mark(store: &dyn Store, id: &SnapshotId, needed: &mut HashSet<ObjectId>) -> Result<(), SnapshotError> {
    if needed.contains(&id.0) {
        return Ok(());
    }
    let objects = Objects::new(store);
    for section in objects.root(id)?.sections {
        // Sections are shared between snapshots; one look at each is enough.
        if !needed.contains(&section.id) {
            let read = objects.section(&section.id)?;
            needed.extend(read.objects.iter().map(|(object, _)| *object));
            needed.insert(section.id);
        }
    }
    needed.insert(id.0);
    Ok(())
}
