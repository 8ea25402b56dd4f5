//! A request's weight on its worker, held from placement to the last byte.

use std::sync::Arc;

use grapevine_gossip::load::Load;
use grapevine_placement::{Decision, Outcome, Permit};

use super::Worker;

/// Counts a request on its worker while it lives. Travels inside the response body.
#[derive(Debug)]
pub struct InFlight {
    worker: Arc<Worker>,
    held: Load,
    permit: Option<Permit>,
}

impl InFlight {
    /// Counts a request: what the decision does not expect in the worker's cache has yet to be computed.
    /// `None`: the worker's breaker is half-open and has its trial already.
    pub fn begin(worker: &Arc<Worker>, decision: &Decision) -> Option<Self> {
        let permit = worker.health.begin()?;
        let held = Load {
            requests: 1,
            prefill_tokens: decision.prefill_tokens().into(),
            context_tokens: decision.prompt_tokens.into(),
        };
        worker.load.add(held);
        Some(Self {
            worker: Arc::clone(worker),
            held,
            permit: Some(permit),
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

    /// The request ended; says what that tells about the worker. Later calls do nothing.
    pub fn end(&mut self, outcome: Outcome) {
        self.worker.load.subtract(std::mem::take(&mut self.held));
        if let Some(permit) = self.permit.take() {
            self.worker.health.end(permit, outcome);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // A handler that was dropped: the client left, which says nothing about the worker.
        self.end(Outcome::Neutral);
    }
}
