//! Do the replicas agree, by what each reports of itself? Counted, exported, and loud when settings differ.
//!
//! Ring digests differ for a moment after each change of the registry; settings differ only by mistake, and
//! then the replicas send the same prefix to different workers for as long as the mistake lasts.

use std::collections::BTreeSet;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::view::{ReplicaInfo, View};

use crate::cluster::metrics::ClusterMetrics;
use crate::live::Live;

/// Compares what live replicas report with what this one holds.
#[derive(Debug)]
pub struct Views {
    /// This replica. What the view has of it may be older than its settings.
    own: ReplicaId,
    settings: Live<String>,
    metrics: ClusterMetrics,
    /// Replicas of which the log has warned, with what they reported.
    warned: BTreeSet<(String, String)>,
}

impl Views {
    /// Compares with this replica, whose settings have this fingerprint.
    pub fn new(own: ReplicaId, settings: Live<String>, metrics: ClusterMetrics) -> Self {
        Self {
            own,
            settings,
            metrics,
            warned: BTreeSet::new(),
        }
    }

    /// Takes note of a new view; `ring` is this replica's ring digest.
    pub fn update(&mut self, view: &View, ring: &str) {
        let ours = self.settings.now();
        let live: Vec<&ReplicaInfo> = view.replicas().iter().filter(|r| r.live).collect();
        let agreeing = live
            .iter()
            .filter(|r| r.ring == ring && r.settings == *ours);
        self.metrics.replicas_agreeing.set(agreeing.count() as i64);
        self.metrics.replicas_live.set(live.len() as i64);

        let differing: BTreeSet<_> = live
            .iter()
            // A replica that has just been met has not reported anything yet.
            .filter(|r| r.id != self.own && !r.settings.is_empty() && r.settings != *ours)
            .map(|r| (r.id.to_string(), r.settings.clone()))
            .collect();
        self.metrics.settings_differing.set(differing.len() as i64);
        for (replica, theirs) in differing.difference(&self.warned) {
            tracing::error!(
                replica,
                theirs,
                ours = *ours,
                "settings that must be equal on all replicas differ ([cluster], [[model]], [transfer], and those of discovery): they send the same prefix to different workers, or judge one worker differently; `grapevine doctor` names them; make them equal"
            );
        }
        self.warned = differing;
    }
}
