//! The schema, its migrations, and the checks that say whether a file is ours, whole and not too new.
//!
//! A database is made under another name and renamed once it is complete, so that an empty or half-made file
//! under the real name is damage and never a fresh start. Opening checks the header and the `meta` table only:
//! it must not take longer as sessions grow. Damage deeper inside is met, and named, by whoever reads it.

use crate::{OpenError, blobs::sync_folder};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use std::{fs, path::Path};

pub(crate) const DATABASE_FILE: &str = "outlast.db";
const NEW_DATABASE_FILE: &str = "outlast.db.new";
/// "OutL", in the file's header: `file` and we can tell whose it is.
const APPLICATION_ID: i64 = 0x4F75_744C;
/// Holds five events of about a kilobyte with little waste, where a page of 4 KiB holds two.
pub(super) const PAGE_BYTES: i64 = 8192;

/// Step `n` takes a database from schema `n` to `n + 1`. Steps are only ever added.
pub(super) const MIGRATIONS: &[&str] = &[FIRST, SANDBOXES, USAGE];

const FIRST: &str = "
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Usage is counted in the same commits as what it counts; the chain holds the tombstones of removed sessions.
CREATE TABLE tenants (
    no         INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    sessions   INTEGER NOT NULL DEFAULT 0,
    events     INTEGER NOT NULL DEFAULT 0,
    bytes      INTEGER NOT NULL DEFAULT 0,
    chain_seq  INTEGER NOT NULL DEFAULT 0,
    chain_hash BLOB NOT NULL
) STRICT;

