//! What follows from the end of a leg: who is to blame, who may be chosen again, what is left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use grapevine_gossip::worker::Labels;
use grapevine_placement::AttemptOutcome;
use grapevine_transfer::{BadAnswer, Connector};
use tokio::time::Instant;

use super::computed::Computed;
use super::pair::{PlacedHalf, Tried, UnderWay};
use super::plan::ToPair;
use crate::cluster::{Pool, PoolMember};
use crate::http::sse;
use crate::proxy::division::blame::{self, Fault};
use crate::proxy::retry::Exhausted;
use crate::proxy::stages::placed::Sent;
use crate::upstream::Worker;
use crate::upstream::failure::Failure;
use crate::upstream::probe_parts::{Fact, Learned};

impl ToPair<'_> {
    /// The prompt is computed, and the answer says something about the worker that did it.
    pub(super) fn prefilled(&mut self, computed: &Computed) {
        let usage = sse::usage_of(&computed.answer);
        self.record.prefilled(computed.at, usage);
        let learned = self.learned(computed);
        if learned.is_empty() {
            return;
        }
        if let Ok(labels) = Labels::new(learned) {
            let worker = Arc::clone(computed.worker());
            let fact = Fact::Labels(labels);
            // While many are being learned it is learned from a later answer.
            let _ = self.dispatch.learned.try_send(Learned { worker, fact });
        }
    }

    /// What its prefill worker's answer says of it that is not known.
    fn learned(&self, computed: &Computed) -> Vec<(String, String)> {
        let member = &self.halves.prefill.members()[computed.index];
        let known = member.half().unwrap_or(&computed.half);
        grapevine_transfer::learned(known, &computed.answer)
    }

    /// The prefill worker's answer does not say where the KV is, so no decode worker could fetch it.
    pub(super) fn says_nothing(&mut self, computed: Computed, bad: BadAnswer) -> Failure {
        let worker = computed.worker();
        if self.form.may_be_silent() && matches!(bad, BadAnswer::NoParams) {
            // No fault of the worker's: the next attempt, which costs no budget, is on a worker that has all of it.
            worker.silent_forms.note(self.form);
            self.is_untold = true;
            computed.ends(AttemptOutcome::Neutral);
            return Failure::WorkerBad;
        }
        tracing::warn!(
            prefill = &*worker.label,
            %bad,
            "a prefill worker does not say where the KV of a prompt is: is a KV connector configured there?"
        );
        computed.ends(AttemptOutcome::Failure);
        Failure::Malformed(bad.into())
    }

    /// The client gets what the prefill worker says: a 4xx, which any worker would give.
    pub(super) fn shown(&mut self, sent: Sent) -> Sent {
        self.record.prefill_answers();
        sent
    }

    pub(super) fn prefill_failed(
        &mut self,
        worker: &Arc<Worker>,
        begun: Instant,
        failure: Failure,
    ) -> Failure {
        self.record.prefill_failed(&failure);
        let dispatch = self.dispatch;
        self.asked.failed_on(dispatch, worker, begun, &failure);
        failure
    }

    pub(super) fn decode_failed(
        &mut self,
        pair: UnderWay,
        computed: Option<Computed>,
        failure: Failure,
    ) -> Failure {
        self.record.attempt_failed(&failure);
        let dispatch = self.dispatch;
        self.asked
            .failed_on(dispatch, &pair.decode.0, pair.begun, &failure);
        if pair.may_be_transfer(&failure) {
            let fault = self.transfer_failed(&pair, &failure);
            if let Some(computed) = computed {
                computed.leave();
            }
            if fault == Fault::Prefill {
                // As behind any verdict: what moves is work that nobody does, and costs no budget.
                self.unheard = Some(failure);
                return Failure::WorkerBad;
            }
        } else {
            // The prefill worker has the prompt in its cache.
            forget(&mut self.tried.prefill, pair.prefill.1);
            self.keeps(computed, &failure);
        }
        failure
    }

    fn transfer_failed(&mut self, pair: &UnderWay, failure: &Failure) -> Fault {
        let fault = pair.fault();
        self.dispatch.metrics.split.transfer_failed(fault.as_str());
        tracing::warn!(
            prefill = &*pair.prefill.0.label,
            decode = &*pair.decode.0.label,
            failure = failure.as_str(),
            blamed = fault.as_str(),
            "the KV of a prompt did not come from the prefill to the decode worker"
        );
        let worker = &pair.prefill.0;
        worker.doubt_engine();
        let is_gone = blame::is_gone(worker);
        if is_gone {
            self.ejects(worker);
        }
        let Tried { prefill, decode } = &mut self.tried;
        let is_answer = failure.status().is_some();
        for pair in self.evidence.adds(pair, fault, is_gone, is_answer) {
            let halves = [&self.halves.prefill, &self.halves.decode];
            for ((worker, half), tried) in
                pair.iter().zip(halves).zip([&mut *prefill, &mut *decode])
            {
                let Some(index) = half.index_of(worker) else {
                    continue;
                };
                forget(tried, index);
                if self.evidence.speaks_against(worker) {
                    tried.push(index);
                }
            }
        }
        fault
    }

    /// A prefill worker is proved to be broken. While no other one can be used it stays in use: every prompt would be refused.
    fn ejects(&self, worker: &Arc<Worker>) {
        if has_another(&self.halves.prefill, worker) {
            worker.health.eject();
        }
    }

    /// What its client is told when all attempts are over: the words of a decode worker count, also where it was not to
    /// blame.
    pub(in crate::proxy) fn says(&mut self, exhausted: Exhausted) -> Exhausted {
        match (exhausted, self.unheard.take()) {
            (Exhausted::Failed(Failure::WorkerBad), Some(said)) => Exhausted::Failed(said),
            (exhausted, _) => exhausted,
        }
    }

    /// After a failure that is the decode worker's alone: what is computed may serve another one.
    fn keeps(&mut self, computed: Option<Computed>, failure: &Failure) {
        let Some(computed) = computed else { return };
        let connector = computed.half.connector();
        // An engine that got the request tells the prefill worker that it fetches nothing, also where it is full or paused
        // (vLLM's `_with_kv_transfer_rejection_cleanup`): the blocks go to other prompts, and who fetches them then does not
        // notice. What is in a store stays there.
        let is_kept = failure.is_unsent() && connector.survives_unsent_decode()
            || failure.is_back_pressure() && connector == Connector::Store;
        if is_kept {
            self.computed = Some(computed.not_offered());
        } else {
            computed.leave();
        }
    }

    /// The decode worker has an answer that may be shown.
    /// `computed`: what its prefill worker said, if it did.
    pub(super) fn answered(&mut self, computed: Option<Computed>, pair: UnderWay, sent: &Sent) {
        if !sent.answer.status().is_success() {
            // It refuses what the prefill worker took, and fetches nothing.
            if let Some(computed) = computed {
                computed.leave();
            }
            return;
        }
        let now = Instant::now();
        pair.prefill.0.has_transferred(now);
        pair.decode.0.has_transferred(now);
        let is_other_engine = &pair.prefill.0.is_other_engine;
        // Until all know the name that an answer taught, the former one is that of an engine that is gone.
        let is_known = |computed| self.learned(computed).is_empty();
        if is_other_engine.load(Ordering::Relaxed) && computed.as_ref().is_some_and(is_known) {
            is_other_engine.store(false, Ordering::Relaxed);
        }
        if self.asked.outgoing().stream {
            let waited = pair.begun.elapsed().as_secs_f64();
            let transfers = &self.dispatch.metrics.split.transfer_seconds;
            transfers.observe(waited);
        }
        for broken in self.evidence.proves(&pair) {
            self.ejects(broken);
        }
        if let Some(computed) = computed {
            computed.ends(AttemptOutcome::Success);
        }
    }

    /// The decode worker was chosen for nothing, and can be chosen again.
    pub(super) fn gives_back(&mut self, decode: PlacedHalf) {
        forget(&mut self.tried.decode, decode.index);
        drop(decode);
        self.dispatch.admission.worker_has_room();
    }
}

/// Whether another worker of a half than this one can be used.
fn has_another(half: &Pool, worker: &Arc<Worker>) -> bool {
    let is_other = |member: &&PoolMember| !Arc::ptr_eq(&member.worker, worker) && !member.is_out();
    let mut others = half.members().iter().filter(is_other);
    others.any(|member| member.worker.health.is_usable())
}

/// It may be chosen again.
pub(super) fn forget(tried: &mut Vec<usize>, worker: usize) {
    tried.retain(|index| *index != worker);
}
