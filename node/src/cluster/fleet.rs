//! Fleet: which workers there are, by model, with their rings. Immutable; a change makes a new one.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};

use grapevine_placement::{
    ClusterSettings, Digest, Member, PolicySettings, Ring, RingSettings, Slot as Shelf, Weight,
    total_digest,
};

use crate::api::cards::Merged;
use crate::upstream::Worker;

/// A worker's place in a pool.
#[derive(Debug)]
pub struct Slot {
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
    pub(super) slots: Vec<Slot>,
    /// Where knowledge keeps each worker, in the same order.
    pub(super) shelves: Vec<Shelf>,
    /// What its workers say of the model, once somebody has asked.
    said: Mutex<Option<Arc<Merged>>>,
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
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// What the workers say of the model, together.
    fn said(&self) -> Arc<Merged> {
        // Made under the lock: what was read before a word of a worker is not to be kept after it.
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let merged = said.get_or_insert_with(|| {
            let slots = self.slots.iter();
            let cards: Vec<_> = slots.map(|slot| slot.worker.cards.load_full()).collect();
            let of_model = cards.iter().flat_map(|cards| cards.iter());
            Arc::new(Merged::of(
                of_model.filter(|card| card.id() == &*self.model),
            ))
        });
        Arc::clone(merged)
    }

    /// A worker says something else than before.
    fn forget_said(&self) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether so many of its workers are unhealthy, by this replica's opinion, that health is not believed.
    pub fn panics(&self) -> bool {
        let is_unhealthy = |slot: &&Slot| !slot.worker.health.look().is_usable;
        let unhealthy = self.slots.iter().filter(is_unhealthy).count();
        self.policy.panics(unhealthy, self.slots.len())
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
    joining: Vec<Slot>,
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

    /// What the workers of a model say of it; merged once, until [`Fleet::hears`] of something else.
    pub fn said_of(&self, model: &str) -> Arc<Merged> {
        self.pool(model).map_or_else(Arc::default, |p| p.said())
    }

    /// This worker has other cards than before.
    pub fn hears(&self, worker: &Worker) {
        for model in worker.models.load().iter() {
            if let Some(pool) = self.pool(model) {
                pool.forget_said();
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
        let slots = self.whole.slots.iter().chain(&self.joining);
        slots.map(|slot| &slot.worker)
    }

    /// Workers that are being warmed up: known and probed, but in no ring.
    pub fn joining(&self) -> &[Slot] {
        &self.joining
    }

    /// The pools of the joining workers' models as they will be when all of these have joined.
    pub fn prospective(&self) -> &[Arc<Pool>] {
        &self.prospective
    }

    /// No workers that take requests.
    pub fn is_empty(&self) -> bool {
        self.whole.slots.is_empty()
    }

    /// Workers whose models nobody has learned yet; they are in no model's pool.
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
                tracing::warn!(%error, virtual_nodes = settings.virtual_nodes, "ring made coarser");
            }
        }
    }
}

/// A worker on its way into pools.
pub(super) struct Entry {
    pub(super) worker: Arc<Worker>,
    pub(super) weight: u32,
    pub(super) models: Vec<String>,
    pub(super) draining: bool,
    /// It is not to be in a ring yet.
    pub(super) warming: bool,
    pub(super) max_in_flight: Option<u32>,
    pub(super) epoch: u64,
    pub(super) shelf: Shelf,
}

impl Entry {
    fn slot(&self) -> Slot {
        Slot {
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
    entries: BTreeMap<&str, Entry>,
    former: Option<&Fleet>,
) -> Fleet {
    let mut by_model: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for entry in entries.values() {
        for model in &entry.models {
            by_model.entry(model).or_default().push(entry);
        }
    }
    let takes_requests = |entry: &&Entry| !entry.warming;
    let now = || entries.values().filter(takes_requests);
    let before = former.map(|fleet| &fleet.whole.ring);
    let whole = Arc::new(pool_of(settings, "", now(), before.as_slice()));
    let (mut pools, mut prospective) = (Vec::new(), Vec::new());
    for (model, members) in by_model {
        let now: Vec<&Entry> = members.iter().copied().filter(takes_requests).collect();
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
    let urls: Vec<String> = now().map(|entry| entry.worker.address.url("")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    Fleet {
        digest: total_digest(&digests, &urls, &settings.canonical_bytes()),
        pools,
        whole,
        models_unknown: now().filter(|entry| entry.models.is_empty()).count(),
        joining: entries
            .values()
            .filter(|entry| entry.warming)
            .map(Entry::slot)
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
    entries: impl Iterator<Item = &'a Entry> + Clone,
    known: &[&Arc<Ring>],
) -> Pool {
    let members = entries.clone().map(|entry| Member {
        id: entry.worker.id.as_str().to_owned(),
        weight: Weight::from_thousandths(entry.weight).expect("the registry holds checked weights"),
    });
    let ring = ring_of(settings.ring, members, known);
    let shelves = entries.clone().map(|entry| entry.shelf).collect();
    let slots = entries.map(Entry::slot).collect();
    Pool {
        model: model.into(),
        policy: settings.policy_of(model),
        ring,
        slots,
        shelves,
        said: Mutex::default(),
    }
}

/// A pool of workers that nobody can reach, for tests of what is said about pools.
#[cfg(test)]
pub(crate) fn pool_for_tests(settings: &ClusterSettings, ids: &[&str]) -> Pool {
    use grapevine_gossip::worker::{RawWorker, WorkerSpec};

    let mut sketch = grapevine_placement::Sketch::new(Default::default());
    let board = grapevine_gossip::load::LoadBoard::default();
    let reach = crate::upstream::Reach::load(Default::default());
    let reach = Arc::new(reach.expect("nothing is read"));
    let entries: Vec<Entry> = ids
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
            let address = crate::upstream::worker::Address::of(&spec).expect("an address");
            let load = board.cell(&id);
            let shelf = sketch.slot(id.as_str(), 0);
            let idle_max = std::time::Duration::from_secs(1);
            Entry {
                worker: Arc::new(Worker::new(
                    id,
                    address,
                    Arc::clone(&reach),
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
                shelf,
            }
        })
        .collect();
    pool_of(settings, "m", entries.iter(), &[])
}
