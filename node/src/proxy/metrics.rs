//! Metrics of requests, from their head to their end.

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::Reason;
use prometheus_client::registry::Registry;

use super::continuation::Reason as Unmoved;
use super::holders::SEARCH_RESULTS;
use super::model_series::ModelTable;
use super::split::SplitMetrics;
use crate::cluster::metrics::QuarantineMetrics;
#[cfg(test)]
use crate::metrics::Row;
use crate::metrics::refusals::RefusalMetrics;
use crate::metrics::{
    Counter, Family, GapHistogram, Histogram, ModelEndpointLabels, ModelLabels, ReasonLabels,
    RequestLabels, ResultLabels, TracedHistograms, buckets, metrics, seconds,
};
use crate::seats::TrafficMetrics;
use crate::upstream::metrics::{AnswerMetrics, AttemptMetrics};

metrics! {
    /// Requests and their pace, by labels.
    pub RequestFamilies {
        /// Each is counted once, at its end.
        requests: Family<RequestLabels, Counter>,
            "requests", "Requests by endpoint, model, outcome and class of the status";
        request_seconds: TracedHistograms<ModelEndpointLabels> = Family::new_with_constructor(buckets::request),
            "request" Seconds, "From the head of a request to the last byte of its answer";
        /// Of streams: a plain answer shows no token before its last.
        first_token_seconds: TracedHistograms<ModelLabels> = Family::new_with_constructor(buckets::first_token),
            "first_token" Seconds, "From the head of a request to the first event of its stream";
        /// Each gap of each stream, added at its end.
        inter_token_seconds: Family<ModelLabels, GapHistogram>,
            "inter_token" Seconds, "Time between two tokens of a stream, an event taken for one";
        /// One observation a stream.
        time_per_output_token_seconds: TracedHistograms<ModelLabels> = Family::new_with_constructor(buckets::per_token),
            "time_per_output_token" Seconds, "Mean time for a token of a stream after its first one";
        /// One observation a stream.
        stream_pause_seconds: TracedHistograms<ModelLabels> = Family::new_with_constructor(buckets::pause),
            "stream_pause" Seconds, "Longest pause between two events of a stream";
        /// What the router adds before the worker.
        preparation_seconds: Histogram = seconds(0.000_05, 20),
            "preparation" Seconds,
            "From the head of a request to the choice of its worker, without waits in queues; reads its body";
        decision_seconds: Histogram = seconds(0.000_001, 18),
            "decision" Seconds, "One placement decision, key included";
        placements: Family<ReasonLabels, Counter>, "placements", "Choices of a worker by reason";
    }
    then RequestFamilies::begin
}

/// Requests and their pace.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    families: RequestFamilies,
    /// The series of models.
    pub models: Arc<ModelTable>,
}

metrics! {
    /// Requests for which the first choice of a worker is not all.
    pub DetourMetrics {
        response_searches: Family<ResultLabels, Counter>,
            "response_searches",
            "Requests about a response that one worker holds, by how that worker was found";
        failovers: Family<ResultLabels, Counter>,
            "failovers", "Streams whose worker broke off where failover was wanted, by result";
    }
    then DetourMetrics::begin
}

/// All that requests count.
#[derive(Debug, Clone)]
pub struct ProxyMetrics {
    /// Requests and their pace.
    pub requests: RequestMetrics,
    /// Searches and moves.
    pub detours: DetourMetrics,
    /// Requests that are divided.
    pub split: SplitMetrics,
    /// Tries on workers.
    pub attempts: AttemptMetrics,
    /// What workers' answers hold.
    pub answers: AnswerMetrics,
    /// What is under way.
    pub traffic: TrafficMetrics,
    /// Errors and limits.
    pub refusals: RefusalMetrics,
    /// Requests with which workers ended.
    pub marks: QuarantineMetrics,
}

impl RequestFamilies {
    /// From the start, since `increase()` does not see a series that begins with 1.
    fn begin(&self) {
        for reason in Reason::ALL.map(Reason::as_str) {
            drop(self.placements.get_or_create(&ReasonLabels { reason }));
        }
    }
}

impl RequestMetrics {
    /// What is counted, by labels.
    pub fn families(&self) -> &RequestFamilies {
        &self.families
    }

    /// The rows, in the order in which they are shown.
    #[cfg(test)]
    pub(crate) const ROWS: &'static [Row] = RequestFamilies::ROWS;

    /// Registers all of them.
    pub fn register(registry: &mut Registry) -> Self {
        let families = RequestFamilies::register(registry);
        Self {
            models: Arc::new(ModelTable::new(&families)),
            families,
        }
    }

    /// Counts a choice of a worker.
    pub fn placed(&self, reason: &'static str) {
        let labels = ReasonLabels { reason };
        self.families.placements.get_or_create(&labels).inc();
    }

    /// Counts the time before the first choice of a worker.
    pub fn prepared(&self, took: Duration) {
        self.families
            .preparation_seconds
            .observe(took.as_secs_f64());
    }

    /// Counts the time of one decision.
    pub fn decided(&self, elapsed: Duration) {
        self.families
            .decision_seconds
            .observe(elapsed.as_secs_f64());
    }
}

impl DetourMetrics {
    fn begin(&self) {
        for result in SEARCH_RESULTS {
            drop(
                self.response_searches
                    .get_or_create(&ResultLabels { result }),
            );
        }
        let reasons = Unmoved::ALL.map(Unmoved::as_str);
        for result in ["continued", "finished"].into_iter().chain(reasons) {
            drop(self.failovers.get_or_create(&ResultLabels { result }));
        }
    }

    /// Counts a search for the worker that holds a response.
    pub fn searched(&self, result: &'static str) {
        debug_assert!(SEARCH_RESULTS.contains(&result), "{result} is not listed");
        let labels = ResultLabels { result };
        self.response_searches.get_or_create(&labels).inc();
    }

    /// Counts what came of a stream whose worker broke off.
    pub fn failover(&self, result: &'static str) {
        let labels = ResultLabels { result };
        self.failovers.get_or_create(&labels).inc();
    }
}
