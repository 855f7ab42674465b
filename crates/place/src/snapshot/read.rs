//! Looking into a snapshot without restoring it: lists, parts of files, archives, and what differs between two.

use super::{
    Progress, SnapshotError, SnapshotId, Store, Watch,
    error::path_of,
    manifest::{Content, Entry, Kind, path_order},
    objects::{Entries, Objects},
};
use crate::files::{
    FileEntry, FileKind, More, Page,
    archive::{Archive, Member, MemberKind},
};
use std::{
    cmp::Ordering,
    ffi::OsStr,
    io::{self, Read, Write},
    ops::Range,
    os::unix::ffi::OsStrExt,
    path::{Component, Path},
};

/// How much lies between two snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Diff {
    pub added: u64,
    pub removed: u64,
    /// In content, kind, mode, owner or attributes.
    pub changed: u64,
}

pub(crate) fn look(store: &dyn Store, id: &SnapshotId, path: &Path) -> Result<FileEntry, SnapshotError> {
    let path = key(path)?;
    let found = Entries::open_at(store, id, &path)?.find(&path)?;
    let entry = found.ok_or_else(|| SnapshotError::NotFound(path_of(&path)))?;
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    Ok(described(name, &entry))
}

pub(crate) fn list(
    store: &dyn Store,
    id: &SnapshotId,
    path: &Path,
    after: Option<&OsStr>,
    limit: usize,
) -> Result<Page, SnapshotError> {
    let path = key(path)?;
    let mut index = Entries::open_at(store, id, &path)?;
    let Some(entry) = index.find(&path)? else { return Err(SnapshotError::NotFound(path_of(&path))) };
    if entry.kind != Kind::Folder {
        return Err(SnapshotError::NotFolder(path_of(&path)));
    }
    let mut entries: Vec<FileEntry> = Vec::new();
    while let Some(entry) = index.entry.take() {
        let Some(name) = below(&index.path, &path) else { break };
        if !name.contains(&b'/') && after.is_none_or(|after| name > after.as_bytes()) {
            if entries.len() >= limit {
                let last = entries.last().map(|last| More::After(last.name.clone()));
                return Ok(Page { entries, more: last.unwrap_or(More::No) });
            }
            entries.push(described(name, &entry));
        }
        index.advance()?;
    }
    Ok(Page { entries, more: More::No })
}

fn described(name: &[u8], entry: &Entry) -> FileEntry {
    let (kind, size) = match &entry.kind {
        Kind::File(content) => (FileKind::File, content.size),
        Kind::Folder => (FileKind::Folder, 0),
        Kind::Link(target) => (FileKind::Link(path_of(target)), target.len() as u64),
        Kind::Hard(_, size) => (FileKind::File, *size),
        Kind::Fifo => (FileKind::Other, 0),
    };
    let &Entry { mode, uid, gid, mtime, .. } = entry;
    let name = OsStr::from_bytes(name).to_owned();
    FileEntry { name, kind, mode, uid, gid, size, modified: (mtime.sec, mtime.nsec) }
}

pub(crate) fn read_file(
    store: &dyn Store,
    id: &SnapshotId,
    path: &Path,
    range: Range<u64>,
) -> Result<Vec<u8>, SnapshotError> {
    let path = key(path)?;
    let content = content(store, id, &path)?;
    let range = range.start.min(content.size)..range.end.min(content.size);
    let mut bytes = Vec::new();
    let mut objects = Objects::new(store);
    let mut reader = ContentReader::new(&mut objects, &content, range.start);
    reader.until(range.end, &mut bytes).map_err(|error| error.in_file(&path))?;
    Ok(bytes)
}

/// The content of a regular file, under whichever of its names.
fn content(store: &dyn Store, id: &SnapshotId, path: &[u8]) -> Result<Content, SnapshotError> {
    let find = |path: &[u8]| Entries::open_at(store, id, path)?.find(path);
    let entry = match find(path)? {
        Some(Entry { kind: Kind::Hard(first, _), .. }) => find(&first)?,
        other => other,
    };
    match entry.map(|entry| entry.kind) {
        Some(Kind::File(content)) => Ok(content),
        Some(Kind::Folder | Kind::Link(_) | Kind::Hard(..) | Kind::Fifo) => {
            Err(SnapshotError::NotFile(path_of(path)))
        }
        None => Err(SnapshotError::NotFound(path_of(path))),
    }
}

