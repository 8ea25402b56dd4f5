//! Metrics of workers: their health, what is tried on them, and what their answers hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::failure::{ATTEMPT_RESULTS, GIVEN_UP};
use super::health_metrics::HealthMetrics;
use super::metric_cache::TokenSeries;
use super::worker::Worker;
use crate::http::sse::Usage;
#[cfg(test)]
use crate::metrics::Row;
use crate::metrics::{
    AttemptLabels, Counter, Family, FloatGauge, Gauge, Histograms, ResultLabels, TokenLabels,
    WorkerLabels, WorkerModelLabels, buckets, metrics,
};

metrics! {
    /// Tries on workers.
    pub AttemptMetrics {
        attempts: Family<AttemptLabels, Counter>, "attempts", "Attempts by worker and result";
        retries: Counter, "retries", "Attempts after the first, of requests whose answer had not begun";
        faults: Counter, "request_faults",
            "Requests that several workers answered with a server's error, and none without: it counts against none of them";
    }
}

metrics! {
    /// What workers' answers hold, by labels.
    AnswerFamilies {
        prompt_tokens: Family<WorkerModelLabels, Counter>,
            "prompt_tokens", "Prompt tokens reported by workers";
        cached_tokens: Family<WorkerModelLabels, Counter>,
            "cached_tokens", "Prompt tokens that came from a worker's prefix cache";
        /// Only of requests whose worker reported what was there.
        expected_tokens: Family<WorkerModelLabels, Counter>,
            "expected_tokens", "Prompt tokens that were expected in a worker's prefix cache";
        completion_tokens: Family<TokenLabels, Counter>,
            "completion_tokens", "Generated tokens, reported by workers (usage) or counted (events)";
        /// Of streams.
        first_token_seconds: Histograms<WorkerLabels> = Family::new_with_constructor(buckets::first_token_of_worker),
            "worker_first_token" Seconds, "From the head of a request to the first event of its stream, by worker";
        stream_events: Counter, "stream_events", "Events relayed in streams";
    }
}

/// Labels of models, by the label of their worker.
type ModelsByWorker = BTreeMap<Arc<str>, BTreeSet<Arc<str>>>;

/// What workers' answers hold.
#[derive(Debug, Clone)]
pub struct AnswerMetrics {
    families: AnswerFamilies,
    /// Which have series: what is to be forgotten with a worker.
    made: Arc<Mutex<ModelsByWorker>>,
}

metrics! {
    /// Load of workers, and checks of them.
    pub WorkerMetrics {
        in_flight: Family<WorkerLabels, Gauge>, "worker_in_flight", "Requests in flight from this replica";
        in_flight_cluster: Family<WorkerLabels, FloatGauge>,
            "worker_in_flight_cluster", "Requests in flight from all replicas, as the others last reported them";
        probes: Family<ResultLabels, Counter>, "probes", "Health checks that this replica made, by result",
            ResultLabels { result } in ["good", "bad"];
    }
}

/// All that is counted of workers.
#[derive(Debug, Clone)]
pub struct UpstreamMetrics {
    /// Their health.
    pub health: HealthMetrics,
    /// Tries on them.
    pub attempts: AttemptMetrics,
    /// What their answers hold.
    pub answers: AnswerMetrics,
    /// Their load.
    pub workers: WorkerMetrics,
}

/// An attempt, which counts once: with its result, or as given up where it is dropped before it has one.
#[derive(Debug)]
pub struct CountedAttempt<'a> {
    metrics: &'a AttemptMetrics,
    worker: &'a Worker,
    result: &'static str,
}

impl CountedAttempt<'_> {
    /// It has a result, one of [`ATTEMPT_RESULTS`].
    pub fn ended(mut self, result: &'static str) {
        self.result = result;
    }
}

impl Drop for CountedAttempt<'_> {
    fn drop(&mut self) {
        self.metrics.count(self.worker, self.result);
    }
}

impl AttemptMetrics {
    /// An attempt begins.
    pub fn begin<'a>(&'a self, worker: &'a Worker) -> CountedAttempt<'a> {
        CountedAttempt {
            metrics: self,
            worker,
            result: GIVEN_UP,
        }
    }

