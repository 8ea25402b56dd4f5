//! Cache view: which worker is expected to hold which prefix, and which prefixes are hot.
//!
//! One prefix index and one heat counter for all requests of this replica, under one lock that is held for microseconds
//! and never across an await. What is recorded here is sent to the other replicas, and what they send is recorded
//! here, so that all decide on the same view. Nothing here can refuse or delay a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use grapevine_gossip::Agent;
use grapevine_gossip::ReplicaId;
use grapevine_gossip::evidence::{
    Evidence, EvidenceEvent, HeatReport as WireReport, Lack, Retraction,
};
use grapevine_gossip::peer_state::PeerStates;
use grapevine_gossip::worker::WorkerId;
use grapevine_kv_events::texts::TextName;
use grapevine_placement::{
    Candidate, ClusterSettings, Decision, Digest, HeatCounter, HeatReport, HotSet, Key, Link,
    Policy, PrefixIndex, PrefixIndexCounters, Recorded, Slot,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::metrics::ClusterMetrics;
use super::pool::Pool;
use crate::http::sse::Usage;
use crate::kv_events::{Caches, Prediction};
use crate::metrics::EventLabels;

/// A placement that was recorded, until its request ends.
#[derive(Debug)]
pub struct RecordedPlacement {
    worker: WorkerId,
    /// Restart counter of the worker: evidence of an earlier one is void.
    epoch: u64,
    slot: Slot,
    recorded: Recorded,
    is_computed: bool,
    /// When it is taken for computed, if its answer comes whole.
    likely_at: Option<Instant>,
    comes_whole: bool,
    expected_tokens: u32,
    prompt_tokens: u32,
    prediction: Option<Prediction>,
}

impl RecordedPlacement {
    /// What the worker is to repeat with the blocks that the request stores, if it publishes them.
    pub fn text_name(&self) -> Option<TextName> {
        self.prediction.as_ref().map(Prediction::name)
    }

    /// The worker has computed the prompt: the placement is true and cannot be taken back any more.
    pub fn settle(&mut self) {
        self.is_computed = true;
    }

    /// Its answer comes whole, so that nothing says when the prompt has been computed.
    pub fn comes_whole(&mut self) {
        self.comes_whole = true;
    }

    /// Whether the worker has computed the prompt, as far as that shows, or is likely by now.
    pub fn is_computed(&self) -> bool {
        let is_likely = || self.likely_at.is_some_and(|at| at <= Instant::now());
        self.is_computed || self.comes_whole && is_likely()
    }

    /// Tokens that were expected in the worker's cache.
    pub fn expected_tokens(&self) -> u32 {
        self.expected_tokens
    }
}

#[derive(Debug)]
struct State {
    prefix_index: PrefixIndex,
    counter: HeatCounter,
    /// The newest report of each other replica that is live.
    reports: BTreeMap<ReplicaId, HeatReport>,
    counted: PrefixIndexCounters,
}

/// What this replica knows, and what the others report.
pub struct CacheView {
    state: Mutex<State>,
    hot: ArcSwap<HotSet>,
    agent: Arc<Agent>,
    /// What workers report themselves.
    caches: Arc<Caches>,
    metrics: ClusterMetrics,
    started: Instant,
}

impl std::fmt::Debug for CacheView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheView").finish_non_exhaustive()
    }
}

