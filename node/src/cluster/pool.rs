//! A pool: workers of one model that take the same part of a request, and their ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grapevine_gossip::load::LoadCell;
use grapevine_gossip::worker::{Role, WorkerId};
use grapevine_placement::{Digest, PolicySettings, Ring, Slots, Standing};
use grapevine_transfer::body::Form;
use grapevine_transfer::{Connector, Half};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::pairing::{Mate, Pairing, Pairs};
use crate::api::cards::Merged;
use crate::upstream::health::Look;
use crate::upstream::{AtomicInstant, Glance, Worker};

/// A worker in a pool.
#[derive(Debug)]
pub struct PoolMember {
    /// The worker.
    pub worker: Arc<Worker>,
    /// The worker's, where a decision over all workers finds them without the worker itself.
    pub(super) load: Arc<LoadCell>,
    pub(super) glance: Arc<Glance>,
    /// It leaves: no new prefixes.
    pub draining: bool,
    /// Its engine sleeps, as it says.
    pub asleep: bool,
    /// Most requests in flight, over the whole cluster.
    pub(super) max_in_flight: Option<u32>,
    /// Restart counter.
    pub(super) epoch: u64,
    /// With whom it can be a pair.
    pub(super) mate: Mate,
}

impl PoolMember {
    /// It takes no requests, and nothing is wrong with it: somebody wanted it so.
    pub fn is_out(&self) -> bool {
        self.draining || self.asleep
    }

    /// What of that placement is to see.
    pub(super) fn out_as(&self) -> Option<Standing> {
        match (self.draining, self.asleep) {
            (true, _) => Some(Standing::Draining),
            (false, true) => Some(Standing::Asleep),
            (false, false) => None,
        }
    }

    /// The worker's health.
    pub(super) fn look(&self) -> Look {
        if self.glance.is_clear() {
            return Look::CLEAR;
        }
        self.worker.health.look()
    }

    /// How its KV travels; of a worker that takes one half of a request, if its labels can be read.
    pub fn half(&self) -> Option<&Arc<Half>> {
        self.mate.half.as_ref()
    }
}

/// Whose turn it is where workers are taken one after the other. Each pool counts for itself: two that a request
/// looks in one after the other would else get every second turn each, and so the same workers always.
#[derive(Debug, Default)]
pub(super) struct Turns(AtomicU64);

