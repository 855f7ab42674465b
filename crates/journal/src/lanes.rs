//! The way from writers to the committer: one lane per writer, in order, and one queue of requests.
//!
//! Writers push and never wait. The committer takes a bounded share of every lane that has something ready, so
//! that one flood delays nobody. An entry whose blobs are still being written is not ready and holds up its own
//! lane only. One lock guards it all: it is held for pointer moves, never for IO or hashing.

use crate::{
    Attachment, Durable, NewSession, SessionState, StoredEvent, TurnRow, WriteError,
    blobs::Address,
    chain::{Hash, Salt},
    lock,
    requests::Request,
};
use protocol::{
    Actor, Seq, SessionId, Tenant, Timestamp,
    limits::{COMMIT_BYTES_PER_SESSION, COMMIT_EVENTS_PER_SESSION},
};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{oneshot, watch};

/// All lanes together may put this much into one commit; the rest waits for the next one.
const COMMIT_BYTES: usize = 8 * 1024 * 1024;
/// Requests of the small tables in one commit.
const COMMIT_REQUESTS: usize = 1_024;

/// An event with its number and its place in the chain.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) event: StoredEvent,
    pub(crate) salt: Salt,
    pub(crate) body_hash: Hash,
    pub(crate) hash: Hash,
    /// Where the body is when it is too large for the row; set once the file is safe on disk.
    pub(crate) blob: Option<Arc<OnceLock<Address>>>,
    /// Held until the event that names it is stored.
    pub(crate) attachment: Option<Attachment>,
}

impl Record {
    /// What it takes of the disk.
    pub(crate) fn size(&self) -> u64 {
        self.event.body.len() as u64 + self.attachment.as_ref().map_or(0, Attachment::bytes)
    }
}

/// One append.
#[derive(Debug)]
pub(crate) struct Added {
    /// Only in the first append of a session that did not exist.
    pub(crate) new: Option<NewSession>,
    pub(crate) records: Vec<Record>,
    pub(crate) state: Option<SessionState>,
    pub(crate) turns: Vec<TurnRow>,
    pub(crate) used: protocol::UsageSums,
    pub(crate) head: Head,
    /// What it weighs in a share and in `pending_bytes`.
    pub(crate) weight: usize,
}

/// The end of a session's chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) seq: Seq,
    pub(crate) hash: Hash,
    pub(crate) at: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) actor: Actor,
    pub(crate) at: Timestamp,
    pub(crate) reply: oneshot::Sender<Result<(), WriteError>>,
}

#[derive(Debug)]
pub(crate) enum Entry {
    Add(Box<Added>),
    Remove(Box<Removal>),
}

impl Entry {
    fn is_ready(&self) -> bool {
        match self {
            Self::Add(added) => added
                .records
                .iter()
                .all(|record| record.blob.as_ref().is_none_or(|blob| blob.get().is_some())),
            Self::Remove(_) => true,
        }
    }
}

/// Why a lane takes nothing more.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Fenced,
    Conflict,
    Lost(String),
    Removed,
}

impl End {
    pub(crate) fn refusal(&self) -> WriteError {
        match self {
            Self::Fenced => WriteError::Fenced,
            Self::Conflict => WriteError::Conflict,
            Self::Lost(why) => WriteError::Storage(why.clone()),
            Self::Removed => WriteError::NotFound,
        }
    }

    fn durable(&self) -> Durable {
        match self {
            Self::Fenced => Durable::Fenced,
            Self::Conflict => Durable::Conflict,
            Self::Lost(why) => Durable::Lost(why.clone()),
            Self::Removed => Durable::Lost("the session was removed".to_owned()),
        }
    }
}

/// One writer's way to the committer.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) session: SessionId,
    pub(crate) tenant: Tenant,
    pub(crate) epoch: u64,
    /// The row's integer key; 0 until the row is stored.
    pub(crate) no: AtomicI64,
    pub(crate) pending: AtomicUsize,
    pub(crate) durable: watch::Sender<Durable>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// The lane is in the committer's list.
    listed: bool,
    end: Option<End>,
}

