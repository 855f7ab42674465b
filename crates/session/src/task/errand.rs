//! Work for a session that takes a moment and must be finished before the next command is looked at: standing still,
//! and putting its files away. Events, output and deadlines go on meanwhile.

use super::{Occupied, Pend, Stage, Task, occupied::After};
use crate::{
    Shared, faults,
    lifecycle::{self, Move},
    live::Reply,
    policy::walls,
};
use journal::{NewSession, Space};
use occupant::Cx;
use place::Hold;
use protocol::{Actor, Fault, Level, Notice, Session, SnapshotTaken, Status};
use std::{collections::VecDeque, pin::Pin, sync::Arc};
use tokio::time::Instant;

pub(super) type Errand = Pin<Box<dyn Future<Output = Ran> + Send>>;

/// A snapshot, or why there is none.
pub(crate) type Taken = Result<SnapshotTaken, Fault>;

/// The disk is nearly full: stops the occupant where it is, whatever its session is about.
pub(super) fn stand_still(hold: &Hold) -> Errand {
    let frozen = hold.freeze();
    Box::pin(async move { Ran::StoodStill { frozen: frozen.await.map_err(|error| error.to_string()) } })
}

/// What came of it.
pub(super) enum Ran {
    /// The occupant stands still, or could not be made to.
    Froze { reply: Reply<Session>, frozen: Result<(), String>, taken: Option<Taken> },
    /// The same, because the disk is nearly full.
    StoodStill { frozen: Result<(), String> },
    /// A snapshot was taken beside the running occupant.
    Copied { reply: Reply<Option<SnapshotTaken>>, taken: Option<Taken> },
    /// What was left of the occupant is gone, and its files are put away as far as was asked.
    PutAway { taken: Option<Taken> },
}

/// What stays of the workspace when nothing runs in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stays {
    /// The folder as it is; nobody asked for more.
    Folder,
    /// The folder, and a snapshot of it.
    Both,
    /// The snapshot alone.
    Snapshot,
}

impl Stays {
    pub(super) fn after(after: Option<&After>) -> Self {
        match after {
            None | Some(After::Remove) => Self::Folder,
            Some(After::Rest { evict: false, .. }) => Self::Both,
            Some(After::Rest { evict: true, .. } | After::End) => Self::Snapshot,
        }
    }
}

/// Waits for the first errand; for ever when there is none. Cancel-safe.
pub(super) async fn run(errands: &mut VecDeque<Errand>) -> Ran {
    match errands.front_mut() {
        Some(running) => {
            let ran = running.await;
            errands.pop_front();
            ran
        }
        None => std::future::pending().await,
    }
}

/// Stops the occupant where it is, then takes a snapshot.
pub(super) fn freeze(shared: &Arc<Shared>, fixed: &NewSession, hold: &Hold, reply: Reply<Session>) -> Errand {
    let (shared, fixed, frozen) = (Arc::clone(shared), fixed.clone(), hold.freeze());
    Box::pin(async move {
        let frozen = frozen.await.map_err(|error| error.to_string());
        let taken = match frozen {
            Ok(()) => Some(take(&shared, &fixed).await),
            Err(_) => None,
        };
        Ran::Froze { reply, frozen, taken }
    })
}

/// Ends what the occupant left, and puts the files away.
pub(super) fn put_away(shared: &Arc<Shared>, fixed: &NewSession, hold: Option<Hold>, stays: Stays) -> Errand {
    let (shared, fixed) = (Arc::clone(shared), fixed.clone());
    Box::pin(async move { Ran::PutAway { taken: away(&shared, &fixed, hold, stays).await } })
}

pub(crate) async fn away(
    shared: &Shared,
    fixed: &NewSession,
    hold: Option<Hold>,
    stays: Stays,
) -> Option<Taken> {
    if let Some(hold) = hold {
        hold.end().await;
    }
    let _entry = shared.sandboxes.entry(&fixed.sandbox).await;
    let place = &shared.place;
    if stays == Stays::Folder || !place.exists(&fixed.sandbox).await {
        return None;
    }
    let taken = take(shared, fixed).await;
    if stays == Stays::Snapshot && taken.is_ok() && !in_use(shared, fixed).await {
        match place.destroy(&fixed.sandbox).await {
            Ok(()) => {}
            // The snapshot has it; the folder is tried again at the next start.
            Err(error) => tracing::warn!(session = %fixed.id, %error, "a workspace could not be removed"),
        }
    }
    Some(taken)
}

pub(crate) async fn take(shared: &Shared, fixed: &NewSession) -> Taken {
    let walls = walls(fixed.place);
    let owner = shared.place.owner(&fixed.sandbox, walls).await.map_err(|error| faults::place(&error))?;
    let folder = shared.place.folder(&fixed.sandbox);
    shared.sandboxes.snapshot(&fixed.tenant, &fixed.sandbox, &folder, owner.owners(walls)).await
}

/// Does another session need the folder?
async fn in_use(shared: &Shared, fixed: &NewSession) -> bool {
    let others = shared.journal.sandbox_has_others(&fixed.sandbox, fixed.id).await;
    shared.place.is_occupied(&fixed.sandbox).await || others.unwrap_or(true)
}

