//! A private copy of an agent's folder, and its removal.
//!
//! The copy keeps modes, times, links as links and empty folders; it shares blocks where the file system can.
//! Sockets, pipes and devices are left out, and no link is ever followed. Everything here blocks.

use crate::{Owner, PlaceError};
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid},
};
use std::{
    ffi::{CStr, OsStr},
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// What one workspace may be copied from: a deployed agent is within these already.
pub(crate) const COPY_ENTRIES: usize = 2 * protocol::limits::AGENT_FILES;
pub(crate) const COPY_BYTES: u64 = protocol::limits::AGENT_BYTES;
/// Folders within folders; two descriptors are open for each.
pub(crate) const COPY_DEPTH: usize = 128;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Copies the folder `from` to `to`, which must not be there; blocking. A failure leaves a part of it.
pub fn tree(from: &Path, to: &Path) -> Result<(), PlaceError> {
    tree_for(from, to, Owner::ourselves())
}

/// The same, for another owner.
pub(crate) fn tree_for(from: &Path, to: &Path, owner: Owner) -> Result<(), PlaceError> {
    let limits = Left { entries: COPY_ENTRIES, bytes: COPY_BYTES, depth: COPY_DEPTH };
    tree_within(from, to, limits, owner)
}

/// What the copy may still take.
#[derive(Clone, Copy)]
struct Left {
    entries: usize,
    bytes: u64,
    depth: usize,
}

struct Copy {
    limits: Left,
    left: Left,
    /// Off after the first refusal: the file system of one folder does not change its mind.
    share_blocks: bool,
    /// None when whoever copies keeps what is made.
    owner: Option<(Uid, Gid)>,
}

fn tree_within(from: &Path, to: &Path, limits: Left, owner: Owner) -> Result<(), PlaceError> {
    let source =
        rustix::fs::openat(CWD, from, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| match error {
                rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => PlaceError::NoSource(from.to_owned()),
                error => PlaceError::io("open", from, error),
            })?;
    let stat = rustix::fs::fstat(&source).map_err(|error| PlaceError::io("look at", from, error))?;
    let target = new_folder(CWD, to).map_err(|error| PlaceError::io("make", to, error))?;
    let owner = (owner != Owner::ourselves()).then(|| (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid)));
    let mut copy = Copy { limits, left: limits, share_blocks: true, owner };
    copy.folder(&source, &target, from)?;
    copy.finish(&target, &stat).map_err(|error| PlaceError::io("set the mode of", to, error))
}

impl Copy {
    fn folder(&mut self, from: &OwnedFd, to: &OwnedFd, path: &Path) -> Result<(), PlaceError> {
        self.left.depth =
            self.left.depth.checked_sub(1).ok_or(PlaceError::TooDeep { limit: self.limits.depth })?;
        let entries = Dir::read_from(from).map_err(|error| PlaceError::io("list", path, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| PlaceError::io("list", path, error))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.left.entries =
                self.left.entries.checked_sub(1).ok_or(PlaceError::TooMany { limit: self.limits.entries })?;
            self.entry(from, to, name, &path.join(OsStr::from_bytes(name.to_bytes())))?;
        }
        self.left.depth += 1;
        Ok(())
    }

