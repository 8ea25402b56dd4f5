//! The admin port, and the Prometheus port, which serves `/metrics` alone.
//!
//! | method, path | what |
//! |---|---|
//! | `GET /healthz` | the process runs |
//! | `GET /readyz` | the replica takes traffic; else what is missing |
//! | `GET /metrics` | OpenMetrics or Prometheus' protobuf for clients that name them, else text format 0.0.4 |
//! | `GET /cluster` | replicas as this one sees them, registry, ring digest |
//! | `GET /about` | what this replica alone knows of itself and of its machine; for `grapevine doctor` |
//! | `GET /events` | faults, repairs and changes of the last hour, as this replica saw them, oldest first |
//! | `GET /history?worker=`, `?replica=` | the last hour in figures: of the cluster, of one worker, of one replica |
//! | `GET /links` | which replica hears which |
//! | `GET /ring` | digest of every ring, and its first workers |
//! | `GET /workers?limit=&after=` | list, 1,000 at a time in order of ids; `next` is the `after` of the next page |
//! | `POST /workers?warmup=` | add one, or a list, all or none; `warmup=false`: active at once |
//! | `GET`, `PATCH`, `DELETE /workers/{id}` | one worker; the id percent-encoded |
//! | `POST /workers/{id}/drain` | nothing new for it: no new prefixes, and sessions move with their next request |
//! | `PATCH /workers/{id}` with `{"state":"active"}` | undoes a drain |
//! | `POST /add_worker?url=&warmup=`, `POST /remove_worker?url=`, `GET /list_workers?limit=&after=` | as in vllm-router; the list in pages, as `GET /workers` |
//! | `GET /cache?limit=` | what workers that publish KV events hold: the prefixes that take most room, and each worker |
//! | `GET /quarantine` | hashes of the requests that no worker gets, with their age and what is left |
//! | `DELETE /quarantine/{hash}`, `DELETE /quarantine` | lifts one mark, or all, on every replica |
//! | `POST /config/reload` | reads the configuration again, as SIGHUP does, and tells what became of it |
//! | `GET /discovery` | sources of workers, as this replica sees them |
//! | `PUT`, `DELETE /leases/{id}` | a worker registers itself or renews its lease; takes itself out. Its own credential is enough |
//! | `POST /explain?path=&tenant=&load=` | where the request in the body would go, and why |
//! | `GET /`, `/page/...` | the page, for people: `pages/` |
//!
//! A parameter that an endpoint does not have is a 400 that names those that it has; `/metrics` and leases ignore it.
//!
//! Never on the data port. Beyond loopback it needs a token. Web pages are kept out by `gate.rs`.

mod about;
mod body;
mod describe;
mod explain;
mod gate;
mod history;
mod leases;
mod links;
mod methods;
mod page;
mod pages;
mod query;
mod scrape;
mod taken_away;
mod workers;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use grapevine_gossip::Agent;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use self::leases::wrong_credential;
use self::page::Page;
use self::pages::Outgoing;
use self::query::Query;
use crate::admission::Admission;
use crate::all_metrics::AllMetrics;
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::cluster::Cluster;
use crate::cluster::quarantine::Quarantine;
use crate::config::{LimitConfig, Secret, TransferConfig};
use crate::descriptors;
use crate::discovery::{Board, Credentials, Leases};
use crate::http::client_io::ClientIo;
use crate::kv_events::Caches;
use crate::listener::Door;
use crate::listener::framing::HeadLimits;
use crate::listener::http1_guard::{Guarded, Waits};
use crate::live::Live;
use crate::log_limit::LogLimit;
use crate::memory::Memory;
use crate::metrics::{Form, ReasonLabels};
use crate::page::sampler::Recorder;
use crate::readiness::{AGAIN_AFTER_S, Readiness};
use crate::reload::{RefusedConfig, Wish};
use crate::seats::{Counts, Goodbye, Seat, SeatLimits, Seats};
use crate::shutdown::Phase;
use crate::tenants::{Keys, bearer};
use crate::upstream::Connector;
use crate::warmup::WarmUps;

