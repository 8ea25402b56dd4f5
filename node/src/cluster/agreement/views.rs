//! Do the replicas agree, as far as each of them says? Counted, exported, and loud when settings differ.
//!
//! Ring digests differ for a moment after each change of the registry; settings differ only by mistake, and
//! then the replicas send the same prefix to different workers for as long as the mistake lasts.

use std::collections::BTreeSet;

use grapevine_gossip::view::{ReplicaInfo, View};

use crate::cluster::metrics::ClusterMetrics;

/// Compares what live replicas say with what this one holds.
#[derive(Debug)]
pub struct Views {
    settings: String,
    metrics: ClusterMetrics,
    /// Replicas that have been warned of, with what they said.
    warned: BTreeSet<(String, String)>,
}

impl Views {
    /// Compares with a replica whose cluster settings have this fingerprint.
    pub fn new(settings: String, metrics: ClusterMetrics) -> Self {
        Self {
            settings,
            metrics,
            warned: BTreeSet::new(),
        }
    }

    /// Takes note of a new view; `ring` is this replica's ring digest.
    pub fn update(&mut self, view: &View, ring: &str) {
        let live: Vec<&ReplicaInfo> = view.replicas().iter().filter(|r| r.live).collect();
        let agreeing = live
            .iter()
            .filter(|r| r.ring == ring && r.settings == self.settings);
        self.metrics.replicas_agreeing.set(agreeing.count() as i64);
        self.metrics.replicas_live.set(live.len() as i64);

        let differing: BTreeSet<_> = live
            .iter()
            // A replica that has just been met has not said anything yet.
            .filter(|r| !r.settings.is_empty() && r.settings != self.settings)
            .map(|r| (r.id.to_string(), r.settings.clone()))
            .collect();
        self.metrics.settings_differing.set(differing.len() as i64);
        for (replica, theirs) in differing.difference(&self.warned) {
            tracing::error!(
                replica,
                theirs,
                ours = self.settings,
                "settings of [cluster] or [[model]] differ: the same prefix goes to different workers; make them equal"
            );
        }
        self.warned = differing;
    }
}
