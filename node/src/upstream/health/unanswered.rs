//! How long requests have waited at a worker in vain, one after the other. Pure: `now` is an argument.

use std::time::Duration;

/// The time that requests which were given up waited there while nothing showed that its engine works.
///
/// A client that leaves takes with it what its wait would have shown: where all leave before the limit, no wait is ever as long
/// as that. So their waits are added up, each moment once; the time in which nobody waited shows nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unanswered {
    /// When the first of them began to wait.
    began: Duration,
    /// The end of the latest.
    until: Duration,
    waited: Duration,
    /// The longest that one of them might have waited.
    limit: Duration,
}

impl Unanswered {
    /// A request was given up `now`, for which nothing had come since it was sent at `since`, and which might have waited for
    /// `limit`. `sign`: the latest sign of life of the engine, of any request. Whether the waits together were as long as the
    /// longest of their limits; then they begin anew.
    pub(super) fn add(
        &mut self,
        since: Duration,
        now: Duration,
        limit: Duration,
        sign: Option<Duration>,
    ) -> bool {
        if self.waited.is_zero() || sign.is_some_and(|sign| sign > self.began) {
            *self = Self {
                began: since,
                until: self.until,
                ..Self::default()
            };
        }
        self.waited += now.saturating_sub(since.max(self.until));
        self.until = self.until.max(now);
        self.limit = self.limit.max(limit);
        let is_over = self.waited >= self.limit;
        if is_over {
            self.waited = Duration::ZERO;
        }
        is_over
    }

    /// How long they have waited.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_moment_of_waiting_counts_once_and_a_sign_begins_anew() {
        let mut unanswered = Unanswered::default();
        for (since, now, sign, waited) in [
            (10, 16, Some(9), 6),
            // Beside the one before, within it, and overlapping.
            (10, 16, Some(9), 6),
            (12, 15, Some(9), 6),
            (12, 20, Some(9), 10),
            // After a rest.
            (50, 55, Some(9), 15),
            (56, 60, Some(55), 4),
            (61, 62, Some(55), 5),
        ] {
            let is_over = unanswered.add(at(since), at(now), LIMIT, sign.map(at));
            assert!(!is_over);
            assert_eq!(unanswered.waited(), at(waited), "{since} to {now}");
        }
    }

    #[test]
    fn the_longest_of_their_limits_counts_and_what_was_found_begins_anew() {
        let mut unanswered = Unanswered::default();
        // A long prompt may wait longer than the short one that comes behind it.
        assert!(!unanswered.add(at(0), at(300), at(460), None));
        assert!(!unanswered.add(at(300), at(301), LIMIT, None));
        assert!(unanswered.add(at(301), at(460), LIMIT, None));
        // One that tries it afterwards, and leaves at once.
        assert!(!unanswered.add(at(500), at(501), LIMIT, None));
        assert!(unanswered.add(at(501), at(560), LIMIT, None));
    }
}
