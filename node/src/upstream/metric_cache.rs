//! The series of one worker that requests count in.

use super::failure::ATTEMPT_RESULTS;
use crate::metrics::Counter;
use crate::metrics::cached_series::CachedSeries;

/// Each is looked up once.
#[derive(Debug)]
pub struct WorkerMetricCache {
    /// Attempts, in the order of [`ATTEMPT_RESULTS`].
    pub attempts: CachedSeries<Counter>,
    /// Tokens: of prompts, cached, generated, expected.
    pub tokens: CachedSeries<Counter>,
}

impl Default for WorkerMetricCache {
    fn default() -> Self {
        Self {
            attempts: CachedSeries::new(ATTEMPT_RESULTS.len()),
            tokens: CachedSeries::new(4),
        }
    }
}
