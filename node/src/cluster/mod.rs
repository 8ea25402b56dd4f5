//! The one place where a gossip view becomes a fleet that placement can choose from.
//!
//! A fleet is an immutable snapshot behind one atomic load: pools (one ring per model), their workers, the
//! digest. It changes only with the registry; load and health live in the workers and are read per request.
//! A request never waits for gossip: without peers it is served by the last fleet.

pub mod agreement;
mod cache_view;
mod data_port;
mod fleet;
mod hearing;
mod liveness;
mod load_at;
pub mod metrics;
mod pairing;
mod peer_state;
mod pool;
#[cfg(test)]
mod pool_tests;
mod prospective_ring;
pub mod quarantine;
mod rates;
mod served;
mod standing;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use grapevine_gossip::Agent;
use grapevine_gossip::evidence::Evidence;
use grapevine_gossip::load::LoadBoard;
use grapevine_gossip::peer_state::Pace;
use grapevine_gossip::registry::Worker as RegisteredWorker;
use grapevine_gossip::view::View as Registered;
use grapevine_gossip::worker::{Role, State, WorkerId};
use grapevine_placement::load::{Picture, Seen};
use grapevine_placement::{
    Candidate, ClusterSettings, Decision, Explanation, Key, NoWorker, Policy, Reason, Standing,
    View, decide, explain,
};
use grapevine_transfer::{Half, label};
use rand::Rng;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::agreement::Samples;
pub use self::cache_view::{CacheView, RecordedPlacement};
pub use self::data_port::refuse_replica;
pub use self::fleet::Fleet;
#[cfg(test)]
pub(crate) use self::fleet::pool_for_tests;
use self::fleet::{Registration, assemble};
pub use self::hearing::Hearing;
pub use self::liveness::{Absent, Liveness};
use self::load_at::LoadAt;
use self::metrics::ClusterMetrics;
pub use self::pairing::{Mate, Pairing, Pairs};
pub use self::peer_state::{OwnUse, PeerStateTask, Sightings};
pub use self::pool::{Halves, Pool, PoolMember, shortest_pause};
use self::rates::Rates;
pub use self::served::ServedModels;
use self::standing::{is_at_cap, standing, without_a_place};
use crate::config::{BreakerConfig, HealthConfig};
use crate::kv_events::Caches;
use crate::live::Live;
use crate::upstream::address::Address;
use crate::upstream::health::Health;
use crate::upstream::{About, Connector, UpstreamMetrics, Worker};

thread_local! {
    /// One per runtime thread, so that a decision allocates nothing.
    static CANDIDATES: RefCell<Vec<Candidate>> = const { RefCell::new(Vec::new()) };
}

