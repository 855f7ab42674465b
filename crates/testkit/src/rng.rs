//! A small seeded generator (splitmix64): the same seed gives the same choices on every machine.

/// Seeded choices.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another generator whose choices do not depend on how often this one is asked.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    #[allow(clippy::should_implement_trait, reason = "a generator without an end is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` up to but without `high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low).max(1)
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.within(0, 100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() {
            return None;
        }
        let index = self.within(0, from.len() as u64);
        from.get(usize::try_from(index).unwrap_or_default())
    }
}
