//! Times between tokens: every gap between two tokens of an answer, and the mean gap of each answer.

use hdrhistogram::Histogram;

/// Longest time that is told apart from longer ones, in us: an hour.
const LONGEST_US: u64 = 3_600_000_000;

/// Gaps of the requests after the warm-up.
#[derive(Debug)]
pub(super) struct Gaps {
    warm: usize,
    /// Of single gaps, in us.
    single: Histogram<u64>,
    /// Of means, one for each answer of two tokens and more, in us.
    mean: Histogram<u64>,
}

impl Gaps {
    /// Requests before `warm` do not count.
    pub(super) fn new(warm: usize) -> Self {
        let histogram = || Histogram::new_with_bounds(1, LONGEST_US, 3).expect("valid bounds");
        Self {
            warm,
            single: histogram(),
            mean: histogram(),
        }
    }

    /// So many tokens of a request came this far apart.
    pub(super) fn add(&mut self, request: usize, us: u64, count: u64) {
        if request >= self.warm {
            self.single.saturating_record_n(us.max(1), count);
        }
    }

    /// An answer of so many tokens took this long after its first one.
    pub(super) fn ended(&mut self, request: usize, us: u64, tokens: u32) {
        if request >= self.warm && tokens > 1 {
            self.mean
                .saturating_record((us / u64::from(tokens - 1)).max(1));
        }
    }

    /// Mean gap of an answer in ms: that of this share of the answers is not longer.
    pub(super) fn mean_ms(&self, share: f64) -> f64 {
        self.mean.value_at_quantile(share) as f64 / 1e3
    }

    /// Single gap in ms: this share of them is not longer.
    pub(super) fn single_ms(&self, share: f64) -> f64 {
        self.single.value_at_quantile(share) as f64 / 1e3
    }
}
