//! The occupant's clock: it runs with monotonic time and stands still while the session is frozen, so that a
//! pause uses up nobody's deadline. Takes the real time as input.

use protocol::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: Timestamp,
    started: Instant,
    stood: Duration,
    frozen: Option<Instant>,
}

impl Clock {
    /// Shows the wall clock's time now, and goes its own way from there.
    pub(crate) fn new(now: Instant) -> Self {
        Self { base: Timestamp::now(), started: now, stood: Duration::ZERO, frozen: None }
    }

    pub(crate) fn read(&self, now: Instant) -> Timestamp {
        let until = self.frozen.unwrap_or(now);
        let ran = until.saturating_duration_since(self.started).saturating_sub(self.stood);
        Timestamp::from_millis(self.base.as_millis() + i64::try_from(ran.as_millis()).unwrap_or(i64::MAX))
    }

    pub(crate) fn freeze(&mut self, now: Instant) {
        self.frozen.get_or_insert(now);
    }

    pub(crate) fn thaw(&mut self, now: Instant) {
        if let Some(since) = self.frozen.take() {
            self.stood += now.saturating_duration_since(since);
        }
    }

    /// The real moment at which this clock will show `at`; never while it stands still.
    pub(crate) fn when(&self, at: Timestamp, now: Instant) -> Option<Instant> {
        if self.frozen.is_some() {
            return None;
        }
        let wait = u64::try_from(at.as_millis() - self.read(now).as_millis()).unwrap_or(0);
        // One more, so that the clock has surely reached it.
        Some(now + Duration::from_millis(wait.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_clock_stands_still() {
        let born = Instant::now();
        let after = |secs| born + Duration::from_secs(secs);
        let mut clock = Clock::new(born);
        let start = clock.read(born).as_millis();
        clock.freeze(after(5));
        assert_eq!(clock.read(after(3605)).as_millis() - start, 5_000);
        assert!(clock.when(Timestamp::from_millis(start), after(3605)).is_none());
        clock.thaw(after(3605));
        assert_eq!(clock.read(after(3606)).as_millis() - start, 6_000);
        let due = clock.when(Timestamp::from_millis(start + 10_000), after(3606)).unwrap();
        assert_eq!(due - after(3606), Duration::from_millis(4_001));
    }
}
