//! Metrics of the cluster as this replica sees it: workers and rings, what is known of caches, agreement.

use std::sync::atomic::AtomicU64;

use crate::metrics::{
    AgreementLabels, ClaimLabels, Counter, EventLabels, Family, FloatGauge, Gauge, ResultLabels,
    metrics,
};

metrics! {
    /// Requests with which workers ended.
    pub QuarantineMetrics {
        queries_of_death: Family<ResultLabels, Counter>,
            "queries_of_death", "Requests with which workers ended, by what came of it",
            ResultLabels { result } in ["found", "excused", "reported", "refused", "lifted"];
        quarantined: Gauge, "quarantined", "Requests that no worker gets, for a time";
    }
}

metrics! {
    /// The cluster.
    pub ClusterMetrics {
        /// As they were last read.
        health_claims: Family<ClaimLabels, Gauge>,
            "health_claims", "What other replicas claim of workers, by whether it is believed";
        workers: Gauge, "workers", "Workers in the registry";
        ring_digest: Gauge, "ring_digest", "Digest of all rings; equal on replicas that agree";
        prefix_index_entries: Gauge, "prefix_index_entries", "Prefixes that workers are expected to hold";
        prefix_index_events: Family<EventLabels, Counter>,
            "prefix_index_events", "Entries that were forgotten or refused, and answers that corrected",
            EventLabels { event } in ["evicted", "crowded_out", "expired", "refused", "spared", "corrected"];
        hot_prefixes: Gauge, "hot_prefixes", "Prefixes that are counted as warm over the whole cluster";
        heat_digest: Gauge, "heat_digest", "Digest of the counts of warm prefixes";
        replicas_unheard: Gauge, "replicas_unheard", "Live replicas that this one does not hear";
        replicas_live: Gauge, "replicas_live", "Live replicas, this one included";
        replicas_agreeing: Gauge,
            "replicas_agreeing", "Live replicas with this one's ring digest and settings, itself included";
        settings_differing: Gauge,
            "settings_differing", "Live replicas whose settings that must be equal differ from this one's";
        agreement_samples: Family<AgreementLabels, Counter>,
            "agreement_samples",
            "Requests compared with what a peer would decide, by result, and whether any of the prompt was known";
        /// Not a number before the first.
        agreement_ratio: FloatGauge,
            "agreement_ratio", "Share of the latest comparisons that named the same worker";
        agreement_cost: Counter<f64, AtomicU64>,
            "agreement_cost_seconds",
            "Seconds that first tokens would have come later by peers' choices, as this replica reckons, over all that differed";
        workers_without_series: Gauge,
            "workers_without_series", "Workers above `metrics.worker_series`: they share the label `other`";
        fleets: Counter,
            "fleets", "Fleets made of the registry, with their rings; workers that come together are in one";
    }
    then ClusterMetrics::begin
}

impl QuarantineMetrics {
    /// Counts a request with which workers ended.
    pub fn query_of_death(&self, result: &'static str) {
        let labels = ResultLabels { result };
        self.queries_of_death.get_or_create(&labels).inc();
    }
}

impl ClusterMetrics {
    fn begin(&self) {
        self.agreement_ratio.set(f64::NAN);
    }
}