impl Lane {
    pub(crate) fn new(session: SessionId, tenant: Tenant, epoch: u64, no: i64, last_seq: Seq) -> Self {
        Self {
            session,
            tenant,
            epoch,
            no: AtomicI64::new(no),
            pending: AtomicUsize::new(0),
            durable: watch::Sender::new(Durable::Upto(last_seq)),
            queue: Mutex::default(),
        }
    }

    pub(crate) fn end(&self) -> Option<End> {
        lock(&self.queue).end.clone()
    }
}

/// What one lane puts into one commit.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) lane: Arc<Lane>,
    #[expect(clippy::vec_box, reason = "moved under the lock, as pointers, from a queue of boxes")]
    pub(crate) added: Vec<Box<Added>>,
    pub(crate) removal: Option<Box<Removal>>,
    pub(crate) weight: usize,
}

/// What goes to disk together.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    pub(crate) shares: Vec<Share>,
    pub(crate) requests: Vec<Request>,
}

pub(crate) enum Taken {
    Work(Commit),
    /// Nothing came within the patience given.
    Idle,
    /// Closing, and everything was taken.
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing new; what is enqueued is still written.
    Closing,
    /// As `Closing`, and nobody waits: give up rather than retry.
    Abandoned,
}

/// Whether the committer has something new to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listed {
    Now,
    AsBefore,
}

