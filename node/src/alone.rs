//! A replica's cluster without a network, with workers that are only known: what decides and what is learned can be looked at
//! without a process. For tests, examples and fuzz targets; nothing of what is served uses it.

use std::sync::Arc;
use std::time::Duration;

use grapevine_gossip::Agent;
use grapevine_gossip::config::Facts;
use grapevine_gossip::worker::{RawWorker, WorkerId, WorkerSpec};
use grapevine_placement::ClusterSettings;

use crate::all_metrics::AllMetrics;
use crate::cluster::agreement::Samples;
use crate::cluster::{Cluster, Pairing, WorkerDefaults};
use crate::config::{BreakerConfig, HealthConfig, KvEventsConfig, TransferConfig};
use crate::kv_events::Caches;
use crate::upstream::{Connector, ConnectorParts};

/// What there is of such a replica. It lives as long as its agent.
pub struct Alone {
    /// With default settings, unless it was made [`of`](Alone::of) others.
    pub cluster: Cluster,
    /// A cluster of one; changes of workers count once [`Cluster::update`] is given its view.
    pub agent: Arc<Agent>,
    /// What workers report of their caches: nothing but what the caller puts there.
    pub caches: Arc<Caches>,
}

/// Worker number `number` of a model: nobody listens at its address.
///
/// # Panics
/// The model's name is none that a worker may have.
pub fn worker(number: usize, model: &str) -> (WorkerId, WorkerSpec) {
    worker_with(&format!("w{number}"), model, |_| {})
}

/// A worker of a model with this name, which is its host's, too; `describe` says what else there is to it.
///
/// # Panics
/// The name or the description is none that a worker may have.
pub fn worker_with(
    id: &str,
    model: &str,
    describe: impl FnOnce(&mut RawWorker),
) -> (WorkerId, WorkerSpec) {
    let mut raw = RawWorker {
        models: vec![model.to_owned()],
        ..RawWorker::at(format!("http://{id}:8000"))
    };
    describe(&mut raw);
    let id = id.parse().expect("a valid id");
    (id, WorkerSpec::new(raw).expect("a valid worker"))
}

impl Alone {
    /// A replica of this name that knows these workers. `series`: how many workers have metrics of their own.
    ///
    /// # Panics
    /// The name is no DNS label, or there are more workers than a registry holds.
    pub fn new(
        replica: &str,
        workers: impl IntoIterator<Item = (WorkerId, WorkerSpec)>,
        kv_events: &KvEventsConfig,
        series: usize,
    ) -> Self {
        let settings = ClusterSettings::default();
        Self::of(settings, replica, workers, kv_events, series)
    }

    /// The same with these settings.
    ///
    /// # Panics
    /// As [`Alone::new`].
    pub fn of(
        settings: ClusterSettings,
        replica: &str,
        workers: impl IntoIterator<Item = (WorkerId, WorkerSpec)>,
        kv_events: &KvEventsConfig,
        series: usize,
    ) -> Self {
        let mut metrics = AllMetrics::new();
        let gossip = grapevine_gossip::Metrics::register(metrics.registry_mut());
        let facts = Facts {
            version: "1".to_owned(),
            ..Facts::default()
        };
        let agent = Arc::new(Agent::solo("c", replica, &facts, gossip).expect("a valid name"));
        for (id, spec) in workers {
            agent.configure(id, spec).expect("there is room");
        }
        let connector = Connector::load(ConnectorParts::default()).expect("nothing is read");
        let defaults = WorkerDefaults {
            idle_max: Duration::from_secs(1).into(),
            breaker: BreakerConfig::default().into(),
            health: HealthConfig::default().into(),
            worker_series: series,
            kv_connector: TransferConfig::default().connector,
            pairing: Pairing::default(),
            metrics: metrics.of_upstream(),
            connector: Arc::new(connector),
        };
        let (samples, _) = Samples::new();
        let caches = Arc::new(Caches::new(kv_events, SEED, metrics.kv_events.clone()));
        let cluster = Cluster::new(
            settings,
            defaults,
            &agent,
            samples,
            metrics.cluster.clone(),
            Arc::clone(&caches),
        );
        cluster.update(&agent.view());
        Self {
            cluster,
            agent,
            caches,
        }
    }
}

/// Of the names of texts, which are secret where they are served.
const SEED: u64 = 0x5eed;
