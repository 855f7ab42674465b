//! Events on their way in and out. Bodies are text that the caller has encoded (and redacted) already; this
//! room never looks inside one.

use crate::{
    Attachment,
    rows::{SessionState, TurnRow},
};
use bytes::Bytes;
use protocol::{Actor, Body, BodyError, Event, EventKind, Seq, SessionId, Timestamp, UsageSums};
use std::{borrow::Cow, sync::OnceLock};

/// An event on its way in. The body is encoded (and redacted) by the caller.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub actor: Actor,
    pub kind: EventKind,
    pub body: String,
    /// What belongs to it and is not in its body, which is then small enough for a row.
    pub attachment: Option<Attachment>,
}

impl NewEvent {
    pub fn new(actor: Actor, kind: EventKind, body: String) -> Self {
        Self { actor, kind, body, attachment: None }
    }
}

/// One session's share of a commit: all of it is stored, or none.
#[derive(Debug, Clone, Default)]
pub struct Append {
    pub at: Timestamp,
    pub events: Vec<NewEvent>,
    pub state: Option<SessionState>,
    pub turns: Vec<TurnRow>,
    /// What turns that end in it have used; added to the tenant's sums.
    pub used: UsageSums,
}

/// A stored event with its body as text.
#[derive(Debug, Clone)]
pub struct StoredEvent {
    pub seq: Seq,
    pub at: Timestamp,
    pub actor: Actor,
    pub kind: EventKind,
    pub version: u32,
    pub body: Bytes,
}

impl StoredEvent {
    pub fn decode(&self) -> Result<Body, BodyError> {
        Body::decode(self.version, &self.text())
    }

    /// Appends the flat wire form.
    pub fn write_json(&self, session: SessionId, out: &mut String) {
        Event::splice(out, session, self.seq, self.at, &self.actor, &self.text());
    }

    /// The body's text. It was a `String` when it came in and is checked when it is read back.
    fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.body)
    }

    /// What stands in for a body that was erased: an object, so that the wire form stays whole.
    pub(crate) fn erased_body(kind: EventKind) -> Bytes {
        Bytes::from(format!("{{\"type\":\"{}\",\"erased\":true}}", kind.as_str()))
    }
}

/// A page read from the store: consecutive events, bounded in number and bytes.
#[derive(Debug, Clone)]
pub struct Page {
    pub events: Vec<StoredEvent>,
    /// The last durable seq when the page was read.
    pub last_seq: Seq,
}

/// Consecutive events that became durable together, or a page of older ones. Never empty.
#[derive(Debug)]
pub struct Batch {
    pub session: SessionId,
    pub events: Vec<StoredEvent>,
    encoded: OnceLock<Bytes>,
}

impl Batch {
    pub fn new(session: SessionId, events: Vec<StoredEvent>) -> Self {
        Self { session, events, encoded: OnceLock::new() }
    }

    /// One encoding of the whole batch, made once and shared by everyone who follows at the tail.
    pub fn encoded(&self, encode: impl FnOnce(&Self) -> Bytes) -> Bytes {
        self.encoded.get_or_init(|| encode(self)).clone()
    }

    pub(crate) fn first_seq(&self) -> Seq {
        self.events.first().map_or(0, |event| event.seq)
    }

    pub(crate) fn last_seq(&self) -> Seq {
        self.events.last().map_or(0, |event| event.seq)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.events.iter().map(|event| event.body.len()).sum()
    }
}
