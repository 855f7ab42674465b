//! Files below a folder that others may be changing: list, read, write, remove, and archive, without ever
//! reaching anything outside of it.
//!
//! The doors' file calls come here when a place is on this machine. Every look-up starts at the folder's
//! descriptor and is resolved by the kernel beneath it (`openat2`), or name by name where the kernel cannot.
//! Reading follows links that stay inside; writing and removing follow none.

pub(crate) mod archive;
pub(crate) mod descent;
mod error;
mod path;
mod remove;
mod tar;
#[cfg(test)]
mod tests;

pub use error::FilesError;
pub use path::{FILE_PATH_BYTES, decode_path, encode_path};
pub(crate) use remove::remove_tree;

use descent::{FOLDER, names_after};
use path::Below;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};
use std::{
    ffi::{CString, OsStr, OsString},
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// How often a look-up that the kernel could not decide, because something was renamed meanwhile, is repeated.
const TRIES: usize = 64;

/// One entry of a folder, on disk or in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    pub name: OsString,
    pub kind: FileKind,
    pub mode: u32,
    /// In a snapshot, as seen inside.
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileKind {
    File,
    Folder,
    /// With what it points to, as it is written.
    Link(PathBuf),
    /// A pipe, socket or device.
    Other,
}

/// Part of a folder, in byte order of the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub entries: Vec<FileEntry>,
    pub more: More,
}

/// Whether the folder goes on behind a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum More {
    /// From behind this name, which need not be there any more.
    After(OsString),
    No,
}

/// Whether removing a folder removes what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remove {
    Alone,
    WithContents,
}

/// Whether folders that are missing on the way are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    Need,
    Make,
}

/// Access to what is below one folder.
#[derive(Debug)]
pub struct Files {
    root: OwnedFd,
    resolver: Resolver,
}

/// Who resolves paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resolver {
    Kernel,
    /// Name by name, following nothing, for kernels and filters without `openat2`.
    Names,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Followed as long as they lead below the folder.
    Inside,
    Refused,
}

impl Files {
    pub fn open(root: &Path) -> Result<Self, FilesError> {
        let root = rustix::fs::openat(CWD, root, FOLDER, Mode::empty())
            .map_err(|error| FilesError::new("open", root, error))?;
        Ok(Self::from_fd(root))
    }

