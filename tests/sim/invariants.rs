//! What must hold in every step, and what must hold when all is quiet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::view::View;
use grapevine_gossip::worker::WorkerId;

use crate::cluster::Cluster;

/// Looks at every view after every step.
pub(crate) struct Watchman {
    seed: u64,
    added: BTreeSet<WorkerId>,
    /// Highest generation that an observer has seen of a replica.
    generations: BTreeMap<(usize, ReplicaId), u64>,
}

impl Watchman {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            added: BTreeSet::new(),
            generations: BTreeMap::new(),
        }
    }

    /// A worker may be seen from now on.
    pub(crate) fn added(&mut self, id: &WorkerId) {
        self.added.insert(id.clone());
    }

    /// An observer lost its memory.
    pub(crate) fn restarted(&mut self, at: usize) {
        self.generations.retain(|(observer, _), _| *observer != at);
    }

    /// Each replica is listed once; its generation never goes back; it never calls itself dead.
    pub(crate) fn check(&mut self, views: &BTreeMap<usize, Arc<View>>) {
        for (&at, view) in views {
            let mut listed = BTreeSet::new();
            for replica in view.replicas() {
                assert!(
                    listed.insert(&replica.id),
                    "seed {}: r{at} lists {} twice",
                    self.seed,
                    replica.id
                );
                let highest = self
                    .generations
                    .entry((at, replica.id.clone()))
                    .or_default();
                assert!(
                    replica.generation >= *highest,
                    "seed {}: r{at} went back to generation {} of {} from {highest}",
                    self.seed,
                    replica.generation,
                    replica.id
                );
                *highest = replica.generation;
                let is_self = replica.id.as_str() == format!("r{at}");
                assert!(
                    replica.live || !is_self,
                    "seed {}: r{at} holds itself for dead",
                    self.seed
                );
            }
        }
    }
}

/// True if all running replicas hold the same registry and the same workers, and tell so.
pub(crate) fn agree(cluster: &Cluster) -> bool {
    let views: Vec<_> = cluster
        .running()
        .into_iter()
        .map(|at| cluster.view(at))
        .collect();
    views.windows(2).all(|pair| {
        let is_same = pair[0].registry() == pair[1].registry();
        if is_same {
            assert_eq!(
                pair[0].workers(),
                pair[1].workers(),
                "seed {}: equal digests, other workers",
                cluster.seed()
            );
            assert_eq!(
                pair[0].roster(),
                pair[1].roster(),
                "seed {}: equal workers, other roster",
                cluster.seed()
            );
        }
        is_same
    })
}

/// Honest replicas never offend each other's firewall, whatever the network does to their messages.
pub(crate) fn nobody_offended(cluster: &Cluster) {
    for at in cluster.running() {
        let refused = cluster.counted(at, "gossip_refused_total");
        assert!(
            refused.is_empty(),
            "seed {}: r{at} refused honest messages: {refused:?}",
            cluster.seed()
        );
    }
}

/// What the outside did to the worker set, and so what must be left of it.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Must be there at the end.
    pub(crate) kept: BTreeSet<WorkerId>,
    /// Must not be there at the end, nor ever again.
    pub(crate) gone: BTreeSet<WorkerId>,
    /// Not confirmed by anybody: lost if its replica died.
    pub(crate) unsure: BTreeSet<WorkerId>,
}

impl Ledger {
    /// Checks every running replica against the ledger.
    pub(crate) fn check(&self, cluster: &Cluster) {
        nobody_offended(cluster);
        for at in cluster.running() {
            let view = cluster.view(at);
            let seen: BTreeSet<_> = view
                .workers()
                .iter()
                .map(|worker| worker.id.clone())
                .collect();
            let lost: Vec<_> = self.kept.difference(&seen).collect();
            let risen: Vec<_> = self.gone.intersection(&seen).collect();
            let unknown: Vec<_> = seen
                .iter()
                .filter(|id| {
                    !self.kept.contains(id) && !self.unsure.contains(id) && !self.gone.contains(id)
                })
                .collect();
            assert!(
                lost.is_empty(),
                "seed {}: r{at} lost {lost:?}",
                cluster.seed()
            );
            assert!(
                risen.is_empty(),
                "seed {}: removed workers are back at r{at}: {risen:?}",
                cluster.seed()
            );
            assert!(
                unknown.is_empty(),
                "seed {}: nobody added {unknown:?} of r{at}",
                cluster.seed()
            );
        }
    }
}