CREATE TABLE tenant_chain (
    tenant_no INTEGER NOT NULL REFERENCES tenants (no),
    seq       INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    actor     TEXT NOT NULL,
    session   BLOB NOT NULL,
    last_seq  INTEGER NOT NULL,
    last_hash BLOB NOT NULL,
    hash      BLOB NOT NULL,
    PRIMARY KEY (tenant_no, seq)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: a removed session's key must never be another's, or an old writer could write into it.
CREATE TABLE sessions (
    no             INTEGER PRIMARY KEY AUTOINCREMENT,
    id             BLOB NOT NULL UNIQUE,
    tenant_no      INTEGER NOT NULL REFERENCES tenants (no),
    kind           TEXT NOT NULL,
    place          TEXT NOT NULL,
    sandbox        TEXT NOT NULL,
    agent          TEXT,
    agent_version  INTEGER,
    alias          TEXT,
    created_at     INTEGER NOT NULL,
    parent         BLOB,
    parent_seq     INTEGER,
    status         TEXT NOT NULL,
    live           INTEGER NOT NULL,
    status_reason  TEXT,
    model          TEXT,
    name           TEXT,
    last_active_at INTEGER NOT NULL,
    memo           TEXT NOT NULL,
    epoch          INTEGER NOT NULL,
    owner          TEXT,
    bytes          INTEGER NOT NULL,
    first_seq      INTEGER NOT NULL,
    base_hash      BLOB NOT NULL,
    head_seq       INTEGER NOT NULL,
    head_hash      BLOB NOT NULL,
    last_at        INTEGER NOT NULL,
    CHECK (kind = 'agent' OR agent IS NULL)
) STRICT;

-- One for every filter of the list; the row key at each index's end gives the order, newest first.
CREATE INDEX sessions_all         ON sessions (tenant_no);
CREATE INDEX sessions_kind        ON sessions (tenant_no, kind);
CREATE INDEX sessions_status      ON sessions (tenant_no, status);
CREATE INDEX sessions_kind_status ON sessions (tenant_no, kind, status);
CREATE INDEX sessions_agent        ON sessions (tenant_no, agent) WHERE agent IS NOT NULL;
CREATE INDEX sessions_agent_status ON sessions (tenant_no, agent, status) WHERE agent IS NOT NULL;
CREATE UNIQUE INDEX sessions_alias ON sessions (tenant_no, alias) WHERE alias IS NOT NULL;
CREATE INDEX sessions_live        ON sessions (no, id) WHERE live = 1;

-- Apart from the row, which is rewritten with every commit.
CREATE TABLE specs (
    session_no INTEGER PRIMARY KEY,
    spec       TEXT NOT NULL
) STRICT;

-- No foreign key: it would cost a look-up per event, and a removed session's events go a slice at a time.
CREATE TABLE events (
    id         INTEGER PRIMARY KEY,
    session_no INTEGER NOT NULL,
    tenant_no  INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    actor      TEXT NOT NULL,
    version    INTEGER NOT NULL,
    size       INTEGER NOT NULL,
    salt       BLOB,
    body_hash  BLOB NOT NULL,
    hash       BLOB NOT NULL,
    blob       BLOB,
    body       TEXT
) STRICT;
CREATE UNIQUE INDEX events_seq ON events (session_no, seq);

CREATE TABLE blob_refs (
    session_no INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    hash       BLOB NOT NULL,
    PRIMARY KEY (session_no, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_refs_hash ON blob_refs (hash);

CREATE TABLE turns (
    session_no   INTEGER NOT NULL,
    turn         BLOB NOT NULL,
    client_id    TEXT,
    digest       BLOB NOT NULL,
    accepted_seq INTEGER NOT NULL,
    started      INTEGER NOT NULL,
    ended_seq    INTEGER,
    PRIMARY KEY (session_no, turn)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX turns_client_id ON turns (session_no, client_id) WHERE client_id IS NOT NULL;
CREATE INDEX turns_open ON turns (session_no, accepted_seq) WHERE ended_seq IS NULL;

-- Removed sessions whose events are not all gone yet.
CREATE TABLE removals (
    session_no INTEGER PRIMARY KEY
) STRICT;

CREATE TABLE agents (
    tenant_no INTEGER NOT NULL REFERENCES tenants (no),
    name      TEXT NOT NULL,
    version   INTEGER NOT NULL,
    digest    BLOB NOT NULL,
    doc       TEXT NOT NULL,
    PRIMARY KEY (tenant_no, name, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE keys (
    id        BLOB PRIMARY KEY,
    tenant_no INTEGER NOT NULL REFERENCES tenants (no),
    hash      BLOB NOT NULL UNIQUE,
    doc       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE credentials (
    id        BLOB PRIMARY KEY,
    tenant_no INTEGER NOT NULL REFERENCES tenants (no),
    doc       TEXT NOT NULL,
    sealed    BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX credentials_tenant ON credentials (tenant_no);

-- Numbers a tenant's names are made from, such as the 1 of 1_local.
CREATE TABLE counters (
    tenant_no INTEGER NOT NULL REFERENCES tenants (no),
    name      TEXT NOT NULL,
    value     INTEGER NOT NULL,
    PRIMARY KEY (tenant_no, name)
) STRICT, WITHOUT ROWID;
";

/// Sandboxes have rows of their own since several sessions may share one, and since a snapshot outlives its session's
/// processes. The indexes answer whether a sandbox still has a session, and whether a session has forks.
const SANDBOXES: &str = "
CREATE TABLE sandboxes (
    id             TEXT PRIMARY KEY,
    tenant_no      INTEGER NOT NULL REFERENCES tenants (no),
    key            TEXT,
    created_at     INTEGER NOT NULL,
    snapshot       TEXT,
    taken_at       INTEGER,
    snapshot_files INTEGER,
    snapshot_bytes INTEGER,
    CHECK ((snapshot IS NULL) = (taken_at IS NULL))
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX sandboxes_key ON sandboxes (tenant_no, key) WHERE key IS NOT NULL;
CREATE INDEX sessions_sandbox ON sessions (sandbox);
CREATE INDEX sessions_parent ON sessions (parent) WHERE parent IS NOT NULL;
";

/// What turns have used, of each session and of all that a tenant ever had. Turns that ended before are not in it.
const USAGE: &str = "
ALTER TABLE sessions ADD COLUMN usage TEXT NOT NULL DEFAULT '{}';
ALTER TABLE tenants ADD COLUMN used_turns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenants ADD COLUMN used_untold_turns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenants ADD COLUMN used_input INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenants ADD COLUMN used_output INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenants ADD COLUMN used_cached_read INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenants ADD COLUMN used_cached_write INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenants ADD COLUMN used_thought INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tenants ADD COLUMN used_cost_micros INTEGER NOT NULL DEFAULT 0;
";

/// Makes the database if the folder has none, and refuses to where data says that there was one.
pub(crate) fn create_if_missing(dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(DATABASE_FILE);
    if path.exists() {
        return Ok(());
    }
    let has_blobs =
        fs::read_dir(dir.join(crate::blobs::BLOBS_FOLDER)).is_ok_and(|mut dir| dir.next().is_some());
    let has_log = fs::metadata(dir.join(format!("{DATABASE_FILE}-wal"))).is_ok_and(|file| file.len() > 0);
    if has_blobs || has_log {
        let reason = "the database file is missing, but other files of it are there".to_owned();
        return Err(OpenError::Damaged { path, reason });
    }
    let new = dir.join(NEW_DATABASE_FILE);
    for leftover in [new.clone(), dir.join(format!("{NEW_DATABASE_FILE}-journal"))] {
        if leftover.exists() {
            fs::remove_file(&leftover).map_err(|error| OpenError::io(&leftover, &error))?;
        }
    }
    let made = make(&new).map_err(|error| open_error(&new, &error));
    made.and_then(|()| {
        fs::rename(&new, &path).map_err(|error| OpenError::io(&path, &error))?;
        sync_folder(dir).map_err(|error| OpenError::io(dir, &error))
    })
}

fn make(path: &Path) -> rusqlite::Result<()> {
    let mut db = Connection::open(path)?;
    db.pragma_update(None, "page_size", PAGE_BYTES)?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    migrate(&mut db, 0, MIGRATIONS)?;
    db.close().map_err(|(_, error)| error)
}

/// Takes the database through the steps it lacks, each in a transaction of its own.
fn migrate(db: &mut Connection, from: usize, steps: &[&str]) -> rusqlite::Result<()> {
    for (step, sql) in steps.iter().enumerate().skip(from) {
        let change = db.transaction()?;
        change.execute_batch(sql)?;
        change.pragma_update(None, "user_version", i64::try_from(step + 1).unwrap_or(i64::MAX))?;
        change.execute(
            "INSERT INTO meta (key, value) VALUES ('program', ?1)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [env!("CARGO_PKG_VERSION")],
        )?;
        change.commit()?;
    }
    Ok(())
}

/// Is the file ours, and of a schema that this program knows? Migrates an older one where it may write.
pub(crate) fn check(db: &mut Connection, path: &Path, may_migrate: MayMigrate) -> Result<(), OpenError> {
    check_against(db, path, may_migrate, MIGRATIONS)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayMigrate {
    Yes,
    No,
}

fn check_against(
    db: &mut Connection,
    path: &Path,
    may_migrate: MayMigrate,
    steps: &[&str],
) -> Result<(), OpenError> {
    let failed = |error: rusqlite::Error| open_error(path, &error);
    let number = |db: &Connection, name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    // The first read of the file: a header that is not SQLite's or does not fit the file fails here.
    let application = number(db, "application_id").map_err(failed)?;
    let found = number(db, "user_version").map_err(failed)?;
    let tables: i64 =
        db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    if application == 0 && tables == 0 {
        let reason = "the file is empty".to_owned();
        return Err(OpenError::Damaged { path: path.to_owned(), reason });
    }
    if application != APPLICATION_ID {
        return Err(OpenError::NotOurs { path: path.to_owned() });
    }
    let supported = i64::try_from(steps.len()).unwrap_or(i64::MAX);
    if found > supported {
        let needed = program(db).ok().flatten().unwrap_or_else(|| "of a later version".to_owned());
        return Err(OpenError::Newer { path: path.to_owned(), found, supported, needed });
    }
    let from = usize::try_from(found).unwrap_or(0);
    if from == 0 || program(db).map_err(failed)?.is_none() {
        let reason = "its description of itself is missing".to_owned();
        return Err(OpenError::Damaged { path: path.to_owned(), reason });
    }
    match may_migrate {
        MayMigrate::Yes => migrate(db, from, steps).map_err(failed),
        // Whoever only reads (a verifier, a copy) uses what the first schema has, and asks before it uses more: an
        // old backup must be restorable.
        MayMigrate::No => Ok(()),
    }
}

/// The program that last changed the schema.
fn program(db: &Connection) -> rusqlite::Result<Option<String>> {
    db.query_row("SELECT value FROM meta WHERE key = 'program'", [], |row| row.get(0)).optional()
}

/// Does the schema have sandboxes yet? For readers of folders that were not migrated.
pub(crate) fn has_sandboxes(db: &Connection) -> rusqlite::Result<bool> {
    db.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'sandboxes')", [], |row| row.get(0))
}

/// A connection for reading, beside a server that may be writing.
pub(crate) fn open_read_only(dir: &Path) -> Result<Connection, OpenError> {
    let path = dir.join(DATABASE_FILE);
    if !path.exists() {
        return Err(OpenError::Missing { dir: dir.to_owned() });
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error: rusqlite::Error| open_error(&path, &error);
    let mut db = Connection::open_with_flags(&path, flags).map_err(failed)?;
    db.busy_timeout(super::BUSY).map_err(failed)?;
    check(&mut db, &path, MayMigrate::No)?;
    Ok(db)
}

/// An error of SQLite while opening, as something to act on.
pub(crate) fn open_error(path: &Path, error: &rusqlite::Error) -> OpenError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let path = path.to_owned();
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => OpenError::Damaged { path, reason },
        // A table that must be there is not: the schema is not the one its version promises.
        None | Some(rusqlite::ErrorCode::Unknown) => OpenError::Damaged { path, reason },
        Some(_) => OpenError::Io { path, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: &str = "ALTER TABLE meta ADD COLUMN note TEXT";

    fn made(dir: &Path) -> Connection {
        create_if_missing(dir).unwrap();
        Connection::open(dir.join(DATABASE_FILE)).unwrap()
    }

    #[test]
    fn an_older_schema_is_migrated_step_by_step_and_a_newer_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut db = made(dir.path());
        let path = dir.path().join(DATABASE_FILE);
        let steps = [FIRST, SANDBOXES, USAGE, NEXT, "CREATE TABLE third (x)"];
        check_against(&mut db, &path, MayMigrate::No, &steps).unwrap();
        assert!(db.execute_batch("SELECT x FROM third").is_err(), "a reader changes nothing");
        check_against(&mut db, &path, MayMigrate::Yes, &steps).unwrap();
        db.execute_batch("SELECT note FROM meta; SELECT x FROM third").unwrap();
        let error = check(&mut db, &path, MayMigrate::Yes).unwrap_err();
        assert!(matches!(error, OpenError::Newer { found: 5, supported: 3, .. }));
        assert!(error.to_string().contains(concat!("use outlast ", env!("CARGO_PKG_VERSION"), " or newer")));
    }

    /// A folder as the first release left it.
    fn first_schema(path: &Path) -> Connection {
        let mut db = Connection::open(path).unwrap();
        db.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        migrate(&mut db, 0, &[FIRST]).unwrap();
        db
    }

    #[test]
    fn a_folder_of_the_first_schema_keeps_its_rows_and_gets_sandboxes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DATABASE_FILE);
        let mut db = first_schema(&path);
        db.execute_batch("INSERT INTO tenants (no, name, chain_hash) VALUES (7, 'kept', x'00')").unwrap();
        check(&mut db, &path, MayMigrate::Yes).unwrap();
        let name: String =
            db.query_row("SELECT name FROM tenants WHERE no = 7", [], |row| row.get(0)).unwrap();
        assert_eq!(name, "kept");
        db.execute_batch("INSERT INTO sandboxes (id, tenant_no, created_at) VALUES ('s', 7, 1)").unwrap();
        let used: i64 =
            db.query_row("SELECT used_turns FROM tenants WHERE no = 7", [], |row| row.get(0)).unwrap();
        assert_eq!(used, 0);
        check(&mut db, &path, MayMigrate::Yes).unwrap();
    }

    #[test]
    fn a_failing_step_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut db = made(dir.path());
        let path = dir.path().join(DATABASE_FILE);
        let steps = [FIRST, SANDBOXES, USAGE, "CREATE TABLE half (x); CREATE TABLE meta (x)"];
        check_against(&mut db, &path, MayMigrate::Yes, &steps).unwrap_err();
        check(&mut db, &path, MayMigrate::Yes).unwrap();
        assert!(db.execute_batch("SELECT x FROM half").is_err());
    }

    #[test]
    fn a_missing_database_beside_its_own_files_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("blobs/ab")).unwrap();
        assert!(matches!(create_if_missing(dir.path()), Err(OpenError::Damaged { .. })));
    }
}
