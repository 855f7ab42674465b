//! A stream's bytes between the moment they came and the moment they are no longer needed.
//!
//! A few are held as they are, and most commands never say more; then an unlinked file holds them, so that the keeper's
//! memory stays small and nothing is left when it ends. Where the disk takes no more they are held in memory: a command that says something on a full disk must come to its end. Offsets
//! count the stream's bytes from zero for ever; the file starts over whenever everything in it is forgotten, and
//! gives its front back to the disk while it is not.

use rustix::{
    fd::{BorrowedFd, OwnedFd},
    fs::{FallocateFlags, MemfdFlags, Mode, OFlags},
    io::Errno,
};

/// Forgotten bytes are given back in pieces of this size, or all at once.
const GIVE_BACK: u64 = 1024 * 1024;
/// Held without a file.
const FEW_BYTES: usize = 16 * 1024;
/// Moved at once when the disk is full.
const COPY_BYTES: usize = 64 * 1024;
/// Temporary names that are tried on a file system without unnamed files.
const NAMES: u32 = 64;

/// Between `start` (forgotten before it) and `end`, at most `limit` bytes.
#[derive(Debug)]
pub(crate) struct Spool {
    /// All there is, while there is no file.
    few: Vec<u8>,
    file: Option<OwnedFd>,
    store: Store,
    /// The stream's offset of the first byte of the file, or of the few.
    base: u64,
    given_back: u64,
    start: u64,
    end: u64,
    limit: u64,
}

/// What the file is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    Disk,
    Memory,
}

impl Spool {
    /// The file is made when it is needed.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            few: Vec::new(),
            file: None,
            store: Store::Disk,
            base: 0,
            given_back: 0,
            start: 0,
            end: 0,
            limit,
        }
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn room(&self) -> usize {
        usize::try_from(self.limit - (self.end - self.start)).unwrap_or(usize::MAX)
    }

    /// Adds bytes at the end, as many as are taken, and says how many.
    pub(crate) fn append(&mut self, folder: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
        if self.file.is_none() {
            if self.few.len() + bytes.len() <= FEW_BYTES {
                self.few.extend_from_slice(bytes);
                self.end += bytes.len() as u64;
                return Ok(bytes.len());
            }
            match unnamed(folder).and_then(|file| write_first(&file, &self.few).map(|()| file)) {
                Ok(file) => self.file = Some(file),
                Err(_) => self.move_to_memory()?,
            }
            self.few = Vec::new();
        }
        let mut written = 0;
        while written < bytes.len() {
            let file = self.file.as_ref().ok_or(Errno::BADF)?;
            match rustix::io::pwrite(file, &bytes[written..], self.end - self.base) {
                Err(Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::FBIG) if self.store == Store::Disk => {
                    self.move_to_memory()?;
                }
                Ok(0) => break,
                Ok(length) => {
                    written += length;
                    self.end += length as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) if written == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(written)
    }

    /// Goes on in memory, which the limit bounds as well, with what is not forgotten yet.
    fn move_to_memory(&mut self) -> Result<(), Errno> {
        let memory = rustix::fs::memfd_create(c"spool", MemfdFlags::CLOEXEC)?;
        let mut at = self.start;
        let mut piece = Vec::new();
        while at < self.end {
            piece.clear();
            if self.read(at, COPY_BYTES, &mut piece)? == 0 {
                return Err(Errno::IO);
            }
            let mut rest = piece.as_slice();
            while !rest.is_empty() {
                let length = rustix::io::pwrite(&memory, rest, at - self.base)?;
                at += length as u64;
                rest = &rest[length..];
            }
        }
        (self.file, self.store) = (Some(memory), Store::Memory);
        Ok(())
    }

    /// Takes back what was appended after `end`, which nobody has read.
    pub(crate) fn rewind(&mut self, end: u64) {
        self.end = self.end.min(end.max(self.start));
        self.few.truncate(usize::try_from(self.end - self.base).unwrap_or(usize::MAX));
    }

    /// Adds up to `length` bytes from `offset` on to `to`.
    pub(crate) fn read(&self, offset: u64, length: usize, to: &mut Vec<u8>) -> Result<usize, Errno> {
        let there = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX).min(length);
        if offset < self.start || there == 0 {
            return Ok(0);
        }
        let Some(file) = &self.file else {
            let from = usize::try_from(offset - self.base).unwrap_or(usize::MAX);
            let few = self.few.get(from..).unwrap_or_default();
            let few = &few[..there.min(few.len())];
            to.extend_from_slice(few);
            return Ok(few.len());
        };
        let before = to.len();
        to.resize(before + there, 0);
        loop {
            match rustix::io::pread(file, &mut to[before..], offset - self.base) {
                Err(Errno::INTR) => {}
                Err(error) => {
                    to.truncate(before);
                    return Err(error);
                }
                Ok(length) => {
                    to.truncate(before + length);
                    return Ok(length);
                }
            }
        }
    }

    /// Everything below `upto` is no longer needed.
    pub(crate) fn forget(&mut self, upto: u64) {
        self.start = upto.clamp(self.start, self.end);
        let Some(file) = &self.file else {
            if self.start == self.end {
                self.few.clear();
                (self.base, self.given_back) = (self.end, self.end);
            }
            return;
        };
        if self.start == self.end {
            // What cannot be given back now is written over.
            if self.end - self.base > GIVE_BACK {
                let _ = rustix::fs::ftruncate(file, 0);
            }
            self.base = self.end;
            self.given_back = self.end;
        } else if self.start - self.given_back >= GIVE_BACK {
            let (from, length) = (self.given_back - self.base, self.start - self.given_back);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A file system without holes keeps the bytes until all are forgotten.
            let _ = rustix::fs::fallocate(file, hole, from, length);
            self.given_back = self.start;
        }
    }
}

