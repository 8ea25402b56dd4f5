//! The one task that fills the history: it looks for what changed each second, and takes a sample each ten.
//!
//! It costs no request anything: it reads what is counted anyway.

mod counters;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use grapevine_gossip::view::{ReplicaInfo, View};
use grapevine_gossip::worker::State;
use grapevine_gossip::{Agent, PeerLink, ReplicaId};
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use self::counters::Counters;
pub use self::counters::reached;
use super::history::marks::{Kind, Mark, Subject};
use super::history::tracks::{ReplicaSample, WorkerSample};
use super::history::watcher::{Condition, ReplicaSeen, Watcher, WorkerSeen};
use super::history::{EVERY, History, Levels, Moment, Taken};
use crate::all_metrics::AllMetrics;
use crate::cluster::{Cluster, Fleet, Hearing};
use crate::live::Live;
use crate::machine::HeldUp;
use crate::metrics::AttemptLabels;
use crate::shown::trouble::trouble_of_verdict;
use crate::shutdown::Phase;
use crate::upstream::Worker;
use crate::upstream::failure::{ANSWERED, ATTEMPT_RESULTS, GIVEN_UP};

/// Between two looks for changes.
const LOOK: Duration = Duration::from_secs(1);

/// The history, as the sampler writes and operators read it.
#[derive(Debug)]
pub struct Recorder {
    /// What the quota of processors held up within this hour.
    pub held_up: HeldUp,
    history: Mutex<History>,
    began: Instant,
}

/// What the sampler looks at.
pub struct SamplerParts {
    /// Where what it finds is written.
    pub recorder: Arc<Recorder>,
    /// The workers.
    pub cluster: Arc<Cluster>,
    /// The replicas.
    pub agent: Arc<Agent>,
    /// What is counted.
    pub metrics: Arc<AllMetrics>,
    /// Fingerprint of the settings that must be equal on all replicas.
    pub settings: Live<String>,
    /// Where this replica is between start and end.
    pub phase: Phase,
}

/// The task.
pub struct Sampler {
    parts: SamplerParts,
    counters: Counters,
    watcher: Watcher,
    seen: Option<Arc<View>>,
    sampled: Option<Instant>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            held_up: HeldUp::default(),
            history: Mutex::default(),
            began: Instant::now(),
        }
    }
}

impl Recorder {
    /// Shows the history and the moment that it is shown at, which stands still meanwhile.
    pub fn show<T>(&self, look: impl FnOnce(&History, Moment) -> T) -> T {
        let moment = Moment {
            at: self.began.elapsed(),
            clock: SystemTime::now(),
        };
        look(&self.history.lock(), moment)
    }
}

impl Sampler {
    /// Has seen nothing yet.
    pub fn new(parts: SamplerParts) -> Self {
        Self {
            counters: Counters::of(&parts.metrics),
            parts,
            watcher: Watcher::default(),
            seen: None,
            sampled: None,
        }
    }

    /// Looks until the replica ends.
    pub async fn run(mut self) {
        let mut due = interval(LOOK);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.parts.phase.closed() => return,
                _ = due.tick() => {}
            }
            let now = Instant::now();
            self.look(now);
            let is_due = |last: Instant| now.duration_since(last) + LOOK / 2 >= EVERY;
            if self.sampled.is_none_or(is_due) {
                self.sampled = Some(now);
                self.sample(now);
                self.parts.recorder.held_up.look();
            }
        }
    }

    fn look(&mut self, now: Instant) {
        // A replica that starts copies what the others know: that is news to it alone, and nothing that changed.
        if !self.parts.phase.is_caught_up() {
            return;
        }
        let at = now.duration_since(self.parts.recorder.began);
        let view = self.parts.agent.view();
        let mut marks = Vec::new();
        if self
            .seen
            .as_ref()
            .is_none_or(|seen| !Arc::ptr_eq(seen, &view))
        {
            let replicas = view.replicas().iter();
            let replicas = replicas.map(|replica| (replica.id.to_string(), replica_seen(replica)));
            marks.extend(self.watcher.replicas(at, replicas.collect()));
            self.seen = Some(Arc::clone(&view));
        }
        let fleet = self.parts.cluster.fleet();
        let workers = fleet.workers().filter_map(|worker| {
            let report = worker.health.report();
            let check = report.failed.as_ref().map(|(how, _)| how.as_str());
            let spec = Arc::clone(&view.worker(&worker.id)?.spec);
            let trouble = trouble_of_verdict(report.verdict.as_str(), check);
            let seen = WorkerSeen {
                // As in the other pictures: a worker that is drained may end.
                trouble: trouble.filter(|_| spec.state() != State::Draining),
                spec,
            };
            Some((worker.id.to_string(), seen))
        });
        marks.extend(self.watcher.workers(at, workers.collect()));
        let lasting = self
            .watcher
            .conditions(at, self.parts.conditions(&view, &fleet));
        lasting.iter().for_each(say);
        marks.extend(lasting);
        if !marks.is_empty() {
            self.parts.recorder.history.lock().mark(marks);
        }
    }

    fn sample(&self, now: Instant) {
        let parts = &self.parts;
        let (view, links) = (parts.agent.view(), parts.agent.links());
        let fleet = parts.cluster.fleet();
        let digest = fleet.digest().to_string();
        let settings = parts.settings.now();
        let agrees = |replica: &ReplicaInfo| {
            replica.live && replica.ring == digest && replica.settings == *settings
        };
        let workers = fleet.workers().map(|worker| {
            let is_active = view.worker(&worker.id);
            let is_active = is_active.is_some_and(|of| of.spec.state() == State::Active);
            (worker.id.to_string(), self.worker(worker, is_active))
        });
        let workers: Vec<_> = workers.collect();
        let replicas = view.replicas().iter();
        let live = replicas.clone().filter(|replica| replica.live).count();
        let agreeing = replicas.clone().filter(|replica| agrees(replica)).count();
        let usable = workers.iter().filter(|(_, worker)| worker.is_usable);
        let taken = Taken {
            counted: self.counters.read(),
            levels: Levels {
                in_flight: workers.iter().map(|(_, worker)| worker.in_flight).sum(),
                waiting: parts.metrics.admission.waiting() as f32,
                usable: usable.count() as f32,
                workers: workers.len() as f32,
                live: live as f32,
                agreeing: agreeing as f32,
            },
            workers,
            replicas: replicas
                .map(|replica| sample_of(replica, &links, agrees(replica)))
                .collect(),
        };
        let at = now.duration_since(parts.recorder.began);
        let left_out = parts.recorder.history.lock().take(at, taken);
        if left_out > 0 {
            parts.metrics.refusals.limit_reached("page_history");
        }
    }

    fn worker(&self, worker: &Worker, is_active: bool) -> WorkerSample {
        let metrics = &self.parts.metrics;
        let mut sample = WorkerSample {
            in_flight: self.parts.cluster.load_of(worker).exact_requests as f32,
            is_usable: is_active && worker.health.look().is_usable,
            ..WorkerSample::default()
        };
        if !worker.has_series() {
            return sample;
        }
        (sample.prompt_tokens, sample.cached_tokens, sample.tells) = worker.series.prompts.read();
        for result in ATTEMPT_RESULTS {
            let worker = Arc::clone(&worker.label);
            let labels = AttemptLabels { worker, result };
            let counter = metrics.attempts.attempts.get(&labels);
            let count = counter.map_or(0, |counter| counter.get());
            match result {
                ANSWERED => sample.answered += count,
                // Says nothing of the worker.
                GIVEN_UP => {}
                _ => sample.failed += count,
            }
        }
        sample
    }
}

