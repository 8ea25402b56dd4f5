//! The least of the values of late.
//!
//! Pure. What a way or a clock shows at its best is the way or the clock; all the rest is what came on top.

use std::time::{Duration, Instant};

/// The least of the last ten to twenty seconds: clocks drift, and ways change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecentLeast<T> {
    since: Instant,
    before: T,
    now: T,
}

const LEAST_OF: Duration = Duration::from_secs(10);

impl<T: Ord + Copy> RecentLeast<T> {
    pub(crate) fn new(value: T, now: Instant) -> Self {
        Self {
            since: now,
            before: value,
            now: value,
        }
    }

    pub(crate) fn add(&mut self, value: T, now: Instant) {
        if now.saturating_duration_since(self.since) >= LEAST_OF {
            (self.since, self.before, self.now) = (now, self.now, value);
        }
        self.now = self.now.min(value);
    }

    pub(crate) fn get(&self) -> T {
        self.now.min(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_remembered_for_ten_to_twenty_seconds() {
        let start = tokio::time::Instant::now().into_std();
        let mut least = RecentLeast::new(5, start);
        for (second, value, expected) in [
            (0, 3, 3),
            (9, 7, 3),
            (10, 8, 3),
            (19, 6, 3),
            (20, 9, 6),
            (30, 9, 9),
        ] {
            least.add(value, start + Duration::from_secs(second));
            assert_eq!(least.get(), expected, "{second} s");
        }
    }
}
