//! One request, top to bottom.
//!
//! accepted → admitted → asked → placed → connecting → sent → **committed** (first byte to the client) → ended.
//! Up to the commit everything may be tried on another worker; after it nothing is. `stages` has the states as
//! types, `retry` alone decides about another attempt, `refusal` alone what a failure looks like to the client.
//! Each request ends in exactly one outcome, written by its [`Record`]; whatever it holds is released by
//! dropping it.

pub mod attempt;
pub mod body;
mod budget;
pub mod byte_budget;
pub mod caller;
pub mod continuation;
pub mod cors;
mod deaths;
pub mod failover;
mod failure;
pub mod forwarded;
pub mod headers;
mod holders;
mod inflate;
mod local;
pub mod patience;
pub mod quarantine;
pub mod question;
mod rank;
pub mod realtime;
pub mod record;
mod refusal;
pub mod relay;
mod replay;
pub mod request_id;
mod retry;
pub mod sse;
mod stages;
pub(crate) mod text;
pub mod worker_body;

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use tokio::time::timeout_at;

use self::attempt::{Answer, Failure};
use self::budget::Budget;
use self::byte_budget::ByteBudget;
use self::cors::Cors;
use self::deaths::Deaths;
use self::failover::Failovers;
pub use self::failure::ATTEMPT_RESULTS;
use self::holders::Holders;
use self::quarantine::Quarantine;
use self::realtime::Sessions;
use self::record::Record;
use self::refusal::Refusal;
use self::relay::ResponseBody;
use self::stages::{Accepted, Shown, Source, Won};
use crate::admission::{self, Admission};
use crate::api::error::{Dialect, ErrorKind};
use crate::api::{ApiError, Endpoint, OpenPath};
use crate::cache::ResponseCache;
use crate::cluster::Cluster;
use crate::config::{Coding, LimitConfig, RetryConfig, TimeoutConfig};
use crate::hops;
use crate::listener::client_io::Gone;
use crate::memory::Memory;
use crate::metrics::{AttemptLabels, Metrics};
use crate::readiness::Readiness;
use crate::shutdown::{Cutoff, Phase};
use crate::tenants::{Key, Keys};
use crate::trace::Tracing;
use crate::upstream::Worker;
use crate::warmup::WarmUps;

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
    /// WebSocket sessions.
    pub sessions: Sessions,
    /// Which web pages may read answers; none when none may.
    pub cors: Option<Cors>,
    /// Codings of request bodies that are inflated.
    pub request_codings: Vec<Coding>,
    /// Headers that may carry a request id.
    pub request_id_headers: Vec<HeaderName>,
    /// Paths that workers may be asked for beyond the known ones.
    pub open_paths: Vec<OpenPath>,
    /// Time limits.
    pub timeouts: TimeoutConfig,
    /// Retries.
    pub retry: RetryConfig,
    /// Sizes and counts.
    pub limits: LimitConfig,
    /// Keeps hot prompts for workers that join.
    pub warm_ups: Arc<WarmUps>,
    /// Answers that are given again; none when it is off.
    pub cache: Option<Arc<ResponseCache>>,
    /// Makes spans; none when traces are off.
    pub tracing: Option<Arc<Tracing>>,
    /// Who may ask.
    pub keys: Arc<Keys>,
    /// Who is let in, and who waits.
    pub admission: Arc<Admission>,
    /// Which streams go on elsewhere when their worker fails.
    pub failovers: Failovers,
    /// Whether there is memory for more requests.
    pub memory: Arc<Memory>,
    /// Whether this replica takes traffic.
    pub readiness: Arc<Readiness>,
    /// Requests that no worker gets.
    pub quarantine: Arc<Quarantine>,
}

/// The data port's request handler.
#[derive(Debug)]
pub struct Proxy {
    parts: ProxyParts,
    byte_budget: Arc<ByteBudget>,
    retries: Arc<Budget>,
    deaths: Deaths,
    holders: Holders,
}

/// Runs a step of a request. A panic in it is a defect of ours that must cost no other request: it becomes an error,
/// and the step's future may only be dropped afterwards. Where it was is on standard error by then.
fn guarded<T>(step: impl FnOnce() -> T) -> Result<T, ApiError> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|_| {
        ApiError::new(
            ErrorKind::Internal,
            "a defect of the router; its log says where, and the request may be sent again",
        )
    })
}

