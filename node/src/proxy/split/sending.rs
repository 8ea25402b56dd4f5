//! Sending the legs of one attempt: the prefill leg, and then the decode leg, or both at once.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use grapevine_placement::AttemptOutcome;
use grapevine_transfer::body::{self, Form};
use grapevine_transfer::{Begin, Connector, Ids, Leg};
use http::header;
use tokio::time::{Instant, timeout};

use super::computed::Computed;
use super::legs::{self, Prefilled};
use super::outcomes::forget;
use super::pair::{First, Pair, PlacedHalf, UnderWay};
use super::plan::ToPair;
use crate::http::headers::RANK;
use crate::proxy::division::blame::Fault;
use crate::proxy::record::Record;
use crate::proxy::retry::Attempt;
use crate::proxy::stages::placed::{Sent, Terms};
use crate::upstream::Worker;
use crate::upstream::failure::Failure;
use crate::upstream::outgoing::{Outgoing, PLAIN};
use crate::upstream::patience::WaitsFor;

/// How long a good answer waits for the last word of its prompt's worker, which mostly comes before it.
const AFTERWARDS: Duration = Duration::from_millis(500);

#[allow(
    clippy::large_enum_variant,
    reason = "one lives at a time, on the stack of its request"
)]
/// Why two legs that were sent together ended before both had an answer.
enum End {
    /// The client gets what the prefill worker says.
    Shown(Sent),
    /// The prefill leg failed.
    Prefill(Failure),
    /// The decode leg did.
    Decode(Failure),
}

impl ToPair<'_> {
    /// Sends the legs that have not been sent.
    /// Errors: see [`Failure`]; what was learned by it is noted.
    pub(super) async fn send_pair(
        &mut self,
        pair: Pair,
        attempt: Attempt,
    ) -> Result<Sent, Failure> {
        let Pair { first, decode } = pair;
        let terms = Terms {
            waits_alone: true,
            waits_for: match self.asked.outgoing().stream {
                true => WaitsFor::Token,
                false => WaitsFor::Answer,
            },
            deadline: self.asked.deadline(),
            attempt,
        };
        let mut first = match first {
            First::Computed(computed) => return self.send_decode(computed, decode, terms).await,
            First::ToSend(first) => first,
        };
        let random = rand::random();
        if first.worker().is_other_engine.load(Ordering::Relaxed) && first.half.learns_identity() {
            first.half = Arc::new(first.half.without_identity());
        }
        let begin = grapevine_transfer::begin(&first.half, &decode.half, &ids(self.record, random));
        let leg = match begin {
            Ok(Begin::PrefillFirst(leg)) => leg,
            Ok(Begin::Together {
                prefill,
                decode: other,
            }) => {
                let legs = (prefill, other);
                return self.send_both(first, decode, legs, terms, random).await;
            }
            Err(missing) => {
                self.gives_back(decode);
                return Err(Failure::Malformed(missing.into()));
            }
        };
        let (worker, begun) = (Arc::clone(first.worker()), Instant::now());
        let outgoing = self.begin_prefill(&mut first, &leg)?;
        match legs::compute(self.dispatch, first, outgoing, terms, random, false).await {
            Ok(Prefilled::Computed(computed)) => {
                self.prefilled(&computed);
                self.send_decode(computed, decode, terms).await
            }
            Ok(Prefilled::Shown(sent)) => {
                self.gives_back(decode);
                Ok(self.shown(sent))
            }
            Err(failure) => {
                self.gives_back(decode);
                Err(self.prefill_failed(&worker, begun, failure))
            }
        }
    }

    async fn send_both(
        &mut self,
        mut first: PlacedHalf,
        mut decode: PlacedHalf,
        (prefill_leg, decode_leg): (Leg, Leg),
        terms: Terms,
        random: u128,
    ) -> Result<Sent, Failure> {
        let (begun, dispatch) = (Instant::now(), self.dispatch);
        // Which of the two is silent is not known.
        let terms = Terms {
            waits_alone: false,
            ..terms
        };
        let prefill = (Arc::clone(first.worker()), first.index);
        let prefill_outgoing = self.begin_prefill(&mut first, &prefill_leg)?;
        let mut outgoing = self.decode_outgoing(&decode_leg)?;
        let pair = self.begin_decode(&mut decode, prefill, &mut outgoing);
        let mut done = None;
        let ended = {
            let computing = pin!(async {
                let computing =
                    legs::compute(dispatch, first, prefill_outgoing, terms, random, true);
                match computing.await {
                    Ok(Prefilled::Computed(computed)) => Ok(computed),
                    Ok(Prefilled::Shown(sent)) => Err(End::Shown(sent)),
                    Err(failure) => Err(End::Prefill(failure)),
                }
            });
            let answering = pin!(async {
                let verdict = |failure: &Failure| verdict(failure, &pair);
                let sent = decode.placed.send_on(dispatch, &outgoing, terms, verdict);
                sent.await.map_err(End::Decode)
            });
            let heard = || {
                self.record.prefill_computed();
                if !outgoing.stream {
                    self.record.comes_whole();
                }
            };
            both(computing, answering, outgoing.stream, &mut done, heard).await
        };
        if let Some(computed) = &done {
            self.prefilled(computed);
        }
        match ended {
            Ok(sent) => {
                if done.is_none() {
                    // Only a good answer does not wait for its last word.
                    self.record.prefill_unheard();
                }
                self.answered(done, pair, &sent);
                Ok(sent)
            }
            Err(End::Shown(sent)) => {
                self.record.decode_given_up();
                Ok(self.shown(sent))
            }
            Err(End::Prefill(failure)) => {
                let failure = self.prefill_failed(&pair.prefill.0, begun, failure);
                self.record.decode_given_up();
                forget(&mut self.tried.decode, pair.decode.1);
                Err(failure)
            }
            Err(End::Decode(failure)) => {
                match done {
                    // Its engine keeps the blocks for nobody.
                    Some(computed) => computed.leave(),
                    None => self.record.prefill_given_up(),
                }
                Err(self.decode_failed(pair, None, failure))
            }
        }
    }

    async fn send_decode(
        &mut self,
        mut computed: Computed,
        mut decode: PlacedHalf,
        terms: Terms,
    ) -> Result<Sent, Failure> {
        let ids = ids(self.record, computed.random);
        let (first, second) = (&computed.half, &decode.half);
        let leg = grapevine_transfer::decode_leg(first, second, &ids, &computed.answer);
        let leg = match leg {
            Ok(leg) => leg,
            Err(bad) => {
                self.gives_back(decode);
                return Err(self.says_nothing(computed, bad));
            }
        };
        computed.worker().silent_forms.tells(self.form);
        let mut outgoing = self.decode_outgoing(&leg)?;
        let prefill = (Arc::clone(computed.worker()), computed.index);
        let pair = self.begin_decode(&mut decode, prefill, &mut outgoing);
        if !outgoing.stream {
            self.record.comes_whole();
        }
        computed.offer();
        let verdict = |failure: &Failure| verdict(failure, &pair);
        let sent = decode
            .placed
            .send_on(self.dispatch, &outgoing, terms, verdict);
        match computed.until(sent, outgoing.stream).await {
            Ok(sent) => {
                self.answered(Some(computed), pair, &sent);
                Ok(sent)
            }
            Err(failure) => Err(self.decode_failed(pair, Some(computed), failure)),
        }
    }

    /// The prefill leg's bytes; from now on it is on its way.
    fn begin_prefill(&mut self, first: &mut PlacedHalf, leg: &Leg) -> Result<Outgoing, Failure> {
        let body = self.body(|body, form| body::prefill(form, body, leg))?;
        let (reason, recorded) = (first.placed.reason(), first.recorded.sent());
        self.record.prefill_placed(first.worker(), reason, recorded);
        // An engine that is sent what the client asks for answers as it would the client: the head of a stream says nothing
        // yet of the prompt, its first event does.
        let stream = !leg.one_token && self.asked.outgoing().stream;
        let mut outgoing = legs::outgoing(self.asked, body, leg, stream);
        outgoing.headers.insert(header::ACCEPT_ENCODING, PLAIN);
        if leg.rank.is_none() {
            // What a client names is the engine that answers; those of this worker may be fewer.
            outgoing.headers.remove(RANK);
        }
        self.record.propagate_prefill(&mut outgoing.headers);
        Ok(outgoing)
    }

    fn decode_outgoing(&mut self, leg: &Leg) -> Result<Outgoing, Failure> {
        let body = self.body(|body, _| body::decode(body, leg))?;
        let stream = self.asked.outgoing().stream;
        Ok(legs::outgoing(self.asked, body, leg, stream))
    }

    /// The decode leg is on its way; `prefill`: where the prompt is computed.
    fn begin_decode(
        &mut self,
        decode: &mut PlacedHalf,
        prefill: (Arc<Worker>, usize),
        outgoing: &mut Outgoing,
    ) -> UnderWay {
        let worker = Arc::clone(decode.worker());
        let (reason, recorded) = (decode.placed.reason(), decode.recorded.sent());
        self.record.decode_placed(&worker, reason, recorded);
        self.record.propagate(&mut outgoing.headers);
        UnderWay {
            before: self.evidence.before(&prefill.0, &worker),
            prefill,
            decode: (worker, decode.index),
            begun: Instant::now(),
            by_store: decode.half.connector() == Connector::Store,
        }
    }

    fn body<E: std::error::Error + Send + Sync + 'static>(
        &self,
        write: impl FnOnce(&Bytes, Form) -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, Failure> {
        // It was looked through before, so that it can be divided.
        let body = self.asked.body_at_worker();
        write(&body, self.form).map_err(|error| Failure::Malformed(error.into()))
    }
}

