//! Turning pieces of files into objects: a large piece becomes one, small ones are packed together, and what is
//! known already is stored no second time.
//!
//! Packs end at a content-defined place, so that two folders that differ in one file share the others' packs
//! even without a common snapshot. Objects go to the store in batches, one wait for the disk per batch.

use super::{
    ObjectId, SnapshotError, Store,
    manifest::{At, OWN_BYTES, Object},
    object::Sealer,
};
use std::collections::{HashMap, HashSet};

/// Files are cut into pieces of this size. Fixed cuts, not content-defined ones: the large files of a workspace
/// are written once (archives, binaries), appended to (logs) or changed in place (databases), all of which fixed
/// cuts serve as well, at no cost in processor time and with holes and ranges that need no search. A changed
/// byte costs one piece.
pub(crate) const PIECE_BYTES: usize = 1024 * 1024;
/// A pack ends at a piece whose hash says so once it has the first size, and always at the second.
const PACK_MIN: usize = 512 * 1024;
const PACK_MAX: usize = 1536 * 1024;
/// One piece in this many ends a pack.
const PACK_CUT: u8 = 16;
/// Frames that wait for one write to the store.
const BATCH_BYTES: usize = 16 * 1024 * 1024;

pub(crate) struct Packer<'a> {
    store: &'a dyn Store,
    sealer: Sealer,
    known: HashMap<ObjectId, At>,
    pack: Vec<u8>,
    /// What the closed packs became, by number.
    pub(crate) closed: Vec<(ObjectId, u32)>,
    batch: Vec<(ObjectId, Vec<u8>)>,
    batched: HashSet<ObjectId>,
    batch_bytes: usize,
    pub(crate) new_bytes: u64,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(store: &'a dyn Store) -> Self {
        Self {
            store,
            sealer: Sealer::new(),
            known: HashMap::new(),
            pack: Vec::new(),
            closed: Vec::new(),
            batch: Vec::new(),
            batched: HashSet::new(),
            batch_bytes: 0,
            new_bytes: 0,
        }
    }

    /// Makes a piece that is stored already known by its hash.
    pub(crate) fn learn(&mut self, at: At) {
        self.known.entry(at.hash).or_insert(at);
    }

    /// Takes a piece of a file, and says where it will be.
    pub(crate) fn add(&mut self, piece: &[u8]) -> Result<At, SnapshotError> {
        let hash = ObjectId::of(piece);
        if let Some(known) = self.known.get(&hash) {
            return Ok(*known);
        }
        if piece.len() as u64 >= OWN_BYTES {
            let object = Object::Stored { id: hash, length: u32::try_from(piece.len()).unwrap_or(u32::MAX) };
            self.store_object(hash, piece)?;
            return Ok(self.remember(At { object, offset: 0, hash }));
        }
        if self.pack.len() + piece.len() > PACK_MAX {
            self.close()?;
        }
        let number = u32::try_from(self.closed.len()).unwrap_or(u32::MAX);
        let offset = u32::try_from(self.pack.len()).unwrap_or(u32::MAX);
        self.pack.extend_from_slice(piece);
        let at = self.remember(At { object: Object::Pack(number), offset, hash });
        if self.pack.len() >= PACK_MIN && hash.as_bytes()[0].is_multiple_of(PACK_CUT) {
            self.close()?;
        }
        Ok(at)
    }

    fn remember(&mut self, at: At) -> At {
        self.known.insert(at.hash, at);
        at
    }

    /// Ends the current pack, so that everything added so far has its place.
    pub(crate) fn close(&mut self) -> Result<(), SnapshotError> {
        if self.pack.is_empty() {
            return Ok(());
        }
        let pack = std::mem::take(&mut self.pack);
        let id = ObjectId::of(&pack);
        self.closed.push((id, u32::try_from(pack.len()).unwrap_or(u32::MAX)));
        self.store_object(id, &pack)?;
        self.pack = pack;
        self.pack.clear();
        Ok(())
    }

    /// Stores an object unless it is stored already.
    pub(crate) fn store_object(&mut self, id: ObjectId, content: &[u8]) -> Result<(), SnapshotError> {
        if self.batched.contains(&id) || self.store.refresh(&id).map_err(SnapshotError::Store)? {
            return Ok(());
        }
        let frame = self.sealer.seal(content);
        self.batch_bytes += frame.len();
        self.new_bytes += frame.len() as u64;
        self.batch.push((id, frame));
        self.batched.insert(id);
        if self.batch_bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Makes everything stored so far durable.
    pub(crate) fn flush(&mut self) -> Result<(), SnapshotError> {
        if !self.batch.is_empty() {
            self.store.put(&self.batch).map_err(SnapshotError::Store)?;
            self.batch.clear();
            self.batched.clear();
            self.batch_bytes = 0;
        }
        Ok(())
    }
}
