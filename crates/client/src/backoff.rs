//! How long to wait, and how often to try again. Pure but for the jitter.

use std::time::Duration;

/// Every wait of a client, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a connection to be made.
    pub connect: Duration,
    /// For a whole answer, or for the head of a stream. Longer than the server gives an agent to shake hands.
    pub answer: Duration,
    /// For an upload's answer.
    pub upload: Duration,
    /// A stream that brings nothing for this long, not even a heartbeat, counts as lost.
    pub silence: Duration,
    /// The wait before the first repeat; it doubles from there.
    pub first_wait: Duration,
    pub longest_wait: Duration,
    /// Repeats without progress before giving up.
    pub tries: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(protocol::limits::HANDSHAKE_SECS * 2),
            upload: Duration::from_secs(600),
            silence: Duration::from_secs(60),
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(5),
            tries: 40,
        }
    }
}

/// Doubling waits with jitter, up to a number of tries.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    tries: u32,
    done: u32,
}

impl Backoff {
    pub(crate) const fn new(patience: &Patience) -> Self {
        Self { first: patience.first_wait, longest: patience.longest_wait, tries: patience.tries, done: 0 }
    }

    /// Something arrived: the next failure is a first one again.
    pub(crate) const fn reset(&mut self) {
        self.done = 0;
    }

    /// Repeats since the last progress.
    pub(crate) const fn attempt(&self) -> u32 {
        self.done
    }

    /// The next wait, or nothing when it is time to give up.
    pub(crate) fn next_wait(&mut self) -> Option<Duration> {
        if self.done >= self.tries {
            return None;
        }
        let full = self.first.saturating_mul(2u32.saturating_pow(self.done)).min(self.longest);
        self.done += 1;
        Some(jittered(full))
    }
}

/// Between half of the wait and all of it, so that a thousand clients do not come back in one instant.
fn jittered(full: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_bytes()[0];
    full / 2 + full.mul_f64(f64::from(random) / 510.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patience() -> Patience {
        Patience {
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(2),
            tries: 40,
            ..Patience::default()
        }
    }

    #[test]
    fn waits_double_stay_bounded_and_end() {
        let mut backoff = Backoff::new(&patience());
        let mut full = Duration::from_millis(100);
        for _ in 0..40 {
            let wait = backoff.next_wait().unwrap();
            assert!(wait >= full / 2 && wait <= full, "{wait:?} of {full:?}");
            full = (full * 2).min(Duration::from_secs(2));
        }
        assert_eq!(backoff.next_wait(), None);
    }

    #[test]
    fn progress_starts_over() {
        let mut backoff = Backoff::new(&patience());
        for _ in 0..30 {
            backoff.next_wait();
        }
        backoff.reset();
        assert_eq!(backoff.attempt(), 0);
        assert!(backoff.next_wait().unwrap() <= Duration::from_millis(100));
    }
}
