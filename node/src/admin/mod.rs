//! The admin port, and the Prometheus port, which serves `/metrics` alone.
//!
//! | method, path | what |
//! |---|---|
//! | `GET /healthz` | the process runs |
//! | `GET /readyz` | the replica takes traffic |
//! | `GET /metrics` | OpenMetrics |
//! | `GET /cluster` | replicas as this one sees them, registry, ring digest |
//! | `GET /ring` | digest of every ring |
//! | `GET /workers`, `POST /workers?warmup=` | list, add; `warmup=false`: active at once |
//! | `GET`, `PATCH`, `DELETE /workers/{id}` | one worker; the id percent-encoded |
//! | `POST /workers/{id}/drain` | no new prefixes for it |
//! | `POST /add_worker?url=&warmup=`, `POST /remove_worker?url=`, `GET /list_workers` | as in vllm-router |
//! | `POST /explain?path=&tenant=` | where the request in the body would go, and why |
//!
//! Never on the data port. Beyond loopback it needs a token.

mod describe;
mod explain;
mod workers;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grapevine_gossip::Agent;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::cluster::Cluster;
use crate::config::Secret;
use crate::logging;
use crate::memory;
use crate::metrics::{self, Metrics, WorkerLabels};
use crate::shutdown::Phase;
use crate::upstream::Reach;
use crate::warmup::WarmUps;

