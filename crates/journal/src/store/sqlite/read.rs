//! A reader: one read-only connection, and how rows become values again. Whatever a row holds that cannot be is
//! damage, and said so.

use super::{damaged, int, schema, uint};
use crate::{
    NewSession, OpenError, ReadError, SessionRow, SessionState, StoredEvent,
    blobs::Address,
    chain::Hash,
    lanes::Head,
    store::{Events, Found, FoundPage},
};
use bytes::Bytes;
use protocol::{
    Actor, AgentName, Alias, EventKind, ForkPoint, Seq, SessionId, Tenant, Timestamp, UsageSums,
    limits::{PAGE_BYTES, PAGE_EVENTS},
};
use rusqlite::{
    Connection, ErrorCode, OptionalExtension as _, Row, params,
    types::{FromSqlError, Type, ValueRef},
};
use std::{path::Path, str::FromStr};
use uuid::Uuid;

/// A reader's page cache, in KiB. The system caches the file anyway.
const READER_CACHE_KIB: i64 = 1024;

pub(crate) struct SqliteReader {
    pub(super) db: Connection,
}

impl SqliteReader {
    pub(crate) fn open(dir: &Path) -> Result<Self, OpenError> {
        let db = schema::open_read_only(dir)?;
        let failed = |error: rusqlite::Error| schema::open_error(&dir.join(schema::DATABASE_FILE), &error);
        db.set_prepared_statement_cache_capacity(super::STATEMENTS);
        db.pragma_update(None, "cache_size", -READER_CACHE_KIB).map_err(failed)?;
        db.pragma_update(None, "temp_store", "MEMORY").map_err(failed)?;
        Ok(Self { db })
    }
}

pub(crate) fn read_error(error: &rusqlite::Error) -> ReadError {
    let text = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => ReadError::Storage(damaged(&text)),
        _ if matches!(error, rusqlite::Error::FromSqlConversionFailure(..)) => {
            ReadError::Storage(damaged(&text))
        }
        _ => ReadError::Storage(text),
    }
}

impl Events for SqliteReader {
    fn page(&mut self, session: SessionId, after: Seq, limit: usize) -> Result<FoundPage, ReadError> {
        // One snapshot for the row and its events.
        let snapshot = self.db.unchecked_transaction().map_err(|error| read_error(&error))?;
        let page = read_page(&snapshot, session, after, limit)?;
        snapshot.finish().map_err(|error| read_error(&error))?;
        Ok(page)
    }

    fn mark(&mut self, session: SessionId, seq: Seq) -> Result<Option<(Hash, Timestamp)>, ReadError> {
        mark(&self.db, session, seq).map_err(|error| read_error(&error))
    }

    fn event(&mut self, session: SessionId, seq: Seq) -> Result<Option<Found>, ReadError> {
        let session = holder(&self.db, session, seq).map_err(|error| read_error(&error))?;
        let read = || {
            self.db
                .prepare_cached(
                    "SELECT e.seq, e.at, e.kind, e.actor, e.version, e.size, e.blob, e.body FROM sessions s
                     JOIN events e ON e.session_no = s.no AND e.seq = ?2 WHERE s.id = ?1",
                )?
                .query_row(params![session.uuid().as_bytes(), int(seq)], found)
                .optional()
        };
        read().map_err(|error| read_error(&error))
    }

    fn of_kind(
        &mut self,
        session: SessionId,
        kind: EventKind,
        after: Seq,
        limit: usize,
    ) -> Result<Vec<Found>, ReadError> {
        let read = || {
            self.db
                .prepare_cached(
                    "SELECT e.seq, e.at, e.kind, e.actor, e.version, e.size, e.blob, e.body FROM sessions s
                     JOIN events e ON e.session_no = s.no AND e.seq > ?2 AND e.kind = ?3 WHERE s.id = ?1
                     ORDER BY e.seq LIMIT ?4",
                )?
                .query_map(
                    params![session.uuid().as_bytes(), int(after), kind.as_str(), int(limit as u64)],
                    found,
                )?
                .collect::<rusqlite::Result<Vec<Found>>>()
        };
        read().map_err(|error| read_error(&error))
    }

    fn has_blob(&mut self, address: &Address) -> Result<bool, ReadError> {
        let read =
            || self.db.prepare_cached("SELECT 1 FROM blob_refs WHERE hash = ?1 LIMIT 1")?.exists([address]);
        read().map_err(|error| read_error(&error))
    }
}

