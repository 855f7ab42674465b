//! Copies of the whole store: made beside a running server, from one snapshot; restored only into an empty folder
//! and only when they verify. Both work in a folder with another name and rename at the end, so that a backup that
//! exists is a whole one.

use crate::{
    BackupError, OpenError, audit,
    blobs::{self, BLOBS_FOLDER, hex, sync_folder},
    journal::take_lock,
    store::sqlite::schema::{self, DATABASE_FILE},
};
use rusqlite::{Connection, backup::Backup};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// Database pages copied between two reports of progress.
const PAGES_PER_STEP: i32 = 1_024;
/// Attempts at a snapshot whose blobs are all still there when they are copied.
const ATTEMPTS: usize = 3;
/// Blob addresses fetched at a time.
const ADDRESSES: i64 = 1_000;

/// How far a backup or a restore is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Checking the copy's chains before it is used.
    Verified { events: u64 },
    /// Copying the database.
    Pages { done: u64, total: u64 },
    /// Copying large bodies.
    Blobs { done: u64, total: u64 },
}

/// Copies the store in `dir` to the new folder `to`, while a server may be writing.
pub fn backup(dir: &Path, to: &Path, progress: &mut dyn FnMut(Progress)) -> Result<(), BackupError> {
    if to.exists() {
        return Err(BackupError::Exists { path: to.to_owned() });
    }
    let mut attempt = 1;
    loop {
        let partial = Partial::beside(to)?;
        match copy(dir, partial.path(), progress) {
            Ok(()) => return partial.rename(to),
            // A session was removed after the snapshot, and its blobs with it: a newer snapshot knows that.
            Err(BackupError::BlobMissing { .. }) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Brings a backup back into the data folder `dir`, which must be empty of data and not in use.
pub fn restore(from: &Path, dir: &Path, progress: &mut dyn FnMut(Progress)) -> Result<(), BackupError> {
    let from_file = from.join(DATABASE_FILE);
    if !from_file.exists() {
        return Err(OpenError::Missing { dir: from.to_owned() }.into());
    }
    fs::create_dir_all(dir).map_err(|error| failed(dir, &error))?;
    let _lock = take_lock(dir)?;
    let holds_blobs = fs::read_dir(dir.join(BLOBS_FOLDER)).is_ok_and(|mut files| files.next().is_some());
    if dir.join(DATABASE_FILE).exists() || holds_blobs {
        return Err(BackupError::HoldsData { dir: dir.to_owned() });
    }
    let report =
        audit::verify(from, None, &mut |audit| progress(Progress::Verified { events: audit.events }))?;
    if let Some(first) = report.breaks.first() {
        return Err(BackupError::Broken { first: first.to_string() });
    }
    let partial = Partial::beside(&dir.join(DATABASE_FILE))?;
    copy(from, partial.path(), progress)?;
    // The database comes last: until it is there, the folder holds no store.
    let blobs = dir.join(BLOBS_FOLDER);
    if blobs.exists() {
        fs::remove_dir(&blobs).map_err(|error| failed(&blobs, &error))?;
    }
    for name in [BLOBS_FOLDER, DATABASE_FILE] {
        let target = dir.join(name);
        fs::rename(partial.path().join(name), &target).map_err(|error| failed(&target, &error))?;
        sync_folder(dir).map_err(|error| failed(dir, &error))?;
    }
    Ok(())
}

/// The snapshots that the store in `dir`, a data folder or a backup, needs. Their objects are not the journal's:
/// whoever copies a store copies them too.
pub fn snapshots_in(dir: &Path) -> Result<Vec<String>, BackupError> {
    let db = schema::open_read_only(dir)?;
    let broken =
        |error: rusqlite::Error| BackupError::Open(schema::open_error(&dir.join(DATABASE_FILE), &error));
    if !schema::has_sandboxes(&db).map_err(broken)? {
        return Ok(Vec::new());
    }
    let mut select =
        db.prepare("SELECT DISTINCT snapshot FROM sandboxes WHERE snapshot IS NOT NULL").map_err(broken)?;
    let found = select.query_map([], |row| row.get(0)).and_then(Iterator::collect);
    found.map_err(broken)
}

fn failed(path: &Path, error: &io::Error) -> BackupError {
    BackupError::Io { path: path.to_owned(), reason: error.to_string() }
}

/// A folder that is removed unless it gets its real name.
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn beside(target: &Path) -> Result<Self, BackupError> {
        let target = std::path::absolute(target).map_err(|error| failed(target, &error))?;
        let name = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let path = target.with_file_name(format!(".{name}.partial-{}", std::process::id()));
        if path.exists() {
            fs::remove_dir_all(&path).map_err(|error| failed(&path, &error))?;
        }
        fs::create_dir_all(path.join(BLOBS_FOLDER)).map_err(|error| failed(&path, &error))?;
        Ok(Self { path })
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn rename(self, to: &Path) -> Result<(), BackupError> {
        fs::rename(&self.path, to).map_err(|error| failed(to, &error))?;
        let parent = self.path.parent().unwrap_or(&self.path);
        sync_folder(parent).map_err(|error| failed(parent, &error))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.path.display(), "a half-made copy cannot be removed");
        }
    }
}

/// Database and blobs of one snapshot, synced.
fn copy(dir: &Path, to: &Path, progress: &mut dyn FnMut(Progress)) -> Result<(), BackupError> {
    let target = to.join(DATABASE_FILE);
    copy_database(dir, &target, progress)?;
    copy_blobs(dir, to, &target, progress)?;
    for folder in [&target, &to.join(BLOBS_FOLDER), to] {
        sync_folder(folder).map_err(|error| failed(folder, &error))?;
    }
    Ok(())
}

fn copy_database(dir: &Path, target: &Path, progress: &mut dyn FnMut(Progress)) -> Result<(), BackupError> {
    let source = schema::open_read_only(dir)?;
    let broken =
        |error: rusqlite::Error| BackupError::Open(schema::open_error(&dir.join(DATABASE_FILE), &error));
    // Held until the copy is done: every step sees the same snapshot, whatever the server writes.
    let snapshot = source.unchecked_transaction().map_err(broken)?;
    let mut copy = Connection::open(target).map_err(broken)?;
    snapshot.query_row("SELECT count(*) FROM meta", [], |_| Ok(())).map_err(broken)?;
    let backup = Backup::new(&snapshot, &mut copy).map_err(broken)?;
    loop {
        let step = backup.step(PAGES_PER_STEP).map_err(broken)?;
        let pages = backup.progress();
        let total = u64::try_from(pages.pagecount).unwrap_or(0);
        let left = u64::try_from(pages.remaining).unwrap_or(0);
        progress(Progress::Pages { done: total - left, total });
        match step {
            rusqlite::backup::StepResult::Done => break,
            rusqlite::backup::StepResult::More => {}
            _ => std::thread::yield_now(),
        }
    }
    drop(backup);
    drop(snapshot);
    // One file, without a log beside it: a backup may lie on a disk that nobody can write to.
    copy.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(())).map_err(broken)?;
    copy.close().map_err(|(_, error)| broken(error))
}