/// Connections at once; more wait in the backlog.
const CONNECTIONS_MAX: usize = 256;
/// From accepting a connection to the end of a request's head, and between requests.
const HEADER_WITHIN: Duration = Duration::from_secs(15);
/// From the head to the end of the body.
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// Largest body, in bytes: `/explain` takes whole requests.
const BODY_BYTES_MAX: usize = 16 << 20;
/// After a failed accept before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the admin API shows and changes.
pub struct Admin {
    /// This replica's name.
    pub replica: String,
    /// Fleet and placement.
    pub cluster: Arc<Cluster>,
    /// The replicated view.
    pub agent: Arc<Agent>,
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// Where this replica is between start and end.
    pub phase: Phase,
    /// Warm-ups of workers that join.
    pub warm_ups: Arc<WarmUps>,
    /// Where workers may be.
    pub reach: Arc<Reach>,
    /// Clients must send it.
    pub token: Option<Secret>,
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

/// Serves until the replica is closed: an operator needs the admin port most while something ends.
pub async fn run(listener: TcpListener, port: Port, admin: Arc<Admin>, tracker: TaskTracker) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = Arc::clone(&connections).acquire_owned().await;
        let accepted = tokio::select! {
            () = admin.phase.closed() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let admin = Arc::clone(&admin);
                tracker.spawn(async move {
                    let _permit = permit;
                    serve(stream, port, admin).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed on the admin port; going on");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, port: Port, admin: Arc<Admin>) {
    let phase = admin.phase.clone();
    let service = service_fn(|request| {
        let admin = Arc::clone(&admin);
        async move { Ok::<_, Infallible>(admin.answer(port, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_WITHIN)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = phase.closed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "admin connection ended");
    }
}

impl Admin {
    async fn answer(&self, port: Port, request: Request<Incoming>) -> Answer {
        let answer = match port {
            Port::Metrics => self.metrics_only(&request),
            Port::Admin => self.route(request).await,
        };
        answer.unwrap_or_else(|error| error.response().map(Full::new))
    }

    fn metrics_only(&self, request: &Request<Incoming>) -> Result<Answer, ApiError> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/metrics") => Ok(self.metrics()),
            _ => Err(not_found("this port serves GET /metrics")),
        }
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Answer, ApiError> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        // Liveness and readiness are for probes, which carry no token and learn nothing else.
        match (&head.method, segments.as_slice()) {
            (&Method::GET, ["healthz"]) => return Ok(text(StatusCode::OK, "ok\n")),
            (&Method::GET, ["readyz"]) => return Ok(self.readiness()),
            _ => self.check_token(&head.headers)?,
        }
        let query = Query(head.uri.query().unwrap_or_default());
        match (&head.method, segments.as_slice()) {
            (&Method::GET, ["metrics"]) => Ok(self.metrics()),
            (&Method::GET, ["cluster"]) => Ok(json(StatusCode::OK, &self.describe_cluster())),
            (&Method::GET, ["ring"]) => Ok(json(StatusCode::OK, &self.describe_rings())),
            (&Method::GET, ["workers"]) => Ok(json(StatusCode::OK, &self.describe_workers())),
            (&Method::POST, ["workers"]) => {
                self.add_worker(query.warms_up()?, &read(body).await?).await
            }
            (&Method::GET, ["workers", id]) => self.show_worker(&decoded(id)?),
            (&Method::PATCH, ["workers", id]) => {
                self.change_worker(&decoded(id)?, &read(body).await?).await
            }
            (&Method::DELETE, ["workers", id]) => self.remove_worker(&decoded(id)?).await,
            (&Method::POST, ["workers", id, "drain"]) => self.drain_worker(&decoded(id)?).await,
            (&Method::POST, ["add_worker"]) => {
                let url = query.require("url")?;
                self.add_worker_at(query.warms_up()?, url).await
            }
            (&Method::POST, ["remove_worker"]) => {
                self.remove_worker_at(query.require("url")?).await
            }
            (&Method::GET, ["list_workers"]) => Ok(self.list_urls()),
            (&Method::POST, ["explain"]) => self.explain(&query, &head.headers, &read(body).await?),
            _ => Err(not_found(
                "no such admin endpoint; GET /workers, /cluster, /ring, /metrics, POST /explain are the most used",
            )),
        }
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        let sent = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
            .unwrap_or_default();
        if is_equal(token.reveal().as_bytes(), sent) {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorKind::Unauthorized,
            "the admin API needs its token as `Authorization: Bearer <token>`",
        ))
    }

    fn readiness(&self) -> Answer {
        if self.phase.is_ready() {
            text(StatusCode::OK, "ready\n")
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
        }
    }

    /// Gauges that follow from other state are set here, when somebody looks.
    fn metrics(&self) -> Answer {
        self.metrics.ready.set(self.phase.is_ready().into());
        let resident = memory::resident_bytes().unwrap_or(0);
        let resident = i64::try_from(resident).unwrap_or(i64::MAX);
        self.metrics.memory.set(resident);
        let dropped = &self.metrics.log_lines_dropped;
        dropped.inc_by(logging::lines_dropped().saturating_sub(dropped.get()));
        for worker in self.cluster.fleet().workers() {
            let labels = WorkerLabels {
                worker: Arc::clone(&worker.label),
            };
            let metrics = &self.metrics;
            let own = i64::from(worker.load.own().requests);
            metrics.worker_in_flight.get_or_create(&labels).set(own);
            metrics
                .worker_in_flight_cluster
                .get_or_create(&labels)
                .set(self.cluster.load_of(worker).requests);
            metrics.health.show(worker);
        }
        let fleet = self.cluster.fleet();
        let pools = fleet.pools().iter();
        let panics = pools.map(|pool| (pool.label(), pool.panics()));
        self.metrics.health.show_panic(panics);
        let mut response = Response::new(Full::from(self.metrics.encode()));
        let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}

/// The query of a URL, decoded when asked for.
struct Query<'a>(&'a str);

impl Query<'_> {
    fn value(&self, name: &str) -> Option<String> {
        url::form_urlencoded::parse(self.0.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
    }

    fn require(&self, name: &'static str) -> Result<String, ApiError> {
        self.value(name)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| ApiError::invalid(name, format!("add ?{name}=... to the URL")))
    }

    /// Whether a new worker may be warmed up before it takes requests; absent: yes.
    fn warms_up(&self) -> Result<bool, ApiError> {
        match self.value("warmup").as_deref() {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(_) => Err(ApiError::invalid("warmup", "warmup is true or false")),
        }
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
    let limited = Limited::new(body, BODY_BYTES_MAX).collect();
    match timeout(BODY_WITHIN, limited).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => Err(ApiError::new(
            ErrorKind::TooLarge,
            format!("the body broke off or is larger than {BODY_BYTES_MAX} bytes"),
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
