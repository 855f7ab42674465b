//! A session's share of a commit: the lease check, the row, the events, the turns, and removal.

use super::{SqliteStore, Tally, int, uint};
use crate::{
    NewSession, SessionState, TurnRow,
    chain::{self, Tombstone},
    lanes::{Added, Head, Record, Removal, Share},
    store::Verdict,
};
use protocol::{SessionId, Tenant, UsageSums};
use rusqlite::{OptionalExtension as _, params};
use std::sync::atomic::Ordering::Relaxed;

/// The epoch of a session's first writer.
pub(crate) const FIRST_EPOCH: u64 = 1;

impl SqliteStore {
    /// Stores one share, or says why not before anything was changed for it.
    pub(super) fn share(&mut self, share: &Share, tally: &mut Tally) -> rusqlite::Result<Verdict> {
        let tenant = self.tenant(&share.lane.tenant)?;
        let bytes = share.added.iter().map(|added| body_bytes(added)).sum::<i64>();
        let mut no = share.lane.no.load(Relaxed);
        let new = share.added.first().and_then(|added| Some((added.new.as_ref()?, added)));
        if let Some((new, first)) = new {
            let state = share.added.iter().rev().find_map(|added| added.state.as_ref());
            no = self.insert_session(new, state, head(share).unwrap_or(first.head), tenant, bytes)?;
            tally.usage.entry(tenant).or_default().sessions += 1;
        } else if !self.update_session(share, no, bytes)? {
            return Ok(Verdict::Fenced);
        }
        let (mut events, mut used) = (0, UsageSums::default());
        for added in &share.added {
            self.insert_events(no, tenant, &added.records)?;
            self.upsert_turns(no, &added.turns)?;
            events += int(added.records.len() as u64);
            used = used.plus(added.used);
        }
        let usage = tally.usage.entry(tenant).or_default();
        usage.used = usage.used.plus(used);
        usage.events += events;
        usage.bytes += bytes;
        match &share.removal {
            None => Ok(Verdict::Stored { no }),
            Some(removal) => {
                self.remove_session(share.lane.session, no, tenant, removal, tally)?;
                Ok(Verdict::Removed)
            }
        }
    }

    /// A tenant's key; its row is made when it is first met.
    pub(super) fn tenant(&mut self, tenant: &Tenant) -> rusqlite::Result<i64> {
        if let Some(no) = self.tenants.get(tenant) {
            return Ok(*no);
        }
        self.db
            .prepare_cached(
                "INSERT INTO tenants (name, chain_hash) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING",
            )?
            .execute(params![tenant.as_str(), chain::tenant_genesis(tenant.as_str())])?;
        let no = self
            .db
            .prepare_cached("SELECT no FROM tenants WHERE name = ?1")?
            .query_row([tenant.as_str()], |row| row.get(0))?;
        if self.tenants.len() >= super::TENANTS_REMEMBERED {
            self.tenants.clear();
        }
        self.tenants.insert(tenant.clone(), no);
        Ok(no)
    }

