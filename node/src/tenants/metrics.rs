//! Metrics of keys and tenants. Labels are names from the file of keys, so the file bounds the series.

use std::sync::Arc;

use crate::metrics::{Counter, Family, Gauge, ReasonLabels, ResultLabels, label_sets, metrics};

label_sets! {
    /// One tenant of the file.
    TenantLabels { tenant: Arc<str> }
    /// A tenant and why its requests were turned away, one of [`REFUSALS`].
    TenantReasonLabels { tenant: Arc<str>, reason: &'static str }
}

/// Why requests of a tenant are turned away.
pub const REFUSALS: [&str; 7] = [
    "tenant_requests",
    "request_rate",
    "token_rate",
    "queue_full",
    "queue_bytes",
    "displaced",
    "queue_timeout",
];

/// What may be wrong with a request's key.
const KEY_FAULTS: [&str; 4] = ["missing", "unreadable", "unknown", "expired"];

metrics! {
    /// Keys and tenants.
    pub TenantMetrics {
        requests: Family<TenantLabels, Gauge>,
            "tenant_requests", "Requests of a tenant at this replica, waiting ones included";
        refusals: Family<TenantReasonLabels, Counter>,
            "tenant_refusals", "Requests of a tenant that were turned away, by reason";
        key_refusals: Family<ReasonLabels, Counter>,
            "key_refusals", "Requests without a good key, by what was wrong",
            ReasonLabels { reason } in KEY_FAULTS;
        keys: Gauge, "keys", "Keys of clients in the file";
        loads: Family<ResultLabels, Counter>, "keys_loads", "Readings of a changed file of keys, by result",
            ResultLabels { result } in ["good", "bad"];
        refused: Gauge, "keys_file_refused", "Whether the changed file of keys cannot be used, so that the former keys stay";
    }
}

/// The series of one tenant; they end with it.
#[derive(Debug)]
pub(super) struct TenantSeries {
    metrics: TenantMetrics,
    labels: TenantLabels,
    pub(super) requests: Gauge,
}

impl TenantMetrics {
    /// Whether the changed file of keys cannot be used.
    pub fn is_file_refused(&self) -> bool {
        self.refused.get() > 0
    }

    pub(super) fn series(&self, tenant: &Arc<str>) -> TenantSeries {
        let labels = TenantLabels {
            tenant: Arc::clone(tenant),
        };
        for reason in REFUSALS {
            let tenant = Arc::clone(tenant);
            let labels = TenantReasonLabels { tenant, reason };
            drop(self.refusals.get_or_create(&labels));
        }
        TenantSeries {
            requests: self.requests.get_or_create_owned(&labels),
            metrics: self.clone(),
            labels,
        }
    }

    /// Counts a request without a good key.
    pub(super) fn key_refused(&self, reason: &'static str) {
        let labels = ReasonLabels { reason };
        self.key_refusals.get_or_create(&labels).inc();
    }
}

impl TenantSeries {
    pub(super) fn refused(&self, reason: &'static str) {
        let labels = TenantReasonLabels {
            tenant: Arc::clone(&self.labels.tenant),
            reason,
        };
        self.metrics.refusals.get_or_create(&labels).inc();
    }
}

impl Drop for TenantSeries {
    fn drop(&mut self) {
        self.metrics.requests.remove(&self.labels);
        for reason in REFUSALS {
            self.metrics.refusals.remove(&TenantReasonLabels {
                tenant: Arc::clone(&self.labels.tenant),
                reason,
            });
        }
    }
}
