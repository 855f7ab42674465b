//! Numbers for metrics, counted by the committer in atomics.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The upper edges, in microseconds, of the commit histogram's buckets; the last bucket has none.
pub const COMMIT_MICROS: [u64; 9] = [250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000];

/// What the journal has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    pub events: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    pub commits: u64,
    /// Attempts that a full disk or a lock refused and that were made again.
    pub retries: u64,
    /// Time from the first write of a commit to its fsync, summed up.
    pub commit_micros: u64,
    /// Commits by how long they took; see [`COMMIT_MICROS`].
    pub commit_buckets: [u64; COMMIT_MICROS.len() + 1],
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    events: AtomicU64,
    bytes: AtomicU64,
    commits: AtomicU64,
    retries: AtomicU64,
    commit_micros: AtomicU64,
    commit_buckets: [AtomicU64; COMMIT_MICROS.len() + 1],
}

impl Counts {
    pub(crate) fn committed(&self, events: usize, bytes: usize, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.events.fetch_add(events as u64, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
        self.commits.fetch_add(1, Relaxed);
        self.commit_micros.fetch_add(micros, Relaxed);
        let bucket = COMMIT_MICROS.partition_point(|edge| *edge < micros);
        self.commit_buckets[bucket].fetch_add(1, Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> Figures {
        Figures {
            events: self.events.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            commits: self.commits.load(Relaxed),
            retries: self.retries.load(Relaxed),
            commit_micros: self.commit_micros.load(Relaxed),
            commit_buckets: std::array::from_fn(|bucket| self.commit_buckets[bucket].load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_falls_into_the_bucket_whose_edge_it_does_not_pass() {
        let counts = Counts::default();
        for micros in [1, 250, 251, 2_000_000] {
            counts.committed(2, 10, Duration::from_micros(micros));
        }
        let figures = counts.read();
        assert_eq!((figures.events, figures.bytes, figures.commits), (8, 40, 4));
        assert_eq!(figures.commit_buckets[..2], [2, 1]);
        assert_eq!(figures.commit_buckets[COMMIT_MICROS.len()], 1);
    }
}
