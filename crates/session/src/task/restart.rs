//! Bringing back an agent that crashed, although nobody asks for it: so that the next prompt finds it ready. When and how
//! often is decided in [`crate::restarts`]; here it is recorded and done. Whoever needs the agent before does not wait for
//! it, and whoever ends, evicts or stops the session is obeyed first.

use super::{Occupied, Stage, Task};
use crate::restarts::Verdict;
use occupant::Cx;
use protocol::{Actor, Level, Notice, Status, Timestamp, limits};
use tokio::time::Instant;

impl Task {
    /// Does anybody wait for an occupant? Then it is not brought for its own sake.
    pub(super) fn is_wanted(&self) -> bool {
        !self.joiners.is_empty() || !self.turns.is_idle()
    }

    /// The agent went away by itself, or did not come back when it was brought unasked.
    pub(super) fn crashed(&mut self, what: &str, cx: &mut Cx) {
        if self.stage != Stage::Serving || self.state.status != Status::Error || self.is_wanted() {
            return;
        }
        let (times, window) = (limits::CRASH_RESTARTS, limits::CRASH_WINDOW_SECS);
        let text = match self.memo.restarts.crashed(Timestamp::now()) {
            Verdict::Again { after, number } => {
                self.restart_at = Some(Instant::now() + after);
                let millis = after.as_millis();
                format!(
                    "{what}: it is started again in {millis} ms, {number} of {times} times within {window} s"
                )
            }
            Verdict::Down => {
                format!(
                    "{what}: it was started again {times} times within {window} s and stays down until it is needed"
                )
            }
        };
        cx.record(Actor::System, Notice { level: Level::Warning, text });
    }

    /// When it is to be brought back; not before everything of the last one is put away.
    pub(super) fn restart_deadline(&self) -> Option<Instant> {
        self.restart_at.filter(|_| matches!(self.occupied, Occupied::Empty) && self.errands.is_empty())
    }

    pub(super) fn restart(&mut self, cx: &mut Cx) {
        self.restart_at = None;
        if let Err(fault) = self.bring() {
            self.fail_start(&fault, cx);
        }
    }
}
