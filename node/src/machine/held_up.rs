//! How often a quota of processors held this process up of late: the system counts since the cgroup began, which may be
//! months, so earlier counts are kept to compare with.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::quota::{self, Periods};

/// What is told goes back so far, or to the start of the replica.
const BACK: Duration = Duration::from_secs(3_600);
/// Between two counts that are kept, at least; so there are some sixty.
const EVERY: Duration = Duration::from_secs(60);

/// Counts of the last hour, the earliest first.
#[derive(Debug, Default)]
pub struct HeldUp(Mutex<VecDeque<(Instant, Periods)>>);

impl HeldUp {
    /// Looks at the counts, if it is time for it; to be called more often than once a minute.
    pub fn look(&self) {
        let now = Instant::now();
        if self.is_due(now)
            && let Some(periods) = quota::periods()
        {
            self.keep(periods, now);
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let kept = self.0.lock();
        kept.back().is_none_or(|(last, _)| now - *last >= EVERY)
    }

    fn keep(&self, periods: Periods, now: Instant) {
        let mut kept = self.0.lock();
        if kept
            .back()
            .is_some_and(|(_, last)| periods.since(*last).is_none())
        {
            kept.clear();
        }
        kept.push_back((now, periods));
        // The first one stays as long as no other goes back far enough.
        while kept.get(1).is_some_and(|(at, _)| now - *at >= BACK) {
            kept.pop_front();
        }
    }

    /// The share of the last hour's periods, 0 to 1, in which the quota was used up; `now`: the counts by now. None
    /// where there was no period.
    pub(super) fn share(&self, now: Periods) -> Option<f64> {
        let (_, first) = *self.0.lock().front()?;
        let of_late = now.since(first)?;
        (of_late.all > 0).then(|| of_late.held_up as f64 / of_late.all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn periods(all: u64, held_up: u64) -> Periods {
        Periods { all, held_up }
    }

    #[test]
    fn what_was_more_than_an_hour_ago_counts_no_more() {
        let (held_up, began) = (HeldUp::default(), Instant::now());
        assert_eq!(held_up.share(periods(10, 5)), None, "it knows no other");
        // Months of it, all without a hitch.
        let mut counts = periods(1_000_000, 0);
        held_up.keep(counts, began);
        assert_eq!(held_up.share(counts), None, "no period since");
        counts = periods(1_000_600, 300);
        assert_eq!(held_up.share(counts), Some(0.5), "since the start");
        // An hour of it, and then no more.
        for minute in 1..=60_u32 {
            held_up.keep(counts, began + minute * EVERY);
            counts.all += 600;
        }
        assert_eq!(held_up.share(counts), Some(300.0 / (61.0 * 600.0)));
        for minute in 61..=200 {
            held_up.keep(counts, began + minute * EVERY);
            counts.all += 600;
        }
        assert_eq!(held_up.share(counts), Some(0.0));
        assert!(held_up.0.lock().len() <= 62);
    }

    #[test]
    fn counts_of_another_cgroup_are_not_compared() {
        let (held_up, began) = (HeldUp::default(), Instant::now());
        held_up.keep(periods(1_000, 500), began);
        assert_eq!(held_up.share(periods(10, 1)), None);
        held_up.keep(periods(10, 1), began + EVERY);
        assert_eq!(held_up.share(periods(20, 3)), Some(0.2));
    }

    #[test]
    fn one_count_a_minute_is_kept() {
        let (held_up, began) = (HeldUp::default(), Instant::now());
        assert!(held_up.is_due(began));
        held_up.keep(periods(1, 0), began);
        assert!(!held_up.is_due(began + EVERY / 2));
        assert!(held_up.is_due(began + EVERY));
    }
}
