//! Writing and taking away events: inserts, the slices in which a removed session goes, the front that retention
//! cuts, and bodies that are erased.

use super::{Changed, SqliteStore, Tally, int};
use crate::{Attachment, WriteError, blobs::Address, lanes::Record, requests::Outcome, store::Upkeep};
use protocol::{Actor, Seq, SessionId};
use rusqlite::{
    OptionalExtension as _, ToSql, params,
    types::{ToSqlOutput, ValueRef},
};

/// Events deleted in one transaction.
const SLICE: i64 = 512;

/// A body as SQLite text without a copy; it was a `String` when it came in.
struct Text<'a>(&'a [u8]);

impl ToSql for Text<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}

impl SqliteStore {
    pub(super) fn insert_events(&self, no: i64, tenant: i64, records: &[Record]) -> rusqlite::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut insert = self.db.prepare_cached(
            "INSERT INTO events (session_no, tenant_no, seq, at, kind, actor, version, size, salt, body_hash,
                 hash, blob, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?;
        for record in records {
            let event = &record.event;
            let address = record.blob.as_ref().and_then(|slot| slot.get());
            let key;
            let actor = match &event.actor {
                Actor::System => "system",
                Actor::Agent => "agent",
                Actor::Key(_) => {
                    key = event.actor.to_string();
                    &key
                }
            };
            insert.execute(params![
                no,
                tenant,
                int(event.seq),
                event.at.as_millis(),
                event.kind.as_str(),
                actor,
                event.version,
                int(record.size()),
                record.salt,
                record.body_hash,
                record.hash,
                address,
                address.is_none().then_some(Text(&event.body)),
            ])?;
            let attached = record.attachment.as_ref().map(Attachment::address);
            if let Some(address) = address.or(attached) {
                self.db
                    .prepare_cached("INSERT INTO blob_refs (session_no, seq, hash) VALUES (?1, ?2, ?3)")?
                    .execute(params![no, int(event.seq), address])?;
            }
        }
        Ok(())
    }

    /// Deletes the first events of a session, no more than a slice. True means that some are left.
    pub(super) fn delete_slice(&self, no: i64, orphans: &mut Vec<Address>) -> rusqlite::Result<bool> {
        let first: Option<i64> = self
            .db
            .prepare_cached("SELECT seq FROM events WHERE session_no = ?1 ORDER BY seq LIMIT 1")?
            .query_row([no], |row| row.get(0))
            .optional()?;
        let Some(first) = first else { return Ok(false) };
        self.delete_before(no, first + SLICE, orphans)?;
        self.db.prepare_cached("SELECT 1 FROM events WHERE session_no = ?1 LIMIT 1")?.exists([no])
    }

