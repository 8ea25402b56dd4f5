//! When changes become a view.
//!
//! A view costs time in proportion to the workers, here and at all its followers. A change that comes alone is
//! in the next view at once; those that come while views follow each other wait for the next one together, so that
//! thousands of workers added in a row cost a few views, not thousands. The writer of a change gets its answer only once it
//! is in the view.

use std::time::{Duration, Instant};

/// Rest after a view, in times of what it took: views take at most a quarter of a processor.
const REST: u32 = 3;
/// Longest rest: what others report of themselves is in the view, too.
const REST_MAX: Duration = Duration::from_millis(100);

/// Counts changes, and decides when they are to be published. Pure: `now` is an argument.
#[derive(Debug, Default)]
pub(super) struct ViewPace {
    latest: u64,
    published: u64,
    /// No view before this.
    rests_until: Option<Instant>,
}

impl ViewPace {
    /// Something changed. Whether it is to be published now.
    pub(super) fn changed(&mut self, now: Instant) -> bool {
        self.latest += 1;
        self.rests_until.is_none_or(|until| until <= now)
    }

    /// Number of the latest change.
    pub(super) fn latest(&self) -> u64 {
        self.latest
    }

    /// A view with all changes was made from `began` to `now`.
    pub(super) fn published(&mut self, began: Instant, now: Instant) {
        let took = now.saturating_duration_since(began);
        self.rests_until = Some(now + (took * REST).min(REST_MAX));
        self.published = self.latest;
    }

    /// When what waits is due; `None` if nothing waits.
    pub(super) fn due(&self) -> Option<Instant> {
        self.rests_until.filter(|_| self.published < self.latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_alone_is_published_at_once_and_a_row_of_them_together() {
        let begun = tokio::time::Instant::now().into_std();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut pace = ViewPace::default();
        assert!(pace.changed(at(0)));
        pace.published(at(0), at(10));
        assert_eq!(pace.due(), None);
        assert!(!pace.changed(at(11)) && !pace.changed(at(39)));
        assert_eq!(pace.due(), Some(at(40)));
        pace.published(at(40), at(41));
        assert_eq!((pace.latest(), pace.due()), (3, None));
        assert!(
            pace.changed(at(44)),
            "three times of what it took have passed"
        );
        pace.published(at(44), at(1_044));
        assert!(!pace.changed(at(1_143)));
        assert_eq!(pace.due(), Some(at(1_144)), "never for long");
    }
}
