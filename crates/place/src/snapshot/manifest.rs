//! The index of a snapshot: a root that lists sections, and sections that list entries in path order.
//!
//! Sections are cut at names, not at counts, so that an edit changes one section and the others keep their hash:
//! a snapshot of 200,000 files with one change writes a few hundred kilobytes of index. Each section lists the
//! objects it refers to first, so that garbage collection reads no entries.

use super::{
    ObjectId,
    wire::{Cursor, Malformed, put_bytes, put_number, put_signed},
};
use std::{cmp::Ordering, collections::HashMap};

const ROOT_MAGIC: &[u8; 4] = b"olsr";
const SECTION_MAGIC: &[u8; 4] = b"olss";
const VERSION: u64 = 1;

/// Pieces from this size on are objects of their own.
pub(crate) const OWN_BYTES: u64 = 256 * 1024;
/// A section ends before a name whose hash says so, once it has the first number of entries, and always at the
/// second or at so many bytes.
const SECTION_MIN: usize = 512;
const SECTION_MAX: usize = 8_192;
const SECTION_BYTES: usize = 1024 * 1024;
/// One name in this many ends a section.
const SECTION_CUT: u64 = 1_024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Time {
    pub(crate) sec: i64,
    pub(crate) nsec: u32,
}

/// What must be the same for a file's content to be taken as unchanged. Absent when the file was changed so
/// shortly before it was read that a later change could have left no mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) ino: u64,
    pub(crate) ctime: Time,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Permission bits with setuid, setgid and sticky.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Time,
    pub(crate) hint: Option<Hint>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    File(Content),
    Folder,
    Link(Vec<u8>),
    /// Another name of the file of this size that the path, earlier in the index, names.
    Hard(Vec<u8>, u64),
    Fifo,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Content {
    pub(crate) size: u64,
    /// In order; what they leave of `size` is a hole too.
    pub(crate) pieces: Vec<Piece>,
}

impl Content {
    /// Bytes that are not holes.
    pub(crate) fn stored(&self) -> u64 {
        self.pieces.iter().filter(|piece| piece.at.is_some()).map(|piece| piece.length).sum()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) length: u64,
    /// `None` is a hole.
    pub(crate) at: Option<At>,
}

/// Where a piece's bytes are, and what they hash to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) object: Object,
    pub(crate) offset: u32,
    pub(crate) hash: ObjectId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    Stored {
        id: ObjectId,
        length: u32,
    },
    /// A pack that is still being filled, by its number within the snapshot in the making.
    Pack(u32),
}

/// The order of an index: a folder before what is in it, and that before the folder's next neighbour.
pub(crate) fn path_order(a: &[u8], b: &[u8]) -> Ordering {
    let rank = |byte: u8| if byte == b'/' { 0 } else { byte };
    let shared = shared_length(a, b);
    match (a.get(shared), b.get(shared)) {
        (Some(a), Some(b)) => rank(*a).cmp(&rank(*b)),
        _ => a.len().cmp(&b.len()),
    }
}

/// How many bytes two paths begin with alike. By blocks: paths of deep trees are long and much the same.
fn shared_length(a: &[u8], b: &[u8]) -> usize {
    const BLOCK: usize = 256;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK)).take_while(|(a, b)| a == b).count();
    let start = blocks * BLOCK;
    let rest = a.iter().skip(start).zip(b.iter().skip(start));
    start + rest.take_while(|(a, b)| a == b).count()
}

/// A section in the making.
#[derive(Debug, Default)]
pub(crate) struct SectionWriter {
    body: Vec<u8>,
    /// With the bytes of each that this section uses.
    objects: Vec<(Object, u64)>,
    numbers: HashMap<Object, usize>,
    first: Vec<u8>,
    last: Vec<u8>,
    entries: usize,
}

