//! The one place where a gossip view becomes a fleet that placement can choose from.
//!
//! A fleet is an immutable snapshot behind one atomic load: pools (one ring per model), their workers, the
//! digest. It changes only with the registry; load and health live in the workers and are read per request.
//! A request never waits for gossip: without peers it is served by the last fleet.

pub mod agreement;
mod cache_view;
mod fleet;
mod hearing;
mod liveness;
mod load_at;
pub mod metrics;
mod pairing;
mod peer_state;
mod place;
mod pool;
#[cfg(test)]
mod pool_tests;
mod prospective_ring;
pub mod quarantine;
mod rates;
mod registrations;
mod replica_ports;
mod served;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use grapevine_gossip::Agent;
use grapevine_gossip::evidence::Evidence;
use grapevine_gossip::load::LoadBoard;
use grapevine_gossip::peer_state::Pace;
use grapevine_gossip::view::View as Registered;
use grapevine_gossip::worker::WorkerId;
use grapevine_placement::ClusterSettings;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::agreement::Samples;
pub use self::cache_view::{CacheView, RecordedPlacement};
pub use self::fleet::Fleet;
use self::fleet::assemble;
#[cfg(test)]
pub(crate) use self::fleet::pool_for_tests;
pub use self::hearing::Hearing;
pub use self::liveness::{Absent, Liveness};
use self::metrics::ClusterMetrics;
pub use self::pairing::{Mate, Pairing, Pairs};
pub use self::peer_state::{OwnUse, PeerStateTask, Sightings};
pub use self::place::Placed;
pub use self::pool::{Halves, Pool, PoolMember, shortest_pause};
use self::rates::Rates;
pub use self::replica_ports::{refuse_own_metrics, refuse_replica};
pub use self::served::ServedModels;
use crate::config::{BreakerConfig, HealthConfig};
use crate::kv_events::Caches;
use crate::live::Live;
use crate::upstream::{Connector, UpstreamMetrics};

/// What new workers start with.
#[derive(Debug, Clone)]
pub struct WorkerDefaults {
    /// Longest rest of a connection.
    pub idle_max: Live<Duration>,
    /// Circuit breaker.
    pub breaker: Live<BreakerConfig>,
    /// Health checks.
    pub health: Live<HealthConfig>,
    /// How workers are reached.
    pub connector: Arc<Connector>,
    /// Where is counted what a worker that leaves is to be forgotten in.
    pub metrics: UpstreamMetrics,
    /// Most workers with series of their own.
    pub worker_series: usize,
    /// How the KV of workers travels that do not name their connector.
    pub kv_connector: grapevine_transfer::Connector,
    /// Which of them may be a pair.
    pub pairing: Pairing,
}

/// The current fleet, and placement on it.
#[derive(Debug)]
pub struct Cluster {
    fleet: ArcSwap<Fleet>,
    settings: ClusterSettings,
    defaults: WorkerDefaults,
    board: Arc<LoadBoard>,
    agent: Arc<Agent>,
    metrics: ClusterMetrics,
    cache_view: CacheView,
    rates: Rates,
    samples: Arc<Samples>,
    /// The view of which the fleet was made.
    followed: watch::Sender<Option<Arc<Registered>>>,
    liveness: Liveness,
}

impl Cluster {
    /// A cluster without workers.
    pub fn new(
        settings: ClusterSettings,
        defaults: WorkerDefaults,
        agent: &Arc<Agent>,
        samples: Arc<Samples>,
        metrics: ClusterMetrics,
        caches: Arc<Caches>,
    ) -> Self {
        let fleet = assemble(&settings, &defaults.pairing, BTreeMap::new(), None);
        Self {
            fleet: ArcSwap::from_pointee(fleet),
            cache_view: CacheView::new(&settings, Arc::clone(agent), caches, metrics.clone()),
            settings,
            defaults,
            rates: Rates::default(),
            board: Arc::clone(agent.load()),
            agent: Arc::clone(agent),
            metrics,
            samples,
            followed: watch::Sender::new(None),
            liveness: Liveness::new(agent.replica().clone()),
        }
    }

    /// What all replicas must agree on.
    pub fn settings(&self) -> &ClusterSettings {
        &self.settings
    }

    /// Since when replicas are as they are seen.
    pub fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// Comparisons with peers.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// What is known of caches and heat.
    pub fn cache_view(&self) -> &CacheView {
        &self.cache_view
    }

    /// All that is known of caches, for a replica that starts.
    pub fn evidence(&self) -> Vec<Evidence> {
        let workers: Vec<WorkerId> = self.fleet().workers().map(|w| w.id.clone()).collect();
        self.cache_view.evidence(&workers)
    }

    /// What has to be done about once a second: heat is reported, memory returned.
    pub fn tick(&self) {
        let fleet = self.fleet.load_full();
        for pool in [&*fleet.whole(), fleet.prefill_only()] {
            for (index, member) in pool.members.iter().enumerate() {
                let tokens = member.worker.cache_tokens.load(Ordering::Relaxed);
                let since = member.worker.cache_tokens_since.load(Ordering::Relaxed);
                // Not that of a former process.
                if tokens > 0 && (since == 0 || since >= member.epoch) {
                    self.cache_view.set_capacity(pool.slots.of(index), tokens);
                }
            }
        }
        self.cache_view.tick();
        self.learn_rates();
    }

    /// Takes the rates that the others report of workers' answers, and this replica's own; returns these, to be sent.
    pub fn learn_rates(&self) -> Vec<Pace> {
        let states = self.cache_view.peer_states();
        self.rates.learn(&self.fleet(), &states, Instant::now())
    }

    /// The fleet now. Not to be held across an await.
    pub fn fleet(&self) -> Guard<Arc<Fleet>> {
        self.fleet.load()
    }

    /// Workers that asked to be left alone for longer than `max` from now are asked again then.
    pub fn shorten_pauses(&self, max: Duration) {
        let by = Instant::now() + max;
        for worker in self.fleet().workers() {
            worker.glance.paused_until.end_by(by);
        }
    }

    /// The fleet is that of this view.
    pub fn has_followed(&self, view: &Arc<Registered>) {
        self.liveness.follow(view);
        self.followed.send_replace(Some(Arc::clone(view)));
    }

    /// Waits until the fleet has the workers of a view, or of a later one; at most so long.
    pub async fn catches_up(&self, latest: impl Fn() -> Arc<Registered>, within: Duration) {
        let has_all = |followed: &Option<Arc<Registered>>| {
            let latest = latest();
            followed.as_ref().is_some_and(|followed| {
                Arc::ptr_eq(followed, &latest) || followed.workers() == latest.workers()
            })
        };
        // What there is, is shown all the same.
        let _ = timeout(within, self.followed.subscribe().wait_for(has_all)).await;
    }
}
