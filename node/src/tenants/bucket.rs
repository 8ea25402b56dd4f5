//! A token bucket: how many requests may come in a minute, or how many tokens they may use. Pure; the caller brings the
//! clock.

use std::time::Duration;

use tokio::time::Instant;

/// What one key has left of one of its rates.
#[derive(Debug)]
pub struct Bucket {
    /// Requests that may come now, or tokens that may be used; at most the capacity. Below 0 tokens are owed.
    level: f64,
    at: Instant,
}

/// A key's rate limit at one moment, for the headers of its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Requests or tokens in a minute, as configured.
    pub limit: u32,
    /// As many of them may come now, here.
    pub remaining: u32,
    /// Until as many may come as ever.
    pub full_in: Duration,
    /// Until one more may come; none if it may.
    pub next_in: Option<Duration>,
}

/// A key's rate limits at one moment, those that it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Requests.
    pub requests: Option<Quota>,
    /// Tokens.
    pub tokens: Option<Quota>,
}

/// A rate, as a replica has its part of it.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// Requests or tokens in a minute, over all replicas.
    pub limit: u32,
    /// Replicas, each of which gives its even share; at least 1. Both may change from call to call.
    pub replicas: u32,
}

impl Rate {
    fn share(self) -> f64 {
        f64::from(self.limit) / f64::from(self.replicas.max(1))
    }

    /// A share below one a minute still gives one, only later.
    fn capacity(self) -> f64 {
        self.share().max(1.0)
    }
}

impl Bucket {
    /// Full.
    pub fn new(now: Instant) -> Self {
        Self {
            level: f64::INFINITY,
            at: now,
        }
    }

    /// Takes one, if there is one: `next_in` of the answer is none then.
    pub fn take(&mut self, now: Instant, rate: Rate) -> Quota {
        self.spend(now, rate, 1.0)
    }

    /// Takes what a request is expected to use, if anything is left; what is not there is owed. Says what it took: no more
    /// than a minute gives.
    pub fn borrow(&mut self, now: Instant, rate: Rate, expected: u32) -> (Quota, u32) {
        let most = rate.capacity() as u32;
        let taken = expected.clamp(1, most);
        (self.spend(now, rate, f64::from(taken)), taken)
    }

    /// So much was used, of what was taken: the rest comes back, or is owed. Nobody owes more than an hour gives.
    pub fn settle(&mut self, rate: Rate, taken: u32, used: u64) {
        let level = self.level + f64::from(taken) - used as f64;
        self.level = level.max(-OWED_MINUTES * rate.capacity());
    }

    fn spend(&mut self, now: Instant, rate: Rate, amount: f64) -> Quota {
        let (limit, capacity) = (rate.limit, rate.capacity());
        let per_s = rate.share() / 60.0;
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * per_s;
        self.at = self.at.max(now);
        self.level = (self.level + earned).min(capacity);
        let until = |missing: f64| {
            // A limit of 0 gives nothing, ever; a day is far enough.
            Duration::try_from_secs_f64(missing / per_s)
                .unwrap_or(DAY)
                .min(DAY)
        };
        let has_one = limit > 0 && self.level >= 1.0 - ROUNDING;
        if has_one {
            self.level -= amount;
        }
        Quota {
            limit,
            remaining: if limit == 0 {
                0
            } else {
                (self.level + ROUNDING) as u32
            },
            full_in: until(capacity - self.level),
            next_in: (!has_one).then(|| until(1.0 - self.level)),
        }
    }
}

const DAY: Duration = Duration::from_secs(86_400);
/// Sums of fractions that make one are a little less than one.
const ROUNDING: f64 = 1e-9;
/// Minutes of a rate that may be owed.
const OWED_MINUTES: f64 = 60.0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(limit: u32) -> Rate {
        Rate { limit, replicas: 1 }
    }

    #[test]
    fn a_quiet_minute_gives_a_minutes_worth_and_then_an_even_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        for left in (0..6).rev() {
            let quota = bucket.take(start, rate(6));
            assert_eq!((quota.remaining, quota.next_in), (left, None));
        }
        let refused = bucket.take(start, rate(6));
        assert_eq!(refused.next_in, Some(Duration::from_secs(10)));
        assert_eq!(refused.full_in, Duration::from_secs(60));
        let later = start + Duration::from_secs(10);
        assert_eq!(bucket.take(later, rate(6)).next_in, None);
        assert!(bucket.take(later, rate(6)).next_in.is_some());
    }

    #[test]
    fn no_requests_is_a_limit_too() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        for after in [0, 3600] {
            let quota = bucket.take(start + Duration::from_secs(after), rate(0));
            assert_eq!((quota.remaining, quota.next_in), (0, Some(DAY)));
        }
    }

    #[test]
    fn what_was_expected_is_held_until_it_is_known_what_was_used() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        let (quota, taken) = bucket.borrow(start, rate(600), 400);
        assert_eq!((quota.remaining, quota.next_in, taken), (200, None, 400));
        // Something is left, so the next one comes in, too, and nobody else until that is paid.
        let (quota, taken) = bucket.borrow(start, rate(600), 5_000);
        assert_eq!(
            (quota.remaining, taken),
            (0, 600),
            "no more than a minute gives"
        );
        let (refused, _) = bucket.borrow(start, rate(600), 1);
        assert_eq!(refused.next_in, Some(Duration::from_millis(40_100)));
        bucket.settle(rate(600), 600, 100);
        bucket.settle(rate(600), 400, 350);
        let (quota, _) = bucket.borrow(start, rate(600), 1);
        assert_eq!((quota.remaining, quota.next_in), (149, None));
        // However much it was, an hour pays for it.
        bucket.settle(rate(600), 1, u64::MAX);
        let (refused, _) = bucket.borrow(start, rate(600), 1);
        let hour = Duration::from_secs(3_600) + Duration::from_millis(100);
        assert_eq!(refused.next_in, Some(hour));
    }

    proptest! {
        /// Over any time, no more is used than the rate gives, what one minute gives, and what the last request owes.
        #[test]
        fn what_is_used_follows_the_rate(
            asked in prop::collection::vec((0..3_000_u64, 1..2_000_u32, 0..2_000_u64), 1..300),
            limit in 60..60_000_u32,
        ) {
            let start = Instant::now();
            let mut bucket = Bucket::new(start);
            let (mut now, mut used) = (start, 0_u64);
            for (pause, expected, uses) in asked {
                now += Duration::from_millis(pause);
                let before = used;
                let (quota, taken) = bucket.borrow(now, rate(limit), expected);
                if quota.next_in.is_none() {
                    used += uses;
                    bucket.settle(rate(limit), taken, uses);
                    let rate = f64::from(limit);
                    let most = rate + (now - start).as_secs_f64() * rate / 60.0;
                    prop_assert!(before as f64 <= most + 1e-6, "{before} > {most}");
                }
            }
        }

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
            let rate = Rate { limit, replicas };
            for pause in pauses_ms {
                now += Duration::from_millis(pause);
                taken += u32::from(bucket.take(now, rate).next_in.is_none());
                let share = f64::from(limit) / f64::from(replicas);
                let most = share.max(1.0) + (now - start).as_secs_f64() * share / 60.0;
                prop_assert!(f64::from(taken) <= most + 1e-6, "{taken} > {most}");
            }
        }
    }
}
