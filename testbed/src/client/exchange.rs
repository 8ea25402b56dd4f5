//! One request, measured.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::HeaderMap;
use hyper::{Method, Request};
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::pool::{Client, NoReply, Reply};
use super::sse::Events;

/// Greatest plain body in which usage is looked for.
const PLAIN_BYTES_MAX: usize = 16 << 20;

/// Characters kept of an error event's code: it becomes the name of a count.
const CODE_CHARS_MAX: usize = 40;

/// What to ask.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Path of the `POST`.
    pub path: &'static str,
    /// JSON body.
    pub body: Bytes,
    /// The reply is an event stream.
    pub stream: bool,
    /// Ask the router to name the worker in `x-grapevine-worker`.
    pub explain: bool,
}

/// The kind of a failure, as the client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// No connection.
    Connect,
    /// The connection ended before the head of a reply.
    ClosedBeforeHead,
    /// A status other than 2xx.
    Status(u16),
    /// An error event in a stream, with its code.
    ErrorEvent(String),
    /// The body ended in the middle.
    Cut,
    /// A stream ended in order, but without `[DONE]`.
    NoDone,
    /// The request did not end within the time limit.
    Timeout,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("connect"),
            Self::ClosedBeforeHead => f.write_str("closed_before_head"),
            Self::Status(status) => write!(f, "status_{status}"),
            Self::ErrorEvent(code) => write!(f, "error_event_{code}"),
            Self::Cut => f.write_str("cut"),
            Self::NoDone => f.write_str("no_done"),
            Self::Timeout => f.write_str("timeout"),
        }
    }
}

/// Token counts that the reply reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt: u64,
    /// Answer tokens.
    pub completion: u64,
    /// Prompt tokens that a prefix cache supplied.
    pub cached: u64,
}

/// The result of one request.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// `None`: it succeeded.
    pub failure: Option<Failure>,
    /// From sending to the end.
    pub latency: Duration,
    /// From sending to the first `data:` event; streams only.
    pub first_event: Option<Duration>,
    /// Times between events after the first.
    pub gaps: Vec<Duration>,
    /// Token counts, if reported.
    pub usage: Option<Usage>,
    /// `x-grapevine-worker`.
    pub worker: Option<String>,
    /// `x-grapevine-replica`.
    pub replica: Option<String>,
}

impl Outcome {
    /// A part of the answer had reached the client before it failed.
    pub fn had_begun(&self) -> bool {
        self.first_event.is_some()
    }
}

#[derive(Deserialize)]
struct Event {
    usage: Option<WireUsage>,
    error: Option<WireError>,
}

#[derive(Deserialize)]
struct WireError {
    code: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct WireUsage {
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<WireDetails>,
}

#[derive(Deserialize)]
struct WireDetails {
    cached_tokens: Option<u64>,
}

impl From<WireUsage> for Usage {
    fn from(usage: WireUsage) -> Self {
        let details = usage.prompt_tokens_details;
        Self {
            prompt: usage.prompt_tokens,
            completion: usage.completion_tokens,
            cached: details.and_then(|d| d.cached_tokens).unwrap_or(0),
        }
    }
}

impl Client {
    /// Sends one request to the next target and reads the reply to its end.
    pub async fn exchange(&self, ask: &Ask, limit: Duration) -> Outcome {
        let start = Instant::now();
        let mut outcome = Outcome::default();
        let done = timeout(limit, self.attempt(ask, start, &mut outcome)).await;
        outcome.failure = done.unwrap_or(Err(Failure::Timeout)).err();
        outcome.latency = start.elapsed();
        outcome
    }

    async fn attempt(
        &self,
        ask: &Ask,
        start: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(ask.path)
            .header("content-type", "application/json");
        if ask.explain {
            request = request.header("x-grapevine-explain", "1");
        }
        let request = request
            .body(Full::new(ask.body.clone()))
            .expect("path and headers are constants");
        let mut reply = self.send(request).await.map_err(|none| match none {
            NoReply::Connect => Failure::Connect,
            NoReply::ClosedBeforeHead => Failure::ClosedBeforeHead,
        })?;
        outcome.worker = text(reply.response.headers(), "x-grapevine-worker");
        outcome.replica = text(reply.response.headers(), "x-grapevine-replica");
        let status = reply.response.status();
        if !status.is_success() {
            // Read to the end so that the connection can be used again; the status is the result.
            read_plain(&mut reply).await?;
            reply.recycle();
            return Err(Failure::Status(status.as_u16()));
        }
        if ask.stream {
            read_stream(&mut reply, start, outcome).await?;
        } else {
            let body = read_plain(&mut reply).await?;
            let event: Option<Event> = serde_json::from_slice(&body).ok();
            outcome.usage = event.and_then(|event| event.usage).map(Usage::from);
        }
        reply.recycle();
        Ok(())
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

async fn read_plain(reply: &mut Reply<'_>) -> Result<Vec<u8>, Failure> {
    let mut kept = Vec::new();
    while let Some(frame) = reply.response.body_mut().frame().await {
        let data = frame.map_err(|_| Failure::Cut)?.into_data();
        if let Ok(data) = data
            && kept.len() + data.len() <= PLAIN_BYTES_MAX
        {
            kept.extend_from_slice(&data);
        }
    }
    Ok(kept)
}

async fn read_stream(
    reply: &mut Reply<'_>,
    start: Instant,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let mut events = Events::default();
    let mut last_event = start;
    let mut done = false;
    let mut error = None;
    while let Some(frame) = reply.response.body_mut().frame().await {
        // If the body is cut after an error event, that event is reported: it says more.
        let Ok(frame) = frame else {
            return Err(error.map_or(Failure::Cut, Failure::ErrorEvent));
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let now = Instant::now();
        events.feed(&data, |data| {
            if data == b"[DONE]" {
                done = true;
                return;
            }
            if outcome.first_event.is_some() {
                outcome.gaps.push(now - last_event);
            }
            last_event = now;
            if let Some(code) = look_into(data, &mut outcome.usage) {
                error.get_or_insert(code);
            } else {
                outcome.first_event.get_or_insert(now - start);
            }
        });
    }
    match error {
        Some(code) => Err(Failure::ErrorEvent(code)),
        None if done => Ok(()),
        None => Err(Failure::NoDone),
    }
}

/// Takes usage out of an event; returns the code of an error event. Most events have neither, so
/// they are not parsed.
fn look_into(data: &[u8], usage: &mut Option<Usage>) -> Option<String> {
    let has = |needle: &[u8]| memchr::memmem::find(data, needle).is_some();
    if !has(b"\"usage\":{") && !data.starts_with(b"{\"error\"") {
        return None;
    }
    let event: Event = serde_json::from_slice(data).ok()?;
    if let Some(reported) = event.usage {
        *usage = Some(reported.into());
    }
    Some(match event.error?.code {
        Some(serde_json::Value::String(code)) => code.chars().take(CODE_CHARS_MAX).collect(),
        Some(code) => code.to_string(),
        None => "none".to_owned(),
    })
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
