//! One request, top to bottom.
//!
//! accepted → admitted → placed → connecting → sent → **committed** (first byte to the client) → ended.
//! Up to the commit everything may be tried on another worker; after it nothing is. Each request ends in
//! exactly one outcome, written by its [`Record`]; whatever it holds is released by dropping it.

pub mod attempt;
pub mod body;
pub mod headers;
pub mod question;
pub mod record;
pub mod relay;
pub mod request_id;
pub mod retry;
pub mod sse;
pub mod worker_body;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use grapevine_placement::Decision;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header, response};
use hyper::body::Incoming;
use rand::Rng;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use self::attempt::{Answer, AttemptLimits, Failure, Outgoing};
use self::body::{BodyLimits, ByteBudget};
use self::question::Question;
use self::record::{Outcome, Record};
use self::relay::{Relay, ResponseBody};
use self::retry::{Budget, Next};
use self::worker_body::WorkerBody;
use crate::api::error::{ErrorKind, retry_after};
use crate::api::models::Catalog;
use crate::api::{ApiError, Endpoint};
use crate::cluster::{Cluster, Fleet};
use crate::config::{LimitConfig, RetryConfig, TimeoutConfig};
use crate::listener::client_io::Gone;
use crate::metrics::{AttemptLabels, Metrics, ReasonLabels};
use crate::shutdown::Phase;
use crate::upstream::{InFlight, Worker};
use crate::warmup::WarmUps;

/// Results of attempts, as metric labels.
pub const ATTEMPT_RESULTS: [&str; 8] = [
    "answered",
    "connect",
    "connect_timeout",
    "closed",
    "first_token_timeout",
    "back_pressure",
    "status",
    "error_event",
];

/// What a [`Proxy`] is made of.
#[derive(Debug)]
pub struct ProxyParts {
    /// This replica's name.
    pub replica: String,
    /// Fleet and placement.
    pub cluster: Arc<Cluster>,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// Where this replica is between start and end.
    pub phase: Phase,
    /// Sent to workers as `Authorization`, in place of the client's.
    pub worker_authorization: Option<HeaderValue>,
    /// Headers that may carry a request id.
    pub request_id_headers: Vec<HeaderName>,
    /// Time limits.
    pub timeouts: TimeoutConfig,
    /// Retries.
    pub retry: RetryConfig,
    /// Sizes and counts.
    pub limits: LimitConfig,
    /// Keeps hot prompts for workers that join.
    pub warm_ups: Arc<WarmUps>,
}

/// The data port's request handler.
#[derive(Debug)]
pub struct Proxy {
    parts: ProxyParts,
    byte_budget: Arc<ByteBudget>,
    requests: Arc<Semaphore>,
    retries: Arc<Budget>,
}

/// The client left; there is nobody to answer.
#[derive(Debug, thiserror::Error)]
#[error("the client left before the answer began")]
pub struct ClientLeft;

/// No answer that may be shown.
#[derive(Debug)]
enum Refusal {
    /// The router's own word.
    Own(ApiError),
    /// The last worker's word, passed on.
    Worker(Box<response::Parts>, Bytes),
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self::Own(error)
    }
}

/// An answer that may be shown, and what it keeps busy.
struct Won {
    answer: Answer,
    in_flight: InFlight,
    decision: Decision,
}

impl Proxy {
    /// Puts the parts together.
    pub fn new(parts: ProxyParts) -> Self {
        Self {
            byte_budget: Arc::new(ByteBudget::new(parts.limits.body_bytes_total.0)),
            requests: Arc::new(Semaphore::new(parts.limits.requests as usize)),
            retries: Arc::default(),
            parts,
        }
    }

