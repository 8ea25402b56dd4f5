//! The series of one worker that requests count in.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::failure::ATTEMPT_RESULTS;
use crate::http::sse::Usage;
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
    tokens: ArcSwap<Vec<Arc<TokenSeries>>>,
    /// Prompts that were looked up in its cache.
    pub prompts: PromptCounts,
    /// Answers whose usage said how much of the prompt was cached, and answers whose usage did not.
    pub usages: UsageCounts,
    /// Its series are forgotten. Held while one is looked up for the first time.
    has_left: Mutex<bool>,
}

/// Answers that came with their usage.
#[derive(Debug, Default)]
pub struct UsageCounts {
    /// With `prompt_tokens_details.cached_tokens`.
    pub detailed: AtomicU64,
    /// Without.
    pub plain: AtomicU64,
}

/// Prompts that were looked up in a worker's cache, of all models. What came from a prefill worker was looked up there.
#[derive(Debug, Default)]
pub struct PromptCounts {
    /// Tokens of them.
    looked_up: AtomicU64,
    /// Of these, what was found.
    cached: AtomicU64,
    /// It says what it finds, or did once: of a prompt of which it finds nothing vLLM says nothing.
    tells: AtomicBool,
}

impl PromptCounts {
    /// One was looked up.
    pub(super) fn count(&self, usage: &Usage) {
        self.looked_up
            .fetch_add(usage.prompt_tokens, Ordering::Relaxed);
        if let Some(cached) = usage.cached_tokens {
            self.cached.fetch_add(cached, Ordering::Relaxed);
            self.tells.store(true, Ordering::Relaxed);
        }
    }

    /// Tokens that were looked up so far, those of them that were found, and whether it says what it finds.
    pub fn read(&self) -> (u64, u64, bool) {
        let cached = self.cached.load(Ordering::Relaxed);
        let looked_up = self.looked_up.load(Ordering::Relaxed);
        (looked_up, cached, self.tells.load(Ordering::Relaxed))
    }
}

/// Models of one worker whose tokens are counted apart, the first that it was asked for.
pub(super) const MODELS_MAX: usize = 16;
/// The label of the others.
const OTHER_MODELS: &str = "other";

/// Tokens of one worker and model.
#[derive(Debug)]
pub(super) struct TokenSeries {
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

impl TokenSeries {
    /// Shown nowhere.
    pub(super) fn nowhere(model: &Arc<str>) -> Self {
        Self {
            model: Arc::clone(model),
            prompt: Counter::default(),
            cached: Counter::default(),
            expected: Counter::default(),
            reported: Counter::default(),
            counted: Counter::default(),
        }
    }
}

impl Default for WorkerMetricCache {
    fn default() -> Self {
        Self {
            attempts: CachedSeries::new(ATTEMPT_RESULTS.len()),
            first_token: OnceLock::new(),
            tokens: ArcSwap::default(),
            prompts: PromptCounts::default(),
            usages: UsageCounts::default(),
            has_left: Mutex::default(),
        }
    }
}

impl WorkerMetricCache {
    /// A series that is looked up for the first time; one that is shown nowhere where the worker has left: its last
    /// requests end behind it, and what they count would bring back what nobody forgets again.
    pub fn look_up<M>(&self, find: impl FnOnce() -> M, nowhere: impl FnOnce() -> M) -> M {
        match *self.has_left.lock() {
            false => find(),
            true => nowhere(),
        }
    }

    /// The tokens of a model, those of all models beyond [`MODELS_MAX`] together; `make` is told the label.
    pub(super) fn tokens_of(
        &self,
        model: &Arc<str>,
        make: impl FnOnce(&Arc<str>, bool) -> TokenSeries,
    ) -> Arc<TokenSeries> {
        let find = |model: &str, known: &[Arc<TokenSeries>]| {
            known.iter().find(|series| *series.model == *model).cloned()
        };
        if let Some(series) = find(model, &self.tokens.load()) {
            return series;
        }
        let has_left = self.has_left.lock();
        // Two may have come here at once.
        let known = self.tokens.load();
        if let Some(series) = find(model, &known) {
            return series;
        }
        let label = match known.len() < MODELS_MAX {
            true => Arc::clone(model),
            false => match find(OTHER_MODELS, &known) {
                Some(others) => return others,
                None => OTHER_MODELS.into(),
            },
        };
        let series = Arc::new(make(&label, *has_left));
        let mut known = Vec::clone(&known);
        known.push(Arc::clone(&series));
        self.tokens.store(Arc::new(known));
        series
    }

    /// Makes room of models that are served no more; gives their labels.
    pub(super) fn keep(&self, is_served: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let stays =
            |series: &Arc<TokenSeries>| *series.model == *OTHER_MODELS || is_served(&series.model);
        if self.tokens.load().iter().all(stays) {
            return Vec::new();
        }
        let _no_look_up = self.has_left.lock();
        let all = Vec::clone(&self.tokens.load());
        let (kept, gone): (Vec<_>, Vec<_>) = all.into_iter().partition(stays);
        self.tokens.store(Arc::new(kept));
        let labels = gone.iter().map(|series| Arc::clone(&series.model));
        labels.collect()
    }

    /// The worker has left: `forget` takes its series away, and none comes back.
    pub(super) fn leave(&self, forget: impl FnOnce()) {
        let mut has_left = self.has_left.lock();
        *has_left = true;
        forget();
    }
}