impl Turns {
    /// The next turn, for the one that asks.
    pub(super) fn take(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Nobody was found: the next one that asks has this turn.
    pub(super) fn give_back(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The next turn, which stays the next one.
    pub(super) fn next(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The workers of one model that take the same part of a request, and their ring.
#[derive(Debug)]
pub struct Pool {
    pub(super) model: Arc<str>,
    /// Its name among all pools of the cluster.
    pub(super) name: Arc<str>,
    pub(super) role: Role,
    pub(super) halves: Option<Arc<Halves>>,
    /// Of workers that take whole requests: what requests find while none of them can be used, those that decode.
    pub(super) without_whole: Option<Arc<Pool>>,
    /// Some of its workers take one half of a request.
    pub(super) has_halves: bool,
    pub(super) policy: PolicySettings,
    pub(super) ring: Arc<Ring>,
    /// In the order of the ring's members.
    pub(super) members: Vec<PoolMember>,
    /// Row of each worker in the prefix index, in the same order.
    pub(super) slots: Slots,
    /// Shared with the pool before a change of the workers.
    pub(super) turns: Arc<Turns>,
    /// What its workers report about the model, once a client has asked.
    pub(super) card: Mutex<Option<Arc<Merged>>>,
    /// Until when a worker's error may be the fault of the request that it answers.
    pub(super) suspects_until: Arc<AtomicInstant>,
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

    /// Its name among all pools of the cluster: the model's, and for a half the role behind it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The part of a request that its workers are there for. The pool that requests for a model find has
    /// [`Role::Decode`] where no worker takes whole requests: those that decode can compute a prompt as well.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The pools of the two halves, where the model's requests can be divided. Of the pool that these find, and of no
    /// other.
    pub fn halves(&self) -> Option<&Arc<Halves>> {
        self.halves.as_ref()
    }

    /// The pools that requests of this one are placed in besides it: those of its halves, or the one of decode workers that
    /// stand in for whole ones.
    pub fn parts(&self) -> impl Iterator<Item = &Arc<Self>> {
        let has_none = self.halves.is_none();
        let alone = self.without_whole.iter().filter(move |_| has_none);
        let halves = self.halves.as_ref();
        let halves = halves.map(|halves| [&halves.prefill, &halves.decode]);
        halves.into_iter().flatten().chain(alone)
    }

    /// Whether requests are divided in SGLang's way: both halves get the client's own.
    pub fn divides_as_sglang(&self) -> bool {
        let decode = self.halves.as_ref().map_or(self, |halves| &halves.decode);
        let mut halves = decode.members.iter().filter_map(PoolMember::half);
        halves.any(|half| half.connector() == Connector::Sglang)
    }

    /// What a request finds here now: while no worker of whole requests can be used, the model is as if it had none.
    #[must_use]
    pub fn in_use(self: Arc<Self>) -> Arc<Self> {
        match &self.without_whole {
            Some(others) if !self.has_usable() && others.has_usable() => Arc::clone(others),
            _ => self,
        }
    }

    /// The pool of the two that a request may find here that has this worker.
    #[must_use]
    pub fn holding(self: Arc<Self>, worker: &WorkerId) -> Arc<Self> {
        let has = |pool: &Self| {
            pool.members
                .iter()
                .any(|member| member.worker.id == *worker)
        };
        match &self.without_whole {
            Some(others) if !has(&self) && has(others) => Arc::clone(others),
            _ => self,
        }
    }

    /// All workers that answer requests: those that take whole ones, and those that decode.
    pub fn answering(&self) -> impl Iterator<Item = &PoolMember> {
        let others = self.without_whole.iter().flat_map(|pool| &pool.members);
        self.members.iter().chain(others)
    }

    /// Whether a worker may get requests, by this replica's opinion.
    fn has_usable(&self) -> bool {
        let is_usable = |member: &PoolMember| !member.is_out() && member.look().is_usable;
        self.members.iter().any(is_usable)
    }

    /// No worker of the model takes one half of a request only.
    pub fn is_of_whole_workers(&self) -> bool {
        self.role == Role::Any && self.halves.is_none() && !self.has_halves
    }

    /// Whether its choice is the first that is made for a request: what is hot is counted once for each.
    pub(super) fn is_first(&self) -> bool {
        self.role != Role::Decode || self.name == self.model
    }

    /// Digest of the ring.
    pub fn digest(&self) -> Digest {
        self.ring.digest()
    }

    /// The part of all prefixes that each worker is the home of, in the order of the workers.
    pub fn shares(&self) -> Vec<f64> {
        self.ring.shares()
    }

    /// How this model's workers are chosen.
    pub fn policy(&self) -> &PolicySettings {
        &self.policy
    }

    /// The workers, sorted by id.
    pub fn members(&self) -> &[PoolMember] {
        &self.members
    }

    /// The place of a worker, if it is one of these.
    pub fn index_of(&self, worker: &Arc<Worker>) -> Option<usize> {
        let mut members = self.members.iter();
        members.position(|member| Arc::ptr_eq(&member.worker, worker))
    }

    /// The workers at these indices, by index in another pool; those that it has.
    pub fn indices_in(&self, other: &Self, indices: &[usize]) -> Vec<usize> {
        let at = |&index: &usize| other.index_of(&self.members[index].worker);
        indices.iter().filter_map(at).collect()
    }

    /// What the workers report about the model, together.
    pub(super) fn card(&self) -> Arc<Merged> {
        // Made under the lock: what was read before a worker's report is not to be kept after it.
        let mut card = self.card.lock();
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
    pub(super) fn forget_card(&self) {
        *self.card.lock() = None;
    }

    /// Several workers answered one request with an error: others like it may come until then.
    pub fn request_at_fault(&self, until: Instant) {
        self.suspects_until.extend(until);
    }

    /// Whether a worker's error may be the fault of the request that it answers.
    pub fn suspects_requests(&self, now: Instant) -> bool {
        self.suspects_until.get().is_some_and(|until| now < until)
    }

    /// Whether so many of its workers are unhealthy, by this replica's opinion, that health is not believed: as placement
    /// counts them, without those that drain or sleep.
    pub fn panics(&self) -> bool {
        let (mut staying, mut unhealthy) = (0, 0);
        for member in self.members.iter().filter(|member| !member.is_out()) {
            staying += 1;
            unhealthy += usize::from(!member.look().is_usable);
        }
        self.policy.panics(unhealthy, staying)
    }
}

/// The shortest time for which a usable one of these wants to be left alone; none as soon as one asks for nothing.
pub fn shortest_pause(members: &mut dyn Iterator<Item = &PoolMember>) -> Option<Duration> {
    members
        .filter(|member| !member.is_out() && member.look().is_usable)
        .map(|member| member.glance.pause().unwrap_or_default())
        .min()
        .filter(|pause| !pause.is_zero())
}

/// Workers that take one half of a request each: the pools of a model whose prompts are computed apart.
#[derive(Debug)]
pub struct Halves {
    /// Those that compute prompts.
    pub prefill: Arc<Pool>,
    /// Those that generate answers.
    pub decode: Arc<Pool>,
    /// Who may hand over to whom, by index in both.
    pub pairs: Pairs,
}

impl Halves {
    pub(super) fn new(prefill: Arc<Pool>, decode: Arc<Pool>, pairing: &Pairing) -> Self {
        let mates = |pool: &Pool| {
            pool.members
                .iter()
                .map(|m| m.mate.clone())
                .collect::<Vec<_>>()
        };
        Self {
            pairs: Pairs::new(&mates(&prefill), &mates(&decode), pairing),
            prefill,
            decode,
        }
    }

    /// Whether a prefill worker's answers to such requests do not name the place of their prompts' KV: vLLM 0.32's do, those
    /// of others do not. One that gets no requests has no say.
    pub fn is_silent_of(&self, form: Form) -> bool {
        let mut members = self.prefill.members.iter();
        members.any(|member| member.worker.silent_forms.has(form) && !member.is_out())
    }
}
