//! Metrics of the response cache. Not to be confused with the workers' prefix caches.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::metrics::{ReasonLabels, ResultLabels};

/// Handles, registered with the router's other metrics. A clone counts the same.
#[derive(Debug, Clone)]
pub struct CacheMetrics {
    /// Requests by what the cache had for them.
    pub requests: Family<ResultLabels, Counter>,
    /// Requests that went past it, by reason.
    pub bypassed: Family<ReasonLabels, Counter>,
    /// Answers that might have been kept, by what became of them.
    pub answers: Family<ResultLabels, Counter>,
    /// Answers that left, by reason.
    pub evicted: Family<ReasonLabels, Counter>,
    /// Answers kept.
    pub entries: Gauge,
    /// Their bytes.
    pub bytes: Gauge,
}

impl CacheMetrics {
    /// Registers all of them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            bypassed: Family::default(),
            answers: Family::default(),
            evicted: Family::default(),
            entries: Gauge::default(),
            bytes: Gauge::default(),
        };
        registry.register(
            "response_cache_requests",
            "Requests by what the response cache had for them",
            metrics.requests.clone(),
        );
        registry.register(
            "response_cache_bypassed",
            "Requests that went past the response cache, by reason",
            metrics.bypassed.clone(),
        );
        registry.register(
            "response_cache_answers",
            "Answers that might have been kept, by what became of them",
            metrics.answers.clone(),
        );
        registry.register(
            "response_cache_evicted",
            "Answers that left the response cache, by reason",
            metrics.evicted.clone(),
        );
        registry.register(
            "response_cache_entries",
            "Answers in the response cache",
            metrics.entries.clone(),
        );
        registry.register_with_unit(
            "response_cache",
            "Memory of the answers in the response cache",
            Unit::Bytes,
            metrics.bytes.clone(),
        );
        metrics
    }

    pub(super) fn request(&self, result: &'static str) {
        self.requests.get_or_create(&ResultLabels { result }).inc();
    }

    pub(super) fn answer(&self, result: &'static str) {
        self.answers.get_or_create(&ResultLabels { result }).inc();
    }
}
