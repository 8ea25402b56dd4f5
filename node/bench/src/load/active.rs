//! How long a run was busy: the time that rates are taken over. Pure.
//!
//! A run waits for what it sent, up to the limit of a request. A request that fails after a long wait must not make the
//! rates of all others small, so the wait after the last answer is left out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tokio::time::Instant;

use super::Ended;
use crate::tally::Took;

/// Knows until when requests were sent, or answered whole.
#[derive(Debug)]
pub(super) struct Active {
    start: Instant,
    until: Instant,
    is_answered: bool,
    /// When those requests ended that failed later than `until`: they were in flight then, so they are as few.
    late: BinaryHeap<Reverse<Instant>>,
}

impl Active {
    pub(super) fn new(start: Instant) -> Self {
        Self {
            start,
            until: start,
            is_answered: false,
            late: BinaryHeap::new(),
        }
    }

    pub(super) fn add(&mut self, ended: &Ended) {
        if ended.outcome.failure.is_none() {
            self.is_answered = true;
            self.until = self.until.max(ended.at());
        } else {
            self.until = self.until.max(ended.sent());
            self.late.push(Reverse(ended.at()));
        }
        while let Some(Reverse(end)) = self.late.peek()
            && *end <= self.until
        {
            self.late.pop();
        }
    }

    /// The times of a run that ends now. Where nothing was answered, its whole time counts.
    pub(super) fn took(&self, now: Instant) -> Took {
        let elapsed = now - self.start;
        if !self.is_answered {
            return elapsed.into();
        }
        Took {
            elapsed,
            active: self.until - self.start,
            late: self.late.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::{Failure, Outcome};

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Of requests that are sent at the first second and end at the second one, with what came of them.
    fn took(requests: &[(u64, u64, Option<Failure>)], end: u64) -> Took {
        let start = Instant::now();
        let mut active = Active::new(start);
        for (sent, ended, failure) in requests {
            active.add(&Ended {
                outcome: Outcome {
                    failure: failure.clone(),
                    latency: s(ended - sent),
                    ..Outcome::default()
                },
                due: start + s(*sent),
                waited: Duration::ZERO,
            });
        }
        active.took(start + s(end))
    }

    #[test]
    fn the_wait_for_one_that_hangs_is_in_no_rate() {
        let hangs = Some(Failure::Timeout);
        let found = took(&[(0, 5, None), (5, 10, None), (1, 61, hangs)], 61);
        let expected = Took {
            elapsed: s(61),
            active: s(10),
            late: 1,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn failures_while_others_are_sent_or_answered_count() {
        let refused = || Some(Failure::Status(503));
        let found = took(&[(0, 1, None), (1, 2, refused()), (9, 9, refused())], 9);
        assert_eq!(found, Took::from(s(9)), "sent until then");
        let slow = took(&[(1, 2, refused()), (0, 50, None)], 50);
        assert_eq!(slow, Took::from(s(50)), "a slow answer is an answer");
    }

    #[test]
    fn where_nothing_is_answered_the_whole_time_counts() {
        let hangs = || Some(Failure::Timeout);
        assert_eq!(
            took(&[(0, 60, hangs()), (0, 60, hangs())], 60),
            Took::from(s(60))
        );
        assert_eq!(took(&[], 3), Took::from(s(3)));
    }
}
