//! The commit: what the client will see, and the only way to its first byte.

use std::sync::Arc;

use grapevine_gossip::worker::WorkerId;
use grapevine_placement::{AttemptOutcome, Decision};
use http::{Response, StatusCode, header};

use super::asked::Asked;
use super::placed::Sent;
use crate::api::error::ErrorKind;
use crate::api::{ApiError, Endpoint};
use crate::cache::Answer as KeptAnswer;
use crate::http::handshake;
use crate::http::sse;
use crate::proxy::dispatch::Dispatch;
use crate::proxy::holders::Holders;
use crate::proxy::outcome::Outcome;
use crate::proxy::realtime::Sessions;
use crate::proxy::realtime::tunnel::Tunnel;
use crate::proxy::record::Record;
use crate::proxy::refusal::Refusal;
use crate::proxy::relay::{First, OnBreak, Relay, Silence};
use crate::proxy::response::ResponseBody;
use crate::upstream::answer::Answer;
use crate::warmup::WarmUps;

/// What the client will see.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one lives at a time, on the stack of its request"
)]
pub(in crate::proxy) enum Shown {
    /// A kept answer.
    Kept(Arc<KeptAnswer>),
    /// A worker's.
    Won(Won),
}

/// A request at its commit.
#[derive(Debug)]
pub(in crate::proxy) struct Won {
    pub(super) asked: Box<Asked>,
    pub(super) sent: Sent,
}

impl Won {
    /// An answer that the client will see; none other will be asked for.
    pub(in crate::proxy) fn of(
        asked: Box<Asked>,
        sent: Sent,
        holders: &Holders,
        warm_ups: &WarmUps,
    ) -> Self {
        if sent.answer.status().is_success() {
            if asked.is_of_engine() && !sent.answer.is_web_page() {
                // Its HTTP server alone would go on counting tokens and refusing what is wrong.
                sent.placed.worker().engine_dead_since.clear();
            }
            if asked.endpoint == Endpoint::Responses {
                let worker = &sent.placed.worker().id;
                let beginning = sent.answer.beginning();
                holders.answered(beginning, worker, asked.tenant);
            }
            let (pool, key) = (&asked.query.pool, &asked.query.key);
            warm_ups.offer(asked.endpoint, pool, key, &asked.body.bytes);
        } else if sent.answer.status() == StatusCode::NOT_FOUND && asked.endpoint.traits().computes
        {
            sent.placed.worker().doubt_models();
        }
        Self { asked, sent }
    }

    /// The worker's name and the decision for it, if the client wants to know.
    pub(in crate::proxy) fn explanation(&self) -> Option<(Arc<str>, Decision)> {
        let placed = &self.sent.placed;
        self.asked.explained.then(|| {
            (
                Arc::clone(&placed.in_flight.worker().label),
                placed.decision,
            )
        })
    }

    /// The same for a client that has the head of a stream: what is no stream cannot be shown to it.
    pub(in crate::proxy) fn into_stream(self, record: &mut Record) -> Result<Self, Refusal> {
        if matches!(&self.sent.answer, Answer::Begun(begun) if begun.events) {
            return Ok(self);
        }
        if self.sent.answer.status().is_client_error() {
            record.computed_nothing();
        }
        // Its worker has done what it was asked for, or says why not.
        self.sent
            .placed
            .into_in_flight()
            .end(AttemptOutcome::Neutral);
        Err(match self.sent.answer {
            Answer::Whole(parts, bytes) if !parts.status.is_success() => {
                Refusal::of_answer(parts, bytes)
            }
            _ => ApiError::new(
                ErrorKind::UpstreamFailed,
                "the worker's answer is no stream of events, as was asked for",
            )
            .into(),
        })
    }

    /// The point of no return: from here on the answer belongs to this worker. `on_break`: what becomes of a stream that
    /// may move and has begun on this worker.
    pub(in crate::proxy) fn commit(
        self,
        dispatch: &Dispatch,
        sessions: &Sessions,
        mut record: Box<Record>,
        on_break: impl FnOnce(Box<Asked>, WorkerId) -> OnBreak,
    ) -> Response<ResponseBody> {
        let mut in_flight = self.sent.placed.into_in_flight();
        if let Answer::Switched(mut parts, switched) = self.sent.answer {
            in_flight.prefilled();
            record.switches(&parts);
            handshake::switch(&mut parts.headers);
            let session = self.asked.session.expect("only a session asks for a 101");
            session.agrees(&mut parts.headers);
            let config = sessions.config();
            let held = (in_flight, record);
            let tunnel = Tunnel::new(*switched, config, self.asked.deadline, held, session);
            return Response::from_parts(parts, ResponseBody::Tunnel(Some(Box::new(tunnel))));
        }
        let answer = &self.sent.answer;
        if answer.status().is_client_error() {
            record.computed_nothing();
        }
        let is_good = self.asked.is_of_engine() && answer.status().is_success();
        let is_web_page = is_good && answer.is_web_page();
        let mut first = Some(First {
            computed: is_good && !is_web_page,
            streams: matches!(answer, Answer::Begun(begun) if begun.is_good_stream()),
        });
        if is_web_page {
            dispatch.got_web_page(in_flight.worker());
            // No engine sends one, and a quick one would make this worker the fastest.
            in_flight.end(AttemptOutcome::Failure);
        }
        // Of events that nobody asked for nothing but the head is there, and of a long first event not its end.
        let is_unjudged = matches!(answer, Answer::Begun(begun) if !begun.judged);
        if !is_unjudged && let Some(first) = first.take() {
            first.came(&mut in_flight, &mut record);
        }
        match self.sent.answer {
            Answer::Whole(parts, bytes) => {
                record.answers(&parts, false);
                record.passes(&bytes);
                let outcome = if parts.status.is_success() {
                    record.usage = sse::usage_of(&bytes);
                    Outcome::Success
                } else {
                    Outcome::Error
                };
                in_flight.end(outcome.verdict());
                record.finish(outcome);
                Response::from_parts(parts, ResponseBody::of_request(bytes, record))
            }
            Answer::Switched(..) => unreachable!("a tunnel is no answer to pass on"),
            Answer::Begun(mut begun) => {
                begun.until_close &= is_good && self.asked.endpoint().has_last_event();
                if begun.events {
                    // An error event or another worker's continuation may come behind what this one announced.
                    begun.parts.headers.remove(header::CONTENT_LENGTH);
                }
                record.answers(&begun.parts, begun.events);
                let timeouts = dispatch.timeouts.now();
                let silence = Silence {
                    longest: timeouts.inter_token,
                    worker_bad: timeouts.worker_bad,
                    worker_gone: timeouts.worker_gone,
                    deadline: self.asked.deadline,
                    of_engine: self.asked.is_of_engine(),
                };
                let on_break = if self.asked.failover && begun.is_good_stream() {
                    let worker = in_flight.worker().id.clone();
                    on_break(self.asked, worker)
                } else {
                    OnBreak::End
                };
                let (parts, mut relay) = Relay::new(*begun, in_flight, record, silence);
                relay.on_break(on_break);
                relay.waits_for(first);
                Response::from_parts(parts, ResponseBody::Relay(Box::new(relay)))
            }
        }
    }
}
