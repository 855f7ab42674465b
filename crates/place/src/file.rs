//! Writing one file below a workspace's home, without ever following a link.
//!
//! A process in the workspace may change folders into links at any moment, so each folder is opened from the
//! one before it, by descriptor, and never by its whole path.

use crate::PlaceError;
use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid},
    io::Errno,
};
use std::{
    ffi::OsStr,
    fs::File,
    io::Write,
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path},
    sync::atomic::{AtomicU64, Ordering},
};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub(crate) fn write(home: &Path, id: &str, path: &str, content: &[u8]) -> Result<(), PlaceError> {
    let parts = parts(path)?;
    let Some((name, folders)) = parts.split_last() else {
        return Err(PlaceError::BadPath(path.to_owned()));
    };
    let failed = |what| move |error: Errno| PlaceError::io(what, path, error);
    let mut folder = rustix::fs::openat(CWD, home, FOLDER, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => PlaceError::NoWorkspace(id.to_owned()),
        error => PlaceError::io("open", home, error),
    })?;
    // What is made belongs to whom the workspace belongs.
    let home = rustix::fs::fstat(&folder).map_err(failed("look at the workspace of"))?;
    let owner = (Uid::from_raw(home.st_uid), Gid::from_raw(home.st_gid));
    for part in folders {
        folder = enter(&folder, part, owner).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP | Errno::EXIST => PlaceError::NotFolder(path.to_owned()),
            error => PlaceError::io("open the folder of", path, error),
        })?;
    }
    // A file that is replaced keeps its mode; whatever else is there, a link too, is replaced.
    let mode = match rustix::fs::statat(&folder, *name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::RegularFile => Mode::from_raw_mode(stat.st_mode & 0o777),
            rustix::fs::FileType::Directory => return Err(failed("write")(Errno::ISDIR)),
            _ => Mode::from_raw_mode(0o644),
        },
        Err(Errno::NOENT) => Mode::from_raw_mode(0o644),
        Err(error) => return Err(failed("look at")(error)),
    };
    let draft = draft_name();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(
        rustix::fs::openat(&folder, &draft, flags, Mode::from_raw_mode(0o600)).map_err(failed("write"))?,
    );
    let written = file
        .write_all(content)
        .and_then(|()| Ok(give(&file, owner)?))
        .and_then(|()| Ok(rustix::fs::fchmod(&file, mode)?))
        .and_then(|()| Ok(rustix::fs::renameat(&folder, &draft, &folder, *name)?));
    written.map_err(|error| {
        let _ = rustix::fs::unlinkat(&folder, &draft, AtFlags::empty());
        PlaceError::io("write", path, error)
    })
}

fn parts(path: &str) -> Result<Vec<&OsStr>, PlaceError> {
    let bad = || PlaceError::BadPath(path.to_owned());
    if path.contains('\0') || path.ends_with('/') {
        return Err(bad());
    }
    Path::new(path)
        .components()
        .filter(|part| !matches!(part, Component::CurDir))
        .map(|part| match part {
            Component::Normal(name) => Ok(name),
            _ => Err(bad()),
        })
        .collect()
}

/// Opens the folder `name` in `folder`, making it when it is missing.
fn enter(folder: &OwnedFd, name: &OsStr, owner: (Uid, Gid)) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat(folder, name, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => {}
        opened => return opened,
    }
    match rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => {
            let made = rustix::fs::openat(folder, name, FOLDER, Mode::empty())?;
            give(&made, owner)?;
            Ok(made)
        }
        Err(Errno::EXIST) => rustix::fs::openat(folder, name, FOLDER, Mode::empty()),
        Err(error) => Err(error),
    }
}

fn give(fd: impl AsFd, (uid, gid): (Uid, Gid)) -> Result<(), Errno> {
    if uid == rustix::process::geteuid() {
        return Ok(());
    }
    rustix::fs::fchown(fd, Some(uid), Some(gid))
}

fn draft_name() -> String {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    format!(".outlast-{}-{}", std::process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed))
}
