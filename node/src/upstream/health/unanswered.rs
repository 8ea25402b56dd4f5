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
}

impl Unanswered {
    /// A request was given up `now`, for which nothing came since it was sent at `since`. `sign`: the latest sign of life of
    /// the engine, of any request. Answers for how long they have waited, all together.
    pub(super) fn add(
        &mut self,
        since: Duration,
        now: Duration,
        sign: Option<Duration>,
    ) -> Duration {
        if self.waited.is_zero() || sign.is_some_and(|sign| sign > self.began) {
            (self.began, self.waited) = (since, Duration::ZERO);
        }
        self.waited += now.saturating_sub(since.max(self.until));
        self.until = self.until.max(now);
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_moment_of_waiting_counts_once_and_a_sign_begins_anew() {
        let mut unanswered = Unanswered::default();
        let at = Duration::from_secs;
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
            let found = unanswered.add(at(since), at(now), sign.map(at));
            assert_eq!(found, at(waited), "{since} to {now}");
        }
        let mut unanswered = Unanswered::default();
        assert_eq!(
            unanswered.add(at(0), at(3), None),
            at(3),
            "none was ever seen"
        );
    }
}
