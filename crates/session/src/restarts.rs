//! An agent that crashes is started again, a bounded number of times within a window and each time a little later; then
//! it stays down until somebody needs it. Pure: told of each crash and the time, it says what to do. What it remembers is
//! written down with the session, so that neither the task's end nor the server's gives a crashing agent more tries.

use protocol::{Timestamp, limits};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The crashes within the window that were answered with a restart, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Restarts {
    crashed: Vec<Timestamp>,
}

/// What follows from a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The agent is started again after this time; it is the restart of this number within the window.
    Again { after: Duration, number: usize },
    /// It has had its restarts.
    Down,
}

impl Restarts {
    pub(crate) fn crashed(&mut self, now: Timestamp) -> Verdict {
        let window = i64::try_from(limits::CRASH_WINDOW_SECS * 1000).unwrap_or(i64::MAX);
        // A clock that was set back makes crashes of the future, which count as well: better too few than too many.
        self.crashed.retain(|at| now.as_millis().saturating_sub(at.as_millis()) < window);
        if self.crashed.len() >= limits::CRASH_RESTARTS {
            return Verdict::Down;
        }
        let before = u32::try_from(self.crashed.len()).unwrap_or(u32::MAX);
        self.crashed.push(now);
        let doubled = limits::CRASH_BACKOFF_MS.saturating_mul(1u64.checked_shl(before).unwrap_or(u64::MAX));
        let after = Duration::from_millis(doubled.min(limits::CRASH_BACKOFF_MOST_MS));
        Verdict::Again { after, number: self.crashed.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: i64 = limits::CRASH_WINDOW_SECS as i64 * 1000;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn again(after: u64, number: usize) -> Verdict {
        Verdict::Again { after: Duration::from_millis(after), number }
    }

    #[test]
    fn each_crash_waits_longer_and_the_last_one_is_the_last() {
        let mut restarts = Restarts::default();
        for (time, expected) in [
            (0, again(500, 1)),
            (10, again(1_000, 2)),
            (20, again(2_000, 3)),
            (30, again(4_000, 4)),
            (40, again(8_000, 5)),
            (50, Verdict::Down),
            (WINDOW - 1, Verdict::Down),
            // The first has left the window, and only that one.
            (WINDOW, again(8_000, 5)),
            (WINDOW + 1, Verdict::Down),
            (3 * WINDOW, again(500, 1)),
        ] {
            assert_eq!(restarts.crashed(at(time)), expected, "at {time}");
        }
    }

    #[test]
    fn a_rare_crash_is_always_the_first() {
        let mut restarts = Restarts::default();
        for day in 0..100 {
            assert_eq!(restarts.crashed(at(day * 86_400_000)), again(500, 1));
        }
    }

    #[test]
    fn what_it_remembers_is_written_down() {
        let mut restarts = Restarts::default();
        restarts.crashed(at(7));
        let text = serde_json::to_string(&restarts).unwrap();
        assert_eq!(serde_json::from_str::<Restarts>(&text).unwrap(), restarts);
    }

    proptest! {
        /// Whatever the clock does: never more restarts than the limit within any window of crashes in order.
        #[test]
        fn never_more_than_the_limit(gaps in proptest::collection::vec(0i64..WINDOW / 2, 0..80)) {
            let (mut restarts, mut now, mut given) = (Restarts::default(), 0, Vec::new());
            for gap in gaps {
                now += gap;
                if let Verdict::Again { after, .. } = restarts.crashed(at(now)) {
                    prop_assert!(after.as_millis() <= u128::from(limits::CRASH_BACKOFF_MOST_MS));
                    given.push(now);
                }
                let recent = given.iter().filter(|time| now - **time < WINDOW).count();
                prop_assert!(recent <= limits::CRASH_RESTARTS);
                prop_assert!(restarts.crashed.len() <= limits::CRASH_RESTARTS);
            }
        }
    }
}
