//! From decisions to disk: collecting a step's events, appending them, and letting the effects out when the
//! journal says so.

use super::{Stage, Task};
use crate::live::Reply;
use bytes::Bytes;
use journal::{Append, Durable, NewEvent, SessionState};
use occupant::{Cx, Effect};
use protocol::{Actor, Body, Fault, Level, Notice, Seq, Timestamp, limits};
use std::borrow::Cow;
use tokio::time::Instant;

/// Something that may happen only once an event is on disk.
pub(super) enum Pend {
    /// Bytes for the occupant's stdin, and their number there.
    Send(Seq, Bytes),
    /// The place may forget the occupant's output up to here.
    Forget(u64),
    /// An answer to a caller.
    Answer(Box<dyn Answer>),
}

/// A reply and what to say, whatever its type.
pub(super) trait Answer: Send {
    fn give(self: Box<Self>);
    fn refuse(self: Box<Self>, fault: Fault);
}

struct Ready<T> {
    reply: Reply<T>,
    result: Result<T, Fault>,
}

impl<T: Send> Answer for Ready<T> {
    fn give(self: Box<Self>) {
        // A caller that went away wanted no answer.
        let _ = self.reply.send(self.result);
    }

    fn refuse(self: Box<Self>, fault: Fault) {
        let _ = self.reply.send(Err(fault));
    }
}

impl Pend {
    pub(super) fn answer<T: Send + 'static>(reply: Reply<T>, result: Result<T, Fault>) -> Self {
        Self::Answer(Box::new(Ready { reply, result }))
    }

    pub(super) fn refuse(self, fault: Fault) {
        match self {
            Self::Answer(answer) => answer.refuse(fault),
            Self::Send(..) | Self::Forget(_) => {}
        }
    }
}

impl Task {
    /// A fresh step: events recorded in it are numbered after the last one given out.
    pub(super) fn cx(&self) -> Cx {
        Cx::new(self.clock.read(Instant::now()), self.writer.last_seq())
    }

    /// Lets the session answer what the occupant's machine said, until it says no more.
    pub(super) fn hear_said(&mut self, cx: &mut Cx) {
        loop {
            let said = cx.take_said();
            if said.is_empty() {
                return;
            }
            for said in said {
                self.on_said(said, cx);
            }
        }
    }

    /// Ends a step: appends its events, the changed rows and the state in one piece.
    pub(super) fn settle(&mut self, mut cx: Cx) {
        self.hear_said(&mut cx);
        for (id, ask) in cx.take_asks() {
            self.start_ask(id, ask);
        }
        let drained = cx.drain();
        let events: Vec<NewEvent> =
            drained.records.into_iter().map(|(actor, body)| self.encode(actor, &body)).collect();
        let stepped = !events.is_empty() || !drained.effects.is_empty();
        for (seq, effect) in drained.effects {
            match effect {
                Effect::Send(bytes) => {
                    self.memo.sent += 1;
                    self.outbox.push(self.memo.sent, bytes.clone());
                    self.pending.push_back((seq, Pend::Send(self.memo.sent, bytes)));
                }
                // Said during draining cannot be: hear_said took everything.
                Effect::Say(_) => {}
            }
        }
        self.note_state(stepped);
        let state = (self.written.as_ref() != Some(&self.state)).then(|| self.state.clone());
        let turns = std::mem::take(&mut self.turn_rows);
        if self.stage != Stage::Over && !(events.is_empty() && state.is_none() && turns.is_empty()) {
            let used = std::mem::take(&mut self.used);
            self.append(Append { at: Timestamp::now(), events, state, turns, used });
        }
        self.on_durable();
    }

    fn append(&mut self, append: Append) {
        let count = append.events.len();
        let state = append.state.clone();
        match self.writer.append(append) {
            Ok(seq) => {
                self.written = state.or_else(|| self.written.take());
                let wait = self.shared.rates.spend(&self.fixed.tenant, count, Instant::now());
                self.throttled_until = (!wait.is_zero()).then(|| Instant::now() + wait);
                if let super::Occupied::Live(live) = &mut self.occupied
                    && let Some(offset) = live.newly_consumed()
                {
                    self.pending.push_back((seq, Pend::Forget(offset)));
                }
            }
            Err(error) => self.lose(&error.to_string()),
        }
    }

