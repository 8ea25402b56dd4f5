//! A point in time that many tasks read and few set, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// An instant, or none. Kept in whole milliseconds since its own creation.
#[derive(Debug)]
pub struct AtomicInstant {
    born: Instant,
    /// Milliseconds since `born`, plus one; 0 is none.
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
    /// The instant, if one is set; up to a millisecond earlier than it was set to.
    pub fn get(&self) -> Option<Instant> {
        let at = self.at.load(Ordering::Relaxed);
        (at > 0).then(|| self.born + Duration::from_millis(at - 1))
    }

    fn of(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.born).as_millis();
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
    async fn the_first_beginning_and_the_last_extension_count() {
        let instant = AtomicInstant::default();
        assert_eq!(instant.get(), None);
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let near = |wanted: Instant| {
            let found = instant.get().expect("it is set");
            found <= wanted && found + Duration::from_millis(1) > wanted
        };
        instant.begin(now);
        instant.begin(now + second);
        assert!(near(now));
        instant.extend(now + second * 2);
        instant.extend(now + second);
        assert!(near(now + second * 2));
        instant.clear();
        assert_eq!(instant.get(), None);
        instant.extend(now + second);
        assert!(near(now + second));
    }
}
