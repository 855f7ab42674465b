//! The folder through which a shell is given its commands: files to read and queues to write to, each under a name
//! that nobody knows before it is used.

use crate::sys;
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};

/// Only its owner, the shell's user, gets in.
const FOLDER: Mode = Mode::RWXU;
const FILE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Letters of a name, five bits each. A shell reads the line with its names letter by letter.
const NAME_LETTERS: usize = 12;
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// What a command is written to when there is no room for another file: one page of a file system, which it has already.
const SPARE: &str = "spareforneed";
const SPARE_BYTES: usize = 4096;

/// Whom the files must belong to, where it is not the keeper itself.
pub(crate) type Owner = Option<(u32, u32)>;

#[derive(Debug)]
pub(crate) struct Site {
    parent: OwnedFd,
    name: String,
    folder: OwnedFd,
    /// As the shell sees it.
    path: Vec<u8>,
    owner: Owner,
}

impl Site {
    /// Makes a new folder in `parent`, which the shell sees at `path`.
    pub(crate) fn make(parent: OwnedFd, path: &[u8], owner: Owner) -> Result<Self, Errno> {
        let name = format!("{}{}", crate::config::SITE_NAME, fresh()?);
        // Made as its owner: the file system of a sandbox knows nobody else.
        sys::files_as(owner, || rustix::fs::mkdirat(&parent, &name, FOLDER))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(&parent, &name, flags, Mode::empty())?;
        let path = [path, b"/", name.as_bytes()].concat();
        Ok(Self { parent, name, folder, path, owner })
    }

    /// Whether the folder is still where the shell looks for it.
    pub(crate) fn stands(&self) -> bool {
        rustix::fs::fstat(&self.folder).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Its own path as the shell sees it.
    pub(crate) fn folder_path(&self) -> &[u8] {
        &self.path
    }

    /// A name's path as the shell sees it.
    pub(crate) fn path(&self, name: &str) -> Vec<u8> {
        [&self.path, b"/".as_slice(), name.as_bytes()].concat()
    }

    /// A new empty file.
    pub(crate) fn file(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        sys::files_as(self.owner, || rustix::fs::openat(&self.folder, name, flags, FILE))
    }

    /// A new file with all of `content`.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), Errno> {
        write_all(self.file(name)?.as_fd(), content)
    }

    /// A new queue, opened for this side; the shell's side is opened by its name.
    pub(crate) fn queue(&self, name: &str, side: Side) -> Result<OwnedFd, Errno> {
        sys::files_as(self.owner, || rustix::fs::mkfifoat(&self.folder, name, FILE))?;
        let access = match side {
            Side::Reader => OFlags::RDONLY,
            // Both, so that it can be opened before the shell's side and never ends by itself.
            Side::Both => OFlags::RDWR,
        };
        let flags = access | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.folder, name, flags, Mode::empty())
    }

    /// Sets a page aside for a command that finds no room.
    pub(crate) fn put_by(&self) -> Result<(), Errno> {
        self.write(SPARE, &[b'\n'; SPARE_BYTES])
    }

    /// The page that was set aside, with `content`. Its name.
    pub(crate) fn write_spare(&self, content: &[u8]) -> Result<String, Errno> {
        if content.len() > SPARE_BYTES {
            return Err(Errno::NOSPC);
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = sys::files_as(self.owner, || rustix::fs::openat(&self.folder, SPARE, flags, FILE))?;
        // Written before it is made shorter: it keeps its page.
        let content = if content.is_empty() { b"\n" } else { content };
        write_all(file.as_fd(), content)?;
        rustix::fs::ftruncate(&file, content.len() as u64)?;
        Ok(SPARE.to_owned())
    }

    pub(crate) fn remove(&self, name: &str) {
        if name == SPARE {
            return;
        }
        let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let Ok(entries) = rustix::fs::Dir::read_from(&self.folder) else { return };
        for entry in entries.flatten() {
            let _ = rustix::fs::unlinkat(&self.folder, entry.file_name(), AtFlags::empty());
        }
        let _ = rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Reader,
    Both,
}

pub(crate) fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(length) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A name that cannot be guessed.
pub(crate) fn fresh() -> Result<String, Errno> {
    let mut bytes = [0; NAME_LETTERS];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect())
}
