//! What every session task and every call needs: the journal, the place, the agents, the limits. Owns no
//! session's state.

use crate::{
    Options,
    agents::Agents,
    credentials::Credentials,
    faults,
    keys::Keys,
    live::Live,
    quota::{Frozen, Rates, Short, Slots},
    sandboxes::Sandboxes,
    spec::internal,
    task::Command,
    vault::Vault,
};
use journal::{Journal, NewSession, SandboxRow, WriteError};
use place::{Place, remote::Remotes};
use protocol::{Code, Fault, Outcome, PlaceKind, SessionId, Status, Tenant, Timestamp};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::time::Instant;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) journal: Journal,
    pub(crate) vault: Vault,
    pub(crate) keys: Keys,
    pub(crate) agents: Agents,
    pub(crate) credentials: Credentials,
    pub(crate) place: Place,
    pub(crate) remotes: Remotes,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) live: Live,
    pub(crate) slots: Slots,
    pub(crate) shell_slots: Slots,
    /// What shells are called next.
    pub(crate) shell_numbers: tokio::sync::Mutex<std::ops::Range<u64>>,
    pub(crate) frozen: Frozen,
    pub(crate) rates: Rates,
    pub(crate) counters: Counters,
    pub(crate) started: Instant,
    pub(crate) closing: AtomicBool,
}

/// Turns by outcome since the server started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    turns: [AtomicU64; 5],
    breakdowns: AtomicU64,
}

pub(crate) const OUTCOMES: [Outcome; 5] =
    [Outcome::Done, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut, Outcome::Interrupted];

impl Counters {
    pub(crate) fn turn(&self, outcome: Outcome) {
        self.cell(outcome).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn turns(&self, outcome: Outcome) -> u64 {
        self.cell(outcome).load(Ordering::Relaxed)
    }

    /// Counts a broken task; says how many broke before.
    pub(crate) fn broke(&self) -> u64 {
        self.breakdowns.fetch_add(1, Ordering::Relaxed)
    }

    const fn cell(&self, outcome: Outcome) -> &AtomicU64 {
        match outcome {
            Outcome::Done => &self.turns[0],
            Outcome::Failed => &self.turns[1],
            Outcome::Cancelled => &self.turns[2],
            Outcome::TimedOut => &self.turns[3],
            Outcome::Interrupted => &self.turns[4],
        }
    }
}

/// A workspace on disk, and the session that used it last.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) session: SessionId,
    pub(crate) last_active: Timestamp,
    pub(crate) status: Status,
    /// Some session of it has a task.
    pub(crate) live: bool,
}

/// Sessions that are evicted for one newcomer, at most: others may take the slots that come free.
const EVICTIONS: usize = 8;

impl Shared {
    /// Makes room for one more occupant, where paused ones stand in the way. Whether there is room then, the slots
    /// themselves say.
    pub(crate) async fn make_room(self: &Arc<Self>, tenant: &Tenant) {
        for _ in 0..EVICTIONS {
            let of = match self.slots.short(tenant) {
                None => return,
                Some(Short::Servers) => None,
                Some(Short::Tenants) => Some(tenant),
            };
            let Some(oldest) = self.frozen.oldest(of) else { return };
            if let Err(fault) = self.call(oldest, |reply| Command::Evict { reply }).await {
                tracing::warn!(session = %oldest, %fault, "a paused session could not be evicted");
                self.frozen.take(oldest);
            }
        }
    }

    /// Who uses a workspace; none when no session does.
    pub(crate) async fn folder_of(&self, sandbox: &str) -> Result<Option<Folder>, journal::ReadError> {
        let mut last: Option<Folder> = None;
        for id in self.journal.sandbox_sessions(sandbox).await? {
            let Some(row) = self.journal.session(id).await? else { continue };
            let live = row.state.live || self.live.has(id);
            let (last_active, status) = (row.state.last_active_at, row.state.status);
            let known = last.take();
            let newer = known.as_ref().is_none_or(|known| known.last_active < last_active);
            let any = live || known.as_ref().is_some_and(|known| known.live);
            let mut folder = match (newer, known) {
                (false, Some(known)) => known,
                _ => Folder { session: id, last_active, status, live },
            };
            folder.live = any;
            last = Some(folder);
        }
        Ok(last)
    }

