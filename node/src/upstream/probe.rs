//! Active health checks: one task per worker, each probe with a deadline.
//!
//! Control path, so reqwest. The same task asks the worker about itself (`worker_facts`), asks a stalled worker for a
//! token (`token_probe`), looks whether a silent one lives (`vigil`) and whether one sleeps (`naps`), and closes connections that have rested for too
//! long: none of these can delay a probe. Most replicas leave most workers to others (`duty`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::DATE;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::health::Probe;
use super::hosts::NoAddress;
use super::probe_parts::ProbeParts;
use super::socket_error::{is_own_lack, is_unresolved};
use super::worker::Worker;
use super::{naps, token_probe, vigil, worker_facts};
use crate::config::HealthConfig;
use crate::metrics::ResultLabels;
use crate::shown::IS_REPLICA;
use crate::standing::Standing;
use crate::tls::NO_TLS;

/// Results of probes, as labels.
const GOOD: &str = "good";
const BAD: &str = "bad";
/// New workers that are looked at, and workers that are asked about themselves, at once: thousands that are added
/// together must not take the processor from requests. Later probes do not wait for this.
const TURNS: usize = 256;
/// Every so many probes a worker is asked again what it serves, and how large its cache is.
const RECHECK_PROBES: u64 = 60;
/// Least time between two looks at connections that rest, however short their rest is.
const SWEEPS_MIN: Duration = Duration::from_millis(100);

/// Between two looks whether a worker that was removed still has requests.
const LAST_LOOKS: Duration = Duration::from_secs(1);

/// Keeps one probing task per worker that it follows; dropping it ends them.
#[derive(Debug)]
pub struct Prober {
    parts: Arc<ProbeParts>,
    tasks: BTreeMap<Arc<str>, (Arc<Worker>, AbortOnDropHandle<()>)>,
    /// Those of workers that were removed, and may have requests still.
    last: Vec<AbortOnDropHandle<()>>,
    turns: Arc<Semaphore>,
    standing: Standing,
}

impl Prober {
    /// A prober without workers.
    pub fn new(parts: ProbeParts, standing: Standing) -> Self {
        for result in [GOOD, BAD] {
            // There from the start, so that no probe is a zero and not a gap.
            let probes = &parts.metrics.workers.probes;
            drop(probes.get_or_create(&ResultLabels { result }));
        }
        Self {
            parts: Arc::new(parts),
            tasks: BTreeMap::new(),
            last: Vec::new(),
            turns: Arc::new(Semaphore::new(TURNS)),
            standing,
        }
    }

    /// Starts probing new workers, and stops probing those that left once their last requests have ended.
    pub fn follow<'a>(&mut self, workers: impl IntoIterator<Item = &'a Arc<Worker>>) {
        let mut kept = BTreeMap::new();
        for worker in workers {
            let known = self.tasks.entry(Arc::clone(&worker.label));
            let task = match known {
                // Another one under the same name, as at another address, leaves as if it had another.
                Entry::Occupied(known) if Arc::ptr_eq(&known.get().0, worker) => known.remove().1,
                _ => {
                    let (parts, turns) = (Arc::clone(&self.parts), Arc::clone(&self.turns));
                    let watching = watch(Arc::clone(worker), parts, turns);
                    AbortOnDropHandle::new(self.standing.run("probe", watching))
                }
            };
            kept.insert(Arc::clone(&worker.label), (Arc::clone(worker), task));
        }
        self.last.retain(|task| !task.is_finished());
        for (_, (worker, task)) in std::mem::replace(&mut self.tasks, kept) {
            drop(task);
            let watching =
                watch_to_the_end(worker, Arc::clone(&self.parts), Arc::clone(&self.turns));
            let task = AbortOnDropHandle::new(self.standing.run("probe", watching));
            self.last.push(task);
        }
    }
}

async fn watch(worker: Arc<Worker>, parts: Arc<ProbeParts>, turns: Arc<Semaphore>) {
    let ask = Notify::new();
    tokio::join!(
        probe_for_ever(&worker, &parts, &ask, &turns, Whose::Shared),
        sweep_for_ever(&worker, &parts),
        worker_facts::ask_when_told(&worker, &parts, &ask, &turns),
        token_probe::when_stalled(&worker, &parts),
        vigil::while_wanted(&worker, &parts),
        naps::watch(&worker, &parts),
    );
}

/// What is under way at a worker that was removed ends as anywhere: when it is silent, and the worker gone or bad.
async fn watch_to_the_end(worker: Arc<Worker>, parts: Arc<ProbeParts>, turns: Arc<Semaphore>) {
    let ask = Notify::new();
    let has_ended = async {
        while worker.open.load(Ordering::Relaxed) > 0 {
            sleep(LAST_LOOKS).await;
        }
    };
    // One that was placed as it was removed may not be there yet.
    sleep(LAST_LOOKS).await;
    tokio::select! {
        biased;
        () = has_ended => {}
        () = probe_for_ever(&worker, &parts, &ask, &turns, Whose::Ours) => {}
        () = token_probe::when_stalled(&worker, &parts) => {}
        () = vigil::while_wanted(&worker, &parts) => {}
    }
}

/// Who probes a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Some of the replicas, for all.
    Shared,
    /// Each that has requests there.
    Ours,
}