    /// Of the folder that a descriptor is open on.
    pub fn from_fd(root: OwnedFd) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let probe = rustix::fs::openat2(&root, c".", flags, Mode::empty(), ResolveFlags::BENEATH);
        let resolver = if probe.is_ok() { Resolver::Kernel } else { Resolver::Names };
        Self { root, resolver }
    }

    /// What is at `path`; a link is told as such.
    pub fn look(&self, path: &Path) -> Result<FileEntry, FilesError> {
        let below = Below::new(path)?;
        let failed = |error| FilesError::new("look at", path, error);
        let Ok((folder, name)) = below.split() else {
            let stat = rustix::fs::fstat(&self.root).map_err(failed)?;
            return Ok(entry(OsString::new(), &stat, FileKind::Folder));
        };
        let folder = self.folder(&folder, Links::Inside).map_err(failed)?;
        described(folder.as_fd(), name).map_err(failed)?.ok_or_else(|| failed(Errno::NOENT))
    }

    /// What the folder at `path` holds behind the name `after`, at most `limit` entries.
    pub fn list(&self, path: &Path, after: Option<&OsStr>, limit: usize) -> Result<Page, FilesError> {
        let below = Below::new(path)?;
        let failed = |error| FilesError::new("list", path, error);
        let after = after.map(|name| CString::new(name.as_bytes())).transpose();
        let after = after.map_err(|_| FilesError::BadPath(path.to_owned()))?;
        let folder = self.folder(&below, Links::Inside).map_err(failed)?;
        let (names, more) = names_after(folder.as_fd(), after.as_deref(), limit).map_err(failed)?;
        let names: Vec<_> = names.into_iter().map(|name| OsString::from_vec(name.into_bytes())).collect();
        let more = match names.last() {
            Some(last) if more => More::After(last.clone()),
            Some(_) | None => More::No,
        };
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            // What went away since is not there.
            entries.extend(described(folder.as_fd(), &name).map_err(failed)?);
        }
        Ok(Page { entries, more })
    }

    /// Opens a regular file for reading. The descriptor stays good whatever happens to the path.
    pub fn open_file(&self, path: &Path) -> Result<File, FilesError> {
        let below = Below::new(path)?;
        let failed = |error| FilesError::new("read", path, error);
        // Not to wait at a pipe; regular files take no notice of it.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = self.resolve(&below, flags, Links::Inside).map_err(|error| match error {
            Errno::NXIO => FilesError::NotFile(path.to_owned()),
            error => failed(error),
        })?;
        let stat = rustix::fs::fstat(&file).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            _ => Err(FilesError::NotFile(path.to_owned())),
        }
    }

    /// The part of a file that `range` covers; shorter where the file ends. The caller bounds the range.
    pub fn read(&self, path: &Path, range: Range<u64>) -> Result<Vec<u8>, FilesError> {
        let mut file = self.open_file(path)?;
        let mut bytes = Vec::new();
        let length = range.end.saturating_sub(range.start);
        file.seek(SeekFrom::Start(range.start))
            .and_then(|_| file.take(length).read_to_end(&mut bytes))
            .map_err(|source| FilesError::Io { what: "read", path: path.to_owned(), source })?;
        Ok(bytes)
    }

    /// Writes a file, whole or not at all, and durably. One that is there keeps its mode unless `mode` is given; a link in its
    /// place is replaced, not followed. `content` is read to its end.
    pub fn write(
        &self,
        path: &Path,
        content: &mut dyn Read,
        mode: Option<u32>,
        parents: Parents,
    ) -> Result<u64, FilesError> {
        let below = Below::new(path)?;
        let (folder, name, mode) = self.place(path, &below, mode, parents)?;
        let failed = |error| FilesError::new("write", path, error);
        let draft = draft_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, &draft, flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
        let mut file = File::from(file);
        let written = std::io::copy(content, &mut file)
            .and_then(|count| self.settle(&file, &folder, &draft, name, mode).map(|()| count));
        written.map_err(|source| undo(&folder, &draft, path, source))
    }

    /// Makes the file `from`, which lies outside and is nobody else's, the file at `path`: moved where it is on the
    /// same file system, and copied otherwise. The rest is as with [`Self::write`].
    pub fn adopt(
        &self,
        path: &Path,
        from: &Path,
        mode: Option<u32>,
        parents: Parents,
    ) -> Result<u64, FilesError> {
        let below = Below::new(path)?;
        let broken = |source| FilesError::Io { what: "write", path: path.to_owned(), source };
        let mut file = File::open(from).map_err(broken)?;
        let size = file.metadata().map_err(broken)?.len();
        let (folder, name, bits) = self.place(path, &below, mode, parents)?;
        let draft = draft_name();
        match rustix::fs::renameat(CWD, from, &folder, &draft) {
            Ok(()) => {}
            Err(Errno::XDEV) => return self.write(path, &mut file, mode, parents),
            Err(error) => return Err(FilesError::new("write", path, error)),
        }
        let settled = self.settle(&file, &folder, &draft, name, bits).map(|()| size);
        settled.map_err(|source| undo(&folder, &draft, path, source))
    }

    /// Where a new file goes, what it is called there, and which permissions it gets.
    fn place<'b>(
        &self,
        path: &Path,
        below: &'b Below,
        mode: Option<u32>,
        parents: Parents,
    ) -> Result<(OwnedFd, &'b OsStr, u32), FilesError> {
        let (folder, name) = below.split()?;
        let failed = |error| FilesError::new("write", path, error);
        if parents == Parents::Make {
            self.make(&folder).map_err(failed)?;
        }
        let folder = self.folder(&folder, Links::Refused).map_err(failed)?;
        let mode = match (rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW), mode) {
            (Ok(stat), _) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(FilesError::NotFile(path.to_owned()));
            }
            (_, Some(mode)) => mode & 0o777,
            (Ok(stat), None) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                stat.st_mode & 0o777
            }
            (Ok(_) | Err(_), None) => 0o644,
        };
        Ok((folder, name, mode))
    }

    /// Gives a whole draft its owner, its permissions and its name, each on disk before the next.
    fn settle(
        &self,
        file: &File,
        folder: &OwnedFd,
        draft: &str,
        name: &OsStr,
        mode: u32,
    ) -> std::io::Result<()> {
        self.give(folder, file)?;
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?;
        file.sync_all()?;
        rustix::fs::renameat(folder, draft, folder, name)?;
        rustix::fs::fsync(folder)?;
        Ok(())
    }

    /// A file written from outside belongs to whoever owns the folder it is in, so that those inside can use it.
    fn give(&self, folder: &OwnedFd, file: impl AsFd) -> std::io::Result<()> {
        let (owner, ours) = (rustix::fs::fstat(folder)?, rustix::fs::fstat(&file)?);
        if (owner.st_uid, owner.st_gid) != (ours.st_uid, ours.st_gid) {
            let (uid, gid) =
                (rustix::fs::Uid::from_raw(owner.st_uid), rustix::fs::Gid::from_raw(owner.st_gid));
            match rustix::fs::fchown(&file, Some(uid), Some(gid)) {
                // Only root may give files away; for others the folder is theirs anyway.
                Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Makes the folder at `path`; one that is there is [`FilesError::Exists`] unless parents are made too.
    pub fn mkdir(&self, path: &Path, parents: Parents) -> Result<(), FilesError> {
        let below = Below::new(path)?;
        let failed = |error| FilesError::new("make", path, error);
        if parents == Parents::Make {
            return self.make(&below).map_err(failed);
        }
        let (folder, name) = below.split()?;
        let folder = self.folder(&folder, Links::Refused).map_err(failed)?;
        self.make_one(&folder, name).map_err(failed)
    }

    fn make(&self, below: &Below) -> Result<(), Errno> {
        let mut folder: Option<OwnedFd> = None;
        for name in below.names() {
            let here = folder.as_ref().unwrap_or(&self.root);
            let opened = match rustix::fs::openat(here, name, FOLDER, Mode::empty()) {
                Err(Errno::NOENT) => {
                    match self.make_one(here, name) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error),
                    }
                    rustix::fs::openat(here, name, FOLDER, Mode::empty())
                }
                opened => opened,
            };
            folder = Some(opened?);
        }
        Ok(())
    }

    fn make_one(&self, folder: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
        rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o755))?;
        if let Ok(made) = rustix::fs::openat(folder, name, FOLDER, Mode::empty()) {
            let _ = self.give(folder, &made);
        }
        Ok(())
    }

    /// Removes what is at `path`: a link itself, never what it points to.
    pub fn remove(&self, path: &Path, how: Remove) -> Result<(), FilesError> {
        let below = Below::new(path)?;
        let (folder, name) = below.split()?;
        let failed = |error| FilesError::new("remove", path, error);
        let folder = self.folder(&folder, Links::Refused).map_err(failed)?;
        let stat = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        match (how, is_folder) {
            (Remove::WithContents, _) => remove_tree(folder.as_fd(), name),
            (Remove::Alone, true) => rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR),
            (Remove::Alone, false) => rustix::fs::unlinkat(&folder, name, AtFlags::empty()),
        }
        .map_err(failed)
    }

    /// Writes what lies at and below `path` as a tar archive: links as links, sockets and devices left out.
    pub fn tar(&self, path: &Path, into: &mut dyn Write) -> Result<(), FilesError> {
        let below = Below::new(path)?;
        tar::tar(self, &below, path, into)
    }

    fn folder(&self, below: &Below, links: Links) -> Result<OwnedFd, Errno> {
        self.resolve(below, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, links)
    }

    /// The one way to a file: beneath the root, or not at all.
    fn resolve(&self, below: &Below, flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
        match self.resolver {
            Resolver::Kernel => self.resolve_at_once(below, flags, links),
            Resolver::Names => self.resolve_by_names(below, flags),
        }
    }

    fn resolve_at_once(&self, below: &Below, flags: OFlags, links: Links) -> Result<OwnedFd, Errno> {
        let path = if below.path().as_os_str().is_empty() { Path::new(".") } else { below.path() };
        let mut how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if links == Links::Refused {
            how |= ResolveFlags::NO_SYMLINKS;
        }
        for _ in 0..TRIES {
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), how) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
        Err(Errno::AGAIN)
    }

    fn resolve_by_names(&self, below: &Below, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut names = below.names().peekable();
        let mut folder: Option<OwnedFd> = None;
        while let Some(name) = names.next() {
            let here = folder.as_ref().unwrap_or(&self.root);
            if names.peek().is_none() {
                return rustix::fs::openat(here, name, flags | OFlags::NOFOLLOW, Mode::empty());
            }
            folder = Some(rustix::fs::openat(here, name, FOLDER, Mode::empty())?);
        }
        rustix::fs::openat(&self.root, c".", flags, Mode::empty())
    }
}

