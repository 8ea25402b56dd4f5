//! The way of a request to a pair of workers, attempt by attempt.
//!
//! | what fails | next attempt |
//! |---|---|
//! | the prefill leg | another prefill worker |
//! | the decode leg, which its worker never got, where the engine lets another one fetch the KV | another decode worker for the same KV |
//! | the decode leg in another way that is its worker's fault | the same prefill worker, which has the prompt in its cache, and another decode worker |
//! | the transfer, by the prefill worker's fault, or nobody knows whose (`blame.rs`) | another prefill worker, and the same decode worker where that can have it: it shows whose fault it was (`evidence.rs`) |
//!
//! All attempts are within the budget and the deadline of the one request.

use std::sync::Arc;

use grapevine_gossip::worker::Role;
use grapevine_placement::NoWorker;
use grapevine_transfer::body::Form;
use tokio::time::Instant;

use super::computed::Computed;
use super::evidence::Evidence;
use super::pair::{self, First, Pair, Tried};
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::cluster::Halves;
use crate::config::DecodeAlone;
use crate::proxy::dispatch::Dispatch;
use crate::proxy::division::{Way, stays_whole};
use crate::proxy::doubts::Doubts;
use crate::proxy::pauses::Reach;
use crate::proxy::record::Record;
use crate::proxy::retry::{Attempt, AttemptPlan, Exhausted};
use crate::proxy::stages::asked::{Asked, WaitsForRoom, with_room};
use crate::proxy::stages::placed::{Placed, Sent};
use crate::upstream::failure::Failure;

/// The way of a request that can be divided.
#[derive(Debug)]
pub(in crate::proxy) struct ToPair<'a> {
    pub(super) asked: &'a mut Asked,
    pub(super) dispatch: &'a Dispatch,
    pub(super) record: &'a mut Record,
    /// Of the pool that it looks in, or, once that has none, those before.
    pub(super) halves: Arc<Halves>,
    pub(super) form: Form,
    pub(super) tried: Tried,
    /// Workers of the request's pool that had all of it.
    tried_alone: Vec<usize>,
    /// A prompt that is computed, and that no decode worker has been told of.
    pub(super) computed: Option<Computed>,
    /// The half for which no worker was left when a pair was wanted last.
    lacking: Option<Role>,
    /// What its failed transfers show.
    pub(super) evidence: Evidence,
    /// Those that had all of it, and failed.
    doubts: Doubts<'a>,
    /// A prefill worker's answer did not say where its KV is.
    pub(super) is_untold: bool,
    /// What the last decode worker said to which the prompt did not come by its prefill worker's fault.
    pub(super) unheard: Option<Failure>,
}

/// A request on its worker, or on both.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one lives at a time, on the stack of its request"
)]
pub(in crate::proxy) enum Chosen {
    /// One worker has all of it.
    One(Box<Placed>),
    /// Two.
    Pair(Pair),
}

impl<'a> ToPair<'a> {
    /// `halves`: of the pool that the request found.
    pub(in crate::proxy) fn new(
        asked: &'a mut Asked,
        dispatch: &'a Dispatch,
        record: &'a mut Record,
        halves: Arc<Halves>,
        form: Form,
    ) -> Self {
        Self {
            asked,
            dispatch,
            record,
            halves,
            form,
            tried: Tried::default(),
            tried_alone: Vec::new(),
            computed: None,
            lacking: None,
            evidence: Evidence::default(),
            doubts: Doubts::new(&dispatch.metrics.attempts),
            is_untold: false,
            unheard: None,
        }
    }

    fn place_one(&mut self, way: &'static str) -> Result<Chosen, NoWorker> {
        let tried = self.tried_in_pool();
        let mut plan = self.asked.attempt_plan(self.dispatch, self.record);
        plan.tried = tried;
        let placed = plan.place_in_pool()?;
        drop(plan);
        self.tried_alone.push(placed.index());
        if let Some(computed) = self.computed.take() {
            computed.leave();
        }
        self.record.goes(way);
        self.record.undivided();
        Ok(Chosen::One(placed))
    }

    /// Workers of the request's pool that were asked before, for all of it or for the answer: none is asked twice. Where
    /// no worker takes whole requests, that pool is of decode workers.
    fn tried_in_pool(&self) -> Vec<usize> {
        let mut tried = self.tried_alone.clone();
        let halves = &self.halves;
        let pool = self.asked.pool_arc();
        tried.extend(halves.decode.indices_in(pool, &self.tried.decode));
        tried
    }

    /// Its prefill workers do not say where the KV of such a request is: one worker has to have all of it.
    fn is_silent(&self) -> bool {
        self.is_untold || self.form.may_be_silent() && self.halves.is_silent_of(self.form)
    }

