//! A request's weight on its worker, held from placement to the last byte.

use std::sync::Arc;

use grapevine_gossip::load::Load;
use grapevine_placement::{AttemptOutcome, Decision, Permit};
use tokio::time::Instant;

use super::worker::Worker;

/// Counts a request on its worker while it lives. Travels inside the response body.
#[derive(Debug)]
pub struct InFlight {
    worker: Arc<Worker>,
    /// It got a token.
    delivered: bool,
    held: Load,
    permit: Option<Permit>,
    since: Instant,
    /// Tokens to be computed before its first one.
    tokens_before: u64,
}

impl InFlight {
    /// Counts a request: what the decision does not expect in the worker's cache has yet to be computed.
    /// `None`: the worker became unusable meanwhile, or its half-open breaker has its trial already.
    pub fn begin(worker: &Arc<Worker>, decision: &Decision) -> Option<Self> {
        let permit = worker.health.begin(decision.panic)?;
        let held = Load {
            requests: 1,
            prefill_tokens: decision.prefill_tokens().into(),
            context_tokens: decision.prompt_tokens.into(),
        };
        worker.load.add(held);
        Some(Self {
            worker: Arc::clone(worker),
            delivered: false,
            held,
            permit: Some(permit),
            since: Instant::now(),
            tokens_before: decision.tokens_before,
        })
    }

    /// The worker it counts on.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// The first token is there: the prompt has been computed.
    pub fn prefilled(&mut self) {
        let done = Load {
            prefill_tokens: std::mem::take(&mut self.held.prefill_tokens),
            ..Load::default()
        };
        self.worker.load.subtract(done);
    }

    /// The worker's engine, not only its HTTP server, has worked on this request: the first token is there.
    pub fn delivered(&mut self) {
        let waited = self.since.elapsed().as_secs_f64();
        self.worker.pace.answered(self.tokens_before, waited * 1e3);
        self.delivered = true;
        self.worker.health.delivered();
    }

    /// A further token came.
    pub fn goes_on(&self, now: Instant) {
        self.worker.health.goes_on(now);
    }

    /// The request has waited as long as it may, without a sign of life since `since`.
    pub fn stalled(&self, since: Instant) {
        self.worker.health.stalled(since);
    }

    /// The request ended, with what its end shows about the worker. Later calls do nothing.
    pub fn end(&mut self, outcome: AttemptOutcome) {
        let held = std::mem::take(&mut self.held);
        self.worker.load.subtract(held);
        let Some(permit) = self.permit.take() else {
            return;
        };
        if self.delivered && outcome == AttemptOutcome::Success {
            self.worker.health.delivered();
        }
        let load = grapevine_placement::Load {
            requests: held.requests.into(),
            prefill_tokens: held.prefill_tokens as f64,
            context_tokens: held.context_tokens as f64,
        };
        self.worker.health.end(permit, outcome, load);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // A handler that was dropped: the client left, which says nothing about the worker.
        self.end(AttemptOutcome::Neutral);
    }
}