#[derive(Debug)]
struct State {
    ready: VecDeque<Arc<Lane>>,
    requests: VecDeque<Request>,
    /// Entries pushed and not taken, ready or not.
    outstanding: usize,
    phase: Phase,
    broken: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Lanes {
    state: Mutex<State>,
    wake: Condvar,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                requests: VecDeque::new(),
                outstanding: 0,
                phase: Phase::Open,
                broken: None,
            }),
            wake: Condvar::new(),
        }
    }

    pub(crate) fn push(&self, lane: &Arc<Lane>, entry: Entry) -> Result<(), WriteError> {
        let mut state = lock(&self.state);
        Self::admit(&state)?;
        let mut queue = lock(&lane.queue);
        if let Some(end) = &queue.end {
            return Err(end.refusal());
        }
        if let Entry::Add(added) = &entry {
            lane.pending.fetch_add(added.weight, Relaxed);
        }
        queue.entries.push_back(entry);
        state.outstanding += 1;
        let listed = Self::list(&mut state, lane, &mut queue);
        drop(queue);
        drop(state);
        self.wake_for(listed);
        Ok(())
    }

    pub(crate) fn request(&self, request: Request) -> Result<(), WriteError> {
        let mut state = lock(&self.state);
        Self::admit(&state)?;
        state.requests.push_back(request);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// A blob of this lane is safe on disk: its entry may be ready now.
    pub(crate) fn blob_written(&self, lane: &Arc<Lane>) {
        let mut state = lock(&self.state);
        let mut queue = lock(&lane.queue);
        let listed = Self::list(&mut state, lane, &mut queue);
        drop(queue);
        drop(state);
        self.wake_for(listed);
    }

    fn admit(state: &State) -> Result<(), WriteError> {
        if let Some(why) = &state.broken {
            return Err(WriteError::Storage(why.clone()));
        }
        match state.phase {
            Phase::Open => Ok(()),
            Phase::Closing | Phase::Abandoned => Err(WriteError::Closed),
        }
    }

    fn list(state: &mut State, lane: &Arc<Lane>, queue: &mut Queue) -> Listed {
        if queue.listed || !queue.entries.front().is_some_and(Entry::is_ready) {
            return Listed::AsBefore;
        }
        queue.listed = true;
        state.ready.push_back(lane.clone());
        Listed::Now
    }

    /// Only once the locks are free: a committer that is woken before runs into them, and has to be woken twice.
    fn wake_for(&self, listed: Listed) {
        match listed {
            Listed::Now => self.wake.notify_one(),
            Listed::AsBefore => {}
        }
    }

    /// Waits for work and takes a fair share of it. The committer's only call.
    pub(crate) fn take(&self, patience: Option<Duration>) -> Taken {
        let mut state = lock(&self.state);
        while state.ready.is_empty() && state.requests.is_empty() {
            if state.phase != Phase::Open && state.outstanding == 0 {
                return Taken::Finished;
            }
            match patience {
                None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let (held, timeout) =
                        self.wake.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
                    state = held;
                    if timeout.timed_out() {
                        return Taken::Idle;
                    }
                }
            }
        }
        Taken::Work(Self::fill(&mut state))
    }

    fn fill(state: &mut State) -> Commit {
        let mut commit = Commit::default();
        let mut room = COMMIT_BYTES;
        for _ in 0..state.ready.len() {
            if room == 0 {
                break;
            }
            let Some(lane) = state.ready.pop_front() else { break };
            let mut queue = lock(&lane.queue);
            let share = take_share(&lane, &mut queue);
            state.outstanding -= share.added.len() + usize::from(share.removal.is_some());
            room = room.saturating_sub(share.weight);
            queue.listed = queue.entries.front().is_some_and(Entry::is_ready);
            if queue.listed {
                state.ready.push_back(lane.clone());
            }
            drop(queue);
            // A lane that was ended while it was listed has nothing left.
            if !share.added.is_empty() || share.removal.is_some() {
                commit.shares.push(share);
            }
        }
        let count = state.requests.len().min(COMMIT_REQUESTS);
        commit.requests.extend(state.requests.drain(..count));
        commit
    }

    /// Ends a lane: what it still holds is refused, and its writer is told.
    pub(crate) fn end(&self, lane: &Lane, end: &End) {
        let mut state = lock(&self.state);
        let mut queue = lock(&lane.queue);
        state.outstanding -= queue.entries.len();
        let refused = std::mem::take(&mut queue.entries);
        lane.durable.send_replace(end.durable());
        lane.pending.store(0, Relaxed);
        queue.end = Some(end.clone());
        drop(queue);
        drop(state);
        // A committer that drains the lanes may have waited for just these.
        self.wake.notify_all();
        for entry in refused {
            if let Entry::Remove(removal) = entry {
                let _ = removal.reply.send(Err(end.refusal()));
            }
        }
    }

    /// From here on every write is refused with this reason.
    pub(crate) fn break_down(&self, why: &str) {
        lock(&self.state).broken = Some(why.to_owned());
    }

    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
        }
        drop(state);
        self.wake.notify_all();
    }

    /// Closes, and nobody is left to wait for what cannot be written.
    pub(crate) fn abandon(&self) {
        lock(&self.state).phase = Phase::Abandoned;
        self.wake.notify_all();
    }

    pub(crate) fn is_closing(&self) -> bool {
        lock(&self.state).phase != Phase::Open
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        lock(&self.state).phase == Phase::Abandoned
    }

    /// Waits before a retry; a close in between cuts the wait short.
    pub(crate) fn pause(&self, time: Duration) {
        let state = lock(&self.state);
        if state.phase == Phase::Abandoned {
            return;
        }
        let _ = self.wake.wait_timeout_while(state, time, |state| state.phase != Phase::Abandoned);
    }
}

