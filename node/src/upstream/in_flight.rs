//! A request's weight on its worker, held from placement to the last byte.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use grapevine_gossip::load::Load;
use grapevine_placement::{AttemptOutcome, Decision, Permit};
use tokio::time::Instant;

use super::failure::Failure;
use super::patience::LOOKS;
use super::worker::Worker;

/// Counts a request on its worker while it lives. Travels inside the response body.
#[derive(Debug)]
pub struct InFlight {
    worker: Arc<Worker>,
    held: Load,
    /// What it held until it ended, where its end is told later.
    weighed: Load,
    permit: Option<Permit>,
    /// Its end shows how the worker's engine is. Else an HTTP server alone answers, whose answers, good and bad ones, say
    /// nothing to the breaker: it would let an engine have requests that computes none.
    judged: bool,
    since: Instant,
    prompt_tokens: u64,
    /// Since when it waits for its first piece, and for how long it may; none before it was sent, once that is there, and
    /// where an end says itself how the worker is.
    silence: Option<(Instant, Duration)>,
    /// Tokens to be computed before its first one; none where another worker computes the prompt.
    tokens_before: Option<u64>,
}

impl InFlight {
    /// Counts a request, all of it.
    /// `None`: the worker became unusable meanwhile, or its half-open breaker has its trial already.
    pub fn begin(worker: &Arc<Worker>, decision: &Decision) -> Option<Self> {
        let permit = worker.health.begin(decision.panic)?;
        let mut begun = Self::holding(worker, decision, whole(decision), permit);
        begun.tokens_before = Some(decision.tokens_before);
        Some(begun)
    }

    /// The same for a worker that gets the prompt's KV from another one: it takes room from now on, before it is there.
    pub fn begin_arriving(worker: &Arc<Worker>, decision: &Decision) -> Option<Self> {
        let permit = worker.health.begin(decision.panic)?;
        let held = Load {
            prefill_tokens: 0,
            ..whole(decision)
        };
        Some(Self::holding(worker, decision, held, permit))
    }

    /// A request whose end shows nothing of the worker's engine, which has no prompt to compute.
    pub fn begin_unjudged(worker: &Arc<Worker>, decision: &Decision) -> Option<Self> {
        let held = Load {
            prefill_tokens: 0,
            ..whole(decision)
        };
        Self::unjudged(worker, decision, held)
    }

    /// The same for one that is about what the worker holds: it takes no place there.
    pub fn begin_weightless(worker: &Arc<Worker>, decision: &Decision) -> Option<Self> {
        Self::unjudged(worker, decision, Load::default())
    }

    fn unjudged(worker: &Arc<Worker>, decision: &Decision, held: Load) -> Option<Self> {
        let permit = worker.health.begin_unjudged(decision.panic)?;
        let mut begun = Self::holding(worker, decision, held, permit);
        begun.judged = false;
        Some(begun)
    }

    fn holding(worker: &Arc<Worker>, decision: &Decision, held: Load, permit: Permit) -> Self {
        worker.load.add(held);
        worker.open.fetch_add(1, Ordering::Relaxed);
        Self {
            worker: Arc::clone(worker),
            held,
            weighed: Load::default(),
            permit: Some(permit),
            judged: true,
            since: Instant::now(),
            prompt_tokens: decision.prompt_tokens.into(),
            silence: None,
            tokens_before: None,
        }
    }

    /// Whether its end shows how its worker's engine is.
    pub fn is_judged(&self) -> bool {
        self.judged
    }

    /// It is sent now, and may wait so long for what this worker alone gives.
    pub fn waits(&mut self, silence: Duration) {
        self.silence = Some((Instant::now(), silence));
    }

    /// The worker it counts on.
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// A piece of its answer has come.
    pub fn is_heard(&mut self) {
        self.silence = None;
    }

    /// The first token is there: the prompt has been computed.
    pub fn prefilled(&mut self) {
        self.is_heard();
        self.is_computed();
    }

