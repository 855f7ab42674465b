//! Waking a stored session: taking its lease, and giving every turn that a stopped server left open its
//! outcome before anything else happens.

use super::{
    Command, Occupied, Stage, Task,
    clock::Clock,
    errand::{self, Stays},
};
use crate::{
    Shared, faults,
    lifecycle::Move,
    live::{Inbox, take},
    spec::{Memo, Outbox, Spec},
    turns::{Admission, Turn},
};
use journal::Journal;
use occupant::{Cx, TurnLimits};
use protocol::{Actor, Body, Code, Fault, Level, Notice, Outcome, Reason, SessionId, SessionKind, Status};
use std::sync::Arc;
use tokio::time::Instant;
use tracing::Instrument as _;

const SERVER_STOPPED: &str = "the server stopped";

/// Starts a task for a session that is in the store. Its inbox is registered already.
pub(crate) fn spawn_stored(shared: Arc<Shared>, id: SessionId, mut inbox: Inbox) {
    let owner = Arc::clone(&shared);
    let span = tracing::info_span!("session", %id);
    let future = async move {
        match load(&shared, id, &mut inbox).await {
            Ok(()) => {}
            Err(fault) => refuse_all(&shared, id, &mut inbox, &fault),
        }
    };
    supervise(Arc::clone(&owner), future.instrument(span), id);
}

/// Starts the task of a session that has just been made.
pub(crate) fn spawn_new(task: Task, id: SessionId) {
    let span = tracing::info_span!("session", %id);
    supervise(Arc::clone(&task.shared), task.serve().instrument(span), id);
}

/// The same for a shell.
pub(crate) fn spawn_new_shell(task: crate::shells::ShellTask, shared: Arc<Shared>, id: SessionId) {
    let span = tracing::info_span!("session", %id);
    let forget = Forget { shared: Arc::clone(&shared), id };
    let future = async move {
        let _forget = forget;
        task.run().await;
    };
    supervise(shared, future.instrument(span), id);
}

/// After this many broken tasks sessions are no longer taken up by themselves: something is badly wrong.
const BREAKDOWNS: u64 = 100;

/// A task that panics is a bug; it must not look like a quiet end. The next task gives the turns it left
/// open their outcome.
fn supervise(shared: Arc<Shared>, future: impl Future<Output = ()> + Send + 'static, id: SessionId) {
    let task = tokio::spawn(future);
    tokio::spawn(async move {
        if let Err(error) = task.await {
            tracing::error!(session = %id, %error, "a session's task broke");
            if shared.counters.broke() < BREAKDOWNS {
                shared.redispatch(id, Command::Wake).await;
            }
        }
    });
}

async fn load(shared: &Arc<Shared>, id: SessionId, inbox: &mut Inbox) -> Result<(), Fault> {
    let (writer, row) = shared.journal.acquire(id).await.map_err(faults::write)?;
    shared.live.introduce(id, crate::live::Card::of(&row.fixed));
    if row.fixed.kind == SessionKind::Shell {
        let inbox = take(inbox);
        let _forget = Forget { shared: Arc::clone(shared), id };
        crate::shells::serve_stored(Arc::clone(shared), writer, row, inbox).await;
        return Ok(());
    }
    let open =
        if row.state.live { shared.journal.open_turns(id).await.map_err(faults::read)? } else { Vec::new() };
    let inbox = take(inbox);
    let memo = Memo::decode(&row.state.memo);
    let was_live = row.state.live;
    let mut task =
        Task::assemble(Arc::clone(shared), inbox, writer, row.fixed, row.state, row.first_seq, memo);
    task.written = Some(task.state.clone());
    if was_live {
        task.recover(open).await;
    }
    task.serve().await;
    Ok(())
}

impl Task {
    /// Runs, and passes on what came too late.
    pub(crate) async fn serve(self) {
        let _forget = Forget { shared: Arc::clone(&self.shared), id: self.fixed.id };
        self.run().await;
    }