    /// Answers one request.
    ///
    /// # Errors
    /// The client left before the answer began.
    pub async fn serve(
        &self,
        request: Request<Incoming>,
        mut gone: Gone,
    ) -> Result<Response<ResponseBody>, ClientLeft> {
        let (head, body) = request.into_parts();
        let id = request_id::of(&head.headers, &self.parts.request_id_headers);
        let mut response = {
            let mut answer = std::pin::pin!(self.answer(&head, body, &id));
            poll_fn(|cx| match answer.as_mut().poll(cx) {
                Poll::Ready(response) => Poll::Ready(Ok(response)),
                Poll::Pending if gone.poll(cx).is_ready() => Poll::Ready(Err(ClientLeft)),
                Poll::Pending => Poll::Pending,
            })
            .await?
        };
        if let ResponseBody::Relay(relay) = response.body_mut() {
            relay.watch(gone);
        }
        response.headers_mut().insert(headers::REQUEST_ID, id);
        if head.version < http::Version::HTTP_2 && self.parts.phase.is_leaving() {
            close_after(&mut response);
        }
        Ok(response)
    }

    /// Everything that needs no worker is answered here.
    async fn answer(
        &self,
        head: &Parts,
        body: Incoming,
        id: &HeaderValue,
    ) -> Response<ResponseBody> {
        let endpoint = match headers::check_head(head.version, &head.headers) {
            Ok(()) => Endpoint::of(&head.method, head.uri.path()),
            Err(problem) => Err(ApiError::new(ErrorKind::InvalidRequest, problem)),
        };
        match endpoint {
            Ok(Endpoint::Live) => plain(StatusCode::OK, "ok\n"),
            Ok(Endpoint::Ready) if self.parts.phase.is_ready() => plain(StatusCode::OK, "ready\n"),
            Ok(Endpoint::Ready) => plain(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            Ok(Endpoint::Models) => {
                let fleet = self.parts.cluster.fleet();
                json(self.catalog(&fleet).list())
            }
            Ok(Endpoint::Model) => self.model(head.uri.path()),
            Ok(endpoint) => {
                let record = Record::new(
                    Arc::clone(&self.parts.metrics),
                    Arc::clone(&self.parts.cluster),
                    endpoint,
                    id.clone(),
                );
                self.forward(head, body, endpoint, record).await
            }
            Err(error) => {
                let mut response = error.response().map(ResponseBody::from);
                // What follows on this connection may be the body of the refused request.
                close_after(&mut response);
                response
            }
        }
    }

    fn model(&self, path: &str) -> Response<ResponseBody> {
        let id = path.strip_prefix("/v1/models/").unwrap_or_default();
        // The official client writes the slash of `org/model` as `%2F`.
        let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
        let fleet = self.parts.cluster.fleet();
        match self.catalog(&fleet).one(&id) {
            Some(body) => json(body),
            None => ApiError::new(ErrorKind::ModelNotFound, "this model is not served")
                .response()
                .map(ResponseBody::from),
        }
    }

    fn catalog<'a>(&'a self, fleet: &'a Fleet) -> Catalog<'a> {
        Catalog::new(fleet.models(), &self.parts.cluster.settings().models)
    }

    /// Everything else goes to a worker.
    async fn forward(
        &self,
        head: &Parts,
        body: Incoming,
        endpoint: Endpoint,
        mut record: Record,
    ) -> Response<ResponseBody> {
        let whole = self.parts.timeouts.whole_request;
        let deadline = whole.map(|limit| record.started() + limit);
        let won = self.win(head, body, endpoint, deadline, &mut record);
        let won = match deadline {
            None => won.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, won).await {
                Ok(won) => won,
                Err(_) => Err(too_late().into()),
            },
        };
        let explained = head.headers.contains_key(&headers::EXPLAIN);
        match won {
            Ok(won) => {
                let decision = won.decision;
                let label = Arc::clone(&won.in_flight.worker().label);
                let mut response = self.commit(won, deadline, record);
                if explained {
                    self.explain(response.headers_mut(), &label, &decision);
                }
                response
            }
            Err(Refusal::Own(error)) => {
                record.own_error(&error);
                error.response().map(ResponseBody::from)
            }
            Err(Refusal::Worker(mut parts, bytes)) => {
                if let Some(after) = retry_after(parts.status) {
                    let headers = &mut parts.headers;
                    headers
                        .entry(header::RETRY_AFTER)
                        .or_insert_with(|| HeaderValue::from(after.as_secs()));
                }
                record.status = Some(parts.status);
                record.finish(Outcome::Error);
                Response::from_parts(*parts, bytes.into())
            }
        }
    }