/// A choice, with the worker behind the index.
#[derive(Debug)]
pub struct Placed {
    /// The chosen worker.
    pub worker: Arc<Worker>,
    /// Why, and what is expected there.
    pub decision: Decision,
    /// What was recorded of it, if the policy looks at contents.
    pub recorded: Option<RecordedPlacement>,
}

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
                if tokens > 0 {
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

    fn new_worker(&self, id: WorkerId, address: Address, has_series: bool) -> Worker {
        let load = self.board.cell(&id);
        let label = id.as_str().into();
        let (breaker, health) = (self.defaults.breaker.clone(), self.defaults.health.clone());
        let health = Health::new(label, breaker, health);
        let connector = Arc::clone(&self.defaults.connector);
        let idle_max = self.defaults.idle_max.clone();
        Worker::new(id, address, connector, load, idle_max, health, has_series)
    }

    /// Chooses a worker for an attempt; `tried` are the indices of earlier ones, `strangers` those of workers that the
    /// request is not for. The first attempt counts for heat, whoever else may not have it.
    ///
    /// # Errors
    /// No worker is left that may take it.
    pub fn place(
        &self,
        pool: &Arc<Pool>,
        key: &Key,
        tried: &[usize],
        strangers: &[usize],
    ) -> Result<Placed, NoWorker> {
        let asks = Asks {
            is_first: tried.is_empty() && pool.is_first(),
            takes_turn: takes_turns(pool, key),
        };
        match strangers {
            [] => self.place_seen(pool, key, tried, asks, |_| {}),
            _ => {
                let passed_over = [tried, strangers].concat();
                let placed = self.place_seen(pool, key, &passed_over, asks, |_| {});
                let is_asked = |index: &usize| !strangers.contains(index);
                placed.map_err(|why| match tried.is_empty() {
                    true => why_none_of(pool, (0..pool.members.len()).filter(is_asked), why),
                    false => why,
                })
            }
        }
    }

    /// The same but for all these; `see` may change what is seen of workers.
    fn place_seen(
        &self,
        pool: &Arc<Pool>,
        key: &Key,
        tried: &[usize],
        asks: Asks,
        see: impl FnOnce(&mut [Candidate]),
    ) -> Result<Placed, NoWorker> {
        let Asks {
            is_first,
            takes_turn,
        } = asks;
        let draw = match pool.policy.policy {
            Policy::Random | Policy::PowerOfTwo => rand::rng().random(),
            _ if takes_turn => pool.turns.take(),
            _ => 0,
        };
        let chosen = CANDIDATES.with_borrow_mut(|candidates| {
            self.candidates(pool, key, candidates, LoadAt::Now);
            see(candidates);
            let hot = self.cache_view.hot();
            let view = View {
                ring: &pool.ring,
                hot: &hot,
            };
            let decision = decide(&pool.policy, view, key, candidates, tried, draw)?;
            // A peer is asked about all workers.
            let is_of_all = tried.is_empty();
            let sample = is_of_all.then(|| self.sample(pool, view, key, candidates));
            Ok((decision, sample.flatten()))
        });
        let (decision, sample) = chosen.inspect_err(|_| {
            if takes_turn {
                pool.turns.give_back();
            }
        })?;
        if let Some(sample) = sample {
            self.samples.offer(sample);
        }
        Ok(Placed {
            worker: Arc::clone(&pool.members[decision.worker].worker),
            recorded: self.cache_view.record(pool, key, &decision, is_first),
            decision,
        })
    }

    /// What [`Cluster::place`] would choose now, without a trace of it.
    ///
    /// # Errors
    /// No worker is left that may take it.
    pub fn preview(&self, pool: &Pool, key: &Key, tried: &[usize]) -> Result<Decision, NoWorker> {
        CANDIDATES.with_borrow_mut(|candidates| {
            self.candidates(pool, key, candidates, LoadAt::Now);
            let hot = self.cache_view.hot();
            let view = View {
                ring: &pool.ring,
                hot: &hot,
            };
            let draw = pool.turns.next();
            decide(&pool.policy, view, key, candidates, tried, draw)
        })
    }

    /// As [`Cluster::place`], on the one worker that has what the request is about. `computes`: it takes a place of the
    /// engine; one that does not is answered by a worker that is full or drained, too.
    ///
    /// # Errors
    /// It is not there, was tried, or may not take it.
    pub fn place_at(
        &self,
        pool: &Arc<Pool>,
        key: &Key,
        worker: &WorkerId,
        tried: &[usize],
        computes: bool,
    ) -> Result<Placed, NoWorker> {
        let at = pool
            .members
            .iter()
            .position(|member| member.worker.id == *worker);
        let at = at
            .filter(|at| !tried.contains(at))
            .ok_or(NoWorker::Unhealthy)?;
        let others: Vec<usize> = (0..pool.members.len())
            .filter(|index| *index != at)
            .collect();
        // Nobody else could have it: it shares its prefix with no other worker, and takes no turn from requests that may
        // go anywhere.
        let placed = self.place_seen(pool, key, &others, Asks::default(), |candidates| {
            if !computes {
                candidates[at] = without_a_place(&pool.members[at]);
            }
        });
        let mut placed = placed.map_err(|why| why_none_of(pool, [at].into_iter(), why))?;
        placed.decision.reason = Reason::Sticky;
        Ok(placed)
    }

    /// Where a request would go, and why, without sending it. `with_load` false: as in a quiet cluster; `but`: workers,
    /// by index, that it is not for.
    pub fn explain(&self, pool: &Pool, key: &Key, with_load: bool, but: &[usize]) -> Explanation {
        let draw = match pool.policy.policy {
            Policy::Random | Policy::PowerOfTwo => rand::rng().random(),
            _ => pool.turns.next(),
        };
        CANDIDATES.with_borrow_mut(|candidates| {
            let load = if with_load {
                LoadAt::Now
            } else {
                LoadAt::Nothing
            };
            self.candidates(pool, key, candidates, load);
            let hot = self.cache_view.hot();
            let view = View {
                ring: &pool.ring,
                hot: &hot,
            };
            explain(&pool.policy, view, key, candidates, but, draw)
        })
    }

    fn candidates(
        &self,
        pool: &Pool,
        key: &Key,
        candidates: &mut Vec<Candidate>,
        load: LoadAt<'_>,
    ) {
        let now = Instant::now();
        self.agent.settle_load(now);
        let picture = self.picture(now);
        candidates.clear();
        candidates.extend(pool.members.iter().map(|member| {
            let seen = load.seen(picture, &member.worker, &member.load);
            let look = member.look();
            let at_cap = is_at_cap(member, seen.exact_requests);
            let standing = if member.draining {
                Standing::Draining
            } else {
                standing(&member.worker, look, at_cap)
            };
            if matches!(load, LoadAt::Nothing) {
                return Candidate {
                    standing,
                    ..Candidate::default()
                };
            }
            Candidate {
                load: seen.common + look.penalty,
                exact_requests: seen.exact_requests,
                surge_requests: seen.surge_requests,
                rate: member.glance.rate(),
                standing,
                at_cap,
                slow_start: look.slow_start,
                ..Candidate::default()
            }
        }));
        self.cache_view.fill(pool, key, candidates);
    }

    /// Whether a worker that was not tried would take a request now, by what is believed of its health.
    pub fn has_another(&self, pool: &Pool, tried: &[usize]) -> bool {
        let picture = self.picture(Instant::now());
        let mut members = pool.members.iter().enumerate();
        let another = members.any(|(index, member)| {
            !tried.contains(&index)
                && !member.draining
                && member.look().is_usable
                && !is_at_cap(
                    member,
                    LoadAt::Now
                        .seen(picture, &member.worker, &member.load)
                        .exact_requests,
                )
        });
        another && !pool.panics()
    }

    /// Cluster-wide load of a worker, as placement counts it: what all replicas know of, and exact requests.
    pub fn load_of(&self, worker: &Worker) -> Seen {
        LoadAt::Now.seen(self.picture(Instant::now()), worker, &worker.load)
    }

    /// How much of the cluster's load is known at this moment. A replica that was paused knows its own only, until it
    /// has summed up the others' again.
    fn picture(&self, now: Instant) -> Picture {
        let others_count = !self.board.is_stale(now.into_std());
        let heard = if others_count {
            self.board.reporting()
        } else {
            1
        };
        Picture::new(self.board.live(), heard)
    }
}