/// The client left; there is nobody to answer.
#[derive(Debug, thiserror::Error)]
#[error("the client left before the answer began")]
pub struct ClientLeft;

impl Proxy {
    /// Puts the parts together.
    pub fn new(parts: ProxyParts) -> Self {
        Self {
            byte_budget: Arc::clone(parts.admission.bodies()),
            retries: Arc::new(Budget::new(&parts.retry)),
            deaths: Deaths::default(),
            holders: Holders::new(parts.limits.response_ids),
            parts,
        }
    }

    /// Answers one request, whatever happens: a panic in here is a 500, and what the request held is released.
    /// `client`: whose it is, for the log.
    ///
    /// # Errors
    /// The client left before the answer began.
    pub async fn serve(
        self: &Arc<Self>,
        request: Request<Incoming>,
        client: IpAddr,
        mut gone: Gone,
        mut cutoff: Cutoff,
    ) -> Result<Response<ResponseBody>, ClientLeft> {
        let (head, body) = request.into_parts();
        let version = head.version;
        let dialect = Dialect::of(head.uri.path());
        let cors = self.parts.cors.as_ref();
        let origin = cors.and_then(|_| head.headers.get(header::ORIGIN).cloned());
        let id = request_id::of(&head.headers, &self.parts.request_id_headers);
        let mut response = {
            let mut answer = std::pin::pin!(self.answer(head, body, &id, client));
            poll_fn(|cx| match guarded(|| answer.as_mut().poll(cx)) {
                Ok(Poll::Ready(response)) => Poll::Ready(Ok(response)),
                Ok(Poll::Pending) if gone.poll(cx).is_ready() => Poll::Ready(Err(ClientLeft)),
                Ok(Poll::Pending) if cutoff.poll(cx).is_ready() => {
                    self.parts.metrics.own_error(ErrorKind::ShuttingDown);
                    Poll::Ready(Ok(local::refused(&refusal::shutting_down(), dialect)))
                }
                Ok(Poll::Pending) => Poll::Pending,
                Err(error) => {
                    self.parts.metrics.own_error(error.kind);
                    Poll::Ready(Ok(local::refused(&error, dialect)))
                }
            })
            .await?
        };
        let mut is_tunnel = false;
        match response.body_mut() {
            ResponseBody::Relay(relay) => relay.watch(gone, cutoff),
            ResponseBody::Tunnel(Some(tunnel)) => {
                tunnel.watch(gone);
                is_tunnel = true;
            }
            _ => {}
        }
        response.headers_mut().insert(headers::REQUEST_ID, id);
        if let Some(cors) = cors {
            cors.tell(origin.as_ref(), response.headers_mut());
        }
        if version < http::Version::HTTP_2 && self.parts.phase.is_leaving() && !is_tunnel {
            local::close_after(&mut response);
        }
        Ok(response)
    }

    /// Everything that needs no worker is answered here.
    async fn answer(
        self: &Arc<Self>,
        head: Parts,
        body: Incoming,
        id: &HeaderValue,
        client: IpAddr,
    ) -> Response<ResponseBody> {
        let dialect = Dialect::of(head.uri.path());
        let cors = self.parts.cors.as_ref();
        match cors.and_then(|cors| cors.preflight(&head.method, &head.headers)) {
            None => {}
            Some(Ok(response)) => return response,
            Some(Err(error)) => {
                self.parts.metrics.own_error(error.kind);
                return local::refused(&error, dialect);
            }
        }
        let codings = &self.parts.request_codings;
        let endpoint = hops::check(&head.headers)
            .and_then(|()| headers::check_head(&head.headers, codings))
            .and_then(|()| Endpoint::of(&head.method, head.uri.path(), &self.parts.open_paths));
        let endpoint = match endpoint {
            Ok(endpoint) => endpoint,
            Err(error) => {
                self.parts.metrics.own_error(error.kind);
                let mut response = local::refused(&error, dialect);
                headers::say_codings(response.headers_mut(), codings);
                return response;
            }
        };
        let key = match endpoint {
            // Whoever watches this replica needs no key.
            Endpoint::Live | Endpoint::Ready => Ok(None),
            _ => self.parts.keys.caller(&head.headers),
        };
        if let Some(response) = self.local(endpoint, head.uri.path(), &key) {
            return response;
        }
        let mut record = Record::new(
            Arc::clone(&self.parts.metrics),
            Arc::clone(&self.parts.cluster),
            endpoint,
            id.clone(),
            self.parts.phase.is_cutting(),
        );
        record.client = Some(client);
        record.dialect = dialect;
        #[cfg(debug_assertions)]
        crate::provoke::panic_in("handler", id);
        if let Some(tracing) = &self.parts.tracing {
            record.trace = Some(tracing.request(&head, endpoint));
        }
        match key {
            Ok(key) => self.forward(head, body, endpoint, key, record).await,
            Err(error) => {
                record.own_error(&error);
                local::refused(&error, dialect)
            }
        }
    }

