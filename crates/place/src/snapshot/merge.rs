//! Making a folder that is in use equal to a tree that was restored beside it: what is the same stays as it is, so that
//! whoever stands in one of its folders still does.
//!
//! For a caller that holds everything still that could write there; what changes meanwhile may be mixed.

use crate::files::remove_tree;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
};
use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::Path,
};

/// Makes `into` equal to `from`, which is used up. Both are on one file system; `leave` is a name in `into` that is
/// not looked at. How many files, links and folders were made, replaced or removed.
pub fn merge(from: &Path, into: &Path, leave: Option<&OsStr>) -> io::Result<u64> {
    let mut changed = 0;
    merge_folder(from, into, leave, &mut changed)?;
    Ok(changed)
}

fn merge_folder(from: &Path, into: &Path, leave: Option<&OsStr>, changed: &mut u64) -> io::Result<()> {
    let wanted = names(from)?;
    let folder = open(into)?;
    for (name, found) in names(into)? {
        if leave == Some(&*name) {
            continue;
        }
        let stays = wanted.get(&name).is_some_and(|wanted| wanted.file_type() == found.file_type());
        if !stays {
            *changed += count(&into.join(&name), &found)?;
            remove(&folder, &name, &found)?;
        }
    }
    for (name, wanted) in wanted {
        let (source, target) = (from.join(&name), into.join(&name));
        match fs::symlink_metadata(&target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                *changed += count(&source, &wanted)?;
                fs::rename(&source, &target)?;
            }
            Err(error) => return Err(error),
            Ok(found) if wanted.is_dir() && found.is_dir() => {
                merge_folder(&source, &target, None, changed)?;
            }
            Ok(found) if same(&source, &wanted, &target, &found)? => {}
            Ok(_) => {
                *changed += 1;
                fs::rename(&source, &target)?;
            }
        }
    }
    like(from, into)
}

fn names(folder: &Path) -> io::Result<HashMap<OsString, fs::Metadata>> {
    fs::read_dir(folder)?
        .map(|entry| {
            let entry = entry?;
            Ok((entry.file_name(), entry.metadata()?))
        })
        .collect()
}

fn open(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, folder, flags, Mode::empty())?)
}

fn remove(folder: &OwnedFd, name: &OsStr, found: &fs::Metadata) -> io::Result<()> {
    if found.is_dir() {
        return remove_tree(folder.as_fd(), name).map_err(io::Error::from);
    }
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The entries at and below a path.
fn count(path: &Path, found: &fs::Metadata) -> io::Result<u64> {
    if !found.is_dir() {
        return Ok(1);
    }
    let below: io::Result<u64> =
        names(path)?.iter().map(|(name, found)| count(&path.join(name), found)).sum();
    Ok(1 + below?)
}

fn same(source: &Path, wanted: &fs::Metadata, target: &Path, found: &fs::Metadata) -> io::Result<bool> {
    let known = |meta: &fs::Metadata| {
        (meta.mode(), meta.uid(), meta.gid(), meta.size(), meta.mtime(), meta.mtime_nsec())
    };
    if wanted.is_symlink() {
        return Ok(fs::read_link(source)? == fs::read_link(target)?);
    }
    Ok(known(wanted) == known(found))
}

/// Gives a folder the mode, owner and times of another.
fn like(from: &Path, into: &Path) -> io::Result<()> {
    let (wanted, found) = (fs::symlink_metadata(from)?, fs::symlink_metadata(into)?);
    if (wanted.uid(), wanted.gid()) != (found.uid(), found.gid()) {
        std::os::unix::fs::lchown(into, Some(wanted.uid()), Some(wanted.gid()))?;
    }
    if wanted.mode() != found.mode() {
        fs::set_permissions(into, fs::Permissions::from_mode(wanted.mode() & 0o7777))?;
    }
    let times = fs::FileTimes::new().set_modified(wanted.modified()?).set_accessed(wanted.accessed()?);
    fs::File::open(into)?.set_times(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn what_is_the_same_stays_and_the_rest_becomes_equal() {
        let dir = tempfile::tempdir().unwrap();
        let (from, into) = (dir.path().join("from"), dir.path().join("into"));
        for (path, text) in
            [("same", "s"), ("sub/same", "s"), ("changed", "new"), ("made/deep", "x"), ("file", "f")]
        {
            write(&from.join(path), text);
        }
        fs::create_dir(from.join("empty")).unwrap();
        std::os::unix::fs::symlink("same", from.join("link")).unwrap();
        write(&into.join("changed"), "old text");
        write(&into.join("gone/deep"), "y");
        // A folder where a file should be.
        write(&into.join("file/in"), "z");
        write(&into.join(".leave/it"), "l");
        for path in ["same", "sub/same"] {
            fs::create_dir_all(into.join(path).parent().unwrap()).unwrap();
            fs::copy(from.join(path), into.join(path)).unwrap();
            let time = fs::metadata(from.join(path)).unwrap().modified().unwrap();
            fs::File::open(into.join(path)).unwrap().set_modified(time).unwrap();
        }
        fs::set_permissions(from.join("sub"), fs::Permissions::from_mode(0o750)).unwrap();
        let inode = |path: &str| fs::symlink_metadata(into.join(path)).unwrap().ino();
        let before = (inode("same"), inode("sub"), inode("sub/same"));
        let changed = merge(&from, &into, Some(OsStr::new(".leave"))).unwrap();
        assert_eq!(before, (inode("same"), inode("sub"), inode("sub/same")));
        // gone and what is in it, file/in and its folder; changed, made and made/deep, file, empty, link.
        assert_eq!(changed, 2 + 2 + 1 + 2 + 1 + 1 + 1);
        let read = |path: &str| fs::read_to_string(into.join(path)).unwrap();
        assert_eq!(
            (read("changed"), read("made/deep"), read("file")),
            ("new".into(), "x".into(), "f".into())
        );
        assert_eq!(read(".leave/it"), "l");
        assert!(!into.join("gone").exists() && into.join("empty").is_dir());
        assert_eq!(fs::read_link(into.join("link")).unwrap(), Path::new("same"));
        assert_eq!(fs::metadata(into.join("sub")).unwrap().mode() & 0o777, 0o750);
    }
}
