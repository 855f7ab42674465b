//! The one thread that writes: takes what the lanes hold, stores it in one transaction with one fsync, then tells
//! the writers and the followers. It never waits for more to come; under load, what came during one commit is the
//! next one.
//!
//! What fails: a full disk or a busy database is tried again with the same batch until it succeeds, so that
//! nothing enqueued is dropped or reordered. A failed fsync stops the process. A damaged database, or an error
//! that nothing explains, ends every writer with a reason, and later writes are refused with it.

use crate::{
    StoredEvent, WriteError,
    blobs::Blobs,
    faults::{self, Faults},
    figures::Counts,
    follow::Hubs,
    lanes::{Commit, End, Lanes, Share, Taken},
    space::{Gauge, REFILL_EVERY},
    store::{Store, StoreError, Verdict, Verdicts},
};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The first and the longest wait between two attempts.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_LONGEST: Duration = Duration::from_millis(500);
/// How long a closing store still tries to write to a full disk.
const RETRY_CLOSING: Duration = Duration::from_secs(5);

/// What the committer shares with the rest of the room.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) hubs: Arc<Hubs>,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) faults: Option<Faults>,
}

pub(crate) struct Committer {
    desk: Desk,
    store: Box<dyn Store>,
    chores: Chores,
    broken: Option<String>,
}

#[derive(PartialEq, Eq)]
enum Chores {
    Done,
    /// The store wants to go on when nobody else wants anything.
    Left,
}

impl Committer {
    pub(crate) fn new(desk: Desk, store: Box<dyn Store>) -> Self {
        Self { desk, store, chores: Chores::Left, broken: None }
    }

    /// Until the lanes are closed and drained.
    pub(crate) fn run(mut self) {
        loop {
            match self.desk.lanes.take(self.patience()) {
                Taken::Work(commit) => {
                    self.commit(commit);
                    self.upkeep();
                }
                Taken::Idle => {
                    self.desk.gauge.refill();
                    self.upkeep();
                }
                Taken::Finished => break,
            }
        }
        self.store.close();
    }

    fn patience(&self) -> Option<Duration> {
        if self.chores == Chores::Left && self.broken.is_none() {
            Some(Duration::ZERO)
        } else {
            self.desk.gauge.wants_refill().then_some(REFILL_EVERY)
        }
    }

    fn commit(&mut self, commit: Commit) {
        if let Some(why) = self.broken.clone() {
            return self.refuse(commit, &why);
        }
        let began = Instant::now();
        let mut waiting = None;
        let mut wait = RETRY_FIRST;
        loop {
            let attempt = Instant::now();
            match self.store.commit(&commit) {
                Ok(verdicts) => {
                    drop(waiting);
                    self.desk.gauge.refill();
                    return self.publish(commit, verdicts, attempt.elapsed());
                }
                Err(error @ (StoreError::Full(_) | StoreError::Busy(_))) => {
                    if waiting.is_none() {
                        tracing::warn!(?error, "a commit has to wait for the disk");
                        waiting = Some(self.desk.gauge.wait());
                    }
                    if self.gives_up(began) {
                        return self.refuse(commit, "it was closed while the disk took no more");
                    }
                    if matches!(error, StoreError::Full(_)) {
                        self.desk.gauge.release();
                    }
                    self.desk.counts.retried();
                    self.desk.lanes.pause(wait);
                    wait = (wait * 2).min(RETRY_LONGEST);
                }
                Err(StoreError::Sync(why)) => {
                    faults::stop(self.desk.faults.as_ref(), &why);
                    return self.break_down(commit, why);
                }
                Err(StoreError::Damaged(why) | StoreError::Failed(why)) => {
                    return self.break_down(commit, why);
                }
            }
        }
    }

    fn gives_up(&self, began: Instant) -> bool {
        let lanes = &self.desk.lanes;
        lanes.is_abandoned() || lanes.is_closing() && began.elapsed() > RETRY_CLOSING
    }

