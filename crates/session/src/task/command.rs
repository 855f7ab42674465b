//! What callers ask of a live session, and how the task answers. Admission is the pure machines' business;
//! here their verdicts become events and replies.

use super::{
    Occupied, Pend, Stage, Task,
    errand::{self, Stays},
    occupied::After,
    turn_row,
};
use crate::{
    lifecycle::{self, Move, Step},
    live::Reply,
    turns::{Admission, Occupancy, Turn},
};
use journal::{Space, TurnRow};
use occupant::{Cx, TurnLimits};
use protocol::{
    Accepted, Actor, Answer, Code, Configure, ContentBlock, Disposition, Fault, OnBusy, Outcome,
    PromptAccepted, Reason, Seq, Session, SessionConfig, SessionRenamed, SnapshotTaken, Status, Timestamp,
    TurnId, Usd,
};
use tokio::time::Instant;

/// A prompt, checked.
#[derive(Debug, Clone)]
pub(crate) struct Prompt {
    pub(crate) client_id: Option<String>,
    pub(crate) content: Vec<ContentBlock>,
    pub(crate) on_busy: OnBusy,
    pub(crate) model: Option<String>,
    pub(crate) max_turns: Option<u32>,
    pub(crate) max_budget_usd: Option<f64>,
    /// Of everything above, to tell a repeat from a reuse of the id.
    pub(crate) digest: [u8; 32],
}

pub(crate) enum Command {
    Prompt {
        actor: Actor,
        prompt: Box<Prompt>,
        reply: Reply<Accepted>,
    },
    Cancel {
        reply: Reply<Session>,
    },
    Pause {
        reply: Reply<Session>,
    },
    Resume {
        reply: Reply<Session>,
    },
    Stop {
        reply: Reply<Session>,
    },
    /// Take a snapshot of its files as they are; none when there are no files.
    Snapshot {
        reply: Reply<Option<SnapshotTaken>>,
    },
    /// Free what it takes up, if nobody uses it.
    Evict {
        reply: Reply<Session>,
    },
    End {
        reply: Reply<Session>,
    },
    Remove {
        actor: Actor,
        reply: Reply<Session>,
    },
    Configure {
        actor: Actor,
        request: Configure,
        reply: Reply<Session>,
    },
    Answer {
        actor: Actor,
        permission: Seq,
        answer: Answer,
        reply: Reply<Session>,
    },
    Logs {
        reply: Reply<Option<(String, u64)>>,
    },
    /// The disk is nearly full, or there is room again.
    Space {
        space: Space,
    },
    /// For a shell.
    Shell(crate::shells::ShellCommand),
    /// Only wakes the task, which then takes up what a stopped server left.
    Wake,
    Shutdown,
}

impl Command {
    pub(crate) fn refuse(self, fault: &Fault) {
        // A caller that went away wanted no answer.
        match self {
            Self::Prompt { reply, .. } => drop(reply.send(Err(fault.clone()))),
            Self::Cancel { reply }
            | Self::Pause { reply }
            | Self::Resume { reply }
            | Self::Stop { reply }
            | Self::Evict { reply }
            | Self::End { reply }
            | Self::Remove { reply, .. }
            | Self::Configure { reply, .. }
            | Self::Answer { reply, .. } => drop(reply.send(Err(fault.clone()))),
            Self::Logs { reply } => drop(reply.send(Err(fault.clone()))),
            Self::Snapshot { reply } => drop(reply.send(Err(fault.clone()))),
            Self::Shell(command) => command.refuse(fault),
            Self::Space { .. } | Self::Wake | Self::Shutdown => {}
        }
    }
}

impl Task {
    pub(super) async fn on_command(&mut self, command: Command) {
        match command {
            Command::Prompt { actor, prompt, reply } => self.on_prompt(actor, *prompt, reply).await,
            Command::Cancel { reply } => self.on_cancel(reply),
            Command::Pause { reply } => self.on_pause(reply),
            Command::Resume { reply } => self.on_resume(reply),
            Command::Stop { reply } => self.on_stop(reply),
            Command::Evict { reply } => self.on_evict(reply),
            Command::Snapshot { reply } => self.on_snapshot(reply),
            Command::End { reply } => self.on_end(reply),
            Command::Remove { actor, reply } => self.on_remove(actor, reply).await,
            Command::Configure { actor, request, reply } => self.on_configure(actor, request, reply),
            Command::Answer { actor, permission, answer, reply } => {
                self.on_answer(actor, permission, answer, reply);
            }
            Command::Logs { reply } => {
                let logs = match &self.occupied {
                    Occupied::Live(live) => Some(live.logs()),
                    Occupied::Empty | Occupied::Launching(_) => None,
                };
                let _ = reply.send(Ok(logs));
            }
            Command::Space { space } => self.on_space(space),
            Command::Shell(command) => command.refuse(&crate::shells::no_shell()),
            Command::Wake => {}
            Command::Shutdown => self.close(),
        }
    }

