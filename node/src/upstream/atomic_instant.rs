//! A point in time that many tasks read and few set, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// An instant, or none. Exact, so that two which were set to the same instant are equal.
#[derive(Debug)]
pub struct AtomicInstant {
    born: Instant,
    /// Nanoseconds since `born`, plus one; 0 is none.
    at: AtomicU64,
}

impl Default for AtomicInstant {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            at: AtomicU64::new(0),
        }
    }
}

impl AtomicInstant {
    /// The instant, if one is set; its own creation where it was set to an earlier one.
    pub fn get(&self) -> Option<Instant> {
        let at = self.at.load(Ordering::Relaxed);
        (at > 0).then(|| self.born + Duration::from_nanos(at - 1))
    }

    fn of(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.born).as_nanos();
        u64::try_from(since).map_or(u64::MAX, |since| since.saturating_add(1))
    }

    /// Sets it, unless it is set.
    pub fn begin(&self, at: Instant) {
        let at = self.of(at);
        // Another task was earlier.
        let _ = self
            .at
            .compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Sets it, unless it is later already.
    pub fn extend(&self, at: Instant) {
        self.at.fetch_max(self.of(at), Ordering::Relaxed);
    }

    /// Where it is set, and later than this, sets it to this.
    pub fn end_by(&self, at: Instant) {
        let at = self.of(at);
        let earlier = |now| (now > at).then_some(at);
        // Most are not set, or earlier.
        let _ = (self.at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, earlier);
    }

    /// Sets it to none.
    pub fn clear(&self) {
        if self.at.load(Ordering::Relaxed) != 0 {
            self.at.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_beginning_and_the_last_extension_or_end_count() {
        let instant = AtomicInstant::default();
        assert_eq!(instant.get(), None);
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let is_at = |wanted: Instant| instant.get() == Some(wanted);
        instant.begin(now);
        instant.begin(now + second);
        assert!(is_at(now));
        instant.extend(now + second * 2);
        instant.extend(now + second);
        assert!(is_at(now + second * 2));
        instant.end_by(now + second * 3);
        assert!(is_at(now + second * 2));
        instant.end_by(now + second);
        assert!(is_at(now + second));
        instant.clear();
        instant.end_by(now + second);
        assert_eq!(instant.get(), None);
        instant.extend(now + second);
        assert!(is_at(now + second));
    }

    /// Which of two workers did something later is asked of the instants of both.
    #[tokio::test(start_paused = true)]
    async fn instants_that_are_set_at_once_are_equal_whenever_they_were_made() {
        let pause = Duration::from_micros(300);
        let first = AtomicInstant::default();
        tokio::time::advance(pause).await;
        let second = AtomicInstant::default();
        tokio::time::advance(pause * 3).await;
        let now = Instant::now();
        first.extend(now);
        second.extend(now);
        assert_eq!((first.get(), second.get()), (Some(now), Some(now)));
    }
}
