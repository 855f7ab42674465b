//! What every session task and every call needs: the journal, the place, the agents, the limits. Owns no
//! session's state.

use crate::{
    Options,
    agents::Agents,
    credentials::Credentials,
    keys::Keys,
    live::Live,
    quota::{Rates, Slots},
    sandboxes::Sandboxes,
    vault::Vault,
};
use journal::{Journal, NewSession};
use place::Place;
use protocol::{Outcome, SessionId};
use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
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
    pub(crate) sandboxes: Sandboxes,
    pub(crate) live: Live,
    pub(crate) slots: Slots,
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

impl Shared {
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
        if let Err(error) = self.place.destroy(&fixed.sandbox).await {
            tracing::warn!(session = %fixed.id, %error, "a removed session's workspace could not be deleted");
        }
        if let Err(error) = self.sandboxes.forget(&fixed.sandbox).await {
            tracing::warn!(session = %fixed.id, %error, "a removed session's snapshot could not be let go");
        }
    }
}