    /// A server stopped while this session was live. Its process is taken up where it is; when it is gone, the running
    /// turn is interrupted. The prompts that waited run now, or after it.
    async fn recover(&mut self, open: Vec<journal::TurnRow>) {
        let mut cx = self.cx();
        let found = match self.find_occupant().await {
            Ok(found) => Some(found),
            Err(why) => {
                self.end_terminals().await;
                self.let_go();
                tracing::info!(session = %self.fixed.id, why, "the occupant was not taken up");
                None
            }
        };
        for row in open {
            let mut turn = Turn {
                id: row.turn,
                client_id: row.client_id,
                digest: row.digest,
                accepted_seq: row.accepted_seq,
                content: Vec::new(),
                model: None,
                limits: TurnLimits::default(),
            };
            if row.started && found.as_ref().is_some_and(|found| found.saved.turn() == Some(turn.id)) {
                self.turns.take_up(turn);
                continue;
            }
            if row.started {
                let message = Some("the server stopped, and the agent with it".to_owned());
                self.end_turn(&turn, Outcome::Interrupted, Reason::ServerStopped, message, None, &mut cx);
                continue;
            }
            let journal = self.shared.journal.clone();
            match prompt_of(&journal, self.fixed.id, &turn).await {
                Ok(prompt) => {
                    turn.limits = super::command::turn_limits(prompt.max_turns, prompt.max_budget_usd);
                    turn.content = prompt.content;
                    turn.model = prompt.model;
                    self.turns.place(turn, Admission::Back);
                }
                Err(message) => {
                    self.end_turn(
                        &turn,
                        Outcome::Failed,
                        Reason::ServerStopped,
                        Some(message),
                        None,
                        &mut cx,
                    );
                }
            }
        }
        if let Some(found) = found {
            self.take_up(found, &mut cx);
            return self.settle(cx);
        }
        match self.state.status {
            Status::Active | Status::Starting => {
                self.shift(Move::Rest, Some(SERVER_STOPPED.to_owned()), &mut cx);
            }
            Status::Paused | Status::Error | Status::Ended => {}
        }
        if self.state.status == Status::Ended {
            // Ended, but the row still said live: the end was recorded and its files were not put away yet.
            self.errands.push_back(errand::put_away(&self.shared, &self.fixed, None, Stays::Snapshot));
            for turn in self.turns.take_all() {
                self.end_turn(&turn, Outcome::Interrupted, Reason::SessionEnded, None, None, &mut cx);
            }
        } else if self.turns.has_waiting()
            && let Err(fault) = self.bring()
        {
            self.fail_start(&fault, &mut cx);
        }
        self.settle(cx);
    }

    /// Looks for the process that the memo leads to, and makes everything ready to go on with it.
    async fn find_occupant(&mut self) -> Result<Found, String> {
        let tie = self.memo.tie.clone().ok_or("it had none")?;
        let process = self.shared.place.take_up(&self.fixed.sandbox, &tie, self.memo.consumed).await;
        let process = process.map_err(|error| error.to_string())?;
        // From here on, giving up ends the process.
        if self.state.status == Status::Ended {
            return Err("the session has ended".to_owned());
        }
        let saved = self.memo.saved.clone().ok_or("its handshake was not finished")?;
        let outbox = match &self.memo.outbox {
            Some(sealed) => Outbox::open(&self.shared.vault, sealed).map_err(|error| error.to_string())?,
            None => Outbox::default(),
        };
        let spec = Spec::open(&self.shared.vault, &self.fixed.spec).map_err(|error| error.to_string())?;
        let outfit = super::launch::outfit(&self.shared, &self.fixed, &self.memo, &spec).await;
        let outfit = outfit.map_err(|fault| fault.message.to_string())?;
        let disk_bytes = outfit.disk_bytes();
        let (begin, room) = outfit.into_parts();
        let mut terminals = Vec::new();
        for kept in self.memo.terminals.clone() {
            match self.shared.place.take_up_kept(&self.fixed.sandbox, &kept.tie).await {
                Ok(found) => terminals.push((kept, found)),
                Err(error) => tracing::warn!(session = %self.fixed.id, %error, "a terminal was lost"),
            }
        }
        Ok(Found { process, saved, outbox, disk_bytes, begin, room, terminals })
    }

    /// The agent is gone: what it started through us goes too.
    async fn end_terminals(&mut self) {
        for kept in std::mem::take(&mut self.memo.terminals) {
            if let Ok(found) = self.shared.place.take_up_kept(&self.fixed.sandbox, &kept.tie).await {
                found.hold.end().await;
            }
        }
    }

