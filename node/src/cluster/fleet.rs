//! Fleet: which workers there are, by model, with their rings. Immutable; a change makes a new one.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};

use grapevine_placement::{
    ClusterSettings, Digest, Member, PolicySettings, Ring, RingSettings, Slot, Weight, total_digest,
};

use crate::api::cards::Merged;
use crate::upstream::Worker;

/// A worker in a pool.
#[derive(Debug)]
pub struct PoolMember {
    /// The worker.
    pub worker: Arc<Worker>,
    /// It leaves: no new prefixes.
    pub draining: bool,
    /// Most requests in flight, over the whole cluster.
    pub(super) max_in_flight: Option<u32>,
    /// Restart counter.
    pub(super) epoch: u64,
}

/// The workers of one model and their ring.
#[derive(Debug)]
pub struct Pool {
    model: Arc<str>,
    pub(super) policy: PolicySettings,
    pub(super) ring: Arc<Ring>,
    /// In the order of the ring's members.
    pub(super) members: Vec<PoolMember>,
    /// Row of each worker in the prefix index, in the same order.
    pub(super) slots: Vec<Slot>,
    /// What its workers report about the model, once a client has asked.
    card: Mutex<Option<Arc<Merged>>>,
}

impl Pool {
    /// The model's name; empty for the pool of all workers.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The model's name as a metric label.
    pub fn label(&self) -> Arc<str> {
        Arc::clone(&self.model)
    }

    /// Digest of the ring.
    pub fn digest(&self) -> Digest {
        self.ring.digest()
    }

    /// How this model's workers are chosen.
    pub fn policy(&self) -> &PolicySettings {
        &self.policy
    }

    /// The workers, sorted by id.
    pub fn members(&self) -> &[PoolMember] {
        &self.members
    }

    /// What the workers report about the model, together.
    fn card(&self) -> Arc<Merged> {
        // Made under the lock: what was read before a worker's report is not to be kept after it.
        let mut card = self.card.lock().unwrap_or_else(PoisonError::into_inner);
        let merged = card.get_or_insert_with(|| {
            let members = self.members.iter();
            let cards: Vec<_> = members
                .map(|member| member.worker.cards.load_full())
                .collect();
            let of_model = cards.iter().flat_map(|cards| cards.iter());
            Arc::new(Merged::of(
                of_model.filter(|card| card.id() == &*self.model),
            ))
        });
        Arc::clone(merged)
    }

    /// A worker reports something else than before.
    fn forget_card(&self) {
        *self.card.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether so many of its workers are unhealthy, by this replica's opinion, that health is not believed.
    pub fn panics(&self) -> bool {
        let is_unhealthy = |member: &&PoolMember| !member.worker.health.look().is_usable;
        let unhealthy = self.members.iter().filter(is_unhealthy).count();
        self.policy.panics(unhealthy, self.members.len())
    }
}

/// All pools at one moment.
#[derive(Debug)]
pub struct Fleet {
    /// Sorted by model.
    pools: Vec<Arc<Pool>>,
    whole: Arc<Pool>,
    digest: Digest,
    models_unknown: usize,
    /// Workers that join and take no requests yet, sorted by id; in no ring above.
    joining: Vec<PoolMember>,
    /// The pools that will be changed by them, as they will be; sorted by model.
    prospective: Vec<Arc<Pool>>,
}

impl Fleet {
    /// The pool of a model.
    pub fn pool(&self, model: &str) -> Option<Arc<Pool>> {
        let at = self.pools.binary_search_by(|pool| pool.model().cmp(model));
        at.ok().map(|index| Arc::clone(&self.pools[index]))
    }

    /// All pools, sorted by model.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// What the workers of a model report about it; merged once, until [`Fleet::cards_changed`].
    pub fn card_of(&self, model: &str) -> Arc<Merged> {
        self.pool(model).map_or_else(Arc::default, |p| p.card())
    }

