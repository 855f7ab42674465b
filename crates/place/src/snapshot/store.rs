//! Where objects are kept, behind a trait that an object store can implement too, and the one in a local folder.
//!
//! A store knows names, bytes and how long an object has been idle (neither written nor refreshed); it knows
//! nothing of snapshots. Idleness is what keeps garbage collection from removing an object that a snapshot in the
//! making has just found there.

use super::ObjectId;
use protocol::Timestamp;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Frames by the hash of their content. Calls block; implementations are shared between threads.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Stores all of them. When it returns without an error they are durable and not idle, also those that were
    /// there before. A crash in the middle leaves each of them whole or absent.
    fn put(&self, frames: &[(ObjectId, Vec<u8>)]) -> io::Result<()>;
    fn get(&self, id: &ObjectId) -> io::Result<Option<Vec<u8>>>;
    /// Whether the object is there; if so, its idle time starts again from zero.
    fn refresh(&self, id: &ObjectId) -> io::Result<bool>;
    /// Names every object, in any order.
    fn list(&self, each: &mut dyn FnMut(Listed)) -> io::Result<()>;
    /// Removes the object if it has been idle for at least `idle`, decided and done in one step against `put` and
    /// `refresh`. Says whether it did.
    fn delete(&self, id: &ObjectId, idle: Duration) -> io::Result<bool>;
}

/// One object of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    pub id: ObjectId,
    /// As stored.
    pub bytes: u64,
    pub idle: Duration,
}

/// A store in a folder: `objects/ab/…` by the first byte of the hash, written as drafts beside them, synced and
/// renamed. One `Local` owns its folder; a second on the same folder weakens `delete`'s promise.
#[derive(Debug)]
pub struct Local {
    root: PathBuf,
    drafts: AtomicU64,
    /// Held shared while objects are made young, alone while an idle one is removed.
    removal: RwLock<()>,
}

/// A draft older than this was left by a crash.
const STALE_DRAFT: Duration = Duration::from_secs(3600);

impl Local {
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        let mut folders = vec![root.clone(), root.join("objects"), root.join("drafts")];
        folders.extend((0..=255u8).map(|first| root.join("objects").join(format!("{first:02x}"))));
        for folder in &folders {
            match fs::DirBuilder::new().mode(0o700).recursive(folder == &root).create(folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
        }
        for folder in folders.iter().take(2) {
            File::open(folder)?.sync_all()?;
        }
        let store = Self { root, drafts: AtomicU64::new(0), removal: RwLock::new(()) };
        store.clear_drafts()?;
        Ok(store)
    }

    fn clear_drafts(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("drafts"))? {
            let entry = entry?;
            if idle(&entry.metadata()?) > STALE_DRAFT {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn folder(&self, id: &ObjectId) -> PathBuf {
        self.root.join("objects").join(format!("{:02x}", id.as_bytes()[0]))
    }

    fn path(&self, id: &ObjectId) -> PathBuf {
        let name = id.to_string();
        self.folder(id).join(&name[2..])
    }

    fn draft(&self, frame: &[u8]) -> io::Result<(PathBuf, File)> {
        let number = self.drafts.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join("drafts").join(format!("{}-{number}", std::process::id()));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(frame)?;
        Ok((path, file))
    }

    /// Drafts, syncs and names some frames. Folders are synced by the caller, each once.
    fn name_all(&self, frames: &[(ObjectId, Vec<u8>)]) -> io::Result<()> {
        let mut drafts = Vec::with_capacity(frames.len());
        let named = frames
            .iter()
            .try_for_each(|(_, frame)| {
                drafts.push(self.draft(frame)?);
                Ok(())
            })
            .and_then(|()| drafts.iter().try_for_each(|(_, file)| file.sync_data()))
            .and_then(|()| {
                let _young = self.removal.read().unwrap_or_else(|poisoned| poisoned.into_inner());
                drafts
                    .iter()
                    .zip(frames)
                    .try_for_each(|((draft, _), (id, _))| fs::rename(draft, self.path(id)))
            });
        if named.is_err() {
            for (draft, _) in &drafts {
                let _ = fs::remove_file(draft);
            }
        }
        named
    }
}

/// Threads that sync one `put`: their waits share the disk's commits.
const PUT_THREADS: usize = 4;

impl Store for Local {
    fn put(&self, frames: &[(ObjectId, Vec<u8>)]) -> io::Result<()> {
        let share = frames.len().div_ceil(PUT_THREADS).max(2);
        if frames.len() <= share {
            self.name_all(frames)?;
        } else {
            std::thread::scope(|scope| {
                let parts: Vec<_> =
                    frames.chunks(share).map(|part| scope.spawn(|| self.name_all(part))).collect();
                parts.into_iter().try_for_each(|part| {
                    part.join().unwrap_or_else(|_| Err(io::Error::other("a writing thread ended early")))
                })
            })?;
        }
        let mut folders: Vec<_> = frames.iter().map(|(id, _)| self.folder(id)).collect();
        folders.sort_unstable();
        folders.dedup();
        folders.iter().try_for_each(|folder| File::open(folder)?.sync_all())
    }

    fn get(&self, id: &ObjectId) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path(id)) {
            Ok(frame) => Ok(Some(frame)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn refresh(&self, id: &ObjectId) -> io::Result<bool> {
        let _young = self.removal.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        match rustix::fs::utimensat(CWD, self.path(id), &now, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn list(&self, each: &mut dyn FnMut(Listed)) -> io::Result<()> {
        for folder in fs::read_dir(self.root.join("objects"))? {
            let folder = folder?;
            for entry in fs::read_dir(folder.path())? {
                let entry = entry?;
                let (Some(first), name) = (folder.file_name().to_str().map(str::to_owned), entry.file_name())
                else {
                    continue;
                };
                // What is not named like an object is not ours to list, or to delete.
                let Some(id) = name.to_str().and_then(|rest| format!("{first}{rest}").parse().ok()) else {
                    continue;
                };
                match entry.metadata() {
                    Ok(metadata) => each(Listed { id, bytes: metadata.len(), idle: idle(&metadata) }),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn delete(&self, id: &ObjectId, at_least: Duration) -> io::Result<bool> {
        let _alone = self.removal.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let path: &Path = &self.path(id);
        match fs::symlink_metadata(path) {
            Ok(metadata) if idle(&metadata) >= at_least => fs::remove_file(path).map(|()| true),
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn idle(metadata: &fs::Metadata) -> Duration {
    let written = metadata.mtime().saturating_mul(1000).saturating_add(metadata.mtime_nsec() / 1_000_000);
    // A time in the future, after the clock was set back, counts as just now.
    Duration::from_millis(u64::try_from(Timestamp::now().as_millis().saturating_sub(written)).unwrap_or(0))
}