/// Takes a draft away that did not become a file, and says why.
fn undo(folder: &OwnedFd, draft: &str, path: &Path, source: std::io::Error) -> FilesError {
    let _ = rustix::fs::unlinkat(folder, draft, AtFlags::empty());
    match source.raw_os_error() {
        Some(code) => FilesError::new("write", path, Errno::from_raw_os_error(code)),
        None => FilesError::Io { what: "write", path: path.to_owned(), source },
    }
}

/// Describes one name of a folder; `None` when it is not there.
fn described(folder: BorrowedFd<'_>, name: &OsStr) -> Result<Option<FileEntry>, Errno> {
    let stat = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error),
    };
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Folder,
        FileType::Symlink => match rustix::fs::readlinkat(folder, name, Vec::new()) {
            Ok(target) => FileKind::Link(PathBuf::from(OsString::from_vec(target.into_bytes()))),
            // Replaced since: it is listed as what it is next time.
            Err(Errno::NOENT | Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error),
        },
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => FileKind::Other,
    };
    Ok(Some(entry(name.to_owned(), &stat, kind)))
}

fn entry(name: OsString, stat: &Stat, kind: FileKind) -> FileEntry {
    FileEntry {
        name,
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
    }
}

fn draft_name() -> String {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    format!(".outlast-{}-write-{}", std::process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed))
}
