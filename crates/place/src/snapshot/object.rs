//! Objects: immutable bytes under the hash of their plain content, and the frame they are stored in.
//!
//! A frame holds the content compressed where that pays, and a checksum of itself, so that any flipped byte is
//! found, also one that decompression would have ignored. The header's layout is the same in every version.

use std::{fmt, str::FromStr};

const MAGIC: &[u8; 3] = b"olo";
const VERSION: u8 = 1;
const RAW: u8 = 0;
const ZSTD: u8 = 1;
const CHECKED: usize = 9;
const HEADER: usize = CHECKED + CHECKSUM;
const CHECKSUM: usize = 16;
/// Level 1 takes a third of the time of level 3 for a few per cent more bytes; pausing is what waits for it.
const LEVEL: i32 = 1;
/// Compression that saves less than one part in this many is not worth undoing.
const WORTHWHILE: usize = 16;
/// No object is larger once unpacked. Contents stay below 2 MiB; only an index with very many pieces is large.
const OBJECT_BYTES: usize = 256 * 1024 * 1024;

/// The BLAKE3 hash of an object's content, which is its name in every store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId([u8; 32]);

impl ObjectId {
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }

    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a snapshot or object is named by 64 hexadecimal digits")]
pub struct NotAnId;

impl FromStr for ObjectId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        // One spelling for one id: file names and journal entries are compared as text.
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(NotAnId);
        }
        blake3::Hash::from_hex(text).map(|hash| Self(*hash.as_bytes())).map_err(|_| NotAnId)
    }
}

/// A snapshot's name: the hash of its root, and so of everything in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub(crate) ObjectId);

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for SnapshotId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        text.parse().map(Self)
    }
}

/// Why stored bytes are not the object they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsound {
    Damaged,
    /// Whole, but written by a version that this one does not know.
    Newer(u8),
}

/// Frames contents. Keeps its buffers, so one serves a whole snapshot.
pub(crate) struct Sealer(Option<zstd::bulk::Compressor<'static>>);

impl Sealer {
    pub(crate) fn new() -> Self {
        Self(zstd::bulk::Compressor::new(LEVEL).ok())
    }

    pub(crate) fn seal(&mut self, content: &[u8]) -> Vec<u8> {
        let packed = self.0.as_mut().and_then(|zstd| zstd.compress(content).ok());
        let (codec, payload) = match &packed {
            Some(packed) if packed.len() + content.len() / WORTHWHILE < content.len() => (ZSTD, &packed[..]),
            _ => (RAW, content),
        };
        let mut frame = Vec::with_capacity(HEADER + payload.len());
        frame.extend_from_slice(MAGIC);
        frame.push(VERSION);
        frame.push(codec);
        frame.extend_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
        let checksum = checksum(&frame, payload);
        frame.extend_from_slice(&checksum);
        frame.extend_from_slice(payload);
        frame
    }
}

/// Takes the content out of its frame, checking the frame and then the content's name.
pub(crate) fn unseal(id: &ObjectId, mut frame: Vec<u8>) -> Result<Vec<u8>, Unsound> {
    let (header, payload) = frame.split_at_checked(HEADER).ok_or(Unsound::Damaged)?;
    let (checked, sum) = header.split_at_checked(CHECKED).ok_or(Unsound::Damaged)?;
    if sum != checksum(checked, payload) || !checked.starts_with(MAGIC) {
        return Err(Unsound::Damaged);
    }
    let &[_, _, _, version, codec, a, b, c, d] = checked else { return Err(Unsound::Damaged) };
    if version > VERSION {
        return Err(Unsound::Newer(version));
    }
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > OBJECT_BYTES {
        return Err(Unsound::Damaged);
    }
    let content = match codec {
        RAW => {
            frame.drain(..HEADER);
            frame
        }
        ZSTD => zstd::bulk::decompress(payload, length).map_err(|_| Unsound::Damaged)?,
        _ => return Err(Unsound::Damaged),
    };
    if content.len() == length && ObjectId::of(&content) == *id { Ok(content) } else { Err(Unsound::Damaged) }
}

fn checksum(header: &[u8], payload: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(payload);
    let mut sum = [0; CHECKSUM];
    hasher.finalize_xof().fill(&mut sum);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_frame_is_found() {
        let text = b"the same words again, the same words again, the same words again".repeat(4);
        let noise: Vec<u8> = (0..200u32).map(|n| blake3::hash(&n.to_le_bytes()).as_bytes()[0]).collect();
        for content in [text, noise, Vec::new()] {
            let id = ObjectId::of(&content);
            let frame = Sealer::new().seal(&content);
            assert_eq!(unseal(&id, frame.clone()), Ok(content));
            for bit in 0..frame.len() * 8 {
                let mut bad = frame.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(unseal(&id, bad), Err(Unsound::Damaged), "bit {bit}");
            }
            for end in 0..frame.len() {
                assert_eq!(unseal(&id, frame[..end].to_vec()), Err(Unsound::Damaged), "cut at {end}");
            }
        }
    }

    #[test]
    fn a_whole_object_of_a_later_version_is_not_called_damaged() {
        let mut frame = Sealer::new().seal(b"later");
        frame[3] = VERSION + 1;
        let sum = checksum(&frame[..CHECKED], &frame[HEADER..]);
        frame[CHECKED..HEADER].copy_from_slice(&sum);
        assert_eq!(unseal(&ObjectId::of(b"later"), frame), Err(Unsound::Newer(VERSION + 1)));
    }

    #[test]
    fn ids_have_one_spelling() {
        let id = ObjectId::of(b"x");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "12", &id.to_string().to_uppercase(), &format!("{id}0"), "g".repeat(64).as_str()] {
            assert_eq!(bad.parse::<SnapshotId>(), Err(NotAnId), "{bad}");
        }
    }
}