impl CacheView {
    /// Knows nothing yet.
    pub fn new(
        settings: &ClusterSettings,
        agent: Arc<Agent>,
        caches: Arc<Caches>,
        metrics: ClusterMetrics,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                prefix_index: PrefixIndex::new(settings.prefix_index),
                counter: HeatCounter::new(&settings.policy.heat),
                reports: BTreeMap::new(),
                counted: PrefixIndexCounters::default(),
            }),
            hot: ArcSwap::from_pointee(HotSet::EMPTY),
            agent,
            caches,
            metrics,
            started: Instant::now(),
        }
    }

    /// The peer states of the other replicas.
    pub(super) fn peer_states(&self) -> Arc<PeerStates> {
        self.agent.peer_states()
    }

    /// The row of a worker in the prefix index; another epoch empties it.
    pub(super) fn slot(&self, worker: &WorkerId, epoch: u64) -> Slot {
        self.state.lock().prefix_index.slot(worker.as_str(), epoch)
    }

    /// The worker left.
    pub(super) fn forget(&self, worker: &WorkerId) {
        self.state.lock().prefix_index.forget(worker.as_str());
    }

    /// Another process is the worker now than in this epoch.
    pub(super) fn replaced(&self, worker: &WorkerId, epoch: u64) {
        self.state
            .lock()
            .prefix_index
            .replaced(worker.as_str(), epoch);
    }

    /// The worker reported how many tokens its cache holds.
    pub(super) fn set_capacity(&self, slot: Slot, tokens: u64) {
        self.state.lock().prefix_index.set_capacity(slot, tokens);
    }

    /// Prefixes that several workers share.
    pub fn hot(&self) -> Guard<Arc<HotSet>> {
        self.hot.load()
    }

    /// Digest of the hot set: equal on replicas that have received the same reports.
    pub fn heat_digest(&self) -> Digest {
        self.hot.load().digest()
    }

    /// Fills in what the pool's workers are known to hold of a prompt.
    pub(super) fn fill(&self, pool: &Pool, key: &Key, candidates: &mut [Candidate]) {
        if is_informed(pool.policy.policy) {
            let workers = pool.members.iter().map(|member| &*member.worker);
            self.caches.tell(workers, key, candidates);
            let now = self.now();
            let state = self.state.lock();
            state.prefix_index.fill(key, &pool.slots, now, candidates);
            if pool.policy.policy.looks_at_caches() {
                state.prefix_index.fill_caches(&pool.slots, candidates);
            }
        }
    }

    /// Records that a request was placed, and sends it to the others, unless it leaves nothing in a cache. `first`: it is no
    /// retry, so it counts for heat.
    pub(super) fn record(
        &self,
        pool: &Pool,
        key: &Key,
        decision: &Decision,
        first: bool,
    ) -> Option<RecordedPlacement> {
        if !is_informed(pool.policy.policy) || key.leaves_nothing() {
            return None;
        }
        let member = &pool.members[decision.worker];
        let counted = first.then_some(key);
        Some(RecordedPlacement {
            worker: member.worker.id.clone(),
            epoch: member.epoch,
            slot: pool.slots.of(decision.worker),
            recorded: self.record_marks(pool, decision.worker, decision.marks(key), counted),
            is_computed: false,
            likely_at: Instant::now().checked_add(decision.likely_computed()),
            comes_whole: false,
            expected_tokens: decision.expected_tokens,
            prompt_tokens: decision.prompt_tokens,
            prediction: self.caches.predict(&member.worker, key, decision),
        })
    }

    /// What workers report of their caches.
    pub fn told(&self) -> &Caches {
        &self.caches
    }

    /// Records that a worker of the pool was made to compute a prompt, and sends it to the others. All marks count,
    /// also those of hot prefixes: this worker's ring is not in use yet.
    pub fn record_warmed(&self, pool: &Pool, worker: usize, key: &Key) {
        self.record_marks(pool, worker, key.marks(), None);
    }

    fn record_marks(
        &self,
        pool: &Pool,
        worker: usize,
        marks: &[Link],
        counted: Option<&Key>,
    ) -> Recorded {
        let now = self.now();
        let recorded = {
            let mut state = self.state.lock();
            if let Some(key) = counted {
                state.counter.count(key);
            }
            state.prefix_index.record(pool.slots.of(worker), marks, now)
        };
        let links = recorded.marks_to_send();
        if !links.is_empty() {
            let member = &pool.members[worker];
            self.agent.send_evidence(Evidence {
                worker: member.worker.id.clone(),
                epoch: member.epoch,
                links,
            });
        }
        recorded
    }

    /// Takes a placement back, unless the worker has computed it: the attempt failed or was given up before, so what was not
    /// known there before is untrue. What was, may still be there, however long ago it was used.
    pub fn retract(&self, placement: RecordedPlacement) {
        if placement.is_computed {
            return;
        }
        let (worker, epoch, recorded) = (placement.worker, placement.epoch, placement.recorded);
        let mut state = self.state.lock();
        let links = state
            .prefix_index
            .retract(worker.as_str(), epoch, &recorded);
        drop(state);
        if !links.is_empty() {
            self.agent.send_retraction(Retraction {
                worker,
                epoch,
                links,
                lack: Lack::NotComputed,
            });
        }
    }

    /// Corrects what is known by an answer that reports far less of the prompt as cached than was expected.
    pub fn correct(&self, placement: &RecordedPlacement, usage: &Usage) {
        let Some(cached) = usage.cached_tokens else {
            return;
        };
        if let Some(prediction) = &placement.prediction {
            self.caches.check(prediction, usage);
        }
        // Expectations are in estimated tokens; the worker counts real ones.
        let scale = f64::from(placement.prompt_tokens) / (usage.prompt_tokens.max(1) as f64);
        let cached = (cached as f64 * scale).min(f64::from(placement.prompt_tokens)) as u32;
        let links = self.state.lock().prefix_index.correct(
            placement.slot,
            &placement.recorded,
            placement.expected_tokens,
            cached,
        );
        if !links.is_empty() {
            self.agent.send_retraction(Retraction {
                worker: placement.worker.clone(),
                epoch: placement.epoch,
                links,
                lack: Lack::Forgotten,
            });
        }
    }

    /// Records what other replicas sent.
    pub fn receive(&self, received: impl IntoIterator<Item = EvidenceEvent>) {
        let now = self.now();
        let mut heat_changed = false;
        for message in received {
            // One lock for each: requests go on in between.
            let mut state = self.state.lock();
            match message {
                EvidenceEvent::Evidence { evidence, .. } => {
                    let worker = evidence.worker.as_str();
                    state
                        .prefix_index
                        .learn(worker, evidence.epoch, &evidence.links, now);
                }
                EvidenceEvent::Retraction { retraction, .. } => {
                    let Retraction {
                        worker,
                        epoch,
                        links,
                        lack,
                    } = retraction;
                    let index = &mut state.prefix_index;
                    let kept = match lack {
                        Lack::NotComputed => index.take_back(worker.as_str(), epoch, &links),
                        Lack::Forgotten => {
                            index.unlearn(worker.as_str(), epoch, &links);
                            continue;
                        }
                    };
                    // Not the sender's, who may not have known it then: the others take nothing of that any more.
                    let epoch = state.prefix_index.epoch_of(worker.as_str());
                    drop(state);
                    for links in kept {
                        self.agent.send_evidence(Evidence {
                            worker: worker.clone(),
                            epoch,
                            links,
                        });
                    }
                }
                EvidenceEvent::Heat { from, report } => {
                    state.reports.insert(from, decode(report));
                    heat_changed = true;
                }
                EvidenceEvent::Gone { from } => {
                    heat_changed |= state.reports.remove(&from).is_some()
                }
                // Counted by gossip; what is missing shows in answers, which correct it.
                EvidenceEvent::Lost { .. } => {}
            }
        }
        if heat_changed {
            let state = self.state.lock();
            let report = state.counter.last_report().clone();
            self.sum_heat(&state, &report);
        }
    }

    /// Decays, reports heat, and returns memory.
    pub(super) fn tick(&self) {
        let now = self.now();
        let mut state = self.state.lock();
        let report = state.counter.report(now).clone();
        self.sum_heat(&state, &report);
        state.prefix_index.expire(now);
        let (entries, counters) = (state.prefix_index.len(), state.prefix_index.counters());
        let counted = std::mem::replace(&mut state.counted, counters);
        drop(state);
        self.agent.send_heat(encode(report));
        self.metrics.prefix_index_entries.set(entries as i64);
        for (event, total, before) in [
            ("evicted", counters.evicted, counted.evicted),
            ("crowded_out", counters.crowded_out, counted.crowded_out),
            ("expired", counters.expired, counted.expired),
            ("refused", counters.refused, counted.refused),
            ("spared", counters.spared, counted.spared),
            ("corrected", counters.corrected, counted.corrected),
        ] {
            let labels = EventLabels { event };
            let counter = self.metrics.prefix_index_events.get_or_create(&labels);
            counter.inc_by(total - before);
        }
    }

    /// What is known, for a replica that starts; of each worker the oldest first.
    pub fn evidence(&self, workers: &[WorkerId]) -> Vec<Evidence> {
        let now = self.now();
        workers
            .iter()
            .flat_map(|worker| {
                // One lock for each worker: requests go on in between.
                let found = self
                    .state
                    .lock()
                    .prefix_index
                    .snapshot(worker.as_str(), now);
                let (epoch, records) = found.unwrap_or_default();
                records.into_iter().map(move |links| Evidence {
                    worker: worker.clone(),
                    epoch,
                    links,
                })
            })
            .collect()
    }

    fn sum_heat(&self, state: &State, own: &HeatReport) {
        let hot = HotSet::sum(state.reports.values().chain([own]));
        self.metrics.hot_prefixes.set(hot.len() as i64);
        self.metrics.heat_digest.set(i64::from(hot.digest().0));
        self.hot.store(Arc::new(hot));
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Policies that look at contents; the others need not pay for them.
fn is_informed(policy: Policy) -> bool {
    matches!(
        policy,
        Policy::Prefix | Policy::CacheAware | Policy::LeastKv
    )
}

fn decode(report: WireReport) -> HeatReport {
    let WireReport {
        version,
        counts,
        total,
    } = report;
    HeatReport {
        version,
        counts,
        total,
    }
}

fn encode(report: HeatReport) -> WireReport {
    let HeatReport {
        version,
        counts,
        total,
    } = report;
    WireReport {
        version,
        counts,
        total,
    }
}
