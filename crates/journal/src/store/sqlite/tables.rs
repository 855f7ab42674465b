//! Reading rows. Every list is a range of one index, newest first, and stays as quick as sessions grow: the
//! index is named in the query, so that a planner's whim cannot undo that.

use super::{
    int,
    read::{SESSION_COLUMNS, SqliteReader, parsed, read_error, session_and_head, session_row, uuid},
    uint,
};
use crate::{
    AgentRow, CredentialRow, KeyRow, ReadError, SandboxRow, SessionPage, SessionQuery, SessionRow,
    SnapshotRow, TenantUsage, TurnRow, store::Tables,
};
use protocol::{
    AgentName, CredentialId, SessionId, SessionKind, SessionRef, Tenant, Timestamp, TurnId, UsageSums, Usd,
    limits::LIST_PAGE,
};
use rusqlite::{OptionalExtension as _, Params, Row, ToSql, params, params_from_iter, types::FromSqlError};

const TURN_COLUMNS: &str = "t.turn, t.client_id, t.digest, t.accepted_seq, t.started, t.ended_seq";
const SANDBOX_COLUMNS: &str =
    "b.id, t.name, b.key, b.created_at, b.snapshot, b.taken_at, b.snapshot_files, b.snapshot_bytes";
const TENANT: &str = "(SELECT no FROM tenants WHERE name = ?1)";

impl SqliteReader {
    fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, ReadError> {
        self.db
            .prepare_cached(sql)
            .and_then(|mut select| select.query_row(params, read).optional())
            .map_err(|error| read_error(&error))
    }

    fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, ReadError> {
        self.db
            .prepare_cached(sql)
            .and_then(|mut select| select.query_map(params, read)?.collect())
            .map_err(|error| read_error(&error))
    }

    /// One bounded page, and where the next one begins.
    fn list(&self, query: &SessionQuery, before: i64, limit: usize) -> Result<SessionPage, ReadError> {
        let (tenant, fetch) = (query.tenant.as_str(), int(limit as u64 + 1));
        let agent = query.agent.as_ref().map(AgentName::as_str);
        let status = query.status.map(protocol::Status::as_str);
        // Only agents have an agent's name: with one, the kind says nothing more.
        let kind = if agent.is_some() { None } else { query.kind.map(SessionKind::as_str) };
        let index = match (agent, kind, status) {
            (Some(_), _, Some(_)) => "sessions_agent_status",
            (Some(_), _, None) => "sessions_agent",
            (None, Some(_), Some(_)) => "sessions_kind_status",
            (None, Some(_), None) => "sessions_kind",
            (None, None, Some(_)) => "sessions_status",
            (None, None, None) => "sessions_all",
        };
        let mut values: Vec<&dyn ToSql> = vec![&tenant, &before, &fetch];
        let mut filter = String::new();
        for (column, value) in [("agent", &agent), ("kind", &kind), ("status", &status)] {
            if let Some(value) = value {
                values.push(value);
                filter.push_str(&format!(" AND s.{column} = ?{}", values.len()));
            }
        }
        let sql = format!(
            "SELECT {SESSION_COLUMNS} FROM sessions s INDEXED BY {index}
             CROSS JOIN tenants t ON t.no = s.tenant_no CROSS JOIN specs p ON p.session_no = s.no
             WHERE s.tenant_no = {TENANT} AND s.no < ?2{filter} ORDER BY s.no DESC LIMIT ?3"
        );
        let mut rows =
            self.all(&sql, params_from_iter(values), |row| Ok((row.get::<_, i64>(0)?, session_row(row)?)))?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = if more { rows.last().map(|(no, _)| *no) } else { None };
        Ok(SessionPage { sessions: rows.into_iter().map(|(_, row)| row).collect(), next })
    }
}

impl Tables for SqliteReader {
    fn session(&mut self, session: SessionId) -> Result<Option<SessionRow>, ReadError> {
        let found = session_and_head(&self.db, session).map_err(|error| read_error(&error))?;
        Ok(found.map(|(_, row, _)| row))
    }

    fn find(&mut self, tenant: &Tenant, session: &SessionRef) -> Result<Option<SessionRow>, ReadError> {
        let sql = |condition: &str| {
            format!(
                "SELECT {SESSION_COLUMNS} FROM sessions s JOIN tenants t ON t.no = s.tenant_no
                 JOIN specs p ON p.session_no = s.no WHERE t.name = ?1 AND {condition}"
            )
        };
        match session {
            SessionRef::Id(id) => {
                self.one(&sql("s.id = ?2"), params![tenant.as_str(), id.uuid().as_bytes()], session_row)
            }
            SessionRef::Alias(alias) => {
                self.one(&sql("s.alias = ?2"), params![tenant.as_str(), alias.as_str()], session_row)
            }
        }
    }