    /// The parts of the row that follow from everything else.
    fn note_state(&mut self, stepped: bool) {
        if self.stage == Stage::Leaving {
            return;
        }
        self.state.live = !matches!(self.occupied, super::Occupied::Empty)
            || !self.errands.is_empty()
            || self.restart_at.is_some()
            || !self.turns.is_idle();
        // How far its output was read and what came of that are written down together, or not at all.
        let read_on = match &self.occupied {
            super::Occupied::Live(live) => live.acp.consumed() != self.memo.consumed,
            super::Occupied::Empty | super::Occupied::Launching(_) => false,
        };
        if stepped || read_on {
            self.note_occupant();
        }
        let memo = self.memo.encode();
        if self.state.memo != memo {
            self.state.memo = memo;
        }
    }

    /// What the next server needs to go on with the same process. Only when something happened: its times alone are no
    /// reason to write it down again.
    fn note_occupant(&mut self) {
        let super::Occupied::Live(live) = &self.occupied else { return };
        self.memo.consumed = live.acp.consumed();
        self.memo.saved = live.acp.save(self.clock.read(Instant::now()));
        self.memo.terminals = self.asks.kept_terminals();
        self.outbox.arrived(live.process.stdin.taken());
        // A handshake is not taken up, and begins with secrets.
        self.memo.outbox = match self.memo.saved {
            None => None,
            Some(_) => self.outbox.seal(&self.shared.vault).unwrap_or_else(|error| {
                tracing::error!(session = %self.fixed.id, %error, "input could not be sealed");
                None
            }),
        };
    }

    /// Encodes and redacts. A body over the limit is replaced by a word about it: its number stays.
    fn encode(&self, actor: Actor, body: &Body) -> NewEvent {
        let kind = body.kind();
        let encoded = body.encode().map(|text| self.redact(text));
        match encoded {
            Ok(text) if text.len() <= limits::EVENT_BYTES => NewEvent::new(actor, kind, text),
            Ok(text) => self.replacement(format!(
                "an event {} of {} bytes was too large to keep",
                kind.as_str(),
                text.len()
            )),
            Err(error) => {
                self.replacement(format!("an event {} could not be written: {error}", kind.as_str()))
            }
        }
    }

    fn redact(&self, text: String) -> String {
        match self.redactor.json(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(redacted) => redacted,
        }
    }

    fn replacement(&self, text: String) -> NewEvent {
        let body = Body::from(Notice { level: Level::Warning, text });
        // A notice always encodes.
        let text =
            body.encode().unwrap_or_else(|_| r#"{"type":"notice","level":"warning","text":""}"#.to_owned());
        NewEvent::new(Actor::System, body.kind(), self.redact(text))
    }

    /// Lets out what is on disk by now.
    pub(super) fn on_durable(&mut self) {
        let upto = match &*self.durable.borrow_and_update() {
            Durable::Upto(seq) => Ok(*seq),
            Durable::Fenced => Err("another server owns the session".to_owned()),
            Durable::Conflict => Err("its id or alias is taken".to_owned()),
            Durable::Lost(why) => Err(why.clone()),
        };
        let upto: Seq = match upto {
            Ok(seq) => seq,
            Err(why) => return self.lose(&why),
        };
        while let Some((seq, _)) = self.pending.front()
            && *seq <= upto
        {
            if let Some((_, pend)) = self.pending.pop_front() {
                self.let_out(pend);
            }
        }
    }

    fn let_out(&mut self, pend: Pend) {
        match pend {
            Pend::Answer(answer) => answer.give(),
            Pend::Send(number, bytes) => {
                if let super::Occupied::Live(live) = &self.occupied
                    && let Err(error) = live.process.stdin.send(number, bytes)
                {
                    tracing::warn!(session = %self.fixed.id, %error, "the agent takes no input; it is killed");
                    live.process.handle.kill();
                }
            }
            Pend::Forget(offset) => {
                if let super::Occupied::Live(live) = &self.occupied {
                    live.process.stdout.ack(offset);
                }
            }
        }
    }
}

/// A session's state when it is made.
pub(crate) fn first_state(model: Option<String>, name: Option<String>, now: Timestamp) -> SessionState {
    SessionState {
        status: protocol::Status::Starting,
        status_reason: None,
        model,
        name,
        last_active_at: now,
        live: true,
        memo: String::new(),
        usage: protocol::UsageSums::default(),
    }
}
