//! Keeps the write-ahead log short without making a commit wait.
//!
//! A thread with a connection of its own copies the log into the database file as it grows (PASSIVE: it blocks
//! nobody). Under unbroken load that alone never lets the log begin anew, so past a hard bound the writer, between
//! two commits, copies the little that is left and truncates it. A reader that pins the log (a backup) puts that
//! off; the bound then moves on, and nobody waits for the reader.

use super::{BUSY, wal_path};
use crate::{
    faults::{self, Faults},
    lock,
};
use rusqlite::{Connection, ErrorCode, ffi};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

/// The thread copies once the log has grown by this much.
const COPY_BYTES: usize = 4 * 1024 * 1024;
/// Whole pages are logged for every body's bytes, and some for every commit.
const PAGES_PER_BYTE: usize = 2;
const COMMIT_OVERHEAD: usize = 32 * 1024;
/// And after this long, so that the end of a burst is copied too.
const COPY_AFTER: Duration = Duration::from_secs(2);
/// Past this the writer steps in. Also what a start after a crash has to read, so it stays small.
const HARD_BYTES: u64 = 32 * 1024 * 1024;
/// How much further the bound moves when a reader pins the log.
const PUT_OFF_BYTES: u64 = 32 * 1024 * 1024;
/// How long the writer waits for readers to leave the log.
const PATIENCE: Duration = Duration::from_millis(20);

pub(super) struct Checkpointer {
    wal: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    bound: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    /// Held during any checkpoint: two at once would only refuse each other.
    busy: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Something was committed since the last copy.
    dirty: bool,
    /// About how much the log has grown since.
    grown: usize,
    stop: bool,
}

impl Checkpointer {
    pub(super) fn start(path: &Path, faults: Option<Faults>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = {
            let (shared, path) = (shared.clone(), path.to_owned());
            std::thread::Builder::new()
                .name("outlast-checkpoint".to_owned())
                .spawn(move || run(&shared, &path, faults.as_ref()))?
        };
        Ok(Self { wal: wal_path(path), shared, thread: Some(thread), bound: HARD_BYTES })
    }

    fn wal_bytes(&self) -> u64 {
        std::fs::metadata(&self.wal).map_or(0, |file| file.len())
    }

    /// Tells the thread that the log has grown. The file's length would not tell: the log begins anew inside it.
    pub(super) fn committed(&self, bytes: usize) {
        let mut state = lock(&self.shared.state);
        let was_dirty = std::mem::replace(&mut state.dirty, true);
        let before = state.grown;
        state.grown += PAGES_PER_BYTE * bytes + COMMIT_OVERHEAD;
        let hurry = before < COPY_BYTES && state.grown >= COPY_BYTES;
        drop(state);
        if hurry || !was_dirty {
            self.shared.wake.notify_one();
        }
    }

    /// Truncates the log if it is past its bound and nobody is in the way.
    pub(super) fn bound(&mut self, db: &Connection) -> rusqlite::Result<()> {
        let bytes = self.wal_bytes();
        if bytes < self.bound {
            return Ok(());
        }
        // The thread is copying: it takes work off this one. The next commit looks again.
        let Ok(_busy) = self.shared.busy.try_lock() else { return Ok(()) };
        db.busy_timeout(PATIENCE)?;
        let result =
            db.pragma_update_and_check(None, "wal_checkpoint", "TRUNCATE", |row| row.get::<_, i64>(0));
        db.busy_timeout(BUSY)?;
        match result {
            Ok(0) => {
                self.bound = HARD_BYTES;
            }
            Ok(_) => {
                self.bound = bytes + PUT_OFF_BYTES;
                tracing::debug!(bytes, "a reader pins the log; it is truncated later");
            }
            // No room to copy into the database file: the log is as safe as it was.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
                self.bound = bytes + PUT_OFF_BYTES;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(super) fn stop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(shared: &Shared, path: &Path, faults: Option<&Faults>) {
    let mut db = None;
    while wait(shared) {
        if let Err(error) = copy(shared, path, &mut db) {
            if is_sync_failure(&error) {
                faults::stop(faults, &format!("a checkpoint cannot be synced: {error}"));
                return;
            }
            // Nothing is lost: the log still holds it all, and the next copy begins where this one stopped.
            tracing::warn!(%error, "the log was not copied into the database");
        }
    }
}

/// Waits for something to copy; false means stop.
fn wait(shared: &Shared) -> bool {
    let mut state = lock(&shared.state);
    while !state.dirty && !state.stop {
        state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    let early = |state: &mut State| state.grown < COPY_BYTES && !state.stop;
    let waited = shared.wake.wait_timeout_while(state, COPY_AFTER, early);
    state = waited.unwrap_or_else(PoisonError::into_inner).0;
    state.dirty = false;
    state.grown = 0;
    !state.stop
}

fn copy(shared: &Shared, path: &Path, db: &mut Option<Connection>) -> rusqlite::Result<()> {
    let db = match db {
        Some(db) => db,
        None => {
            let fresh = super::connect(path)?;
            fresh.pragma_update(None, "cache_size", 0)?;
            fresh.pragma_update(None, "wal_autocheckpoint", 0)?;
            db.insert(fresh)
        }
    };
    let _busy = lock(&shared.busy);
    db.pragma_update_and_check(None, "wal_checkpoint", "PASSIVE", |_| Ok(()))
}

fn is_sync_failure(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}