    /// Everything else goes to a worker, inside the limit for whole requests.
    async fn forward(
        self: &Arc<Self>,
        head: Parts,
        body: Incoming,
        endpoint: Endpoint,
        key: Option<Arc<Key>>,
        mut record: Record,
    ) -> Response<ResponseBody> {
        let whole = self.parts.timeouts.whole_request;
        let deadline = whole.map(|limit| record.started() + limit);
        let accepted = Accepted::new(head, body, endpoint, key, deadline);
        let won = self.win(accepted, &mut record);
        let won = match deadline {
            None => won.await,
            Some(deadline) => match timeout_at(deadline, won).await {
                Ok(won) => won,
                Err(_) => Err(refusal::out_of_time().into()),
            },
        };
        let quota = record.quota;
        let cached = record.cache;
        let mut response = match won {
            Ok(Shown::Kept(answer)) => replay::response(answer, record),
            Ok(Shown::Won(won)) => {
                let explanation = won.explanation();
                let mut response = won.commit(self, record);
                if let Some((worker, decision)) = explanation {
                    self.explain(response.headers_mut(), &worker, &decision);
                }
                response
            }
            Err(refusal) => refusal.response(record, self.parts.admission.no_room_status()),
        };
        if let Some(quota) = &quota {
            admission::tell(quota, response.headers_mut());
        }
        if let Some(word) = cached {
            let headers = response.headers_mut();
            headers.insert(headers::CACHE, HeaderValue::from_static(word));
        }
        response
    }

    /// One request is always let in: memory that no request holds is not freed by refusing them.
    fn check_memory(&self) -> Result<(), ApiError> {
        let metrics = &self.parts.metrics;
        if !self.parts.memory.is_short() || metrics.requests_active.get() <= 1 {
            return Ok(());
        }
        metrics.limit_reached("memory");
        let message = "this replica is short of memory; try again";
        Err(ApiError::new(ErrorKind::Overloaded, message))
    }

    /// Admits, asks, looks for a kept answer, places and tries until a worker gives an answer that may be shown.
    async fn win(&self, accepted: Accepted, record: &mut Record) -> Result<Shown, Refusal> {
        self.check_memory()?;
        let opening = accepted.opening(self)?;
        let admitted = accepted.admit(self, record).await?;
        let mut asked = match opening {
            Some(opening) => admitted.session(opening, self, record).await?,
            None => match admitted.ask(self, record).await? {
                Source::Kept(answer) => return Ok(Shown::Kept(answer)),
                Source::Worker(asked) => asked,
            },
        };
        let terms = asked.terms(self);
        match retry::run(&mut asked.course(self, record), &terms).await {
            Ok(sent) => Ok(Shown::Won(Won::of(asked, sent, self))),
            Err(lost) => Err(Refusal::of(lost, asked.pool())),
        }
    }

    fn count_attempt(&self, worker: &Worker, result: &Result<Answer, Failure>) {
        let result = result.as_ref().map_or_else(Failure::as_str, |_| "answered");
        let index = ATTEMPT_RESULTS.iter().position(|label| *label == result);
        let find = || {
            let labels = AttemptLabels {
                worker: Arc::clone(&worker.series_label),
                result,
            };
            self.parts.metrics.attempts.get_or_create(&labels).clone()
        };
        let attempts = &worker.series.attempts;
        attempts.count(index.unwrap_or(usize::MAX), find, |attempts| {
            attempts.inc();
        });
    }

    fn explain(
        &self,
        out: &mut http::HeaderMap,
        worker: &str,
        decision: &grapevine_placement::Decision,
    ) {
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
