//! Requests of the small tables, inside a commit. A check that fails answers before anything was changed; a name
//! that is taken is found by the index that guards it.

use super::{Changed, SqliteStore, Tally, int, read};
use crate::{
    AgentRow, CredentialRow, KeyRow, SandboxRow, SnapshotRow, WriteError,
    requests::{Acquired, Change, Outcome},
};
use protocol::{SessionId, Tenant};
use rusqlite::{Params, params};

impl SqliteStore {
    pub(super) fn change(&mut self, change: &Change, tally: &mut Tally) -> rusqlite::Result<Changed> {
        match change {
            Change::Acquire(session) => self.acquire(*session),
            Change::Erase { session, seq } => self.erase(*session, *seq, tally),
            Change::Cut { session, first_seq } => self.cut(*session, *first_seq, tally),
            Change::Count { tenant, counter, many } => self.count(tenant, counter, *many),
            Change::PutAgent(row) => self.put_agent(row),
            Change::RemoveAgent { tenant, name } => {
                let tenant = self.tenant(tenant)?;
                self.delete(
                    "DELETE FROM agents WHERE tenant_no = ?1 AND name = ?2",
                    params![tenant, name.as_str()],
                )
            }
            Change::PutKey(row) => self.put_key(row),
            Change::RemoveKey(id) => self.delete("DELETE FROM keys WHERE id = ?1", [id.uuid().as_bytes()]),
            Change::PutCredential(row) => self.put_credential(row),
            Change::RemoveCredential { tenant, id } => {
                let tenant = self.tenant(tenant)?;
                self.delete(
                    "DELETE FROM credentials WHERE id = ?1 AND tenant_no = ?2",
                    params![id.uuid().as_bytes(), tenant],
                )
            }
            Change::PutSandbox(row) => self.put_sandbox(row),
            Change::PutSnapshot { sandbox, snapshot } => self.put_snapshot(sandbox, snapshot),
            Change::RemoveSandbox(id) => self.delete(
                "DELETE FROM sandboxes WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM sessions WHERE sandbox = ?1)",
                [id],
            ),
        }
    }

    /// A higher epoch fences off every writer that came before.
    fn acquire(&self, session: SessionId) -> rusqlite::Result<Changed> {
        let taken = self
            .db
            .prepare_cached("UPDATE sessions SET epoch = epoch + 1 WHERE id = ?1")?
            .execute([session.uuid().as_bytes()])?;
        if taken == 0 {
            return Ok(Err(WriteError::NotFound));
        }
        let found = read::session_and_head(&self.db, session)?;
        Ok(found.map_or(Err(WriteError::NotFound), |(no, row, head)| {
            Ok(Outcome::Acquired(Box::new(Acquired { row, no, head })))
        }))
    }

    fn count(&mut self, tenant: &Tenant, counter: &str, many: u32) -> rusqlite::Result<Changed> {
        let tenant = self.tenant(tenant)?;
        let number = self
            .db
            .prepare_cached(
                "INSERT INTO counters (tenant_no, name, value) VALUES (?1, ?2, ?3)
                 ON CONFLICT (tenant_no, name) DO UPDATE SET value = value + ?3 RETURNING value",
            )?
            .query_row(params![tenant, counter, many], |row| row.get(0))?;
        Ok(Ok(Outcome::Number(super::uint(number))))
    }

    fn put_agent(&mut self, row: &AgentRow) -> rusqlite::Result<Changed> {
        let tenant = self.tenant(&row.agent.tenant_id)?;
        let Ok(doc) = serde_json::to_string(&row.agent) else { return Ok(Err(unwritable("an agent"))) };
        self.db
            .prepare_cached(
                "INSERT INTO agents (tenant_no, name, version, digest, doc) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                tenant,
                row.agent.name.as_str(),
                int(row.agent.version.into()),
                row.digest,
                doc
            ])?;
        Ok(Ok(Outcome::Done))
    }

    fn put_key(&mut self, row: &KeyRow) -> rusqlite::Result<Changed> {
        let tenant = self.tenant(&row.key.tenant_id)?;
        let Ok(doc) = serde_json::to_string(&row.key) else { return Ok(Err(unwritable("a key"))) };
        self.db
            .prepare_cached("INSERT INTO keys (id, tenant_no, hash, doc) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![row.key.id.uuid().as_bytes(), tenant, row.hash, doc])?;
        Ok(Ok(Outcome::Done))
    }

    /// The same id again replaces it, for its own tenant only.
    fn put_credential(&mut self, row: &CredentialRow) -> rusqlite::Result<Changed> {
        let tenant = self.tenant(&row.credential.tenant_id)?;
        let Ok(doc) = serde_json::to_string(&row.credential) else {
            return Ok(Err(unwritable("a credential")));
        };
        let written = self
            .db
            .prepare_cached(
                "INSERT INTO credentials (id, tenant_no, doc, sealed) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (id) DO UPDATE SET doc = excluded.doc, sealed = excluded.sealed
                     WHERE tenant_no = excluded.tenant_no",
            )?
            .execute(params![row.credential.id.uuid().as_bytes(), tenant, doc, row.sealed])?;
        Ok(if written == 1 { Ok(Outcome::Done) } else { Err(WriteError::Conflict) })
    }

    /// A new one: an id or a key that is there already is a conflict.
    fn put_sandbox(&mut self, row: &SandboxRow) -> rusqlite::Result<Changed> {
        let tenant = self.tenant(&row.tenant)?;
        self.db
            .prepare_cached("INSERT INTO sandboxes (id, tenant_no, key, created_at) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![row.id, tenant, row.key, row.created_at.as_millis()])?;
        if let Some(snapshot) = &row.snapshot {
            return self.put_snapshot(&row.id, snapshot);
        }
        Ok(Ok(Outcome::Done))
    }

    fn put_snapshot(&self, sandbox: &str, snapshot: &SnapshotRow) -> rusqlite::Result<Changed> {
        let changed = self
            .db
            .prepare_cached(
                "UPDATE sandboxes SET snapshot = ?2, taken_at = ?3, snapshot_files = ?4, snapshot_bytes = ?5
                 WHERE id = ?1",
            )?
            .execute(params![
                sandbox,
                snapshot.id,
                snapshot.taken_at.as_millis(),
                int(snapshot.files),
                int(snapshot.bytes)
            ])?;
        Ok(if changed == 1 { Ok(Outcome::Done) } else { Err(WriteError::NotFound) })
    }

    fn delete(&self, sql: &str, params: impl Params) -> rusqlite::Result<Changed> {
        let deleted = self.db.prepare_cached(sql)?.execute(params)?;
        Ok(if deleted > 0 { Ok(Outcome::Done) } else { Err(WriteError::NotFound) })
    }
}

fn unwritable(what: &str) -> WriteError {
    WriteError::Storage(format!("{what} cannot be written as JSON"))
}