    fn sessions(&mut self, query: &SessionQuery) -> Result<SessionPage, ReadError> {
        if query.agent.is_some() && query.kind == Some(SessionKind::Shell) {
            return Ok(SessionPage { sessions: vec![], next: None });
        }
        let mut wanted = query.limit.unwrap_or(usize::MAX);
        let mut page = SessionPage { sessions: vec![], next: query.cursor };
        loop {
            // Pages, so that a list of everything holds no snapshot for long.
            let limit = wanted.min(LIST_PAGE);
            let mut part = self.list(query, page.next.unwrap_or(i64::MAX), limit)?;
            wanted -= part.sessions.len();
            page.sessions.append(&mut part.sessions);
            page.next = part.next;
            if page.next.is_none() || wanted == 0 {
                return Ok(page);
            }
        }
    }

    fn live_sessions(&mut self) -> Result<Vec<(SessionId, String)>, ReadError> {
        let sql = "SELECT id, memo FROM sessions INDEXED BY sessions_live WHERE live = 1 ORDER BY no";
        self.all(sql, [], |row| Ok((uuid(row, 0).map(SessionId::from_uuid)?, row.get(1)?)))
    }

    fn turn_by_client_id(
        &mut self,
        session: SessionId,
        client_id: &str,
    ) -> Result<Option<TurnRow>, ReadError> {
        let sql = format!(
            "SELECT {TURN_COLUMNS} FROM sessions s JOIN turns t ON t.session_no = s.no AND t.client_id = ?2
             WHERE s.id = ?1"
        );
        self.one(&sql, params![session.uuid().as_bytes(), client_id], turn_row)
    }

    fn open_turns(&mut self, session: SessionId) -> Result<Vec<TurnRow>, ReadError> {
        let sql = format!(
            "SELECT {TURN_COLUMNS} FROM sessions s JOIN turns t ON t.session_no = s.no AND t.ended_seq IS NULL
             WHERE s.id = ?1 ORDER BY t.accepted_seq"
        );
        self.all(&sql, [session.uuid().as_bytes()], turn_row)
    }

    fn tenant_usage(&mut self, tenant: &Tenant) -> Result<TenantUsage, ReadError> {
        let sql = "SELECT sessions, events, bytes, used_turns, used_untold_turns, used_input, used_output,
                used_cached_read, used_cached_write, used_thought, used_cost_micros FROM tenants WHERE name = ?1";
        let usage = self.one(sql, [tenant.as_str()], |row| {
            let number = |column: usize| row.get(column).map(uint);
            Ok(TenantUsage {
                sessions: number(0)?,
                events: number(1)?,
                bytes: number(2)?,
                used: UsageSums {
                    turns: number(3)?,
                    untold_turns: number(4)?,
                    input_tokens: number(5)?,
                    output_tokens: number(6)?,
                    cached_read_tokens: number(7)?,
                    cached_write_tokens: number(8)?,
                    thought_tokens: number(9)?,
                    cost_usd: Usd::from_micros(number(10)?),
                },
            })
        })?;
        Ok(usage.unwrap_or_default())
    }

    fn agents(&mut self, tenant: &Tenant) -> Result<Vec<AgentRow>, ReadError> {
        let sql = format!(
            "SELECT doc, digest FROM agents a WHERE tenant_no = {TENANT} AND version =
                 (SELECT max(version) FROM agents b WHERE b.tenant_no = a.tenant_no AND b.name = a.name)
             ORDER BY name"
        );
        self.all(&sql, [tenant.as_str()], agent_row)
    }

    fn agent(
        &mut self,
        tenant: &Tenant,
        name: &AgentName,
        version: Option<u32>,
    ) -> Result<Option<AgentRow>, ReadError> {
        let sql = format!(
            "SELECT doc, digest FROM agents WHERE tenant_no = {TENANT} AND name = ?2
                 AND (?3 IS NULL OR version = ?3) ORDER BY version DESC LIMIT 1"
        );
        self.one(&sql, params![tenant.as_str(), name.as_str(), version], agent_row)
    }