    fn publish(&mut self, commit: Commit, verdicts: Verdicts, took: Duration) {
        // Before the next commit can name one of them again.
        self.desk.blobs.collect(&verdicts.orphans);
        // Counted before anybody is told, so that whoever was told finds it counted.
        let (events, bytes) = stored_in(&commit, &verdicts);
        self.desk.counts.committed(events, bytes, took);
        let mut batches = Vec::with_capacity(commit.shares.len());
        for (share, verdict) in commit.shares.into_iter().zip(verdicts.shares) {
            self.unpin(&share);
            match verdict {
                Verdict::Stored { no } => {
                    self.stored(&share, no);
                    batches.push(share);
                }
                Verdict::Removed => {
                    self.desk.lanes.end(&share.lane, &End::Removed);
                    self.desk.hubs.removed(share.lane.session);
                    reply(share, Ok(()));
                }
                Verdict::Fenced => self.end(share, &End::Fenced),
                Verdict::Conflict => self.end(share, &End::Conflict),
                Verdict::Refused(why) => self.end(share, &End::Lost(why)),
            }
        }
        for (request, result) in commit.requests.into_iter().zip(verdicts.requests) {
            let _ = request.reply.send(result);
        }
        for share in batches {
            self.desk.hubs.publish(share.lane.session, || take_events(share));
        }
    }

    fn stored(&self, share: &Share, no: i64) {
        let lane = &share.lane;
        lane.no.store(no, Relaxed);
        let _ =
            lane.pending.fetch_update(Relaxed, Relaxed, |pending| Some(pending.saturating_sub(share.weight)));
        if let Some(added) = share.added.last() {
            lane.durable.send_replace(crate::Durable::Upto(added.head.seq));
        }
    }

    fn end(&self, share: Share, end: &End) {
        tracing::warn!(session = %share.lane.session, ?end, "a writer was ended");
        self.desk.lanes.end(&share.lane, end);
        reply(share, Err(end.refusal()));
    }

    fn unpin(&self, share: &Share) {
        for record in share.added.iter().flat_map(|added| &added.records) {
            if let Some(address) = record.blob.as_ref().and_then(|slot| slot.get()) {
                self.desk.blobs.unpin(address);
            }
        }
    }

    fn break_down(&mut self, commit: Commit, why: String) {
        tracing::error!(why, "the store failed; nothing more is written");
        self.desk.lanes.break_down(&why);
        self.refuse(commit, &why);
        self.broken = Some(why);
    }

    fn refuse(&self, commit: Commit, why: &str) {
        for share in commit.shares {
            self.unpin(&share);
            self.end(share, &End::Lost(why.to_owned()));
        }
        for request in commit.requests {
            let _ = request.reply.send(Err(WriteError::Storage(why.to_owned())));
        }
    }

    fn upkeep(&mut self) {
        if self.broken.is_some() {
            return;
        }
        self.chores = Chores::Done;
        match self.store.upkeep() {
            Ok(upkeep) => {
                self.desk.blobs.collect(&upkeep.orphans);
                if upkeep.more {
                    self.chores = Chores::Left;
                }
            }
            Err(StoreError::Sync(why)) => {
                faults::stop(self.desk.faults.as_ref(), &why);
                self.break_down(Commit::default(), why);
            }
            Err(StoreError::Damaged(why)) => self.break_down(Commit::default(), why),
            // Chores can wait; the next commit meets whatever it was.
            Err(StoreError::Full(why) | StoreError::Busy(why) | StoreError::Failed(why)) => {
                tracing::warn!(why, "upkeep was put off");
            }
        }
    }
}

/// Events and bytes of the shares that were stored.
fn stored_in(commit: &Commit, verdicts: &Verdicts) -> (usize, usize) {
    let stored = commit
        .shares
        .iter()
        .zip(&verdicts.shares)
        .filter(|(_, verdict)| matches!(verdict, Verdict::Stored { .. }))
        .flat_map(|(share, _)| &share.added)
        .flat_map(|added| &added.records);
    stored.fold((0, 0), |(events, bytes), record| (events + 1, bytes + record.event.body.len()))
}

fn reply(share: Share, result: Result<(), WriteError>) {
    if let Some(removal) = share.removal {
        let _ = removal.reply.send(result);
    }
}

fn take_events(share: Share) -> Vec<StoredEvent> {
    share.added.into_iter().flat_map(|added| added.records).map(|record| record.event).collect()
}
