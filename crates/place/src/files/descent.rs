//! Going down and up a tree by descriptors, without recursion, without ever following a link, and with a bounded
//! number of descriptors however deep the tree is.
//!
//! The tree may be changed by others meanwhile. A folder is entered from the descriptor of the one above it, so
//! whatever is renamed or swapped, one is always in a folder that was reached through folders. Descriptors of
//! levels far above are closed; coming back to such a level goes through `..` or down again from the root, and
//! is refused unless it leads to the very folder that was left.

use rustix::{
    fs::{Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Opens a folder, and nothing else, without following a link.
pub(crate) const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Levels whose descriptors stay open, besides the root's.
const OPEN_LEVELS: usize = 24;

pub(crate) struct Descent {
    root: OwnedFd,
    levels: Vec<Level>,
}

struct Level {
    name: CString,
    dev: u64,
    ino: u64,
    fd: Option<OwnedFd>,
}

impl Descent {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self { root, levels: Vec::new() }
    }

    /// Folders entered and not left.
    pub(crate) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// The folder one is in.
    pub(crate) fn here(&self) -> BorrowedFd<'_> {
        self.levels.last().and_then(|level| level.fd.as_ref()).unwrap_or(&self.root).as_fd()
    }

    /// Enters the folder `name` of the folder one is in, and says what it is.
    pub(crate) fn enter(&mut self, name: &CStr) -> Result<Stat, Errno> {
        let fd = rustix::fs::openat(self.here(), name, FOLDER, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if let Some(far) = self.levels.len().checked_sub(OPEN_LEVELS).and_then(|far| self.levels.get_mut(far))
        {
            far.fd = None;
        }
        self.levels.push(Level { name: name.to_owned(), dev: stat.st_dev, ino: stat.st_ino, fd: Some(fd) });
        Ok(stat)
    }

    /// Goes up, and gives the folder that was left. An error means that the folder above is no longer where it
    /// was; one is then nowhere, and must leave again.
    pub(crate) fn leave(&mut self) -> (Option<OwnedFd>, Result<(), Errno>) {
        let left = self.levels.pop().and_then(|level| level.fd);
        let needs = self.levels.last().is_some_and(|level| level.fd.is_none());
        if !needs {
            return (left, Ok(()));
        }
        let through = left.as_ref().and_then(|fd| self.through_parent(fd).ok());
        let found = through.map_or_else(|| self.through_root(), Ok);
        match (found, self.levels.last_mut()) {
            (Ok(fd), Some(level)) => {
                level.fd = Some(fd);
                (left, Ok(()))
            }
            (Err(error), _) => (left, Err(error)),
            (Ok(_), None) => (left, Ok(())),
        }
    }

    fn through_parent(&self, child: &OwnedFd) -> Result<OwnedFd, Errno> {
        self.checked(rustix::fs::openat(child, c"..", FOLDER, Mode::empty())?)
    }

    fn through_root(&self) -> Result<OwnedFd, Errno> {
        let mut fd: Option<OwnedFd> = None;
        for level in &self.levels {
            let from = fd.as_ref().unwrap_or(&self.root);
            fd = Some(rustix::fs::openat(from, level.name.as_c_str(), FOLDER, Mode::empty())?);
        }
        self.checked(fd.ok_or(Errno::NOENT)?)
    }

    /// Refuses every folder but the one that was left open here before.
    fn checked(&self, fd: OwnedFd) -> Result<OwnedFd, Errno> {
        let stat = rustix::fs::fstat(&fd)?;
        match self.levels.last() {
            Some(level) if (level.dev, level.ino) == (stat.st_dev, stat.st_ino) => Ok(fd),
            _ => Err(Errno::STALE),
        }
    }
}

/// Entries are read in blocks of this size.
const ENTRIES_BYTES: usize = 32 * 1024;

/// One name in a folder, with its kind where the file system says it.
pub(crate) struct Named {
    pub(crate) name: CString,
    pub(crate) kind: rustix::fs::FileType,
}

/// The first `limit` names of a folder in byte order, from the one behind `after` on, and whether there are more.
/// Holds no more than that many at once, however many the folder has.
pub(crate) fn names_after(
    folder: BorrowedFd<'_>,
    after: Option<&CStr>,
    limit: usize,
) -> Result<(Vec<CString>, bool), Errno> {
    let mut buffer = Vec::with_capacity(ENTRIES_BYTES);
    // The largest on top, to be the first to go.
    let mut first = std::collections::BinaryHeap::new();
    let mut more = false;
    rustix::fs::seek(folder, rustix::fs::SeekFrom::Start(0))?;
    let mut entries = rustix::fs::RawDir::new(folder, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." || after.is_some_and(|after| name <= after) {
            continue;
        }
        first.push(name.to_owned());
        if first.len() > limit {
            more = true;
            first.pop();
        }
    }
    Ok((first.into_sorted_vec(), more))
}

/// The names in a folder, in byte order, at most `limit`; more is [`Errno::OVERFLOW`].
pub(crate) fn names(folder: BorrowedFd<'_>, limit: usize) -> Result<Vec<Named>, Errno> {
    let mut buffer = Vec::with_capacity(ENTRIES_BYTES);
    let mut names = Vec::new();
    // The offset is the descriptor's: a folder that was read before is read again from its start.
    rustix::fs::seek(folder, rustix::fs::SeekFrom::Start(0))?;
    let mut entries = rustix::fs::RawDir::new(folder, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if names.len() >= limit {
            return Err(Errno::OVERFLOW);
        }
        names.push(Named { name: name.to_owned(), kind: entry.file_type() });
    }
    names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(names)
}
