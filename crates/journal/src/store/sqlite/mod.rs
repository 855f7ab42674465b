//! The embedded store: SQLite in WAL mode, `synchronous=FULL`.
//!
//! One connection writes, on the committer's thread; a few read. A third kind copies the log into the database
//! file (a checkpoint) on a thread of its own, so that a commit never waits for it. The writer itself copies,
//! between two commits, only the little that the thread left, which lets the log begin anew, or what is past a hard bound.

mod changes;
mod checkpoint;
mod events;
pub(crate) mod read;
pub(crate) mod schema;
mod sessions;
mod tables;

pub(crate) use read::SqliteReader;
pub(crate) use sessions::FIRST_EPOCH;

use crate::{
    OpenError, WriteError,
    blobs::Address,
    faults::{Fault, Faults},
    lanes::Commit,
    requests::Outcome,
    space::Gauge,
    store::{Store, StoreError, Upkeep, Verdict, Verdicts},
};
use checkpoint::Checkpointer;
use protocol::{Tenant, UsageSums};
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi, params};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// How long a connection waits for a lock before it says busy.
pub(crate) const BUSY: Duration = Duration::from_secs(5);
/// Statements kept prepared; more than there are.
const STATEMENTS: usize = 96;
/// The writer's page cache, in KiB: the hot ends of tables and indexes.
const WRITER_CACHE_KIB: i64 = 8 * 1024;
/// Tenants whose key is remembered; past this the memory starts afresh.
const TENANTS_REMEMBERED: usize = 10_000;

pub(crate) struct SqliteStore {
    db: Connection,
    tenants: HashMap<Tenant, i64>,
    checkpointer: Checkpointer,
    gauge: Arc<Gauge>,
    faults: Option<Faults>,
    /// Removed sessions still have events.
    removals: bool,
}

/// Why an attempt to commit was given up.
enum Attempt {
    /// Part `index` broke a rule: leave it out and try again.
    Refused(Part, String),
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Attempt {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Share(usize),
    Request(usize),
}

/// What is added up over a commit and written once.
#[derive(Default)]
struct Tally {
    usage: HashMap<i64, Usage>,
    orphans: Vec<Address>,
}

#[derive(Default, Clone, Copy)]
struct Usage {
    sessions: i64,
    events: i64,
    bytes: i64,
    used: UsageSums,
}

impl SqliteStore {
    pub(crate) fn open(dir: &Path, gauge: Arc<Gauge>, faults: Option<Faults>) -> Result<Self, OpenError> {
        schema::create_if_missing(dir)?;
        let path = dir.join(schema::DATABASE_FILE);
        let failed = |error: rusqlite::Error| schema::open_error(&path, &error);
        let mut db = connect(&path).map_err(failed)?;
        schema::check(&mut db, &path, schema::MayMigrate::Yes)?;
        let mode: String =
            db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(failed)?;
        if !mode.eq_ignore_ascii_case("wal") {
            return Err(OpenError::Io { path, reason: format!("the file system allows no WAL ({mode})") });
        }
        db.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;
        let removals =
            db.query_row("SELECT EXISTS (SELECT 1 FROM removals)", [], |row| row.get(0)).map_err(failed)?;
        let checkpointer = Checkpointer::start(&path, &mut db, faults.clone())
            .map_err(|error| OpenError::io(&path, &error))?;
        Ok(Self { db, tenants: HashMap::new(), checkpointer, gauge, faults, removals })
    }

    fn attempt(&mut self, commit: &Commit, left_out: &[(Part, String)]) -> Result<Verdicts, Attempt> {
        self.db.execute_batch("BEGIN IMMEDIATE")?;
        let mut tally = Tally::default();
        let mut verdicts = Verdicts::default();
        let reason = |part: Part| left_out.iter().find(|(out, _)| *out == part).map(|(_, why)| why.clone());
        for (index, share) in commit.shares.iter().enumerate() {
            let part = Part::Share(index);
            let verdict = match reason(part) {
                Some(why) if is_name_taken(&why) => Verdict::Conflict,
                Some(why) => Verdict::Refused(why),
                None => self.share(share, &mut tally).map_err(|error| blame(part, error))?,
            };
            verdicts.shares.push(verdict);
        }
        for (index, request) in commit.requests.iter().enumerate() {
            let part = Part::Request(index);
            let result = match reason(part) {
                Some(_) => Err(WriteError::Conflict),
                None => self.change(&request.change, &mut tally).map_err(|error| blame(part, error))?,
            };
            verdicts.requests.push(result);
        }
        self.settle(&tally)?;
        self.db.execute_batch("COMMIT")?;
        verdicts.orphans = tally.orphans;
        Ok(verdicts)
    }

    fn settle(&self, tally: &Tally) -> rusqlite::Result<()> {
        let mut update = self.db.prepare_cached(
            "UPDATE tenants SET sessions = sessions + ?2, events = events + ?3, bytes = bytes + ?4 WHERE no = ?1",
        )?;
        for (tenant, usage) in &tally.usage {
            update.execute((tenant, usage.sessions, usage.events, usage.bytes))?;
            if !usage.used.is_empty() {
                self.add_used(*tenant, &usage.used)?;
            }
        }
        Ok(())
    }

