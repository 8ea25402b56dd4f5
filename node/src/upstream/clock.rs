//! How far a worker's clock is from this replica's, as the `Date` of its answers to health checks says.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds by which a clock is ahead; of a worker that sends no `Date`, nothing.
#[derive(Debug)]
pub struct ClockOffset(AtomicI64);

const UNKNOWN: i64 = i64::MIN;

impl Default for ClockOffset {
    fn default() -> Self {
        Self(AtomicI64::new(UNKNOWN))
    }
}

impl ClockOffset {
    /// Takes note of a `Date` that came at `now` by this machine's clock; one that cannot be read changes nothing.
    pub fn note(&self, date: &str, now: SystemTime) {
        let Ok(theirs) = httpdate::parse_http_date(date) else {
            return;
        };
        let ahead = seconds(theirs).saturating_sub(seconds(now));
        self.0.store(ahead, Ordering::Relaxed);
    }

    /// Whole seconds by which the worker's clock is ahead of this replica's; below 0: behind. Exact to about a second.
    pub fn ahead_s(&self) -> Option<i64> {
        let ahead = self.0.load(Ordering::Relaxed);
        (ahead != UNKNOWN).then_some(ahead)
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_date_of_an_answer_is_compared_and_nonsense_is_not() {
        let clock = ClockOffset::default();
        let now = UNIX_EPOCH + Duration::from_millis(784_111_777_900);
        assert_eq!(clock.ahead_s(), None);
        clock.note("yesterday", now);
        assert_eq!(clock.ahead_s(), None);
        clock.note("Sun, 06 Nov 1994 08:49:37 GMT", now);
        assert_eq!(clock.ahead_s(), Some(0));
        clock.note("Sun, 06 Nov 1994 08:51:07 GMT", now);
        assert_eq!(clock.ahead_s(), Some(90));
        clock.note("Sun, 06 Nov 1994 08:49:07 GMT", now);
        assert_eq!(clock.ahead_s(), Some(-30));
    }
}