/// At least one entry, then as many as the session's share allows. A removal is always the last.
fn take_share(lane: &Arc<Lane>, queue: &mut Queue) -> Share {
    let mut share = Share { lane: lane.clone(), added: Vec::new(), removal: None, weight: 0 };
    let mut events = 0;
    while let Some(entry) = queue.entries.front() {
        if !entry.is_ready() {
            break;
        }
        if let Entry::Add(added) = entry {
            let fits = events + added.records.len() <= COMMIT_EVENTS_PER_SESSION
                && share.weight + added.weight <= COMMIT_BYTES_PER_SESSION;
            if !fits && !share.added.is_empty() {
                break;
            }
        }
        match queue.entries.pop_front() {
            Some(Entry::Add(added)) => {
                events += added.records.len();
                share.weight += added.weight;
                share.added.push(added);
            }
            Some(Entry::Remove(removal)) => {
                share.removal = Some(removal);
                break;
            }
            None => break,
        }
    }
    share
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use protocol::EventKind;

    fn lane() -> Arc<Lane> {
        Arc::new(Lane::new(SessionId::new(), Tenant::default_tenant(), 1, 1, 0))
    }

    fn added(weight: usize, blob: Option<Arc<OnceLock<Address>>>) -> Entry {
        let event = StoredEvent {
            seq: 1,
            at: Timestamp::default(),
            actor: Actor::System,
            kind: EventKind::Notice,
            version: 1,
            body: Bytes::new(),
        };
        let record =
            Record { event, salt: [0; 16], body_hash: [0; 32], hash: [0; 32], blob, attachment: None };
        Entry::Add(Box::new(Added {
            new: None,
            records: vec![record],
            state: None,
            turns: vec![],
            used: protocol::UsageSums::default(),
            head: Head { seq: 1, hash: [0; 32], at: Timestamp::default() },
            weight,
        }))
    }

    fn work(lanes: &Lanes) -> Commit {
        match lanes.take(Some(Duration::ZERO)) {
            Taken::Work(commit) => commit,
            Taken::Idle => Commit::default(),
            Taken::Finished => panic!("not closed"),
        }
    }

    #[test]
    fn a_flood_gets_its_share_and_no_more() {
        let lanes = Lanes::new();
        let (flood, quiet) = (lane(), lane());
        for _ in 0..5 {
            lanes.push(&flood, added(COMMIT_BYTES_PER_SESSION / 2, None)).unwrap();
        }
        lanes.push(&quiet, added(10, None)).unwrap();
        let first = work(&lanes);
        assert_eq!(first.shares.iter().map(|share| share.added.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(work(&lanes).shares[0].added.len(), 2);
        assert_eq!(work(&lanes).shares[0].added.len(), 1);
        assert!(work(&lanes).shares.is_empty());
    }

    #[test]
    fn an_entry_over_the_share_goes_alone() {
        let lanes = Lanes::new();
        let lane = lane();
        lanes.push(&lane, added(COMMIT_BYTES_PER_SESSION * 3, None)).unwrap();
        lanes.push(&lane, added(1, None)).unwrap();
        assert_eq!(work(&lanes).shares[0].added.len(), 1);
        assert_eq!(work(&lanes).shares[0].added.len(), 1);
    }

    #[test]
    fn an_unwritten_blob_holds_up_its_own_lane_only() {
        let lanes = Lanes::new();
        let (slow, quick) = (lane(), lane());
        let blob = Arc::new(OnceLock::new());
        lanes.push(&slow, added(1, Some(blob.clone()))).unwrap();
        lanes.push(&slow, added(1, None)).unwrap();
        lanes.push(&quick, added(1, None)).unwrap();
        let first = work(&lanes);
        assert_eq!(first.shares.len(), 1);
        assert_eq!(first.shares[0].lane.session, quick.session);
        blob.set([0; 32]).unwrap();
        lanes.blob_written(&slow);
        assert_eq!(work(&lanes).shares[0].added.len(), 2);
    }

    #[test]
    fn closing_takes_what_is_there_and_refuses_the_rest() {
        let lanes = Lanes::new();
        let lane = lane();
        lanes.push(&lane, added(1, None)).unwrap();
        lanes.close();
        assert!(matches!(lanes.push(&lane, added(1, None)), Err(WriteError::Closed)));
        assert!(matches!(lanes.take(None), Taken::Work(_)));
        assert!(matches!(lanes.take(None), Taken::Finished));
    }

    #[test]
    fn an_ended_lane_refuses_with_its_reason() {
        let lanes = Lanes::new();
        let lane = lane();
        lanes.push(&lane, added(1, None)).unwrap();
        lanes.end(&lane, &End::Fenced);
        assert!(matches!(lanes.push(&lane, added(1, None)), Err(WriteError::Fenced)));
        assert_eq!(*lane.durable.borrow(), Durable::Fenced);
    }
}
