//! Keeps the write-ahead log short without making a commit wait, and lets it be written over instead of growing.
//!
//! A file that grows has its new length written with every sync, and with that whatever else the file system has in
//! its own log: a commit then costs 1.5 to 15 times one that only overwrites. So the log is laid out in zeros when the
//! store is opened, which SQLite takes for the end of the log, and is not truncated as long as it stays small.
//!
//! A thread with a connection of its own copies the log into the database file as it grows (PASSIVE: it blocks
//! nobody). Under unbroken load that alone never lets the log begin anew, so when the thread has just copied nearly
//! all of it the writer, between two commits, copies the little that is left. Past a hard bound it does so however
//! much is left. A reader that pins the log (a backup) puts that off; the bound then moves on, and nobody waits for
//! the reader.

use super::{BUSY, schema::PAGE_BYTES, wal_path};
use crate::{
    faults::{self, Faults},
    lock,
};
use rusqlite::{Connection, ErrorCode, ffi, hooks::Wal};
use std::{
    ffi::c_int,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

/// The thread copies once the log has grown by this much.
const COPY_BYTES: u64 = 4 * 1024 * 1024;
/// What is laid out: that, and what is written while it is copied.
const LAID_BYTES: u64 = COPY_BYTES + 2 * 1024 * 1024;
/// And after this long, so that the end of a burst is copied too.
const COPY_AFTER: Duration = Duration::from_secs(2);
/// The writer copies this much itself to let the log begin anew.
const REST_BYTES: u64 = 1024 * 1024;
/// How often the thread copies at once to leave no more than that.
const PASSES: usize = 5;
/// Past this the writer steps in whatever is left. Also what a start after a crash has to read, so it stays small.
const HARD_BYTES: u64 = 32 * 1024 * 1024;
/// How much further the bound moves when a reader pins the log.
const PUT_OFF_BYTES: u64 = 32 * 1024 * 1024;
/// How long the writer waits at the bound for readers to leave the log.
const PATIENCE: Duration = Duration::from_millis(20);
/// A page in the log, with its header.
const FRAME_BYTES: u64 = PAGE_BYTES.unsigned_abs() + 24;

pub(super) struct Checkpointer {
    wal: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    bound: u64,
}

#[derive(Default)]
struct Shared {
    /// How long the log is. The file's length would not tell: the log begins anew inside it.
    log: AtomicU64,
    state: Mutex<State>,
    wake: Condvar,
    /// Held during any checkpoint: two at once would only refuse each other.
    busy: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Something was committed since the last copy.
    dirty: bool,
    /// How long the log was when it was last looked at by the thread.
    seen: u64,
    /// How much of the log the last copy left in the database; none once the writer has acted upon it.
    copied: Option<u64>,
    stop: bool,
}

impl Checkpointer {
    /// `db` is the writer's connection, and has read something: the log is there.
    pub(super) fn start(path: &Path, db: &mut Connection, faults: Option<Faults>) -> io::Result<Self> {
        let (shared, wal) = (Arc::new(Shared::default()), wal_path(path));
        // Nobody writes yet, so that what follows the log's end is nobody's.
        let laid = lay_out(&wal);
        let counted = shared.clone();
        db.wal_hook(Some(move |_: &mut Wal, pages: c_int| {
            counted.log.store(u64::try_from(pages).unwrap_or(0) * FRAME_BYTES, Relaxed);
            Ok(())
        }))
        .map_err(io::Error::other)?;
        let thread = {
            let (shared, path) = (shared.clone(), path.to_owned());
            std::thread::Builder::new().name("outlast-checkpoint".to_owned()).spawn(move || {
                // Before somebody commits and has to wait for it. If it fails, the commit will tell.
                let _ = laid.and_then(|file| file.sync_data());
                run(&shared, &path, faults.as_ref());
            })?
        };
        Ok(Self { wal, shared, thread: Some(thread), bound: HARD_BYTES })
    }

    /// Tells the thread that the log has changed.
    pub(super) fn committed(&self) {
        let log = self.shared.log.load(Relaxed);
        let mut state = lock(&self.shared.state);
        let was_dirty = std::mem::replace(&mut state.dirty, true);
        if log < state.seen {
            // It began anew by itself, because all of it was copied.
            state.seen = 0;
        }
        let hurry = log.saturating_sub(state.seen) >= COPY_BYTES;
        drop(state);
        if hurry || !was_dirty {
            self.shared.wake.notify_one();
        }
    }

    /// Lets the log begin anew if nearly all of it is copied, or it is past its bound, and nobody is in the way.
    pub(super) fn bound(&mut self, db: &Connection) -> rusqlite::Result<()> {
        let log = self.shared.log.load(Relaxed);
        let copied = lock(&self.shared.state).copied.take();
        let nearly =
            log >= COPY_BYTES && copied.is_some_and(|copied| log.saturating_sub(copied) <= REST_BYTES);
        if !nearly && log < self.bound {
            return Ok(());
        }
        // The thread is copying: it takes work off this one. The next commit looks again.
        let Ok(_busy) = self.shared.busy.try_lock() else { return Ok(()) };
        let large = std::fs::metadata(&self.wal).is_ok_and(|file| file.len() > HARD_BYTES + LAID_BYTES);
        let mode = if large { "TRUNCATE" } else { "RESTART" };
        db.busy_timeout(if nearly { Duration::ZERO } else { PATIENCE })?;
        let result = db.pragma_update_and_check(None, "wal_checkpoint", mode, |row| row.get::<_, i64>(0));
        db.busy_timeout(BUSY)?;
        match result {
            Ok(0) => {
                self.bound = HARD_BYTES;
                self.shared.log.store(0, Relaxed);
                lock(&self.shared.state).seen = 0;
                if large {
                    let _ = lay_out(&self.wal);
                }
            }
            Ok(_) if nearly => {}
            Ok(_) => {
                self.bound = log + PUT_OFF_BYTES;
                tracing::debug!(log, "a reader pins the log; it begins anew later");
            }
            // No room to copy into the database file: the log is as safe as it was.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
                self.bound = log + PUT_OFF_BYTES;
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
    let grown = |state: &State| shared.log.load(Relaxed).saturating_sub(state.seen);
    let early = |state: &mut State| grown(state) < COPY_BYTES && !state.stop;
    let waited = shared.wake.wait_timeout_while(state, COPY_AFTER, early);
    state = waited.unwrap_or_else(PoisonError::into_inner).0;
    state.dirty = false;
    state.seen = shared.log.load(Relaxed);
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
    let mut before = 0;
    for _ in 0..PASSES {
        let busy = lock(&shared.busy);
        let frames: i64 = db.pragma_update_and_check(None, "wal_checkpoint", "PASSIVE", |row| row.get(2))?;
        drop(busy);
        let copied = u64::try_from(frames).unwrap_or(0) * FRAME_BYTES;
        lock(&shared.state).copied = Some(copied);
        // What was committed meanwhile is less each time, unless a reader is in the way.
        if shared.log.load(Relaxed).saturating_sub(copied) <= REST_BYTES || copied <= before {
            break;
        }
        before = copied;
    }
    Ok(())
}

/// Writes zeros from the end of the log's file on. Where there is no room for all of them there are none, and the log
/// grows as it is written. SQLite locks other files than this one, so that closing it here lets go of no lock.
fn lay_out(wal: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).open(wal)?;
    let end = file.metadata()?.len();
    if let Err(error) = fill(&file, end) {
        file.set_len(end)?;
        return Err(error);
    }
    Ok(file)
}

fn fill(file: &File, from: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    let mut at = from;
    while at < LAID_BYTES {
        let piece = usize::try_from(LAID_BYTES - at).unwrap_or(ZEROS.len()).min(ZEROS.len());
        file.write_all_at(&ZEROS[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

fn is_sync_failure(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}