    async fn on_prompt(&mut self, actor: Actor, prompt: Prompt, reply: Reply<Accepted>) {
        let stored = match &prompt.client_id {
            Some(client_id) if self.turns.by_client_id(client_id).is_none() => {
                let journal = self.shared.journal.clone();
                journal.turn_by_client_id(self.fixed.id, client_id).await.map_err(crate::faults::read)
            }
            Some(_) | None => Ok(None),
        };
        match stored.and_then(|row| self.repeated(&prompt, row)) {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                tracing::debug!(client_id = prompt.client_id, ?accepted, "a prompt was repeated");
                // The first one may still be on its way to disk.
                self.pending.push_back((accepted.seq, Pend::answer(reply, Ok(accepted))));
                return self.on_durable();
            }
            Err(fault) => return drop(reply.send(Err(fault))),
        }
        let mut cx = self.cx();
        let client_id = prompt.client_id.clone();
        let result = self.accept(actor, prompt, &mut cx);
        tracing::debug!(client_id, ?result, "a prompt was judged");
        match result {
            Ok(accepted) => self.pending.push_back((accepted.seq, Pend::answer(reply, Ok(accepted)))),
            Err(fault) => drop(reply.send(Err(fault))),
        }
        self.settle(cx);
    }

    /// A prompt whose client id was used before: the same content gets the first answer, other content none.
    fn repeated(&self, prompt: &Prompt, stored: Option<TurnRow>) -> Result<Option<Accepted>, Fault> {
        let Some(client_id) = &prompt.client_id else { return Ok(None) };
        let (turn, seq, digest) = match (self.turns.by_client_id(client_id), stored) {
            (Some(turn), _) => (turn.id, turn.accepted_seq, turn.digest),
            (None, Some(row)) => (row.turn, row.accepted_seq, row.digest),
            (None, None) => return Ok(None),
        };
        if digest != prompt.digest {
            return Err(Fault::new(
                Code::IdReused,
                format!("The message id {client_id:?} was used before with other content; use a new id"),
            ));
        }
        Ok(Some(Accepted { turn, seq, disposition: Disposition::Repeated }))
    }

    fn accept(&mut self, actor: Actor, prompt: Prompt, cx: &mut Cx) -> Result<Accepted, Fault> {
        self.refuse_when_ending()?;
        self.shared.rates.check(&self.fixed.tenant, Instant::now())?;
        let occupancy = if self.occupied.is_ready() { Occupancy::Ready } else { Occupancy::Away };
        let admission = self.turns.admit(prompt.on_busy, occupancy)?;
        // A paused session is resumed by a message; when it cannot be, the message is refused, not kept.
        self.wake_occupant(cx)?;
        let id = TurnId::new();
        let disposition = admission.disposition();
        let seq = cx.record(
            actor,
            PromptAccepted {
                turn: id,
                client_id: prompt.client_id.clone(),
                content: prompt.content.clone(),
                on_busy: prompt.on_busy,
                disposition,
                model: prompt.model.clone(),
                max_turns: prompt.max_turns,
                max_budget_usd: prompt.max_budget_usd,
            },
        );
        let turn = Turn {
            id,
            client_id: prompt.client_id,
            digest: prompt.digest,
            accepted_seq: seq,
            content: prompt.content,
            model: prompt.model,
            limits: turn_limits(prompt.max_turns, prompt.max_budget_usd),
        };
        self.note_turn(turn_row(&turn, false, None));
        self.state.last_active_at = Timestamp::now().at_least(self.state.last_active_at);
        self.turns.place(turn, admission);
        if admission == Admission::Interrupt
            && let Occupied::Live(live) = &mut self.occupied
        {
            live.acp.cancel(Reason::Superseded, cx);
        }
        self.start_next(cx);
        Ok(Accepted { turn: id, seq, disposition })
    }

    fn refuse_when_ending(&self) -> Result<(), Fault> {
        if self.state.status == Status::Ended || self.ending() {
            return Err(lifecycle::ended());
        }
        if matches!(self.stage, Stage::Closing | Stage::Leaving) {
            return Err(Fault::new(Code::ShuttingDown, "The server is shutting down; ask again in a moment"));
        }
        Ok(())
    }

    /// An end was asked for and the process is still going.
    fn ending(&self) -> bool {
        self.occupied.leaves_for_good()
    }

    /// Thaws a frozen occupant, or brings one where there is none. A process that is just leaving is waited
    /// for; whoever needs the next one is served when it is gone.
    fn wake_occupant(&mut self, cx: &mut Cx) -> Result<(), Fault> {
        if self.occupied.is_frozen() {
            self.thaw(cx);
            return Ok(());
        }
        self.bring()
    }

    pub(super) fn thaw(&mut self, cx: &mut Cx) {
        self.shared.frozen.take(self.fixed.id);
        if let Occupied::Live(live) = &mut self.occupied {
            live.thaw();
        }
        self.clock.thaw(Instant::now());
        self.idle_since = Instant::now();
        self.shift(Move::Ready, None, cx);
        self.start_next(cx);
    }

    fn on_cancel(&mut self, reply: Reply<Session>) {
        let mut cx = self.cx();
        if self.state.status == Status::Ended || self.ending() {
            return drop(reply.send(Err(lifecycle::ended())));
        }
        if self.turns.running().is_some() {
            if self.occupied.is_frozen() {
                self.thaw(&mut cx);
            }
            if let Occupied::Live(live) = &mut self.occupied {
                live.acp.cancel(Reason::Cancelled, &mut cx);
            }
        }
        self.reply_now(reply, &cx);
        self.settle(cx);
    }

    fn on_pause(&mut self, reply: Reply<Session>) {
        let mut cx = self.cx();
        if let Err(fault) = lifecycle::step(self.state.status, Move::Pause) {
            return drop(reply.send(Err(fault)));
        }
        if self.occupied.is_leaving() {
            // It is about to be paused, or ended, by somebody else.
            self.leavers.push(reply);
            return;
        }
        let Occupied::Live(live) = &self.occupied else {
            self.shift(Move::Pause, None, &mut cx);
            self.reply_now(reply, &cx);
            return self.settle(cx);
        };
        if !live.hold.keeper().can_freeze() {
            let reason = "this machine can freeze nothing, so that its agent was stopped".to_owned();
            self.rest(Some(reason), false, &mut cx);
            self.leavers.push(reply);
            return self.settle(cx);
        }
        self.errands.push_back(errand::freeze(&self.shared, &self.fixed, &live.hold, reply));
        self.clock.freeze(Instant::now());
    }

    fn on_resume(&mut self, reply: Reply<Session>) {
        let mut cx = self.cx();
        if self.ending() {
            return drop(reply.send(Err(lifecycle::ended())));
        }
        match lifecycle::step(self.state.status, Move::Resume) {
            Err(fault) => drop(reply.send(Err(fault))),
            Ok(Step::Stay) if !self.occupied.is_leaving() => self.reply_now(reply, &cx),
            Ok(Step::Stay | Step::Bring | Step::To(_)) => match self.wake_occupant(&mut cx) {
                Err(fault) => drop(reply.send(Err(fault))),
                Ok(()) if self.state.status == Status::Active && !self.occupied.is_leaving() => {
                    self.reply_now(reply, &cx);
                }
                Ok(()) => self.joiners.push(reply),
            },
        }
        self.settle(cx);
    }

    /// Ends the processes; the session is paused and can be resumed.
    fn on_stop(&mut self, reply: Reply<Session>) {
        let mut cx = self.cx();
        match self.state.status {
            Status::Ended => return drop(reply.send(Err(lifecycle::ended()))),
            Status::Error | Status::Starting => {
                let message = format!("Cannot stop session with status \"{}\"", self.state.status);
                return drop(reply.send(Err(Fault::new(Code::WrongStatus, message))));
            }
            Status::Active | Status::Paused => {}
        }
        if !self.occupied.is_leaving() {
            self.rest(None, false, &mut cx);
            let fault = Fault::new(Code::WrongStatus, "The session was stopped while it was being resumed");
            self.dismiss_joiners(&fault, &cx);
        }
        if matches!(self.occupied, Occupied::Live(_)) {
            self.leavers.push(reply);
        } else {
            self.reply_now(reply, &cx);
        }
        self.settle(cx);
    }

    fn on_end(&mut self, reply: Reply<Session>) {
        let mut cx = self.cx();
        let again = self.state.status == Status::Ended;
        self.begin_end(After::End, &mut cx);
        match self.occupied {
            _ if again => self.reply_now(reply, &cx),
            Occupied::Live(_) => self.leavers.push(reply),
            // Its files may still lie there from before.
            Occupied::Empty | Occupied::Launching(_) => {
                self.leavers.push(reply);
                self.errands.push_back(errand::put_away(&self.shared, &self.fixed, None, Stays::Snapshot));
            }
        }
        self.settle(cx);
    }

    /// Every open turn gets its outcome now; the status changes when the process is gone.
    fn begin_end(&mut self, after: After, cx: &mut Cx) {
        self.restart_at = None;
        for turn in self.turns.take_all() {
            self.end_turn(&turn, Outcome::Interrupted, Reason::SessionEnded, None, None, cx);
        }
        self.dismiss_joiners(&lifecycle::ended(), cx);
        self.occupied.stop(after);
        if matches!(self.occupied, Occupied::Empty) {
            self.shift(Move::End, None, cx);
        }
    }

    /// Ends it, then removes everything. The only command the task waits in: nothing else matters any more.
    async fn on_remove(&mut self, actor: Actor, reply: Reply<Session>) {
        let mut cx = self.cx();
        self.begin_end(After::Remove, &mut cx);
        self.occupied.kill(After::Remove);
        self.settle(cx);
        while (!matches!(self.occupied, Occupied::Empty) || !self.errands.is_empty())
            && self.stage != Stage::Over
        {
            let deadline = self.occupied.deadline(&self.clock);
            let heard = tokio::select! {
                ran = errand::run(&mut self.errands) => {
                    self.on_ran(ran);
                    continue;
                }
                heard = self.occupied.hear(true) => heard,
                () = super::until(deadline) => match self.occupied.overdue(Instant::now()) {
                    Some(heard) => heard,
                    None => continue,
                },
            };
            self.on_heard(heard);
        }
        if self.stage == Stage::Over {
            return drop(reply.send(Err(Fault::new(Code::Fenced, "The session moved; ask again"))));
        }
        // Whoever waited for the end is told before the record of it goes.
        while !self.pending.is_empty() && self.durable.changed().await.is_ok() {
            self.on_durable();
        }
        let view = self.view(self.writer.last_seq());
        let result = self.writer.remove(actor, Timestamp::now()).await.map_err(crate::faults::write);
        self.stage = Stage::Over;
        self.pending.clear();
        self.shared.live.forget(self.fixed.id);
        if result.is_ok() {
            self.shared.clear_files(&self.fixed).await;
        }
        let _ = reply.send(result.map(|()| view));
    }

    fn on_configure(&mut self, actor: Actor, request: Configure, reply: Reply<Session>) {
        if let Err(fault) = self.refuse_when_ending() {
            return drop(reply.send(Err(fault)));
        }
        let mut cx = self.cx();
        if let Some(name) = request.name {
            self.state.name = Some(name.clone());
            cx.record(actor.clone(), SessionRenamed { name });
        }
        let config =
            SessionConfig { model: request.model, mode: request.mode, thought_level: request.thought_level };
        let nothing = config.model.is_none() && config.mode.is_none() && config.thought_level.is_none();
        match &mut self.occupied {
            _ if nothing => self.reply_now(reply, &cx),
            Occupied::Live(live) if live.can_configure() => {
                self.configurers.push_back(Some(reply));
                live.acp.configure(config, actor, &mut cx);
            }
            Occupied::Live(_) | Occupied::Launching(_) => {
                let message = "The agent is not ready yet, or paused; try again when the session is active";
                let _ = reply.send(Err(Fault::new(Code::WrongStatus, message)));
            }
            // Nobody is there to refuse it: it is kept, and applied when the agent comes back.
            Occupied::Empty => {
                cx.record(actor, config.clone());
                self.remember(config);
                self.reply_now(reply, &cx);
            }
        }
        self.settle(cx);
    }

    fn on_answer(&mut self, actor: Actor, permission: Seq, answer: Answer, reply: Reply<Session>) {
        let mut cx = self.cx();
        let result = match &mut self.occupied {
            Occupied::Live(live) if live.is_ready() => live.acp.answer(permission, answer, actor, &mut cx),
            Occupied::Empty | Occupied::Launching(_) | Occupied::Live(_) => Err(Fault::new(
                Code::PermissionNotFound,
                format!("Permission request {permission} is not open; its turn has ended"),
            )),
        };
        match result {
            Ok(()) => self.reply_now(reply, &cx),
            Err(fault) => drop(reply.send(Err(fault))),
        }
        self.settle(cx);
    }

    /// Answers with the session as it is after this step, once the step is on disk.
    pub(super) fn reply_now(&mut self, reply: Reply<Session>, cx: &Cx) {
        let seq = cx.last_seq();
        let view = self.view(seq);
        self.pending.push_back((seq, Pend::answer(reply, Ok(view))));
    }
}

/// A caller's limits for one turn, as the occupant takes them.
pub(super) fn turn_limits(max_turns: Option<u32>, max_budget_usd: Option<f64>) -> TurnLimits {
    TurnLimits { steps: max_turns, cost: max_budget_usd.and_then(Usd::new) }
}
