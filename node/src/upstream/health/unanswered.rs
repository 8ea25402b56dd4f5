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
    /// When a look whether the worker lives was asked for because of them.
    asked: Option<Duration>,
}

/// What follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    Nothing,
    /// It is time to look whether the worker lives.
    Look,
    /// They were as long as the longest of their limits, and a look found nothing: they begin anew.
    Stalled,
}

/// A request that was given up, for which nothing had come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// When it was sent.
    pub(super) since: Duration,
    /// When it was given up.
    pub(super) until: Duration,
    /// For how long it might have waited.
    pub(super) limit: Duration,
    /// After how long a look is wanted, and how long that may take.
    pub(super) look_every: Duration,
}

impl Unanswered {
    /// `sign`: the latest sign of life of the engine, of any request.
    pub(super) fn add(&mut self, wait: Wait, sign: Option<Duration>) -> Follows {
        let Wait { since, until, .. } = wait;
        if self.waited.is_zero() || sign.is_some_and(|sign| sign > self.began) {
            *self = Self {
                began: since,
                until: self.until,
                ..Self::default()
            };
        }
        self.waited += until.saturating_sub(since.max(self.until));
        self.until = self.until.max(until);
        self.limit = self.limit.max(wait.limit);
        if self.waited < wait.look_every {
            return Follows::Nothing;
        }
        // Not at once: this process may have been stopped, and not have read yet what came meanwhile.
        let asked = *self.asked.get_or_insert(until);
        if self.waited < self.limit || until.saturating_sub(asked) < wait.look_every {
            return Follows::Look;
        }
        self.waited = Duration::ZERO;
        Follows::Stalled
    }
}

#[cfg(test)]
mod tests {
    use super::Follows::{Look, Nothing, Stalled};
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn add(
        unanswered: &mut Unanswered,
        since: u64,
        until: u64,
        limit: u64,
        sign: Option<u64>,
    ) -> Follows {
        let wait = Wait {
            since: at(since),
            until: at(until),
            limit: at(limit),
            look_every: at(15),
        };
        unanswered.add(wait, sign.map(at))
    }

    #[test]
    fn each_moment_of_waiting_counts_once_and_a_sign_begins_anew() {
        let mut unanswered = Unanswered::default();
        for (since, until, sign, waited, follows) in [
            (10, 16, Some(9), 6, Nothing),
            // Beside the one before, within it, and overlapping.
            (10, 16, Some(9), 6, Nothing),
            (12, 15, Some(9), 6, Nothing),
            (12, 20, Some(9), 10, Nothing),
            // After a rest.
            (50, 55, Some(9), 15, Look),
            (56, 60, Some(55), 4, Nothing),
            (61, 62, Some(55), 5, Nothing),
        ] {
            assert_eq!(add(&mut unanswered, since, until, 60, sign), follows);
            assert_eq!(unanswered.waited, at(waited), "{since} to {until}");
        }
    }

    #[test]
    fn the_longest_of_their_limits_counts_and_what_was_found_begins_anew() {
        let mut unanswered = Unanswered::default();
        for (since, until, limit, follows) in [
            // A long prompt may wait longer than the short one that comes behind it.
            (0, 300, 460, Look),
            (300, 301, 60, Look),
            (301, 460, 60, Stalled),
            // Those that try it afterwards, and leave at once.
            (500, 501, 60, Nothing),
            (501, 520, 60, Look),
            (520, 560, 60, Stalled),
        ] {
            assert_eq!(
                add(&mut unanswered, since, until, limit, None),
                follows,
                "{until}"
            );
        }
    }

    /// All of a stop of this process looks like a wait.
    #[test]
    fn nothing_follows_before_a_look_had_its_time() {
        let mut unanswered = Unanswered::default();
        for (since, until, follows) in [
            (0, 3_600, Look),
            (3_590, 3_605, Look),
            (3_605, 3_615, Stalled),
        ] {
            assert_eq!(
                add(&mut unanswered, since, until, 60, None),
                follows,
                "{until}"
            );
        }
        let mut unanswered = Unanswered::default();
        assert_eq!(add(&mut unanswered, 0, 3_600, 60, None), Look);
        assert_eq!(
            add(&mut unanswered, 3_602, 3_620, 60, Some(3_601)),
            Look,
            "it lives"
        );
    }
}
