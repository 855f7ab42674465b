//! A session's pen: its events, numbered and appended, and what may happen only once they are on disk.
//!
//! Whoever owns a live shell holds one. Nothing here knows what the events mean.

use crate::{Shared, live::Reply, view};
use journal::{Append, Durable, NewEvent, NewSession, SessionState, Writer};
use protocol::{Actor, Body, Fault, Level, Notice, Seq, Session, Timestamp, limits};
use std::{collections::VecDeque, sync::Arc};
use tokio::sync::watch;

pub(crate) struct Pen<Effect> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) fixed: NewSession,
    pub(crate) state: SessionState,
    writer: Writer,
    durable: watch::Receiver<Durable>,
    first_seq: Seq,
    /// As it was last appended, to write it only when it changed.
    written: Option<SessionState>,
    /// Of this step, not appended yet.
    events: Vec<NewEvent>,
    /// Effects waiting for their events to be on disk, in order.
    pending: VecDeque<(Seq, Pend<Effect>)>,
}

enum Pend<Effect> {
    Effect(Effect),
    Answer(Box<dyn FnOnce(Option<Fault>) + Send>),
}

/// The journal takes nothing more from this pen, and why.
#[derive(Debug)]
pub(crate) struct Lost(pub(crate) String);

impl<Effect> Pen<Effect> {
    pub(crate) fn new(
        shared: Arc<Shared>,
        writer: Writer,
        fixed: NewSession,
        state: SessionState,
        first_seq: Seq,
        written: Option<SessionState>,
    ) -> Self {
        let durable = writer.durable();
        let (events, pending) = (Vec::new(), VecDeque::new());
        Self { shared, fixed, state, writer, durable, first_seq, written, events, pending }
    }

    /// The number of the last event, this step's included.
    pub(crate) fn last_seq(&self) -> Seq {
        self.writer.last_seq() + self.events.len() as Seq
    }

    /// Adds an event to this step.
    pub(crate) fn record(&mut self, actor: Actor, body: impl Into<Body>) -> Seq {
        let body = body.into();
        let kind = body.kind();
        let event = match body.encode() {
            Ok(text) if text.len() <= limits::EVENT_BYTES => NewEvent::new(actor, kind, text),
            Ok(_) => replacement("an event was too large to keep"),
            Err(error) => replacement(&format!("an event could not be written: {error}")),
        };
        self.events.push(event);
        self.last_seq()
    }

    /// Gives the event that was just recorded what belongs to it.
    pub(crate) fn attach(&mut self, attachment: journal::Attachment) {
        if let Some(event) = self.events.last_mut() {
            event.attachment = Some(attachment);
        }
    }

    /// Lets something happen once everything recorded so far is on disk.
    pub(crate) fn then(&mut self, effect: Effect) {
        self.pending.push_back((self.last_seq(), Pend::Effect(effect)));
    }

    /// Answers a caller once everything recorded so far is on disk.
    pub(crate) fn answer<T: Send + 'static>(&mut self, reply: Reply<T>, result: Result<T, Fault>) {
        let answer = Box::new(move |fault: Option<Fault>| {
            // A caller that went away wanted no answer.
            let _ = reply.send(match fault {
                None => result,
                Some(fault) => Err(fault),
            });
        });
        self.pending.push_back((self.last_seq(), Pend::Answer(answer)));
    }

    pub(crate) fn answer_view(&mut self, reply: Reply<Session>) {
        let view = self.view();
        self.answer(reply, Ok(view));
    }

    pub(crate) fn view(&self) -> Session {
        view::session(&self.fixed, &self.state, self.first_seq, self.last_seq())
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Ends a step: appends its events and the changed row in one piece.
    pub(crate) fn settle(&mut self) -> Result<(), Lost> {
        let events = std::mem::take(&mut self.events);
        let state = (self.written.as_ref() != Some(&self.state)).then(|| self.state.clone());
        if events.is_empty() && state.is_none() {
            return Ok(());
        }
        let append = Append {
            at: Timestamp::now(),
            events,
            state: state.clone(),
            turns: Vec::new(),
            used: Default::default(),
        };
        self.writer.append(append).map_err(|error| Lost(error.to_string()))?;
        self.written = state.or_else(|| self.written.take());
        Ok(())
    }

    /// Waits until something more is on disk. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> Result<(), Lost> {
        self.durable.changed().await.map_err(|_| Lost("the journal is closed".to_owned()))
    }

    /// What may happen by now, in order; answers are given on the way.
    pub(crate) fn due(&mut self) -> Result<Vec<Effect>, Lost> {
        let upto = match &*self.durable.borrow_and_update() {
            Durable::Upto(seq) => *seq,
            Durable::Fenced => return Err(Lost("another server owns the session".to_owned())),
            Durable::Conflict => return Err(Lost("its id or alias is taken".to_owned())),
            Durable::Lost(why) => return Err(Lost(why.clone())),
        };
        let mut due = Vec::new();
        while let Some((seq, _)) = self.pending.front()
            && *seq <= upto
        {
            match self.pending.pop_front() {
                Some((_, Pend::Effect(effect))) => due.push(effect),
                Some((_, Pend::Answer(answer))) => answer(None),
                None => break,
            }
        }
        Ok(due)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.writer.pending_bytes() == 0
    }

    pub(crate) fn has_room(&self) -> bool {
        self.writer.pending_bytes() < limits::PENDING_BYTES
    }

    /// Forgets effects that no longer make sense; answers stay.
    pub(crate) fn drop_effects(&mut self) {
        self.pending.retain(|(_, pend)| matches!(pend, Pend::Answer(_)));
    }

    /// Nothing more can be recorded: everyone who waits is told.
    pub(crate) fn give_up(&mut self, fault: &Fault) {
        for (_, pend) in self.pending.drain(..) {
            if let Pend::Answer(answer) = pend {
                answer(Some(fault.clone()));
            }
        }
    }

    /// Removes the session with everything that was recorded.
    pub(crate) async fn remove(&mut self, actor: Actor) -> Result<(), Fault> {
        self.pending.clear();
        self.writer.remove(actor, Timestamp::now()).await.map_err(crate::faults::write)
    }
}

fn replacement(text: &str) -> NewEvent {
    let body = Body::from(Notice { level: Level::Warning, text: text.to_owned() });
    let text =
        body.encode().unwrap_or_else(|_| r#"{"type":"notice","level":"warning","text":""}"#.to_owned());
    NewEvent::new(Actor::System, body.kind(), text)
}