    /// Rare beside events: once for each turn's end. A sum that is full stays so, and never overflows a column.
    fn add_used(&self, tenant: i64, used: &UsageSums) -> rusqlite::Result<()> {
        let mut update = self.db.prepare_cached(
            "UPDATE tenants SET used_turns = min(used_turns + ?2, ?10),
                 used_untold_turns = min(used_untold_turns + ?3, ?10), used_input = min(used_input + ?4, ?10),
                 used_output = min(used_output + ?5, ?10), used_cached_read = min(used_cached_read + ?6, ?10),
                 used_cached_write = min(used_cached_write + ?7, ?10), used_thought = min(used_thought + ?8, ?10),
                 used_cost_micros = min(used_cost_micros + ?9, ?10)
             WHERE no = ?1",
        )?;
        update.execute(params![
            tenant,
            int(used.turns),
            int(used.untold_turns),
            int(used.input_tokens),
            int(used.output_tokens),
            int(used.cached_read_tokens),
            int(used.cached_write_tokens),
            int(used.thought_tokens),
            int(used.cost_usd.micros()),
            int(UsageSums::MOST),
        ])?;
        Ok(())
    }

    /// After a failure: whatever the transaction did is undone, and so is what was remembered of it.
    fn roll_back(&mut self) -> rusqlite::Result<()> {
        self.tenants.clear();
        if self.db.is_autocommit() { Ok(()) } else { self.db.execute_batch("ROLLBACK") }
    }

    fn classify(&self, error: &rusqlite::Error) -> StoreError {
        let text = error.to_string();
        let rusqlite::Error::SqliteFailure(failure, _) = error else { return StoreError::Failed(text) };
        match (failure.code, failure.extended_code) {
            (_, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC) => StoreError::Sync(text),
            (ErrorCode::DiskFull, _) => StoreError::Full(text),
            // SQLite says "full" for one of the two reasons a disk refuses more, and only for some files.
            (ErrorCode::SystemIoFailure | ErrorCode::CannotOpen, _) if self.gauge.is_full() => {
                StoreError::Full(text)
            }
            (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => StoreError::Busy(text),
            (ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase, _) => StoreError::Damaged(damaged(&text)),
            _ => StoreError::Failed(text),
        }
    }

    fn injected(&self) -> Result<(), StoreError> {
        match self.faults.as_ref().and_then(Faults::before_commit) {
            None => Ok(()),
            Some(Fault::Full) => Err(StoreError::Full("injected".to_owned())),
            Some(Fault::Sync) => Err(StoreError::Sync("injected".to_owned())),
            Some(Fault::Corrupt) => Err(StoreError::Damaged(damaged("injected"))),
        }
    }
}

impl Store for SqliteStore {
    fn commit(&mut self, commit: &Commit) -> Result<Verdicts, StoreError> {
        self.injected()?;
        let mut left_out = Vec::new();
        loop {
            let failure = match self.attempt(commit, &left_out) {
                Ok(verdicts) => {
                    self.removals |= verdicts.shares.contains(&Verdict::Removed);
                    self.checkpointer.committed();
                    return Ok(verdicts);
                }
                Err(failure) => failure,
            };
            // The failure decides first: a roll-back after it only repeats what it said.
            let failed = match failure {
                Attempt::Refused(part, why) => {
                    left_out.push((part, why));
                    None
                }
                Attempt::Failed(error) => Some(self.classify(&error)),
            };
            let undone = self.roll_back().map_err(|error| self.classify(&error));
            match failed {
                Some(error) => return Err(error),
                None => undone?,
            }
        }
    }

    fn upkeep(&mut self) -> Result<Upkeep, StoreError> {
        let mut upkeep = Upkeep::default();
        if self.removals {
            match self.purge() {
                Ok(purged) => upkeep = purged,
                Err(error) => {
                    let error = self.classify(&error);
                    let _ = self.roll_back();
                    return Err(error);
                }
            }
            self.removals = upkeep.more;
            self.checkpointer.committed();
        }
        self.checkpointer.bound(&self.db).map_err(|error| self.classify(&error))?;
        Ok(upkeep)
    }

    fn close(mut self: Box<Self>) {
        self.checkpointer.stop();
        self.db.flush_prepared_statement_cache();
        let result: rusqlite::Result<i64> =
            self.db.pragma_update_and_check(None, "wal_checkpoint", "TRUNCATE", |row| row.get(0));
        if let Err(error) = result {
            tracing::warn!(%error, "the log was not folded into the database; the next start does it");
        }
        if let Err((_, error)) = self.db.close() {
            tracing::warn!(%error, "the database was not closed cleanly");
        }
    }
}

/// A writing connection with everything set that is not kept in the file.
fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "foreign_keys", true)?;
    db.pragma_update(None, "temp_store", "MEMORY")?;
    db.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    // What is erased or removed is overwritten, not only unlinked.
    db.pragma_update(None, "secure_delete", true)?;
    Ok(db)
}

fn wal_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

pub(crate) fn damaged(text: &str) -> String {
    format!("the database is damaged ({text}); restore the data folder from a backup with `outlast restore`")
}

/// Constraint failures are one part's fault; anything else is everybody's.
fn blame(part: Part, error: rusqlite::Error) -> Attempt {
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation) => Attempt::Refused(part, error.to_string()),
        _ => Attempt::Failed(error),
    }
}

/// SQLite names the columns of the unique index that refused.
fn is_name_taken(why: &str) -> bool {
    why.contains("sessions.alias") || why.contains("sessions.id")
}

/// Numbers go into SQLite as `i64`; ours never come near its end.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn uint(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

type Changed = Result<Outcome, WriteError>;
