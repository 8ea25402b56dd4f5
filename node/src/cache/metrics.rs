//! Metrics of the response cache. Not to be confused with the workers' prefix caches.

use super::recording::Fate;
use super::rules::Bypass;
use crate::metrics::{Counter, Family, Gauge, ReasonLabels, ResultLabels, metrics};

metrics! {
    /// The response cache.
    pub CacheMetrics {
        requests: Family<ResultLabels, Counter>,
            "response_cache_requests", "Requests by what the response cache had for them",
            ResultLabels { result } in ["hit", "miss", "bypass"];
        bypassed: Family<ReasonLabels, Counter>,
            "response_cache_bypassed", "Requests that went past the response cache, by reason",
            ReasonLabels { reason } in Bypass::ALL.map(Bypass::as_str);
        answers: Family<ResultLabels, Counter>,
            "response_cache_answers", "Answers that might have been kept, by what became of them",
            ResultLabels { result } in Fate::ALL.map(Fate::as_str);
        evicted: Family<ReasonLabels, Counter>,
            "response_cache_evicted", "Answers that left the response cache, by reason",
            ReasonLabels { reason } in ["size", "tenant_share", "expired", "replaced"];
        entries: Gauge, "response_cache_entries", "Answers in the response cache";
        bytes: Gauge, "response_cache" Bytes, "Memory of the answers in the response cache";
    }
}

impl CacheMetrics {
    pub(super) fn request(&self, result: &'static str) {
        self.requests.get_or_create(&ResultLabels { result }).inc();
    }

    pub(super) fn answer(&self, result: &'static str) {
        self.answers.get_or_create(&ResultLabels { result }).inc();
    }
}
