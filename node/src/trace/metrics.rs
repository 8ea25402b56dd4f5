//! Metrics of traces.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::metrics::ResultLabels;

/// Handles, registered with the router's other metrics. A clone counts the same.
#[derive(Debug, Clone)]
pub struct TraceMetrics {
    /// Spans by what became of them.
    pub spans: Family<ResultLabels, Counter>,
}

impl TraceMetrics {
    /// Registers all of them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            spans: Family::default(),
        };
        registry.register(
            "trace_spans",
            "Spans by what became of them",
            metrics.spans.clone(),
        );
        metrics
    }

    pub(super) fn count(&self, result: &'static str, spans: usize) {
        self.spans
            .get_or_create(&ResultLabels { result })
            .inc_by(spans as u64);
    }
}