/// A file's bytes in order, holes as zeros.
struct ContentReader<'o, 'a, 'c> {
    objects: &'o mut Objects<'a>,
    content: &'c Content,
    piece: usize,
    /// Where the piece starts, and where the reader is.
    start: u64,
    at: u64,
    /// What made a read fail, which an [`io::Error`] cannot carry whole.
    failed: Option<SnapshotError>,
}

impl<'o, 'a, 'c> ContentReader<'o, 'a, 'c> {
    fn new(objects: &'o mut Objects<'a>, content: &'c Content, at: u64) -> Self {
        Self { objects, content, piece: 0, start: 0, at, failed: None }
    }

    fn until(&mut self, end: u64, into: &mut Vec<u8>) -> Result<(), SnapshotError> {
        while self.at < end {
            let before = into.len();
            self.some(end - self.at, |bytes| into.extend_from_slice(bytes))?;
            if into.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// Gives up to `most` bytes that lie in one piece.
    fn some(&mut self, most: u64, give: impl FnOnce(&[u8])) -> Result<(), SnapshotError> {
        loop {
            let Some(piece) = self.content.pieces.get(self.piece) else {
                // What the pieces leave of the size is a hole.
                let zeros = zeros(most.min(self.content.size.saturating_sub(self.at)));
                give(zeros);
                self.at += zeros.len() as u64;
                return Ok(());
            };
            let end = self.start.saturating_add(piece.length);
            if self.at >= end {
                self.start = end;
                self.piece += 1;
                continue;
            }
            let most = most.min(end - self.at);
            let Some(place) = &piece.at else {
                let zeros = zeros(most);
                give(zeros);
                self.at += zeros.len() as u64;
                return Ok(());
            };
            let bytes = self.objects.piece(place, piece.length)?;
            let from = usize::try_from(self.at - self.start).unwrap_or(usize::MAX);
            let part = bytes.get(from..).unwrap_or_default();
            let part = part.get(..usize::try_from(most).unwrap_or(part.len())).unwrap_or(part);
            give(part);
            self.at += part.len() as u64;
            return Ok(());
        }
    }
}

/// Up to `count` bytes of a hole.
fn zeros(count: u64) -> &'static [u8] {
    const ZEROS: &[u8] = &[0; 64 * 1024];
    usize::try_from(count).ok().and_then(|count| ZEROS.get(..count)).unwrap_or(ZEROS)
}

impl Read for ContentReader<'_, '_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        let most = buffer.len() as u64;
        let given = self.some(most, |bytes| {
            count = bytes.len();
            if let Some(into) = buffer.get_mut(..count) {
                into.copy_from_slice(bytes);
            }
        });
        given.map(|()| count).map_err(|error| {
            let message = error.to_string();
            self.failed = Some(error);
            io::Error::other(message)
        })
    }
}

pub(crate) fn tar(
    store: &dyn Store,
    id: &SnapshotId,
    path: &Path,
    into: &mut dyn Write,
    watch: &Watch<'_>,
) -> Result<(), SnapshotError> {
    let path = key(path)?;
    let mut entries = Entries::open_at(store, id, &path)?;
    if entries.entry.is_none() || entries.path != path {
        return Err(SnapshotError::NotFound(path_of(&path)));
    }
    let mut archive = Archive::new(into, &path);
    let mut objects = Objects::new(store);
    let mut progress = Progress::default();
    while let Some(entry) = entries.entry.take() {
        if entries.path != path && below(&entries.path, &path).is_none() {
            break;
        }
        watch.check()?;
        let find = |first: &[u8]| content(store, id, first);
        member(&mut objects, &find, &mut archive, (&entries.path, &entry), &path)?;
        progress.files += 1;
        if let Kind::File(content) = &entry.kind {
            progress.bytes += content.size;
        }
        watch.tell(progress);
        entries.advance()?;
    }
    archive.finish().map_err(|error| SnapshotError::io("write the archive of", path_of(&path), error))
}

