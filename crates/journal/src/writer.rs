//! The one pen for one session. It numbers, times and hashes events at once and hands them to the lane; the
//! committer makes them durable in the same order. Nothing here waits, and nothing touches the disk.

use crate::{
    Append, NewEvent, NewSession, StoredEvent, WriteError,
    blobs::{BlobPool, Job},
    chain::{self, Envelope, Salts},
    lanes::{Added, Entry, Head, Lane, Lanes, Record, Removal},
};
use bytes::Bytes;
use protocol::{
    Actor, SCHEMA_VERSION, Seq, SessionId, Timestamp,
    limits::{EVENT_BYTES, INLINE_BODY_BYTES},
};
use std::sync::{Arc, OnceLock, atomic::Ordering::Relaxed};
use tokio::sync::{oneshot, watch};

/// What an event weighs beside its body: envelope, hashes, and the memory they take while they wait.
const EVENT_OVERHEAD: usize = 256;

/// How far a session's record is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Durable {
    Upto(Seq),
    /// Another writer holds the lease; nothing after the last `Upto` was stored.
    Fenced,
    /// The session could not be made: its id or its alias is taken. Nothing was stored.
    Conflict,
    /// The store is closed or broken, or the session was removed.
    Lost(String),
}

/// The one pen for one session. Appends are numbered at once and durable later, in order.
pub struct Writer {
    lane: Arc<Lane>,
    lanes: Arc<Lanes>,
    pool: Arc<BlobPool>,
    head: Head,
    /// Until the first append makes the row.
    new: Option<NewSession>,
    salts: Salts,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("session", &self.lane.session)
            .field("last_seq", &self.head.seq)
            .finish_non_exhaustive()
    }
}

impl Writer {
    pub(crate) fn new(
        lane: Lane,
        head: Head,
        new: Option<NewSession>,
        lanes: Arc<Lanes>,
        pool: Arc<BlobPool>,
    ) -> Self {
        Self { lane: Arc::new(lane), lanes, pool, head, new, salts: Salts::default() }
    }

    pub fn session(&self) -> SessionId {
        self.lane.session
    }

    /// The last number given out.
    pub fn last_seq(&self) -> Seq {
        self.head.seq
    }

    /// Numbers and enqueues; never waits. Returns the last seq. An event over the limit refuses the whole append.
    pub fn append(&mut self, append: Append) -> Result<Seq, WriteError> {
        if let Some(end) = self.lane.end() {
            return Err(end.refusal());
        }
        let largest = append.events.iter().map(|event| event.body.len()).max().unwrap_or(0);
        if largest > EVENT_BYTES {
            return Err(WriteError::TooLarge { bytes: largest });
        }
        let unfit = |event: &NewEvent| event.attachment.is_some() && event.body.len() > INLINE_BODY_BYTES;
        if append.events.iter().any(unfit) {
            return Err(WriteError::Storage("an event with an attachment must fit into its row".to_owned()));
        }
        if append.events.iter().any(|event| !event.body.starts_with('{')) {
            return Err(WriteError::Storage("an event's body must be a JSON object".to_owned()));
        }
        let mut weight = state_weight(&append);
        let at = append.at.at_least(self.head.at);
        let mut head = Head { at, ..self.head };
        let mut records = Vec::with_capacity(append.events.len());
        let mut jobs = Vec::new();
        for event in append.events {
            let record = self.record(&mut head, event)?;
            weight += record.event.body.len() + EVENT_OVERHEAD;
            if let Some(slot) = &record.blob {
                jobs.push(Job {
                    lane: self.lane.clone(),
                    body: record.event.body.clone(),
                    slot: slot.clone(),
                });
            }
            records.push(record);
        }
        let (state, turns, used) = (append.state, append.turns, append.used);
        let new = self.new.take();
        let added = Added { new: new.clone(), records, state, turns, used, head, weight };
        if let Err(error) = self.lanes.push(&self.lane, Entry::Add(Box::new(added))) {
            self.new = new;
            return Err(error);
        }
        self.head = head;
        // After the push: a job that finishes finds its entry in the lane.
        for job in jobs {
            self.pool.submit(job);
        }
        Ok(head.seq)
    }

    fn record(&mut self, head: &mut Head, new: NewEvent) -> Result<Record, WriteError> {
        let NewEvent { actor, kind, body, attachment } = new;
        let body = Bytes::from(body);
        let salt = self
            .salts
            .next()
            .map_err(|error| WriteError::Storage(format!("the system gives no random bytes: {error}")))?;
        let body_hash = chain::body_hash(&salt, &body);
        let seq = head.seq + 1;
        let key;
        let actor_text = match &actor {
            Actor::System => "system",
            Actor::Agent => "agent",
            Actor::Key(_) => {
                key = actor.to_string();
                &key
            }
        };
        let envelope = Envelope {
            seq,
            at: head.at.as_millis(),
            kind: kind.as_str(),
            actor: actor_text,
            version: SCHEMA_VERSION,
        };
        let hash = chain::event_hash(&head.hash, envelope, &body_hash);
        let blob = (body.len() > INLINE_BODY_BYTES).then(|| Arc::new(OnceLock::new()));
        let event = StoredEvent { seq, at: head.at, actor, kind, version: SCHEMA_VERSION, body };
        *head = Head { seq, hash, ..*head };
        Ok(Record { event, salt, body_hash, hash, blob, attachment })
    }

    pub fn durable(&self) -> watch::Receiver<Durable> {
        self.lane.durable.subscribe()
    }

    /// Bytes enqueued and not yet durable.
    pub fn pending_bytes(&self) -> usize {
        self.lane.pending.load(Relaxed)
    }

    /// Deletes the session and its events; leaves a tombstone in the tenant's chain.
    pub async fn remove(&self, actor: Actor, at: Timestamp) -> Result<(), WriteError> {
        if self.new.is_some() {
            return Err(WriteError::NotFound);
        }
        let (reply, answer) = oneshot::channel();
        self.lanes.push(&self.lane, Entry::Remove(Box::new(Removal { actor, at, reply })))?;
        answer.await.unwrap_or(Err(WriteError::Closed))
    }
}

fn state_weight(append: &Append) -> usize {
    let state = append.state.as_ref().map_or(0, |state| state.memo.len() + EVENT_OVERHEAD);
    state + append.turns.len() * EVENT_OVERHEAD
}