impl Task {
    pub(super) fn on_ran(&mut self, ran: Ran) {
        let mut cx = self.cx();
        match ran {
            Ran::Froze { reply, frozen, taken } => self.on_froze(reply, frozen, taken, &mut cx),
            Ran::StoodStill { frozen } => self.on_stood_still(frozen, &mut cx),
            Ran::Copied { reply, taken } => self.on_copied(reply, taken, &mut cx),
            Ran::PutAway { taken } => {
                self.note_taken(taken, &mut cx);
                self.after_gone(&mut cx);
            }
        }
        self.settle(cx);
    }

    fn on_froze(
        &mut self,
        reply: Reply<Session>,
        frozen: Result<(), String>,
        taken: Option<Taken>,
        cx: &mut Cx,
    ) {
        self.note_taken(taken, cx);
        // It may have ended in the meantime.
        if let Err(fault) = lifecycle::step(self.state.status, Move::Pause) {
            self.clock.thaw(Instant::now());
            let _ = reply.send(Err(fault));
            return;
        }
        match (frozen, &mut self.occupied) {
            (Ok(()), Occupied::Live(live)) => {
                live.frozen();
                self.shared.frozen.put(self.fixed.id, &self.fixed.tenant);
                self.idle_since = Instant::now();
                self.shift(Move::Pause, None, cx);
                let (seq, view) = (cx.last_seq(), self.view(cx.last_seq()));
                self.pending.push_back((seq, Pend::answer(reply, Ok(view))));
            }
            (Err(why), _) => {
                self.clock.thaw(Instant::now());
                let reason = format!("nothing could be frozen, so that its agent was stopped: {why}");
                self.rest(Some(reason), false, cx);
                self.leavers.push(reply);
            }
            (Ok(()), Occupied::Empty | Occupied::Launching(_)) => self.leavers.push(reply),
        }
    }

    fn on_stood_still(&mut self, frozen: Result<(), String>, cx: &mut Cx) {
        let text = match frozen {
            Ok(()) => "the disk is nearly full: its processes stand still until there is room".to_owned(),
            Err(why) => format!("the disk is nearly full, and its processes could not be stopped: {why}"),
        };
        cx.record(Actor::System, Notice { level: Level::Warning, text });
    }

    /// The disk is nearly full, or there is room again.
    pub(super) fn on_space(&mut self, space: Space) {
        let mut cx = self.cx();
        let Occupied::Live(live) = &mut self.occupied else { return };
        match space {
            Space::Low if live.stand_still() => {
                let still = stand_still(&live.hold);
                self.clock.freeze(Instant::now());
                self.errands.push_back(still);
            }
            Space::Enough if live.go_on() => {
                if !self.occupied.is_frozen() {
                    self.clock.thaw(Instant::now());
                }
                let text = "there is room on the disk again: its processes go on".to_owned();
                cx.record(Actor::System, Notice { level: Level::Info, text });
            }
            Space::Low | Space::Enough => {}
        }
        self.settle(cx);
    }

    /// Takes a snapshot; what runs stands still for as long as that takes, where it can be made to.
    pub(super) fn on_snapshot(&mut self, reply: Reply<Option<SnapshotTaken>>) {
        let hold = match &self.occupied {
            Occupied::Live(live) if live.runs() && live.hold.keeper().can_freeze() => {
                Some((live.hold.freeze(), live.hold.thaw()))
            }
            Occupied::Live(_) | Occupied::Launching(_) | Occupied::Empty => None,
        };
        let (shared, fixed) = (Arc::clone(&self.shared), self.fixed.clone());
        self.errands.push_back(Box::pin(async move {
            if !shared.place.exists(&fixed.sandbox).await {
                return Ran::Copied { reply, taken: None };
            }
            let thaw = match hold {
                None => None,
                Some((freeze, thaw)) => freeze.await.is_ok().then_some(thaw),
            };
            let taken = take(&shared, &fixed).await;
            if let Some(thaw) = thaw
                && let Err(error) = thaw.await
            {
                tracing::error!(session = %fixed.id, %error, "a process could not be thawed after a snapshot");
            }
            Ran::Copied { reply, taken: Some(taken) }
        }));
    }

    fn on_copied(&mut self, reply: Reply<Option<SnapshotTaken>>, taken: Option<Taken>, cx: &mut Cx) {
        let answer = taken.clone().transpose();
        self.note_taken(taken, cx);
        self.pending.push_back((cx.last_seq(), Pend::answer(reply, answer)));
    }

    fn note_taken(&mut self, taken: Option<Taken>, cx: &mut Cx) {
        match taken {
            None => {}
            Some(Ok(taken)) => drop(cx.record(Actor::System, taken)),
            Some(Err(fault)) => {
                let text = format!("no snapshot could be taken, and its files stay where they are: {fault}");
                cx.record(Actor::System, Notice { level: Level::Warning, text });
            }
        }
    }

    /// Frees what a session that nobody uses takes up; answered when that is done.
    pub(super) fn on_evict(&mut self, reply: Reply<Session>) {
        let mut cx = self.cx();
        if self.occupied.is_frozen() {
            self.rest(Some("evicted to make room; it comes back when needed".to_owned()), true, &mut cx);
            self.leavers.push(reply);
            return self.settle(cx);
        }
        let resting = matches!(self.occupied, Occupied::Empty)
            && self.turns.is_idle()
            && self.stage == Stage::Serving
            && matches!(self.state.status, Status::Paused | Status::Error | Status::Ended);
        if resting {
            self.restart_at = None;
            self.leavers.push(reply);
            self.errands.push_back(put_away(&self.shared, &self.fixed, None, Stays::Snapshot));
        } else {
            self.reply_now(reply, &cx);
        }
        self.settle(cx);
    }
}