/// Writes all of it at the file's beginning.
fn write_first(file: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::pwrite(file, &bytes[written..], written as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(length) => written += length,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn unnamed(folder: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    match rustix::fs::openat(folder, c".", flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
        done => return done,
    }
    for number in 0..NAMES {
        let name = format!(".spool-{}-{number}", std::process::id());
        match rustix::fs::openat(folder, &name, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Ok(file) => {
                rustix::fs::unlinkat(folder, &name, rustix::fs::AtFlags::empty())?;
                return Ok(file);
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::EXIST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fd::AsFd;

    #[derive(Debug, Clone)]
    enum Step {
        Append(Vec<u8>),
        Forget(u64),
        Rewind(u64),
        Read(u64, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..4000).prop_map(Step::Append),
            (0_u64..3000).prop_map(Step::Forget),
            (0_u64..500).prop_map(Step::Rewind),
            (0_u64..3000, 0_usize..3000).prop_map(|(back, length)| Step::Read(back, length)),
        ]
    }

    proptest! {
        #[test]
        fn a_spool_is_a_window_on_the_whole_stream(steps in prop::collection::vec(step(), 1..60)) {
            let dir = tempfile::tempdir().unwrap();
            let folder = std::fs::File::open(dir.path()).unwrap();
            let mut spool = Spool::new(1 << 20);
            let mut whole: Vec<u8> = Vec::new();
            let mut start = 0_u64;
            for step in steps {
                match step {
                    Step::Append(bytes) => {
                        prop_assert_eq!(spool.append(folder.as_fd(), &bytes).unwrap(), bytes.len());
                        whole.extend(bytes);
                    }
                    Step::Forget(by) => {
                        start = (start + by).min(whole.len() as u64);
                        spool.forget(start);
                    }
                    Step::Rewind(by) => {
                        let end = (whole.len() as u64).saturating_sub(by).max(start);
                        spool.rewind(end);
                        whole.truncate(usize::try_from(end).unwrap());
                    }
                    Step::Read(back, length) => {
                        let offset = (whole.len() as u64).saturating_sub(back);
                        let mut read = Vec::new();
                        spool.read(offset, length, &mut read).unwrap();
                        if offset >= start {
                            let from = usize::try_from(offset).unwrap();
                            prop_assert_eq!(&read[..], &whole[from..(from + length).min(whole.len())]);
                        } else {
                            prop_assert!(read.is_empty());
                        }
                    }
                }
                prop_assert_eq!((spool.start(), spool.end()), (start, whole.len() as u64));
            }
        }
    }

    #[test]
    fn what_the_disk_does_not_take_is_held_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let folder = std::fs::File::open(dir.path()).unwrap();
        let mut spool = Spool::new(16 << 20);
        let block: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
        spool.append(folder.as_fd(), &block).unwrap();
        spool.forget(1000);
        // A file that nothing can be written to, as on a full disk.
        let full = std::fs::File::options().read(true).write(true).open("/dev/full").unwrap();
        let mut there = Vec::new();
        spool.read(1000, block.len(), &mut there).unwrap();
        assert_eq!(there, block[1000..]);
        let mut fresh = Spool { file: Some(full.into()), ..Spool::new(1 << 20) };
        assert_eq!(fresh.append(folder.as_fd(), b"said"), Ok(4));
        spool.move_to_memory().unwrap();
        assert_eq!(spool.append(folder.as_fd(), b"more"), Ok(4));
        for (spool, from, wanted) in
            [(&spool, 1000, [&block[1000..], b"more"].concat()), (&fresh, 0, b"said".to_vec())]
        {
            let mut read = Vec::new();
            spool.read(from, 1 << 20, &mut read).unwrap();
            assert!(read == wanted && spool.store == Store::Memory);
        }
    }

    #[test]
    fn forgotten_bytes_leave_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let folder = std::fs::File::open(dir.path()).unwrap();
        let mut spool = Spool::new(16 << 20);
        let block = vec![7; 1 << 20];
        for _ in 0..8 {
            spool.append(folder.as_fd(), &block).unwrap();
        }
        assert_eq!(spool.room(), 8 << 20);
        let blocks = |spool: &Spool| rustix::fs::fstat(spool.file.as_ref().unwrap()).unwrap().st_blocks;
        let before = blocks(&spool);
        spool.forget(6 << 20);
        assert!(blocks(&spool) < before / 2);
        spool.forget(8 << 20);
        assert_eq!(blocks(&spool), 0);
        assert_eq!(spool.room(), 16 << 20);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no name is left");
    }
}
