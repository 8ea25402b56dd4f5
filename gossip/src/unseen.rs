//! Time that passed unseen: while a machine is suspended, and from the checkpoint of one to the moment when it is restored,
//! the monotonic clock stands still. Only the wall clock shows it afterwards.
//!
//! Pure. A wall clock may also be set, which looks alike. So this is for the question whether this replica may have been
//! away, and for nothing that a wrong answer would break.

use std::time::{Duration, Instant};

/// Compares the two clocks, from look to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unseen {
    now: Instant,
    /// `None` before the first look.
    unix_ms: Option<u64>,
}

impl Unseen {
    pub(crate) fn new(now: Instant) -> Self {
        Self { now, unix_ms: None }
    }

    /// How much of the time since the last look the monotonic clock did not see; zero if that is little.
    pub(crate) fn look(&mut self, now: Instant, unix_ms: u64) -> Duration {
        let seen = now.saturating_duration_since(self.now);
        let former = self.unix_ms.replace(unix_ms);
        self.now = now;
        let passed = former.map_or(0, |former| unix_ms.saturating_sub(former));
        let unseen = Duration::from_millis(passed).saturating_sub(seen);
        if unseen > UNSEEN_MIN {
            unseen
        } else {
            Duration::ZERO
        }
    }
}

/// More than a clock is corrected by that somebody takes care of.
const UNSEEN_MIN: Duration = Duration::from_secs(5 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_wall_clock_alone_saw_counts() {
        let begun = tokio::time::Instant::now().into_std();
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let mut unseen = Unseen::new(begun);
        let mut look = |seen: Duration, unix: Duration| {
            let unix_ms = u64::try_from(unix.as_millis()).expect("small");
            unseen.look(begun + seen, unix_ms)
        };
        assert_eq!(
            look(hours(0), hours(1000)),
            Duration::ZERO,
            "the first look"
        );
        // Both went on; a correction; set back.
        assert_eq!(look(hours(30), hours(1030)), Duration::ZERO);
        let corrected = hours(1030) + UNSEEN_MIN;
        assert_eq!(look(hours(30), corrected), Duration::ZERO);
        assert_eq!(look(hours(30), hours(1000)), Duration::ZERO);
        // Suspended for 26 of 27 hours: once.
        assert_eq!(look(hours(31), hours(1027)), hours(26));
        assert_eq!(look(hours(32), hours(1028)), Duration::ZERO);
    }
}
