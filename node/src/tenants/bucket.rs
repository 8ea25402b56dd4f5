//! A token bucket: how many requests may come in a minute. Pure; the caller brings the clock.

use std::time::Duration;

use tokio::time::Instant;

/// Tokens of one key.
#[derive(Debug)]
pub struct Bucket {
    /// Requests that may come now; at most the capacity.
    tokens: f64,
    at: Instant,
}

/// A key's rate limit at one moment, for the headers of its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Requests in a minute, as configured.
    pub limit: u32,
    /// Requests that may come now, here.
    pub remaining: u32,
    /// Until as many may come as ever.
    pub full_in: Duration,
    /// Until one more may come; none if it may.
    pub next_in: Option<Duration>,
}

impl Bucket {
    /// Full.
    pub fn new(now: Instant) -> Self {
        Self {
            tokens: f64::INFINITY,
            at: now,
        }
    }

    /// Takes a token, if there is one: `next_in` of the answer is none then.
    ///
    /// `limit`: requests in a minute over all of `replicas`, of which this one gives its even share. Both may change
    /// from call to call.
    pub fn take(&mut self, now: Instant, limit: u32, replicas: u32) -> Quota {
        let share = f64::from(limit) / f64::from(replicas.max(1));
        // A share below one request a minute still gives one, only later.
        let capacity = share.max(1.0);
        let per_s = share / 60.0;
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * per_s;
        self.at = self.at.max(now);
        self.tokens = (self.tokens + earned).min(capacity);
        let until = |missing: f64| {
            // A limit of 0 gives nothing, ever; a day is far enough.
            Duration::try_from_secs_f64(missing / per_s)
                .unwrap_or(DAY)
                .min(DAY)
        };
        let has_one = limit > 0 && self.tokens >= 1.0 - ROUNDING;
        if has_one {
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
        Quota {
            limit,
            remaining: if limit == 0 {
                0
            } else {
                (self.tokens + ROUNDING) as u32
            },
            full_in: until(capacity - self.tokens),
            next_in: (!has_one).then(|| until(1.0 - self.tokens)),
        }
    }
}

const DAY: Duration = Duration::from_secs(86_400);
/// Sums of fractions that make one are a little less than one.
const ROUNDING: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_quiet_minute_gives_a_minutes_worth_and_then_an_even_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        for left in (0..6).rev() {
            let quota = bucket.take(start, 6, 1);
            assert_eq!((quota.remaining, quota.next_in), (left, None));
        }
        let refused = bucket.take(start, 6, 1);
        assert_eq!(refused.next_in, Some(Duration::from_secs(10)));
        assert_eq!(refused.full_in, Duration::from_secs(60));
        let later = start + Duration::from_secs(10);
        assert_eq!(bucket.take(later, 6, 1).next_in, None);
        assert!(bucket.take(later, 6, 1).next_in.is_some());
    }

    #[test]
    fn no_requests_is_a_limit_too() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        for after in [0, 3600] {
            let quota = bucket.take(start + Duration::from_secs(after), 0, 1);
            assert_eq!((quota.remaining, quota.next_in), (0, Some(DAY)));
        }
    }

    proptest! {
        /// Over any time, all replicas together let in no more than the limit's rate and one capacity each.
        #[test]
        fn never_more_than_the_rate(
            pauses_ms in prop::collection::vec(0..3_000_u64, 1..400),
            limit in 1..600_u32,
            replicas in 1..5_u32,
        ) {
            let start = Instant::now();
            let mut bucket = Bucket::new(start);
            let mut now = start;
            let mut taken = 0_u32;
            for pause in pauses_ms {
                now += Duration::from_millis(pause);
                taken += u32::from(bucket.take(now, limit, replicas).next_in.is_none());
                let share = f64::from(limit) / f64::from(replicas);
                let most = share.max(1.0) + (now - start).as_secs_f64() * share / 60.0;
                prop_assert!(f64::from(taken) <= most + 1e-6, "{taken} > {most}");
            }
        }
    }
}
