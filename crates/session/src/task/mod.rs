//! The session task: the one owner of a live session's state.
//!
//! It takes commands from its mailbox and output from the occupant's process, asks the pure machines
//! (lifecycle, turns, the occupant) what they mean, appends the resulting events, and lets their effects out
//! (bytes to the agent, answers to callers, acknowledgements to the place) only once those events are on disk.
//! It never waits for a commit. It ends when there is nothing left that needs it; the next command starts
//! another one from the stored row.

mod asks;
pub(crate) mod clock;
mod command;
pub(crate) mod errand;
mod launch;
mod occupied;
mod record;
mod restart;
mod stored;
mod terminals;

pub(crate) use command::{Command, Prompt};
pub(crate) use launch::{restore, warning};
pub(crate) use record::first_state;
pub(crate) use stored::{spawn_new, spawn_new_shell, spawn_stored};
pub(crate) use terminals::KeptTerminal;

use crate::{
    Shared,
    lifecycle::{self, Move, Step},
    live::{Inbox, Reply, take},
    quota::Slot,
    spec::{Memo, Outbox, Spec},
    turns::{Turn, Turns},
};
use asks::Asks;
use clock::Clock;
use errand::Errand;
use journal::{Durable, NewSession, SessionState, TurnRow, Writer};
use launch::Workspace;
use occupant::{Cx, Said};
use occupied::{Heard, Occupied};
use protocol::{
    Actor, Code, ErrorRaised, Fault, Level, Notice, Outcome, Reason, Seq, Session, SessionCreated,
    SessionStatusChanged, Status, TurnStarted, limits,
};
use record::Pend;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use terminals::Furnished;
use tokio::{sync::watch, time::Instant};

pub(crate) struct Task {
    shared: Arc<Shared>,
    inbox: Inbox,
    writer: Writer,
    durable: watch::Receiver<Durable>,
    fixed: NewSession,
    state: SessionState,
    /// As it was last appended, to write it only when it changed.
    written: Option<SessionState>,
    first_seq: Seq,
    memo: Memo,
    redactor: occupant::Redactor,
    turns: Turns,
    /// Rows that changed since the last append.
    turn_rows: Vec<TurnRow>,
    /// What turns that ended since the last append have used.
    used: protocol::UsageSums,
    occupied: Occupied,
    outbox: Outbox,
    /// Work that must be done before the next command is looked at, one after the other.
    errands: VecDeque<Errand>,
    /// Work that the occupant asked for.
    asks: Asks,
    /// How to start one more process beside the occupant; none when it is not there.
    room: Option<Arc<Furnished>>,
    clock: Clock,
    /// Effects waiting for their events to be on disk, in order.
    pending: VecDeque<(Seq, Pend)>,
    /// Callers waiting for the occupant to be ready.
    joiners: Vec<Reply<Session>>,
    /// Callers waiting for the occupant to be gone.
    leavers: Vec<Reply<Session>>,
    /// Callers of `configure`, in the order the occupant answers.
    configurers: VecDeque<Option<Reply<Session>>>,
    /// Output is not read before this: the tenant's rate is used up.
    throttled_until: Option<Instant>,
    idle_since: Instant,
    /// The agent crashed and is brought back then, unless it is needed before.
    restart_at: Option<Instant>,
    stage: Stage,
}

/// When whoever makes a session is told of it.
pub(crate) enum Answered {
    /// When its agent is ready, or could not be started.
    WhenReady(Reply<Session>),
    /// When it is on disk; its agent is still on the way.
    AtOnce(Reply<Session>),
}

/// What the task is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    /// The server stops: take nothing new up.
    Closing,
    /// The server stops and the occupant goes on: the row stays as it is, for the next server.
    Leaving,
    /// The session is being removed, or the pen was lost: end without another word.
    Over,
}

impl Task {
    /// A session that does not exist yet. Its first append makes it.
    pub(crate) fn begin(
        shared: Arc<Shared>,
        fixed: NewSession,
        state: SessionState,
        config: Option<protocol::SessionConfig>,
        inbox: Inbox,
    ) -> Self {
        let writer = shared.journal.begin(fixed.clone());
        let memo = Memo { config, ..Memo::default() };
        Self::assemble(shared, inbox, writer, fixed, state, 1, memo)
    }