    /// Counts a try by its result, one of [`ATTEMPT_RESULTS`].
    pub fn count(&self, worker: &Worker, result: &'static str) {
        let index = ATTEMPT_RESULTS.iter().position(|label| *label == result);
        let find = || {
            let label = Arc::clone(&worker.series_label);
            let labels = AttemptLabels {
                worker: label,
                result,
            };
            let find = || self.attempts.get_or_create_owned(&labels);
            worker.series.look_up(find, Counter::default)
        };
        let attempts = &worker.series.attempts;
        attempts.count(index.unwrap_or(usize::MAX), find, |attempts| {
            attempts.inc();
        });
    }
}

impl AnswerMetrics {
    /// The rows, in the order in which they are shown.
    #[cfg(test)]
    pub(crate) const ROWS: &'static [Row] = AnswerFamilies::ROWS;

    /// Registers all of them.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            families: AnswerFamilies::register(registry),
            made: Arc::default(),
        }
    }

    /// Counts events that were relayed in a stream.
    pub fn relayed(&self, events: u64) {
        self.families.stream_events.inc_by(events);
    }

    /// Counts how long the first token of a stream took.
    pub fn first_token(&self, worker: &Worker, seconds: f64) {
        let histogram = worker.series.first_token.get_or_init(|| {
            let labels = WorkerLabels::of(&worker.series_label);
            let family = &self.families.first_token_seconds;
            let find = || family.get_or_create_owned(&labels);
            worker.series.look_up(find, buckets::first_token_of_worker)
        });
        histogram.observe(seconds);
    }

    /// Counts what a prefill worker reported of its cache; the tokens of the request count where it is answered.
    pub fn count_cached(&self, worker: &Worker, model: &Arc<str>, usage: &Usage, expected: u32) {
        worker.series.prompts.count(usage);
        let series = self.tokens(worker, model);
        series.cached.inc_by(usage.cached_tokens.unwrap_or(0));
        series.expected.inc_by(expected.into());
    }

    /// Counts the tokens that a worker reported; `expected`: those that were expected in its cache, if it reported what
    /// was there. Of a prompt whose blocks arrived (`kv_arrived`) it repeats what the prefill worker found in its cache,
    /// which counts there.
    pub fn count(
        &self,
        worker: &Worker,
        model: &Arc<str>,
        usage: &Usage,
        expected: Option<u32>,
        kv_arrived: bool,
    ) {
        let usages = &worker.series.usages;
        let counted = match usage.cached_tokens {
            Some(_) => &usages.detailed,
            None => &usages.plain,
        };
        counted.fetch_add(1, Ordering::Relaxed);
        let series = self.tokens(worker, model);
        series.prompt.inc_by(usage.prompt_tokens);
        if !kv_arrived {
            worker.series.prompts.count(usage);
            series.cached.inc_by(usage.cached_tokens.unwrap_or(0));
        }
        series.expected.inc_by(expected.unwrap_or(0).into());
        series.reported.inc_by(usage.completion_tokens);
    }

    /// Counts the tokens of a stream whose worker reported none, each event taken for one.
    pub fn count_events(&self, worker: &Worker, model: &Arc<str>, tokens: u64) {
        if tokens > 0 {
            self.tokens(worker, model).counted.inc_by(tokens);
        }
    }

    /// Ends a worker's series of models that are served no more; the first models of its life would have all of them else.
    fn keep(&self, worker: &Worker, is_served: impl Fn(&str) -> bool) {
        let label = &worker.series_label;
        for model in worker.series.keep(is_served) {
            let mut made = self.made.lock();
            if let Some(models) = made.get_mut(label) {
                models.remove(&model);
            }
            self.remove_tokens(label, &model);
        }
    }

    /// The series of a worker and model, looked up once.
    fn tokens(&self, worker: &Worker, model: &Arc<str>) -> Arc<TokenSeries> {
        let label = &worker.series_label;
        worker.series.tokens_of(model, |model, has_left| {
            if has_left {
                return TokenSeries::nowhere(model);
            }
            self.new_tokens(label, model)
        })
    }

    fn new_tokens(&self, worker: &Arc<str>, model: &Arc<str>) -> TokenSeries {
        let mut made = self.made.lock();
        let models = made.entry(Arc::clone(worker)).or_default();
        models.insert(Arc::clone(model));
        let families = &self.families;
        let labels = worker_model(worker, model);
        let of = |family: &Family<WorkerModelLabels, Counter>| family.get_or_create_owned(&labels);
        let completion = |source| {
            let labels = token_labels(worker, model, source);
            families.completion_tokens.get_or_create_owned(&labels)
        };
        TokenSeries {
            prompt: of(&families.prompt_tokens),
            cached: of(&families.cached_tokens),
            expected: of(&families.expected_tokens),
            reported: completion(USAGE),
            counted: completion(EVENTS),
            model: Arc::clone(model),
        }
    }

    /// Gives every family of a worker a series, of two models.
    #[cfg(test)]
    pub(crate) fn fill(&self, worker: &Arc<str>) {
        for model in ["m", "n"] {
            drop(self.new_tokens(worker, &model.into()));
        }
        let labels = WorkerLabels::of(worker);
        drop(self.families.first_token_seconds.get_or_create(&labels));
    }

    fn forget(&self, worker: &Arc<str>) {
        let families = &self.families;
        let labels = WorkerLabels::of(worker);
        families.first_token_seconds.remove(&labels);
        let mut made = self.made.lock();
        for model in made.remove(worker).unwrap_or_default() {
            self.remove_tokens(worker, &model);
        }
    }

    fn remove_tokens(&self, worker: &Arc<str>, model: &Arc<str>) {
        let families = &self.families;
        let labels = worker_model(worker, model);
        for family in [
            &families.prompt_tokens,
            &families.cached_tokens,
            &families.expected_tokens,
        ] {
            family.remove(&labels);
        }
        for source in [USAGE, EVENTS] {
            let labels = token_labels(worker, model, source);
            families.completion_tokens.remove(&labels);
        }
    }
}

