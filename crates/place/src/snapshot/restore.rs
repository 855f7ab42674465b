//! Restoring: the folder is made beside its place, from verified bytes only, and renamed once it is whole.
//!
//! The index is in path order, a folder before what is in it, so one walk with the open folders at hand makes
//! everything; a folder gets its mode and time when it is left. A path that does not continue the walk is a
//! damaged index, not a place to write to.

use super::{
    Existing, Owners, Progress, RestoreOptions, SnapshotError, SnapshotId, SpecialBits, Store, Sync,
    error::path_of,
    manifest::{Content, Entry, Kind, Time},
    objects::{Entries, Objects},
};
use crate::files::{
    descent::{Descent, FOLDER},
    remove_tree,
};
use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};
use std::{
    ffi::{CString, OsStr},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// A folder was made from a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    pub files: u64,
    pub bytes: u64,
    /// Files whose owner has no place outside, or may not be given away by us: they belong to the restorer.
    pub owners_lost: u64,
    /// Extended attributes that the file system did not take.
    pub xattrs_lost: u64,
}

/// What a folder in the making is called, beside its place.
const DRAFT: &str = ".outlast-restore-";
/// Entries between two looks at the watch.
const WATCH_ENTRIES: u64 = 256;

pub(crate) fn restore(
    store: &dyn Store,
    id: &SnapshotId,
    into: &Path,
    options: &RestoreOptions<'_>,
) -> Result<Restored, SnapshotError> {
    let entries = Entries::open(store, id)?;
    let (Some(parent), Some(name)) = (into.parent(), into.file_name()) else {
        return Err(SnapshotError::NoFolder(into.to_owned()));
    };
    let parent_path = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::openat(CWD, parent_path, flags, Mode::empty())
        .map_err(|error| SnapshotError::io("open", parent_path, error))?;
    if options.existing == Existing::Refuse
        && rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    {
        return Err(SnapshotError::Exists(into.to_owned()));
    }
    let draft = Draft::make(&parent, into)?;
    let mut making = Making::new(store, &draft, options)?;
    making.all(entries)?;
    let restored = making.done;
    if options.sync == Sync::First {
        rustix::fs::syncfs(&draft.folder).map_err(|error| SnapshotError::io("sync", into, error))?;
    }
    draft.settle(into, name, options.existing)?;
    if options.sync == Sync::First {
        rustix::fs::fsync(&parent).map_err(|error| SnapshotError::io("sync", parent_path, error))?;
    }
    Ok(restored)
}

/// Removes what restores that were cut off left in `parent`. For the server's start, before any restore.
pub fn clear_drafts(parent: &Path) -> Result<u64, SnapshotError> {
    let failed = |error: std::io::Error| SnapshotError::io("clear", parent, error);
    let folder =
        rustix::fs::openat(CWD, parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| failed(error.into()))?;
    let mut cleared = 0;
    for entry in std::fs::read_dir(parent).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if name.as_bytes().starts_with(DRAFT.as_bytes()) {
            remove_tree(folder.as_fd(), &name).map_err(|error| failed(error.into()))?;
            cleared += 1;
        }
    }
    Ok(cleared)
}

/// The folder in the making; removed unless it settles.
struct Draft<'a> {
    parent: &'a OwnedFd,
    name: String,
    folder: OwnedFd,
    kept: bool,
}

impl<'a> Draft<'a> {
    fn make(parent: &'a OwnedFd, into: &Path) -> Result<Self, SnapshotError> {
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{DRAFT}{}-{number}", std::process::id());
        let made = rustix::fs::mkdirat(parent, &name, Mode::from_raw_mode(0o700))
            .and_then(|()| rustix::fs::openat(parent, &name, FOLDER, Mode::empty()));
        let folder = made.map_err(|error| SnapshotError::io("make a folder beside", into, error))?;
        Ok(Self { parent, name, folder, kept: false })
    }

