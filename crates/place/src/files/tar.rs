//! A folder as a tar archive, read while others may be changing it.

use super::{
    Files, FilesError, Links,
    archive::{Archive, Member, MemberKind},
    descent::{Descent, Named, names},
    path::Below,
};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    collections::HashMap,
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::Write,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Folders within folders in one archive.
const DEPTH: usize = 16_384;
/// Names of one folder.
const NAMES: usize = 2_000_000;

pub(crate) fn tar(files: &Files, top: &Below, path: &Path, into: &mut dyn Write) -> Result<(), FilesError> {
    let failed = |error| FilesError::new("archive", path, error);
    let whole = top.split().is_err();
    let (folder, name) = match top.split() {
        Ok((folder, name)) => (folder, CString::new(name.as_bytes()).map_err(|_| failed(Errno::INVAL))?),
        Err(_) => (top.clone(), CString::default()),
    };
    let folder = files.folder(&folder, Links::Inside).map_err(failed)?;
    let mut walk = Walk {
        descent: Descent::new(folder),
        frames: Vec::new(),
        path: top.path().as_os_str().as_bytes().to_vec(),
        archive: Archive::new(into, top.path().as_os_str().as_bytes()),
        links: HashMap::new(),
    };
    if whole {
        walk.list()?;
    } else {
        walk.frames.push((Vec::new().into_iter(), 0));
        walk.visit(&name)?.then_some(()).ok_or_else(|| failed(Errno::NOENT))?;
    }
    walk.run()?;
    walk.archive.finish().map_err(|source| FilesError::Io { what: "archive", path: path.to_owned(), source })
}

struct Walk<'w> {
    descent: Descent,
    frames: Vec<(std::vec::IntoIter<Named>, usize)>,
    path: Vec<u8>,
    archive: Archive<'w>,
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<(), FilesError> {
        while let Some((names, length)) = self.frames.last_mut() {
            self.path.truncate(*length);
            let Some(named) = names.next() else {
                self.frames.pop();
                if self.descent.depth() > 0 {
                    while self.descent.leave().1.is_err() {
                        self.frames.pop();
                    }
                }
                continue;
            };
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(named.name.as_bytes());
            self.visit(&named.name)?;
        }
        Ok(())
    }

    fn list(&mut self) -> Result<(), FilesError> {
        let names = names(self.descent.here(), NAMES).map_err(|error| match error {
            Errno::OVERFLOW => FilesError::TooMany { path: self.shown(), limit: NAMES },
            error => FilesError::new("list", self.shown(), error),
        })?;
        self.frames.push((names.into_iter(), self.path.len()));
        Ok(())
    }

    /// Adds what has this name in the folder one is in; `false` when there is nothing.
    fn visit(&mut self, name: &CStr) -> Result<bool, FilesError> {
        let failed = |path, error| FilesError::new("archive", path, error);
        let stat = match rustix::fs::statat(self.descent.here(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(failed(self.shown(), error)),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return self.enter(name),
            FileType::RegularFile => return self.file(name),
            FileType::Symlink => match rustix::fs::readlinkat(self.descent.here(), name, Vec::new()) {
                Ok(target) => self.add(MemberKind::Link(target.as_bytes()), &stat)?,
                Err(_) => return Ok(false),
            },
            FileType::Fifo => self.add(MemberKind::Fifo, &stat)?,
            FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {}
        }
        Ok(true)
    }

    fn enter(&mut self, name: &CStr) -> Result<bool, FilesError> {
        if self.descent.depth() >= DEPTH {
            return Err(FilesError::TooDeep { path: self.shown(), limit: DEPTH });
        }
        match self.descent.enter(name) {
            Ok(stat) => {
                self.add(MemberKind::Folder, &stat)?;
                self.list()?;
                Ok(true)
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(error) => Err(FilesError::new("archive", self.shown(), error)),
        }
    }

    fn file(&mut self, name: &CStr) -> Result<bool, FilesError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(self.descent.here(), name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(false),
            Err(error) => return Err(FilesError::new("archive", self.shown(), error)),
        };
        let stat =
            rustix::fs::fstat(&file).map_err(|error| FilesError::new("archive", self.shown(), error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(false);
        }
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&(stat.st_dev, stat.st_ino)).cloned() {
                self.add(MemberKind::Hard(&first), &stat)?;
                return Ok(true);
            }
            self.links.insert((stat.st_dev, stat.st_ino), self.path.clone());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let member = member(&self.path, MemberKind::File, &stat);
        let added = self.archive.add_file(&member, size, &mut &file);
        added.map(|()| true).map_err(|source| FilesError::Io { what: "archive", path: self.shown(), source })
    }

    fn add(&mut self, kind: MemberKind<'_>, stat: &Stat) -> Result<(), FilesError> {
        let added = self.archive.add(&member(&self.path, kind, stat));
        added.map_err(|source| FilesError::Io { what: "archive", path: self.shown(), source })
    }

    fn shown(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.path))
    }
}

fn member<'a>(path: &'a [u8], kind: MemberKind<'a>, stat: &Stat) -> Member<'a> {
    Member {
        path,
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: stat.st_mtime,
    }
}
