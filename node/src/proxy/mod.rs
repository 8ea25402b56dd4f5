//! One request, top to bottom.
//!
//! accepted → admitted → asked → placed → connecting → sent → **committed** (first byte to the client) → ended.
//! Up to the commit everything may be tried on another worker; after it nothing is. `stages` has the states as
//! types, `retry` alone decides about another attempt, `refusal` alone what a failure looks like to the client.
//! Each request ends in exactly one outcome, written by its [`Record`]; whatever it holds is released by
//! dropping it.

mod awaited;
pub mod body;
mod budget;
pub mod caller;
pub mod continuation;
pub mod cors;
mod deaths;
mod dispatch;
pub mod division;
mod doubts;
mod failover;
mod guarded;
mod holders;
mod inflate;
mod local;
pub mod metrics;
pub mod model_series;
pub mod outcome;
pub mod own_words;
mod owned_id;
mod pace;
mod pauses;
mod rank;
pub mod realtime;
pub mod record;
mod refusal;
pub mod relay;
mod replay;
mod request_families;
pub mod response;
mod retry;
pub mod routing_query;
mod session_id;
mod split;
mod stages;

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use self::awaited::tell_of_request;
use self::body::BodyLimits;
use self::budget::Budget;
use self::continuation::Failovers;
use self::cors::Cors;
use self::deaths::Deaths;
use self::dispatch::Dispatch;
use self::division::{LeftBlocks, Way};
use self::guarded::guarded;
use self::holders::{Finder, Holders};
use self::metrics::ProxyMetrics;
use self::realtime::{Opening, Sessions};
use self::record::Record;
use self::refusal::Refusal;
use self::response::{Patient, ResponseBody};
use self::retry::Exhausted;
use self::split::ToPair;
use self::stages::accepted::Accepted;
use self::stages::asked::Asked;
use self::stages::placed::Sent;
use self::stages::read::{EntryParts, Looked, Reader};
use self::stages::won::{Shown, Won};
use crate::admission::Admission;
use crate::api::error::{Dialect, ErrorKind};
use crate::api::{ApiError, Endpoint, OpenPath};
use crate::cache::ResponseCache;
use crate::cluster::Cluster;
use crate::cluster::quarantine::Quarantine;
use crate::config::{Coding, LimitConfig, RetryConfig, TimeoutConfig, TransferConfig};
use crate::http::client_body::ClientBody;
use crate::http::client_io::Gone;
use crate::http::head_size::TooLarge;
use crate::http::{headers, hops, host, request_id};
use crate::live::Live;
use crate::log_limit::LogLimit;
use crate::memory::Memory;
use crate::readiness::Readiness;
use crate::seats::Seats;
use crate::shutdown::{Cutoff, Phase};
use crate::tenants::{Keys, take_offered_keys};
use crate::trace::Tracing;
use crate::upstream::probe_parts::Learned;
use crate::warmup::WarmUps;

/// What a [`Proxy`] is made of.
#[derive(Debug)]
pub struct ProxyParts {
    /// This replica's name.
    pub replica: String,
    /// Fleet and placement.
    pub cluster: Arc<Cluster>,
    /// Where to count.
    pub metrics: Arc<ProxyMetrics>,
    /// Where this replica is between start and end.
    pub phase: Phase,
    /// WebSocket sessions.
    pub sessions: Sessions,
    /// Which web pages may read answers; none when none may.
    pub cors: Live<Option<Cors>>,
    /// Codings of request bodies that are inflated.
    pub request_codings: Live<Vec<Coding>>,
    /// Headers that may carry a request id.
    pub request_id_headers: Live<Vec<HeaderName>>,
    /// Paths that workers may be asked for beyond the known ones.
    pub open_paths: Live<Vec<OpenPath>>,
    /// Time limits.
    pub timeouts: Live<TimeoutConfig>,
    /// Retries.
    pub retry: Live<RetryConfig>,
    /// Sizes and counts.
    pub limits: Live<LimitConfig>,
    /// Keeps hot prompts for workers that join.
    pub warm_ups: Arc<WarmUps>,
    /// Answers that are given again; none when it is off.
    pub cache: Option<Arc<ResponseCache>>,
    /// Makes spans; none when traces are off.
    pub tracing: Option<Arc<Tracing>>,
    /// The clients' keys.
    pub keys: Arc<Keys>,
    /// Whether responses that they have stored get ids that carry their tenant.
    pub mark_responses: bool,
    /// Which requests are let in, and which wait.
    pub admission: Arc<Admission>,
    /// Which streams go on elsewhere when their worker fails.
    pub failovers: Failovers,
    /// How requests are divided.
    pub transfer: Live<TransferConfig>,
    /// Takes what answers teach of workers.
    pub learned: mpsc::Sender<Learned>,
    /// Whether there is memory for more requests.
    pub memory: Arc<Memory>,
    /// Whether this replica takes traffic.
    pub readiness: Arc<Readiness>,
    /// Requests that no worker gets.
    pub quarantine: Arc<Quarantine>,
    /// Connections of clients.
    pub seats: Arc<Seats>,
}