pub use about::Configured;
pub use gate::Gate;
use gate::GateRefusal;
pub use pages::Pages;

/// From the first byte of a request to the end of its head; between requests, and before the first one.
const WAITS: Waits = Waits {
    header: Duration::from_secs(15),
    keep_alive: Duration::from_secs(15),
};
/// Largest head that is taken.
const HEAD: HeadLimits = HeadLimits {
    bytes: 64 << 10,
    lines: 100,
};
/// Longest time that a client may leave its answer unread.
const WRITE_STALL: Duration = Duration::from_secs(30);
/// From the head to the end of the body.
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// Largest body, in bytes: `/explain` takes whole requests.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// What the admin API shows and changes.
pub struct Admin {
    /// This replica's name.
    pub replica: String,
    /// Fleet and placement.
    pub cluster: Arc<Cluster>,
    /// The replicated view.
    pub agent: Arc<Agent>,
    /// All metrics.
    pub metrics: Arc<AllMetrics>,
    /// One reader of them at a time.
    pub reading: Mutex<()>,
    /// Admission to the data port.
    pub admission: Arc<Admission>,
    /// Where this replica is between start and end.
    pub phase: Phase,
    /// Whether it takes traffic.
    pub readiness: Arc<Readiness>,
    /// What is known of workers' caches.
    pub caches: Arc<Caches>,
    /// Warm-ups of workers that join.
    pub warm_ups: Arc<WarmUps>,
    /// Requests that no worker gets.
    pub quarantine: Arc<Quarantine>,
    /// What sources of workers show.
    pub board: Arc<Board>,
    /// Workers that register themselves.
    pub leases: Arc<Leases>,
    /// Credentials of these; none: the token registers them.
    pub credentials: Live<Option<Credentials>>,
    /// Where workers may be.
    pub connector: Arc<Connector>,
    /// Wishes for a reading of the configuration.
    pub reload: mpsc::Sender<Wish>,
    /// The latest one, where it was refused.
    pub refused_config: RefusedConfig,
    /// Fingerprint of the settings that must be equal on all replicas.
    pub settings: Live<String>,
    /// What the configuration says of this replica.
    pub configured: Live<Configured>,
    /// Memory against its limit.
    pub memory: Arc<Memory>,
    /// How requests are divided.
    pub transfer: Live<TransferConfig>,
    /// Clients must send it.
    pub token: Live<Option<Secret>>,
    /// At most one line a second of callers without it.
    pub uninvited: LogLimit,
    /// Which requests the admin port accepts.
    pub admin_gate: Live<Gate>,
    /// Which requests the Prometheus port accepts.
    pub metrics_gate: Live<Gate>,
    /// The clients' keys.
    pub keys: Arc<Keys>,
    /// What clients may take.
    pub limits: Live<LimitConfig>,
    /// The last hour.
    pub recorder: Arc<Recorder>,
    /// What the page keeps.
    pub pages: Pages,
    /// Tasks that end with the replica.
    pub tasks: TaskTracker,
}

/// Which of the two ports a listener is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Everything.
    Admin,
    /// `/metrics` alone, without a token.
    Metrics,
}

type Answer = Response<Full<Bytes>>;

/// The places of one of the two ports: operators come from few addresses, so none has a share.
pub fn seats(port: Port, metrics: &AllMetrics) -> Arc<Seats> {
    let limits = SeatLimits {
        capacity: descriptors::connections_of_operators(),
        share_percent: 100,
        per_address: None,
        proxies: Vec::new(),
    };
    let (port, limit) = match port {
        Port::Admin => ("admin", "admin_connections"),
        Port::Metrics => ("metrics", "metrics_connections"),
    };
    let (refusals, traffic) = (&metrics.refusals, &metrics.traffic);
    Seats::new(limits, Counts::of(refusals, traffic, port, limit))
}

