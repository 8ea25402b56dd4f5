//! Metrics of keys and tenants. Labels are names from the file of keys, so the file bounds the series.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::{ReasonLabels, ResultLabels};

/// One tenant of the file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TenantLabels {
    /// Its name.
    pub tenant: Arc<str>,
}

/// A tenant and why its requests were turned away.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TenantReasonLabels {
    /// Its name.
    pub tenant: Arc<str>,
    /// One of [`REFUSALS`].
    pub reason: &'static str,
}

/// Why requests of a tenant are turned away.
pub const REFUSALS: [&str; 6] = [
    "tenant_requests",
    "request_rate",
    "queue_full",
    "queue_bytes",
    "displaced",
    "queue_timeout",
];

/// What may be wrong with a request's key.
const KEY_FAULTS: [&str; 4] = ["missing", "unreadable", "unknown", "expired"];

/// Handles, registered with the router's other metrics.
#[derive(Debug, Clone)]
pub struct TenantMetrics {
    /// Requests at this replica by tenant, waiting ones included.
    pub requests: Family<TenantLabels, Gauge>,
    /// Requests that were turned away, by tenant and reason.
    pub refusals: Family<TenantReasonLabels, Counter>,
    /// Requests without a good key, by what was wrong.
    pub key_refusals: Family<ReasonLabels, Counter>,
    /// Keys in the file.
    pub keys: Gauge,
    /// Readings of the changed file, by result.
    pub loads: Family<ResultLabels, Counter>,
}

/// The series of one tenant; they end with it.
#[derive(Debug)]
pub(super) struct TenantSeries {
    metrics: TenantMetrics,
    labels: TenantLabels,
    pub(super) requests: Gauge,
}

impl TenantMetrics {
    /// Registers all of them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            refusals: Family::default(),
            key_refusals: Family::default(),
            keys: Gauge::default(),
            loads: Family::default(),
        };
        for reason in KEY_FAULTS {
            drop(metrics.key_refusals.get_or_create(&ReasonLabels { reason }));
        }
        for result in ["good", "bad"] {
            drop(metrics.loads.get_or_create(&ResultLabels { result }));
        }
        registry.register(
            "tenant_requests",
            "Requests of a tenant at this replica, waiting ones included",
            metrics.requests.clone(),
        );
        registry.register(
            "tenant_refusals",
            "Requests of a tenant that were turned away, by reason",
            metrics.refusals.clone(),
        );
        registry.register(
            "key_refusals",
            "Requests without a good key, by what was wrong",
            metrics.key_refusals.clone(),
        );
        registry.register("keys", "Keys of clients in the file", metrics.keys.clone());
        registry.register(
            "keys_loads",
            "Readings of a changed file of keys, by result",
            metrics.loads.clone(),
        );
        metrics
    }

    pub(super) fn series(&self, tenant: &Arc<str>) -> TenantSeries {
        let labels = TenantLabels {
            tenant: Arc::clone(tenant),
        };
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
