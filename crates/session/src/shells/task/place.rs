//! What the shell's place says, and what a stopped server left.

use super::*;

/// What the place says.
impl ShellTask {
    /// Sets out with a machine that takes commands at once, and runs them when the shell is there.
    pub(super) fn begin(&mut self, slot: Slot) {
        self.clock = Clock::new(Instant::now());
        let mut out = Vec::new();
        let machine = shell::Shell::begin(self.secrets.clone(), &mut out);
        self.machine = Some(machine);
        self.link =
            Link::Launching(seat::launch(&self.pen.shared, &self.pen.fixed, &self.spec, &self.memo, slot));
    }

    pub(super) fn bring(&mut self) -> Result<(), Fault> {
        if matches!(self.link, Link::None) {
            let slot = self.pen.shared.shell_slots.take(&self.pen.fixed.tenant)?;
            self.begin(slot);
        }
        Ok(())
    }

    pub(super) fn on_launched(&mut self, launched: Result<Launched, Fault>) {
        let outfit = seat::outfit(&self.pen.shared, &self.pen.fixed, &self.spec, &self.memo);
        let (launched, outfit) = match launched.and_then(|launched| Ok((launched, outfit?))) {
            Ok(both) => both,
            Err(fault) => {
                self.link = Link::None;
                return self.fail(&fault);
            }
        };
        let Launched { shell, hold, slot, told } = launched;
        for body in told {
            self.pen.record(Actor::System, body);
        }
        self.memo.tie = Some(hold.tie().clone());
        self.secrets = seat::secrets(&self.pen.shared, &self.pen.fixed, &self.spec, &self.memo);
        if let Some(machine) = &mut self.machine {
            machine.hide(self.secrets.clone());
        }
        self.link_up(shell, hold, slot, outfit, false);
    }

    pub(super) fn link_up(
        &mut self,
        shell: keeper::Shell,
        hold: Hold,
        slot: Slot,
        outfit: Outfit,
        frozen: bool,
    ) {
        self.link = Link::Up(Box::new(Up {
            shell,
            hold,
            _slot: slot,
            outfit,
            giving: None,
            restarting: None,
            frozen,
            let_go: [0; 2],
        }));
        self.idle_since = Instant::now();
    }

    pub(super) fn on_event(&mut self, event: Option<ShellEvent>) {
        match event {
            None => self.step(|machine, _, out| machine.lost(out)),
            Some(ShellEvent::Ready { cwd }) => {
                self.step(|machine, now, out| machine.ready(cwd, now, out));
                self.memo.cwd = self.machine.as_ref().map(shell::Shell::cwd);
                self.shift(Move::Ready, None);
                for joiner in std::mem::take(&mut self.joiners) {
                    self.pen.answer_view(joiner);
                }
            }
            Some(ShellEvent::Unusable(why)) => {
                self.step(|machine, _, out| machine.unstartable(why, out));
            }
            Some(ShellEvent::Output { command, stream, offset, bytes }) => {
                self.on_output(command, stream, offset, &bytes);
            }
            Some(ShellEvent::Ended(ended)) => {
                self.step(|machine, now, out| machine.ended(results::end(ended), now, out));
            }
            Some(ShellEvent::Exited(_)) => self.step(|machine, _, out| machine.exited(out)),
            Some(ShellEvent::InputTaken { .. } | ShellEvent::InputRefused { .. }) => {}
            Some(ShellEvent::Lost) => self.step(|machine, _, out| machine.lost(out)),
        }
    }

    pub(super) fn on_output(&mut self, number: u64, stream: keeper::Stream, offset: u64, bytes: &[u8]) {
        let (of, index) = match stream {
            keeper::Stream::Stdout => (Stream::Stdout, 0),
            keeper::Stream::Stderr => (Stream::Stderr, 1),
        };
        let command = self.machine.as_ref().and_then(shell::Shell::running);
        self.step(|machine, now, out| machine.output(number, of, offset, bytes, now, out));
        let live = command.and_then(|command| self.open.get(&command)).and_then(|open| open.live.as_ref());
        if let (Some(live), Some(machine)) = (live, &self.machine) {
            let text = machine.fresh(of);
            if !text.is_empty() {
                // What nobody has room for is in the result.
                let _ = live.try_send(LiveOutput { stderr: index == 1, text: text.to_owned() });
            }
        }
        if let Link::Up(up) = &mut self.link {
            let read = offset + bytes.len() as u64;
            if read - up.let_go[index].min(read) > HELD_BYTES {
                up.let_go[index] = read;
                up.shell.ack(stream, read);
                self.memo.let_go = up.let_go;
            }
        }
    }