impl SectionWriter {
    /// Whether a new section starts with an entry of this name.
    pub(crate) fn ends_before(&self, name: &[u8]) -> bool {
        let cut = || {
            // FNV-1a: all that is asked of it is to be the same everywhere.
            let hash = name.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            (hash >> 20).is_multiple_of(SECTION_CUT)
        };
        self.entries >= SECTION_MAX
            || self.body.len() >= SECTION_BYTES
            || (self.entries >= SECTION_MIN && cut())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub(crate) fn push(&mut self, path: &[u8], entry: &Entry) {
        if self.entries == 0 {
            self.first = path.to_vec();
        }
        let shared = shared_length(&self.last, path);
        put_number(&mut self.body, shared as u64);
        put_bytes(&mut self.body, path.get(shared..).unwrap_or_default());
        self.last.truncate(shared);
        self.last.extend_from_slice(path.get(shared..).unwrap_or_default());
        self.entries += 1;

        let body = &mut self.body;
        let tag = match entry.kind {
            Kind::File(_) => 0,
            Kind::Folder => 1,
            Kind::Link(_) => 2,
            Kind::Hard(..) => 3,
            Kind::Fifo => 4,
        };
        body.push(tag | u8::from(entry.hint.is_some()) << 4 | u8::from(!entry.xattrs.is_empty()) << 5);
        put_number(body, u64::from(entry.mode));
        put_number(body, u64::from(entry.uid));
        put_number(body, u64::from(entry.gid));
        put_time(body, entry.mtime);
        if let Some(hint) = entry.hint {
            put_number(body, hint.ino);
            put_time(body, hint.ctime);
        }
        if !entry.xattrs.is_empty() {
            put_number(body, entry.xattrs.len() as u64);
            for (name, value) in &entry.xattrs {
                put_bytes(body, name);
                put_bytes(body, value);
            }
        }
        match &entry.kind {
            Kind::File(content) => self.push_content(content),
            Kind::Link(target) => put_bytes(body, target),
            Kind::Hard(first, size) => {
                put_bytes(body, first);
                put_number(body, *size);
            }
            Kind::Folder | Kind::Fifo => {}
        }
    }

    fn push_content(&mut self, content: &Content) {
        put_number(&mut self.body, content.size);
        put_number(&mut self.body, content.pieces.len() as u64);
        for piece in &content.pieces {
            let Some(at) = piece.at else {
                put_number(&mut self.body, 0);
                put_number(&mut self.body, piece.length);
                continue;
            };
            let index = *self.numbers.entry(at.object).or_insert_with(|| {
                self.objects.push((at.object, 0));
                self.objects.len() - 1
            });
            if let Some((_, used)) = self.objects.get_mut(index) {
                *used += piece.length;
            }
            // Zero is a hole.
            let number = index as u64 + 1;
            // A piece that is a whole object of its own has the object's hash, which is not written twice. Small
            // ones are always written out: whether a pack will hold one piece only is not known in time, and the
            // same entry must be written the same way in every snapshot.
            let own =
                piece.length >= OWN_BYTES && matches!(at.object, Object::Stored { id, .. } if id == at.hash);
            put_number(&mut self.body, number << 1 | u64::from(own));
            put_number(&mut self.body, piece.length);
            if !own {
                put_number(&mut self.body, u64::from(at.offset));
                self.body.extend_from_slice(at.hash.as_bytes());
            }
        }
    }

    /// The section. `packs` says what became of each pack; all must be closed.
    pub(crate) fn finish(self, packs: &[(ObjectId, u32)]) -> FinishedSection {
        let mut bytes = Vec::with_capacity(self.body.len() + self.objects.len() * 36 + 16);
        bytes.extend_from_slice(SECTION_MAGIC);
        put_number(&mut bytes, VERSION);
        put_number(&mut bytes, self.objects.len() as u64);
        let mut used = Vec::with_capacity(self.objects.len());
        for (object, bytes_used) in &self.objects {
            let (id, length) = match object {
                Object::Stored { id, length } => (*id, *length),
                Object::Pack(number) => packs.get(*number as usize).copied().unwrap_or((NO_OBJECT, 0)),
            };
            bytes.extend_from_slice(id.as_bytes());
            put_number(&mut bytes, u64::from(length));
            used.push((id, length, *bytes_used));
        }
        bytes.extend_from_slice(&self.body);
        FinishedSection { bytes, first: self.first, used }
    }
}

/// Stands for a pack that was never closed; no object has this name, so that reading it fails.
const NO_OBJECT: ObjectId = ObjectId::from_bytes([0; 32]);

pub(crate) struct FinishedSection {
    pub(crate) bytes: Vec<u8>,
    pub(crate) first: Vec<u8>,
    /// Objects, their length, and how much of it the section uses.
    pub(crate) used: Vec<(ObjectId, u32, u64)>,
}

fn put_time(into: &mut Vec<u8>, time: Time) {
    put_signed(into, time.sec);
    put_number(into, u64::from(time.nsec));
}

/// The version of an index part that this program does not know yet.
pub(crate) fn newer(bytes: &[u8]) -> Option<u8> {
    let mut cursor = Cursor { bytes, at: 0 };
    let magic = cursor.take(4).ok()?;
    let version = cursor.number().ok()?;
    let ours = magic == ROOT_MAGIC || magic == SECTION_MAGIC;
    (ours && version > VERSION).then(|| u8::try_from(version).unwrap_or(u8::MAX))
}

/// The objects that a section refers to, and where its entries start.
pub(crate) fn section_objects(bytes: &[u8]) -> Result<(Vec<(ObjectId, u32)>, usize), Malformed> {
    let mut cursor = Cursor { bytes, at: 0 };
    if cursor.take(4)? != SECTION_MAGIC || cursor.number()? != VERSION {
        return Err(Malformed);
    }
    let count = cursor.number()?;
    let mut objects = Vec::new();
    for _ in 0..count {
        objects.push((ObjectId::from_bytes(cursor.hash()?), cursor.small()?));
    }
    Ok((objects, cursor.at))
}

/// Reads the entry at `at` and leaves its path in `path`, which must hold the path before it.
pub(crate) fn read_entry(
    bytes: &[u8],
    at: &mut usize,
    objects: &[(ObjectId, u32)],
    path: &mut Vec<u8>,
) -> Result<Entry, Malformed> {
    let mut cursor = Cursor { bytes, at: *at };
    let shared = usize::try_from(cursor.number()?).map_err(|_| Malformed)?;
    if shared > path.len() {
        return Err(Malformed);
    }
    path.truncate(shared);
    path.extend_from_slice(cursor.slice()?);
    let tag = cursor.byte()?;
    let (mode, uid, gid) = (cursor.small()?, cursor.small()?, cursor.small()?);
    let mtime = read_time(&mut cursor)?;
    let hint = match tag & 0x10 {
        0 => None,
        _ => Some(Hint { ino: cursor.number()?, ctime: read_time(&mut cursor)? }),
    };
    let mut xattrs = Vec::new();
    if tag & 0x20 != 0 {
        for _ in 0..cursor.number()? {
            xattrs.push((cursor.slice()?.to_vec(), cursor.slice()?.to_vec()));
        }
    }
    let kind = match tag & 0x0f {
        0 => Kind::File(read_content(&mut cursor, objects)?),
        1 => Kind::Folder,
        2 => Kind::Link(cursor.slice()?.to_vec()),
        3 => Kind::Hard(cursor.slice()?.to_vec(), cursor.number()?),
        4 => Kind::Fifo,
        _ => return Err(Malformed),
    };
    *at = cursor.at;
    Ok(Entry { kind, mode, uid, gid, mtime, hint, xattrs })
}

fn read_time(cursor: &mut Cursor<'_>) -> Result<Time, Malformed> {
    Ok(Time { sec: cursor.signed()?, nsec: cursor.small()? })
}

fn read_content(cursor: &mut Cursor<'_>, objects: &[(ObjectId, u32)]) -> Result<Content, Malformed> {
    let size = cursor.number()?;
    let mut pieces = Vec::new();
    for _ in 0..cursor.number()? {
        let tag = cursor.number()?;
        let length = cursor.number()?;
        let Some(number) = (tag >> 1).checked_sub(1) else {
            pieces.push(Piece { length, at: None });
            continue;
        };
        let number = usize::try_from(number).map_err(|_| Malformed)?;
        let &(id, object_length) = objects.get(number).ok_or(Malformed)?;
        let (offset, hash) = match tag & 1 {
            1 => (0, id),
            _ => (cursor.small()?, ObjectId::from_bytes(cursor.hash()?)),
        };
        if u64::from(offset).checked_add(length).is_none_or(|end| end > u64::from(object_length)) {
            return Err(Malformed);
        }
        let object = Object::Stored { id, length: object_length };
        pieces.push(Piece { length, at: Some(At { object, offset, hash }) });
    }
    Ok(Content { size, pieces })
}

/// The root of a snapshot: what it holds in all, and its sections in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Root {
    pub(crate) entries: u64,
    /// Of regular files, holes left out.
    pub(crate) bytes: u64,
    pub(crate) sections: Vec<Section>,
    /// Objects of which so little is used that the next snapshot should read their files anew.
    pub(crate) worn: Vec<ObjectId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) id: ObjectId,
    /// The path of its first entry.
    pub(crate) first: Vec<u8>,
}

