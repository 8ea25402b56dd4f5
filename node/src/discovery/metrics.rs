//! Metrics of discovery.

use crate::metrics::{
    ActionLabels, Counter, Family, Gauge, SourceLabels, SourceStateLabels, metrics,
};

metrics! {
    /// Sources of workers.
    pub DiscoveryMetrics {
        up: Family<SourceLabels, Gauge>,
            "discovery_up", "Whether the source can be seen by this replica: 1, or 0 while it fails or is too old";
        age: Family<SourceLabels, Gauge>,
            "discovery_age_seconds", "Seconds since the source was last seen; -1 before the first time";
        failures: Family<SourceLabels, Counter>,
            "discovery_failures", "Times that the source could not be seen";
        workers: Family<SourceStateLabels, Gauge>,
            "discovery_workers", "Workers of the source, by what is known of them: registered, seen, ready, missing, contested";
        writes: Family<ActionLabels, Counter>,
            "discovery_writes", "Workers of the source that this replica put into the registry, took out of it, or refused";
        leases: Family<SourceLabels, Gauge>,
            "leases", "Workers whose leases this replica answers for";
        renewals: Family<crate::metrics::ResultLabels, Counter>,
            "lease_renewals", "Renewals of leases at this replica, by result";
    }
}
