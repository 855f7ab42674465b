//! The session's life: pause, resume, stop, end, and the server's own end.

use super::*;

/// Pause, resume, stop, end.
impl ShellTask {
    pub(super) fn on_pause(&mut self, reply: Reply<Session>) {
        if let Err(fault) = lifecycle::step(self.pen.state.status, Move::Pause) {
            return drop(reply.send(Err(fault)));
        }
        match &self.link {
            Link::Up(up) if up.grip.keeper().can_freeze() => {
                let chore = chores::freeze(&self.pen.shared, &self.pen.fixed, &up.grip);
                self.chore = Some((chore, Purpose::Pause(reply)));
                self.clock.freeze(Instant::now());
            }
            Link::Up(_) => {
                let reason = "this machine can freeze nothing, so that its shell was stopped".to_owned();
                self.leavers.push(reply);
                self.stop(Move::Rest, Some(reason), Stays::Both);
            }
            Link::None | Link::Launching(_) | Link::Rejoining(..) => {
                self.shift(Move::Pause, None);
                self.pen.answer_view(reply);
            }
        }
    }

    pub(super) fn on_resume(&mut self, reply: Reply<Session>) {
        match lifecycle::step(self.pen.state.status, Move::Resume) {
            Err(fault) => return drop(reply.send(Err(fault))),
            Ok(Step::Stay) => return self.pen.answer_view(reply),
            Ok(Step::Bring | Step::To(_)) => {}
        }
        if matches!(&self.link, Link::Up(up) if up.frozen) {
            self.thaw();
            return self.pen.answer_view(reply);
        }
        match self.bring() {
            Ok(()) => self.joiners.push(reply),
            Err(fault) => drop(reply.send(Err(fault))),
        }
    }

    pub(super) fn thaw_for(&mut self, command: u64) {
        if self.open.contains_key(&command) && matches!(&self.link, Link::Up(up) if up.frozen) {
            self.thaw();
        }
    }

    pub(super) fn thaw(&mut self) {
        self.pen.shared.frozen.take(self.pen.fixed.id);
        if let Link::Up(up) = &mut self.link {
            up.frozen = false;
            let thawed = up.grip.thaw();
            let id = self.pen.fixed.id;
            tokio::spawn(async move {
                if let Err(error) = thawed.await {
                    tracing::error!(session = %id, %error, "a shell could not be thawed");
                }
            });
        }
        self.clock.thaw(Instant::now());
        self.idle_since = Instant::now();
        self.shift(Move::Ready, None);
    }

    pub(super) fn on_stop(&mut self, reply: Reply<Session>) {
        match self.pen.state.status {
            Status::Ended => return drop(reply.send(Err(lifecycle::ended()))),
            Status::Error | Status::Starting => {
                let message = format!("Cannot stop session with status \"{}\"", self.pen.state.status);
                return drop(reply.send(Err(Fault::new(Code::WrongStatus, message))));
            }
            Status::Active | Status::Paused => {}
        }
        self.leavers.push(reply);
        self.stop(Move::Rest, None, Stays::Both);
    }

    pub(super) fn on_evict(&mut self, reply: Reply<Session>) {
        let frozen = matches!(&self.link, Link::Up(up) if up.frozen);
        let resting = matches!(self.link, Link::None) && self.open.is_empty();
        if frozen || resting {
            self.leavers.push(reply);
            let reason = frozen.then(|| "evicted to make room; it comes back when needed".to_owned());
            self.stop(Move::Rest, reason, Stays::Snapshot);
        } else {
            self.pen.answer_view(reply);
        }
    }

    pub(super) fn on_end(&mut self, reply: Reply<Session>) {
        if self.pen.state.status == Status::Ended {
            return self.pen.answer_view(reply);
        }
        self.leavers.push(reply);
        self.stop(Move::End, None, Stays::Snapshot);
    }

    /// Ends the shell with everything that it started; every open command gets its end first.
    pub(super) fn stop(&mut self, wish: Move, reason: Option<String>, stays: Stays) {
        let mut out = Vec::new();
        if let Some(mut machine) = self.machine.take() {
            machine.lost(&mut out);
        }
        self.pen.drop_effects();
        for effect in out {
            if let Effect::End(mut finished) = effect {
                if self.unsent.take_if(|unsent| *unsent == finished.command).is_some() {
                    finished.outcome = shell::Outcome::NotRun;
                    finished.hint = Some(
                        "the shell was lost before it had the command; nothing of it was run".to_owned(),
                    );
                }
                self.finish(&finished);
            }
        }
        let fault = if wish == Move::End {
            lifecycle::ended()
        } else {
            Fault::new(Code::WrongStatus, "The session was stopped while it was being resumed")
        };
        for joiner in std::mem::take(&mut self.joiners) {
            self.pen.answer(joiner, Err(fault.clone()));
        }
        self.fail_open(&fault);
        let hold = self.unlink();
        self.shift(wish, reason);
        self.put_away(hold, stays);
    }