/// Closes connections that have rested for too long, which their worker may have closed on its side: also where checks are
/// an hour apart.
async fn sweep_for_ever(worker: &Worker, parts: &ProbeParts) {
    loop {
        let idle_max = parts.timeouts.look().upstream_idle;
        let every = idle_max.min(parts.config.look().interval);
        sleep(every.max(SWEEPS_MIN)).await;
        worker.idle.sweep(Instant::now());
    }
}

async fn probe_for_ever(
    worker: &Worker,
    parts: &ProbeParts,
    ask: &Notify,
    turns: &Semaphore,
    whose: Whose,
) {
    let mut every = parts.config.look().interval;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for probe in 0_u64.. {
        ticks.tick().await;
        let now = parts.config.look().interval;
        if now != every {
            every = now;
            ticks = interval_at(Instant::now() + every, every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let recheck = probe % RECHECK_PROBES == RECHECK_PROBES - 1;
        let is_ours = whose == Whose::Ours || parts.duty.is_ours(worker, every);
        if probe > 0 && !recheck && !is_ours {
            continue;
        }
        let turn = match probe {
            0 => turns.acquire().await.ok(),
            _ => None,
        };
        let began = Instant::now();
        let checked = check(worker, parts).await;
        drop(turn);
        if let Err(failed) = &checked
            && (failed.is_own_lack || parts.is_excused(began))
        {
            tracing::debug!(
                worker = &*worker.label,
                why = failed.why,
                "a probe says nothing: this replica had no socket for it, or was late itself"
            );
            continue;
        }
        let good = checked.is_ok();
        let probed = match &checked {
            Ok(()) => Probe::Good,
            Err(failed) => failed.how,
        };
        let result = if good { GOOD } else { BAD };
        let probes = &parts.metrics.workers.probes;
        probes.get_or_create(&ResultLabels { result }).inc();
        let why = checked.as_ref().map_or_else(|failed| &*failed.why, |()| "");
        let changed = worker.health.probed(probed, why);
        if checked.is_err() {
            tracing::debug!(worker = &*worker.label, why, "probe failed");
        }
        if good && (probe == 0 || changed || recheck || worker.models.load().is_empty()) {
            ask.notify_one();
        }
    }
}

/// A probe that did not get a 2xx.
struct Failed {
    /// What a person should know.
    why: String,
    /// Which kind of failure it is.
    how: Probe,
    /// This replica had no socket to ask with.
    is_own_lack: bool,
}

/// Ok for a 2xx.
async fn check(worker: &Worker, parts: &ProbeParts) -> Result<(), Failed> {
    let result = get(worker, &parts.config.now()).await;
    worker.connected(&result.as_ref().map_err(io_kind));
    if let Some(date) = result.as_ref().ok().and_then(date) {
        worker.clock.note(date, SystemTime::now());
    }
    match result {
        Ok(response) if response.status().is_success() => Ok(()),
        Ok(response) if response.status() == StatusCode::LOOP_DETECTED => Err(Failed {
            why: format!("{IS_REPLICA}, or asks one (508)"),
            how: Probe::Bad,
            is_own_lack: false,
        }),
        Ok(response) => Err(Failed {
            why: format!("it answered {}", response.status()),
            how: Probe::Bad,
            is_own_lack: false,
        }),
        Err(error) => Err(Failed {
            why: in_words(&error),
            how: how(&error),
            is_own_lack: io_errors(&error).any(is_own_lack),
        }),
    }
}

fn date(response: &reqwest::Response) -> Option<&str> {
    response.headers().get(DATE)?.to_str().ok()
}

/// An error with its causes: what TLS or the rule of `workers.allow` says is the last of them.
fn in_words(error: &anyhow::Error) -> String {
    let causes = format!("{error:#}");
    match causes.contains(NO_TLS) {
        true => format!("what answers there does not speak TLS: declare it as http:// ({causes})"),
        false => causes,
    }
}

/// Which kind of failure an error is that left a check without an answer.
fn how(error: &anyhow::Error) -> Probe {
    let is_late = error
        .downcast_ref::<reqwest::Error>()
        .is_some_and(reqwest::Error::is_timeout);
    let is_nameless = |cause: &(dyn Error + 'static)| cause.is::<NoAddress>();
    if error.chain().any(is_nameless) || io_errors(error).any(is_unresolved) {
        Probe::NoAddress
    } else if is_late {
        Probe::Unanswered
    } else if io_kind(error).kind() == io::ErrorKind::ConnectionRefused {
        Probe::Refused
    } else {
        Probe::NoConnection
    }
}

async fn get(worker: &Worker, config: &HealthConfig) -> anyhow::Result<reqwest::Response> {
    let request = worker.connector.get(&worker.address, &config.path).await?;
    Ok(request.timeout(config.timeout).send().await?)
}

/// Errors of sockets, and of what they need, among the causes of one.
fn io_errors(error: &anyhow::Error) -> impl Iterator<Item = &io::Error> {
    error.chain().filter_map(|cause| cause.downcast_ref())
}

/// The kind of the socket's error that a check failed with.
fn io_kind(error: &anyhow::Error) -> io::Error {
    let first = io_errors(error).next();
    first.map_or(io::ErrorKind::Other, io::Error::kind).into()
}
