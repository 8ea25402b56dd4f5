//! The HTTP side: accept, connections, routes, and the ways a worker stops.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::config::{Config, StopMode};
use super::connection::{Connection, NoRequest, Request};
use super::fault::{Canned, Fault, Rules, Seen};
use super::ledger::{Entry, Ledger, Open, Stats};
use super::pacer::Pacer;
use super::prompt::Prompt;
use super::reply::{Ended, Reply, canned_body};
use super::request::{self, ApiError, Kind};
use super::stored::{self, Kept};
use super::{body, control, generate, metrics, realtime};

pub(super) const JSON: &str = "application/json";

/// How long a worker told to hang still answers 500 before its port is closed (measured: 50 ms to
/// 1 s, by load).
const HANG_GRACE: Duration = Duration::from_millis(100);
/// How often a draining worker looks whether it is idle.
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// Where the worker is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    Draining(Duration),
    /// Nothing of what was begun is continued.
    Hanging,
    /// As `Hanging`, with the port closed and idle connections gone.
    Closed,
    Exiting,
}

impl Phase {
    /// Requests that were begun get not one byte more.
    pub(super) fn hangs(self) -> bool {
        matches!(self, Self::Hanging | Self::Closed)
    }
}

/// State shared by all connections of one worker.
pub(super) struct Worker {
    pub(super) config: Config,
    pub(super) pacer: Arc<Pacer>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) finished_by_stop: AtomicU64,
    pub(super) finished_by_length: AtomicU64,
    pub(super) responses: Kept,
    rules: Mutex<Rules>,
    started_unix: u64,
    /// Microseconds since 1970, as `/metrics` says it: another one is another life of the process.
    process_start_us: AtomicU64,
}

impl Worker {
    pub(super) fn new(config: Config) -> Arc<Self> {
        let process_start_us = config
            .process_start_us
            .unwrap_or_else(super::ledger::unix_us);
        Arc::new(Self {
            process_start_us: AtomicU64::new(process_start_us),
            pacer: Pacer::new(config.engine.clone(), config.speed),
            ledger: Ledger::new(config.log_entries_max.max(1)),
            phase: watch::Sender::new(Phase::Running),
            finished_by_stop: AtomicU64::new(0),
            finished_by_length: AtomicU64::new(0),
            responses: Kept::default(),
            rules: Mutex::default(),
            started_unix: super::ledger::unix_us() / 1_000_000,
            config,
        })
    }

    pub(super) fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().expect("no holder of this lock panics")
    }

    /// Microseconds since 1970 at which the modelled process started.
    pub(super) fn process_start_us(&self) -> u64 {
        self.process_start_us.load(Ordering::Relaxed)
    }

    /// What is left of a restart once the worker answers again: an empty cache and a later start.
    pub(super) fn restart(&self) -> u64 {
        self.pacer.forget_cache();
        self.responses.forget();
        // At least a second later: readers may keep whole seconds only.
        let now = super::ledger::unix_us();
        let later = |start: u64| Some(now.max(start + 1_000_000));
        let before =
            self.process_start_us
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        later(before.unwrap_or_else(|same| same)).unwrap_or(now)
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.phase.borrow() != Phase::Running
    }

    pub(super) fn stats(&self) -> Stats {
        let counters = self.pacer.counters();
        Stats {
            hit_tokens: counters.hit_tokens,
            queried_tokens: counters.queried_tokens,
            ..self.ledger.stats()
        }
    }

    pub(super) fn terminate(&self, mode: StopMode) {
        self.phase.send_replace(match mode {
            StopMode::Hang => Phase::Hanging,
            StopMode::Drain(limit) => Phase::Draining(limit),
            StopMode::Exit => Phase::Exiting,
        });
    }
}

