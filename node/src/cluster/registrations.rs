//! How the fleet follows the registry: which workers stay, come and leave with a new view of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use grapevine_gossip::registry::Worker as RegisteredWorker;
use grapevine_gossip::view::View as Registered;
use grapevine_gossip::worker::{Role, State, WorkerId};
use grapevine_transfer::{Half, label};

use super::fleet::{Registration, assemble};
use super::{Cluster, Mate};
use crate::upstream::address::Address;
use crate::upstream::health::Health;
use crate::upstream::worker::sleep_in;
use crate::upstream::{About, Worker};

impl Cluster {
    /// Takes over a new view of the registry. Called by one task.
    pub fn update(&self, view: &Registered) {
        let old = self.fleet.load_full();
        let old_workers = old.workers().map(|worker| (worker.id.as_str(), worker));
        let old_workers: BTreeMap<&str, &Arc<Worker>> = old_workers.collect();
        // A worker that leaves makes room for one that comes with the same view.
        let stays = |worker: &&Arc<Worker>| view.worker(&worker.id).is_some_and(has_known_role);
        let staying = old.workers().filter(stays);
        let mut with_series = staying.filter(|worker| worker.has_series()).count();
        let mut registrations: BTreeMap<&str, Registration> = BTreeMap::new();
        for registered in view
            .workers()
            .iter()
            .filter(|worker| has_known_role(worker))
        {
            let id = registered.id.as_str();
            let before = old_workers.get(id).copied();
            let worker = self.worker_of(registered, before, &mut with_series);
            if let Some(worker) = worker {
                registrations.insert(id, self.registration(registered, worker));
            }
        }
        for worker in old.workers() {
            self.retire_unless_in(&registrations, worker);
        }
        let fleet = assemble(
            &self.settings,
            &self.defaults.pairing,
            registrations,
            Some(&old),
        );
        self.rates.give(&fleet, &self.cache_view.peer_states());
        self.metrics.fleets.inc();
        self.metrics.workers.set(fleet.workers().count() as i64);
        self.metrics.ring_digest.set(i64::from(fleet.digest().0));
        self.fleet.store(Arc::new(fleet));
    }

    /// The worker of an entry of the registry: the one from `before` if it is still at the same address, else a new
    /// one. None for an address that cannot be used. `with_series` counts the workers that have series of their own.
    fn worker_of(
        &self,
        registered: &RegisteredWorker,
        before: Option<&Arc<Worker>>,
        with_series: &mut usize,
    ) -> Option<Arc<Worker>> {
        let spec = &registered.spec;
        if let Some(known) = before.filter(|worker| worker.address.url == *spec.url()) {
            // From one known start to a later one: the first that is reported is no restart.
            let epoch = known.epoch.load(Ordering::Relaxed);
            if epoch > 0 && spec.epoch() > epoch {
                known.restarted();
            }
            return Some(Arc::clone(known));
        }
        match Address::of(spec) {
            Ok(address) => {
                // Most likely another process, whether or not it says when it began.
                if let Some(former) = before {
                    let epoch = former.epoch.load(Ordering::Relaxed);
                    self.cache_view.replaced(&registered.id, epoch);
                }
                // One that moved keeps its series.
                let has_series = before
                    .map_or(*with_series < self.defaults.worker_series, |worker| {
                        worker.has_series()
                    });
                *with_series += usize::from(has_series && before.is_none());
                let id = registered.id.clone();
                Some(Arc::new(self.new_worker(id, address, has_series)))
            }
            Err(error) => {
                tracing::warn!(worker = registered.id.as_str(), %error, "worker cannot be used and is left out");
                None
            }
        }
    }

    /// A worker as pools need it. The worker takes over what the registry holds of it.
    fn registration(&self, registered: &RegisteredWorker, worker: Arc<Worker>) -> Registration {
        let spec = &registered.spec;
        if worker.models.load().as_slice() != spec.models() {
            worker.models.store(Arc::new(spec.models().to_vec()));
        }
        worker.epoch.store(spec.epoch(), Ordering::Relaxed);
        let about = About {
            role: spec.role(),
            labels: Arc::clone(&registered.labels),
            ranks: ranks_of(registered),
            models_are_learned: registered.models_are_learned,
        };
        if **worker.about.load() != about {
            worker.about.store(Arc::new(about));
        }
        Registration {
            worker,
            weight: spec.weight_milli(),
            role: spec.role(),
            models: spec.models().to_vec(),
            draining: spec.state() == State::Draining,
            asleep: sleep_in(&registered.labels).is_some(),
            warming: matches!(spec.state(), State::Warming { .. }),
            max_in_flight: spec.max_in_flight(),
            epoch: spec.epoch(),
            mate: Mate {
                half: self.half_of(registered),
                zone: spec.zone().map(Arc::from),
            },
            slot: self.cache_view.slot(&registered.id, spec.epoch()),
        }
    }

    /// How the KV travels of a worker that takes one half of a request; none for one whose labels cannot be read.
    fn half_of(&self, registered: &RegisteredWorker) -> Option<Arc<Half>> {
        let (spec, labels) = (&registered.spec, &registered.labels);
        if spec.role() == Role::Any {
            return None;
        }
        let (url, connector) = (spec.url(), self.defaults.kv_connector);
        let ranks = ranks_of(registered).map(|ranks| ranks.to_string());
        let label = |name: &str| match name {
            label::DP_SIZE => labels.get(name).or(ranks.as_deref()),
            _ => labels.get(name),
        };
        match Half::read(url.host(), url.port(), url.rank(), connector, label) {
            Ok(half) => Some(Arc::new(half)),
            Err(error) => {
                let worker = registered.id.as_str();
                tracing::warn!(worker, %error, "the worker is in no pair of prefill and decode");
                None
            }
        }
    }

    /// Ends the use of a worker that is no longer registered, or was replaced by one at another address.
    fn retire_unless_in(&self, now: &BTreeMap<&str, Registration>, worker: &Arc<Worker>) {
        let stays = now.get(worker.id.as_str());
        if stays.is_none_or(|now| !Arc::ptr_eq(&now.worker, worker)) {
            worker.retire();
        }
        if stays.is_none() {
            if worker.has_series() {
                self.defaults.metrics.leave(worker);
            }
            self.cache_view.forget(&worker.id);
        }
    }

    fn new_worker(&self, id: WorkerId, address: Address, has_series: bool) -> Worker {
        let load = self.board.cell(&id);
        let label = id.as_str().into();
        let (breaker, health) = (self.defaults.breaker.clone(), self.defaults.health.clone());
        let health = Health::new(label, breaker, health);
        let connector = Arc::clone(&self.defaults.connector);
        let idle_max = self.defaults.idle_max.clone();
        Worker::new(id, address, connector, load, idle_max, health, has_series)
    }
}

/// Data-parallel ranks of a worker's engine. What it reports is its label; until then, and for engines that report
/// nothing, its description counts.
pub(super) fn ranks_of(registered: &RegisteredWorker) -> Option<u32> {
    let reported = registered.labels.get(label::DP_SIZE);
    let reported = reported.and_then(|ranks| ranks.parse().ok());
    reported.or(registered.spec.dp_size())
}

/// Whether this release knows what a worker is there for.
fn has_known_role(registered: &RegisteredWorker) -> bool {
    !matches!(registered.spec.role(), Role::Later(_))
}
