//! Following a session: replay from a seq, then the tail, without a gap or a double.
//!
//! A follower is no more than a cursor. It first takes hold of the session's hub, then asks: is the next event in
//! the hub's recent batches? If not, is it in the store? If neither, it waits for the hub. A batch is found by its
//! seq, never by having been sent, so that lagging, cancelling and reconnecting need no special care: whoever fell
//! out of the hub's window reads the store again. A hub exists only while somebody follows.

use crate::{Batch, ReadError, StoredEvent, journal::Core, lock};
use protocol::{
    Seq, SessionId,
    limits::{PAGE_EVENTS, TAIL_BATCHES},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, Weak},
};
use tokio::sync::watch;

/// The recent batches of one session may hold this much; the newest is kept whatever its size.
const TAIL_BYTES: usize = 1024 * 1024;

/// What a hub knows of its session's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// The last seq published since the hub was made; 0 when none was.
    At(Seq),
    Removed,
    Closed,
}

#[derive(Debug)]
struct Hub {
    session: SessionId,
    recent: Mutex<Recent>,
    tail: watch::Sender<Tail>,
    hubs: Weak<Hubs>,
}

#[derive(Debug, Default)]
struct Recent {
    batches: VecDeque<Arc<Batch>>,
    bytes: usize,
}

impl Recent {
    fn push(&mut self, batch: Arc<Batch>) {
        self.bytes += batch.bytes();
        self.batches.push_back(batch);
        while self.batches.len() > 1 && (self.batches.len() > TAIL_BATCHES || self.bytes > TAIL_BYTES) {
            if let Some(old) = self.batches.pop_front() {
                self.bytes -= old.bytes();
            }
        }
    }

    /// The batch that holds the event after this one.
    fn after(&self, after: Seq) -> Option<Arc<Batch>> {
        let index = self.batches.partition_point(|batch| batch.last_seq() <= after);
        self.batches.get(index).filter(|batch| batch.first_seq() <= after + 1).cloned()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if let Some(hubs) = self.hubs.upgrade() {
            let mut map = lock(&hubs.map);
            // A new follower may have made a new hub in the meantime.
            if map.get(&self.session).is_some_and(|hub| hub.strong_count() == 0) {
                map.remove(&self.session);
            }
        }
    }
}

/// All sessions that somebody follows.
#[derive(Debug, Default)]
pub(crate) struct Hubs {
    map: Mutex<HashMap<SessionId, Weak<Hub>>>,
}

impl Hubs {
    fn join(self: &Arc<Self>, session: SessionId) -> Arc<Hub> {
        let mut map = lock(&self.map);
        if let Some(hub) = map.get(&session).and_then(Weak::upgrade) {
            return hub;
        }
        let hub = Arc::new(Hub {
            session,
            recent: Mutex::default(),
            tail: watch::Sender::new(Tail::At(0)),
            hubs: Arc::downgrade(self),
        });
        map.insert(session, Arc::downgrade(&hub));
        hub
    }

    fn get(&self, session: SessionId) -> Option<Arc<Hub>> {
        lock(&self.map).get(&session).and_then(Weak::upgrade)
    }

    /// Called by the committer, in commit order, with events that are on disk.
    pub(crate) fn publish(&self, session: SessionId, events: impl FnOnce() -> Vec<StoredEvent>) {
        let Some(hub) = self.get(session) else { return };
        let batch = Arc::new(Batch::new(session, events()));
        let last = batch.last_seq();
        if batch.events.is_empty() {
            return;
        }
        lock(&hub.recent).push(batch);
        hub.tail.send_replace(Tail::At(last));
    }

    pub(crate) fn removed(&self, session: SessionId) {
        if let Some(hub) = self.get(session) {
            hub.tail.send_replace(Tail::Removed);
        }
    }

    pub(crate) fn close(&self) {
        let hubs: Vec<_> = lock(&self.map).values().filter_map(Weak::upgrade).collect();
        for hub in hubs {
            hub.tail.send_replace(Tail::Closed);
        }
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        lock(&self.map).len()
    }
}

/// A place at the tail of a session, taken before it is known which event will be the first.
///
/// Whoever asks for something to be recorded and wants to see what comes of it takes a seat before asking: nothing of
/// it can pass unseen, and so the store need not be asked.
pub struct Seat {
    core: Arc<Core>,
    hub: Arc<Hub>,
    tail: watch::Receiver<Tail>,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("session", &self.hub.session).finish_non_exhaustive()
    }
}

impl Seat {
    pub(crate) fn new(core: Arc<Core>, session: SessionId) -> Self {
        let hub = core.hubs().join(session);
        let tail = hub.tail.subscribe();
        Self { core, hub, tail }
    }