    pub(super) async fn on_remove(&mut self, actor: Actor, reply: Reply<Session>) {
        self.stop(Move::End, None, Stays::Folder);
        self.settle();
        if let Some((chore, _)) = self.chore.take()
            && let Done::PutAway { left: Some(way), .. } = chore.await
        {
            way.end_later(&self.pen.shared, self.pen.fixed.id);
        }
        let view = self.pen.view();
        let result = self.pen.remove(actor).await;
        self.stage = Stage::Over;
        self.pen.shared.live.forget(self.pen.fixed.id);
        if result.is_ok() {
            self.forget_checkpoints();
            self.pen.shared.clear_files(&self.pen.fixed).await;
        }
        let _ = reply.send(result.map(|()| view));
    }

    pub(super) fn on_space(&mut self, space: Space) {
        let Link::Up(up) = &mut self.link else { return };
        let bare = crate::policy::walls(self.pen.fixed.place) == ::place::Walls::None;
        if bare || up.frozen {
            return;
        }
        match space {
            Space::Low => {
                self.chore = Some((chores::stand_still(&up.grip), Purpose::Other));
                self.clock.freeze(Instant::now());
            }
            Space::Enough => {
                let text = "there is room on the disk again: its processes go on".to_owned();
                self.pen.record(Actor::System, Notice { level: Level::Info, text });
                self.thaw();
            }
        }
    }

    /// The server stops; the shell goes on for the next one.
    pub(super) fn close(&mut self) {
        self.settle();
        self.stage = Stage::Leaving;
        let fault = Fault::new(Code::ShuttingDown, "The server is shutting down; ask again in a moment");
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Up(up) => {
                self.pen.shared.frozen.take(self.pen.fixed.id);
                up.grip.leave();
            }
            Link::Launching(_) | Link::None | Link::Rejoining(..) => {}
        }
        for joiner in std::mem::take(&mut self.joiners) {
            self.pen.answer(joiner, Err(fault.clone()));
        }
        self.fail_open(&fault);
    }

    pub(super) fn on_done(&mut self, done: Done) {
        let Some((_, purpose)) = self.chore.take() else { return };
        match (done, purpose) {
            (Done::Stood { frozen, taken }, Purpose::Pause(reply)) => {
                self.note_taken(taken);
                match (frozen, &mut self.link) {
                    (Ok(()), Link::Up(up)) => {
                        up.frozen = true;
                        self.idle_since = Instant::now();
                        self.pen.shared.frozen.put(self.pen.fixed.id, &self.pen.fixed.tenant);
                        self.shift(Move::Pause, None);
                        self.pen.answer_view(reply);
                    }
                    (Err(why), _) => {
                        self.clock.thaw(Instant::now());
                        self.leavers.push(reply);
                        let reason = format!("nothing could be frozen, so that its shell was stopped: {why}");
                        self.stop(Move::Rest, Some(reason), Stays::Both);
                    }
                    (Ok(()), Link::None | Link::Launching(_) | Link::Rejoining(..)) => {
                        self.pen.answer_view(reply);
                    }
                }
            }
            (Done::Stood { frozen, .. }, _) => {
                let text = match frozen {
                    Ok(()) => {
                        "the disk is nearly full: its processes stand still until there is room".to_owned()
                    }
                    Err(why) => {
                        format!("the disk is nearly full, and its processes could not be stopped: {why}")
                    }
                };
                self.pen.record(Actor::System, Notice { level: Level::Warning, text });
            }
            (Done::Checkpointed(did), purpose) => self.on_checkpointed(did, purpose),
            (Done::Copied { reply, taken }, _) => {
                let answer = taken.clone().transpose();
                self.note_taken(taken);
                self.pen.answer(reply, answer);
            }
            (Done::PutAway { taken, left, state }, _) => {
                self.keep_state(state.as_ref());
                self.note_taken(taken);
                if let Some(way) = left {
                    way.end_later(&self.pen.shared, self.pen.fixed.id);
                }
                for leaver in std::mem::take(&mut self.leavers) {
                    self.pen.answer_view(leaver);
                }
            }
        }
    }

    /// For the next shell of this session.
    fn keep_state(&mut self, state: Option<&keeper::SavedState>) {
        let Some(state) = state.filter(|_| self.pen.state.status != Status::Ended) else { return };
        match memo::seal_state(&self.pen.shared.vault, state) {
            Some(sealed) => self.memo.state = Some(sealed),
            None => {
                let text = "the shell's variables and functions are too many to be kept until it comes back"
                    .to_owned();
                self.pen.record(Actor::System, Notice { level: Level::Warning, text });
            }
        }
    }

    pub(super) fn note_taken(&mut self, taken: Option<Taken>) {
        match taken {
            None => {}
            Some(Ok(taken)) => drop(self.pen.record(Actor::System, taken)),
            Some(Err(fault)) => {
                let text = format!("no snapshot could be taken, and its files stay where they are: {fault}");
                self.pen.record(Actor::System, Notice { level: Level::Warning, text });
            }
        }
    }
}