/// What a request does to those after it.
#[derive(Debug, Clone, Copy, Default)]
struct Asks {
    /// It counts for heat.
    is_first: bool,
    takes_turn: bool,
}

/// Why none of these workers may take a request that was sent to nobody yet: others, which it is not for, were not tried.
fn why_none_of(pool: &Pool, mut these: impl Iterator<Item = usize>, why: NoWorker) -> NoWorker {
    match why {
        NoWorker::Tried if these.all(|at| pool.members[at].draining) => NoWorker::Draining,
        NoWorker::Tried => NoWorker::Unhealthy,
        why => why,
    }
}

/// Whether a request takes its turn in a pool: one with a session goes where the session is.
fn takes_turns(pool: &Pool, key: &Key) -> bool {
    match pool.policy.policy {
        Policy::RoundRobin => true,
        Policy::Sticky => key.session().is_none(),
        _ => false,
    }
}

/// Data-parallel ranks of a worker's engine. What it reports is its label; until then, and for engines that report
/// nothing, its description counts.
fn ranks_of(registered: &RegisteredWorker) -> Option<u32> {
    let reported = registered.labels.get(label::DP_SIZE);
    let reported = reported.and_then(|ranks| ranks.parse().ok());
    reported.or(registered.spec.dp_size())
}

/// Whether this release knows what a worker is there for.
fn has_known_role(registered: &RegisteredWorker) -> bool {
    !matches!(registered.spec.role(), Role::Later(_))
}
