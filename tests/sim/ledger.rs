//! Changes of workers, the replicas known to hold them, and so the workers that must be left.
//!
//! Exact, because each change of a worker goes through a replica that holds the last change of it. So the
//! changes of one worker follow one another, and the last one must win on all its holders. The views show
//! which replicas hold it. While one holder lives the change must survive, confirmed or not. Once all known
//! holders have died at the same time it may be lost; the next quiet time shows it.

use std::collections::{BTreeMap, BTreeSet};

use grapevine_gossip::view::View;
use grapevine_gossip::worker::{Source, WorkerId};

use crate::cluster::Cluster;

/// The last change of one worker.
#[derive(Debug)]
struct Last {
    source: Source,
    /// The content: the zone differs in each description. `None`: the worker is removed.
    zone: Option<String>,
    /// Replicas that hold it.
    holders: BTreeSet<usize>,
    /// Replicas that hold this or an earlier change, since their start.
    acquainted: BTreeSet<usize>,
    /// All holders died.
    is_unsure: bool,
}

/// The last change of every worker.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    workers: BTreeMap<WorkerId, Last>,
    /// Number of changes that were lost.
    pub(crate) unsure: usize,
}

impl Ledger {
    /// Records a change through `at`; `None`: the worker is removed.
    pub(crate) fn said(&mut self, at: usize, id: WorkerId, source: Source, zone: Option<String>) {
        let last = self.workers.entry(id).or_insert_with(|| Last {
            source,
            zone: None,
            holders: BTreeSet::new(),
            acquainted: BTreeSet::new(),
            is_unsure: false,
        });
        last.zone = zone;
        last.holders = [at].into();
        last.acquainted.insert(at);
    }

    /// Records a worker that every replica has in its configuration, and that `source` may change.
    pub(crate) fn configured(
        &mut self,
        id: WorkerId,
        source: Source,
        zone: String,
        replicas: usize,
    ) {
        self.said(0, id.clone(), source, Some(zone));
        if let Some(last) = self.workers.get_mut(&id) {
            last.holders.extend(0..replicas);
            last.acquainted.extend(0..replicas);
        }
    }

    /// Workers of which `at` holds the last change, with its source; either those present or those removed.
    pub(crate) fn known_at(&self, at: usize, present: bool) -> Vec<(WorkerId, Source)> {
        let is_known = |last: &&Last| {
            !last.is_unsure && last.zone.is_some() == present && last.holders.contains(&at)
        };
        let workers = self.workers.iter();
        workers
            .filter(|(_, last)| is_known(last))
            .map(|(id, last)| (id.clone(), last.source.clone()))
            .collect()
    }

    /// Number of replicas that are known to hold the last change of a worker.
    pub(crate) fn holders(&self, id: &WorkerId) -> usize {
        self.workers.get(id).map_or(0, |last| last.holders.len())
    }

    /// Most entries that a registry may hold by now.
    pub(crate) fn entries_max(&self) -> usize {
        // For each worker: one of its source, one of the administrator, one of its restarts.
        3 * self.workers.len()
    }

    /// Records the holders of each change from all views, and checks that no replica lost one.
    pub(crate) fn observe(&mut self, cluster: &Cluster) {
        for at in cluster.running() {
            let view = cluster.view(at);
            for (id, last) in &mut self.workers {
                last.observe(cluster, at, id, &view);
            }
        }
    }

    /// A replica lost its memory.
    pub(crate) fn died(&mut self, at: usize) {
        for last in self.workers.values_mut() {
            last.acquainted.remove(&at);
            last.holders.remove(&at);
            if last.holders.is_empty() && !last.is_unsure {
                last.is_unsure = true;
                self.unsure += 1;
            }
        }
    }

    /// All replicas run and hold equal registries: each must hold every last change. Unsure changes become
    /// what the registries hold.
    pub(crate) fn settle(&mut self, cluster: &Cluster) {
        let all: BTreeSet<_> = cluster.running().into_iter().collect();
        for (id, last) in &mut self.workers {
            for &at in &all {
                let zone = zone(&cluster.view(at), id);
                if std::mem::take(&mut last.is_unsure) {
                    last.zone = zone.clone();
                }
                assert_eq!(
                    zone,
                    last.zone,
                    "seed {}: r{at} about {id}: not the last word",
                    cluster.seed()
                );
            }
            last.holders.clone_from(&all);
            last.acquainted.clone_from(&all);
        }
        for &at in &all {
            let view = cluster.view(at);
            let mut unknown = view.workers().iter().map(|worker| &worker.id);
            assert!(
                unknown.all(|id| self.workers.contains_key(id)),
                "seed {}: r{at} has workers that nobody added",
                cluster.seed()
            );
        }
    }
}

impl Last {
    fn observe(&mut self, cluster: &Cluster, at: usize, id: &WorkerId, view: &View) {
        if self.is_unsure {
            return;
        }
        let seen = zone(view, id);
        if self.holders.contains(&at) {
            assert_eq!(
                seen,
                self.zone,
                "seed {}: r{at} held the last word on {id} and lost it",
                cluster.seed()
            );
        }
        if seen.is_some() {
            self.acquainted.insert(at);
        }
        // A replica that never knew a worker lacks it, too, but holds no removal.
        if seen == self.zone && self.acquainted.contains(&at) {
            self.holders.insert(at);
        }
    }
}

fn zone(view: &View, id: &WorkerId) -> Option<String> {
    let worker = view.worker(id)?;
    Some(worker.spec.zone().unwrap_or_default().to_owned())
}
