//! The occupant's clock: it runs with monotonic time and stands still while the session is frozen, so that a
//! pause uses up nobody's deadline.

use protocol::Timestamp;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    base: Timestamp,
    started: Instant,
    stood: Duration,
    frozen: Option<Instant>,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { base: Timestamp::now(), started: Instant::now(), stood: Duration::ZERO, frozen: None }
    }

    pub(super) fn now(&self) -> Timestamp {
        let until = self.frozen.unwrap_or_else(Instant::now);
        let ran = until.duration_since(self.started).saturating_sub(self.stood);
        Timestamp::from_millis(self.base.as_millis() + i64::try_from(ran.as_millis()).unwrap_or(i64::MAX))
    }

    pub(super) fn freeze(&mut self) {
        self.frozen.get_or_insert_with(Instant::now);
    }

    pub(super) fn thaw(&mut self) {
        if let Some(since) = self.frozen.take() {
            self.stood += since.elapsed();
        }
    }

    /// The real moment at which this clock will show `at`; never while it stands still.
    pub(super) fn instant(&self, at: Timestamp) -> Option<Instant> {
        if self.frozen.is_some() {
            return None;
        }
        let wait = u64::try_from(at.as_millis() - self.now().as_millis()).unwrap_or(0);
        // One more, so that the clock has surely reached it.
        Some(Instant::now() + Duration::from_millis(wait.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_frozen_clock_stands_still() {
        let mut clock = Clock::new();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(5)).await;
        clock.freeze();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(clock.now().as_millis() - start.as_millis(), 5_000);
        assert!(clock.instant(start).is_none());
        clock.thaw();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(clock.now().as_millis() - start.as_millis(), 6_000);
        let due = clock.instant(Timestamp::from_millis(start.as_millis() + 10_000)).unwrap();
        assert_eq!(due - Instant::now(), Duration::from_millis(4_001));
    }
}
