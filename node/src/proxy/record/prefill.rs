//! What the record knows of a prefill leg: the worker that computes the prompt for another one.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use super::Record;
use crate::cluster::RecordedPlacement;
use crate::http::sse::Usage;
use crate::proxy::session_id::name_text;
use crate::upstream::Worker;
use crate::upstream::failure::Failure;

/// What a prefill worker did for a request.
#[derive(Debug)]
pub(super) struct PrefillLeg {
    pub(super) worker: Arc<Worker>,
    /// Why it was chosen.
    reason: &'static str,
    /// What placement recorded of it.
    pub(super) recorded: Option<RecordedPlacement>,
    begun: Instant,
    /// Until its whole answer was there.
    pub(super) took: Option<Duration>,
    /// Tokens of the prompt that it had in its cache, as it says.
    pub(super) cached_tokens: Option<u64>,
    /// The first decode worker after it is of the same attempt.
    is_alone: bool,
}

impl Record {
    /// A prefill worker is to compute the prompt: the attempt counts from here, whether or not a decode worker is asked.
    pub fn prefill_placed(
        &mut self,
        worker: &Arc<Worker>,
        reason: &'static str,
        recorded: Option<RecordedPlacement>,
    ) {
        if let Some(trace) = &mut self.trace {
            let url = &worker.address.url;
            trace.prefill(&worker.label, url.host(), url.port());
        }
        self.attempts += 1;
        self.prefill = Some(Box::new(PrefillLeg {
            worker: Arc::clone(worker),
            reason,
            recorded,
            begun: Instant::now(),
            took: None,
            cached_tokens: None,
            is_alone: true,
        }));
    }

    /// Whether a decode worker that is asked now is of the attempt that the prefill leg began.
    pub(super) fn joins_prefill(&mut self) -> bool {
        let leg = self.prefill.as_mut();
        leg.is_some_and(|leg| std::mem::take(&mut leg.is_alone))
    }

    /// Makes the prefill leg the parent of what its worker does, where traces are on.
    ///
    /// And names the text to a worker that publishes which blocks it becomes.
    pub fn propagate_prefill(&self, headers: &mut HeaderMap) {
        let leg = self.prefill.as_ref();
        name_text(leg.and_then(|leg| leg.recorded.as_ref()), headers);
        if let Some(trace) = &self.trace {
            trace.propagate_prefill(headers);
        }
    }

    /// The prefill worker has computed the prompt, whatever comes of the answer.
    pub fn prefill_computed(&mut self) {
        let leg = self.prefill.as_mut();
        if let Some(recorded) = leg.and_then(|leg| leg.recorded.as_mut()) {
            recorded.settle();
        }
    }

    /// The prefill worker has computed the prompt; `usage`: what it says of it.
    pub fn prefilled(&mut self, at: Instant, usage: Option<Usage>) {
        if let Some(trace) = &mut self.trace {
            trace.prefill_ended(None);
        }
        self.prefill_computed();
        let Some(leg) = &mut self.prefill else { return };
        leg.took = Some(at.saturating_duration_since(leg.begun));
        let Some(usage) = usage else { return };
        leg.cached_tokens = usage.cached_tokens;
        let has_told = usage.cached_tokens.is_some();
        // Some policies expect nothing.
        let recorded = leg.recorded.as_ref().filter(|_| has_told);
        let expected = recorded.map_or(0, RecordedPlacement::expected_tokens);
        let (answers, model) = (&self.metrics.answers, self.series.label());
        answers.count_cached(&leg.worker, model, &usage, expected);
        if let Some(recorded) = recorded {
            self.cluster.cache_view().correct(recorded, &usage);
        }
    }

    /// The prefill leg gave nothing; its worker has had its verdict.
    pub fn prefill_failed(&mut self, failure: &Failure) {
        if let Some(trace) = &mut self.trace {
            trace.prefill_ended(Some(failure.as_str()));
        }
        if let Some(leg) = &self.prefill {
            self.failed_worker = Some(Arc::clone(&leg.worker));
        }
        self.forget_prefill();
    }

    /// The prefill leg was given up for a failure of the other one.
    pub fn prefill_given_up(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.prefill_ended(Some("given_up"));
        }
        self.forget_prefill();
    }

    /// The answer is good, so the prompt was computed: what its worker says of it is not waited for any more.
    pub fn prefill_unheard(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.prefill_ended(Some("given_up"));
        }
        // What was recorded of it is true, and stays.
        self.prefill = None;
    }

    fn forget_prefill(&mut self) {
        let leg = self.prefill.take();
        if let Some(recorded) = leg.and_then(|leg| leg.recorded) {
            self.cluster.cache_view().retract(recorded);
        }
    }

    /// What the prefill worker says is what the client gets.
    pub fn prefill_answers(&mut self) {
        if let Some(leg) = self.prefill.take() {
            // It refuses it, and has computed nothing.
            if let Some(recorded) = leg.recorded {
                self.cluster.cache_view().retract(recorded);
            }
            self.reason = leg.reason;
            self.worker = Some(leg.worker);
        }
    }

    /// One worker is to have all of it: what a prefill worker did for an attempt before is no part of the answer.
    pub fn undivided(&mut self) {
        self.prefill = None;
    }

    /// The worker that computed the prompt, if another one than that of the answer.
    pub fn prefill_worker(&self) -> Option<&Arc<str>> {
        self.prefill.as_ref().map(|leg| &leg.worker.label)
    }
}