/// The data port's request handler.
#[derive(Debug)]
pub struct Proxy {
    replica: String,
    phase: Phase,
    cors: Live<Option<Cors>>,
    request_codings: Live<Vec<Coding>>,
    request_id_headers: Live<Vec<HeaderName>>,
    open_paths: Live<Vec<OpenPath>>,
    limits: Live<LimitConfig>,
    keys: Arc<Keys>,
    mark_responses: bool,
    tracing: Option<Arc<Tracing>>,
    memory: Arc<Memory>,
    readiness: Arc<Readiness>,
    sessions: Sessions,
    cache: Option<Arc<ResponseCache>>,
    warm_ups: Arc<WarmUps>,
    failovers: Failovers,
    /// Of requests that are turned away for want of a connection's place.
    crowded: LogLimit,
    finder: Finder,
    dispatch: Arc<Dispatch>,
}

/// The client left; there is no reader of an answer.
#[derive(Debug, thiserror::Error)]
#[error("the client left before the answer began")]
pub struct ClientLeft;

impl Proxy {
    /// Puts the parts together.
    pub fn new(parts: ProxyParts) -> Self {
        let finder = Finder {
            holders: Holders::new(parts.limits.look().response_ids),
            cluster: Arc::clone(&parts.cluster),
            metrics: parts.metrics.detours.clone(),
            timeouts: parts.timeouts.clone(),
        };
        let dispatch = Dispatch {
            cluster: parts.cluster,
            admission: parts.admission,
            timeouts: parts.timeouts,
            budget: Arc::new(Budget::new(parts.retry.clone())),
            retry: parts.retry,
            deaths: Deaths::default(),
            left: LeftBlocks::new(parts.transfer.clone(), parts.metrics.split.clone()),
            transfer: parts.transfer,
            learned: parts.learned,
            quarantine: parts.quarantine,
            failover: parts.failovers.config().clone(),
            limits: parts.limits.clone(),
            metrics: parts.metrics,
            seats: parts.seats,
            no_socket: LogLimit::default(),
            web_pages: LogLimit::default(),
        };
        Self {
            replica: parts.replica,
            phase: parts.phase,
            cors: parts.cors,
            request_codings: parts.request_codings,
            request_id_headers: parts.request_id_headers,
            open_paths: parts.open_paths,
            limits: parts.limits,
            mark_responses: parts.mark_responses,
            keys: parts.keys,
            tracing: parts.tracing,
            memory: parts.memory,
            readiness: parts.readiness,
            sessions: parts.sessions,
            cache: parts.cache,
            warm_ups: parts.warm_ups,
            failovers: parts.failovers,
            crowded: LogLimit::default(),
            finder,
            dispatch: Arc::new(dispatch),
        }
    }

