//! Signs of life of a worker's engine, as this replica saw them: tokens that came, and counters that only the engine
//! moves. An HTTP server that answers is none: it goes on when the engine stands still.
//!
//! Times count from the birth of the worker's health. Atomics, because every stream writes here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A sign younger than this need not be written again.
const STEP: Duration = Duration::from_millis(50);

/// Microseconds, each 0 before the first time.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// The latest token, of a client's request or of a question for one.
    token: AtomicU64,
    /// The latest time of which it is known that the engine worked after it.
    moved: AtomicU64,
    /// The latest time that a request wanted to know whether it lives.
    wanted: AtomicU64,
}

impl Signs {
    /// A token came.
    pub(super) fn token(&self, now: Duration) {
        self.token.fetch_max(us(now), Ordering::Relaxed);
    }

    /// Whether a token is known that came just before `now`.
    pub(super) fn is_fresh(&self, now: Duration) -> bool {
        let last = self.last_token();
        last.is_some_and(|last| now.saturating_sub(last) < STEP)
    }

    /// Its engine has worked after `since`.
    pub(super) fn moved(&self, since: Duration) {
        self.moved.fetch_max(us(since), Ordering::Relaxed);
    }

    /// The latest token.
    pub(super) fn last_token(&self) -> Option<Duration> {
        read(&self.token)
    }

    /// The latest sign of any kind.
    pub(super) fn last(&self) -> Option<Duration> {
        read(&self.token).max(read(&self.moved))
    }

    /// Whether it is time to look for a sign: no caller has wanted one within `every`. True for one of many callers.
    pub(super) fn want(&self, now: Duration, every: Duration) -> bool {
        let before = self.wanted.load(Ordering::Relaxed);
        if before != 0 && now.saturating_sub(Duration::from_micros(before)) < every {
            return false;
        }
        let order = Ordering::Relaxed;
        let swapped = self.wanted.compare_exchange(before, us(now), order, order);
        swapped.is_ok()
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

fn read(us: &AtomicU64) -> Option<Duration> {
    let us = us.load(Ordering::Relaxed);
    (us > 0).then(|| Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_latest_sign_counts_whatever_order_they_are_told_in() {
        let signs = Signs::default();
        assert_eq!((signs.last_token(), signs.last()), (None, None));
        signs.moved(SECOND * 5);
        signs.moved(SECOND * 3);
        assert_eq!((signs.last_token(), signs.last()), (None, Some(SECOND * 5)));
        signs.token(SECOND * 7);
        assert_eq!(signs.last(), Some(SECOND * 7));
        assert!(signs.is_fresh(SECOND * 7) && !signs.is_fresh(SECOND * 8));
    }

    #[test]
    fn one_of_many_looks_for_a_sign() {
        let signs = Signs::default();
        assert!(signs.want(SECOND, SECOND * 15));
        assert!((0..100).all(|_| !signs.want(SECOND * 15, SECOND * 15)));
        assert!(signs.want(SECOND * 16, SECOND * 15));
    }
}