    /// The sandbox with this key, made when there is none.
    pub(crate) async fn shared_sandbox(
        &self,
        tenant: &Tenant,
        key: &str,
        place: PlaceKind,
    ) -> Result<String, Fault> {
        let found = self.journal.sandbox_by_key(tenant, key).await.map_err(faults::read)?;
        let id = match found {
            Some(row) => row.id,
            None => {
                let row = SandboxRow {
                    id: SessionId::new().to_string(),
                    tenant: tenant.clone(),
                    key: Some(key.to_owned()),
                    created_at: Timestamp::now(),
                    snapshot: None,
                };
                let id = row.id.clone();
                match self.journal.put_sandbox(row).await {
                    Ok(()) => id,
                    // Somebody made it in the same moment.
                    Err(WriteError::Conflict) => {
                        let found = self.journal.sandbox_by_key(tenant, key).await.map_err(faults::read)?;
                        found.ok_or_else(|| internal("a sandbox's key is taken and not there"))?.id
                    }
                    Err(error) => return Err(faults::write(error)),
                }
            }
        };
        for other in self.journal.sandbox_sessions(&id).await.map_err(faults::read)? {
            let row = self.journal.session(other).await.map_err(faults::read)?;
            if row.is_some_and(|row| row.fixed.place != place) {
                return Err(Fault::new(
                    Code::Conflict,
                    format!("The sandbox {key:?} is of another place; name that place, or another key"),
                ));
            }
        }
        Ok(id)
    }

    /// Removes workspaces that a killed server made for sessions that were never recorded.
    pub(crate) async fn clear_orphans(&self) {
        for sandbox in self.place.workspaces().await {
            if matches!(self.folder_of(&sandbox).await, Ok(None)) {
                tracing::info!(sandbox, "removing a workspace that belongs to no session");
                if let Err(error) = self.place.destroy(&sandbox).await {
                    tracing::warn!(sandbox, %error, "a workspace that belongs to no session could not be removed");
                }
            }
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn log_file(&self, id: SessionId) -> PathBuf {
        self.options.data.join("logs").join(format!("{id}.stderr"))
    }

    /// Keeps what an agent wrote to stderr, for `logs` after its end. Best effort: it is no event.
    pub(crate) fn keep_logs(&self, id: SessionId, (text, dropped): (String, u64)) {
        if text.is_empty() {
            return;
        }
        let path = self.log_file(id);
        tokio::task::spawn_blocking(move || {
            let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            if let Err(error) = written.and_then(|()| std::fs::write(&path, format!("{dropped}\n{text}"))) {
                tracing::warn!(session = %id, %error, "an agent's stderr could not be kept");
            }
        });
    }

    pub(crate) async fn kept_logs(&self, id: SessionId) -> Option<(String, u64)> {
        let file = tokio::fs::read_to_string(self.log_file(id)).await.ok()?;
        let (dropped, text) = file.split_once('\n')?;
        Some((text.to_owned(), dropped.parse().unwrap_or(0)))
    }

    /// Removes what a removed session had on disk beside the journal.
    pub(crate) async fn clear_files(&self, fixed: &NewSession) {
        let _ = tokio::fs::remove_file(self.log_file(fixed.id)).await;
        // The session's own row is gone; who is left uses the same files.
        if self.journal.sandbox_sessions(&fixed.sandbox).await.is_ok_and(|others| !others.is_empty()) {
            return;
        }
        if let Err(error) = self.place.destroy(&fixed.sandbox).await {
            tracing::warn!(session = %fixed.id, %error, "a removed session's workspace could not be deleted");
        }
        if let Err(error) = self.sandboxes.forget(&fixed.sandbox).await {
            tracing::warn!(session = %fixed.id, %error, "a removed session's snapshot could not be let go");
        }
    }
}