impl Root {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = ROOT_MAGIC.to_vec();
        put_number(&mut bytes, VERSION);
        put_number(&mut bytes, self.entries);
        put_number(&mut bytes, self.bytes);
        put_number(&mut bytes, self.sections.len() as u64);
        for section in &self.sections {
            bytes.extend_from_slice(section.id.as_bytes());
            put_bytes(&mut bytes, &section.first);
        }
        put_number(&mut bytes, self.worn.len() as u64);
        for worn in &self.worn {
            bytes.extend_from_slice(worn.as_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor { bytes, at: 0 };
        if cursor.take(4)? != ROOT_MAGIC || cursor.number()? != VERSION {
            return Err(Malformed);
        }
        let (entries, total, count) = (cursor.number()?, cursor.number()?, cursor.number()?);
        let mut sections = Vec::new();
        for _ in 0..count {
            let id = ObjectId::from_bytes(cursor.hash()?);
            sections.push(Section { id, first: cursor.slice()?.to_vec() });
        }
        let mut worn = Vec::new();
        for _ in 0..cursor.number()? {
            worn.push(ObjectId::from_bytes(cursor.hash()?));
        }
        if cursor.at_end() { Ok(Self { entries, bytes: total, sections, worn }) } else { Err(Malformed) }
    }
}
