//! Texts that belong to an event and are too large to be its body: written piece by piece to a draft, which becomes a
//! blob when it is whole. An event names one, keeps it for as long as it is kept itself, and takes it along.
//!
//! Writing blocks, on whatever thread the caller has for that; nothing here holds more of a text than one piece.

use crate::blobs::{Address, Blobs, hex, path_in, sync_folder};
use crate::lock;
use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where texts are until they are whole; what is in it when the store is opened belongs to nobody.
const DRAFTS: &str = "drafts";

/// A text on its way to the disk. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct Draft {
    blobs: Arc<Blobs>,
    file: File,
    path: PathBuf,
    bytes: u64,
}

/// A text that is safe on disk, for as long as this is held or an event names it.
#[derive(Debug, Clone)]
pub struct Attachment {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    blobs: Arc<Blobs>,
    address: Address,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.blobs.unpin(&self.address);
    }
}

impl Attachment {
    /// What the text is found again by.
    pub fn name(&self) -> String {
        hex(&self.held.address)
    }

    pub fn bytes(&self) -> u64 {
        self.held.bytes
    }

    pub(crate) fn address(&self) -> &Address {
        &self.held.address
    }
}

impl Draft {
    pub(crate) fn new(blobs: Arc<Blobs>) -> io::Result<Self> {
        let folder = blobs.dir().join(DRAFTS);
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}.tmp", blobs.number()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        Ok(Self { blobs, file, path, bytes: 0 })
    }

    pub fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_all(piece)?;
        self.bytes += piece.len() as u64;
        Ok(())
    }

    /// Returns once the text would survive a power cut. Hashed only now: while it is written somebody waits, and now
    /// nobody does.
    pub fn finish(mut self) -> io::Result<Attachment> {
        self.file.sync_data()?;
        self.file.seek(SeekFrom::Start(0))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&mut self.file)?;
        let address = *hasher.finalize().as_bytes();
        self.blobs.pin(address);
        let held = Arc::new(Held { blobs: Arc::clone(&self.blobs), address, bytes: self.bytes });
        let path = path_in(self.blobs.dir(), &address);
        let folder = path.parent().unwrap_or(self.blobs.dir());
        if !folder.is_dir() {
            fs::create_dir_all(folder)?;
            sync_folder(folder.parent().unwrap_or(folder))?;
        }
        // The same text may be there already, and is the same.
        fs::rename(&self.path, &path)?;
        sync_folder(folder)?;
        Ok(Attachment { held })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // One that was finished has another name now.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes what a killed server was writing.
pub(crate) fn clear(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir.join(DRAFTS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Blobs {
    pub(crate) fn pin(&self, address: Address) {
        *lock(self.pins()).entry(address).or_default() += 1;
    }

    /// A part of a blob, as far as there is one.
    pub(crate) fn read_range(&self, address: &Address, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(path_in(self.dir(), address))?;
        file.seek(SeekFrom::Start(offset))?;
        let mut piece = Vec::new();
        file.take(limit as u64).read_to_end(&mut piece)?;
        Ok(piece)
    }
}
