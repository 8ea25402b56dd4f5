//! The states of a request up to its commit. Each is made from the one before and by nothing else, and owns
//! what the request holds there, so that dropping it, in whatever way a request ends, releases that.
//!
//! | state | what is known | holds |
//! |---|---|---|
//! | [`Accepted`] | the head; the endpoint is one of the workers' | the unread body |
//! | [`Admitted`] | this replica has room | a permit, in the record |
//! | [`Asked`] | the body, and what to ask of placement | bytes of the body's budget, a place in the retry budget's count |
//! | [`Placed`] | one worker | its weight on that worker |
//! | [`Sent`] | that worker's answer, held back | the connection, within the answer |
//! | [`Won`] | it may be shown | all of these |
//!
//! `attempt` has the states between placed and sent: connecting, and waiting for what may be shown.
//! [`Won::commit`] is the only way to a client's first byte.

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::{Decision, NoWorker};
use http::request::Parts;
use http::{HeaderValue, Method, Response, Uri};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::attempt::{self, Answer, AttemptLimits, Failure, Outgoing};
use super::body::{self, BodyLimits, HeldBody};
use super::question::Question;
use super::record::{Outcome, Record};
use super::relay::{Relay, ResponseBody};
use super::retry::Counted;
use super::worker_body::WorkerBody;
use super::{Proxy, headers, sse};
use crate::api::error::ErrorKind;
use crate::api::{ApiError, Endpoint};
use crate::metrics::ReasonLabels;
use crate::upstream::InFlight;

/// A request for a worker; nothing of its body is read yet.
#[derive(Debug)]
pub(super) struct Accepted<'a> {
    head: &'a Parts,
    body: Incoming,
    endpoint: Endpoint,
    deadline: Option<Instant>,
}

/// A request that this replica has room for.
#[derive(Debug)]
pub(super) struct Admitted<'a>(Accepted<'a>);

/// A request whose body is read: what to ask of placement, and what to send.
#[derive(Debug)]
pub(super) struct Asked {
    question: Question,
    outgoing: Outgoing,
    body: HeldBody,
    endpoint: Endpoint,
    deadline: Option<Instant>,
    since: Instant,
    _counted: Counted,
}

/// A request that counts on a worker, before anything is sent there.
#[derive(Debug)]
pub(super) struct Placed {
    in_flight: InFlight,
    decision: Decision,
}

/// A request that a worker has answered in a way that may be shown.
#[derive(Debug)]
pub(super) struct Sent {
    answer: Answer,
    placed: Placed,
}

/// A request at its commit.
#[derive(Debug)]
pub(super) struct Won {
    asked: Asked,
    sent: Sent,
}

impl<'a> Accepted<'a> {
    /// `deadline`: the end of the whole request.
    pub(super) fn new(
        head: &'a Parts,
        body: Incoming,
        endpoint: Endpoint,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            head,
            body,
            endpoint,
            deadline,
        }
    }

    /// Takes a place among the requests of this replica.
    ///
    /// # Errors
    /// 503 when there is none.
    pub(super) fn admit(
        self,
        proxy: &Proxy,
        record: &mut Record,
    ) -> Result<Admitted<'a>, ApiError> {
        match Arc::clone(&proxy.requests).try_acquire_owned() {
            Ok(permit) => {
                record.admission = Some(permit);
                Ok(Admitted(self))
            }
            Err(_) => {
                proxy.parts.metrics.limit_reached("requests");
                let message = "this replica has too many requests in progress; try again";
                Err(ApiError::new(ErrorKind::Overloaded, message))
            }
        }
    }
}

impl Admitted<'_> {
    /// Reads the body and what it asks for.
    ///
    /// # Errors
    /// What [`body::read`] and [`Question::of`] refuse.
    pub(super) async fn ask(self, proxy: &Proxy, record: &mut Record) -> Result<Asked, ApiError> {
        let Accepted {
            head,
            body,
            endpoint,
            deadline,
        } = self.0;
        let limits = BodyLimits {
            bytes: proxy.parts.limits.body_bytes.0,
            progress: proxy.parts.timeouts.body_progress,
        };
        let body = body::read(body, limits, &proxy.byte_budget)
            .await
            .map_err(|refused| {
                if let Some(limit) = refused.limit {
                    proxy.parts.metrics.limit_reached(limit);
                }
                refused.error
            })?;
        let since = Instant::now();
        let question = Question::of(&proxy.parts.cluster, endpoint, &head.headers, &body.bytes)?;
        record.model = Some(question.pool.label());
        let sent = question.body_of(body.bytes.clone());
        Ok(Asked {
            outgoing: outgoing(head, sent, question.stream, record.request_id()),
            question,
            body,
            endpoint,
            deadline,
            since,
            _counted: proxy.retries.request(),
        })
    }
}

impl Asked {
    /// May a worker see the request twice? A completion costs compute and no more; an unknown path may
    /// store something.
    pub(super) fn is_repeatable(&self) -> bool {
        self.endpoint.needs_model() || self.outgoing.method == Method::GET
    }