    /// Admits, reads, places and tries until a worker gives an answer that may be shown.
    async fn win(
        &self,
        head: &Parts,
        body: Incoming,
        endpoint: Endpoint,
        deadline: Option<Instant>,
        record: &mut Record,
    ) -> Result<Won, Refusal> {
        self.admit(record)?;
        let limits = BodyLimits {
            bytes: self.parts.limits.body_bytes.0,
            progress: self.parts.timeouts.body_progress,
        };
        let held = body::read(body, limits, &self.byte_budget)
            .await
            .map_err(|refused| {
                if let Some(limit) = refused.limit {
                    self.parts.metrics.limit_reached(limit);
                }
                refused.error
            })?;

        let asked = Instant::now();
        let cluster = &self.parts.cluster;
        let question = Question::of(cluster, endpoint, &head.headers, &held.bytes)?;
        record.model = Some(question.pool.label());
        let sent = question.body_of(held.bytes.clone());
        let outgoing = self.outgoing(head, sent, question.stream, record.request_id());
        let repeatable = endpoint.needs_model() || head.method == Method::GET;

        let _counted = self.retries.request();
        let mut tried = Vec::new();
        let mut last: Option<Failure> = None;
        let mut retry = None;
        loop {
            let placed = match cluster.place(&question.pool, &question.key, &tried) {
                Ok(placed) => placed,
                Err(no_worker) => return Err(exhausted(last, no_worker)),
            };
            if tried.is_empty() {
                self.parts.metrics.decided(asked.elapsed());
            }
            let reason = placed.decision.reason.as_str();
            self.parts
                .metrics
                .placements
                .get_or_create(&ReasonLabels { reason })
                .inc();
            let Some(mut in_flight) = InFlight::begin(&placed.worker, &placed.decision) else {
                tried.push(placed.decision.worker);
                if let Some(taken) = placed.taken {
                    cluster.knowledge().failed(taken);
                }
                continue;
            };
            record.placed(&placed.worker, reason, placed.taken);
            let limits = AttemptLimits {
                connect: self.parts.timeouts.connect,
                first_token: self.first_token_by(&placed.decision, deadline),
                held_bytes: self.parts.limits.event_line_bytes.as_usize(),
            };
            let result = attempt::attempt(&placed.worker, &outgoing, limits).await;
            self.count_attempt(&placed.worker, &result);
            drop(retry.take());
            let failure = match result {
                Ok(answer) => {
                    if answer.status().is_success() {
                        let (pool, key) = (&question.pool, &question.key);
                        let warm_ups = &self.parts.warm_ups;
                        warm_ups.offer(endpoint, pool, key, &held.bytes);
                    }
                    return Ok(Won {
                        answer,
                        in_flight,
                        decision: placed.decision,
                    });
                }
                Err(failure) => failure,
            };
            in_flight.end(failure.verdict());
            if failure.is_broken_connection() {
                placed.worker.unreachable();
            }
            record.attempt_failed();
            tried.push(placed.decision.worker);
            let draw = rand::rng().random();
            match retry::after(
                &failure,
                record.attempts,
                repeatable,
                &self.parts.retry,
                &self.retries,
                draw,
            ) {
                Next::Stop(why) => {
                    tracing::debug!(why, failure = failure.as_str(), "no further attempt");
                    return Err(refusal_of(failure));
                }
                Next::Retry { pause, counted } => {
                    self.parts.metrics.retries.inc();
                    retry = counted;
                    last = Some(failure);
                    if !pause.is_zero() {
                        sleep(pause).await;
                    }
                }
            }
        }
    }

    fn admit(&self, record: &mut Record) -> Result<(), ApiError> {
        match Arc::clone(&self.requests).try_acquire_owned() {
            Ok(permit) => {
                record.admission = Some(permit);
                Ok(())
            }
            Err(_) => {
                self.parts.metrics.limit_reached("requests");
                let message = "this replica has too many requests in progress; try again";
                Err(ApiError::new(ErrorKind::Overloaded, message))
            }
        }
    }