    fn entry(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, path: &Path) -> Result<(), PlaceError> {
        let failed = |error: rustix::io::Errno| PlaceError::io("copy", path, error);
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let source = rustix::fs::openat(from, name, FOLDER, Mode::empty()).map_err(failed)?;
                let target = new_folder(to, name).map_err(failed)?;
                self.folder(&source, &target, path)?;
                self.finish(&target, &stat).map_err(failed)
            }
            FileType::Symlink => {
                let aim = rustix::fs::readlinkat(from, name, Vec::new()).map_err(failed)?;
                rustix::fs::symlinkat(aim, to, name).map_err(failed)?;
                match self.owner {
                    Some((uid, gid)) => {
                        rustix::fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                            .map_err(failed)
                    }
                    None => Ok(()),
                }
            }
            FileType::RegularFile => self.file(from, to, name, path),
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(()),
        }
    }

    fn file(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, path: &Path) -> Result<(), PlaceError> {
        let failed = |error: rustix::io::Errno| PlaceError::io("copy", path, error);
        // NONBLOCK: the file may have become a pipe since it was looked at, and opening that could wait.
        let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = File::from(rustix::fs::openat(from, name, read, Mode::empty()).map_err(failed)?);
        let stat = rustix::fs::fstat(&source).map_err(failed)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > self.left.bytes {
            return Err(PlaceError::TooLarge { limit: self.limits.bytes });
        }
        let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut target =
            File::from(rustix::fs::openat(to, name, write, Mode::from_raw_mode(0o600)).map_err(failed)?);
        let copied = if self.share_blocks && size > 0 && rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
            size
        } else {
            self.share_blocks &= size == 0;
            // One byte more than may be: a file that grows meanwhile is noticed.
            let mut bounded = source.take(self.left.bytes.saturating_add(1));
            io::copy(&mut bounded, &mut target).map_err(|error| PlaceError::io("copy", path, error))?
        };
        self.left.bytes =
            self.left.bytes.checked_sub(copied).ok_or(PlaceError::TooLarge { limit: self.limits.bytes })?;
        self.finish(&target, &stat).map_err(failed)
    }

    /// Owner, mode and times, last: a folder may be read-only, and filling it changes its time. Setuid and setgid are
    /// dropped: they would lend the owner's rights.
    fn finish(&self, fd: impl rustix::fd::AsFd, stat: &Stat) -> Result<(), rustix::io::Errno> {
        if let Some((uid, gid)) = self.owner {
            rustix::fs::fchown(&fd, Some(uid), Some(gid))?;
        }
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(stat.st_mode & 0o1777))?;
        let time = |sec, nsec| Timespec { tv_sec: sec, tv_nsec: nsec };
        let times = Timestamps {
            last_access: time(stat.st_atime, i64::try_from(stat.st_atime_nsec).unwrap_or(0)),
            last_modification: time(stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        };
        rustix::fs::futimens(fd, &times)
    }
}

fn new_folder<P: rustix::path::Arg + std::marker::Copy>(
    parent: impl rustix::fd::AsFd,
    name: P,
) -> Result<OwnedFd, rustix::io::Errno> {
    rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700))?;
    rustix::fs::openat(&parent, name, FOLDER, Mode::empty())
}

/// Gives a folder and everything in it to an owner, the folder itself last, following no link.
pub(crate) fn hand_over(path: &Path, owner: Owner) -> Result<(), PlaceError> {
    let failed = |error: rustix::io::Errno| PlaceError::io("change the owner of", path, error);
    let folder = rustix::fs::openat(CWD, path, FOLDER, Mode::empty()).map_err(failed)?;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    let mut open = vec![(folder, None)];
    // Each folder is listed, its entries changed, and what lies below it put on the list.
    while let Some((folder, listed)) = open.pop() {
        let entries = match listed {
            Some(entries) => entries,
            None => Dir::read_from(&folder).map_err(failed)?,
        };
        let mut entries = entries;
        let mut below = None;
        for entry in entries.by_ref() {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let stat =
                        rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                    FileType::from_raw_mode(stat.st_mode)
                }
                known => known,
            };
            if kind == FileType::Directory {
                below = Some(rustix::fs::openat(&folder, name, FOLDER, Mode::empty()).map_err(failed)?);
                break;
            }
            rustix::fs::chownat(&folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed)?;
        }
        match below {
            Some(below) => {
                open.push((folder, Some(entries)));
                open.push((below, None));
            }
            None => rustix::fs::fchown(&folder, Some(uid), Some(gid)).map_err(failed)?,
        }
    }
    Ok(())
}

