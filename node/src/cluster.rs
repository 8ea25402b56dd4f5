//! The one place where a gossip view becomes a fleet that placement can choose from.
//!
//! A fleet is an immutable snapshot behind one atomic load: pools (one ring per model), their workers, the
//! digest. It changes only with the registry; load and health live in the workers and are read per request.
//! A request never waits for gossip: without peers it is served by the last fleet.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use grapevine_gossip::load::LoadBoard;
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{Role, State, WorkerId};
use grapevine_placement::load::own_scale;
use grapevine_placement::{
    Candidate, ClusterSettings, Decision, Digest, Explanation, Key, Load, Member, NoWorker, Policy,
    Ring, RingSettings, Standing, Weight, decide, explain, total_digest,
};
use rand::Rng;

use crate::config::{BreakerConfig, HealthConfig};
use crate::metrics::Metrics;
use crate::upstream::Worker;
use crate::upstream::health::Health;
use crate::upstream::worker::Address;

thread_local! {
    /// One per runtime thread, so that a decision allocates nothing.
    static CANDIDATES: RefCell<Vec<Candidate>> = const { RefCell::new(Vec::new()) };
}

/// A worker's place in a pool.
#[derive(Debug)]
pub struct Slot {
    /// The worker.
    pub worker: Arc<Worker>,
    /// It leaves: no new prefixes.
    pub draining: bool,
    /// Most requests in flight, over the whole cluster.
    max_in_flight: Option<u32>,
}

/// The workers of one model and their ring.
#[derive(Debug)]
pub struct Pool {
    model: Arc<str>,
    ring: Ring,
    /// In the order of the ring's members.
    slots: Vec<Slot>,
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

    /// The workers, sorted by id.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
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

    /// Every worker, for requests that name no model.
    pub fn whole(&self) -> Arc<Pool> {
        Arc::clone(&self.whole)
    }

    /// Names of all models, sorted.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().map(|pool| pool.model())
    }

    /// All workers, sorted by id.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.whole.slots.iter().map(|slot| &slot.worker)
    }

    /// No workers at all.
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

/// A choice, with the worker behind the index.
#[derive(Debug)]
pub struct Placed {
    /// The chosen worker.
    pub worker: Arc<Worker>,
    /// Why, and what is expected there.
    pub decision: Decision,
}

/// What new workers start with.
#[derive(Debug, Clone)]
pub struct WorkerDefaults {
    /// Longest rest of a connection.
    pub idle_max: Duration,
    /// Circuit breaker.
    pub breaker: BreakerConfig,
    /// Health checks.
    pub health: HealthConfig,
}

/// The current fleet, and placement on it.
#[derive(Debug)]
pub struct Cluster {
    fleet: ArcSwap<Fleet>,
    settings: ClusterSettings,
    defaults: WorkerDefaults,
    board: Arc<LoadBoard>,
    metrics: Arc<Metrics>,
    requests: AtomicU64,
}

impl Cluster {
    /// A cluster without workers.
    pub fn new(
        settings: ClusterSettings,
        defaults: WorkerDefaults,
        board: Arc<LoadBoard>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let fleet = assemble(&settings, BTreeMap::new(), 0);
        Self {
            fleet: ArcSwap::from_pointee(fleet),
            settings,
            defaults,
            board,
            metrics,
            requests: AtomicU64::new(0),
        }
    }

    /// What all replicas must agree on.
    pub fn settings(&self) -> &ClusterSettings {
        &self.settings
    }

    /// The fleet now. Not to be held across an await.
    pub fn fleet(&self) -> Guard<Arc<Fleet>> {
        self.fleet.load()
    }

    /// Takes over a new view of the registry. Called by one task.
    pub fn update(&self, view: &View) {
        let old = self.fleet.load_full();
        let mut slots: BTreeMap<&str, Entry> = BTreeMap::new();
        for registered in view.workers() {
            let spec = &registered.spec;
            if spec.role() != Role::Any {
                continue;
            }
            let address = match Address::of(spec) {
                Ok(address) => address,
                Err(error) => {
                    tracing::warn!(worker = registered.id.as_str(), %error, "worker left out");
                    continue;
                }
            };
            let known = old
                .workers()
                .find(|worker| worker.id == registered.id && worker.address == address);
            let worker = known.map_or_else(
                || Arc::new(self.new_worker(registered.id.clone(), address)),
                Arc::clone,
            );
            worker.models.store(Arc::new(spec.models().to_vec()));
            slots.insert(
                registered.id.as_str(),
                Entry {
                    worker,
                    weight: spec.weight_milli(),
                    models: spec.models().to_vec(),
                    draining: spec.state() == State::Draining,
                    max_in_flight: spec.max_in_flight(),
                },
            );
        }
        for worker in old.workers() {
            if !slots.contains_key(worker.id.as_str()) {
                worker.idle.clear();
                self.metrics.forget_worker(&worker.label);
            }
        }
        let models_unknown = slots.values().filter(|e| e.models.is_empty()).count();
        let fleet = assemble(&self.settings, slots, models_unknown);
        self.metrics.workers.set(fleet.whole.slots.len() as i64);
        self.metrics.ring_digest.set(i64::from(fleet.digest.0));
        self.fleet.store(Arc::new(fleet));
    }

    fn new_worker(&self, id: WorkerId, address: Address) -> Worker {
        let load = self.board.cell(&id);
        let health = Health::new(&self.defaults.breaker, &self.defaults.health);
        Worker::new(id, address, load, self.defaults.idle_max, health)
    }

