//! The machine's effects: recorded, and let out once the record is on disk.

use super::*;

/// The machine and its effects.
impl ShellTask {
    pub(super) fn step(&mut self, work: impl FnOnce(&mut shell::Shell, Timestamp, &mut Vec<Effect>)) {
        let now = self.now();
        let mut out = Vec::new();
        if let Some(machine) = &mut self.machine {
            work(machine, now, &mut out);
        }
        self.carry_out(out);
    }

    pub(super) fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Begin { command, text, spelling } => {
                    let open = self.open.get_mut(&command);
                    let actor = open.map_or(Actor::System, |open| {
                        open.text.clone_from(&text);
                        open.actor.clone()
                    });
                    let whole = spelling == Spelling::Whole && text.len() <= TOLD_BYTES;
                    let seq = self.pen.record(actor, CommandStarted { command, text });
                    if let Some(open) = self.open.get_mut(&command) {
                        open.told_at = whole.then_some(seq);
                    }
                    self.pen.state.last_active_at = Timestamp::now().at_least(self.pen.state.last_active_at);
                }
                Effect::Run { number, stdin, text } => self.pen.then(Deed::Run { number, stdin, text }),
                Effect::Write { number, bytes } => {
                    self.keep_input(number, &bytes);
                    self.pen.then(Deed::Write { number, bytes });
                }
                Effect::CloseInput => self.pen.then(Deed::CloseInput),
                Effect::Signal { signal, whom } => self.pen.then(Deed::Signal { signal, whom }),
                Effect::Start => self.start_again(),
                Effect::End(finished) => self.finish(&finished),
                Effect::Over(why) => self.over(&why),
            }
        }
    }

    /// A command's one end.
    pub(super) fn finish(&mut self, finished: &Finished) {
        let open = self.open.remove(&finished.command);
        self.drop_input(finished.command);
        let mode = open.as_ref().map_or(KeepMode::All, |open| open.mode);
        let mut ended = results::ended(finished, mode);
        [ended.stdout.kept, ended.stderr.kept] = self.keep_whole(finished);
        if let Some(hint) = open.as_ref().and_then(|open| open.hint.clone()) {
            ended.hint = Some(ended.hint.map_or(hint.clone(), |own| format!("{own}; {hint}")));
        }
        if !finished.begun {
            let started = CommandStarted { command: finished.command, text: finished.text.clone() };
            self.pen.record(Actor::System, started);
        }
        self.pen.record(Actor::System, ended.clone());
        self.memo.cwd = Some(finished.cwd.clone()).filter(|cwd| !cwd.is_empty()).or(self.memo.cwd.take());
        let result = results::result(finished.text.clone(), ended);
        self.keep(Arc::new(result.clone()));
        if let Some(reply) = open.and_then(|open| open.reply) {
            self.pen.answer(reply, Ok(result.clone()));
        }
        let (due, later): (Vec<Poller>, Vec<Poller>) =
            self.pollers.drain(..).partition(|poller| poller.command == finished.command);
        self.pollers = later;
        for poller in due {
            self.pen.answer(poller.reply, Ok(narrowed(result.clone(), poller.plan.as_deref())));
        }
        self.idle_since = Instant::now();
        if let Link::Up(up) = &mut self.link {
            up.let_go = [0; 2];
        }
    }

    pub(super) fn keep(&mut self, result: Arc<ExecResult>) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(result);
    }

    /// What a command that has not ended shows by now.
    pub(super) fn so_far(&self, command: u64) -> Option<ExecResult> {
        let open = self.open.get(&command)?;
        let machine = self.machine.as_ref()?;
        let took = u64::try_from(open.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (text, progress) = (open.text.clone(), machine.progress(command));
        Some(results::so_far(command, text, progress, open.mode, machine.cwd(), took))
    }

    /// The caller has waited long enough; the command goes on.
    pub(super) fn tell_so_far(&mut self, command: u64) {
        let Some(so_far) = self.so_far(command) else { return };
        if let Some(open) = self.open.get_mut(&command) {
            open.yields = None;
            open.live = None;
            open.acknowledged = true;
            self.pen.then(Deed::Tell(command, Box::new(so_far)));
        }
    }

    /// The shell is to be started: for the first time, or in the place of one that ended.
    pub(super) fn start_again(&mut self) {
        if let Link::Up(up) = &mut self.link {
            up.restarting = Some(seat::restart(up.grip.keeper(), up.shell.process(), &up.outfit));
        }
    }

    /// Nothing more can be run.
    pub(super) fn over(&mut self, why: &str) {
        let fault = Fault::new(Code::SandboxFailed, format!("The shell cannot go on: {why}"));
        if self.joiners.is_empty() {
            self.pen
                .record(Actor::System, ErrorRaised { code: fault.code, message: fault.message.to_string() });
        }
        self.fail(&fault);
    }

    pub(super) fn fail(&mut self, fault: &Fault) {
        self.machine = None;
        self.pen.drop_effects();
        self.shift(Move::Fail, Some(fault.message.to_string()));
        for joiner in std::mem::take(&mut self.joiners) {
            self.pen.answer(joiner, Err(fault.clone()));
        }
        self.fail_open(fault);
        let hold = self.unlink();
        self.put_away(hold, Stays::Folder);
    }

    /// Commands that the machine knew nothing of any more.
    pub(super) fn fail_open(&mut self, fault: &Fault) {
        for (_, open) in std::mem::take(&mut self.open) {
            if let Some(reply) = open.reply {
                self.pen.answer(reply, Err(fault.clone()));
            }
        }
        self.fail_input(fault);
        for poller in std::mem::take(&mut self.pollers) {
            self.pen.answer(poller.reply, Err(fault.clone()));
        }
    }

    pub(super) fn unlink(&mut self) -> Option<Grip> {
        let way = self.way();
        (self.memo.tie, self.memo.lodged, self.memo.token) = (None, None, None);
        self.pen.shared.frozen.take(self.pen.fixed.id);
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Up(up) => Some(up.grip),
            // A keeper may be on its way to the other machine; one of this machine goes with its call.
            Link::Launching(launching) if self.spec.target != Target::Local => {
                let (shared, id) = (Arc::clone(&self.pen.shared), self.pen.fixed.id);
                tokio::spawn(async move {
                    if let Ok(launched) = launching.await
                        && let Some(way) = launched.grip.end().await
                    {
                        way.end_later(&shared, id);
                    }
                });
                None
            }
            Link::None | Link::Launching(_) => None,
            // It is there, perhaps, and nobody needs it any more.
            Link::Rejoining(..) => {
                if let Some(way) = way {
                    way.end_later(&self.pen.shared, self.pen.fixed.id);
                }
                None
            }
        }
    }

    pub(super) fn put_away(&mut self, grip: Option<Grip>, stays: Stays) {
        let memory = if self.pen.state.status == Status::Ended { Memory::Dropped } else { Memory::Kept };
        let chore = chores::put_away(&self.pen.shared, &self.pen.fixed, grip, stays, memory);
        self.chore = Some((chore, Purpose::Other));
    }

    /// Ends a step: what must survive is written beside the events, and what may happen by now happens.
    pub(super) fn settle(&mut self) {
        if self.stage == Stage::Over {
            return;
        }
        if self.stage == Stage::Serving {
            self.note_state();
        }
        if let Err(Lost(why)) = self.pen.settle() {
            return self.lose(&why);
        }
        match self.pen.due() {
            Ok(due) => due.into_iter().for_each(|deed| self.let_out(deed)),
            Err(Lost(why)) => self.lose(&why),
        }
    }

    pub(super) fn note_state(&mut self) {
        self.pen.state.live =
            !matches!(self.link, Link::None) || self.chore.is_some() || !self.open.is_empty();
        if self.pen.has_events() {
            self.memo.machine = self.save();
        }
        let memo = self.memo.encode();
        if self.pen.state.memo != memo {
            self.pen.state.memo = memo;
        }
    }

    /// What the next server needs to go on with: the command that runs, and those that somebody was told of.
    pub(super) fn save(&self) -> Option<String> {
        let machine = self.machine.as_ref()?;
        let budget = |command| self.open.get(&command).map(|open| open.budget.clone()).unwrap_or_default();
        let known = |command| self.open.get(&command).is_some_and(|open| open.acknowledged);
        let told = |command| self.open.get(&command).and_then(|open| open.told_at);
        let saved = machine.save(budget, known, told, self.now());
        memo::seal_machine(&self.pen.shared.vault, &saved)
    }

    pub(super) fn let_out(&mut self, deed: Deed) {
        if let Deed::Tell(command, result) = deed {
            if let Some(reply) = self.open.get_mut(&command).and_then(|open| open.reply.take()) {
                let _ = reply.send(Ok(*result));
            }
            return;
        }
        if matches!(deed, Deed::Run { .. }) {
            let running = self.machine.as_ref().and_then(shell::Shell::running);
            self.unsent = running.filter(|_| !matches!(self.link, Link::Up(_)));
        }
        let Link::Up(up) = &mut self.link else { return };
        match deed {
            Deed::Run { number, stdin, text } => {
                let stdin = match stdin {
                    shell::Stdin::Empty => CommandInput::Empty,
                    shell::Stdin::Open => CommandInput::Open,
                };
                let giving: Giving = match up.shell.give(number, stdin, &text) {
                    Ok(given) => Box::pin(async move { (number, given.await) }),
                    Err(error) => Box::pin(std::future::ready((number, Err(error)))),
                };
                up.giving = Some(giving);
            }
            Deed::Write { number, bytes } => up.shell.write(number, &bytes),
            Deed::CloseInput => up.shell.close_input(),
            Deed::Signal { signal, whom } => up.shell.signal(
                signal,
                match whom {
                    shell::Whom::Own => keeper::Whom::Own,
                    shell::Whom::Shell => keeper::Whom::Shell,
                    shell::Whom::Both => keeper::Whom::Both,
                },
            ),
            Deed::Tell(..) => {}
        }
    }

    /// The pen is lost: another server owns the session, or the store is broken.
    pub(super) fn lose(&mut self, why: &str) {
        tracing::error!(session = %self.pen.fixed.id, why, "the shell's task gives up");
        self.stage = Stage::Over;
        self.pen.shared.live.forget(self.pen.fixed.id);
        let fault = Fault::new(Code::Fenced, "The session moved or its journal failed; ask again");
        self.pen.give_up(&fault);
        for reply in self.joiners.drain(..).chain(self.leavers.drain(..)) {
            let _ = reply.send(Err(fault.clone()));
        }
    }

    pub(super) fn shift(&mut self, wish: Move, reason: Option<String>) {
        let Ok(Step::To(to)) = lifecycle::step(self.pen.state.status, wish) else { return };
        let from = self.pen.state.status;
        self.pen.state.status = to;
        self.pen.state.status_reason.clone_from(&reason);
        self.pen.record(Actor::System, SessionStatusChanged { from, to, reason });
    }
}