/// Serves until the replica is closed: an operator needs the admin port most while something ends.
pub async fn run(door: Door, port: Port, admin: Arc<Admin>, tracker: TaskTracker) {
    loop {
        let (stream, peer, seat) = tokio::select! {
            () = admin.phase.closed() => return,
            next = door.next() => next,
        };
        let admin = Arc::clone(&admin);
        tracker.spawn(async move { serve(stream, peer, port, &seat, admin).await });
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, port: Port, seat: &Seat, admin: Arc<Admin>) {
    let phase = admin.phase.clone();
    let progress = seat.progress();
    let (io, socket) = ClientIo::new(stream, WRITE_STALL, progress.clone());
    let refusals = admin.metrics.refusals.clone();
    let guarded = Guarded::new(io, HEAD, WAITS, progress.clone(), refusals);
    let service = service_fn(|request| {
        let admin = Arc::clone(&admin);
        let in_progress = progress.begin();
        async move {
            let mut answer = admin.answer(port, request).await;
            if answer.status() == StatusCode::UNAUTHORIZED && admin.uninvited.allows_line() {
                tracing::warn!(client = %peer, "a caller of the admin port has no token, or a wrong one");
            }
            if let Outgoing::Right(live) = answer.body_mut() {
                live.hold(in_progress);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Both waits are the guard's.
        .header_read_timeout(None)
        .max_buf_size(HEAD.bytes)
        .max_headers(HEAD.lines)
        .serve_connection(TokioIo::new(guarded), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        // In this order: a request that has come is answered before the connection ends.
        biased;
        result = connection.as_mut() => result,
        () = progress.told_to_leave() => {
            connection.as_mut().graceful_shutdown();
            match seat.goodbye(connection.as_mut()).await {
                Goodbye::Ended(ended) => ended,
                Goodbye::Idle => Ok(()),
                Goodbye::Busy => connection.await,
            }
        }
        () = phase.closed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "admin connection ended");
    }
    if !seat.is_wanted() {
        socket.linger().await;
    }
}

impl Admin {
    async fn answer(
        self: &Arc<Self>,
        port: Port,
        request: Request<Incoming>,
    ) -> Response<Outgoing> {
        if port == Port::Admin && pages::is_page(request.uri().path()) {
            let (head, body) = request.into_parts();
            return self.page(&head, body).await;
        }
        let answer = match port {
            Port::Metrics => match self.metrics_only(&request) {
                Ok(form) => self.metrics(form).await,
                Err(error) => Err(error),
            },
            Port::Admin => self.route(request).await,
        };
        let answer: Answer = answer.unwrap_or_else(|error| error.response().map(Full::new));
        answer.map(Outgoing::Left)
    }

    fn metrics_only(&self, request: &Request<Incoming>) -> Result<Form, ApiError> {
        let gate = self.metrics_gate.now();
        gate.check_page(request.headers())
            .and_then(|()| gate.check_host(request.headers(), request.uri().authority()))
            .map_err(|refused| self.refusal(refused))?;
        match (methods::asked(request.method()), request.uri().path()) {
            (&Method::GET, "/metrics") => Ok(Form::asked_for(request.headers())),
            _ => Err(not_found("this port serves GET /metrics")),
        }
    }

    async fn route(self: &Arc<Self>, request: Request<Incoming>) -> Result<Answer, ApiError> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        self.admin_gate
            .now()
            .check_page(&head.headers)
            .map_err(|refused| self.refusal(refused))?;
        let method = methods::asked(&head.method);
        // Liveness and readiness are for probes, which carry no token and learn nothing else.
        match (method, segments.as_slice()) {
            (&Method::GET, ["healthz"]) => return Ok(text(StatusCode::OK, "ok\n")),
            (&Method::GET, ["readyz"]) => return Ok(self.readyz()),
            (_, ["leases", id]) if self.is_worker(&decoded(id)?, &head.headers) => {}
            (_, ["leases", _]) if self.is_wrong_credential(&head.headers) => {
                self.refused("token");
                return Err(wrong_credential());
            }
            _ => self.check_caller(&head)?,
        }
        gate::check_body(&head.method, &head.headers, !body.is_end_stream())
            .map_err(|refused| self.refusal(refused))?;
        let query = Query::of(&head.uri, methods::parameters(method, &segments))?;
        match (method, segments.as_slice()) {
            (&Method::GET, ["metrics"]) => self.metrics(Form::asked_for(&head.headers)).await,
            (&Method::GET, ["cluster"]) => Ok(json(StatusCode::OK, &self.describe_cluster())),
            (&Method::GET, ["about"]) => self.show_about().await,
            (&Method::GET, ["events"]) => Ok(json(StatusCode::OK, &self.describe_events())),
            (&Method::GET, ["history"]) => {
                Ok(json(StatusCode::OK, &self.describe_history(&query)?))
            }
            (&Method::GET, ["links"]) => Ok(json(StatusCode::OK, &self.describe_links())),
            (&Method::GET, ["ring"]) => Ok(json(StatusCode::OK, &self.describe_rings())),
            (&Method::GET, ["workers"]) => Ok(self.list_workers(&Page::of(&query)?).await),
            (&Method::POST, ["workers"]) => {
                self.add_worker(query.warms_up()?, &read(body).await?).await
            }
            (&Method::GET, ["workers", id]) => self.show_worker(&self.named(&decoded(id)?)).await,
            (&Method::PATCH, ["workers", id]) => {
                self.change_worker(&self.named(&decoded(id)?), &read(body).await?)
                    .await
            }
            (&Method::DELETE, ["workers", id]) => {
                self.remove_worker(&self.named(&decoded(id)?)).await
            }
            (&Method::POST, ["workers", id, "drain"]) => {
                self.drain_worker(&self.named(&decoded(id)?)).await
            }
            (&Method::POST, ["config", "reload"]) => self.reload().await,
            (&Method::GET, ["discovery"]) => Ok(self.describe_discovery()),
            (&Method::PUT, ["leases", id]) => {
                self.renew(&decoded(id)?, &query, &read(body).await?).await
            }
            (&Method::DELETE, ["leases", id]) => self.release(&decoded(id)?).await,
            (&Method::POST, ["add_worker"]) => {
                let url = query.require("url")?;
                self.add_worker_at(query.warms_up()?, url).await
            }
            (&Method::POST, ["remove_worker"]) => {
                self.remove_worker_at(query.require("url")?).await
            }
            (&Method::GET, ["list_workers"]) => Ok(self.list_urls(&Page::of(&query)?)),
            (&Method::GET, ["cache"]) => self.describe_caches(&query).await,
            (&Method::GET, ["quarantine"]) => Ok(self.list_quarantine()),
            (&Method::DELETE, ["quarantine"]) => Ok(self.lifted(self.quarantine.lift(None))),
            (&Method::DELETE, ["quarantine", hash]) => self.lift(&decoded(hash)?),
            (&Method::POST, ["explain"]) => self.explain(&query, &head.headers, &read(body).await?),
            (_, segments) => Err(methods::unserved(&head.method, segments)),
        }
    }

    /// A client with the token may call this port by any name; without it the name has to be the port's own.
    fn check_caller(&self, head: &http::request::Parts) -> Result<(), ApiError> {
        let token = self.token.now();
        let Some(token) = &*token else {
            let gate = self.admin_gate.now();
            let checked = gate.check_host(&head.headers, head.uri.authority());
            return checked.map_err(|refused| self.refusal(refused));
        };
        let sent = bearer(&head.headers).unwrap_or_default();
        if is_equal(token.reveal().as_bytes(), sent) {
            return Ok(());
        }
        self.refused("token");
        Err(ApiError::new(
            ErrorKind::Unauthorized,
            "the admin API needs its token as `Authorization: Bearer <token>`",
        ))
    }

    fn refusal(&self, refused: GateRefusal) -> ApiError {
        self.refused(refused.label());
        ApiError::new(ErrorKind::PermissionDenied, refused.to_string())
    }

    fn refused(&self, reason: &'static str) {
        let refusals = &self.metrics.operators.admin_refusals;
        refusals.get_or_create(&ReasonLabels { reason }).inc();
    }

    async fn reload(&self) -> Result<Answer, ApiError> {
        let busy = || {
            let busy = "the configuration is being read, or this replica is ending; try again";
            ApiError::new(ErrorKind::Overloaded, busy)
        };
        let (wish, outcome) = oneshot::channel();
        self.reload.try_send(wish).map_err(|_| busy())?;
        match outcome.await.map_err(|_| busy())? {
            Ok(reloaded) => Ok(json(StatusCode::OK, &reloaded)),
            Err(error) => Err(ApiError::new(ErrorKind::InvalidRequest, error)),
        }
    }

    /// What the kernel says is read from files.
    async fn show_about(self: &Arc<Self>) -> Result<Answer, ApiError> {
        let admin = Arc::clone(self);
        let about = tokio::task::spawn_blocking(move || admin.describe_about()).await;
        let about = about
            .map_err(|_| ApiError::new(ErrorKind::Internal, "the machine was not looked at"))?;
        Ok(json(StatusCode::OK, &about))
    }

    async fn describe_caches(&self, query: &Query<'_>) -> Result<Answer, ApiError> {
        let limit = Page::of(query)?.limit();
        let caches = Arc::clone(&self.caches);
        let top = tokio::task::spawn_blocking(move || caches.top(limit)).await;
        let top = top.map_err(|_| ApiError::new(ErrorKind::Internal, "it could not be counted"))?;
        Ok(json(StatusCode::OK, &top))
    }

    fn list_quarantine(&self) -> Answer {
        let marks = self.quarantine.list();
        json(StatusCode::OK, &serde_json::json!({ "quarantine": marks }))
    }

    fn lift(&self, hash: &str) -> Result<Answer, ApiError> {
        match self.quarantine.lift(Some(&hash.to_ascii_lowercase())) {
            0 => Err(not_found(
                "no such mark at this replica; GET /quarantine lists them, by hash",
            )),
            lifted => Ok(self.lifted(lifted)),
        }
    }

    fn lifted(&self, count: usize) -> Answer {
        for _ in 0..count {
            self.metrics.marks.query_of_death("lifted");
        }
        if count > 0 {
            tracing::info!(count, "marks of requests that ended workers were lifted");
        }
        json(StatusCode::OK, &serde_json::json!({ "lifted": count }))
    }

    fn readyz(&self) -> Answer {
        let (is_ready, body) = self.readiness.body();
        if is_ready {
            return answer(StatusCode::OK, "application/json", body.into());
        }
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut answer = answer(status, "application/json", body.into());
        let headers = answer.headers_mut();
        headers.insert(header::RETRY_AFTER, AGAIN_AFTER_S);
        answer
    }
}

/// Takes as long for a nearly right token as for a wrong one.
fn is_equal(token: &[u8], sent: &[u8]) -> bool {
    let differing = token
        .iter()
        .zip(sent)
        .fold(0, |differing, (a, b)| differing | (a ^ b));
    token.len() == sent.len() && differing == 0
}

async fn read(body: Incoming) -> Result<Bytes, ApiError> {
    read_at_most(body, BODY_BYTES_MAX).await
}

async fn read_at_most(body: Incoming, bytes_max: usize) -> Result<Bytes, ApiError> {
    let limited = Limited::new(body, bytes_max).collect();
    match timeout(BODY_WITHIN, limited).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => Err(ApiError::new(
            ErrorKind::TooLarge,
            format!("the body broke off or is larger than {bytes_max} bytes"),
        )),
        Err(_) => Err(ApiError::new(
            ErrorKind::RequestTimeout,
            "the body did not arrive in time",
        )),
    }
}

/// A path segment without its percent-encoding; ids are mostly URLs.
fn decoded(segment: &str) -> Result<String, ApiError> {
    percent_encoding::percent_decode_str(segment)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| ApiError::invalid("id", "the id is not UTF-8"))
}

fn not_found(message: &'static str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, message)
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    let body = serde_json::to_vec(value).expect("descriptions always serialise");
    answer(status, "application/json", body.into())
}

fn text(status: StatusCode, text: &'static str) -> Answer {
    answer(
        status,
        "text/plain; charset=utf-8",
        Bytes::from_static(text.as_bytes()),
    )
}

fn answer(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
