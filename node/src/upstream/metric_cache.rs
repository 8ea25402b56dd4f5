//! The series of one worker that requests count in.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use super::failure::ATTEMPT_RESULTS;
use crate::metrics::cached_series::CachedSeries;
use crate::metrics::{Counter, Histogram};

/// Each is looked up once.
#[derive(Debug)]
pub struct WorkerMetricCache {
    /// Attempts, in the order of [`ATTEMPT_RESULTS`].
    pub attempts: CachedSeries<Counter>,
    /// Times to a first token.
    pub first_token: OnceLock<Histogram>,
    /// Tokens, by model; at most [`MODELS_MAX`] and one for all others.
    pub tokens: ArcSwap<Vec<Arc<TokenSeries>>>,
    /// Answers whose usage said how much of the prompt was cached, and answers whose usage did not.
    pub usages: UsageCounts,
}

/// Answers that came with their usage.
#[derive(Debug, Default)]
pub struct UsageCounts {
    /// With `prompt_tokens_details.cached_tokens`.
    pub detailed: AtomicU64,
    /// Without.
    pub plain: AtomicU64,
}

/// Models of one worker whose tokens are counted apart, the first that it was asked for.
pub(super) const MODELS_MAX: usize = 16;

/// Tokens of one worker and model.
#[derive(Debug)]
pub struct TokenSeries {
    /// The model as a label.
    pub model: Arc<str>,
    /// Of prompts.
    pub prompt: Counter,
    /// Of these, what its cache had.
    pub cached: Counter,
    /// What was expected there.
    pub expected: Counter,
    /// Generated, as it reports.
    pub reported: Counter,
    /// Generated, as events were counted.
    pub counted: Counter,
}

impl Default for WorkerMetricCache {
    fn default() -> Self {
        Self {
            attempts: CachedSeries::new(ATTEMPT_RESULTS.len()),
            first_token: OnceLock::new(),
            tokens: ArcSwap::default(),
            usages: UsageCounts::default(),
        }
    }
}