impl SamplerParts {
    /// What is wrong for as long as it lasts.
    fn conditions(&self, view: &View, fleet: &Fleet) -> BTreeSet<Condition> {
        let hearing = Hearing::now(&self.agent, self.cluster.liveness(), view);
        let unheard = hearing.unheard_here().map(|id| Condition::Unheard {
            replica: id.to_string(),
            by: self.agent.replica().to_string(),
        });
        let left_alone = fleet.left_alone();
        let left_alone = left_alone.map(|model| Condition::LeftAlone(model.to_owned()));
        unheard.chain(left_alone).collect()
    }
}

/// What no other part tells the log of.
fn say(mark: &Mark) {
    let who = mark.who();
    match (&mark.subject, mark.kind) {
        (Subject::Replica(_), Kind::Fault) => tracing::warn!(
            replica = who,
            "a replica that lives is not heard here: is UDP open both ways between its gossip port and this one's?"
        ),
        (Subject::Replica(_), _) => tracing::info!(replica = who, "a replica is heard again"),
        (_, Kind::Fault) => tracing::warn!(
            models = who,
            "no worker to ask now: every usable one asked to be left alone (Retry-After)"
        ),
        _ => tracing::info!(
            models = who,
            "requests no longer wait for workers that asked to be left alone"
        ),
    }
}

fn replica_seen(replica: &ReplicaInfo) -> ReplicaSeen {
    ReplicaSeen {
        generation: replica.generation,
        is_live: replica.live,
        is_ready: replica.ready,
        is_leaving: replica.leaving,
    }
}

fn sample_of(
    replica: &ReplicaInfo,
    links: &BTreeMap<ReplicaId, PeerLink>,
    agrees: bool,
) -> (String, ReplicaSample) {
    let heard = links.get(&replica.id).and_then(|link| link.heard);
    let sample = ReplicaSample {
        is_live: replica.live,
        is_ready: replica.live && replica.ready,
        agrees,
        heard_ms: heard.map_or(f32::NAN, |ago| ago.as_secs_f32() * 1e3),
    };
    (replica.id.to_string(), sample)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::alone::{Alone, worker};
    use crate::config::KvEventsConfig;
    use crate::shutdown::Shutdown;

    #[tokio::test(start_paused = true)]
    async fn what_is_learned_until_the_copy_at_the_start_is_done_is_no_change() {
        let Alone { cluster, agent, .. } =
            Alone::new("r1", [worker(1, "m")], &KvEventsConfig::default(), 0);
        let (cluster, shutdown) = (Arc::new(cluster), Shutdown::new());
        let recorder = Arc::new(Recorder::default());
        let mut sampler = Sampler::new(SamplerParts {
            recorder: Arc::clone(&recorder),
            cluster: Arc::clone(&cluster),
            agent: Arc::clone(&agent),
            metrics: Arc::new(AllMetrics::new()),
            settings: String::new().into(),
            phase: shutdown.phase(),
        });
        let mut added = |number: usize| {
            let (id, spec) = worker(number, "m");
            agent.configure(id, spec).expect("room");
            cluster.update(&agent.view());
            sampler.look(Instant::now());
            recorder.show(|history, _| history.marks.iter().count())
        };
        assert_eq!(added(2), 0);
        assert_eq!(added(3), 0, "it copies");
        shutdown.caught_up().store(true, Ordering::Relaxed);
        assert_eq!(added(4), 0, "the last of the copy");
        assert_eq!(added(5), 1, "a worker was added");
    }
}