    /// This worker has other cards than before.
    pub fn cards_changed(&self, worker: &Worker) {
        for model in worker.models.load().iter() {
            if let Some(pool) = self.pool(model) {
                pool.forget_card();
            }
        }
    }

    /// Every worker, for requests that name no model.
    pub fn whole(&self) -> Arc<Pool> {
        Arc::clone(&self.whole)
    }

    /// Names of all models, sorted.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().map(|pool| pool.model())
    }

    /// All workers: those that take requests, then those that join; each part sorted by id.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        let members = self.whole.members.iter().chain(&self.joining);
        members.map(|member| &member.worker)
    }

    /// Workers that are being warmed up: known and probed, but in no ring.
    pub fn joining(&self) -> &[PoolMember] {
        &self.joining
    }

    /// The pools of the joining workers' models as they will be when all of these have joined.
    pub fn prospective(&self) -> &[Arc<Pool>] {
        &self.prospective
    }

    /// No workers that take requests.
    pub fn is_empty(&self) -> bool {
        self.whole.members.is_empty()
    }

    /// Workers whose models are not known yet; they are in no model's pool.
    pub fn models_unknown(&self) -> usize {
        self.models_unknown
    }

    /// Equal on replicas that hold the same rings, worker addresses and cluster settings.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

/// The ring; with fewer virtual nodes when weights are so great that it would not fit, which every replica
/// finds out by itself and alike. One of `known` with the same members is taken as it is, and the first of them is
/// what a new one is made from: most members stay.
fn ring_of(
    mut settings: RingSettings,
    members: impl Iterator<Item = Member> + Clone,
    known: &[&Arc<Ring>],
) -> Arc<Ring> {
    let known = || known.iter().filter(|ring| *ring.settings() == settings);
    if let Some(same) = known().find(|ring| ring.members().iter().cloned().eq(members.clone())) {
        return Arc::clone(same);
    }
    if let Some(former) = known().next()
        && let Ok(ring) = former.rebuild(members.clone())
    {
        return Arc::new(ring);
    }
    loop {
        match Ring::build(&settings, members.clone()) {
            Ok(ring) => return Arc::new(ring),
            Err(error) => {
                let fewer = NonZeroU16::new(settings.virtual_nodes.get() / 2);
                settings.virtual_nodes = fewer.expect("ids are distinct, and one point each fits");
                tracing::warn!(%error, virtual_nodes = settings.virtual_nodes, "ring built with fewer virtual nodes");
            }
        }
    }
}

/// What the registry holds of a worker, on its way into pools.
pub(super) struct Registration {
    pub(super) worker: Arc<Worker>,
    pub(super) weight: u32,
    pub(super) models: Vec<String>,
    pub(super) draining: bool,
    /// It is not to be in a ring yet.
    pub(super) warming: bool,
    pub(super) max_in_flight: Option<u32>,
    pub(super) epoch: u64,
    pub(super) slot: Slot,
}

impl Registration {
    fn member(&self) -> PoolMember {
        PoolMember {
            worker: Arc::clone(&self.worker),
            draining: self.draining,
            max_in_flight: self.max_in_flight,
            epoch: self.epoch,
        }
    }
}

