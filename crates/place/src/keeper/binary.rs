//! The keeper's program, carried inside this one and written out once.

use super::KeeperError;
use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Also what is uploaded to another machine.
pub(crate) const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/outlast-keeper"));
/// Read and run, by its owner; nobody writes to a running program.
const MODE: u32 = 0o500;

/// The program's path below `folder`, written first if need be. Its name holds its hash, so that servers of several
/// versions share a folder.
pub(crate) fn written(folder: &Path) -> Result<PathBuf, KeeperError> {
    let failed = KeeperError::io;
    let hash = blake3::hash(BYTES).to_hex();
    let path = folder.join(format!("keeper-{}", &hash.as_str()[..32]));
    if path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == BYTES.len() as u64) {
        return Ok(path);
    }
    fs::create_dir_all(folder).map_err(failed("make the folder for the keeper's program"))?;
    let draft = folder.join(format!(".keeper-{}-{}", std::process::id(), fresh()));
    let made = write(&draft).and_then(|()| fs::rename(&draft, &path));
    if made.is_err() {
        let _ = fs::remove_file(&draft);
    }
    made.map_err(failed("write the keeper's program"))?;
    Ok(path)
}

fn write(path: &Path) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    file.write_all(BYTES)?;
    file.sync_all()
}

fn fresh() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}