    /// Takes its place.
    fn settle(mut self, into: &Path, name: &OsStr, existing: Existing) -> Result<(), SnapshotError> {
        let rename = |flags| rustix::fs::renameat_with(self.parent, &self.name, self.parent, name, flags);
        let failed = |error| SnapshotError::io("name", into, error);
        match rename(RenameFlags::NOREPLACE) {
            Ok(()) => {
                self.kept = true;
                return Ok(());
            }
            Err(Errno::EXIST) if existing == Existing::Refuse => {
                return Err(SnapshotError::Exists(into.to_owned()));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        // The old folder now has the draft's name, and goes with it.
        rename(RenameFlags::EXCHANGE).map_err(failed)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.kept {
            let removed = remove_tree(self.parent.as_fd(), OsStr::new(&self.name));
            if let Err(error) = removed {
                tracing::warn!(draft = self.name, %error, "a folder that is no longer needed could not be removed");
            }
        }
    }
}

struct Making<'a> {
    objects: Objects<'a>,
    root: OwnedFd,
    descent: Descent,
    /// The folders entered, the workspace itself first.
    folders: Vec<Entry>,
    /// The path of the deepest of them.
    path: Vec<u8>,
    owners: Option<&'a Owners>,
    special_bits: SpecialBits,
    options: &'a RestoreOptions<'a>,
    ours: (u32, u32),
    done: Restored,
}

impl<'a> Making<'a> {
    fn new(
        store: &'a dyn Store,
        draft: &Draft<'_>,
        options: &'a RestoreOptions<'a>,
    ) -> Result<Self, SnapshotError> {
        let again =
            || draft.folder.try_clone().map_err(|error| SnapshotError::io("open", &draft.name, error));
        let stat = rustix::fs::fstat(&draft.folder)
            .map_err(|error| SnapshotError::io("look at", &draft.name, error))?;
        Ok(Self {
            objects: Objects::new(store),
            root: again()?,
            descent: Descent::new(again()?),
            folders: Vec::new(),
            path: Vec::new(),
            owners: options.owners.as_ref(),
            special_bits: options.special_bits,
            options,
            ours: (stat.st_uid, stat.st_gid),
            done: Restored::default(),
        })
    }

    fn all(&mut self, mut entries: Entries<'_>) -> Result<(), SnapshotError> {
        while let Some(entry) = entries.entry.take() {
            self.one(&entries.path, entry)?;
            self.done.files += 1;
            if self.done.files.is_multiple_of(WATCH_ENTRIES) {
                self.options.watch.check()?;
                self.options.watch.tell(Progress { files: self.done.files, bytes: self.done.bytes });
            }
            entries.advance()?;
        }
        while !self.folders.is_empty() {
            self.leave()?;
        }
        self.options.watch.tell(Progress { files: self.done.files, bytes: self.done.bytes });
        Ok(())
    }

    fn one(&mut self, path: &[u8], entry: Entry) -> Result<(), SnapshotError> {
        if path.is_empty() && self.folders.is_empty() && entry.kind == Kind::Folder {
            self.folders.push(entry);
            return Ok(());
        }
        let name = self.place(path)?;
        let failed = |error| SnapshotError::io("make", path_of(path), error);
        let here = self.descent.here();
        match &entry.kind {
            Kind::Folder => {
                rustix::fs::mkdirat(here, &name, Mode::from_raw_mode(0o700)).map_err(failed)?;
                self.descent.enter(&name).map_err(failed)?;
                self.path = path.to_vec();
                self.folders.push(entry);
                return Ok(());
            }
            Kind::File(content) => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file =
                    rustix::fs::openat(here, &name, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
                self.fill(&file, content, path)?;
                return self.dress(file.as_fd(), &entry, path);
            }
            Kind::Hard(first, _) => return self.hard_link(first, &name, path),
            Kind::Link(target) => {
                rustix::fs::symlinkat(OsStr::from_bytes(target), here, &name).map_err(failed)?;
            }
            Kind::Fifo => {
                let mode = Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(here, &name, rustix::fs::FileType::Fifo, mode, 0).map_err(failed)?;
            }
        }
        self.dress_unopened(&name, &entry, path)
    }

    /// Leaves folders until the one that `path` belongs in is reached, and gives the last part of the path.
    fn place(&mut self, path: &[u8]) -> Result<CString, SnapshotError> {
        let strange = || SnapshotError::io("place", path_of(path), Errno::INVAL);
        let (folder, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => path.split_at(slash),
            None => (&b""[..], path),
        };
        let name = name.strip_prefix(b"/").unwrap_or(name);
        while self.path != folder {
            if self.folders.len() <= 1 {
                return Err(strange());
            }
            self.leave()?;
        }
        if name.is_empty() || name == b"." || name == b".." || self.folders.is_empty() {
            return Err(strange());
        }
        CString::new(name).map_err(|_| strange())
    }

    /// Goes up one folder, which is whole now and gets its mode, owner and time.
    fn leave(&mut self) -> Result<(), SnapshotError> {
        let Some(entry) = self.folders.pop() else { return Ok(()) };
        let path = std::mem::take(&mut self.path);
        let above = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let (left, moved) = self.descent.leave();
        let failed = |error| SnapshotError::io("leave", path_of(&path), error);
        moved.map_err(failed)?;
        let again =
            self.root.try_clone().map_err(|error| SnapshotError::io("leave", path_of(&path), error))?;
        let folder = left.unwrap_or(again);
        self.dress(folder.as_fd(), &entry, &path)?;
        self.path = path;
        self.path.truncate(above);
        Ok(())
    }

