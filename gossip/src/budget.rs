//! Bytes, or questions, a second, with room for bursts.

use std::time::Instant;

/// A bucket that fills at a fixed rate. What is spent may exceed what is left, once: then it is in
/// debt and closed until the debt is filled, so that no frame is too long for it.
#[derive(Clone, Debug)]
pub struct Budget {
    bytes_per_s: f64,
    burst: f64,
    left: f64,
    at: Instant,
}

impl Budget {
    /// A full bucket.
    pub fn new(bytes_per_s: u32, burst: u32, now: Instant) -> Self {
        let burst = f64::from(burst);
        Self {
            bytes_per_s: f64::from(bytes_per_s),
            burst,
            left: burst,
            at: now,
        }
    }

    /// True if something may be spent now.
    pub fn is_open(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * self.bytes_per_s).min(self.burst);
        self.at = self.at.max(now);
        self.left > 0.0
    }

    /// True if nothing of it is missing: then it is as a new one would be.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.is_open(now) && self.left >= self.burst
    }

    /// Takes `bytes` out.
    pub fn spend(&mut self, bytes: usize) {
        self.left -= bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Over any time no more than the burst, the rate and one debt are spent; and after the debt
        /// is filled there is always something to spend.
        #[test]
        fn the_rate_is_kept(steps in prop::collection::vec((0..2000u64, 0..5000usize), 1..60)) {
            let start = tokio::time::Instant::now().into_std();
            let mut budget = Budget::new(1000, 2000, start);
            let (mut now, mut spent) = (start, 0);
            for (pause_ms, bytes) in steps {
                now += Duration::from_millis(pause_ms);
                if budget.is_open(now) {
                    budget.spend(bytes);
                    spent += bytes;
                }
                let passed = now.duration_since(start).as_secs_f64();
                prop_assert!(spent as f64 <= 2000.0 + 1000.0 * passed + 5000.0);
            }
            prop_assert!(budget.is_open(now + Duration::from_millis(5001)));
        }
    }
}
