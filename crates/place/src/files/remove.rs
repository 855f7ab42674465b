//! Removing a tree, however deep, while others may be changing it: nothing is followed, and nothing outside of
//! it is touched whatever is swapped for what.

use super::descent::{Descent, FOLDER, Named, names};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    ffi::{CStr, CString, OsStr},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
};

/// How often a folder that is filled again while it is emptied is emptied.
const PASSES: usize = 3;

/// Removes `name` of `folder` and, if it is a folder, all that is in it. Nothing of that name is no error.
pub(crate) fn remove_tree(folder: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    let name = CString::new(name.as_bytes()).map_err(|_| Errno::INVAL)?;
    for _ in 0..PASSES {
        match rustix::fs::unlinkat(folder, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
        empty(folder, &name)?;
        match rustix::fs::unlinkat(folder, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Filled again, or swapped for something else.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::NOTEMPTY)
}

/// Empties the folder `name`, depth first.
fn empty(folder: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let root = match open(folder, name) {
        Ok(root) => root,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut descent = Descent::new(root);
    let mut frames: Vec<(CString, std::vec::IntoIter<Named>)> =
        vec![(CString::default(), names(descent.here(), usize::MAX)?.into_iter())];
    while let Some((_, rest)) = frames.last_mut() {
        let Some(named) = rest.next() else {
            let done = frames.pop();
            if frames.is_empty() {
                break;
            }
            // A folder that moved away meanwhile takes what is left of it along; the next pass sees the rest.
            let mut moved = false;
            while descent.leave().1.is_err() {
                frames.pop();
                moved = true;
            }
            if let Some((name, _)) = done.filter(|_| !moved) {
                forgive(rustix::fs::unlinkat(descent.here(), &name, AtFlags::REMOVEDIR))?;
            }
            continue;
        };
        match rustix::fs::unlinkat(descent.here(), &named.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error),
        }
        let entered = match descent.enter(&named.name) {
            Err(Errno::ACCESS) => {
                open_up(descent.here(), &named.name)?;
                descent.enter(&named.name)
            }
            entered => entered,
        };
        match entered {
            Ok(_) => frames.push((named.name, names(descent.here(), usize::MAX)?.into_iter())),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(error),
        }
        make_writable(descent.here())?;
    }
    Ok(())
}

fn open(folder: BorrowedFd<'_>, name: &CStr) -> Result<std::os::fd::OwnedFd, Errno> {
    let opened = match rustix::fs::openat(folder, name, FOLDER, Mode::empty()) {
        Err(Errno::ACCESS) => {
            open_up(folder, name)?;
            rustix::fs::openat(folder, name, FOLDER, Mode::empty())
        }
        opened => opened,
    }?;
    make_writable(opened.as_fd())?;
    Ok(opened)
}

/// What someone else did first, or undid, is not a failure of this pass.
fn forgive(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(()),
        other => other,
    }
}

/// A folder that its owner may not write to cannot be emptied by its owner either.
fn make_writable(folder: BorrowedFd<'_>) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(folder)?;
    if stat.st_mode & 0o700 != 0o700 {
        return rustix::fs::fchmod(folder, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700));
    }
    Ok(())
}

/// Lets its owner into a folder. Through a descriptor of the folder itself, for a name could become a link.
fn open_up(folder: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), Mode::from_raw_mode(0o700))
}