    /// A session whose events go on after another one's.
    pub(crate) fn begin_fork(
        shared: Arc<Shared>,
        writer: Writer,
        fixed: NewSession,
        state: SessionState,
        memo: Memo,
        inbox: Inbox,
    ) -> Self {
        Self::assemble(shared, inbox, writer, fixed, state, 1, memo)
    }

    fn assemble(
        shared: Arc<Shared>,
        inbox: Inbox,
        writer: Writer,
        fixed: NewSession,
        state: SessionState,
        first_seq: Seq,
        memo: Memo,
    ) -> Self {
        Self {
            durable: writer.durable(),
            shared,
            inbox,
            writer,
            fixed,
            written: None,
            state,
            first_seq,
            memo,
            redactor: occupant::Redactor::default(),
            turns: Turns::default(),
            turn_rows: Vec::new(),
            used: protocol::UsageSums::default(),
            occupied: Occupied::Empty,
            outbox: Outbox::default(),
            errands: VecDeque::new(),
            asks: Asks::default(),
            room: None,
            clock: Clock::new(Instant::now()),
            pending: VecDeque::new(),
            joiners: Vec::new(),
            leavers: Vec::new(),
            configurers: VecDeque::new(),
            throttled_until: None,
            idle_since: Instant::now(),
            restart_at: None,
            stage: Stage::Serving,
        }
    }

    /// Records the session's birth and starts its occupant.
    pub(crate) fn create(
        &mut self,
        actor: Actor,
        spec: Spec,
        slot: Slot,
        told: Option<Notice>,
        answered: Answered,
    ) {
        let mut cx = self.cx();
        cx.record(
            actor,
            SessionCreated {
                kind: self.fixed.kind,
                place: self.fixed.place,
                agent: self.fixed.agent.clone(),
                agent_version: self.fixed.agent_version,
                model: self.state.model.clone(),
                name: self.state.name.clone(),
                forked_from: self.fixed.forked_from,
            },
        );
        if let Some(told) = told {
            cx.record(Actor::System, told);
        }
        match answered {
            Answered::WhenReady(reply) => self.joiners.push(reply),
            Answered::AtOnce(reply) => {
                self.reply_now(reply, &cx);
                // It was asked for, although nobody waits.
                self.joiners.push(tokio::sync::oneshot::channel().0);
            }
        }
        self.occupied = launch::start(&self.shared, &self.fixed, &self.memo, spec, slot, Workspace::New);
        self.settle(cx);
    }

    /// Runs until nothing needs it.
    pub(crate) async fn run(mut self) {
        loop {
            let (shared, id) = (&self.shared, self.fixed.id);
            if self.stage == Stage::Over || (self.is_done() && shared.live.leave(id, &mut self.inbox)) {
                let (shared, inbox) = (Arc::clone(shared), take(&mut self.inbox));
                return shared.pass_on(id, inbox, self).await;
            }
            let readable = self.has_room();
            let deadline = self.deadline();
            tokio::select! {
                biased;
                changed = self.durable.changed() => match changed {
                    Ok(()) => self.on_durable(),
                    Err(_) => self.lose("the journal is closed"),
                },
                ran = errand::run(&mut self.errands) => self.on_ran(ran),
                (id, result) = self.asks.next() => self.on_asked(id, result),
                Some(command) = self.inbox.recv(), if self.errands.is_empty() => self.on_command(command).await,
                heard = self.occupied.hear(readable) => self.on_heard(heard),
                () = until(deadline) => self.on_tick(),
            }
        }
    }

    fn is_done(&self) -> bool {
        let idle = self.turns.is_idle() || matches!(self.stage, Stage::Closing | Stage::Leaving);
        matches!(self.occupied, Occupied::Empty)
            && self.errands.is_empty()
            && self.restart_at.is_none()
            && idle
            && self.pending.is_empty()
            && self.writer.pending_bytes() == 0
    }

    fn has_room(&self) -> bool {
        self.writer.pending_bytes() < limits::PENDING_BYTES
            && self.throttled_until.is_none_or(|until| until <= Instant::now())
    }