    fn fill(&mut self, file: &OwnedFd, content: &Content, path: &[u8]) -> Result<(), SnapshotError> {
        let failed = |error| SnapshotError::io("write", path_of(path), error);
        let mut at = 0u64;
        for piece in &content.pieces {
            if let Some(place) = &piece.at {
                let bytes = self.objects.piece(place, piece.length).map_err(|error| error.in_file(path))?;
                let mut rest: &[u8] = &bytes;
                let mut offset = at;
                while !rest.is_empty() {
                    let count = rustix::io::pwrite(file, rest, offset).map_err(failed)?;
                    offset += count as u64;
                    rest = rest.get(count..).unwrap_or_default();
                }
                self.done.bytes += piece.length;
                self.options.watch.check()?;
            }
            at = at.saturating_add(piece.length);
        }
        // A hole at the end leaves no write behind it.
        if content.pieces.last().is_some_and(|last| last.at.is_none()) || at != content.size {
            rustix::fs::ftruncate(file, content.size).map_err(failed)?;
        }
        Ok(())
    }

    /// A further name of a file that was made before. Its path may be longer than the kernel takes at once.
    fn hard_link(&mut self, first: &[u8], name: &CString, path: &[u8]) -> Result<(), SnapshotError> {
        let failed = |error| SnapshotError::io("link", path_of(path), error);
        let mut folder: Option<OwnedFd> = None;
        let mut parts = first.split(|byte| *byte == b'/').peekable();
        while let Some(part) = parts.next() {
            if part.is_empty() || part == b".." {
                return Err(failed(Errno::INVAL));
            }
            let from = folder.as_ref().unwrap_or(&self.root);
            if parts.peek().is_none() {
                return rustix::fs::linkat(from, part, self.descent.here(), name, AtFlags::empty())
                    .map_err(failed);
            }
            folder = Some(rustix::fs::openat(from, part, FOLDER, Mode::empty()).map_err(failed)?);
        }
        Err(failed(Errno::INVAL))
    }

    /// Gives an open file or folder its attributes, owner, mode and time, in the order that lets each stand.
    fn dress(&mut self, fd: BorrowedFd<'_>, entry: &Entry, path: &[u8]) -> Result<(), SnapshotError> {
        let failed = |what, error| SnapshotError::io(what, path_of(path), error);
        for (name, value) in &entry.xattrs {
            if rustix::fs::fsetxattr(fd, &name[..], value, XattrFlags::empty()).is_err() {
                self.done.xattrs_lost += 1;
            }
        }
        let lost = match self.owner(entry) {
            Owner::Ours => false,
            Owner::Unknown => true,
            Owner::Other(uid, gid) => rustix::fs::fchown(fd, Some(uid), Some(gid)).is_err(),
        };
        self.done.owners_lost += u64::from(lost);
        let dropped = match (self.special_bits, &entry.kind) {
            (SpecialBits::Drop, Kind::File(_)) => 0o6000,
            _ => 0,
        };
        rustix::fs::fchmod(fd, Mode::from_raw_mode(entry.mode & !dropped))
            .map_err(|error| failed("set the mode of", error))?;
        rustix::fs::futimens(fd, &times(entry.mtime)).map_err(|error| failed("set the time of", error))
    }

    /// The same for what cannot be opened: links and pipes.
    fn dress_unopened(&mut self, name: &CString, entry: &Entry, path: &[u8]) -> Result<(), SnapshotError> {
        let here = self.descent.here();
        let failed = |what, error| SnapshotError::io(what, path_of(path), error);
        let lost = match self.owner(entry) {
            Owner::Ours => false,
            Owner::Unknown => true,
            Owner::Other(uid, gid) => {
                rustix::fs::chownat(here, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).is_err()
            }
        };
        if entry.kind == Kind::Fifo {
            // Nothing but us can have put a link here: the draft is ours alone.
            rustix::fs::chmodat(here, name, Mode::from_raw_mode(entry.mode & 0o1777), AtFlags::empty())
                .map_err(|error| failed("set the mode of", error))?;
        }
        rustix::fs::utimensat(here, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| failed("set the time of", error))?;
        self.done.owners_lost += u64::from(lost);
        Ok(())
    }

    fn owner(&self, entry: &Entry) -> Owner {
        let Some(owners) = self.owners else { return Owner::Ours };
        match owners.outside(entry.uid, entry.gid) {
            (Some(uid), Some(gid)) if (uid, gid) == self.ours => Owner::Ours,
            (Some(uid), Some(gid)) => Owner::Other(Uid::from_raw(uid), Gid::from_raw(gid)),
            (None, _) | (_, None) => Owner::Unknown,
        }
    }
}

/// Whom a restored file is given to.
enum Owner {
    /// Whoever restores, and so has it already.
    Ours,
    Other(Uid, Gid),
    /// The map has no name for it outside.
    Unknown,
}

fn times(mtime: Time) -> Timestamps {
    let time = Timespec { tv_sec: mtime.sec, tv_nsec: i64::from(mtime.nsec) };
    Timestamps { last_access: time, last_modification: time }
}