    /// Answers one request, whatever happens: a panic in here is a 500, and what the request held is released.
    /// `client`: its address, for the log. The head lies on the heap, since each step that it passes has room for what it
    /// takes, and for what it makes of it. `too_large`: what of it was above a limit as it came, over HTTP/2.
    /// Errors: the client left before the answer began.
    pub async fn serve(
        self: &Arc<Self>,
        head: Box<Parts>,
        body: ClientBody,
        too_large: Option<TooLarge>,
        client: IpAddr,
        mut gone: Gone,
        mut cutoff: Cutoff,
    ) -> Result<Response<ResponseBody>, ClientLeft> {
        let version = head.version;
        let dialect = Dialect::of(head.uri.path());
        let cors = self.cors.now();
        let cors = (*cors).as_ref();
        let origin = cors.and_then(|_| head.headers.get(header::ORIGIN).cloned());
        let id = request_id::of(&head.headers, &self.request_id_headers.now());
        let mut response = {
            let mut answer = pin!(self.answer(head, body, too_large, &id, client, &mut cutoff));
            poll_fn(|cx| match guarded(|| answer.as_mut().poll(cx)) {
                Ok(Poll::Ready(response)) => Poll::Ready(Ok(response)),
                Ok(Poll::Pending) if gone.poll(cx).is_ready() => Poll::Ready(Err(ClientLeft)),
                Ok(Poll::Pending) => Poll::Pending,
                Err(error) => {
                    self.dispatch.metrics.refusals.own_error(error.kind);
                    Poll::Ready(Ok(local::refused(&error, dialect)))
                }
            })
            .await?
        };
        let mut is_tunnel = false;
        match response.body_mut() {
            ResponseBody::Relay(relay) => relay.watch(gone, cutoff),
            ResponseBody::Ahead(ahead) => ahead.watch(gone, cutoff),
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
        if version < http::Version::HTTP_2 && self.phase.is_leaving() && !is_tunnel {
            local::close_after(&mut response);
        }
        Ok(response)
    }

    /// Everything that needs no worker is answered here.
    async fn answer(
        self: &Arc<Self>,
        mut head: Box<Parts>,
        body: ClientBody,
        too_large: Option<TooLarge>,
        id: &HeaderValue,
        client: IpAddr,
        cutoff: &mut Cutoff,
    ) -> Response<ResponseBody> {
        let dialect = Dialect::of(head.uri.path());
        let cors = self.cors.now();
        let cors = (*cors).as_ref();
        match cors.and_then(|cors| cors.preflight(&head.method, &head.headers)) {
            None => {}
            Some(Ok(response)) => return response,
            Some(Err(error)) => {
                self.dispatch.metrics.refusals.own_error(error.kind);
                return local::refused(&error, dialect);
            }
        }
        let codings = &*self.request_codings.now();
        let endpoint = self
            .check_size(too_large)
            .and_then(|()| check_host(&head))
            .and_then(|()| self.check_page(cors, &head))
            .and_then(|()| hops::check(&head.headers))
            .and_then(|()| headers::check_head(&head.headers, codings))
            .and_then(|()| Endpoint::of(&head.method, head.uri.path(), &self.open_paths.now()));
        let endpoint = match endpoint {
            Ok(endpoint) => endpoint,
            Err(error) => {
                self.dispatch.metrics.refusals.own_error(error.kind);
                let mut response = local::refused(&error, dialect);
                headers::say_codings(response.headers_mut(), codings);
                return response;
            }
        };
        let key = match endpoint {
            // Monitoring needs no key.
            Endpoint::Live | Endpoint::Ready => Ok(None),
            _ => {
                if endpoint == Endpoint::Realtime && self.keys.are_configured() {
                    take_offered_keys(&mut head.headers);
                }
                self.keys.caller(&head.headers)
            }
        };
        if let Some(response) = self.local(endpoint, head.uri.path(), &key) {
            return response;
        }
        let mut record = Record::new(
            Arc::clone(&self.dispatch.metrics),
            Arc::clone(&self.dispatch.cluster),
            endpoint,
            id.clone(),
            self.phase.is_cutting(),
        );
        record.client = Some(client);
        record.dialect = dialect;
        #[cfg(debug_assertions)]
        crate::fault_injection::panic_in("handler", id);
        #[cfg(debug_assertions)]
        crate::fault_injection::block_lane(id);
        if let Some(tracing) = &self.tracing {
            record.trace = Some(tracing.request(&head, endpoint));
        }
        match key {
            Ok(key) => {
                let (whole, comment) = {
                    let timeouts = self.dispatch.timeouts.look();
                    (timeouts.whole_request, timeouts.stream_comment)
                };
                let deadline = whole.map(|limit| record.started() + limit);
                record.tenant = key.as_ref().map(|key| Arc::clone(key.tenant()));
                record.key.clone_from(&key);
                let accepted = Accepted::new(head, body, endpoint, key, deadline);
                match comment.filter(|_| awaited::may_be_awaited(endpoint)) {
                    None => self.forward(accepted, record, cutoff).await,
                    Some(every) => self.forward_ahead(accepted, record, every).await,
                }
            }
            Err(error) => {
                record.own_error(&error);
                local::refused(&error, dialect)
            }
        }
    }

    /// Holds heads of HTTP/2 to the limits of HTTP/1, whose heads were held to them as they were read.
    fn check_size(&self, too_large: Option<TooLarge>) -> Result<(), ApiError> {
        let error = match too_large {
            None => return Ok(()),
            Some(TooLarge::Target) => ApiError::target_too_long(),
            Some(TooLarge::Head) => ApiError::head_too_large(),
        };
        self.dispatch.metrics.refusals.limit_reached("header_bytes");
        Err(error)
    }

    /// The same as [`Self::forward`]; if the request asks for a stream, its client gets a head after this time, and comments
    /// until the answer begins.
    fn forward_ahead(
        self: &Arc<Self>,
        accepted: Accepted,
        mut record: Box<Record>,
        every: Duration,
    ) -> impl Future<Output = Response<ResponseBody>> + Send + use<> {
        let awaited = Arc::default();
        record.awaited = Some(Arc::clone(&awaited));
        let (since, form) = (record.started(), record.event_form());
        let metrics = Arc::clone(&self.dispatch.metrics);
        let proxy = Arc::clone(self);
        // On the heap: whoever serves the connection may have it in its body.
        let answer = Box::pin(async move {
            let mut cutoff = Cutoff::of_task(&proxy.phase);
            proxy.forward(accepted, record, &mut cutoff).await
        });
        Patient::new(answer, awaited, (since, every), metrics, form).answer()
    }

    /// Where there are keys, a page of another site has none.
    fn check_page(&self, cors: Option<&Cors>, head: &Parts) -> Result<(), ApiError> {
        match self.keys.are_configured() {
            true => Ok(()),
            false => cors::check_unasked(cors, &head.method, &head.uri, &head.headers),
        }
    }

    /// Everything else goes to a worker, inside the limit for whole requests, and before this replica ends.
    async fn forward(
        self: &Arc<Self>,
        accepted: Accepted,
        mut record: Box<Record>,
        cutoff: &mut Cutoff,
    ) -> Response<ResponseBody> {
        let deadline = accepted.deadline();
        let won = {
            let mut won = pin!(self.win(accepted, &mut record));
            let won = poll_fn(|cx| match won.as_mut().poll(cx) {
                Poll::Pending if cutoff.poll(cx).is_ready() => {
                    Poll::Ready(Err(own_words::shutting_down().into()))
                }
                polled => polled,
            });
            match deadline {
                None => won.await,
                Some(deadline) => match timeout_at(deadline, won).await {
                    Ok(won) => won,
                    Err(_) => Err(Refusal::out_of_time()),
                },
            }
        };
        let quotas = record.quotas;
        let cached = record.cache;
        let won = match won {
            Ok(Shown::Won(won)) if record.is_head_out() => {
                won.into_stream(&mut record).map(Shown::Won)
            }
            won => won,
        };
        let mut response = match won {
            Ok(Shown::Kept(answer)) => response::kept(answer, record),
            Ok(Shown::Won(won)) => {
                let explanation = won.explanation();
                let prefill = record.prefill_worker().cloned();
                let on_break = |asked, worker| failover::on_break(&self.dispatch, asked, worker);
                let mut response = won.commit(&self.dispatch, &self.sessions, record, on_break);
                if let Some((worker, decision)) = explanation {
                    self.explain(response.headers_mut(), &worker, &decision);
                    if let Some(worker) = prefill {
                        let worker = headers::value_of(&worker);
                        response.headers_mut().insert(headers::PREFILL, worker);
                    }
                }
                response
            }
            Err(refusal) => refusal.response(record, self.dispatch.admission.no_room_status()),
        };
        tell_of_request(&quotas, cached, response.headers_mut());
        response
    }

    /// One request is always let in: memory that no request holds is not freed by refusing them.
    fn check_memory(&self) -> Result<(), ApiError> {
        let metrics = &self.dispatch.metrics;
        if !self.memory.is_short() || metrics.traffic.requests_active.get() <= 1 {
            return Ok(());
        }
        metrics.refusals.limit_reached("memory");
        let message = "this replica is short of memory; try again";
        Err(ApiError::new(ErrorKind::Overloaded, message))
    }

    /// What is announced as longer than any body may be does not wait: all of it would count as what its tenant asks for.
    fn check_length(&self, accepted: &Accepted) -> Result<(), ApiError> {
        let (limits, timeouts) = (self.limits.look(), self.dispatch.timeouts.look());
        let checked =
            BodyLimits::of(accepted.form(), &limits, &timeouts).check(accepted.announced());
        checked.map_err(|refused| refused.counted(&self.dispatch.metrics.refusals))
    }

    /// Admits, reads, looks for a kept answer, places and tries until a worker gives an answer that may be shown.
    async fn win(&self, accepted: Accepted, record: &mut Record) -> Result<Shown, Refusal> {
        self.check_memory()?;
        self.check_length(&accepted)?;
        accepted.names_one_tenant(self.dispatch.cluster.settings().tenant_header.as_deref())?;
        let opening = self.opening(&accepted)?;
        let admission = &self.dispatch.admission;
        admission.serve(self.dispatch.cluster.fleet().served());
        let admitted = accepted.admit(admission, record).await?;
        let entry = self.entry();
        let mut asked = match opening {
            Some(opening) => {
                let bodies = admission.bodies();
                // On the heap: a request that is no session must not have its room.
                Box::pin(admitted.session(opening, &entry, bodies, record)).await?
            }
            None => {
                let read = admitted.read(&self.reader(), record).await?;
                let tenant_header = self.dispatch.cluster.settings().tenant_header.as_deref();
                match read.look_up(self.cache.as_ref(), tenant_header, record) {
                    Looked::Kept(answer) => return Ok(Shown::Kept(answer)),
                    Looked::Absent(read) => {
                        if read.is_stream() {
                            record.is_stream();
                        }
                        read.enter(&entry, record).await?
                    }
                }
            }
        };
        match self.ask(&mut asked, record).await? {
            Ok(sent) => {
                let holders = &self.finder.holders;
                Ok(Shown::Won(Won::of(asked, sent, holders, &self.warm_ups)))
            }
            Err(exhausted) => Err(Refusal::of(exhausted, asked.pool())),
        }
    }

    /// Tries one worker after another, or one pair after another, until there is an answer.
    async fn ask(
        &self,
        asked: &mut Asked,
        record: &mut Record,
    ) -> Result<Result<Sent, Exhausted>, ApiError> {
        let dispatch = &*self.dispatch;
        let config = dispatch.retry.now();
        let policy = asked.retry_policy(dispatch, &config);
        let way = asked.way(dispatch)?;
        if let (Some(Way::Pair(form)), Some(halves)) = (way, asked.pool().halves()) {
            let halves = Arc::clone(halves);
            let mut plan = ToPair::new(asked, dispatch, record, halves, form);
            // On the heap: a request that goes to one worker must not have the room that two legs need.
            let ended = Box::pin(retry::run(&mut plan, &policy)).await;
            return Ok(ended.map_err(|exhausted| plan.says(exhausted)));
        }
        if let Some(Way::One(why)) = way {
            record.goes(why);
        }
        Ok(retry::run(&mut asked.attempt_plan(dispatch, record), &policy).await)
    }

    /// What of a request is a WebSocket handshake.
    fn opening(&self, accepted: &Accepted) -> Result<Option<Opening>, ApiError> {
        let Some(head) = accepted.session_head() else {
            return Ok(None);
        };
        let cors = self.cors.now();
        let cors = (*cors).as_ref();
        let is_allowed = |origin: &HeaderValue| cors.is_some_and(|cors| cors.allows(origin));
        let refusals = &self.dispatch.metrics.refusals;
        let opening = self.sessions.opening(head, is_allowed, refusals);
        opening.map(Some)
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            cluster: &self.dispatch.cluster,
            limits: self.limits.now(),
            timeouts: self.dispatch.timeouts.now(),
            admission: &self.dispatch.admission,
            quarantine: &self.dispatch.quarantine,
            failovers: &self.failovers,
            transfer: &self.dispatch.transfer,
            metrics: &self.dispatch.metrics,
        }
    }

    fn entry(&self) -> EntryParts<'_> {
        EntryParts {
            admission: &self.dispatch.admission,
            cluster: &self.dispatch.cluster,
            finder: &self.finder,
            budget: &self.dispatch.budget,
            marks_responses: self.mark_responses,
        }
    }

    fn explain(&self, out: &mut HeaderMap, worker: &str, decision: &grapevine_placement::Decision) {
        let reason = decision.reason.as_str();
        let expected = decision.expected_tokens.into();
        out.insert(headers::WORKER, headers::value_of(worker));
        out.insert(headers::REPLICA, headers::value_of(&self.replica));
        out.insert(headers::REASON, HeaderValue::from_static(reason));
        out.insert(headers::EXPECTED_TOKENS, expected);
        let digest = self.dispatch.cluster.fleet().digest().to_string();
        out.insert(headers::DIGEST, headers::value_of(&digest));
    }
}

/// Heads of HTTP/1 were held to it as they were read.
fn check_host(head: &Parts) -> Result<(), ApiError> {
    if head.version < http::Version::HTTP_2 {
        return Ok(());
    }
    let checked = host::check_http2(&head.uri, &head.headers);
    checked.map_err(|why| ApiError::new(ErrorKind::InvalidRequest, why))
}
