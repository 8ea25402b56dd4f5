//! Looks whether a worker lives on which requests wait in silence: do its engine's counters move, does it answer a
//! question for one token?
//!
//! One look at a time for each worker, shared by all requests that wait there, and none where no request waits or
//! others get tokens. Its HTTP server may well answer while the engine stands still, so that alone is no sign. The
//! question is only asked where counters show nothing: it costs a place in the worker's queue.

use std::sync::Arc;

use tokio::time::Instant;

use super::probe_parts::ProbeParts;
use super::worker::Worker;
use super::{token_probe, worker_facts};

/// Looks each time that a request wants a sign.
pub(super) async fn while_wanted(worker: &Arc<Worker>, parts: &ProbeParts) {
    loop {
        worker.health.sign_wanted().await;
        look(worker, parts).await;
    }
}

async fn look(worker: &Arc<Worker>, parts: &ProbeParts) {
    if let Err(error) = worker_facts::read_engine(worker, parts).await {
        tracing::debug!(worker = &*worker.label, %error, "worker did not answer with its metrics");
    }
    // A stalled worker is being asked already.
    if is_young(worker, parts) || !parts.config.look().token_probe || worker.health.awaits_token() {
        return;
    }
    token_probe::ask_and_count(worker, parts).await;
}

/// Whether a sign of life is known that will do for a while.
fn is_young(worker: &Worker, parts: &ProbeParts) -> bool {
    let sign = worker.health.last_sign();
    sign.is_some_and(|at| {
        Instant::now().saturating_duration_since(at) < parts.timeouts.look().first_token / 2
    })
}
