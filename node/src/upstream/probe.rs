//! Active health checks: one task per worker, each probe with a deadline.
//!
//! Control path, so reqwest. Besides, the same task asks what the worker says of itself (`facts`), and a stalled
//! worker for a token (`revive`), and looks whether a silent one lives (`vigil`): none can delay a probe. Most replicas leave most workers to others (`duty`).

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::duty::Duty;
use super::facts::{self, Learned};
use super::{Worker, revive, vigil};
use crate::cluster::Fleet;
use crate::config::HealthConfig;
use crate::lag::Lag;
use crate::metrics::{Metrics, ResultLabels};

/// Results of probes, as labels.
const GOOD: &str = "good";
const BAD: &str = "bad";
/// New workers that are looked at, and workers that are asked about themselves, at once: thousands that are added
/// together must not take the processor from requests. Later probes do not wait for this.
const TURNS: usize = 256;
/// Every so many probes a worker is asked again what it serves, and how large its cache is.
const RECHECK_PROBES: u64 = 60;

/// How to ask.
#[derive(Debug)]
pub struct ProbeParts {
    /// Interval and path.
    pub config: HealthConfig,
    /// Where facts go that the registry does not know.
    pub learned: mpsc::Sender<Learned>,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// Which workers are this replica's to probe.
    pub duty: Duty,
    /// Whether this replica is late itself.
    pub lag: Arc<Lag>,
    /// How long requests wait on a silent worker.
    pub silence: Duration,
}

impl ProbeParts {
    /// Whether a probe that failed just now says nothing: it ran out of time while this replica's own timers were
    /// late.
    fn is_excused(&self, began: Instant) -> bool {
        began.elapsed() >= self.config.timeout && self.lag.was_late_since(began)
    }
}

/// Keeps one probing task per worker of the fleet; dropping it ends them.
#[derive(Debug)]
pub struct Prober {
    parts: Arc<ProbeParts>,
    tasks: BTreeMap<Arc<str>, (Arc<Worker>, AbortOnDropHandle<()>)>,
    turns: Arc<Semaphore>,
    tracker: TaskTracker,
}

impl Prober {
    /// A prober without workers.
    pub fn new(parts: ProbeParts, tracker: TaskTracker) -> Self {
        for result in [GOOD, BAD] {
            // There from the start, so that no probe is a zero and not a gap.
            let _ = parts.metrics.probes.get_or_create(&ResultLabels { result });
        }
        Self {
            parts: Arc::new(parts),
            tasks: BTreeMap::new(),
            turns: Arc::new(Semaphore::new(TURNS)),
            tracker,
        }
    }

    /// Starts probing new workers and stops probing those that left.
    pub fn follow(&mut self, fleet: &Fleet) {
        let mut kept = BTreeMap::new();
        for worker in fleet.workers() {
            let task = match self.tasks.remove(&worker.label) {
                Some((known, task)) if Arc::ptr_eq(&known, worker) => task,
                _ => {
                    let (parts, turns) = (Arc::clone(&self.parts), Arc::clone(&self.turns));
                    let watching = watch(Arc::clone(worker), parts, turns);
                    AbortOnDropHandle::new(self.tracker.spawn(watching))
                }
            };
            kept.insert(Arc::clone(&worker.label), (Arc::clone(worker), task));
        }
        self.tasks = kept;
    }
}

async fn watch(worker: Arc<Worker>, parts: Arc<ProbeParts>, turns: Arc<Semaphore>) {
    let ask = Notify::new();
    tokio::join!(
        probe_for_ever(&worker, &parts, &ask, &turns),
        facts::ask_when_told(&worker, &parts, &ask, &turns),
        revive::when_stalled(&worker, &parts),
        vigil::while_wanted(&worker, &parts),
    );
}

async fn probe_for_ever(worker: &Worker, parts: &ProbeParts, ask: &Notify, turns: &Semaphore) {
    let mut ticks = interval(parts.config.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for probe in 0_u64.. {
        ticks.tick().await;
        worker.idle.sweep(Instant::now());
        let recheck = probe % RECHECK_PROBES == RECHECK_PROBES - 1;
        if probe > 0 && !recheck && !parts.duty.is_ours(worker, parts.config.interval) {
            continue;
        }
        let turn = match probe {
            0 => turns.acquire().await.ok(),
            _ => None,
        };
        let began = Instant::now();
        let checked = check(worker, parts).await;
        drop(turn);
        if checked.is_err() && parts.is_excused(began) {
            tracing::debug!(
                worker = &*worker.label,
                "a probe was late, and so was this replica"
            );
            continue;
        }
        let good = checked.is_ok();
        let result = if good { GOOD } else { BAD };
        let probes = &parts.metrics.probes;
        probes.get_or_create(&ResultLabels { result }).inc();
        let changed = worker.health.probed(good);
        match checked {
            Err(why) if changed => {
                tracing::info!(worker = &*worker.label, why, "worker fails its checks");
            }
            Err(why) => tracing::debug!(worker = &*worker.label, why, "probe failed"),
            Ok(()) => {}
        }
        if good && (probe == 0 || changed || recheck || worker.models.load().is_empty()) {
            ask.notify_one();
        }
    }
}

/// Ok for a 2xx, else what a person should know.
async fn check(worker: &Worker, parts: &ProbeParts) -> Result<(), String> {
    let result = get(worker, &parts.config.path).await;
    worker.connected(&result.as_ref().map_err(io_kind));
    match result {
        Ok(response) if response.status().is_success() => Ok(()),
        Ok(response) => Err(format!("it answered {}", response.status())),
        // With its causes: what TLS or the rule of `workers.allow` says is the last of them.
        Err(error) => Err(format!("{error:#}")),
    }
}

async fn get(worker: &Worker, path: &str) -> anyhow::Result<reqwest::Response> {
    let request = worker.reach.get(&worker.address, path).await?;
    Ok(request.send().await?)
}

/// The kind of the socket's error that a check failed with.
fn io_kind(error: &anyhow::Error) -> io::Error {
    let io = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>());
    io.map_or(io::ErrorKind::Other, io::Error::kind).into()
}