/// Adds one entry. `find` gives the content of a file that lies elsewhere.
fn member(
    objects: &mut Objects<'_>,
    find: &dyn Fn(&[u8]) -> Result<Content, SnapshotError>,
    archive: &mut Archive<'_>,
    (path, entry): (&[u8], &Entry),
    top: &[u8],
) -> Result<(), SnapshotError> {
    let failed = |error| SnapshotError::io("write into the archive", path_of(path), error);
    let &Entry { mode, uid, gid, .. } = entry;
    let member = |kind| Member { path, kind, mode, uid, gid, mtime: entry.mtime.sec };
    let elsewhere;
    let content = match &entry.kind {
        Kind::Folder => return archive.add(&member(MemberKind::Folder)).map_err(failed),
        Kind::Link(target) => return archive.add(&member(MemberKind::Link(target))).map_err(failed),
        Kind::Fifo => return archive.add(&member(MemberKind::Fifo)).map_err(failed),
        Kind::Hard(first, _) if first == top || below(first, top).is_some() => {
            return archive.add(&member(MemberKind::Hard(first))).map_err(failed);
        }
        // The other name lies outside of what is archived, so the content goes with this one.
        Kind::Hard(first, _) => {
            elsewhere = find(first)?;
            &elsewhere
        }
        Kind::File(content) => content,
    };
    let mut reader = ContentReader::new(objects, content, 0);
    let added = archive.add_file(&member(MemberKind::File), content.size, &mut reader);
    match (added, reader.failed) {
        (Ok(()), None) => Ok(()),
        (_, Some(error)) => Err(error.in_file(path)),
        (Err(error), None) => Err(failed(error)),
    }
}

pub(crate) fn diff(store: &dyn Store, a: &SnapshotId, b: &SnapshotId) -> Result<Diff, SnapshotError> {
    let mut diff = Diff::default();
    if a == b {
        return Ok(diff);
    }
    let (mut a, mut b) = (Entries::open(store, a)?, Entries::open(store, b)?);
    loop {
        // What both have is the same object, and need not be read entry by entry.
        if let (Some(left), Some(right)) = (a.at_section_start(), b.at_section_start())
            && left == right
        {
            a.skip_section()?;
            b.skip_section()?;
            continue;
        }
        let order = match (&a.entry, &b.entry) {
            (None, None) => return Ok(diff),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), Some(_)) => path_order(&a.path, &b.path),
        };
        match order {
            Ordering::Less => diff.removed += 1,
            Ordering::Greater => diff.added += 1,
            Ordering::Equal => {
                diff.changed += u64::from(a.entry.as_ref().map(essence) != b.entry.as_ref().map(essence));
            }
        }
        if order != Ordering::Greater {
            a.advance()?;
        }
        if order != Ordering::Less {
            b.advance()?;
        }
    }
}

/// What makes an entry what it is, wherever its bytes are stored and whenever it was written.
fn essence(entry: &Entry) -> impl PartialEq + use<> {
    let pieces: Vec<_> = match &entry.kind {
        Kind::File(content) => {
            content.pieces.iter().map(|piece| (piece.length, piece.at.map(|at| at.hash))).collect()
        }
        Kind::Folder | Kind::Link(_) | Kind::Hard(..) | Kind::Fifo => Vec::new(),
    };
    let (kind, text) = match &entry.kind {
        Kind::File(content) => (0, content.size.to_le_bytes().to_vec()),
        Kind::Folder => (1, Vec::new()),
        Kind::Link(target) => (2, target.clone()),
        Kind::Hard(first, _) => (3, first.clone()),
        Kind::Fifo => (4, Vec::new()),
    };
    (kind, text, pieces, entry.mode, entry.uid, entry.gid, entry.xattrs.clone())
}

/// What `path` has beyond the folder `top`.
fn below<'p>(path: &'p [u8], top: &[u8]) -> Option<&'p [u8]> {
    if top.is_empty() {
        return (!path.is_empty()).then_some(path);
    }
    path.strip_prefix(top)?.strip_prefix(b"/")
}

/// A caller's path as the index writes it.
fn key(path: &Path) -> Result<Vec<u8>, SnapshotError> {
    let mut key = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => {
                if !key.is_empty() {
                    key.push(b'/');
                }
                key.extend_from_slice(name.as_bytes());
            }
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(SnapshotError::NotFound(path.to_owned()));
            }
        }
    }
    Ok(key)
}
