//! Reading from the store: objects checked as they come, a few kept, and the entries of a snapshot one by one.

use super::{
    ObjectId, SnapshotError, SnapshotId, Store,
    manifest::{At, Entry, Object, Root, newer, path_order, read_entry, section_objects},
    object::{Unsound, unseal},
};
use std::{cmp::Ordering, collections::VecDeque, sync::Arc};

/// Unpacked contents kept while a snapshot is read: files of one pack come one after the other, but edits
/// interleave packs.
const CACHE_BYTES: usize = 16 * 1024 * 1024;

/// Checked reading with a small cache. One per operation.
pub(crate) struct Objects<'a> {
    store: &'a dyn Store,
    cache: VecDeque<(ObjectId, Arc<Vec<u8>>)>,
    cached: usize,
}

impl<'a> Objects<'a> {
    pub(crate) fn new(store: &'a dyn Store) -> Self {
        Self { store, cache: VecDeque::new(), cached: 0 }
    }

    pub(crate) fn get(&mut self, id: &ObjectId) -> Result<Arc<Vec<u8>>, SnapshotError> {
        if let Some(at) = self.cache.iter().position(|(known, _)| known == id)
            && let Some(found) = self.cache.remove(at)
        {
            let content = Arc::clone(&found.1);
            self.cache.push_back(found);
            return Ok(content);
        }
        let content = Arc::new(self.read(id)?);
        self.cached += content.len();
        self.cache.push_back((*id, Arc::clone(&content)));
        while self.cached > CACHE_BYTES
            && self.cache.len() > 1
            && let Some((_, oldest)) = self.cache.pop_front()
        {
            self.cached -= oldest.len();
        }
        Ok(content)
    }

    fn read(&self, id: &ObjectId) -> Result<Vec<u8>, SnapshotError> {
        let frame = self.store.get(id).map_err(SnapshotError::Store)?;
        let frame = frame.ok_or(SnapshotError::Missing { object: *id, file: None })?;
        unseal(id, frame).map_err(|unsound| match unsound {
            Unsound::Damaged => damaged(id),
            Unsound::Newer(version) => SnapshotError::Newer { object: *id, version },
        })
    }

    pub(crate) fn root(&self, id: &SnapshotId) -> Result<Root, SnapshotError> {
        let bytes = self.read(&id.0).map_err(|error| match error {
            SnapshotError::Missing { .. } => SnapshotError::NoSnapshot(*id),
            error => error,
        })?;
        known(&id.0, &bytes)?;
        Root::decode(&bytes).map_err(|_| damaged(&id.0))
    }

    pub(crate) fn section(&self, id: &ObjectId) -> Result<SectionReader, SnapshotError> {
        let bytes = self.read(id)?;
        known(id, &bytes)?;
        let (objects, at) = section_objects(&bytes).map_err(|_| damaged(id))?;
        Ok(SectionReader { id: *id, bytes, objects, at })
    }

    /// A piece's bytes, checked against its own hash as well as its object's.
    pub(crate) fn piece(&mut self, at: &At, length: u64) -> Result<PieceBytes, SnapshotError> {
        let Object::Stored { id, .. } = at.object else { return Err(damaged(&at.hash)) };
        let object = self.get(&id)?;
        let start = at.offset as usize;
        let end = usize::try_from(length).ok().and_then(|length| start.checked_add(length));
        let range = start..end.ok_or_else(|| damaged(&id))?;
        let bytes = object.get(range.clone()).ok_or_else(|| damaged(&id))?;
        if at.hash != id && ObjectId::of(bytes) != at.hash {
            return Err(damaged(&id));
        }
        Ok(PieceBytes { object, range })
    }
}

/// A part of an object, kept alive by it.
pub(crate) struct PieceBytes {
    object: Arc<Vec<u8>>,
    range: std::ops::Range<usize>,
}

impl std::ops::Deref for PieceBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.object.get(self.range.clone()).unwrap_or_default()
    }
}

