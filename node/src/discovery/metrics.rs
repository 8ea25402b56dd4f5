//! Metrics of discovery.

use std::sync::Arc;

use grapevine_discovery::{Counts, Sight};

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

impl DiscoveryMetrics {
    /// How a source looks now.
    pub(super) fn show(&self, source: Arc<str>, sight: &Sight, is_fresh: bool, counts: Counts) {
        let labels = SourceLabels { source };
        self.up.get_or_create(&labels).set(i64::from(is_fresh));
        let age = sight
            .seen
            .map_or(-1, |seen| seen.elapsed().as_secs() as i64);
        self.age.get_or_create(&labels).set(age);
        let failures = self.failures.get_or_create(&labels).clone();
        failures.inc_by(sight.failures.saturating_sub(failures.get()));
        let states = [
            ("registered", counts.registered),
            ("seen", counts.seen),
            ("ready", counts.ready),
            ("missing", counts.missing),
            ("contested", counts.contested),
        ];
        for (state, count) in states {
            let source = Arc::clone(&labels.source);
            let labels = SourceStateLabels { source, state };
            self.workers.get_or_create(&labels).set(count as i64);
        }
    }
}