    /// A worker had it, or a part of it, before.
    fn has_tried(&self) -> bool {
        let Tried { prefill, decode } = &self.tried;
        let mut tried = [prefill, decode, &self.tried_alone].into_iter();
        tried.any(|tried| !tried.is_empty())
    }

    /// The name of its way if one worker is to take all of it.
    fn stays_whole(&self) -> Option<&'static str> {
        let (asked, dispatch) = (&*self.asked, self.dispatch);
        let divide = dispatch.transfer.look().divide();
        stays_whole(
            &dispatch.cluster,
            asked.pool_arc(),
            &self.halves,
            asked.key(),
            &divide,
            (&self.tried_in_pool(), &self.tried.prefill),
            true,
        )
    }

    /// Takes the workers of now, where these are others than at its last look.
    /// Errors: nobody serves its model any more.
    fn look_anew(&mut self) -> Result<(), Exhausted> {
        let changed = self.asked.changed_pool(&self.dispatch.cluster)?;
        let Some(pool) = changed else {
            return Ok(());
        };
        self.tried_alone = self.asked.pool_arc().indices_in(&pool, &self.tried_alone);
        match pool.halves() {
            Some(halves) => self.looks_in_halves(Arc::clone(halves)),
            None => {
                if let Some(computed) = self.computed.take() {
                    computed.leave();
                }
            }
        }
        self.asked.looks_in(pool);
        Ok(())
    }

    fn looks_in_halves(&mut self, halves: Arc<Halves>) {
        let (former, tried) = (&self.halves, &mut self.tried);
        tried.prefill = former.prefill.indices_in(&halves.prefill, &tried.prefill);
        tried.decode = former.decode.indices_in(&halves.decode, &tried.decode);
        if let Some(mut computed) = self.computed.take() {
            let now = former
                .prefill
                .indices_in(&halves.prefill, &[computed.index]);
            match now.first() {
                Some(at) => {
                    computed.index = *at;
                    self.computed = Some(computed);
                }
                None => computed.leave(),
            }
        }
        self.halves = halves;
    }

    fn place_now(&mut self) -> Result<Chosen, Exhausted> {
        self.look_anew()?;
        self.choose().map_err(Exhausted::Unplaced)
    }

    /// No worker is left that takes one of the halves: there can be no pair, and none is waited for.
    fn lacks_half(&self) -> bool {
        self.asked.pool_arc().halves().is_none()
    }

    /// As a request that comes now.
    fn choose_without_pairs(&mut self) -> Result<Chosen, NoWorker> {
        match self.asked.way(self.dispatch) {
            Ok(Some(Way::One(way))) => self.place_one(way),
            // Why there is no way is said in place of this.
            Ok(_) | Err(_) => Err(NoWorker::Empty),
        }
    }

    /// What its client is told, which no worker could take.
    fn says_why(&self, why: NoWorker) -> Exhausted {
        if self.lacks_half() {
            return match self.asked.way(self.dispatch) {
                Ok(_) => Exhausted::Unplaced(why),
                Err(no_way) => Exhausted::TurnedAway(no_way),
            };
        }
        match self.halves.pairs.mismatch() {
            Some(mismatch) => Exhausted::TurnedAway(nobody_talks(mismatch)),
            // Back-pressure has an answer of its own.
            None if why != NoWorker::Full => Exhausted::TurnedAway(no_half(self.lacking, why)),
            None => Exhausted::Unplaced(why),
        }
    }

    fn choose(&mut self) -> Result<Chosen, NoWorker> {
        if self.lacks_half() {
            return self.choose_without_pairs();
        }
        let takes_whole = self.asked.pool_arc().role() == Role::Any;
        if self.is_silent() {
            return self.place_one(match self.form {
                Form::Messages => "messages",
                _ => "responses",
            });
        }
        let mut alone = None;
        if self.computed.is_none()
            && let Some(way) = self.stays_whole()
        {
            match self.place_one(way) {
                Ok(chosen) => return Ok(chosen),
                Err(nobody) => alone = Some(nobody),
            }
        }
        let (first, begun) = (!self.has_tried(), Instant::now());
        match self.choose_pair() {
            Ok(pair) => {
                if first {
                    let took = self.asked.thought + begun.elapsed();
                    self.dispatch.metrics.requests.decided(took);
                    self.record.decided(took, pair.decode.placed.reason());
                }
                self.record.goes("pair");
                Ok(Chosen::Pair(pair))
            }
            // Whoever is merely full is waited for, be it one worker for all of it or a pair.
            Err(nobody) if takes_whole => {
                let placed = self.place_one("whole_no_pair");
                placed.map_err(|alone| nobody.and(alone))
            }
            Err(nobody) if self.dispatch.transfer.look().decode_alone == DecodeAlone::Always => {
                let placed = self.place_one("alone_no_prefill");
                placed.map_err(|alone| nobody.and(alone))
            }
            Err(nobody) => Err(alone.map_or(nobody, |alone| nobody.and(alone))),
        }
    }

    fn choose_pair(&mut self) -> Result<Pair, NoWorker> {
        let pool = self.asked.pool_arc();
        let alone = pool.indices_in(&self.halves.decode, &self.tried_alone);
        for index in alone {
            if !self.tried.decode.contains(&index) {
                self.tried.decode.push(index);
            }
        }
        let (asked, dispatch, halves) = (&*self.asked, self.dispatch, &*self.halves);
        let within = dispatch.transfer.look().fetch_within;
        let stale = |computed: &mut Computed| computed.at.elapsed() > within;
        if let Some(computed) = self.computed.take_if(stale) {
            // Its blocks may be another prompt's by now; what its worker still has in its cache is cheap to compute.
            computed.leave();
        }
        if let Some(computed) = self.computed.take() {
            let tried = &mut self.tried.decode;
            let first = (computed.index, None);
            match pair::choose_decode(asked, dispatch, halves, first, tried) {
                Ok(decode) => {
                    let first = First::Computed(computed);
                    return Ok(Pair { first, decode });
                }
                // One that is full now may have room in a moment.
                Err(NoWorker::Full) => {
                    self.computed = Some(computed);
                    return Err(NoWorker::Full);
                }
                Err(_) => computed.leave(),
            }
        }
        let kept = self.evidence.tells();
        let kept = kept.and_then(|worker| halves.decode.index_of(worker));
        let pair = pair::choose(asked, dispatch, halves, &mut self.tried, kept);
        pair.map_err(|(half, nobody)| {
            self.lacking = Some(half);
            nobody
        })
    }
}