/// Serves until the worker has stopped. All connections end with this future.
pub(super) async fn run(worker: Arc<Worker>, listener: TcpListener) {
    let _engine = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&worker.pacer).run()));
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(port_closes(&worker));
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    worker.ledger.connection();
                    connections.spawn(connection(Arc::clone(&worker), stream, peer));
                }
                Err(e) => {
                    tracing::warn!("accept failed: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let mut phase = worker.phase.subscribe();
    tokio::select! {
        // Clients of a hanging worker decide when it ends.
        () = async { while connections.join_next().await.is_some() {} } => {}
        _ = phase.wait_for(|phase| *phase == Phase::Exiting) => {}
    }
    connections.shutdown().await;
}

/// Returns when no further connection is to be accepted.
async fn port_closes(worker: &Worker) {
    let mut phase = worker.phase.subscribe();
    let stopped = phase.wait_for(|phase| *phase != Phase::Running).await;
    let stopped = *stopped.expect("the worker owns the sender");
    let (patience, next) = match stopped {
        Phase::Hanging => (HANG_GRACE, Phase::Closed),
        Phase::Draining(limit) => (limit, Phase::Exiting),
        Phase::Running | Phase::Closed | Phase::Exiting => return,
    };
    tokio::select! {
        () = tokio::time::sleep(patience) => {}
        () = idle(worker), if matches!(stopped, Phase::Draining(_)) => {}
        _ = phase.wait_for(|phase| *phase == Phase::Exiting) => {}
    }
    worker.phase.send_if_modified(|phase| {
        let moves = *phase != Phase::Exiting;
        if moves {
            *phase = next;
        }
        moves
    });
}

async fn idle(worker: &Worker) {
    while worker.ledger.in_flight() > 0 {
        tokio::time::sleep(DRAIN_POLL).await;
    }
}

async fn connection(worker: Arc<Worker>, stream: TcpStream, peer: SocketAddr) {
    if let Err(e) = stream.set_nodelay(true) {
        tracing::debug!("nodelay for {peer}: {e}");
    }
    let mut connection = Connection::new(stream);
    let mut phase = worker.phase.subscribe();
    let mut idle_limit = None;
    loop {
        let begun = tokio::select! {
            biased; // a request that is already here is answered
            begun = connection.next_request_begins(idle_limit) => begun,
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => return,
        };
        let request = match begun {
            Ok(()) => connection.request().await,
            Err(end) => Err(end),
        };
        match request {
            Ok(request) => {
                let again = request.keep_alive;
                if exchange(&worker, &mut connection, &request).await.is_err() || !again {
                    return;
                }
            }
            Err(NoRequest::Closed) => return,
            Err(NoRequest::Invalid) => {
                let mut reply = Reply::new(&mut connection, Fault::default(), None, None, false);
                let text = b"Invalid HTTP request received.";
                let kind = "text/plain; charset=utf-8";
                if reply.plain(400, kind, text).await.is_err() {
                    tracing::debug!("{peer} left before its 400");
                }
                return;
            }
        }
        idle_limit = Some(worker.config.keep_alive);
    }
}

/// Paths that the worker knows, with their method.
const ROUTES: [(&str, &str); 26] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/{id}"),
    ("POST", "/v1/responses/{id}/cancel"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/rerank"),
    ("POST", "/v1/rerank"),
    ("POST", "/v2/rerank"),
    ("POST", "/score"),
    ("POST", "/v1/score"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/audio/translations"),
    ("POST", "/classify"),
    ("POST", "/pooling"),
    ("POST", "/generate"),
    ("GET", "/v1/models"),
    ("GET", "/health"),
    ("GET", "/ping"),
    ("GET", "/metrics"),
    ("GET", "/version"),
    ("GET", "/load"),
];

/// Is this path the known one? `{id}` stands for one segment.
fn is_route(known: &str, path: &str) -> bool {
    let Some((before, after)) = known.split_once("{id}") else {
        return known == path;
    };
    let id = path
        .strip_prefix(before)
        .and_then(|rest| rest.strip_suffix(after));
    id.is_some_and(|id| !id.is_empty() && !id.contains('/'))
}

async fn exchange(
    worker: &Arc<Worker>,
    connection: &mut Connection,
    request: &Request,
) -> Result<(), Ended> {
    let path = request.path();
    if path.starts_with("/_control/") {
        let mut reply = Reply::new(connection, Fault::default(), None, None, request.keep_alive);
        return control::serve(worker, request, &mut reply).await;
    }
    if realtime::is_handshake(request) && authorized(worker, request) {
        worker.ledger.path(realtime::PATH);
        let entry = worker.ledger.open(entry(request));
        let fault = fault(worker, request).unwrap_or_default();
        if fault.exit {
            worker.terminate(StopMode::Exit);
            // The end of the worker is that of this connection.
            std::future::pending::<()>().await;
        }
        let Some(canned) = fault.reply.clone() else {
            return realtime::serve(connection, request, &entry).await;
        };
        let mut reply = Reply::new(connection, fault, Some(&entry), None, request.keep_alive);
        return send_canned(&mut reply, &canned).await;
    }
    let route = ROUTES.iter().find(|(_, known)| is_route(known, path));
    worker
        .ledger
        .path(route.map_or("other", |(_, known)| known));
    let probe = route.is_some_and(|(method, path)| *method == "GET" && !path.contains('{'));
    let entry = (!probe).then(|| worker.ledger.open(entry(request)));
    let fault = fault(worker, request);
    // A request that comes while the worker hangs is refused; only older ones hang.
    let phase = worker.phase.subscribe();
    let older = !phase.borrow().hangs();
    let invalid = fault.as_ref().err().cloned();
    let fault = fault.unwrap_or_default();
    let mut reply = Reply::new(
        connection,
        fault,
        entry.as_ref(),
        older.then_some(phase),
        request.keep_alive,
    );
    if let Some(message) = invalid {
        return reply
            .plain(
                400,
                JSON,
                json!({ "error": message }).to_string().as_bytes(),
            )
            .await;
    }
    reply.delay().await?;
    if reply.fault().exit {
        worker.terminate(StopMode::Exit);
        // The end of the worker is that of this connection.
        std::future::pending::<()>().await;
    }
    if worker.config.request_id_headers {
        let id = request.header("x-request-id").map(str::to_owned);
        let id = id.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
        reply.header("x-request-id", &id);
    }
    if let Some(canned) = reply.fault().reply.clone() {
        return send_canned(&mut reply, &canned).await;
    }
    route_to(worker, request, route, &mut reply, entry.as_ref()).await
}

fn entry(request: &Request) -> Entry {
    Entry {
        request_id: request.header("x-request-id").map(str::to_owned),
        method: request.method.clone(),
        path: request.target.clone(),
        headers: request.headers.clone(),
        body_bytes: request.body.len() as u64,
        body_hash: format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&request.body)),
        ..Entry::default()
    }
}