/// Removes a folder and everything in it, read-only folders too, following no link.
pub(crate) fn remove(path: &Path) -> Result<(), PlaceError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path.to_owned());
            std::fs::remove_dir_all(path)
        }
        done => done,
    }
    .or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(PlaceError::io("remove", path, error)),
    })
}

/// Makes every folder writable for its owner. What fails here fails again, with a message, in the removal.
fn open_up(path: PathBuf) {
    let mut folders = vec![path];
    while let Some(folder) = folders.pop() {
        let Ok(fd) = rustix::fs::openat(
            CWD,
            &folder,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        ) else {
            continue;
        };
        let Ok(stat) = rustix::fs::fstat(&fd) else { continue };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            continue;
        }
        let _ = rustix::fs::chmod(&folder, Mode::from_raw_mode(0o700));
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        folders.extend(
            entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn a_copy_is_faithful_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        std::fs::create_dir_all(from.join("empty")).unwrap();
        std::fs::create_dir_all(from.join("deep/er")).unwrap();
        std::fs::write(from.join("deep/er/run"), "#!/bin/sh").unwrap();
        std::fs::set_permissions(from.join("deep/er/run"), PermissionsExt::from_mode(0o4755)).unwrap();
        std::fs::write(from.join("large"), vec![7; 300_000]).unwrap();
        std::fs::write(from.join(OsStr::from_bytes(b"not\xffutf8")), "x").unwrap();
        std::fs::set_permissions(from.join("deep"), PermissionsExt::from_mode(0o555)).unwrap();
        symlink("/etc/passwd", from.join("out")).unwrap();
        symlink("nowhere", from.join("dangling")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        rustix::fs::mknodat(CWD, from.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();

        tree(&from, &to).unwrap();

        assert_eq!(std::fs::read_link(to.join("out")).unwrap(), Path::new("/etc/passwd"));
        assert_eq!(std::fs::read_link(to.join("dangling")).unwrap(), Path::new("nowhere"));
        assert_eq!(std::fs::read(to.join("large")).unwrap(), vec![7; 300_000]);
        assert!(to.join(OsStr::from_bytes(b"not\xffutf8")).exists());
        assert!(to.join("empty").is_dir());
        let mode = |path: &str| to.join(path).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("deep/er/run"), 0o755, "executable, without setuid");
        assert_eq!(mode("deep"), 0o555);
        assert!(!to.join("socket").exists() && !to.join("pipe").exists());
        let times = |root: &Path| root.join("deep/er").metadata().unwrap().mtime_nsec();
        assert_eq!(times(&from), times(&to));
        std::fs::write(to.join("large"), "changed").unwrap();
        assert_eq!(std::fs::read(from.join("large")).unwrap().len(), 300_000, "the source is untouched");

        remove(&to).unwrap();
        assert!(!to.exists());
        remove(&to).unwrap();
        assert!(Path::new("/etc/passwd").exists());
    }

    #[test]
    fn bounds_are_typed() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        std::fs::create_dir_all(from.join("a/b/c")).unwrap();
        std::fs::write(from.join("a/file"), [0; 100]).unwrap();
        let fits = Left { entries: 4, bytes: 100, depth: 4 };
        let mut number = 0;
        let mut copy = |limits| {
            number += 1;
            tree_within(&from, &dir.path().join(number.to_string()), limits, Owner::ourselves())
        };
        assert!(copy(fits).is_ok());
        assert!(matches!(copy(Left { entries: 3, ..fits }), Err(PlaceError::TooMany { limit: 3 })));
        assert!(matches!(copy(Left { bytes: 99, ..fits }), Err(PlaceError::TooLarge { limit: 99 })));
        assert!(matches!(copy(Left { depth: 3, ..fits }), Err(PlaceError::TooDeep { limit: 3 })));
        assert!(matches!(tree(&dir.path().join("no"), &dir.path().join("x")), Err(PlaceError::NoSource(_))));
    }
}