/// Whose events the one numbered `seq` is among: the session's own, or one that it was forked from.
fn holder(db: &Connection, session: SessionId, seq: Seq) -> rusqlite::Result<SessionId> {
    let mut holder = session;
    loop {
        let parent = db
            .prepare_cached("SELECT parent FROM sessions WHERE id = ?1 AND parent_seq >= ?2")?
            .query_row(params![holder.uuid().as_bytes(), int(seq)], |row| uuid(row, 0))
            .optional()?;
        match parent {
            // A parent is older than its fork, so that this ends.
            Some(parent) => holder = SessionId::from_uuid(parent),
            None => return Ok(holder),
        }
    }
}

pub(crate) fn mark(
    db: &Connection,
    session: SessionId,
    seq: Seq,
) -> rusqlite::Result<Option<(Hash, Timestamp)>> {
    let holder = holder(db, session, seq)?;
    db.prepare_cached(
        "SELECT e.hash, e.at FROM sessions s JOIN events e ON e.session_no = s.no AND e.seq = ?2 WHERE s.id = ?1",
    )?
    .query_row(params![holder.uuid().as_bytes(), int(seq)], |row| {
        Ok((row.get::<_, Hash>(0)?, Timestamp::from_millis(row.get(1)?)))
    })
    .optional()
}

/// A page, which ends where the session was forked from its parent when it begins before that.
fn read_page(db: &Connection, session: SessionId, after: Seq, limit: usize) -> Result<FoundPage, ReadError> {
    let fork = db
        .prepare_cached("SELECT parent, parent_seq, head_seq FROM sessions WHERE id = ?1 AND parent_seq > ?2")
        .and_then(|mut select| {
            let row = |row: &Row<'_>| Ok((uuid(row, 0)?, uint(row.get(1)?), uint(row.get(2)?)));
            select.query_row(params![session.uuid().as_bytes(), int(after)], row).optional()
        })
        .map_err(|error| read_error(&error))?;
    let Some((parent, parent_seq, last_seq)) = fork else { return own_page(db, session, after, limit) };
    let inherited = usize::try_from(parent_seq - after).unwrap_or(limit).min(limit);
    match read_page(db, SessionId::from_uuid(parent), after, inherited.max(1)) {
        Ok(page) => Ok(FoundPage { last_seq, ..page }),
        // Retention or removal took what the two shared.
        Err(ReadError::NotFound) => Err(ReadError::Expired { first_seq: parent_seq + 1 }),
        Err(error) => Err(error),
    }
}

fn own_page(db: &Connection, session: SessionId, after: Seq, limit: usize) -> Result<FoundPage, ReadError> {
    let failed = |error: rusqlite::Error| read_error(&error);
    let row = db
        .prepare_cached("SELECT no, first_seq, head_seq FROM sessions WHERE id = ?1")
        .and_then(|mut select| {
            select
                .query_row([session.uuid().as_bytes()], |row| {
                    Ok((row.get::<_, i64>(0)?, uint(row.get(1)?), uint(row.get(2)?)))
                })
                .optional()
        })
        .map_err(failed)?;
    let Some((no, first_seq, last_seq)) = row else { return Err(ReadError::NotFound) };
    if after.saturating_add(1) < first_seq {
        return Err(ReadError::Expired { first_seq });
    }
    let limit = limit.clamp(1, PAGE_EVENTS);
    let mut select = db
        .prepare_cached(
            "SELECT seq, at, kind, actor, version, size, blob, body FROM events
             WHERE session_no = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
        )
        .map_err(failed)?;
    let mut rows = select.query(params![no, int(after), int(limit as u64)]).map_err(failed)?;
    let expected = usize::try_from(last_seq.saturating_sub(after)).unwrap_or(limit).min(limit);
    let mut events: Vec<Found> = Vec::with_capacity(expected);
    let mut bytes = 0;
    while let Some(row) = rows.next().map_err(failed)? {
        bytes += row.get::<_, i64>(5).ok().and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
        if bytes > PAGE_BYTES && !events.is_empty() {
            break;
        }
        let event = found(row).map_err(failed)?;
        // Seqs are gapless; a hole is a damaged index and must not be read over.
        let expected = after + 1 + events.len() as u64;
        if event.event.seq != expected {
            return Err(ReadError::Storage(damaged(&format!("event {expected} of {session} is missing"))));
        }
        events.push(event);
    }
    if events.is_empty() && after < last_seq {
        return Err(ReadError::Storage(damaged(&format!("event {} of {session} is missing", after + 1))));
    }
    Ok(FoundPage { events, last_seq })
}

