//! Invariants of every step, and of quiet times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::ReplicaId;
use grapevine_gossip::registry::Worker;
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{State, WorkerId, WorkerSpec};

use crate::cluster::Cluster;
use crate::host::START_MS;

/// Looks at every view after every step.
pub(crate) struct Watchman {
    seed: u64,
    /// The view of every observer in the step before.
    last: BTreeMap<usize, Arc<View>>,
    /// Highest generation that an observer has seen of a replica.
    generations: BTreeMap<(usize, ReplicaId), u64>,
    /// Hash of all views in their order: equal runs have equal ones.
    trace: u64,
}

impl Watchman {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            last: BTreeMap::new(),
            generations: BTreeMap::new(),
            trace: FNV_OFFSET,
        }
    }

    /// An observer lost its memory.
    pub(crate) fn restarted(&mut self, at: usize) {
        self.generations.retain(|(observer, _), _| *observer != at);
        self.last.remove(&at);
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace
    }

    /// Each replica is listed once; its generation never goes back, but from one that no right clock has reached; it never calls itself dead. Workers
    /// are listed once, in order, and the epoch of none goes back.
    pub(crate) fn check(&mut self, elapsed: Duration, views: &BTreeMap<usize, Arc<View>>) {
        for (&at, view) in views {
            let last = self.last.insert(at, view.clone());
            if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, view)) {
                continue;
            }
            self.note(&format!("{elapsed:?} {at} {}", in_short(view)));
            self.check_replicas(at, view);
            self.check_workers(at, last.as_deref(), view);
        }
    }

    fn check_replicas(&mut self, at: usize, view: &View) {
        let seed = self.seed;
        let mut listed = BTreeSet::new();
        for replica in view.replicas() {
            let (id, generation) = (&replica.id, replica.generation);
            assert!(listed.insert(id), "seed {seed}: r{at} lists {id} twice");
            let highest = self.generations.entry((at, id.clone())).or_default();
            assert!(
                generation >= *highest || *highest > BEYOND_ALL_CLOCKS,
                "seed {seed}: r{at} went back to generation {generation} of {id} from {highest}"
            );
            *highest = generation;
            let is_self = id.as_str() == format!("r{at}");
            assert!(
                replica.live || !is_self,
                "seed {seed}: r{at} holds itself for dead"
            );
        }
    }

    fn check_workers(&self, at: usize, last: Option<&View>, view: &View) {
        let seed = self.seed;
        assert!(
            view.workers().is_sorted_by(|a, b| a.id < b.id),
            "seed {seed}: r{at} lists workers twice or out of order"
        );
        for worker in view.workers() {
            let Some(before) = last.and_then(|last| last.worker(&worker.id)) else {
                continue;
            };
            assert!(
                worker.spec.epoch() >= before.spec.epoch(),
                "seed {seed}: r{at} took {} back to epoch {} from {}",
                worker.id,
                worker.spec.epoch(),
                before.spec.epoch()
            );
        }
    }

    /// Fowler, Noll, Vo: FNV-1a.
    fn note(&mut self, text: &str) {
        for byte in text.bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
    }
}

/// No test lasts so long, or sets a right clock so far.
const BEYOND_ALL_CLOCKS: u64 = START_MS + 24 * 3_600_000;
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// A view in one line.
pub(crate) fn in_short(view: &View) -> String {
    let replicas = view.replicas().iter().map(|seen| {
        let state = if seen.live { "" } else { " dead" };
        format!("{}{state}@{}", seen.id, seen.generation % 10_000_000)
    });
    let workers = view.workers().iter().map(|worker| {
        let spec = &worker.spec;
        let zone = spec.zone().unwrap_or_default();
        format!("{} {zone} {:?}/{}", worker.id, spec.state(), spec.epoch())
    });
    format!(
        "{} {:?} {:?}",
        view.registry(),
        replicas.collect::<Vec<_>>(),
        workers.collect::<Vec<_>>()
    )
}

/// True if all running replicas hold the same registry and the same workers, and report the same digest.
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
                said(&pair[0]),
                said(&pair[1]),
                "seed {}: equal digests, other workers",
                cluster.seed()
            );
            assert_eq!(
                pair[0].workers_digest(),
                pair[1].workers_digest(),
                "seed {}: equal workers, other digest",
                cluster.seed()
            );
        }
        is_same
    })
}

/// The workers without the progress of their warm-ups, which each replica judges by its own clock.
fn said(view: &View) -> Vec<(WorkerId, WorkerSpec)> {
    let active = |worker: &Worker| {
        let mut raw = worker.spec.to_raw();
        if matches!(raw.state, State::Warming { .. }) {
            raw.state = State::Active;
        }
        let spec = WorkerSpec::new(raw).expect("it was checked before");
        (worker.id.clone(), spec)
    };
    view.workers().iter().map(active).collect()
}

/// The firewall of a replica never refuses messages of an honest one, whatever the network does to them.
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

/// Changes that the test made to the worker set, and so the workers that must be left.
#[derive(Default)]
pub(crate) struct Ledger {
    /// Must be there at the end.
    pub(crate) kept: BTreeSet<WorkerId>,
    /// Must not be there at the end, nor ever again.
    pub(crate) gone: BTreeSet<WorkerId>,
    /// Not confirmed by any peer: lost if its replica died.
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