/// By what generated tokens were counted, as labels.
const USAGE: &str = "usage";
const EVENTS: &str = "events";

fn worker_model(worker: &Arc<str>, model: &Arc<str>) -> WorkerModelLabels {
    WorkerModelLabels {
        worker: Arc::clone(worker),
        model: Arc::clone(model),
    }
}

fn token_labels(worker: &Arc<str>, model: &Arc<str>, source: &'static str) -> TokenLabels {
    TokenLabels {
        worker: Arc::clone(worker),
        model: Arc::clone(model),
        source,
    }
}

impl WorkerMetrics {
    /// Sets what a worker has in hand.
    pub fn show(&self, worker: &Arc<str>, own: i64, of_cluster: f64) {
        let labels = WorkerLabels::of(worker);
        self.in_flight.get_or_create(&labels).set(own);
        self.in_flight_cluster
            .get_or_create(&labels)
            .set(of_cluster);
    }
}

impl UpstreamMetrics {
    /// Forgets the series of a worker that left the registry; what its last requests count goes nowhere.
    pub fn leave(&self, worker: &Worker) {
        worker.series.leave(|| self.forget(&worker.label));
    }

    /// Ends a worker's series of models for which this is false; its sums stay.
    pub fn keep_models(&self, worker: &Worker, is_served: impl Fn(&str) -> bool) {
        self.answers.keep(worker, is_served);
    }

    /// Forgets the series of a label.
    pub fn forget(&self, worker: &Arc<str>) {
        let labels = WorkerLabels::of(worker);
        self.health.forget(worker);
        self.answers.forget(worker);
        self.workers.in_flight.remove(&labels);
        self.workers.in_flight_cluster.remove(&labels);
        for result in ATTEMPT_RESULTS {
            let worker = Arc::clone(worker);
            self.attempts
                .attempts
                .remove(&AttemptLabels { worker, result });
        }
    }
}