/// A row of `seq, at, kind, actor, version, size, blob, body`.
fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    let kind = row.get_ref(2)?.as_str()?;
    let kind = EventKind::parse(kind).ok_or_else(|| bad(2, &format!("event type {kind:?} is not known")))?;
    let blob: Option<Address> = row.get(6)?;
    let body = match row.get_ref(7)? {
        ValueRef::Text(text) => {
            // The wire form is spliced after the first byte.
            if text.first() != Some(&b'{') || str::from_utf8(text).is_err() {
                return Err(bad(7, "a body is not JSON text"));
            }
            Bytes::copy_from_slice(text)
        }
        ValueRef::Null if blob.is_some() => Bytes::new(),
        ValueRef::Null => StoredEvent::erased_body(kind),
        _ => return Err(bad(7, "a body is not text")),
    };
    let event = StoredEvent {
        seq: uint(row.get(0)?),
        at: Timestamp::from_millis(row.get(1)?),
        actor: parsed::<Actor>(row, 3)?,
        kind,
        version: row.get(4)?,
        body,
    };
    Ok(Found { event, blob })
}

fn bad(column: usize, why: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, FromSqlError::Other(why.into()).into())
}

pub(super) fn parsed<T: FromStr>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| bad(column, &format!("{text:?} is not what this column holds")))
}

pub(super) fn parsed_option<T: FromStr>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => parsed(row, column).map(Some),
    }
}

pub(super) fn uuid(row: &Row<'_>, column: usize) -> rusqlite::Result<Uuid> {
    row.get::<_, [u8; 16]>(column).map(Uuid::from_bytes)
}

/// The columns of [`session_row`], in its order.
pub(super) const SESSION_COLUMNS: &str =
    "s.no, s.id, t.name, s.kind, s.place, s.sandbox, s.agent, s.agent_version,
    s.alias, s.created_at, s.parent, s.parent_seq, p.spec, s.status, s.status_reason, s.model, s.name,
    s.last_active_at, s.live, s.memo, s.first_seq, s.head_seq, s.epoch, s.head_hash, s.last_at,
    s.usage";

pub(super) fn session_row(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    let parent: Option<[u8; 16]> = row.get(10)?;
    let parent_seq: Option<i64> = row.get(11)?;
    Ok(SessionRow {
        fixed: NewSession {
            id: SessionId::from_uuid(uuid(row, 1)?),
            tenant: parsed::<Tenant>(row, 2)?,
            kind: parsed(row, 3)?,
            place: parsed(row, 4)?,
            sandbox: row.get(5)?,
            agent: parsed_option::<AgentName>(row, 6)?,
            agent_version: row.get(7)?,
            alias: parsed_option::<Alias>(row, 8)?,
            created_at: Timestamp::from_millis(row.get(9)?),
            forked_from: parent.zip(parent_seq).map(|(parent, seq)| ForkPoint {
                session: SessionId::from_uuid(Uuid::from_bytes(parent)),
                seq: uint(seq),
            }),
            spec: row.get(12)?,
        },
        state: SessionState {
            status: parsed(row, 13)?,
            status_reason: row.get(14)?,
            model: row.get(15)?,
            name: row.get(16)?,
            last_active_at: Timestamp::from_millis(row.get(17)?),
            live: row.get(18)?,
            memo: row.get(19)?,
            usage: usage(row, 25)?,
        },
        // A fork shows its parent's events as its own.
        first_seq: if parent_seq.is_some_and(|seq| row.get(20) == Ok(seq + 1)) {
            1
        } else {
            uint(row.get(20)?)
        },
        last_seq: uint(row.get(21)?),
        epoch: uint(row.get(22)?),
    })
}

fn usage(row: &Row<'_>, column: usize) -> rusqlite::Result<UsageSums> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// A session's row with its key and the end of its chain: what a new writer goes on from.
pub(super) fn session_and_head(
    db: &Connection,
    session: SessionId,
) -> rusqlite::Result<Option<(i64, SessionRow, Head)>> {
    db.prepare_cached(&format!(
        "SELECT {SESSION_COLUMNS} FROM sessions s JOIN tenants t ON t.no = s.tenant_no
         JOIN specs p ON p.session_no = s.no WHERE s.id = ?1"
    ))?
    .query_row([session.uuid().as_bytes()], |row| {
        let fixed = session_row(row)?;
        let head = Head { seq: fixed.last_seq, hash: row.get(23)?, at: Timestamp::from_millis(row.get(24)?) };
        Ok((row.get(0)?, fixed, head))
    })
    .optional()
}