/// `former`: the fleet before, whose rings are used again where they can be.
pub(super) fn assemble(
    settings: &ClusterSettings,
    registrations: BTreeMap<&str, Registration>,
    former: Option<&Fleet>,
) -> Fleet {
    let mut by_model: BTreeMap<&str, Vec<&Registration>> = BTreeMap::new();
    for registration in registrations.values() {
        for model in &registration.models {
            by_model.entry(model).or_default().push(registration);
        }
    }
    let takes_requests = |registration: &&Registration| !registration.warming;
    let now = || registrations.values().filter(takes_requests);
    let before = former.map(|fleet| &fleet.whole.ring);
    let whole = Arc::new(pool_of(settings, "", now(), before.as_slice()));
    let (mut pools, mut prospective) = (Vec::new(), Vec::new());
    for (model, members) in by_model {
        let now: Vec<&Registration> = members.iter().copied().filter(takes_requests).collect();
        if now.len() < members.len() {
            let before = former.and_then(|fleet| prospective_of(fleet, model));
            let known: Vec<_> = before.iter().map(|pool| &pool.ring).collect();
            prospective.push(Arc::new(pool_of(
                settings,
                model,
                members.into_iter(),
                &known,
            )));
        }
        if !now.is_empty() {
            let before = former.and_then(|fleet| fleet.pool(model));
            // Most clusters serve one model, on all workers.
            let known = before.iter().map(|pool| &pool.ring).chain([&whole.ring]);
            let known: Vec<_> = known.collect();
            pools.push(Arc::new(pool_of(settings, model, now.into_iter(), &known)));
        }
    }
    let digests: Vec<_> = pools.iter().map(|p| (p.model(), p.digest())).collect();
    let urls: Vec<String> = now()
        .map(|registration| registration.worker.address.url(""))
        .collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    Fleet {
        digest: total_digest(&digests, &urls, &settings.canonical_bytes()),
        pools,
        whole,
        models_unknown: now()
            .filter(|registration| registration.models.is_empty())
            .count(),
        joining: registrations
            .values()
            .filter(|registration| registration.warming)
            .map(Registration::member)
            .collect(),
        prospective,
    }
}

fn prospective_of<'a>(fleet: &'a Fleet, model: &str) -> Option<&'a Arc<Pool>> {
    fleet.prospective.iter().find(|pool| pool.model() == model)
}

fn pool_of<'a>(
    settings: &ClusterSettings,
    model: &str,
    registrations: impl Iterator<Item = &'a Registration> + Clone,
    known: &[&Arc<Ring>],
) -> Pool {
    let members = registrations.clone().map(|registration| Member {
        id: registration.worker.id.as_str().to_owned(),
        weight: Weight::from_thousandths(registration.weight)
            .expect("the registry holds checked weights"),
    });
    let ring = ring_of(settings.ring, members, known);
    let slots = registrations
        .clone()
        .map(|registration| registration.slot)
        .collect();
    let in_pool = registrations.map(Registration::member).collect();
    Pool {
        model: model.into(),
        policy: settings.policy_of(model),
        ring,
        members: in_pool,
        slots,
        card: Mutex::default(),
    }
}

/// A pool of workers that nobody can reach, for tests of what is said about pools.
#[cfg(test)]
pub(crate) fn pool_for_tests(settings: &ClusterSettings, ids: &[&str]) -> Pool {
    use grapevine_gossip::worker::{RawWorker, WorkerSpec};

    let mut prefix_index = grapevine_placement::PrefixIndex::new(Default::default());
    let board = grapevine_gossip::load::LoadBoard::default();
    let connector = crate::upstream::Connector::load(Default::default());
    let connector = Arc::new(connector.expect("nothing is read"));
    let registrations: Vec<Registration> = ids
        .iter()
        .map(|id| {
            let spec = WorkerSpec::new(RawWorker::at(format!("http://{id}:8000")));
            let spec = spec.expect("a worker");
            let id: grapevine_gossip::worker::WorkerId = id.parse().expect("an id");
            let health = crate::upstream::health::Health::new(
                id.as_str().into(),
                &crate::config::BreakerConfig::default(),
                &crate::config::HealthConfig::default(),
            );
            let address = crate::upstream::address::Address::of(&spec).expect("an address");
            let load = board.cell(&id);
            let slot = prefix_index.slot(id.as_str(), 0);
            let idle_max = std::time::Duration::from_secs(1);
            Registration {
                worker: Arc::new(Worker::new(
                    id,
                    address,
                    Arc::clone(&connector),
                    load,
                    idle_max,
                    health,
                    true,
                )),
                weight: 1_000,
                models: Vec::new(),
                draining: false,
                warming: false,
                max_in_flight: None,
                epoch: 0,
                slot,
            }
        })
        .collect();
    pool_of(settings, "m", registrations.iter(), &[])
}
