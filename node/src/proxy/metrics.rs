//! Metrics of requests, from their head to their end.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;

use super::continuation::Reason as Unmoved;
use super::division::SplitMetrics;
use super::model_series::ModelTable;
use super::request_families::RequestFamilies;
use crate::cluster::metrics::QuarantineMetrics;
#[cfg(test)]
use crate::metrics::Row;
use crate::metrics::refusals::RefusalMetrics;
use crate::metrics::{Counter, Family, ReasonLabels, ResultLabels, metrics};
use crate::seats::TrafficMetrics;
use crate::upstream::metrics::{AnswerMetrics, AttemptMetrics};

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
            "Requests about a response that one worker holds, by how that worker was found",
            ResultLabels { result } in SEARCH_RESULTS;
        failovers: Family<ResultLabels, Counter>,
            "failovers", "Streams whose worker broke off where failover was wanted, by result",
            ResultLabels { result } in ["continued", "finished"].into_iter().chain(Unmoved::ALL.map(Unmoved::as_str));
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

/// What may come of the search for a response. Labels: stable.
const SEARCH_RESULTS: [&str; 6] = [
    "remembered",
    "only",
    "found",
    "nowhere",
    "unsure",
    "foreign",
];

impl DetourMetrics {
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
