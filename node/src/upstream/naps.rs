//! Whether a worker's engine sleeps (vLLM's `/sleep` and `/wake_up`, of its development mode).
//!
//! One that sleeps answers checks, and keeps requests until it is woken. Its metrics say so; they are long, and read once in
//! many checks. So a worker whose metrics know the state is asked for it at `/is_sleeping` as often as it is checked, by the
//! replicas that check it; where that path is not there, which is how vLLM runs unless somebody wants to send engines to
//! sleep, the metrics alone tell. What is new goes to the registry as a label, so that all replicas pass the worker over, and
//! take it back, alike.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use reqwest::StatusCode;
use serde::Deserialize;
use tokio::time::sleep;

use super::engine_metrics::SleepState;
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
        if !worker.tells_sleep.load(Ordering::Relaxed) || !parts.duty.is_ours(worker, every) {
            continue;
        }
        match is_sleeping(worker, parts).await {
            Ok(sleeps) if sleeps == is_known_asleep(worker) => {}
            // Its metrics know how it sleeps: it is asked for them.
            Ok(_) => worker.doubted.notify_one(),
            Err(error) => {
                if is_no_path(&error) {
                    worker.tells_sleep.store(false, Ordering::Relaxed);
                }
                tracing::debug!(worker = &*worker.label, %error, "worker did not say whether it sleeps");
            }
        }
    }
}

/// Notes what its metrics say of it, and tells the registry what is new.
pub(super) async fn note(worker: &Arc<Worker>, state: SleepState, parts: &ProbeParts) {
    worker.tells_sleep.store(true, Ordering::Relaxed);
    if (state != SleepState::Awake) == is_known_asleep(worker) {
        return;
    }
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
    let error = error.downcast_ref::<reqwest::Error>();
    let status = error.and_then(reqwest::Error::status);
    status.is_some_and(|status| {
        [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED].contains(&status)
    })
}