/// The request's own fault, or the one that a rule has for it.
fn fault(worker: &Worker, request: &Request) -> Result<Fault, String> {
    if let Some(own) = request.header("x-fault") {
        return serde_json::from_str(own).map_err(|e| format!("x-fault: {e}"));
    }
    let seen = Seen {
        method: &request.method,
        path: request.path(),
        headers: &request.headers,
        body: &request.body,
    };
    Ok(worker.rules().take(&seen).unwrap_or_default())
}

async fn send_canned(reply: &mut Reply<'_>, canned: &Canned) -> Result<(), Ended> {
    for (name, value) in &canned.headers {
        reply.header(name, value);
    }
    let own_type = canned
        .headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let kind = if own_type { "" } else { JSON };
    if canned.gzip {
        reply.header("content-encoding", "gzip");
    }
    let scripted = ApiError {
        status: canned.status,
        kind: "ScriptedFault",
        message: "scripted fault".into(),
        param: None,
    };
    let text = canned
        .body
        .clone()
        .unwrap_or_else(|| body::error(&scripted));
    let bytes = canned_body(&text, canned.repeat, canned.gzip);
    reply.plain(canned.status, kind, &bytes).await
}

async fn route_to(
    worker: &Arc<Worker>,
    request: &Request,
    route: Option<&(&str, &str)>,
    reply: &mut Reply<'_>,
    entry: Option<&Open>,
) -> Result<(), Ended> {
    let Some((method, path)) = route else {
        return reply.plain(404, JSON, br#"{"detail":"Not Found"}"#).await;
    };
    if request.method != *method {
        reply.header("allow", method);
        return reply
            .plain(405, JSON, br#"{"detail":"Method Not Allowed"}"#)
            .await;
    }
    if !authorized(worker, request) {
        return reply.plain(401, JSON, br#"{"error":"Unauthorized"}"#).await;
    }
    let kind = match *path {
        "/v1/chat/completions" => Kind::Chat,
        "/v1/completions" => Kind::Completion,
        "/v1/embeddings" => Kind::Embedding,
        "/tokenize" => return information(worker, request, path, reply).await,
        _ if *method == "POST" || path.contains('{') => {
            return stored::serve(worker, request, reply, entry).await;
        }
        _ => return information(worker, request, path, reply).await,
    };
    let entry = entry.expect("every POST route has an entry");
    generate::serve(worker, kind, request, reply, entry).await
}

/// vLLM's key guards `/v1` alone.
fn authorized(worker: &Worker, request: &Request) -> bool {
    match &worker.config.api_key {
        Some(key) if request.path().starts_with("/v1") => {
            request.header("authorization") == Some(format!("Bearer {key}").as_str())
        }
        _ => true,
    }
}

async fn information(
    worker: &Worker,
    request: &Request,
    path: &str,
    reply: &mut Reply<'_>,
) -> Result<(), Ended> {
    let answer = match path {
        "/health" | "/ping" => return reply.plain(200, "", b"").await,
        "/metrics" => {
            return reply
                .plain(
                    200,
                    metrics::CONTENT_TYPE,
                    metrics::render(worker).as_bytes(),
                )
                .await;
        }
        "/version" => json!({ "version": "0.32.0" }),
        "/load" => json!({ "server_load": worker.ledger.in_flight() }),
        "/v1/models" => models(worker),
        _ => match tokenize(worker, &request.body) {
            Ok(answer) => answer,
            Err(error) => {
                return reply
                    .plain(error.status, JSON, body::error(&error).as_bytes())
                    .await;
            }
        },
    };
    reply.plain(200, JSON, answer.to_string().as_bytes()).await
}

fn models(worker: &Worker) -> serde_json::Value {
    let model = |name: &String| {
        json!({
            "id": name, "object": "model", "created": worker.started_unix, "owned_by": "vllm",
            "root": worker.config.models[0], "parent": null, "max_model_len": worker.config.model_len(),
            "permission": [{
                "id": "modelperm-fake", "object": "model_permission", "created": worker.started_unix,
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
                "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false,
                "organization": "*", "group": null, "is_blocking": false,
            }],
        })
    };
    let data: Vec<_> = worker.config.models.iter().map(model).collect();
    json!({ "object": "list", "data": data })
}

fn tokenize(worker: &Worker, body: &[u8]) -> Result<serde_json::Value, ApiError> {
    let body = request::json_object(body)?;
    let prompt = match body["prompt"].as_str() {
        Some(text) => Prompt::text(text),
        None => request::chat_prompt(&body)?,
    };
    let tokens = prompt.ids();
    Ok(json!({
        "count": tokens.len(), "max_model_len": worker.config.model_len(),
        "tokens": tokens, "token_strs": null,
    }))
}