    fn delete_before(&self, no: i64, end: i64, orphans: &mut Vec<Address>) -> rusqlite::Result<usize> {
        let mut select =
            self.db.prepare_cached("SELECT hash FROM blob_refs WHERE session_no = ?1 AND seq < ?2")?;
        let addresses: Vec<Address> =
            select.query_map([no, end], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        self.db
            .prepare_cached("DELETE FROM blob_refs WHERE session_no = ?1 AND seq < ?2")?
            .execute([no, end])?;
        self.find_orphans(&addresses, orphans)?;
        self.db.prepare_cached("DELETE FROM events WHERE session_no = ?1 AND seq < ?2")?.execute([no, end])
    }

    fn find_orphans(&self, candidates: &[Address], orphans: &mut Vec<Address>) -> rusqlite::Result<()> {
        let mut is_used = self.db.prepare_cached("SELECT 1 FROM blob_refs WHERE hash = ?1 LIMIT 1")?;
        for address in candidates {
            if !is_used.exists([address])? {
                orphans.push(*address);
            }
        }
        Ok(())
    }

    /// One slice of one removed session, in a transaction of its own.
    pub(super) fn purge(&mut self) -> rusqlite::Result<Upkeep> {
        let mut upkeep = Upkeep::default();
        self.db.execute_batch("BEGIN IMMEDIATE")?;
        let next: Option<i64> = self
            .db
            .prepare_cached("SELECT session_no FROM removals LIMIT 1")?
            .query_row([], |row| row.get(0))
            .optional()?;
        if let Some(no) = next {
            if !self.delete_slice(no, &mut upkeep.orphans)? {
                self.db.prepare_cached("DELETE FROM removals WHERE session_no = ?1")?.execute([no])?;
            }
            upkeep.more = self.db.prepare_cached("SELECT 1 FROM removals LIMIT 1")?.exists([])?;
        }
        self.db.execute_batch("COMMIT")?;
        Ok(upkeep)
    }

    /// Drops events before `first_seq`, at most a slice of them.
    pub(super) fn cut(
        &self,
        session: SessionId,
        first_seq: Seq,
        tally: &mut Tally,
    ) -> rusqlite::Result<Changed> {
        let row = self
            .db
            .prepare_cached("SELECT no, tenant_no, first_seq, head_seq FROM sessions WHERE id = ?1")?
            .query_row([session.uuid().as_bytes()], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, i64>(1)?,
                    row.get::<_, i64>(2)?,
                    row.get::<_, i64>(3)?,
                ))
            })
            .optional()?;
        let Some((no, tenant, first, head)) = row else { return Ok(Err(WriteError::NotFound)) };
        let wanted = int(first_seq).min(head + 1);
        if wanted <= first {
            return Ok(Ok(Outcome::Done));
        }
        let end = wanted.min(first + SLICE);
        let (bytes, base): (i64, Vec<u8>) = (
            self.db
                .prepare_cached("SELECT total(size) FROM events WHERE session_no = ?1 AND seq < ?2")?
                .query_row([no, end], |row| row.get::<_, f64>(0))
                .map(whole)?,
            self.db
                .prepare_cached("SELECT hash FROM events WHERE session_no = ?1 AND seq = ?2")?
                .query_row([no, end - 1], |row| row.get(0))?,
        );
        self.delete_before(no, end, &mut tally.orphans)?;
        self.db
            .prepare_cached(
                "UPDATE sessions SET first_seq = ?2, base_hash = ?3, bytes = bytes - ?4 WHERE no = ?1",
            )?
            .execute(params![no, end, base, bytes])?;
        let usage = tally.usage.entry(tenant).or_default();
        usage.events -= end - first;
        usage.bytes -= bytes;
        Ok(Ok(if end < wanted { Outcome::More } else { Outcome::Done }))
    }

    /// Body and salt go; the hash of both stays, and so the chain still verifies.
    pub(super) fn erase(&self, session: SessionId, seq: Seq, tally: &mut Tally) -> rusqlite::Result<Changed> {
        let row = self
            .db
            .prepare_cached(
                "SELECT e.id, e.session_no, e.tenant_no, e.size, r.hash FROM sessions s
                 JOIN events e ON e.session_no = s.no AND e.seq = ?2
                 LEFT JOIN blob_refs r ON r.session_no = s.no AND r.seq = ?2 WHERE s.id = ?1",
            )?
            .query_row(params![session.uuid().as_bytes(), int(seq)], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, i64>(1)?,
                    row.get::<_, i64>(2)?,
                    row.get::<_, i64>(3)?,
                    row.get::<_, Option<Address>>(4)?,
                ))
            })
            .optional()?;
        let Some((id, no, tenant, size, blob)) = row else { return Ok(Err(WriteError::NotFound)) };
        self.db
            .prepare_cached(
                "UPDATE events SET body = NULL, salt = NULL, blob = NULL, size = 0 WHERE id = ?1",
            )?
            .execute([id])?;
        self.db
            .prepare_cached("UPDATE sessions SET bytes = bytes - ?2 WHERE no = ?1")?
            .execute([no, size])?;
        tally.usage.entry(tenant).or_default().bytes -= size;
        if let Some(address) = blob {
            self.db
                .prepare_cached("DELETE FROM blob_refs WHERE session_no = ?1 AND seq = ?2")?
                .execute([no, int(seq)])?;
            self.find_orphans(&[address], &mut tally.orphans)?;
        }
        Ok(Ok(Outcome::Done))
    }
}

/// A sum of sizes: far below where a float loses a unit.
#[expect(clippy::cast_possible_truncation, reason = "sums of sizes stay far below 2^53")]
fn whole(sum: f64) -> i64 {
    sum as i64
}
