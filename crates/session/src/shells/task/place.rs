//! What the shell's place says, and what a stopped server left.

use super::*;
use protocol::OutputStream;

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
        let Launched { shell, grip, slot, outfit, token, told } = match launched {
            Ok(launched) => launched,
            Err(fault) => {
                self.link = Link::None;
                return self.fail(&fault);
            }
        };
        for body in told {
            self.pen.record(Actor::System, body);
        }
        // The shell has it now.
        self.memo.state = None;
        self.memo.tie = grip.tie().cloned();
        self.memo.lodged = grip.lodged().cloned();
        self.memo.token = token.and_then(|token| memo::seal_token(&self.pen.shared.vault, &token));
        self.secrets = seat::secrets(&self.pen.shared, &self.pen.fixed, &self.spec, &self.memo);
        if let Some(machine) = &mut self.machine {
            machine.hide(self.secrets.clone());
        }
        self.link_up(shell, grip, slot, outfit, false);
    }

    pub(super) fn link_up(
        &mut self,
        shell: keeper::Shell,
        grip: Grip,
        slot: Slot,
        outfit: Outfit,
        frozen: bool,
    ) {
        self.link = Link::Up(Box::new(Up {
            shell,
            grip,
            slot,
            outfit,
            giving: None,
            restarting: None,
            frozen,
            let_go: [0; 2],
        }));
        self.idle_since = Instant::now();
    }

    /// The connection is gone. One to another machine is made again; a keeper of this one is gone with it.
    fn on_lost(&mut self) {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Up(up) if up.grip.is_remote() => {
                let text = "the connection to the shell's machine broke; it is being made again".to_owned();
                self.pen.record(Actor::System, Notice { level: Level::Warning, text });
                self.link = Link::Rejoining(self.rejoin(), up.slot);
            }
            other => {
                self.link = other;
                self.step(|machine, _, out| machine.lost(out));
            }
        }
    }

    fn rejoin(&self) -> Rejoining {
        seat::rejoin(&self.pen.shared, &self.pen.fixed, &self.spec, &self.memo, self.way())
    }

    /// What leads to a shell on another machine, as it was written down.
    pub(super) fn way(&self) -> Option<Way> {
        let (target, password) = seat::far_target(&self.pen.shared, &self.spec)?;
        let token = memo::open_token(&self.pen.shared.vault, self.memo.token.as_deref()?)?;
        Some(Way { target, password, lodged: self.memo.lodged.clone()?, token })
    }

    pub(super) fn on_event(&mut self, event: Option<ShellEvent>) {
        match event {
            None | Some(ShellEvent::Lost) => self.on_lost(),
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
            Some(ShellEvent::InputTaken { number }) => self.on_input_taken(number),
            Some(ShellEvent::InputRefused { number }) => self.on_input_refused(number),
        }
    }

    pub(super) fn on_output(&mut self, number: u64, stream: keeper::Stream, offset: u64, bytes: &[u8]) {
        let (of, index) = match stream {
            keeper::Stream::Stdout => (Stream::Stdout, 0),
            keeper::Stream::Stderr => (Stream::Stderr, 1),
        };
        let command = self.machine.as_ref().and_then(shell::Shell::running);
        self.step(|machine, now, out| machine.output(number, of, offset, bytes, now, out));
        let text = self.machine.as_mut().map_or("", |machine| machine.take_fresh(of));
        if let Some(command) = command.filter(|_| !text.is_empty()) {
            if let Some(whole) = self.wholes.of(command, &self.pen.shared, self.memo.let_go) {
                let stream = if index == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
                whole.push(stream, text);
            }
            if let Some(live) = self.open.get(&command).and_then(|open| open.live.as_ref()) {
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
        let sealed = self.memo.machine.clone();
        let saved = sealed.and_then(|sealed| memo::open_machine(&self.pen.shared.vault, &sealed));
        let saved = match saved {
            Some(saved) => with_text(Arc::clone(&self.pen.shared), self.pen.fixed.id, saved).await,
            None => None,
        };
        let tied = self.memo.tie.is_some() || self.memo.lodged.is_some();
        match saved {
            Some(saved) if tied && self.pen.state.status != Status::Ended => {
                for exec in saved.execs() {
                    self.open.insert(exec.command, Open::taken_up(exec, &self.secrets));
                }
                let (now, mut out) = (self.now(), Vec::new());
                let mut machine = shell::Shell::take_up(self.secrets.clone(), saved, now, &mut out);
                machine.skip(self.memo.let_go);
                self.machine = Some(machine);
                // What the place has of it is not known yet.
                out.retain(|effect| !matches!(effect, Effect::Run { .. }));
                self.carry_out(out);
                let slot = self.pen.shared.shell_slots.count(&self.pen.fixed.tenant);
                self.link = Link::Rejoining(self.rejoin(), slot);
            }
            saved => self.give_up_shell(saved),
        }
        self.settle();
    }

    pub(super) fn on_rejoined(&mut self, found: Result<(Found, Outfit), String>) {
        let (slot, (found, outfit)) = match (std::mem::replace(&mut self.link, Link::None), found) {
            (Link::Rejoining(_, slot), Ok(found)) => (slot, found),
            (_, Ok(_)) => return,
            (_, Err(why)) => return self.lose_shell(&why),
        };
        let Found { shell, state, grip, frozen } = found;
        let text = "the shell went on meanwhile, and was taken up".to_owned();
        self.pen.record(Actor::System, Notice { level: Level::Info, text });
        self.link_up(shell, grip, slot, outfit, frozen);
        let (now, mut out) = (self.now(), Vec::new());
        if let Some(machine) = &mut self.machine {
            let follow = machine.rejoin(state.command, now, &mut out);
            if let (Some((number, from)), Link::Up(up)) = (follow, &mut self.link) {
                up.let_go = from;
                // A connection that is gone again is told by the mail.
                let _ = up.shell.follow(number, from);
            }
            match (state.ended, follow) {
                (Some(ended), Some((number, _))) if ended.command == number => {
                    machine.ended(results::end(ended), now, &mut out);
                }
                _ if state.phase == keeper::ShellPhase::Dead => machine.exited(&mut out),
                _ => {}
            }
        }
        self.carry_out(out);
        self.send_input_again();
        match (frozen, self.pen.state.status) {
            (true, Status::Paused) => {
                self.pen.shared.frozen.put(self.pen.fixed.id, &self.pen.fixed.tenant);
                self.clock.freeze(Instant::now());
            }
            (true, _) => self.thaw(),
            (false, _) => self.shift(Move::Ready, None),
        }
        for joiner in std::mem::take(&mut self.joiners) {
            self.pen.answer_view(joiner);
        }
    }

    /// The shell that was looked for is gone.
    fn lose_shell(&mut self, why: &str) {
        if let Some(way) = self.way() {
            // One that could not be reached in all that time may still be there.
            way.end_later(&self.pen.shared, self.pen.fixed.id);
        }
        self.memo.lost = Some(why.to_owned());
        let reason = format!("its shell was lost: {why}; the next command starts another one");
        self.stop(Move::Rest, Some(reason), Stays::Folder);
    }

    pub(super) fn give_up_shell(&mut self, saved: Option<shell::Saved>) {
        (self.memo.tie, self.memo.lodged, self.memo.token) = (None, None, None);
        let cwd = self.memo.cwd.clone().unwrap_or_default();
        if let Some(finished) = saved.and_then(|saved| saved.interrupted(&self.secrets, &cwd)) {
            self.finish(&finished);
        }
        match self.pen.state.status {
            Status::Active | Status::Starting => {
                let reason = "the server stopped, and the shell with it".to_owned();
                self.memo.lost = Some(reason.clone());
                self.shift(Move::Rest, Some(reason));
            }
            Status::Ended => self.put_away(None, Stays::Snapshot),
            Status::Paused | Status::Error => {}
        }
    }
}

/// A long text is had from its event. Without it nothing can be gone on with.
async fn with_text(
    shared: Arc<Shared>,
    session: protocol::SessionId,
    mut saved: shell::Saved,
) -> Option<shell::Saved> {
    let Some(seq) = saved.text_at() else { return Some(saved) };
    let event = shared.journal.event(session, seq).await;
    match event.ok().flatten()?.decode().ok()? {
        Body::CommandStarted(started) => saved.complete(started.text),
        _ => return None,
    }
    Some(saved)
}
