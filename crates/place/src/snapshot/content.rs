//! Reading one file as it is: its pieces, its holes and its extended attributes, from a descriptor that is known
//! to be a regular file. The file may change meanwhile; the caller compares before and after.

use super::{
    SnapshotError, Watch,
    error::path_of,
    manifest::{Content, Piece},
    pack::{PIECE_BYTES, Packer},
};
use rustix::{
    fs::{SeekFrom, Stat},
    io::Errno,
};
use std::os::fd::{AsFd, BorrowedFd};

/// Files smaller than this are read whole, holes and all.
const SPARSE_BYTES: u64 = 64 * 1024;
/// Extended attributes of one file, names and values. Linux allows no more for one list.
const XATTR_BYTES: usize = 64 * 1024;

/// Reads at most the size that `stat` gives, less where the file has become shorter.
pub(crate) fn read(
    file: BorrowedFd<'_>,
    stat: &Stat,
    path: &[u8],
    packer: &mut Packer<'_>,
    watch: &Watch<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Content, SnapshotError> {
    let failed = |error: Errno| SnapshotError::io("read", path_of(path), error);
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(u64::MAX);
    let sparse = size >= SPARSE_BYTES && blocks.saturating_mul(512) < size;
    let mut content = Content::default();
    let mut at = 0;
    while at < size {
        watch.check()?;
        let data = if sparse { next_data(file, at, size).map_err(failed)? } else { at..size };
        if data.start > at {
            content.pieces.push(Piece { length: data.start - at, at: None });
            at = data.start;
        }
        if data.is_empty() {
            break;
        }
        // Cut on the grid of the whole file, so that an edit elsewhere moves no cut.
        let grid = (at / PIECE_BYTES as u64 + 1) * PIECE_BYTES as u64;
        let end = grid.min(data.end);
        let got = fill(file, at, end, buffer).map_err(failed)?;
        if !got.is_empty() {
            content.pieces.push(Piece { length: got.len() as u64, at: Some(packer.add(got)?) });
        }
        let short = got.len() as u64 != end - at;
        at += got.len() as u64;
        if short {
            break;
        }
    }
    content.size = at;
    Ok(content)
}

/// The next stretch of data at or after `at`; empty at `size` when only a hole follows.
fn next_data(file: BorrowedFd<'_>, at: u64, size: u64) -> Result<std::ops::Range<u64>, Errno> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start.min(size),
        Err(Errno::NXIO) => size,
        Err(Errno::INVAL) => return Ok(at..size),
        Err(error) => return Err(error),
    };
    let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => end.clamp(start, size),
        Err(Errno::NXIO) => size,
        Err(error) => return Err(error),
    };
    // A hole that opened between the two calls would leave nothing to read and nothing to skip.
    Ok(if end == start && start < size { start..size } else { start..end })
}

fn fill<'b>(file: BorrowedFd<'_>, at: u64, end: u64, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], Errno> {
    let length = usize::try_from(end - at).unwrap_or(PIECE_BYTES);
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    let mut filled = 0;
    while filled < length {
        let rest = buffer.get_mut(filled..length).unwrap_or_default();
        match rustix::io::pread(file, rest, at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(buffer.get(..filled).unwrap_or_default())
}

/// The `user.*` attributes, sorted. Those of overlay file systems are left out: brought back into a layer, they
/// would mean something else. A file system without attributes has none.
pub(crate) fn xattrs(file: impl AsFd) -> Vec<(Vec<u8>, Vec<u8>)> {
    let file = file.as_fd();
    let mut list = [0u8; 1024];
    let names = match rustix::fs::flistxattr(file, &mut list[..]) {
        Ok(0) => return Vec::new(),
        Ok(length) => list.get(..length).unwrap_or_default().to_vec(),
        Err(Errno::RANGE) => {
            let mut list = vec![0; XATTR_BYTES];
            let length = rustix::fs::flistxattr(file, &mut list[..]).unwrap_or(0);
            list.truncate(length);
            list
        }
        Err(_) => return Vec::new(),
    };
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0) {
        if !name.starts_with(b"user.") || name.starts_with(b"user.overlay.") {
            continue;
        }
        let mut value = vec![0; XATTR_BYTES];
        if let Ok(length) = rustix::fs::fgetxattr(file, name, &mut value[..]) {
            value.truncate(length);
            found.push((name.to_vec(), value));
        }
    }
    found.sort_unstable();
    found
}