    /// Begins after an event; the next one must have been recorded since the seat was taken.
    pub fn follow(self, after: Seq) -> Follower {
        Follower { core: self.core, hub: self.hub, tail: self.tail, after, stored: Some(after) }
    }
}

/// Replays from a seq and then tails, without a gap or a double.
pub struct Follower {
    core: Arc<Core>,
    hub: Arc<Hub>,
    tail: watch::Receiver<Tail>,
    /// The last seq given out.
    after: Seq,
    /// The store's last seq when it was last read, or what is known of it without.
    stored: Option<Seq>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower")
            .field("session", &self.hub.session)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

impl Follower {
    /// Joins the hub before anything is read: what is committed from here on cannot be missed.
    pub(crate) fn new(core: Arc<Core>, session: SessionId, after: Seq) -> Self {
        let Seat { core, hub, tail } = Seat::new(core, session);
        Self { core, hub, tail, after, stored: None }
    }

    /// The next events; waits at the tail. Cancel-safe. `NotFound` once the session is removed.
    pub async fn next(&mut self) -> Result<Arc<Batch>, ReadError> {
        loop {
            let published = match *self.tail.borrow_and_update() {
                Tail::At(seq) => seq,
                Tail::Removed => return Err(ReadError::NotFound),
                Tail::Closed => return Err(closed()),
            };
            // The first look goes to the store: it also says whether there is such a session.
            if let Some(stored) = self.stored {
                if let Some(batch) = self.recent() {
                    return Ok(self.give(batch));
                }
                if stored.max(published) <= self.after {
                    self.tail.changed().await.map_err(|_| closed())?;
                    continue;
                }
            }
            let page = self.core.page(self.hub.session, self.after, PAGE_EVENTS).await?;
            self.stored = Some(page.last_seq);
            if !page.events.is_empty() {
                return Ok(self.give(Arc::new(Batch::new(self.hub.session, page.events))));
            }
        }
    }

    fn recent(&self) -> Option<Arc<Batch>> {
        let batch = lock(&self.hub.recent).after(self.after)?;
        if batch.first_seq() == self.after + 1 {
            return Some(batch);
        }
        // It began in the middle of this one: its own copy of the rest.
        let rest = batch.events.iter().filter(|event| event.seq > self.after).cloned().collect();
        Some(Arc::new(Batch::new(batch.session, rest)))
    }

    fn give(&mut self, batch: Arc<Batch>) -> Arc<Batch> {
        self.after = batch.last_seq();
        batch
    }
}

fn closed() -> ReadError {
    ReadError::Storage("the store is closed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Journal, Options};
    use bytes::Bytes;
    use protocol::{Actor, EventKind, Timestamp};

    fn batch(first: Seq, last: Seq, bytes: usize) -> Arc<Batch> {
        let event = |seq| StoredEvent {
            seq,
            at: Timestamp::default(),
            actor: Actor::System,
            kind: EventKind::Notice,
            version: 1,
            body: Bytes::from(vec![b'x'; bytes]),
        };
        Arc::new(Batch::new(SessionId::new(), (first..=last).map(event).collect()))
    }

    #[test]
    fn recent_batches_are_found_by_seq_and_bounded() {
        let mut recent = Recent::default();
        for first in (1..).step_by(3).take(TAIL_BATCHES + 10) {
            recent.push(batch(first, first + 2, 1));
        }
        assert_eq!(recent.batches.len(), TAIL_BATCHES);
        assert!(recent.after(0).is_none(), "fell out of the window");
        assert_eq!(recent.after(30).unwrap().first_seq(), 31);
        assert_eq!(recent.after(31).unwrap().first_seq(), 31, "in the middle of one");
        assert!(recent.after(3 * (TAIL_BATCHES as u64 + 10)).is_none(), "at the tail");
        recent.push(batch(1_000, 1_000, 2 * TAIL_BYTES));
        assert_eq!(recent.batches.len(), 1, "the newest stays, whatever its size");
    }

    #[tokio::test]
    async fn a_hub_lives_as_long_as_its_followers() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { dir: dir.path().to_owned(), reserve_bytes: 0, low_water_bytes: 0 };
        let journal = Journal::open(options).unwrap();
        let session = SessionId::new();
        let (one, two) = (journal.follow(session, 0), journal.follow(session, 5));
        let hubs = one.core.hubs().clone();
        assert_eq!(hubs.count(), 1);
        drop(one);
        assert_eq!(hubs.count(), 1);
        drop(two);
        assert_eq!(hubs.count(), 0);
    }
}
