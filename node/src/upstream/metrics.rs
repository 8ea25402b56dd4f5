//! Metrics of workers: their health, what is tried on them, and what their answers hold.

use std::sync::Arc;

use super::failure::ATTEMPT_RESULTS;
use super::health_metrics::HealthMetrics;
use super::worker::Worker;
use crate::http::sse::Usage;
use crate::metrics::{
    AttemptLabels, Counter, Family, FloatGauge, Gauge, ResultLabels, WorkerLabels, metrics,
};

metrics! {
    /// Tries on workers.
    pub AttemptMetrics {
        attempts: Family<AttemptLabels, Counter>, "attempts", "Attempts by worker and result";
        retries: Counter, "retries", "Attempts after the first";
    }
}

metrics! {
    /// What workers' answers hold.
    pub AnswerMetrics {
        prompt_tokens: Family<WorkerLabels, Counter>, "prompt_tokens", "Prompt tokens reported by workers";
        cached_tokens: Family<WorkerLabels, Counter>,
            "cached_tokens", "Prompt tokens that came from a worker's prefix cache";
        /// Only of requests whose worker reported what was there.
        expected_tokens: Family<WorkerLabels, Counter>,
            "expected_tokens", "Prompt tokens that were expected in a worker's prefix cache";
        completion_tokens: Family<WorkerLabels, Counter>,
            "completion_tokens", "Generated tokens reported by workers";
        stream_events: Counter, "stream_events", "Events relayed in streams";
    }
}

metrics! {
    /// Load of workers, and checks of them.
    pub WorkerMetrics {
        in_flight: Family<WorkerLabels, Gauge>, "worker_in_flight", "Requests in flight from this replica";
        /// As placement counts them.
        in_flight_cluster: Family<WorkerLabels, FloatGauge>,
            "worker_in_flight_cluster", "Requests in flight from all replicas, damped by age";
        probes: Family<ResultLabels, Counter>, "probes", "Health checks that this replica made, by result";
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

impl AttemptMetrics {
    /// Counts a try by its result, one of [`ATTEMPT_RESULTS`].
    pub fn count(&self, worker: &Worker, result: &'static str) {
        let index = ATTEMPT_RESULTS.iter().position(|label| *label == result);
        let find = || {
            let worker = Arc::clone(&worker.series_label);
            self.attempts
                .get_or_create_owned(&AttemptLabels { worker, result })
        };
        let attempts = &worker.series.attempts;
        attempts.count(index.unwrap_or(usize::MAX), find, |attempts| {
            attempts.inc();
        });
    }
}

impl AnswerMetrics {
    /// Counts what a prefill worker reported of its cache; the tokens of the request count where it is answered.
    pub fn count_cached(&self, worker: &Worker, usage: &Usage, expected: u32) {
        let labels = WorkerLabels {
            worker: Arc::clone(&worker.series_label),
        };
        let counters = [
            (&self.cached_tokens, usage.cached_tokens.unwrap_or(0)),
            (&self.expected_tokens, u64::from(expected)),
        ];
        for (counter, tokens) in counters {
            counter.get_or_create(&labels).inc_by(tokens);
        }
    }

    /// Counts the tokens that a worker reported; `expected`: those that were expected in its cache, if it reported what
    /// was there.
    pub fn count(&self, worker: &Worker, usage: &Usage, expected: Option<u32>) {
        let counts = [
            (&self.prompt_tokens, Some(usage.prompt_tokens)),
            (&self.cached_tokens, Some(usage.cached_tokens.unwrap_or(0))),
            (&self.completion_tokens, Some(usage.completion_tokens)),
            (&self.expected_tokens, expected.map(u64::from)),
        ];
        for (index, (family, tokens)) in counts.into_iter().enumerate() {
            let Some(tokens) = tokens else { continue };
            let find = || family.get_or_create_owned(&WorkerLabels::of(&worker.series_label));
            worker.series.tokens.count(index, find, |counter| {
                counter.inc_by(tokens);
            });
        }
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
    /// Forgets the series of a worker that left the registry.
    pub fn forget(&self, worker: &Arc<str>) {
        let labels = WorkerLabels::of(worker);
        self.health.forget(worker);
        for family in [
            &self.answers.prompt_tokens,
            &self.answers.cached_tokens,
            &self.answers.expected_tokens,
            &self.answers.completion_tokens,
        ] {
            family.remove(&labels);
        }
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
