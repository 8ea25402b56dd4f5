//! One request, measured.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::HeaderMap;
use hyper::{Method, Request};
use tokio::time::{Instant, timeout};

use super::event::{Event, Usage, refusal};
use super::pool::{Client, NoReply, Reply};
use super::shown::MESSAGE_CHARS_MAX;
use super::sse::Events;

/// Greatest plain body in which usage is looked for.
const PLAIN_BYTES_MAX: usize = 16 << 20;

/// Characters kept of an error's code: it becomes the name of a count.
const CODE_CHARS_MAX: usize = 40;

/// How the kinds of [`Failure::ErrorEvent`] begin; the code comes behind it.
pub(crate) const ERROR_EVENT: &str = "error_event_";

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
    /// No connection, also not within the time limit.
    Connect,
    /// The connection ended before the head of a reply.
    ClosedBeforeHead,
    /// A status other than 2xx.
    Status(u16),
    /// An error event in a stream, with its code as in [`Complaint::code`]; `none` without one.
    ErrorEvent(String),
    /// The body ended in the middle.
    Cut,
    /// A stream ended in order, but without `[DONE]`.
    NoDone,
    /// A plain reply of status 2xx that is not an answer of this API.
    NoAnswer,
    /// The request did not end within the time limit, although there was a connection.
    Timeout,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("connect"),
            Self::ClosedBeforeHead => f.write_str("closed_before_head"),
            Self::Status(status) => write!(f, "status_{status}"),
            Self::ErrorEvent(code) => write!(f, "{ERROR_EVENT}{code}"),
            Self::Cut => f.write_str("cut"),
            Self::NoDone => f.write_str("no_done"),
            Self::NoAnswer => f.write_str("no_answer"),
            Self::Timeout => f.write_str("timeout"),
        }
    }
}

/// What the endpoint, or the system, said of a failure; either may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Complaint {
    /// OpenAI's error code, or its type; at most 40 characters, without the client's key and control characters.
    pub code: String,
    /// For people; at most 200 characters, without the same.
    pub message: String,
}

/// The result of one request.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// `None`: it succeeded.
    pub failure: Option<Failure>,
    /// What was said of the failure, if anything.
    pub complaint: Option<Complaint>,
    /// From sending to the end.
    pub latency: Duration,
    /// From sending to the first `data:` event; streams only.
    pub first_event: Option<Duration>,
    /// From sending to the first event that carries a part of the answer; streams only.
    pub first_token: Option<Duration>,
    /// Times between events that carry parts of the answer, from the first on.
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

impl Client {
    /// Sends one request to the next target and reads the reply to its end, within `limit`.
    pub async fn exchange(&self, ask: &Ask, limit: Duration) -> Outcome {
        let start = Instant::now();
        let mut outcome = Outcome::default();
        let mut is_connected = false;
        let attempt = self.attempt(ask, start, &mut outcome, &mut is_connected);
        let done = timeout(limit, attempt).await;
        outcome.failure = match done {
            Ok(done) => done.err(),
            Err(_) if is_connected => Some(Failure::Timeout),
            Err(_) => {
                let why = format!("no connection within {}", humantime::format_duration(limit));
                outcome.complaint = Some(self.complaint((String::new(), why)));
                Some(Failure::Connect)
            }
        };
        outcome.latency = start.elapsed();
        outcome
    }

    async fn attempt(
        &self,
        ask: &Ask,
        start: Instant,
        outcome: &mut Outcome,
        is_connected: &mut bool,
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
        let mut reply = match self.send(request, is_connected).await {
            Ok(reply) => reply,
            Err(NoReply::Connect(why)) => {
                outcome.complaint = Some(self.complaint((String::new(), why)));
                return Err(Failure::Connect);
            }
            Err(NoReply::ClosedBeforeHead) => return Err(Failure::ClosedBeforeHead),
        };
        outcome.answered_by(reply.response.headers());
        let status = reply.response.status();
        if !status.is_success() {
            // Read to the end so that the connection can be used again; the status is the result.
            let body = read_plain(&mut reply).await;
            reply.recycle_if(body.is_ok());
            outcome.complaint = Some(self.complaint(refusal(&body.unwrap_or_default())));
            return Err(Failure::Status(status.as_u16()));
        }
        if ask.stream {
            self.read_stream(&mut reply, start, outcome).await?;
        } else {
            let body = read_plain(&mut reply).await?;
            let answer = Event::read(&body).filter(Event::is_answer);
            outcome.usage = answer.ok_or(Failure::NoAnswer)?.usage();
        }
        reply.recycle_if(true);
        Ok(())
    }

    /// What was said, as it may be shown.
    fn complaint(&self, (code, message): (String, String)) -> Complaint {
        Complaint {
            code: self.shown(&code, CODE_CHARS_MAX),
            message: self.shown(&message, MESSAGE_CHARS_MAX),
        }
    }

    async fn read_stream(
        &self,
        reply: &mut Reply<'_>,
        start: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let mut events = Events::default();
        let mut last_token = None;
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
                let event = Event::read(data);
                if let Some(code) = event.as_ref().and_then(Event::error_code) {
                    let said = event.as_ref().and_then(Event::error).unwrap_or_default();
                    outcome.complaint.get_or_insert(self.complaint(said));
                    error.get_or_insert_with(|| self.shown(&code, CODE_CHARS_MAX));
                    return;
                }
                outcome.first_event.get_or_insert(now - start);
                let Some(event) = event else {
                    return;
                };
                outcome.usage = event.usage().or(outcome.usage);
                if event.has_token() {
                    match last_token.replace(now) {
                        Some(last) => outcome.gaps.push(now - last),
                        None => outcome.first_token = Some(now - start),
                    }
                }
            });
        }
        match error {
            Some(code) => Err(Failure::ErrorEvent(code)),
            None if done => Ok(()),
            None => Err(Failure::NoDone),
        }
    }
}

impl Outcome {
    fn answered_by(&mut self, headers: &HeaderMap) {
        let text = |name: &str| headers.get(name)?.to_str().ok().map(str::to_owned);
        self.worker = text("x-grapevine-worker");
        self.replica = text("x-grapevine-replica");
    }
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