    /// The moment at which something has to be done although nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let occupant = self.occupied.deadline(&self.clock);
        let idle = self.idle_deadline();
        let throttle = self.throttled_until.filter(|until| *until > Instant::now());
        [occupant, idle, throttle, self.restart_deadline()].into_iter().flatten().min()
    }

    /// An occupant that nobody needs is stopped; one with a turn is never idle, unless it is frozen.
    fn idle_deadline(&self) -> Option<Instant> {
        let resting = self.occupied.is_ready() && self.turns.is_idle();
        (resting || self.occupied.is_frozen()).then(|| self.idle_since + self.shared.options.idle)
    }

    fn on_tick(&mut self) {
        let mut cx = self.cx();
        let now = Instant::now();
        if self.idle_deadline().is_some_and(|deadline| deadline <= now) {
            let secs = self.shared.options.idle.as_secs();
            let reason = format!("idle for {secs} s: its agent was stopped and comes back when needed");
            let evict = self.occupied.is_frozen();
            self.rest(Some(reason), evict, &mut cx);
        } else if self.restart_deadline().is_some_and(|deadline| deadline <= now) {
            self.restart(&mut cx);
        } else if let Some(heard) = self.occupied.overdue(now) {
            self.settle(cx);
            return self.on_heard(heard);
        } else if let Occupied::Live(live) = &mut self.occupied {
            live.acp.tick(&mut cx);
        }
        self.settle(cx);
    }

    /// What came from the occupant's side.
    fn on_heard(&mut self, heard: Heard) {
        let mut cx = self.cx();
        match heard {
            Heard::Launched(launched) => match *launched {
                Ok(launched) => self.on_launched(launched, &mut cx),
                Err(fault) => {
                    self.occupied = Occupied::Empty;
                    self.fail_start(&fault, &mut cx);
                }
            },
            Heard::Stdout(chunk) => {
                if let Occupied::Live(live) = &mut self.occupied {
                    live.acp.output(&chunk.bytes, &mut cx);
                }
            }
            Heard::StdoutClosed => {
                if let Occupied::Live(live) = &mut self.occupied {
                    live.acp.eof(&mut cx);
                }
            }
            Heard::OverDisk { used, limit } => self.on_over_disk(used, limit, &mut cx),
            Heard::Refused(refused) => {
                let text = format!(
                    "a connection to {}:{} was refused: {}",
                    refused.host,
                    refused.port,
                    refused.why()
                );
                cx.record(Actor::System, Notice { level: Level::Warning, text });
            }
            Heard::Nothing => return,
            Heard::Gone(exit) => self.on_gone(exit, &mut cx),
        }
        self.settle(cx);
    }

    fn on_launched(&mut self, launched: launch::Launched, cx: &mut Cx) {
        for told in launched.told {
            cx.record(Actor::System, told);
        }
        self.redactor = launched.begin.redactor.clone();
        self.clock = Clock::new(Instant::now());
        cx.now = self.clock.read(Instant::now());
        self.asks.clear();
        self.room = Some(Arc::new(launched.room));
        let acp = occupant::Acp::begin(launched.begin, cx);
        self.let_go();
        self.memo.tie = Some(launched.spawned.hold.tie().clone());
        self.occupied = Occupied::live(acp, launched.spawned, launched.slot, self.redactor.clone());
        self.watch_disk(launched.disk_bytes);
    }

    /// The occupant could not be made or did not shake hands: everyone who waited for it is told.
    fn fail_start(&mut self, fault: &Fault, cx: &mut Cx) {
        let wanted = self.is_wanted();
        cx.record(Actor::System, ErrorRaised { code: fault.code, message: fault.message.to_string() });
        self.shift(Move::Fail, Some(fault.message.to_string()), cx);
        for turn in self.turns.take_all() {
            self.end_turn(
                &turn,
                Outcome::Failed,
                Reason::AgentNotStarted,
                Some(fault.message.to_string()),
                None,
                cx,
            );
        }
        self.dismiss_joiners(fault, cx);
        if !wanted {
            self.crashed("the agent did not come back", cx);
        }
    }

    /// The occupant they wait for will not come.
    fn dismiss_joiners(&mut self, fault: &Fault, cx: &Cx) {
        let seq = cx.last_seq();
        for joiner in std::mem::take(&mut self.joiners) {
            self.pending.push_back((seq, Pend::answer(joiner, Err(fault.clone()))));
        }
    }

    /// What the occupant's machine told us, at once: what follows from it is recorded in the same append.
    fn on_said(&mut self, said: Said, cx: &mut Cx) {
        match said {
            Said::Ready { agent_session, .. } => {
                self.memo.agent_session = Some(agent_session);
                self.memo.whose = occupant::Whose::Own;
                if let Occupied::Live(live) = &mut self.occupied {
                    live.ready();
                }
                self.shift(Move::Ready, None, cx);
                // One that was brought back unasked is as idle as it was: a crash keeps nobody awake.
                if self.is_wanted() {
                    self.idle_since = Instant::now();
                }
                self.answer_joiners(cx);
                self.start_next(cx);
            }
            Said::TurnEnded { turn, outcome, reason, message, usage } => {
                if let Some(turn) = self.turns.finish(turn) {
                    self.end_turn(&turn, outcome, reason, message, usage, cx);
                    self.idle_since = Instant::now();
                }
                self.start_next(cx);
            }
            Said::Configured(result) => self.on_configured(result, cx),
            // When the process is gone already there is nothing left to stop.
            Said::Unusable(_) if !matches!(self.occupied, Occupied::Live(_)) => {}
            Said::Unusable(fault) => {
                let starting = !self.occupied.is_ready();
                let reason = Some(fault.message.to_string());
                self.occupied.kill(occupied::After::Rest { reason, evict: false });
                if starting {
                    self.fail_start(&fault, cx);
                }
            }
        }
    }

    fn answer_joiners(&mut self, cx: &Cx) {
        let seq = cx.last_seq();
        for joiner in std::mem::take(&mut self.joiners) {
            let view = self.view(seq);
            self.pending.push_back((seq, Pend::answer(joiner, Ok(view))));
        }
    }

    /// Starts the next turn when the occupant can take one.
    fn start_next(&mut self, cx: &mut Cx) {
        let Occupied::Live(live) = &mut self.occupied else { return };
        if !live.can_prompt() {
            return;
        }
        let Some(turn) = self.turns.start_next() else { return };
        let row = turn_row(turn, true, None);
        if let Some(model) = &turn.model
            && self.memo.settings().model.as_ref() != Some(model)
        {
            let config =
                protocol::SessionConfig { model: Some(model.clone()), mode: None, thought_level: None };
            self.configurers.push_back(None);
            live.acp.configure(config, Actor::System, cx);
        }
        cx.record(Actor::System, TurnStarted { turn: turn.id });
        live.acp.prompt(turn.id, &turn.content, turn.limits, cx);
        self.memo.last_prompt = Some(turn.accepted_seq);
        self.note_turn(row);
    }

    fn end_turn(
        &mut self,
        turn: &Turn,
        outcome: Outcome,
        reason: Reason,
        message: Option<String>,
        usage: Option<protocol::Usage>,
        cx: &mut Cx,
    ) {
        // A turn that is ended from here has used what its agent told so far.
        let usage = usage.or_else(|| match &self.occupied {
            Occupied::Live(live) => live.acp.used_so_far(turn.id),
            Occupied::Empty | Occupied::Launching(_) => None,
        });
        let used = protocol::UsageSums::of_turn(usage.as_ref());
        self.state.usage = self.state.usage.plus(used);
        self.used = self.used.plus(used);
        let seq =
            cx.record(Actor::System, protocol::TurnEnded { turn: turn.id, outcome, reason, message, usage });
        self.note_turn(turn_row(turn, true, Some(seq)));
        self.shared.counters.turn(outcome);
    }

    /// A turn that is accepted and started in one step is written once.
    fn note_turn(&mut self, row: TurnRow) {
        match self.turn_rows.iter_mut().find(|noted| noted.turn == row.turn) {
            Some(noted) => *noted = row,
            None => self.turn_rows.push(row),
        }
    }

    /// Moves the status as the lifecycle says, and records it.
    fn shift(&mut self, wish: Move, reason: Option<String>, cx: &mut Cx) {
        if let Ok(Step::To(to)) = lifecycle::step(self.state.status, wish) {
            let from = std::mem::replace(&mut self.state.status, to);
            self.state.status_reason.clone_from(&reason);
            cx.record(Actor::System, SessionStatusChanged { from, to, reason });
        }
    }

    /// Stops the occupant on purpose; the session can be resumed. Prompts that wait get their outcome now:
    /// otherwise they would bring it back at once.
    fn rest(&mut self, reason: Option<String>, evict: bool, cx: &mut Cx) {
        for turn in self.turns.take_all() {
            self.end_turn(&turn, Outcome::Interrupted, Reason::SessionPaused, None, None, cx);
        }
        self.occupied.stop(occupied::After::Rest { reason, evict });
    }

    /// Its workspace holds more than it may: the turn fails, and the process goes.
    fn on_over_disk(&mut self, used: u64, limit: u64, cx: &mut Cx) {
        let mib = |bytes: u64| bytes / (1024 * 1024);
        let text = format!(
            "its workspace holds over {} MiB, and the limit is {} MiB; remove files, then resume it",
            mib(used),
            mib(limit)
        );
        if let Some(id) = self.turns.running().map(|turn| turn.id)
            && let Some(turn) = self.turns.finish(id)
        {
            self.end_turn(&turn, Outcome::Failed, Reason::LimitExceeded, Some(text.clone()), None, cx);
        }
        self.occupied.kill(occupied::After::Rest { reason: Some(text), evict: false });
    }

    fn watch_disk(&mut self, limit: Option<u64>) {
        if let (Some(limit), Occupied::Live(live)) = (limit, &mut self.occupied) {
            live.watch_disk(self.shared.place.folder(&self.fixed.sandbox), limit);
        }
    }

    fn interrupt_running(&mut self, reason: Reason, cx: &mut Cx) {
        if let Some(id) = self.turns.running().map(|turn| turn.id)
            && let Some(turn) = self.turns.finish(id)
        {
            self.end_turn(&turn, Outcome::Interrupted, reason, None, None, cx);
        }
    }

    /// The process is gone and its output read to the end.
    fn on_gone(&mut self, exit: occupied::Gone, cx: &mut Cx) {
        let Occupied::Live(mut live) = std::mem::replace(&mut self.occupied, Occupied::Empty) else { return };
        live.acp.exited(cx);
        let was_ready = live.is_ready();
        let stderr = live.stderr_tail();
        self.shared.keep_logs(self.fixed.id, live.logs());
        let expected = exit.after.is_some();
        cx.record(
            Actor::System,
            protocol::OccupantExited {
                code: exit.exit.code,
                signal: exit.exit.signal,
                expected,
                stderr: stderr.clone(),
            },
        );
        // What the machine says of the turn it lost belongs before the status.
        self.hear_said(cx);
        self.configurers.clear();
        self.memo.spent = live.acp.spent();
        self.asks.clear();
        self.room = None;
        self.shared.frozen.take(self.fixed.id);
        let stays = errand::Stays::after(exit.after.as_ref());
        self.errands.push_back(errand::put_away(&self.shared, &self.fixed, Some(live.into_hold()), stays));
        self.let_go();
        match exit.after {
            Some(occupied::After::Rest { reason, .. }) => self.shift(Move::Rest, reason, cx),
            Some(occupied::After::End | occupied::After::Remove) => {
                self.shift(Move::End, None, cx);
            }
            None if was_ready => {
                let reason = format!("the agent {}", exit.describe());
                let was_active = self.state.status == Status::Active;
                self.shift(Move::Fail, Some(reason.clone()), cx);
                // One that leaves with success meant to, and comes back when it is needed.
                if was_active && exit.exit.code != Some(0) {
                    self.crashed(&reason, cx);
                }
            }
            None => {
                let said = stderr.map(|text| format!(": {}", text.trim_end())).unwrap_or_default();
                let fault = Fault::new(
                    Code::AgentFailed,
                    format!("The agent {} before it was ready{said}", exit.describe()),
                );
                self.fail_start(&fault, cx);
            }
        }
    }

    /// What was meant for this process must not reach the next one.
    fn let_go(&mut self) {
        self.memo.let_go();
        self.outbox = Outbox::default();
        self.pending.retain(|(_, pend)| match pend {
            Pend::Send(..) | Pend::Forget(_) => false,
            Pend::Answer(_) => true,
        });
    }

    /// Nobody is there: bring the occupant back for prompts that wait, or tell those who waited for its end.
    fn after_gone(&mut self, cx: &mut Cx) {
        let seq = cx.last_seq();
        for leaver in std::mem::take(&mut self.leavers) {
            let view = self.view(seq);
            self.pending.push_back((seq, Pend::answer(leaver, Ok(view))));
        }
        let wanted = self.turns.has_waiting() || !self.joiners.is_empty();
        if self.state.status == Status::Ended || self.stage != Stage::Serving || !wanted {
            return;
        }
        if let Err(fault) = self.bring() {
            self.fail_start(&fault, cx);
        }
    }

    /// Starts an occupant where there is none.
    fn bring(&mut self) -> Result<(), Fault> {
        self.restart_at = None;
        if !matches!(self.occupied, Occupied::Empty) {
            return Ok(());
        }
        let slot = self.shared.slots.take(&self.fixed.tenant)?;
        let spec = Spec::open(&self.shared.vault, &self.fixed.spec).map_err(|error| {
            tracing::error!(session = %self.fixed.id, %error, "the session's options cannot be opened");
            Fault::new(Code::SandboxFailed, format!("The session cannot be started: {error}"))
        })?;
        self.occupied = launch::start(&self.shared, &self.fixed, &self.memo, spec, slot, Workspace::Kept);
        Ok(())
    }

    /// The pen is lost: another server owns the session, or the store is broken. Nothing more can be
    /// recorded, so nothing more may happen.
    fn lose(&mut self, why: &str) {
        tracing::error!(session = %self.fixed.id, why, "the session's task gives up");
        self.stage = Stage::Over;
        self.shared.live.forget(self.fixed.id);
        let fault = || Fault::new(Code::Fenced, "The session moved or its journal failed; ask again");
        for reply in self.joiners.drain(..).chain(self.leavers.drain(..)) {
            let _ = reply.send(Err(fault()));
        }
        for (_, pend) in self.pending.drain(..) {
            pend.refuse(fault());
        }
    }

    /// The session as callers see it, as of an event.
    fn view(&self, last_seq: Seq) -> Session {
        crate::view::session(&self.fixed, &self.state, self.first_seq, last_seq)
    }

    fn on_configured(&mut self, result: Result<protocol::SessionConfig, Fault>, cx: &mut Cx) {
        let reply = self.configurers.pop_front().flatten();
        let answer = match result {
            Ok(config) => {
                self.remember(config);
                Ok(self.view(cx.last_seq()))
            }
            Err(fault) => {
                if reply.is_none() {
                    let text = format!("the message's model was not taken: {fault}");
                    cx.record(Actor::System, Notice { level: Level::Warning, text });
                }
                Err(fault)
            }
        };
        if let Some(reply) = reply {
            self.pending.push_back((cx.last_seq(), Pend::answer(reply, answer)));
        }
    }

    /// Settings that were taken are kept for the next start.
    fn remember(&mut self, config: protocol::SessionConfig) {
        let mut kept = self.memo.settings();
        if let Some(model) = config.model {
            self.state.model = Some(model.clone());
            kept.model = Some(model);
        }
        kept.mode = config.mode.or(kept.mode);
        kept.thought_level = config.thought_level.or(kept.thought_level);
        self.memo.config = Some(kept);
    }
}

fn turn_row(turn: &Turn, started: bool, ended_seq: Option<Seq>) -> TurnRow {
    TurnRow {
        turn: turn.id,
        client_id: turn.client_id.clone(),
        digest: turn.digest,
        accepted_seq: turn.accepted_seq,
        started,
        ended_seq,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// How long a process has to end by itself once it was asked to.
pub(crate) const GRACE: Duration = Duration::from_secs(limits::CLOSE_GRACE_SECS);