    fn outgoing(&self, head: &Parts, body: WorkerBody, stream: bool, id: &HeaderValue) -> Outgoing {
        let mut headers = head.headers.clone();
        headers::clean_request(&mut headers);
        headers.insert(headers::REQUEST_ID, id.clone());
        if let Some(authorization) = &self.parts.worker_authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
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

    /// A long prompt takes longer to compute; the whole request's deadline still holds.
    fn first_token_by(&self, decision: &Decision, deadline: Option<Instant>) -> Instant {
        let timeouts = &self.parts.timeouts;
        let per_token = timeouts.first_token_per_1k.as_secs_f64() / 1000.0;
        let for_prompt = Duration::from_secs_f64(per_token * f64::from(decision.prompt_tokens));
        let by = Instant::now() + timeouts.first_token + for_prompt;
        deadline.map_or(by, |deadline| by.min(deadline))
    }

    fn count_attempt(&self, worker: &Worker, result: &Result<Answer, Failure>) {
        let labels = AttemptLabels {
            worker: Arc::clone(&worker.label),
            result: result.as_ref().map_or_else(Failure::as_str, |_| "answered"),
        };
        self.parts.metrics.attempts.get_or_create(&labels).inc();
    }

    /// The point of no return: from here on the answer belongs to this worker.
    fn commit(
        &self,
        won: Won,
        deadline: Option<Instant>,
        mut record: Record,
    ) -> Response<ResponseBody> {
        let mut in_flight = won.in_flight;
        in_flight.prefilled();
        record.first_token();
        match won.answer {
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
                let idle_max = self.parts.timeouts.inter_token;
                let (parts, relay) = Relay::new(*begun, in_flight, record, idle_max, deadline);
                Response::from_parts(parts, ResponseBody::Relay(Box::new(relay)))
            }
        }
    }

    fn explain(&self, out: &mut http::HeaderMap, worker: &str, decision: &Decision) {
        let reason = decision.reason.as_str();
        let expected = decision.expected_tokens.into();
        out.insert(headers::WORKER, headers::value_of(worker));
        out.insert(headers::REPLICA, headers::value_of(&self.parts.replica));
        out.insert(headers::REASON, HeaderValue::from_static(reason));
        out.insert(headers::EXPECTED_TOKENS, expected);
        let digest = self.parts.cluster.fleet().digest().to_string();
        out.insert(headers::DIGEST, headers::value_of(&digest));
    }
}

/// All workers were tried, or none is usable.
fn exhausted(last: Option<Failure>, no_worker: grapevine_placement::NoWorker) -> Refusal {
    match last {
        Some(failure) => refusal_of(failure),
        None => ApiError::new(ErrorKind::NoWorker, no_worker.to_string()).into(),
    }
}

/// What the client gets of the last failure: the worker's own word where there is one.
fn refusal_of(failure: Failure) -> Refusal {
    match failure {
        Failure::Status(parts, bytes) => Refusal::Worker(parts, bytes),
        Failure::Refused(status, bytes) => {
            let mut parts = Response::new(()).into_parts().0;
            parts.status = status;
            let json = HeaderValue::from_static("application/json");
            parts.headers.insert(header::CONTENT_TYPE, json);
            Refusal::Worker(Box::new(parts), bytes)
        }
        Failure::Late => too_late().into(),
        Failure::Connect(_) => {
            ApiError::new(ErrorKind::NoWorker, "no worker could be reached; try again").into()
        }
        Failure::Closed(_) => ApiError::new(
            ErrorKind::UpstreamFailed,
            "every worker that was tried broke off before it answered",
        )
        .into(),
    }
}

fn too_late() -> ApiError {
    ApiError::new(
        ErrorKind::UpstreamTimeout,
        "no worker produced a first token in time",
    )
}

fn close_after(response: &mut Response<ResponseBody>) {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
}

fn plain(status: StatusCode, text: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn json(body: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(body));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