/// Both legs to their ends, or to that of the one which decides. A good answer proves that the blocks have come: what the
/// worker of the prompt says after that is worth a moment and no more. `done`: what it said. `heard` is called once the
/// prompt is known to be computed: the client may leave while the answer is waited for.
async fn both(
    mut computing: Pin<&mut impl Future<Output = Result<Computed, End>>>,
    mut answering: Pin<&mut impl Future<Output = Result<Sent, End>>>,
    streamed: bool,
    done: &mut Option<Computed>,
    heard: impl FnOnce(),
) -> Result<Sent, End> {
    tokio::select! {
        biased;
        computed = &mut computing => {
            let computed = done.insert(computed?);
            heard();
            computed.until(answering, streamed).await
        }
        sent = &mut answering => {
            let sent = sent?;
            if sent.answer.status().is_success() {
                heard();
                // Neither its failure nor its silence takes the answer away.
                let last_word = timeout(AFTERWARDS, computing).await;
                *done = last_word.ok().and_then(Result::ok);
            } else {
                *done = Some(computing.await?);
            }
            Ok(sent)
        }
    }
}

/// What the failure of a decode leg says about its worker: nothing where it may be a failed transfer's, by no fault of its
/// own.
fn verdict(failure: &Failure, pair: &UnderWay) -> AttemptOutcome {
    match pair.fault() {
        Fault::Prefill | Fault::Unknown if pair.may_be_transfer(failure) => AttemptOutcome::Neutral,
        _ => failure.verdict(),
    }
}

fn ids(record: &Record, random: u128) -> Ids<'_> {
    let request_id = record.request_id().to_str().unwrap_or_default();
    Ids { request_id, random }
}