    fn insert_session(
        &self,
        new: &NewSession,
        state: Option<&SessionState>,
        head: Head,
        tenant: i64,
        bytes: i64,
    ) -> rusqlite::Result<i64> {
        let initial;
        let state = match state {
            Some(state) => state,
            None => {
                initial = SessionState::before_the_first(new.created_at);
                &initial
            }
        };
        let mut insert = self.db.prepare_cached(
            "INSERT INTO sessions (id, tenant_no, kind, place, sandbox, agent, agent_version, alias, created_at,
                 parent, parent_seq, status, live, status_reason, model, name, last_active_at, memo, epoch, bytes,
                 first_seq, base_hash, head_seq, head_hash, last_at, usage)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
                 ?25, ?21, ?22, ?23, ?24, ?26)",
        )?;
        let (first_seq, base) = match new.forked_from {
            None => (1, chain::genesis(&new.tenant, new.id)),
            Some(fork) => {
                let parent = super::read::mark(&self.db, fork.session, fork.seq)?;
                let (hash, _) = parent.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
                (int(fork.seq) + 1, chain::fork_genesis(&new.tenant, new.id, &hash))
            }
        };
        let no = insert.insert(params![
            new.id.uuid().as_bytes(),
            tenant,
            new.kind.as_str(),
            new.place.as_str(),
            new.sandbox,
            new.agent.as_ref().map(protocol::AgentName::as_str),
            new.agent_version,
            new.alias.as_ref().map(protocol::Alias::as_str),
            new.created_at.as_millis(),
            new.forked_from.map(|fork| *fork.session.uuid().as_bytes()),
            new.forked_from.map(|fork| int(fork.seq)),
            state.status.as_str(),
            state.live,
            state.status_reason,
            state.model,
            state.name,
            state.last_active_at.as_millis(),
            state.memo,
            int(FIRST_EPOCH),
            bytes,
            base,
            int(head.seq),
            head.hash,
            head.at.as_millis(),
            first_seq,
            usage_text(&state.usage),
        ])?;
        self.db
            .prepare_cached("INSERT INTO specs (session_no, spec) VALUES (?1, ?2)")?
            .execute(params![no, new.spec])?;
        Ok(no)
    }

    /// One update per session and commit, and the lease check. False means that another writer holds the lease.
    fn update_session(&self, share: &Share, no: i64, bytes: i64) -> rusqlite::Result<bool> {
        let epoch = int(share.lane.epoch);
        let Some(head) = head(share) else {
            let mut check = self.db.prepare_cached("SELECT 1 FROM sessions WHERE no = ?1 AND epoch = ?2")?;
            return check.exists([no, epoch]);
        };
        let Some(state) = share.added.iter().rev().find_map(|added| added.state.as_ref()) else {
            let mut update = self.db.prepare_cached(
                "UPDATE sessions SET head_seq = ?3, head_hash = ?4, last_at = ?5, bytes = bytes + ?6
                 WHERE no = ?1 AND epoch = ?2",
            )?;
            let at = head.at.as_millis();
            return Ok(update.execute(params![no, epoch, int(head.seq), head.hash, at, bytes])? == 1);
        };
        let mut update = self.db.prepare_cached(
            "UPDATE sessions SET head_seq = ?3, head_hash = ?4, last_at = ?5, bytes = bytes + ?6,
                 status_reason = ?7, model = ?8, name = ?9, last_active_at = ?10, memo = ?11, usage = ?12
             WHERE no = ?1 AND epoch = ?2",
        )?;
        let held = update.execute(params![
            no,
            epoch,
            int(head.seq),
            head.hash,
            head.at.as_millis(),
            bytes,
            state.status_reason,
            state.model,
            state.name,
            state.last_active_at.as_millis(),
            state.memo,
            usage_text(&state.usage),
        ])? == 1;
        if held {
            // Apart, because these two are in indexes, which are then rewritten even for the same value.
            self.db
                .prepare_cached(
                    "UPDATE sessions SET status = ?2, live = ?3
                     WHERE no = ?1 AND (status <> ?2 OR live <> ?3)",
                )?
                .execute(params![no, state.status.as_str(), state.live])?;
        }
        Ok(held)
    }

    fn upsert_turns(&self, no: i64, turns: &[TurnRow]) -> rusqlite::Result<()> {
        if turns.is_empty() {
            return Ok(());
        }
        let mut upsert = self.db.prepare_cached(
            "INSERT INTO turns (session_no, turn, client_id, digest, accepted_seq, started, ended_seq)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (session_no, turn) DO UPDATE SET
                 started = excluded.started, ended_seq = excluded.ended_seq",
        )?;
        for turn in turns {
            upsert.execute(params![
                no,
                turn.turn.uuid().as_bytes(),
                turn.client_id,
                turn.digest,
                int(turn.accepted_seq),
                turn.started,
                turn.ended_seq.map(int),
            ])?;
        }
        Ok(())
    }

    /// The row goes at once and a tombstone takes its place in the tenant's chain; a long session's events go
    /// a slice at a time afterwards.
    fn remove_session(
        &self,
        session: SessionId,
        no: i64,
        tenant: i64,
        removal: &Removal,
        tally: &mut Tally,
    ) -> rusqlite::Result<()> {
        let (last_seq, last_hash, first_seq, bytes) = self
            .db
            .prepare_cached("SELECT head_seq, head_hash, first_seq, bytes FROM sessions WHERE no = ?1")?
            .query_row([no], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, Vec<u8>>(1)?,
                    row.get::<_, i64>(2)?,
                    row.get::<_, i64>(3)?,
                ))
            })?;
        self.bury(session, tenant, removal, uint(last_seq), &last_hash)?;
        // In the same commit: a crash after it leaves no snapshot that nobody would ever let go.
        self.db
            .prepare_cached(
                "DELETE FROM sandboxes WHERE id = (SELECT sandbox FROM sessions WHERE no = ?1) AND NOT EXISTS
                     (SELECT 1 FROM sessions s WHERE s.sandbox = sandboxes.id AND s.no != ?1)",
            )?
            .execute([no])?;
        for sql in [
            "DELETE FROM sessions WHERE no = ?1",
            "DELETE FROM specs WHERE session_no = ?1",
            "DELETE FROM turns WHERE session_no = ?1",
        ] {
            self.db.prepare_cached(sql)?.execute([no])?;
        }
        let usage = tally.usage.entry(tenant).or_default();
        usage.sessions -= 1;
        usage.events -= last_seq - first_seq + 1;
        usage.bytes -= bytes;
        if self.delete_slice(no, &mut tally.orphans)? {
            self.db.prepare_cached("INSERT INTO removals (session_no) VALUES (?1)")?.execute([no])?;
        }
        Ok(())
    }

    fn bury(
        &self,
        session: SessionId,
        tenant: i64,
        removal: &Removal,
        last_seq: u64,
        last_hash: &[u8],
    ) -> rusqlite::Result<()> {
        let (chain_seq, previous) = self
            .db
            .prepare_cached("SELECT chain_seq, chain_hash FROM tenants WHERE no = ?1")?
            .query_row([tenant], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 32]>(1)?)))?;
        let floor: Option<i64> = self
            .db
            .prepare_cached("SELECT at FROM tenant_chain WHERE tenant_no = ?1 AND seq = ?2")?
            .query_row([tenant, chain_seq], |row| row.get(0))
            .optional()?;
        let id = session.uuid();
        let tombstone = Tombstone {
            seq: uint(chain_seq) + 1,
            at: removal.at.as_millis().max(floor.unwrap_or(i64::MIN)),
            actor: &removal.actor.to_string(),
            session: id.as_bytes(),
            last_seq,
            last_hash,
        };
        let hash = chain::tombstone_hash(&previous, tombstone);
        self.db
            .prepare_cached(
                "INSERT INTO tenant_chain (tenant_no, seq, at, actor, session, last_seq, last_hash, hash)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                tenant,
                int(tombstone.seq),
                tombstone.at,
                tombstone.actor,
                tombstone.session,
                int(tombstone.last_seq),
                tombstone.last_hash,
                hash,
            ])?;
        self.db
            .prepare_cached("UPDATE tenants SET chain_seq = ?2, chain_hash = ?3 WHERE no = ?1")?
            .execute(params![tenant, int(tombstone.seq), hash])?;
        Ok(())
    }
}

fn usage_text(usage: &UsageSums) -> String {
    // Numbers alone always encode.
    serde_json::to_string(usage).unwrap_or_else(|_| "{}".to_owned())
}

fn head(share: &Share) -> Option<Head> {
    share.added.last().map(|added| added.head)
}

fn body_bytes(added: &Added) -> i64 {
    int(added.records.iter().map(Record::size).sum())
}
