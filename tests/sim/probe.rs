//! Measurements for the rows of the fault table: changes of liveness and of the worker set, false deaths,
//! bytes and messages a second.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::invariants::agree;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Several times the usual time to join, to heal or to notice a death.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// How often views are compared; chitchat looks every 200 ms.
const GLANCE: Duration = Duration::from_millis(50);

/// `size` replicas that know each other.
pub(crate) fn joined(size: usize, seed: u64) -> Cluster {
    let mut cluster = Cluster::start(size, seed, &["r0", "r1"]);
    cluster.until_joined(LIMIT);
    cluster
}

/// Counts what changes in the views of running replicas.
#[derive(Default)]
pub(crate) struct Watch {
    alive: BTreeMap<(usize, String), bool>,
    digests: BTreeMap<usize, u32>,
    /// Changes of liveness, by observer and peer.
    pub(crate) liveness: BTreeMap<(usize, String), usize>,
    /// Changes of the worker set, from which rings are made.
    pub(crate) rings: usize,
}

impl Watch {
    /// Starts from the current views.
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let mut watch = Self::default();
        watch.glance(cluster);
        watch
    }

    /// Lets time pass and counts.
    pub(crate) fn run(&mut self, cluster: &mut Cluster, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(GLANCE);
            cluster.run(step);
            left -= step;
            self.glance(cluster);
        }
    }

    fn glance(&mut self, cluster: &Cluster) {
        for at in cluster.running() {
            let view = cluster.view(at);
            let before = self.digests.insert(at, view.workers_digest());
            self.rings += usize::from(before.is_some_and(|before| before != view.workers_digest()));
            for peer in view.replicas() {
                let key = (at, peer.id.to_string());
                let before = self.alive.insert(key.clone(), peer.live);
                if before.is_some_and(|before| before != peer.live) {
                    *self.liveness.entry(key).or_default() += 1;
                }
            }
        }
    }

    /// All changes of liveness together.
    pub(crate) fn liveness_changes(&self) -> usize {
        self.liveness.values().sum()
    }

    /// Greatest number of changes of one peer's liveness at one replica.
    pub(crate) fn liveness_most(&self) -> usize {
        self.liveness.values().copied().max().unwrap_or(0)
    }
}

/// All running replicas see all running ones as alive, and hold the same registry.
pub(crate) fn whole(cluster: &Cluster) -> bool {
    let running = cluster.running();
    running
        .iter()
        .all(|&at| cluster.is_ready(at) && cluster.live(at) == running.len())
        && agree(cluster)
}

/// Adds a worker through one replica and waits until every running one has it; returns the time from the call
/// on, the first peer's confirmation included.
pub(crate) fn spread(cluster: &mut Cluster, from: usize, number: u16) -> Duration {
    let begun = cluster.elapsed();
    let (id, _) = cluster.add_worker(from, number);
    cluster.until("change everywhere", LIMIT, |cluster| {
        cluster
            .running()
            .iter()
            .all(|&at| cluster.view(at).worker(&id).is_some())
    });
    cluster.elapsed() - begun
}

/// Kills a replica and waits until every other one sees it as dead.
pub(crate) fn death_seen(cluster: &mut Cluster, victim: usize) -> Duration {
    cluster.kill(victim);
    let name = format!("r{victim}");
    cluster.until("death seen by all", LIMIT, |cluster| {
        cluster.running().iter().all(|&at| {
            let view = cluster.view(at);
            let mut replicas = view.replicas().iter();
            replicas.all(|seen| seen.id.as_str() != name || !seen.live)
        })
    })
}

/// Sum of a counter of `at` over all series that begin with this text.
pub(crate) fn count(cluster: &Cluster, at: usize, beginning: &str) -> u64 {
    let lines = cluster.counted(at, beginning);
    lines
        .iter()
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// The value at this share of the sorted ones; the greatest for 1.
pub(crate) fn quantile(values: &[Duration], share: f64) -> Duration {
    let mut sorted = values.to_vec();
    sorted.sort();
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last as f64 * share).ceil() as usize)
        .copied()
        .unwrap_or_default()
}

/// A number from the environment, for longer runs than the default.
pub(crate) fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}
