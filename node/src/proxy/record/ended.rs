//! The end of a record: everything that is counted once, the trace, and the line of the access log.

use std::time::Duration;

use http::StatusCode;

use super::Record;
use crate::api::error::ErrorKind;
use crate::cluster::RecordedPlacement;
use crate::http::sse::Usage;
use crate::proxy::outcome::Outcome;
use crate::tenants::Charge;
use crate::trace::Ended;
use crate::upstream::Worker;

impl Record {
    /// Counts. Later calls do nothing.
    pub fn finish(&mut self, outcome: Outcome) {
        if self.ended.is_some() {
            return;
        }
        if let Some(since) = self.waits_since {
            self.waited(Some(since.elapsed()));
        }
        self.admission = None;
        if let Some(bytes) = self.sent_ahead() {
            self.status = Some(StatusCode::OK);
            self.bytes_out += bytes;
        }
        let is_reread = self.is_reread();
        if is_reread {
            self.usage = None;
        }
        let elapsed = self.started.elapsed();
        self.ended = Some((outcome, elapsed));
        let metrics = &self.metrics;
        metrics.traffic.requests_active.dec();
        let within = self.sampled_span();
        self.series
            .ended(self.endpoint, outcome, self.status, elapsed, within);
        if let (Outcome::Error, None, Some(status)) = (outcome, self.error, self.status) {
            metrics.refusals.worker_error(status);
        }
        metrics.answers.relayed(self.events);
        if let Some(way) = self.split {
            metrics.split.way(way);
        }
        if let Some(worker) = self.worker.as_ref().filter(|_| !is_reread) {
            self.count_tokens(worker);
        }
        if let Some(charge) = self.charge.take() {
            let used = self.used_tokens(&charge);
            charge.settle(used);
        }
        // Nothing of it came: a worker drops what still waits there, and the next one with this prompt must not take the
        // worker for one that forgets.
        if !matches!(outcome, Outcome::Success | Outcome::Incomplete) {
            let leg = self.prefill.as_mut().map(|leg| &mut leg.recorded);
            for recorded in [Some(&mut self.recorded), leg].into_iter().flatten() {
                if let Some(recorded) = recorded.take_if(|recorded| !recorded.is_computed()) {
                    self.cluster.cache_view().retract(recorded);
                }
            }
        }
        if let Some(recording) = self.recording.take()
            && outcome == Outcome::Success
        {
            recording.keep();
        }
        self.count_pace(outcome);
    }

    /// Logs, and hands the spans over.
    pub(super) fn write(&mut self) {
        let Some((outcome, elapsed)) = self.ended else {
            return;
        };
        self.log(outcome, elapsed);
        if let Some(trace) = self.trace.take() {
            trace.end(&self.ended(outcome));
        }
    }

    /// Once a stream: a histogram is behind a lock, which no event waits for.
    fn count_pace(&self, outcome: Outcome) {
        if self.is_reread() {
            return;
        }
        if let Some(gaps) = &self.gaps {
            self.series.pace().inter_token.add(gaps);
        }
        let (Outcome::Success, 2..) = (outcome, self.events) else {
            return;
        };
        let (pace, within) = (self.series.pace(), self.sampled_span());
        let tokens = self.completion_tokens().unwrap_or(self.counted_tokens);
        if tokens > 1 {
            let mean = self.streamed.as_secs_f64() / (tokens - 1) as f64;
            let mean = Duration::from_secs_f64(mean);
            pace.per_token.observe(mean, within);
        }
        pace.pause.observe(self.longest_pause, within);
    }

