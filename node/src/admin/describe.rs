//! What `GET` shows: replicas, rings, workers.

use grapevine_gossip::view::ReplicaInfo;
use grapevine_gossip::worker::State;
use grapevine_placement::BreakerState;
use serde::Serialize;

use super::Admin;
use crate::cluster::{Fleet, Slot};

/// `GET /cluster`.
#[derive(Debug, Serialize)]
pub(super) struct ClusterView {
    replica: String,
    ready: bool,
    digest: String,
    settings: String,
    /// Live replicas with the same ring digest and settings as this one, itself included.
    agreeing: usize,
    live: usize,
    registry: RegistryView,
    replicas: Vec<ReplicaView>,
}

#[derive(Debug, Serialize)]
struct RegistryView {
    crc: String,
    count: u32,
    stamp: String,
}

#[derive(Debug, Serialize)]
struct ReplicaView {
    id: String,
    live: bool,
    ready: bool,
    generation: u64,
    gossip: String,
    data: String,
    admin: String,
    version: String,
    ring: String,
    settings: String,
    registry: String,
}

/// `GET /ring`.
#[derive(Debug, Serialize)]
pub(super) struct RingsView {
    digest: String,
    pools: Vec<PoolView>,
    workers: usize,
    registry: RegistryView,
}

#[derive(Debug, Serialize)]
struct PoolView {
    model: String,
    digest: String,
    workers: Vec<String>,
}

/// `GET /workers`.
#[derive(Debug, Serialize)]
pub(super) struct WorkersView {
    workers: Vec<WorkerView>,
}

/// One worker.
#[derive(Debug, Serialize)]
pub(super) struct WorkerView {
    id: String,
    url: String,
    models: Vec<String>,
    weight: f64,
    state: &'static str,
    max_in_flight: Option<u32>,
    zone: Option<String>,
    health: &'static str,
    breaker: &'static str,
    in_flight: f64,
    in_flight_here: u32,
    pending_prefill_tokens: f64,
    context_tokens: f64,
    idle_connections: usize,
}

pub(super) fn breaker_number(state: BreakerState) -> i64 {
    match state {
        BreakerState::Closed => 0,
        BreakerState::HalfOpen => 1,
        BreakerState::Open => 2,
    }
}

impl From<&ReplicaInfo> for ReplicaView {
    fn from(replica: &ReplicaInfo) -> Self {
        Self {
            id: replica.id.to_string(),
            live: replica.live,
            ready: replica.ready,
            generation: replica.generation,
            gossip: replica.gossip_addr.to_string(),
            data: replica.http.clone(),
            admin: replica.admin.clone(),
            version: replica.version.clone(),
            ring: replica.ring.clone(),
            settings: replica.settings.clone(),
            registry: replica.registry.clone(),
        }
    }
}

impl Admin {
    fn registry(&self) -> RegistryView {
        let digest = self.agent.view().registry();
        RegistryView {
            crc: format!("{:08x}", digest.crc),
            count: digest.count,
            stamp: format!("{:016x}", digest.stamp.bits()),
        }
    }

    pub(super) fn describe_cluster(&self) -> ClusterView {
        let view = self.agent.view();
        let digest = self.cluster.fleet().digest().to_string();
        let settings = self.cluster.settings().fingerprint().to_string();
        let live: Vec<_> = view.replicas().iter().filter(|r| r.live).collect();
        let agreeing = live
            .iter()
            .filter(|r| r.ring == digest && r.settings == settings)
            .count();
        ClusterView {
            replica: self.replica.clone(),
            ready: self.phase.is_ready(),
            digest,
            settings,
            agreeing,
            live: live.len(),
            registry: self.registry(),
            replicas: view.replicas().iter().map(ReplicaView::from).collect(),
        }
    }

    pub(super) fn describe_rings(&self) -> RingsView {
        let fleet = self.cluster.fleet();
        let pools = fleet.pools().iter().map(|pool| PoolView {
            model: pool.model().to_owned(),
            digest: pool.digest().to_string(),
            workers: pool
                .slots()
                .iter()
                .map(|slot| slot.worker.id.to_string())
                .collect(),
        });
        RingsView {
            digest: fleet.digest().to_string(),
            pools: pools.collect(),
            workers: fleet.workers().count(),
            registry: self.registry(),
        }
    }

    pub(super) fn describe_workers(&self) -> WorkersView {
        let fleet: &Fleet = &self.cluster.fleet();
        let whole = fleet.whole();
        let workers = whole
            .slots()
            .iter()
            .filter_map(|slot| self.describe_worker(slot));
        WorkersView {
            workers: workers.collect(),
        }
    }

    pub(super) fn describe_worker(&self, slot: &Slot) -> Option<WorkerView> {
        let view = self.agent.view();
        let worker = &slot.worker;
        let spec = &view.worker(&worker.id)?.spec;
        let load = self.cluster.load_of(worker);
        Some(WorkerView {
            id: worker.id.to_string(),
            url: spec.url().to_string(),
            models: spec.models().to_vec(),
            weight: f64::from(spec.weight_milli()) / 1000.0,
            state: match spec.state() {
                State::Active => "active",
                State::Warming { .. } => "warming",
                State::Draining => "draining",
            },
            max_in_flight: spec.max_in_flight(),
            zone: spec.zone().map(str::to_owned),
            health: worker.health.probes().as_str(),
            breaker: worker.health.breaker().as_str(),
            in_flight: load.requests,
            in_flight_here: worker.load.own().requests,
            pending_prefill_tokens: load.prefill_tokens,
            context_tokens: load.context_tokens,
            idle_connections: worker.idle.resting(),
        })
    }
}
