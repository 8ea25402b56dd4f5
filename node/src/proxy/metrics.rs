//! Metrics of requests, from their head to their end.

use std::sync::Arc;
use std::time::Duration;

use super::split::SplitMetrics;
use crate::cluster::metrics::QuarantineMetrics;
use crate::metrics::refusals::RefusalMetrics;
use crate::metrics::{
    Counter, EndpointLabels, Family, Histogram, Histograms, ModelLabels, ReasonLabels,
    RequestLabels, ResultLabels, metrics, seconds,
};
use crate::seats::TrafficMetrics;
use crate::upstream::metrics::{AnswerMetrics, AttemptMetrics};

metrics! {
    /// Requests and their pace.
    pub RequestMetrics {
        /// Each is counted once, at its end.
        requests: Family<RequestLabels, Counter>, "requests", "Requests by endpoint and outcome";
        request_seconds: Histograms<EndpointLabels> = Family::new_with_constructor(|| seconds(0.001, 18)),
            "request" Seconds, "From the head of a request to the last byte of its answer";
        /// Or to the whole of a short answer.
        first_token_seconds: Histograms<ModelLabels> = Family::new_with_constructor(|| seconds(0.001, 18)),
            "first_token" Seconds, "From the head of a request to its first token";
        /// One observation a stream.
        inter_token_seconds: Histograms<ModelLabels> = Family::new_with_constructor(|| seconds(0.000_1, 18)),
            "inter_token" Seconds, "Mean time between two tokens of a stream";
        /// One observation a stream.
        stream_pause_seconds: Histograms<ModelLabels> = Family::new_with_constructor(|| seconds(0.001, 18)),
            "stream_pause" Seconds, "Longest pause between two events of a stream";
        decision_seconds: Histogram = seconds(0.000_001, 18),
            "decision" Seconds, "One placement decision, key included";
        placements: Family<ReasonLabels, Counter>, "placements", "Choices of a worker by reason";
    }
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

impl RequestMetrics {
    /// Counts a choice of a worker.
    pub fn placed(&self, reason: &'static str) {
        let labels = ReasonLabels { reason };
        self.placements.get_or_create(&labels).inc();
    }

    /// Counts the time of one decision.
    pub fn decided(&self, elapsed: Duration) {
        self.decision_seconds.observe(elapsed.as_secs_f64());
    }

    /// Counts the end of a request.
    pub fn ended(&self, endpoint: &'static str, outcome: &'static str, elapsed: Duration) {
        let labels = RequestLabels { endpoint, outcome };
        self.requests.get_or_create(&labels).inc();
        self.request_seconds
            .get_or_create(&EndpointLabels { endpoint })
            .observe(elapsed.as_secs_f64());
    }

    /// Counts how long the first token of a model took.
    pub fn first_token(&self, model: &Arc<str>, elapsed: Duration) {
        self.first_token_seconds
            .get_or_create(&ModelLabels::of(model))
            .observe(elapsed.as_secs_f64());
    }
}

impl DetourMetrics {
    /// Counts a search for the worker that holds a response.
    pub fn searched(&self, result: &'static str) {
        let labels = ResultLabels { result };
        self.response_searches.get_or_create(&labels).inc();
    }

    /// Counts what came of a stream whose worker broke off.
    pub fn failover(&self, result: &'static str) {
        let labels = ResultLabels { result };
        self.failovers.get_or_create(&labels).inc();
    }
}
