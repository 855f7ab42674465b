//! Faults on demand, so that tests can see what a full disk, a failing fsync or a damaged page does. A journal
//! opened without them pays one check of an `Option` per commit.

use crate::lock;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex},
};
use tokio::sync::watch;

/// A way for a commit to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// As if the disk were full.
    Full,
    /// As if fsync had failed.
    Sync,
    /// As if a page were damaged.
    Corrupt,
}

/// A test's hand on the committer. Clones share one hand.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    hand: Arc<Hand>,
}

#[derive(Debug, Default)]
struct Hand {
    next: Mutex<VecDeque<Fault>>,
    held: Mutex<bool>,
    released: Condvar,
    stopped: watch::Sender<Option<String>>,
}

impl Faults {
    /// The next `times` attempts to commit fail like this.
    pub fn fail_commits(&self, fault: Fault, times: usize) {
        lock(&self.hand.next).extend(std::iter::repeat_n(fault, times));
    }

    /// How many of them have not happened yet.
    pub fn left(&self) -> usize {
        lock(&self.hand.next).len()
    }

    /// Nothing is committed until `release`.
    pub fn hold(&self) {
        *lock(&self.hand.held) = true;
    }

    pub fn release(&self) {
        *lock(&self.hand.held) = false;
        self.hand.released.notify_all();
    }

    /// Waits until the process would have been stopped, and says why.
    pub async fn stopped(&self) -> String {
        let mut stopped = self.hand.stopped.subscribe();
        loop {
            if let Some(why) = stopped.borrow_and_update().clone() {
                return why;
            }
            if stopped.changed().await.is_err() {
                return "the journal is gone".to_owned();
            }
        }
    }

    pub(crate) fn before_commit(&self) -> Option<Fault> {
        let mut held = lock(&self.hand.held);
        while *held {
            held = self.hand.released.wait(held).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        drop(held);
        lock(&self.hand.next).pop_front()
    }
}

/// Ends the process: after a failed fsync nobody can say what is on disk, and only a new start, which reads it
/// again, can. With faults in hand the test is told instead.
pub(crate) fn stop(faults: Option<&Faults>, why: &str) {
    tracing::error!(
        why,
        "writes cannot be confirmed any more; stopping, so that nothing unconfirmed is acknowledged"
    );
    match faults {
        Some(faults) => {
            faults.hand.stopped.send_replace(Some(why.to_owned()));
        }
        None => std::process::abort(),
    }
}
