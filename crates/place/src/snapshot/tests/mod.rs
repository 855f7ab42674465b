//! Snapshots of real folders, compared byte for byte and mode for mode.

mod changing;
mod collecting;
mod damage;
mod faithful;
mod incremental;
mod large;
mod properties;
mod reading;

use super::*;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::PathBuf,
};

/// A store and room for folders, removed at the end.
pub(super) struct Bench {
    pub(super) room: tempfile::TempDir,
    pub(super) snapshots: Snapshots,
}

impl Bench {
    pub(super) fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::new(Local::open(room.path().join("store")).unwrap());
        Self { room, snapshots }
    }

    pub(super) fn folder(&self, name: &str) -> PathBuf {
        let path = self.room.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.room.path().join(name)
    }

    /// Takes a snapshot as if everything had been written long ago, so that unchanged files count as such.
    pub(super) fn take(&self, folder: &Path, previous: Option<&SnapshotId>) -> Taken {
        self.try_take(folder, previous, &TakeOptions::default()).unwrap()
    }

    pub(super) fn try_take(
        &self,
        folder: &Path,
        previous: Option<&SnapshotId>,
        options: &TakeOptions<'_>,
    ) -> Result<Taken, SnapshotError> {
        let later = protocol::Timestamp::from_millis(protocol::Timestamp::now().as_millis() + 3_600_000);
        take::take(&*self.snapshots.store, folder, previous, options, later)
    }

    pub(super) fn restore(&self, id: &SnapshotId, name: &str) -> PathBuf {
        let into = self.path(name);
        let options = RestoreOptions {
            owners: Some(Owners::default()),
            special_bits: SpecialBits::Keep,
            ..RestoreOptions::default()
        };
        self.snapshots.restore(id, &into, &options).unwrap();
        into
    }

    /// Makes every object look as if it had been idle for a day.
    pub(super) fn age(&self) {
        for object in self.objects() {
            // A collector may be faster.
            let Ok(file) = fs::File::options().write(true).open(object) else { continue };
            let now = protocol::Timestamp::now().as_millis() / 1000;
            let time = rustix::fs::Timespec { tv_sec: now - 86_400, tv_nsec: 0 };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::futimens(&file, &times).unwrap();
        }
    }

    /// Collects with every object old enough to go.
    pub(super) fn collect(&self, keep: impl IntoIterator<Item = SnapshotId>) -> Collected {
        self.age();
        self.snapshots.collect(keep, Duration::ZERO, &Watch::default()).unwrap()
    }

    /// Files of the store, by path.
    pub(super) fn objects(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for folder in fs::read_dir(self.path("store/objects")).unwrap() {
            found.extend(fs::read_dir(folder.unwrap().path()).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.sort();
        found
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Trees of ten thousand levels are too deep for the removal of temporary folders.
        let room = fs::File::open(self.room.path()).unwrap();
        for name in ["work", "back"] {
            let _ = crate::files::remove_tree(std::os::fd::AsFd::as_fd(&room), OsStr::new(name));
        }
    }
}

/// Everything about a file that must survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    kind: &'static str,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    /// Content, or what a link points to.
    content: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The first path of the same file.
    same_as: Vec<u8>,
}

/// A folder as a map of relative paths, sockets and devices left out.
pub(super) fn tree(root: &Path) -> BTreeMap<Vec<u8>, Node> {
    let mut nodes = BTreeMap::new();
    let mut firsts = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    let mut paths = Vec::new();
    while let Some(path) = left.pop() {
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        paths.push(path);
    }
    paths.sort();
    for path in paths {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let kind = metadata.file_type();
        let relative = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        let (name, content) = if kind.is_dir() {
            ("folder", Vec::new())
        } else if kind.is_symlink() {
            ("link", fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
        } else if kind.is_file() {
            ("file", fs::read(&path).unwrap())
        } else if kind.is_fifo() {
            ("fifo", Vec::new())
        } else {
            continue;
        };
        let xattrs = if kind.is_file() || kind.is_dir() {
            content::xattrs(fs::File::open(&path).unwrap())
        } else {
            Vec::new()
        };
        let same_as = firsts.entry(metadata.ino()).or_insert_with(|| relative.clone()).clone();
        nodes.insert(
            relative,
            Node {
                kind: name,
                mode: metadata.mode() & 0o7777,
                owner: (metadata.uid(), metadata.gid()),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                content,
                xattrs,
                same_as,
            },
        );
    }
    nodes
}

/// Compares two folders and names the first difference.
pub(super) fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (tree(a), tree(b));
    for (path, node) in &a {
        assert_eq!(Some(node), b.get(path), "at {}", String::from_utf8_lossy(path));
    }
    assert_eq!(a.len(), b.len(), "more files than expected");
}

/// Bytes that do not compress, the same every time.
pub(super) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