    pub(super) fn on_refused(&mut self, number: u64, error: RunError) {
        let refused = match error {
            RunError::Ended => shell::Refused::Ended,
            RunError::Unfit => shell::Refused::Unfit,
            RunError::Failed(text) => shell::Refused::Failed(text),
            // Told by the shell's own mail.
            RunError::Gone => return,
        };
        self.step(|machine, now, out| machine.refused(number, &refused, now, out));
    }

    /// A server stopped while this shell was live. It is taken up where it is; when it is gone, the command that ran is
    /// interrupted.
    pub(super) async fn recover(&mut self) {
        let found = seat::find(&self.pen.shared, &self.pen.fixed, &self.memo).await;
        let outfit = seat::outfit(&self.pen.shared, &self.pen.fixed, &self.spec, &self.memo);
        let sealed = self.memo.machine.take();
        let saved = sealed.and_then(|sealed| memo::open_machine(&self.pen.shared.vault, &sealed));
        match (found, outfit, saved) {
            (Ok(found), Ok(outfit), Some(saved)) if self.pen.state.status != Status::Ended => {
                self.take_up(found, outfit, saved);
            }
            (_, _, saved) => self.give_up_shell(saved),
        }
        self.settle();
    }

    pub(super) fn take_up(&mut self, found: ::place::FoundShell, outfit: Outfit, saved: shell::Saved) {
        let ::place::FoundShell { shell, state, hold, frozen } = found;
        let text = "the server was restarted; the shell went on meanwhile and was taken up".to_owned();
        self.pen.record(Actor::System, Notice { level: Level::Info, text });
        for exec in saved.execs() {
            let open = Open::taken_up(exec, &self.secrets);
            self.open.insert(exec.command, open);
        }
        let slot = self.pen.shared.shell_slots.count(&self.pen.fixed.tenant);
        self.link_up(shell, hold, slot, outfit, frozen);
        self.clock = Clock::new(Instant::now());
        let (now, mut out) = (self.now(), Vec::new());
        let mut machine = shell::Shell::take_up(self.secrets.clone(), saved, now, &mut out);
        let from = self.memo.let_go;
        for effect in std::mem::take(&mut out) {
            match effect {
                Effect::Run { number, .. } if number <= state.command => {
                    machine.skip(from);
                    if let Link::Up(up) = &mut self.link {
                        up.let_go = from;
                        // A connection that is gone is told by the mail.
                        let _ = up.shell.follow(number, from);
                    }
                }
                other => out.push(other),
            }
        }
        match state.phase {
            keeper::ShellPhase::Dead => machine.exited(&mut out),
            keeper::ShellPhase::Starting => {}
            keeper::ShellPhase::Idle | keeper::ShellPhase::Busy => {}
        }
        if let Some(ended) = state.ended {
            machine.ended(results::end(ended), now, &mut out);
        }
        self.machine = Some(machine);
        self.carry_out(out);
        match (frozen, self.pen.state.status) {
            (true, Status::Paused) => {
                self.pen.shared.frozen.put(self.pen.fixed.id, &self.pen.fixed.tenant);
                self.clock.freeze(Instant::now());
            }
            (true, _) => self.thaw(),
            (false, _) => self.shift(Move::Ready, None),
        }
    }

    pub(super) fn give_up_shell(&mut self, saved: Option<shell::Saved>) {
        self.memo.tie = None;
        let cwd = self.memo.cwd.clone().unwrap_or_default();
        if let Some(finished) = saved.and_then(|saved| saved.interrupted(&self.secrets, &cwd)) {
            self.finish(&finished);
        }
        match self.pen.state.status {
            Status::Active | Status::Starting => {
                let reason = "the server stopped, and the shell with it".to_owned();
                self.shift(Move::Rest, Some(reason));
            }
            Status::Ended => self.put_away(None, Stays::Snapshot),
            Status::Paused | Status::Error => {}
        }
    }
}
