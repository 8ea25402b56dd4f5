//! The series of one worker that requests count in.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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
    tokens: ArcSwap<Vec<Arc<TokenSeries>>>,
    /// What models that are gone counted of prompts, and of these of what the cache had.
    gone: (AtomicU64, AtomicU64),
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
            gone: Default::default(),
            usages: UsageCounts::default(),
            has_left: Mutex::default(),
        }
    }
}

impl WorkerMetricCache {
    /// A series that is looked up for the first time; one that is shown nowhere where the worker has left: its last
    /// requests end behind it, and what they count would bring back what nobody forgets again.
    pub fn look_up<M>(&self, find: impl FnOnce() -> M, nowhere: impl FnOnce() -> M) -> M {
        match *self.has_left() {
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
        let has_left = self.has_left();
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

    /// Prompt tokens of all models so far, and those of them that its cache had.
    pub(super) fn prompts(&self) -> (u64, u64) {
        let gone = [&self.gone.0, &self.gone.1].map(|sum| sum.load(Ordering::Relaxed));
        let series = self.tokens.load();
        let of_model = series.iter().map(|of| (of.prompt.get(), of.cached.get()));
        let add = u64::saturating_add;
        of_model.fold((gone[0], gone[1]), |all: (u64, u64), one| {
            (add(all.0, one.0), add(all.1, one.1))
        })
    }

    /// Makes room of models that are served no more; gives their labels.
    pub(super) fn keep(&self, is_served: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let stays =
            |series: &Arc<TokenSeries>| *series.model == *OTHER_MODELS || is_served(&series.model);
        if self.tokens.load().iter().all(stays) {
            return Vec::new();
        }
        let _no_look_up = self.has_left();
        let all = Vec::clone(&self.tokens.load());
        let (kept, gone): (Vec<_>, Vec<_>) = all.into_iter().partition(stays);
        for series in &gone {
            let (prompt, cached) = (series.prompt.get(), series.cached.get());
            self.gone.0.fetch_add(prompt, Ordering::Relaxed);
            self.gone.1.fetch_add(cached, Ordering::Relaxed);
        }
        self.tokens.store(Arc::new(kept));
        let labels = gone.iter().map(|series| Arc::clone(&series.model));
        labels.collect()
    }

    /// The worker has left: `forget` takes its series away, and none comes back.
    pub(super) fn leave(&self, forget: impl FnOnce()) {
        let mut has_left = self.has_left();
        *has_left = true;
        forget();
    }

    fn has_left(&self) -> MutexGuard<'_, bool> {
        self.has_left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
