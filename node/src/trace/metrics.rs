//! Metrics of traces.

use crate::metrics::{Counter, Family, ResultLabels, metrics};

metrics! {
    /// Traces.
    pub TraceMetrics {
        spans: Family<ResultLabels, Counter>, "trace_spans", "Spans by what became of them";
    }
}

impl TraceMetrics {
    pub(super) fn count(&self, result: &'static str, spans: usize) {
        self.spans
            .get_or_create(&ResultLabels { result })
            .inc_by(spans as u64);
    }
}
