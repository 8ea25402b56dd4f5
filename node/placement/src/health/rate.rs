//! Good and bad outcomes of the recent past, counted exactly in a few buckets.

use std::time::Duration;

const BUCKETS: usize = 10;

/// Counts outcomes over a window of time: the bucket that `now` falls into, and the nine before it.
#[derive(Clone, Debug)]
pub(super) struct RateWindow {
    /// Nanoseconds of one bucket, at least 1.
    width: u128,
    /// Number of the newest bucket since the start of time.
    newest: u128,
    /// Of bucket `n` at `n % BUCKETS`: good outcomes, and all of them.
    counts: [(u32, u32); BUCKETS],
}

impl RateWindow {
    /// An empty window of this length.
    pub(super) fn new(window: Duration) -> Self {
        Self {
            width: (window.as_nanos() / BUCKETS as u128).max(1),
            newest: 0,
            counts: [(0, 0); BUCKETS],
        }
    }

    /// Counts one outcome.
    pub(super) fn record(&mut self, good: bool, now: Duration) {
        self.advance(now);
        let (goods, all) = &mut self.counts[(self.newest % BUCKETS as u128) as usize];
        *goods = goods.saturating_add(good.into());
        *all = all.saturating_add(1);
    }

    /// Good outcomes within the window, and all of them.
    pub(super) fn outcomes(&mut self, now: Duration) -> (u32, u32) {
        self.advance(now);
        self.counts
            .iter()
            .fold((0_u32, 0_u32), |(goods, all), &(good, count)| {
                (goods.saturating_add(good), all.saturating_add(count))
            })
    }

    /// Empties the buckets that time has passed over.
    fn advance(&mut self, now: Duration) {
        let current = now.as_nanos() / self.width;
        let passed = current.saturating_sub(self.newest).min(BUCKETS as u128);
        for step in 0..passed {
            self.counts[((current - step) % BUCKETS as u128) as usize] = (0, 0);
        }
        self.newest = self.newest.max(current);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_counts_what_fell_into_its_buckets(
            pauses_ms in prop::collection::vec((0_u64..300, any::<bool>()), 1..200),
        ) {
            // Buckets of 100 ms, against a list of everything that ever happened.
            let mut window = RateWindow::new(Duration::from_secs(1));
            let mut all = Vec::new();
            let mut now_ms = 0;
            for (pause_ms, good) in pauses_ms {
                now_ms += pause_ms;
                let now = Duration::from_millis(now_ms);
                window.record(good, now);
                all.push((now_ms / 100, good));
                let within = all.iter().filter(|(bucket, _)| bucket + 10 > now_ms / 100);
                let goods = within.clone().filter(|(_, good)| *good).count();
                let expected = (u32::try_from(goods).unwrap(), u32::try_from(within.count()).unwrap());
                prop_assert_eq!(window.outcomes(now), expected);
            }
        }
    }

    #[test]
    fn what_is_past_is_forgotten() {
        let mut window = RateWindow::new(Duration::from_secs(10));
        window.record(false, Duration::from_secs(1));
        assert_eq!(window.outcomes(Duration::from_secs(10)), (0, 1));
        assert_eq!(window.outcomes(Duration::from_secs(11)), (0, 0));
        // A window of no length still holds what happens at the moment.
        let mut none = RateWindow::new(Duration::ZERO);
        none.record(true, Duration::ZERO);
        assert_eq!(none.outcomes(Duration::ZERO), (1, 1));
    }
}