impl WaitsForRoom for ToPair<'_> {
    /// Alone or as a pair.
    fn reach(&self) -> Reach {
        let reach = self.asked.reach(&self.tried_in_pool());
        let divide = self.dispatch.transfer.look().divide();
        let is_short = divide.is_short(self.asked.key().prompt_tokens());
        // One that one worker is to have does not wait behind those that want two.
        match self.is_silent() || is_short {
            true => reach.undivided(),
            false => reach.but_prefill(self.tried.prefill.clone()),
        }
    }
}

impl AttemptPlan for ToPair<'_> {
    type Placed = Chosen;
    type Answer = Sent;

    async fn place_first(&mut self) -> Result<Chosen, Exhausted> {
        let admission = &self.dispatch.admission;
        let waits_by = self.asked.waits_by(admission, self.has_tried());
        let now = self.record.prepared();
        let tenant = self.record.tenant.clone();
        self.record.waits(now);
        let (chosen, waited) = with_room(self, admission, waits_by, tenant.as_deref()).await;
        self.record.waited(waited);
        chosen.map_err(|exhausted| match exhausted {
            Exhausted::Unplaced(why) => self.says_why(why),
            other => other,
        })
    }

    fn place(&mut self) -> Result<Chosen, Exhausted> {
        self.asked.is_let_through(self.dispatch)?;
        self.place_now()
    }

    fn is_last_resort(chosen: &Chosen) -> bool {
        match chosen {
            Chosen::One(placed) => placed.is_last_resort(),
            Chosen::Pair(pair) => {
                let first = match &pair.first {
                    First::ToSend(first) => first.placed.is_last_resort(),
                    First::Computed(_) => false,
                };
                first || pair.decode.placed.is_last_resort()
            }
        }
    }

    async fn send(&mut self, chosen: Chosen, attempt: Attempt) -> Result<Sent, Failure> {
        match chosen {
            Chosen::One(placed) => {
                let doubts = &mut self.doubts;
                self.asked
                    .send(self.dispatch, self.record, doubts, placed, attempt)
                    .await
            }
            Chosen::Pair(pair) => {
                if attempt.number > 1 {
                    self.dispatch.metrics.attempts.retries.inc();
                }
                let sent = self.send_pair(pair, attempt).await;
                if let Ok(sent) = &sent {
                    self.doubts.answered(sent.answer.status());
                }
                sent
            }
        }
    }

    async fn is_condemned(&mut self) -> bool {
        self.asked.is_condemned(self.dispatch).await
    }
}

/// There are workers for both halves, and none of this one may take a request.
fn no_half(half: Option<Role>, why: NoWorker) -> ApiError {
    let half = half.map_or("", Role::as_str);
    let message = format!("no {half} worker of this model can be used: {why}");
    ApiError::new(ErrorKind::NoWorker, message)
}

/// There are workers for both halves, and no two of them can talk.
fn nobody_talks(why: &str) -> ApiError {
    let message =
        format!("no prefill worker of this model can hand a prompt over to a decode worker: {why}");
    ApiError::new(ErrorKind::NoWorker, message)
}
