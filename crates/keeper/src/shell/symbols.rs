//! Where a program keeps its named variables: the dynamic symbols of an ELF file, of which bash exports all that its
//! loadable builtins may use.

use rustix::{
    fd::{AsFd, BorrowedFd},
    io::Errno,
};

const HEAD: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;
const DYNSYM: u32 = 11;
/// A table above this is not a shell's.
const TABLE_BYTES: u64 = 4 * 1024 * 1024;
const SECTIONS: u16 = 256;
/// The file's type when it is loaded at any address.
const MOVABLE: u16 = 3;

/// The file's addresses of the names, in their order, and whether they are relative to where it is loaded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Symbols<const N: usize> {
    pub(crate) addresses: [u64; N],
    pub(crate) relative: bool,
}

/// None for what is no 64-bit little-endian ELF file or misses one of the names.
pub(crate) fn find<const N: usize>(file: impl AsFd, names: [&str; N]) -> Option<Symbols<N>> {
    let file = file.as_fd();
    let head = part(file, 0, HEAD as u64)?;
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let relative = half(&head, 16)? == MOVABLE;
    let (at, size, count) = (long(&head, 40)?, half(&head, 58)?, half(&head, 60)?.min(SECTIONS));
    if usize::from(size) != SECTION {
        return None;
    }
    let sections = part(file, at, u64::from(count) * SECTION as u64)?;
    let section = |index: usize| sections.get(index * SECTION..(index + 1) * SECTION);
    let dynsym = (0..usize::from(count)).filter_map(section).find(|each| word(each, 4) == Some(DYNSYM))?;
    let strings = section(usize::try_from(word(dynsym, 40)?).ok()?)?;
    let table = part(file, long(dynsym, 24)?, long(dynsym, 32)?)?;
    let strings = part(file, long(strings, 24)?, long(strings, 32)?)?;
    let mut addresses = [0; N];
    for symbol in table.chunks_exact(SYMBOL) {
        let name = strings.get(usize::try_from(word(symbol, 0)?).ok()?..)?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if let Some(place) = names.iter().position(|wanted| wanted.as_bytes() == name) {
            addresses[place] = long(symbol, 8)?;
        }
    }
    addresses.iter().all(|address| *address != 0).then_some(Symbols { addresses, relative })
}

fn part(file: BorrowedFd<'_>, at: u64, length: u64) -> Option<Vec<u8>> {
    if length > TABLE_BYTES {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pread(file, &mut bytes[done..], at.checked_add(done as u64)?) {
            Ok(0) => return None,
            Ok(length) => done += length,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(bytes)
}

pub(crate) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_program_has_no_symbols() {
        let dir = tempfile::tempdir().unwrap();
        let open = |bytes: &[u8]| {
            let path = dir.path().join("file");
            std::fs::write(&path, bytes).unwrap();
            std::fs::File::open(path).unwrap()
        };
        assert_eq!(find(open(b""), ["x"]), None);
        assert_eq!(find(open(b"#!/bin/sh\n"), ["x"]), None);
        assert_eq!(find(open(&[b"\x7fELF\x02\x01".as_slice(), &[255; 200]].concat()), ["x"]), None);
        let this = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(find(this, ["no_such_symbol_anywhere"]), None);
    }
}
