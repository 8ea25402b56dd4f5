//! What was said about workers, who is known to hold it, and so what must be left of it.
//!
//! Exact, because a worker is only ever spoken of through a replica that holds the last word on it:
//! the words on one worker follow one another, and the last one must win wherever it is held. Who
//! holds it is seen in the views. While one holder lives it must survive, confirmed or not; once all
//! known holders have died at the same time it may be lost, and the next quiet time tells.

use std::collections::{BTreeMap, BTreeSet};

use grapevine_gossip::view::View;
use grapevine_gossip::worker::{Source, WorkerId};

use crate::cluster::Cluster;

/// The last word on one worker.
#[derive(Debug)]
struct Last {
    source: Source,
    /// What is said: the zone is another one in each description. `None`: it is removed.
    zone: Option<String>,
    /// Replicas that hold it.
    holders: BTreeSet<usize>,
    /// Replicas that hold it or a former word, in this life.
    acquainted: BTreeSet<usize>,
    /// All holders died.
    is_unsure: bool,
}

/// Every word on every worker.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    workers: BTreeMap<WorkerId, Last>,
    /// How often a word had to be given up.
    pub(crate) unsure: usize,
}

impl Ledger {
    /// `at` said this of a worker: `None` that it is removed.
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

    /// A worker that every replica has in its configuration, and of whom `source` may speak.
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

    /// Workers on which `at` holds the last word, and who speaks of them; removed ones apart.
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

    /// Replicas that are known to hold the last word on a worker.
    pub(crate) fn holders(&self, id: &WorkerId) -> usize {
        self.workers.get(id).map_or(0, |last| last.holders.len())
    }

    /// Most entries that a registry may hold by now.
    pub(crate) fn entries_max(&self) -> usize {
        // Of its source, of the administrator, and of its restarts.
        3 * self.workers.len()
    }

    /// Learns from all views who holds what, and checks that nobody lost a word again.
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

    /// All replicas run and hold equal registries: each must hold every last word. What was unsure is
    /// now what they say.
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
        // Who never heard of a worker lacks it too, but holds no removal.
        if seen == self.zone && self.acquainted.contains(&at) {
            self.holders.insert(at);
        }
    }
}

fn zone(view: &View, id: &WorkerId) -> Option<String> {
    let worker = view.worker(id)?;
    Some(worker.spec.zone().unwrap_or_default().to_owned())
}