    /// Chooses a worker for an attempt; `tried` are the indices of earlier ones.
    ///
    /// # Errors
    /// Nobody is left that may take it.
    pub fn place(&self, pool: &Pool, key: &Key, tried: &[usize]) -> Result<Placed, NoWorker> {
        let draw = match self.settings.policy.policy {
            Policy::RoundRobin | Policy::Sticky => self.requests.fetch_add(1, Ordering::Relaxed),
            Policy::Random | Policy::PowerOfTwo => rand::rng().random(),
            _ => 0,
        };
        let decision = CANDIDATES.with_borrow_mut(|candidates| {
            self.candidates(pool, candidates, true);
            decide(
                &self.settings.policy,
                &pool.ring,
                key,
                candidates,
                tried,
                draw,
            )
        })?;
        Ok(Placed {
            worker: Arc::clone(&pool.slots[decision.worker].worker),
            decision,
        })
    }

    /// Where a request would go, and why, without sending it. `with_load` false: as in a quiet cluster.
    pub fn explain(&self, pool: &Pool, key: &Key, with_load: bool) -> Explanation {
        let draw = match self.settings.policy.policy {
            Policy::Random | Policy::PowerOfTwo => rand::rng().random(),
            _ => self.requests.load(Ordering::Relaxed),
        };
        CANDIDATES.with_borrow_mut(|candidates| {
            self.candidates(pool, candidates, with_load);
            explain(
                &self.settings.policy,
                &pool.ring,
                key,
                candidates,
                &[],
                draw,
            )
        })
    }

    fn candidates(&self, pool: &Pool, candidates: &mut Vec<Candidate>, with_load: bool) {
        let scale = own_scale(self.board.live(), self.board.heard());
        candidates.clear();
        candidates.extend(pool.slots.iter().map(|slot| {
            let load = cluster_load(&slot.worker, scale);
            let standing = if slot.draining {
                Standing::Draining
            } else if !slot.worker.health.is_usable() {
                Standing::Unhealthy
            } else if slot
                .max_in_flight
                .is_some_and(|max| load.requests >= f64::from(max))
            {
                Standing::Full
            } else {
                Standing::Usable
            };
            if !with_load {
                return Candidate {
                    standing,
                    ..Candidate::default()
                };
            }
            Candidate {
                load,
                own_requests: slot.worker.load.own().requests.into(),
                standing,
            }
        }));
    }

    /// Cluster-wide load of a worker, as placement counts it.
    pub fn load_of(&self, worker: &Worker) -> Load {
        cluster_load(worker, own_scale(self.board.live(), self.board.heard()))
    }
}

fn cluster_load(worker: &Worker, own_scale: f64) -> Load {
    let own = worker.load.own();
    let others = worker.load.others();
    Load {
        requests: f64::from(own.requests) * own_scale + others.requests,
        prefill_tokens: own.prefill_tokens as f64 * own_scale + others.prefill_tokens,
        context_tokens: own.context_tokens as f64 * own_scale + others.context_tokens,
    }
}

/// The ring; with fewer virtual nodes when weights are so great that it would not fit, which every replica
/// finds out by itself and alike.
fn ring_of(mut settings: RingSettings, members: impl Iterator<Item = Member> + Clone) -> Ring {
    loop {
        match Ring::build(&settings, members.clone()) {
            Ok(ring) => return ring,
            Err(error) => {
                let fewer = NonZeroU16::new(settings.virtual_nodes.get() / 2);
                settings.virtual_nodes = fewer.expect("ids are distinct, and one point each fits");
                tracing::warn!(%error, virtual_nodes = settings.virtual_nodes, "ring made coarser");
            }
        }
    }
}

/// A worker on its way into pools.
struct Entry {
    worker: Arc<Worker>,
    weight: u32,
    models: Vec<String>,
    draining: bool,
    max_in_flight: Option<u32>,
}

fn assemble(
    settings: &ClusterSettings,
    entries: BTreeMap<&str, Entry>,
    models_unknown: usize,
) -> Fleet {
    let mut by_model: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for entry in entries.values() {
        for model in &entry.models {
            by_model.entry(model).or_default().push(entry);
        }
    }
    let pools: Vec<_> = by_model
        .into_iter()
        .map(|(model, members)| Arc::new(pool_of(settings, model, members.into_iter())))
        .collect();
    let whole = Arc::new(pool_of(settings, "", entries.values()));
    let digests: Vec<_> = pools.iter().map(|p| (p.model(), p.digest())).collect();
    let urls: Vec<String> = entries
        .values()
        .map(|entry| entry.worker.address.url(""))
        .collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    Fleet {
        digest: total_digest(&digests, &urls, &settings.canonical_bytes()),
        pools,
        whole,
        models_unknown,
    }
}

fn pool_of<'a>(
    settings: &ClusterSettings,
    model: &str,
    entries: impl Iterator<Item = &'a Entry> + Clone,
) -> Pool {
    let members = entries.clone().map(|entry| Member {
        id: entry.worker.id.as_str().to_owned(),
        weight: Weight::from_thousandths(entry.weight).expect("the registry holds checked weights"),
    });
    let ring = ring_of(settings.ring, members);
    let slots = entries
        .map(|entry| Slot {
            worker: Arc::clone(&entry.worker),
            draining: entry.draining,
            max_in_flight: entry.max_in_flight,
        })
        .collect();
    Pool {
        model: model.into(),
        ring,
        slots,
    }
}