    fn ended(&self, outcome: Outcome) -> Ended<'_> {
        let by_status = self.status.is_some_and(|status| status.is_server_error());
        let by_outcome = match outcome {
            Outcome::Success | Outcome::Incomplete | Outcome::ClientLeft | Outcome::Error => false,
            Outcome::WorkerError
            | Outcome::WorkerBroke
            | Outcome::WorkerStalled
            | Outcome::OutOfTime
            | Outcome::ShutDown => true,
        };
        Ended {
            outcome: outcome.as_str(),
            is_failure: by_status || by_outcome,
            status: self.status,
            model: self.model.as_deref(),
            cache: self.cache,
            prompt_tokens: self.usage.map(|usage| usage.prompt_tokens),
            completion_tokens: self.completion_tokens(),
            first_token: self.first_token,
        }
    }

    fn count_tokens(&self, worker: &Worker) {
        let (answers, model) = (&self.metrics.answers, self.series.label());
        let made_here = |tokens: u64| tokens.saturating_sub(self.moved_tokens);
        let told = self.completion_tokens();
        if told.is_none() {
            answers.count_events(worker, model, made_here(self.counted_tokens));
        }
        let Some(usage) = self.usage else { return };
        let has_told = usage.cached_tokens.is_some();
        let says = has_told && !self.kv_arrived;
        let recorded = self.recorded.as_ref().filter(|_| says);
        let expected = recorded.map(RecordedPlacement::expected_tokens);
        let own = Usage {
            completion_tokens: told.map_or(0, made_here),
            ..usage
        };
        answers.count(worker, model, &own, expected, self.kv_arrived);
        if let Some(recorded) = recorded {
            self.cluster.cache_view().correct(recorded, &usage);
        }
    }

    /// Tokens of its prompt and its answer, by its worker's word; where it has none, by the bytes of its body and the events
    /// of the answer. None where no worker computed anything.
    fn used_tokens(&self, charge: &Charge) -> u64 {
        let is_refused = |status: StatusCode| status.is_client_error() || status.is_server_error();
        if self.worker.is_none() || self.status.is_some_and(is_refused) {
            return 0;
        }
        let prompt = match self.usage {
            Some(usage) => usage.prompt_tokens,
            None => charge.tokens_of(self.bytes_in.unwrap_or_default()),
        };
        prompt.saturating_add(self.completion_tokens().unwrap_or(self.counted_tokens))
    }

    fn log(&self, outcome: Outcome, elapsed: Duration) {
        tracing::info!(
            target: "grapevine::access",
            request_id = self.request_id.to_str().unwrap_or("-"),
            client = self.client.map(tracing::field::display),
            endpoint = self.endpoint.as_str(),
            key = self.key.as_ref().map(|key| key.name()),
            tenant = self.tenant.as_ref().map(|tenant| &**tenant.name()),
            priority = self.priority.as_str(),
            queued_ms = self.queued.map(tenths_of_ms),
            asked_model = self.asked_model.as_deref(),
            model = self.model.as_deref().filter(|model| !model.is_empty()),
            worker = self.worker.as_ref().map(|w| &*w.label),
            failed_worker = self.failed_worker.as_ref().map(|w| &*w.label),
            reason = (!self.reason.is_empty()).then_some(self.reason),
            split = self.split,
            prefill_worker = self.prefill.as_ref().map(|leg| &*leg.worker.label),
            prefill_ms = self.prefill.as_ref().and_then(|leg| leg.took).map(tenths_of_ms),
            prefill_cached_tokens = self.prefill.as_ref().and_then(|leg| leg.cached_tokens),
            attempts = self.attempts,
            continued = (self.failovers > 0).then_some(self.failovers),
            status = self.status.map(|s| s.as_u16()),
            error = self.error.map(ErrorKind::code),
            outcome = outcome.as_str(),
            first_token_ms = self.first_token.map(tenths_of_ms),
            ms = tenths_of_ms(elapsed),
            bytes_in = self.bytes_in,
            bytes_out = self.bytes_out,
            prompt_tokens = self.usage.map(|u| u.prompt_tokens),
            cached_tokens = self.usage.and_then(|u| u.cached_tokens),
            completion_tokens = self.completion_tokens(),
            cache = self.cache,
            trace_id = self.trace.as_ref().map(|trace| tracing::field::display(trace.id())),
            "request"
        );
    }
}

/// Milliseconds with one digit behind the point: more is noise in a log.
fn tenths_of_ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}