fn copy_blobs(
    dir: &Path,
    to: &Path,
    database: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), BackupError> {
    let broken = |error: rusqlite::Error| BackupError::Open(schema::open_error(database, &error));
    let db = Connection::open(database).map_err(broken)?;
    let total: i64 =
        db.query_row("SELECT count(DISTINCT hash) FROM blob_refs", [], |row| row.get(0)).map_err(broken)?;
    let total = u64::try_from(total).unwrap_or(0);
    let mut done = 0;
    let mut after: Vec<u8> = Vec::new();
    loop {
        let addresses = db
            .prepare_cached("SELECT DISTINCT hash FROM blob_refs WHERE hash > ?1 ORDER BY hash LIMIT ?2")
            .and_then(|mut select| {
                select
                    .query_map(rusqlite::params![after, ADDRESSES], |row| row.get::<_, Vec<u8>>(0))?
                    .collect::<rusqlite::Result<Vec<_>>>()
            })
            .map_err(broken)?;
        let Some(last) = addresses.last() else { return Ok(()) };
        after.clone_from(last);
        for address in &addresses {
            copy_blob(dir, to, address)?;
            done += 1;
            progress(Progress::Blobs { done, total });
        }
    }
}

fn copy_blob(dir: &Path, to: &Path, address: &[u8]) -> Result<(), BackupError> {
    let (source, target) = (blobs::path_in(dir, address), blobs::path_in(to, address));
    let folder = target.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let copied = fs::copy(&source, &target);
    if let Err(error) = &copied
        && error.kind() == io::ErrorKind::NotFound
    {
        return Err(BackupError::BlobMissing { dir: dir.to_owned(), address: hex(address) });
    }
    copied
        .and_then(|_| File::open(&target)?.sync_all())
        .and_then(|()| sync_folder(folder))
        .map_err(|error| failed(&target, &error))
}