    /// Its prompt waits no more.
    pub fn is_computed(&mut self) {
        let done = Load {
            prefill_tokens: std::mem::take(&mut self.held.prefill_tokens),
            ..Load::default()
        };
        self.worker.load.subtract(done);
    }

    /// The worker's engine, not only its HTTP server, has worked on this request: the first token is there.
    pub fn delivered(&mut self) {
        let waited = self.since.elapsed().as_secs_f64();
        if let Some(tokens) = self.tokens_before {
            self.worker.pace.answered(tokens, waited * 1e3);
        }
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

    /// Nothing runs for it any more; its prompt takes room there, and what its end shows about the worker is to come.
    pub fn holds_prompt(&mut self) {
        let load = Load {
            context_tokens: self.prompt_tokens,
            ..Load::default()
        };
        self.worker.load.add(load);
        let before = std::mem::replace(&mut self.held, load);
        self.worker.load.subtract(before);
    }

    /// Its prompt takes no room there any more; what its end shows about the worker is still to come.
    pub fn holds_nothing(&mut self) {
        self.worker.load.subtract(std::mem::take(&mut self.held));
    }

    /// It weighs nothing any more. What its end shows about the worker is still to come, and counts with what it weighed.
    pub fn has_ended(&mut self) {
        self.weighed = std::mem::take(&mut self.held);
        self.worker.load.subtract(self.weighed);
    }

    /// The request ended, which shows nothing about the worker; its prompt takes room there until this is dropped.
    pub fn only_holds(&mut self) {
        self.end(AttemptOutcome::Neutral);
        self.holds_prompt();
    }

    /// The client leaves, or its time is over; its wait for a first piece may be one of many.
    pub fn given_up(&mut self) {
        if let Some((since, silence)) = self.silence.take().filter(|_| self.judged) {
            self.worker.health.left(since, silence, silence / LOOKS);
        }
    }

    /// The attempt failed, which says `verdict` of the worker; a silence began at `since`.
    pub fn fail(&mut self, why: &Failure, verdict: AttemptOutcome, since: Instant) {
        let verdict = match why.status() {
            Some(_) if !self.judged => AttemptOutcome::Neutral,
            _ => verdict,
        };
        match why {
            Failure::OutOfTime => self.given_up(),
            _ => self.silence = None,
        }
        if matches!(why, Failure::Late) && verdict == AttemptOutcome::Failure {
            self.stalled(since);
        }
        self.end(verdict);
        if why.is_broken_connection() {
            self.worker.unreachable();
        }
    }

    /// The attempt failed, which says of the worker what such failures say; a silence began at `since`.
    pub fn failed(mut self, why: &Failure, since: Instant) {
        self.fail(why, why.verdict(), since);
    }

    /// The request ended, with what its end shows about the worker. Later calls do nothing.
    ///
    /// A good end is no sign of life: a client that reads slowly reads it long after the worker has written it.
    pub fn end(&mut self, outcome: AttemptOutcome) {
        let held = std::mem::take(&mut self.held);
        self.worker.load.subtract(held);
        let Some(permit) = self.permit.take() else {
            return;
        };
        let outcome = match outcome {
            AttemptOutcome::Success if !self.judged => AttemptOutcome::Neutral,
            outcome => outcome,
        };
        let weighed = match held == Load::default() {
            true => self.weighed,
            false => held,
        };
        let load = grapevine_placement::Load {
            requests: weighed.requests.into(),
            prefill_tokens: weighed.prefill_tokens as f64,
            context_tokens: weighed.context_tokens as f64,
        };
        self.worker.health.end(permit, outcome, load);
    }
}

/// All of a request: what the decision does not expect in the worker's cache has yet to be computed.
fn whole(decision: &Decision) -> Load {
    Load {
        requests: 1,
        prefill_tokens: decision.prefill_tokens().into(),
        context_tokens: decision.prompt_tokens.into(),
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // A handler that was dropped: the client left, which says nothing about the worker, but for how long it had waited.
        if self.permit.is_some() {
            self.given_up();
        }
        self.end(AttemptOutcome::Neutral);
        self.worker.open.fetch_sub(1, Ordering::Relaxed);
    }
}
