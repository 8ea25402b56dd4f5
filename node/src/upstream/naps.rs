//! Whether a worker's engine sleeps (vLLM's `/sleep` and `/wake_up`, of its development mode).
//!
//! One that sleeps answers checks, and keeps requests until it is woken. Two sources tell, and not the same:
//!
//! | source | whether it sleeps | how it sleeps |
//! |---|---|---|
//! | `/is_sleeping`, where that path is there | as it is, also while its weights alone are back, or its scheduler stands | – |
//! | its metrics | awake as soon as any part is back | yes |
//!
//! So the path goes before the metrics. It is asked as often as the worker is checked, by the replicas that check it; the
//! metrics are long, and read once in many checks. Where that path is not there, which is how vLLM runs unless somebody wants
//! to send engines to sleep, the metrics alone tell; and who can say neither is awake. What is new goes to the registry as a
//! label, so that all replicas pass the worker over, and take it back, alike.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use reqwest::StatusCode;
use serde::Deserialize;
use tokio::time::sleep;

use super::engine_metrics::{EngineMetrics, METRICS_BYTES_MAX, SleepState};
use super::probe_parts::{Fact, Learned, ProbeParts};
use super::question::read;
use super::worker::{Worker, sleep_in};

/// Largest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 1024;

/// Looks whether it fell asleep, or was woken.
pub(super) async fn watch(worker: &Arc<Worker>, parts: &ProbeParts) {
    loop {
        let every = parts.config.look().interval;
        sleep(every).await;
        let may_tell = worker.tells_sleep.load(Ordering::Relaxed) || is_known_asleep(worker);
        if !may_tell || !parts.duty.is_ours(worker, every) {
            continue;
        }
        match is_sleeping(worker, parts).await {
            Ok(sleeps) if sleeps == is_known_asleep(worker) => {}
            Ok(true) => {
                let gauge = gauge_of(worker, parts).await.ok().flatten();
                learn(worker, asleep(gauge), parts).await;
            }
            Ok(false) => learn(worker, SleepState::Awake, parts).await,
            Err(error) if is_no_path(&error) => has_no_path(worker, parts).await,
            Err(error) => {
                tracing::debug!(worker = &*worker.label, %error, "worker did not say whether it sleeps");
            }
        }
    }
}

/// It cannot be asked by itself: its metrics tell, until they are read again.
async fn has_no_path(worker: &Arc<Worker>, parts: &ProbeParts) {
    if is_known_asleep(worker) {
        let gauge = match gauge_of(worker, parts).await {
            Ok(gauge) => gauge,
            // Another engine than the one that fell asleep.
            Err(error) if is_no_path(&error) => None,
            Err(_) => return,
        };
        if gauge.is_none_or(|gauge| gauge == SleepState::Awake) {
            // Asked again until the registry has it.
            learn(worker, SleepState::Awake, parts).await;
            return;
        }
    }
    worker.tells_sleep.store(false, Ordering::Relaxed);
}

/// Notes what its metrics say of it, and tells the registry what is new.
pub(super) async fn note(worker: &Arc<Worker>, facts: &EngineMetrics, parts: &ProbeParts) {
    let is_known = is_known_asleep(worker);
    // One that is known to sleep and has no gauge any more is asked what it says.
    if facts.sleep.is_some() || is_known {
        worker.tells_sleep.store(true, Ordering::Relaxed);
    }
    let Some(gauge) = facts.sleep else { return };
    let says = gauge != SleepState::Awake;
    if says == is_known {
        return;
    }
    let sleeps = match is_sleeping(worker, parts).await {
        Ok(sleeps) => sleeps,
        Err(error) if status_of(&error).is_some() => says,
        // Its engine may be at something else, such as its weights: it says so later.
        Err(_) => return,
    };
    if sleeps != is_known {
        let state = match sleeps {
            true => asleep(Some(gauge)),
            false => SleepState::Awake,
        };
        learn(worker, state, parts).await;
    }
}

async fn learn(worker: &Arc<Worker>, state: SleepState, parts: &ProbeParts) {
    tracing::info!(
        worker = &*worker.label,
        state = state.as_str(),
        "a worker's engine says whether it sleeps"
    );
    let learned = Learned {
        worker: Arc::clone(worker),
        fact: Fact::Sleep(state),
    };
    // The receiver is gone once the replica ends.
    let _ = parts.learned.send(learned).await;
}

/// How it sleeps, which its gauges do not always know.
fn asleep(gauge: Option<SleepState>) -> SleepState {
    let gauge = gauge.filter(|gauge| *gauge != SleepState::Awake);
    gauge.unwrap_or(SleepState::Paused)
}

/// What its gauges say.
async fn gauge_of(worker: &Worker, parts: &ProbeParts) -> anyhow::Result<Option<SleepState>> {
    let metrics = read(worker, "/metrics", METRICS_BYTES_MAX, parts).await?;
    let metrics = String::from_utf8_lossy(&metrics);
    Ok(EngineMetrics::parse(&metrics, worker.address.rank()).sleep)
}

fn is_known_asleep(worker: &Worker) -> bool {
    sleep_in(&worker.about.load().labels).is_some()
}

async fn is_sleeping(worker: &Worker, parts: &ProbeParts) -> anyhow::Result<bool> {
    #[derive(Deserialize)]
    struct Answer {
        is_sleeping: bool,
    }
    let answer = read(worker, "/is_sleeping", ANSWER_BYTES_MAX, parts).await?;
    Ok(serde_json::from_slice::<Answer>(&answer)?.is_sleeping)
}

fn is_no_path(error: &anyhow::Error) -> bool {
    let no_path = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
    status_of(error).is_some_and(|status| no_path.contains(&status))
}

/// With which it refused to answer.
fn status_of(error: &anyhow::Error) -> Option<StatusCode> {
    error.downcast_ref::<reqwest::Error>()?.status()
}
