//! Knowledge: which worker is expected to hold which prefix, and which prefixes are hot.
//!
//! One sketch and one heat counter for all requests of this replica, under one lock that is held for microseconds
//! and never across an await. What is recorded here is told to the other replicas, and what they tell is learned
//! here, so that all decide on the same knowledge. Nothing here can refuse or delay a request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use grapevine_gossip::Agent;
use grapevine_gossip::ReplicaId;
use grapevine_gossip::evidence::{Evidence, Heard, HeatReport as ToldReport, Retraction};
use grapevine_gossip::worker::WorkerId;
use grapevine_placement::{
    Candidate, ClusterSettings, Decision, Digest, HeatCounter, HeatReport, HotSet, Key, Link,
    Policy, Recorded, Sketch, SketchCounters, Slot,
};
use tokio::time::Instant;

use super::Pool;
use crate::metrics::{EventLabels, Metrics};
use crate::proxy::sse::Usage;

/// A placement that was recorded, until its request ends.
#[derive(Debug)]
pub struct Taken {
    worker: WorkerId,
    /// Restart counter of the worker: evidence of an earlier one is void.
    epoch: u64,
    shelf: Slot,
    recorded: Recorded,
    expected_tokens: u32,
    prompt_tokens: u32,
}

impl Taken {
    /// The worker has computed the prompt: the placement is true and cannot be taken back any more.
    pub fn settle(&mut self) {
        self.recorded.news = Vec::new();
    }

    /// Tokens that were expected in the worker's cache.
    pub fn expected_tokens(&self) -> u32 {
        self.expected_tokens
    }
}

#[derive(Debug)]
struct Known {
    sketch: Sketch,
    counter: HeatCounter,
    /// The newest report of each other replica that is heard.
    reports: BTreeMap<ReplicaId, HeatReport>,
    counted: SketchCounters,
}

/// What this replica and, by their word, the others know.
pub struct Knowledge {
    known: Mutex<Known>,
    hot: ArcSwap<HotSet>,
    agent: Arc<Agent>,
    metrics: Arc<Metrics>,
    started: Instant,
}

impl std::fmt::Debug for Knowledge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Knowledge").finish_non_exhaustive()
    }
}

impl Knowledge {
    /// Knows nothing yet.
    pub fn new(settings: &ClusterSettings, agent: Arc<Agent>, metrics: Arc<Metrics>) -> Self {
        Self {
            known: Mutex::new(Known {
                sketch: Sketch::new(settings.sketch),
                counter: HeatCounter::new(&settings.policy.heat),
                reports: BTreeMap::new(),
                counted: SketchCounters::default(),
            }),
            hot: ArcSwap::from_pointee(HotSet::EMPTY),
            agent,
            metrics,
            started: Instant::now(),
        }
    }

    /// The place of a worker; another epoch empties it.
    pub(super) fn shelf(&self, worker: &WorkerId, epoch: u64) -> Slot {
        self.lock().sketch.slot(worker.as_str(), epoch)
    }

    /// The worker left.
    pub(super) fn forget(&self, worker: &WorkerId) {
        self.lock().sketch.forget(worker.as_str());
    }

    /// The worker said how many tokens its cache holds.
    pub(super) fn set_capacity(&self, shelf: Slot, tokens: u64) {
        self.lock().sketch.set_capacity(shelf, tokens);
    }

    /// Prefixes that several workers share.
    pub fn hot(&self) -> Guard<Arc<HotSet>> {
        self.hot.load()
    }

    /// Digest of the hot set: equal on replicas that have heard the same reports.
    pub fn heat_digest(&self) -> Digest {
        self.hot.load().digest()
    }

    /// Fills in what the pool's workers are known to hold of a prompt.
    pub(super) fn fill(&self, pool: &Pool, key: &Key, candidates: &mut [Candidate]) {
        if is_informed(pool.policy.policy) {
            let now = self.now();
            self.lock().sketch.fill(key, &pool.shelves, now, candidates);
        }
    }

    /// A request was placed: the others hear of it. `first`: it is no retry, so it counts for heat.
    pub(super) fn took(
        &self,
        pool: &Pool,
        key: &Key,
        decision: &Decision,
        first: bool,
    ) -> Option<Taken> {
        if !is_informed(pool.policy.policy) {
            return None;
        }
        let slot = &pool.slots[decision.worker];
        let counted = first.then_some(key);
        Some(Taken {
            worker: slot.worker.id.clone(),
            epoch: slot.epoch,
            shelf: pool.shelves[decision.worker],
            recorded: self.record(pool, decision.worker, decision.marks(key), counted),
            expected_tokens: decision.expected_tokens,
            prompt_tokens: decision.prompt_tokens,
        })
    }

    /// A worker of the pool was made to compute a prompt: the others hear of it. All marks count, also those of hot
    /// prefixes: this worker's ring is not in use yet.
    pub fn warmed(&self, pool: &Pool, worker: usize, key: &Key) {
        self.record(pool, worker, key.marks(), None);
    }

