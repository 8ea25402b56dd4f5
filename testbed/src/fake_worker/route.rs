//! One request on its way to the part that answers it.

use std::sync::Arc;

use serde_json::json;

use super::config::StopMode;
use super::connection::{Connection, Request};
use super::fault::{Canned, Fault, Seen};
use super::ledger::{Entry, Open};
use super::reply::{Ended, JSON, Reply, canned_body};
use super::request::{ApiError, Kind};
use super::worker::Worker;
use super::{body, control, generate, information, realtime, stored};

/// Paths that the worker knows, with their method.
const ROUTES: [(&str, &str); 30] = [
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
    ("GET", "/kv_event_sources"),
    ("POST", "/sleep"),
    ("POST", "/wake_up"),
    ("GET", "/is_sleeping"),
];

/// Does this path match the known one? `{id}` stands for one segment.
fn is_route(known: &str, path: &str) -> bool {
    let Some((before, after)) = known.split_once("{id}") else {
        return known == path;
    };
    let id = path
        .strip_prefix(before)
        .and_then(|rest| rest.strip_suffix(after));
    id.is_some_and(|id| !id.is_empty() && !id.contains('/'))
}

/// Answers one request, with the fault that is meant for it.
pub(super) async fn exchange(
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
            // The connection ends with the worker.
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
    // A request that arrives while the worker hangs is refused; only older ones hang.
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
        // The connection ends with the worker.
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
        "/v1/messages" => Kind::Messages,
        "/sleep" | "/wake_up" | "/is_sleeping" if !worker.config.dev_mode => {
            return reply.plain(404, JSON, br#"{"detail":"Not Found"}"#).await;
        }
        "/sleep" => {
            let level = field(request, "level=").and_then(|level| level.parse().ok());
            worker.sleep(level.unwrap_or(1));
            return reply.plain(200, "", b"").await;
        }
        "/wake_up" => {
            worker.wake(field(request, "tags=") != Some("weights"));
            return reply.plain(200, "", b"").await;
        }
        "/tokenize" => return information::serve(worker, request, path, reply).await,
        _ if *method == "POST" || path.contains('{') => {
            return stored::serve(worker, request, reply, entry).await;
        }
        _ => return information::serve(worker, request, path, reply).await,
    };
    let entry = entry.expect("every POST route has an entry");
    generate::serve(worker, kind, request, reply, entry).await
}

/// The first field of the query that begins so, without it.
fn field<'a>(request: &'a Request, begins: &str) -> Option<&'a str> {
    let (_, query) = request.target.split_once('?')?;
    query
        .split('&')
        .find_map(|field| field.strip_prefix(begins))
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