    /// Chooses a worker that is not in `tried`, puts it there, and counts the request on it.
    ///
    /// # Errors
    /// Nobody is left that may take it.
    pub(super) fn place(
        &self,
        proxy: &Proxy,
        tried: &mut Vec<usize>,
        record: &mut Record,
    ) -> Result<Placed, NoWorker> {
        let (cluster, metrics) = (&proxy.parts.cluster, &proxy.parts.metrics);
        loop {
            let placed = cluster.place(&self.question.pool, &self.question.key, tried)?;
            if tried.is_empty() {
                metrics.decided(self.since.elapsed());
            }
            let decision = placed.decision;
            tried.push(decision.worker);
            let reason = decision.reason.as_str();
            metrics
                .placements
                .get_or_create(&ReasonLabels { reason })
                .inc();
            if let Some(in_flight) = InFlight::begin(&placed.worker, &decision) {
                record.placed(&placed.worker, reason, placed.taken);
                return Ok(Placed {
                    in_flight,
                    decision,
                });
            }
            if let Some(taken) = placed.taken {
                cluster.knowledge().failed(taken);
            }
        }
    }

    /// An answer that the client will see; none other will be asked for.
    pub(super) fn won(self, sent: Sent, proxy: &Proxy) -> Won {
        if sent.answer.status().is_success() {
            let (pool, key) = (&self.question.pool, &self.question.key);
            let warm_ups = &proxy.parts.warm_ups;
            warm_ups.offer(self.endpoint, pool, key, &self.body.bytes);
        }
        Won { asked: self, sent }
    }
}

impl Placed {
    /// Connects, sends, and waits until the answer is known to be one. A failure has been told to the
    /// worker's health when this returns.
    ///
    /// # Errors
    /// See [`Failure`].
    pub(super) async fn send(mut self, proxy: &Proxy, asked: &Asked) -> Result<Sent, Failure> {
        let limits = AttemptLimits {
            connect: proxy.parts.timeouts.connect,
            first_token: self.first_token_by(proxy, asked.deadline),
            held_bytes: proxy.parts.limits.event_line_bytes.as_usize(),
        };
        let worker = Arc::clone(self.in_flight.worker());
        let result = attempt::attempt(&worker, &asked.outgoing, limits).await;
        proxy.count_attempt(&worker, &result);
        match result {
            Ok(answer) => Ok(Sent {
                answer,
                placed: self,
            }),
            Err(failure) => {
                // The whole request's deadline may have come first; it says nothing about the worker.
                let in_time = asked.deadline.is_none_or(|end| limits.first_token < end);
                if matches!(failure, Failure::Late) && in_time {
                    self.in_flight.stalled(self.in_flight.begun());
                }
                self.in_flight.end(failure.verdict());
                if failure.is_broken_connection() {
                    worker.unreachable();
                }
                Err(failure)
            }
        }
    }

    /// A long prompt takes longer to compute; the whole request's deadline still holds.
    fn first_token_by(&self, proxy: &Proxy, deadline: Option<Instant>) -> Instant {
        let timeouts = &proxy.parts.timeouts;
        let per_token = timeouts.first_token_per_1k.as_secs_f64() / 1000.0;
        let tokens = f64::from(self.decision.prompt_tokens);
        let for_prompt = Duration::from_secs_f64(per_token * tokens);
        let by = Instant::now() + timeouts.first_token + for_prompt;
        deadline.map_or(by, |deadline| by.min(deadline))
    }
}

impl Won {
    /// The worker's name and the decision for it.
    pub(super) fn explanation(&self) -> (Arc<str>, Decision) {
        let placed = &self.sent.placed;
        (
            Arc::clone(&placed.in_flight.worker().label),
            placed.decision,
        )
    }

    /// The point of no return: from here on the answer belongs to this worker.
    pub(super) fn commit(self, proxy: &Proxy, mut record: Record) -> Response<ResponseBody> {
        let Placed { mut in_flight, .. } = self.sent.placed;
        in_flight.prefilled();
        if self.asked.endpoint.needs_model() && self.sent.answer.status().is_success() {
            in_flight.delivered();
        }
        record.first_token();
        match self.sent.answer {
            Answer::Whole(parts, bytes) => {
                record.status = Some(parts.status);
                record.bytes_out = bytes.len() as u64;
                let outcome = if parts.status.is_success() {
                    record.usage = sse::usage_of(&bytes);
                    Outcome::Success
                } else {
                    Outcome::Error
                };
                in_flight.end(outcome.verdict());
                record.finish(outcome);
                Response::from_parts(parts, bytes.into())
            }
            Answer::Begun(begun) => {
                record.status = Some(begun.parts.status);
                let idle_max = proxy.parts.timeouts.inter_token;
                let deadline = self.asked.deadline;
                let (parts, relay) = Relay::new(*begun, in_flight, record, idle_max, deadline);
                Response::from_parts(parts, ResponseBody::Relay(Box::new(relay)))
            }
        }
    }
}

/// The request as every worker gets it.
fn outgoing(head: &Parts, body: WorkerBody, stream: bool, id: &HeaderValue) -> Outgoing {
    let mut headers = head.headers.clone();
    headers::clean_request(&mut headers);
    headers.insert(headers::REQUEST_ID, id.clone());
    Outgoing {
        method: head.method.clone(),
        // A client may send an absolute URI; workers get its path.
        target: head
            .uri
            .path_and_query()
            .cloned()
            .map_or_else(Uri::default, Uri::from),
        headers,
        body,
        stream,
    }
}