fn damaged(id: &ObjectId) -> SnapshotError {
    SnapshotError::Damaged { object: *id, file: None }
}

fn known(id: &ObjectId, bytes: &[u8]) -> Result<(), SnapshotError> {
    match newer(bytes) {
        Some(version) => Err(SnapshotError::Newer { object: *id, version }),
        None => Ok(()),
    }
}

pub(crate) struct SectionReader {
    id: ObjectId,
    bytes: Vec<u8>,
    pub(crate) objects: Vec<(ObjectId, u32)>,
    at: usize,
}

impl SectionReader {
    /// The next entry; its path replaces the one before it in `path`.
    pub(crate) fn next(&mut self, path: &mut Vec<u8>) -> Result<Option<Entry>, SnapshotError> {
        if self.at >= self.bytes.len() {
            return Ok(None);
        }
        read_entry(&self.bytes, &mut self.at, &self.objects, path).map(Some).map_err(|_| damaged(&self.id))
    }
}

/// The entries of one snapshot in path order, a section in memory at a time.
pub(crate) struct Entries<'a> {
    objects: Objects<'a>,
    pub(crate) root: Root,
    next_section: usize,
    section: Option<SectionReader>,
    pub(crate) path: Vec<u8>,
    /// The entry that `path` names, until it is taken.
    pub(crate) entry: Option<Entry>,
}

impl<'a> Entries<'a> {
    pub(crate) fn open(store: &'a dyn Store, id: &SnapshotId) -> Result<Self, SnapshotError> {
        let objects = Objects::new(store);
        let root = objects.root(id)?;
        let mut entries =
            Self { objects, root, next_section: 0, section: None, path: Vec::new(), entry: None };
        entries.advance()?;
        Ok(entries)
    }

    /// Starts at the section that holds `path`.
    pub(crate) fn open_at(store: &'a dyn Store, id: &SnapshotId, path: &[u8]) -> Result<Self, SnapshotError> {
        let objects = Objects::new(store);
        let root = objects.root(id)?;
        let after = root.sections.partition_point(|s| path_order(&s.first, path) != Ordering::Greater);
        let next_section = after.saturating_sub(1);
        let mut entries = Self { objects, root, next_section, section: None, path: Vec::new(), entry: None };
        entries.seek(path)?;
        Ok(entries)
    }

    /// Goes to the next entry; none is left when `entry` is `None` afterwards.
    pub(crate) fn advance(&mut self) -> Result<(), SnapshotError> {
        loop {
            if let Some(section) = &mut self.section {
                self.entry = section.next(&mut self.path)?;
                if self.entry.is_some() {
                    return Ok(());
                }
            }
            let Some(next) = self.root.sections.get(self.next_section) else {
                self.entry = None;
                return Ok(());
            };
            self.section = Some(self.objects.section(&next.id)?);
            self.path.clear();
            self.next_section += 1;
        }
    }

    /// Goes to `path`, or to the first entry after where it would be.
    pub(crate) fn seek(&mut self, path: &[u8]) -> Result<(), SnapshotError> {
        if self.section.is_none() {
            self.advance()?;
        }
        while self.entry.is_some() && path_order(&self.path, path) == Ordering::Less {
            self.advance()?;
        }
        Ok(())
    }

    /// Goes to `path` and takes its entry, if there is one.
    pub(crate) fn find(&mut self, path: &[u8]) -> Result<Option<Entry>, SnapshotError> {
        self.seek(path)?;
        if self.entry.is_some() && self.path == path {
            let entry = self.entry.take();
            self.advance()?;
            return Ok(entry);
        }
        Ok(None)
    }

    /// The section that starts at the current entry, for a reader that may skip it whole.
    pub(crate) fn at_section_start(&self) -> Option<ObjectId> {
        let section = self.root.sections.get(self.next_section.checked_sub(1)?)?;
        (self.entry.is_some() && section.first == self.path).then_some(section.id)
    }

    pub(crate) fn skip_section(&mut self) -> Result<(), SnapshotError> {
        self.section = None;
        self.advance()
    }
}