    fn record(
        &self,
        pool: &Pool,
        worker: usize,
        marks: &[Link],
        counted: Option<&Key>,
    ) -> Recorded {
        let now = self.now();
        let recorded = {
            let mut known = self.lock();
            if let Some(key) = counted {
                known.counter.count(key);
            }
            known.sketch.record(pool.shelves[worker], marks, now)
        };
        let links = recorded.told();
        if !links.is_empty() {
            let slot = &pool.slots[worker];
            self.agent.tell_evidence(Evidence {
                worker: slot.worker.id.clone(),
                epoch: slot.epoch,
                links,
            });
        }
        recorded
    }

    /// The attempt failed before the worker computed anything: what was new about it is untrue.
    pub fn failed(&self, taken: Taken) {
        let links = taken.recorded.news;
        if links.is_empty() {
            return;
        }
        let (worker, epoch) = (taken.worker, taken.epoch);
        self.lock().sketch.unlearn(worker.as_str(), epoch, &links);
        self.agent.tell_retraction(Retraction {
            worker,
            epoch,
            links,
        });
    }

    /// The answer said how much of the prompt was cached: far less than expected corrects what is known.
    pub fn answered(&self, taken: &Taken, usage: &Usage) {
        let Some(cached) = usage.cached_tokens else {
            return;
        };
        // Expectations are in estimated tokens; the worker counts real ones.
        let scale = f64::from(taken.prompt_tokens) / (usage.prompt_tokens.max(1) as f64);
        let cached = (cached as f64 * scale).min(f64::from(taken.prompt_tokens)) as u32;
        let links =
            self.lock()
                .sketch
                .correct(taken.shelf, &taken.recorded, taken.expected_tokens, cached);
        if !links.is_empty() {
            self.agent.tell_retraction(Retraction {
                worker: taken.worker.clone(),
                epoch: taken.epoch,
                links,
            });
        }
    }

    /// Takes in what other replicas said.
    pub fn hear(&self, heard: impl IntoIterator<Item = Heard>) {
        let now = self.now();
        let mut known = self.lock();
        let mut heat_changed = false;
        for heard in heard {
            match heard {
                Heard::Evidence { evidence, .. } => {
                    let worker = evidence.worker.as_str();
                    known
                        .sketch
                        .learn(worker, evidence.epoch, &evidence.links, now);
                }
                Heard::Retraction { retraction, .. } => {
                    let worker = retraction.worker.as_str();
                    known
                        .sketch
                        .unlearn(worker, retraction.epoch, &retraction.links);
                }
                Heard::Heat { from, report } => {
                    known.reports.insert(from, report_of(report));
                    heat_changed = true;
                }
                Heard::Gone { from } => heat_changed |= known.reports.remove(&from).is_some(),
                // Counted by gossip; what is missing shows in answers, which correct it.
                Heard::Lost { .. } => {}
            }
        }
        if heat_changed {
            let report = known.counter.told().clone();
            self.sum_heat(&known, &report);
        }
    }

    /// Decays, reports heat, and returns memory.
    pub(super) fn tick(&self) {
        let now = self.now();
        let mut known = self.lock();
        let report = known.counter.report(now).clone();
        self.sum_heat(&known, &report);
        known.sketch.expire(now);
        let (entries, counters) = (known.sketch.len(), known.sketch.counters());
        let counted = std::mem::replace(&mut known.counted, counters);
        drop(known);
        self.agent.tell_heat(told_report(report));
        self.metrics.sketch_entries.set(entries as i64);
        for (event, total, before) in [
            ("evicted", counters.evicted, counted.evicted),
            ("crowded_out", counters.crowded_out, counted.crowded_out),
            ("expired", counters.expired, counted.expired),
            ("refused", counters.refused, counted.refused),
            ("corrected", counters.corrected, counted.corrected),
        ] {
            let labels = EventLabels { event };
            let counter = self.metrics.sketch_events.get_or_create(&labels);
            counter.inc_by(total - before);
        }
    }

    /// All that is known, for a replica that starts.
    pub fn evidence(&self, workers: &[WorkerId]) -> Vec<Evidence> {
        workers
            .iter()
            .flat_map(|worker| {
                // One lock for each worker: requests go on in between.
                let found = self.lock().sketch.snapshot(worker.as_str());
                let (epoch, records) = found.unwrap_or_default();
                records.into_iter().map(move |links| Evidence {
                    worker: worker.clone(),
                    epoch,
                    links,
                })
            })
            .collect()
    }

    fn sum_heat(&self, known: &Known, own: &HeatReport) {
        let hot = HotSet::sum(known.reports.values().chain([own]));
        self.metrics.hot_prefixes.set(hot.len() as i64);
        self.metrics.heat_digest.set(i64::from(hot.digest().0));
        self.hot.store(Arc::new(hot));
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Every change under the lock is one call into a pure part.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Policies that look at contents; the others need not pay for them.
fn is_informed(policy: Policy) -> bool {
    matches!(policy, Policy::Prefix | Policy::CacheAware)
}

fn report_of(told: ToldReport) -> HeatReport {
    let ToldReport {
        version,
        counts,
        total,
    } = told;
    HeatReport {
        version,
        counts,
        total,
    }
}

fn told_report(report: HeatReport) -> ToldReport {
    let HeatReport {
        version,
        counts,
        total,
    } = report;
    ToldReport {
        version,
        counts,
        total,
    }
}