    fn keys(&mut self) -> Result<Vec<KeyRow>, ReadError> {
        self.all("SELECT doc, hash FROM keys ORDER BY id", [], |row| {
            Ok(KeyRow { key: document(row)?, hash: row.get(1)? })
        })
    }

    fn credentials(
        &mut self,
        tenant: &Tenant,
        only: Option<CredentialId>,
    ) -> Result<Vec<CredentialRow>, ReadError> {
        let sql = format!(
            "SELECT doc, sealed FROM credentials WHERE tenant_no = {TENANT} AND (?2 IS NULL OR id = ?2)
             ORDER BY id"
        );
        let only = only.map(|id| *id.uuid().as_bytes());
        self.all(&sql, params![tenant.as_str(), only], |row| {
            Ok(CredentialRow { credential: document(row)?, sealed: row.get(1)? })
        })
    }

    fn has_forks(&mut self, session: SessionId) -> Result<bool, ReadError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM sessions WHERE parent = ?1)";
        let found = self.one(sql, [session.uuid().as_bytes()], |row| row.get(0))?;
        Ok(found.unwrap_or(false))
    }

    fn sandbox(&mut self, id: &str) -> Result<Option<SandboxRow>, ReadError> {
        let sql = format!(
            "SELECT {SANDBOX_COLUMNS} FROM sandboxes b JOIN tenants t ON t.no = b.tenant_no WHERE b.id = ?1"
        );
        self.one(&sql, [id], sandbox_row)
    }

    fn sandbox_by_key(&mut self, tenant: &Tenant, key: &str) -> Result<Option<SandboxRow>, ReadError> {
        let sql = format!(
            "SELECT {SANDBOX_COLUMNS} FROM sandboxes b JOIN tenants t ON t.no = b.tenant_no
             WHERE b.tenant_no = {TENANT} AND b.key = ?2"
        );
        self.one(&sql, params![tenant.as_str(), key], sandbox_row)
    }

    fn sandbox_sessions(&mut self, id: &str) -> Result<Vec<SessionId>, ReadError> {
        let sql = "SELECT id FROM sessions WHERE sandbox = ?1 ORDER BY no";
        self.all(sql, [id], |row| uuid(row, 0).map(SessionId::from_uuid))
    }

    fn sandbox_has_others(&mut self, id: &str, except: SessionId) -> Result<bool, ReadError> {
        let sql =
            "SELECT EXISTS (SELECT 1 FROM sessions WHERE sandbox = ?1 AND id <> ?2 AND status <> 'ended')";
        let found = self.one(sql, params![id, except.uuid().as_bytes()], |row| row.get(0))?;
        Ok(found.unwrap_or(false))
    }

    fn snapshots(&mut self) -> Result<Vec<String>, ReadError> {
        self.all("SELECT DISTINCT snapshot FROM sandboxes WHERE snapshot IS NOT NULL", [], |row| row.get(0))
    }
}

fn turn_row(row: &Row<'_>) -> rusqlite::Result<TurnRow> {
    Ok(TurnRow {
        turn: TurnId::from_uuid(uuid(row, 0)?),
        client_id: row.get(1)?,
        digest: row.get(2)?,
        accepted_seq: uint(row.get(3)?),
        started: row.get(4)?,
        ended_seq: row.get::<_, Option<i64>>(5)?.map(uint),
    })
}

fn sandbox_row(row: &Row<'_>) -> rusqlite::Result<SandboxRow> {
    let snapshot = match row.get(4)? {
        Some(id) => Some(SnapshotRow {
            id,
            taken_at: Timestamp::from_millis(row.get(5)?),
            files: uint(row.get(6)?),
            bytes: uint(row.get(7)?),
        }),
        None => None,
    };
    Ok(SandboxRow {
        id: row.get(0)?,
        tenant: parsed::<Tenant>(row, 1)?,
        key: row.get(2)?,
        created_at: Timestamp::from_millis(row.get(3)?),
        snapshot,
    })
}

fn agent_row(row: &Row<'_>) -> rusqlite::Result<AgentRow> {
    Ok(AgentRow { agent: document(row)?, digest: row.get(1)? })
}

/// The JSON in a row's first column.
fn document<T: serde::de::DeserializeOwned>(row: &Row<'_>) -> rusqlite::Result<T> {
    let text = row.get_ref(0)?.as_str()?;
    serde_json::from_str(text).map_err(|error| {
        let error = FromSqlError::Other(error.into());
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, error.into())
    })
}
