//! The times of a run. Pure.

use std::ops::AddAssign;
use std::time::Duration;

/// How long a run took, and over which part of that its rates are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Took {
    /// Until the last request had ended.
    pub elapsed: Duration,
    /// Until the last request was answered whole, or sent, whichever was later; at most `elapsed`.
    pub active: Duration,
    /// Requests that failed after that: they are in no rate.
    pub late: u64,
}

impl From<Duration> for Took {
    /// Rates over the whole time.
    fn from(elapsed: Duration) -> Self {
        Self {
            elapsed,
            active: elapsed,
            late: 0,
        }
    }
}

impl AddAssign for Took {
    fn add_assign(&mut self, further: Self) {
        self.elapsed += further.elapsed;
        self.active += further.active;
        self.late += further.late;
    }
}