    fn take_up(&mut self, found: Found, cx: &mut Cx) {
        let Found { process, saved, outbox, disk_bytes, begin, room, terminals } = found;
        self.room = Some(Arc::new(room));
        self.asks.adopt(terminals);
        let text = "the server was restarted; the agent went on meanwhile and was taken up".to_owned();
        cx.record(Actor::System, Notice { level: Level::Info, text });
        self.redactor = begin.redactor.clone();
        self.clock = Clock::new(Instant::now());
        cx.now = self.clock.read(Instant::now());
        let frozen = process.frozen;
        let acp = occupant::Acp::take_up(begin, saved, self.memo.consumed, cx);
        // A line may have been sent whose number is not written down; none is used twice.
        self.memo.sent = self.memo.sent.max(process.input_taken);
        self.outbox = outbox;
        self.outbox.arrived(process.input_taken);
        for (number, bytes) in self.outbox.lines() {
            if let Err(error) = process.process.stdin.send(*number, bytes.clone()) {
                tracing::warn!(session = %self.fixed.id, %error, "the agent takes no input");
            }
        }
        let slot = self.shared.slots.count(&self.fixed.tenant);
        self.occupied = Occupied::taken_up(acp, process, slot, self.redactor.clone());
        self.watch_disk(disk_bytes);
        match (frozen, self.state.status) {
            (true, Status::Paused) => {
                self.shared.frozen.put(self.fixed.id, &self.fixed.tenant);
                self.clock.freeze(Instant::now());
            }
            // The server stopped between the freezing and the record of it, or the other way round.
            (true, _) => self.thaw(cx),
            (false, _) => self.shift(Move::Ready, None, cx),
        }
        self.start_next(cx);
    }

    /// The server stops. An occupant that is ready goes on for the next server to find; waiting prompts stay in the
    /// journal.
    pub(super) fn close(&mut self) {
        if let Occupied::Live(live) = &self.occupied
            && live.is_ready()
            && !self.occupied.is_leaving()
        {
            return self.leave_running();
        }
        self.stage = Stage::Closing;
        self.restart_at = None;
        let mut cx = self.cx();
        self.interrupt_running(Reason::ServerStopped, &mut cx);
        if self.turns.has_waiting() {
            let text = "the server stopped; waiting prompts run when it is back".to_owned();
            cx.record(Actor::System, Notice { level: Level::Info, text });
        }
        match &self.occupied {
            Occupied::Live(_) => {
                let reason = Some(SERVER_STOPPED.to_owned());
                self.occupied.stop(super::occupied::After::Rest { reason, evict: false });
            }
            Occupied::Launching(_) => {
                self.occupied = Occupied::Empty;
                self.shift(Move::Rest, Some(SERVER_STOPPED.to_owned()), &mut cx);
                let fault =
                    Fault::new(Code::ShuttingDown, "The server is shutting down; ask again in a moment");
                self.dismiss_joiners(&fault, &cx);
            }
            Occupied::Empty => {}
        }
        self.settle(cx);
    }
}

impl Task {
    fn leave_running(&mut self) {
        // Settled first, so that the row holds everything up to here.
        let cx = self.cx();
        self.settle(cx);
        self.stage = Stage::Leaving;
        if let Occupied::Live(live) = std::mem::replace(&mut self.occupied, Occupied::Empty) {
            self.shared.frozen.take(self.fixed.id);
            self.asks.leave();
            live.leave();
        }
        let fault = Fault::new(Code::ShuttingDown, "The server is shutting down; ask again in a moment");
        self.dismiss_joiners(&fault, &self.cx());
        for reply in self.configurers.drain(..).flatten() {
            let _ = reply.send(Err(fault.clone()));
        }
        self.on_durable();
    }
}

/// A process that outlived its server, and what it takes to go on with it.
struct Found {
    process: place::TakenUp,
    saved: occupant::Saved,
    outbox: Outbox,
    disk_bytes: Option<u64>,
    begin: occupant::Begin,
    room: super::terminals::Furnished,
    terminals: Vec<(super::KeptTerminal, place::TakenUp)>,
}

/// What a waiting prompt says, from the journal.
async fn prompt_of(
    journal: &Journal,
    session: SessionId,
    turn: &Turn,
) -> Result<protocol::PromptAccepted, String> {
    let event = journal.event(session, turn.accepted_seq).await.map_err(|error| error.to_string())?;
    let event = event.ok_or("the prompt is no longer in the journal")?;
    match event.decode().map_err(|error| error.to_string())? {
        Body::PromptAccepted(prompt) if prompt.turn == turn.id => Ok(prompt),
        _ => Err("the journal holds something else where the prompt should be".to_owned()),
    }
}

/// However a task ends, its entry goes: a mailbox nobody reads would take commands for ever.
struct Forget {
    shared: Arc<Shared>,
    id: SessionId,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.shared.live.forget_closed(self.id);
    }
}

/// The session could not be loaded: everyone who asked is told, and the entry goes.
fn refuse_all(shared: &Arc<Shared>, id: SessionId, inbox: &mut Inbox, fault: &Fault) {
    shared.live.forget(id);
    inbox.close();
    while let Ok(command) = inbox.try_recv() {
        command.refuse(fault);
    }
}
