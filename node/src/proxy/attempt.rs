//! One try on one worker: connect, send, and hold the answer back until it is known to be one.
//!
//! A 200 head from vLLM proves nothing: a stream's head leaves before admission, and an overloaded worker
//! refuses a stream as 200 + an error event. So a stream is held until its first `data:` event and a short
//! plain answer until its end; up to there everything can still be tried on another worker.
//! Nothing here decides about retries: `retry` does.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use grapevine_placement::Outcome;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::sse::{self, FirstEvent};
use super::worker_body::WorkerBody;
use crate::upstream::{Connection, Worker};

/// Longest plain answer, in bytes, that is read to its end before the head goes out. Longer ones are relayed.
const HELD_ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// Longest error body, in bytes, that is kept to be passed on when all attempts fail.
const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// A request as every worker gets it.
#[derive(Debug)]
pub struct Outgoing {
    /// The client's method.
    pub method: Method,
    /// Path and query, as the client wrote them.
    pub target: Uri,
    /// Headers for a worker; `Host` is added per worker.
    pub headers: HeaderMap,
    /// The client's body, unchanged but for an alias.
    pub body: WorkerBody,
    /// The client asked for a stream.
    pub stream: bool,
}

/// Limits of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct AttemptLimits {
    /// Longest wait for the socket.
    pub connect: Duration,
    /// When the first token (or the whole short answer) must be there.
    pub first_token: Instant,
    /// Most bytes of a stream that are held while its first event is incomplete.
    pub held_bytes: usize,
}

/// An answer that may be shown to the client.
#[derive(Debug)]
pub enum Answer {
    /// All of it.
    Whole(Parts, Bytes),
    /// Its beginning; the rest is still to come.
    Begun(Box<Begun>),
}

impl Answer {
    /// What the client will see.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Whole(parts, _) => parts.status,
            Self::Begun(begun) => begun.parts.status,
        }
    }
}

/// An answer whose beginning is known to be good.
#[derive(Debug)]
pub struct Begun {
    /// Status and headers.
    pub parts: Parts,
    /// What has been read of the body.
    pub held: Bytes,
    /// Where the rest comes from.
    pub body: Incoming,
    /// The connection that it comes on.
    pub connection: Connection,
    /// It is a stream of events.
    pub events: bool,
}

/// Why an attempt gave nothing that may be shown, as long as another worker might.
#[derive(Debug)]
pub enum Failure {
    /// No connection. The request was not sent.
    Connect(io::Error),
    /// The connection ended before a response.
    Closed(hyper::Error),
    /// No first token in time.
    Late,
    /// A status that calls for another worker, with its whole answer.
    Status(Box<Parts>, Bytes),
    /// A 200 whose first event is an error; the status that it names, and its JSON.
    Refused(StatusCode, Bytes),
}

impl Failure {
    /// The worker is full, not sick (its queue limit, or a rate limit).
    pub fn is_back_pressure(&self) -> bool {
        matches!(
            self.status(),
            Some(StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
        )
    }

    /// The worker answered with this.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status(parts, _) => Some(parts.status),
            Self::Refused(status, _) => Some(*status),
            _ => None,
        }
    }

    /// The connection failed without any byte of a response.
    pub fn is_broken_connection(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Closed(_))
    }

    /// What the failure says about the worker.
    pub fn verdict(&self) -> Outcome {
        if self.is_back_pressure() {
            Outcome::Neutral
        } else {
            Outcome::Failure
        }
    }

    /// Stable metric label.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Connect(error) if error.kind() == io::ErrorKind::TimedOut => "connect_timeout",
            Self::Connect(_) => "connect",
            Self::Closed(_) => "closed",
            Self::Late => "first_token_timeout",
            Self::Status(..) if self.is_back_pressure() => "back_pressure",
            Self::Status(..) => "status",
            Self::Refused(..) if self.is_back_pressure() => "back_pressure",
            Self::Refused(..) => "error_event",
        }
    }
}

/// Statuses that another worker may answer better. vllm-router retries on the same.
pub fn is_retryable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
}

/// Tries one worker.
///
/// # Errors
/// See [`Failure`]. Dropping the future drops the connection, which aborts the request at the worker.
pub async fn attempt(
    worker: &Arc<Worker>,
    outgoing: &Outgoing,
    limits: AttemptLimits,
) -> Result<Answer, Failure> {
    timeout_at(
        limits.first_token,
        attempt_untimed(worker, outgoing, limits),
    )
    .await
    .unwrap_or(Err(Failure::Late))
}

async fn attempt_untimed(
    worker: &Arc<Worker>,
    outgoing: &Outgoing,
    limits: AttemptLimits,
) -> Result<Answer, Failure> {
    if let Some(idle) = worker.idle.take(Instant::now()) {
        match exchange(worker, idle, outgoing, limits).await {
            // The worker closed it while the request was on its way: the one race that an idle limit leaves.
            Err(Failure::Closed(_)) => {}
            result => return result,
        }
    }
    let fresh = Connection::open(worker, limits.connect)
        .await
        .map_err(Failure::Connect)?;
    exchange(worker, fresh, outgoing, limits).await
}

async fn exchange(
    worker: &Arc<Worker>,
    mut connection: Connection,
    outgoing: &Outgoing,
    limits: AttemptLimits,
) -> Result<Answer, Failure> {
    let response = connection
        .send(request_for(worker, outgoing))
        .await
        .map_err(Failure::Closed)?;
    let (mut parts, mut body) = response.into_parts();
    super::headers::clean_response(&mut parts.headers);

    if is_retryable(parts.status) {
        let bytes = read_error_body(&mut connection, &mut body).await;
        rest(worker, connection, &body).await;
        return Err(Failure::Status(Box::new(parts), bytes));
    }
    if outgoing.stream && parts.status == StatusCode::OK && is_event_stream(&parts.headers) {
        return hold_stream(worker, connection, parts, body, limits.held_bytes).await;
    }
    match body.size_hint().exact() {
        Some(length) if length <= HELD_ANSWER_BYTES_MAX => {
            let bytes = read_whole(&mut connection, &mut body).await?;
            rest(worker, connection, &body).await;
            Ok(Answer::Whole(parts, bytes))
        }
        _ => Ok(Answer::Begun(Box::new(Begun {
            events: is_event_stream(&parts.headers),
            parts,
            held: Bytes::new(),
            body,
            connection,
        }))),
    }
}

fn request_for(worker: &Worker, outgoing: &Outgoing) -> Request<WorkerBody> {
    let mut request = Request::new(outgoing.body.clone());
    *request.method_mut() = outgoing.method.clone();
    *request.uri_mut() = worker.address.target(&outgoing.target);
    let mut headers = outgoing.headers.clone();
    headers.insert(header::HOST, worker.address.host.clone());
    if let Some(key) = worker.reach.authorization(&worker.address.url) {
        headers.insert(header::AUTHORIZATION, key);
    }
    if let Some(rank) = worker.address.rank() {
        headers.insert("x-data-parallel-rank", HeaderValue::from(rank));
    }
    if !outgoing.body.is_empty() {
        headers.insert(
            header::CONTENT_LENGTH,
            HeaderValue::from(outgoing.body.len()),
        );
    }
    *request.headers_mut() = headers;
    request
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// Reads until the first event tells what the 200 was worth.
async fn hold_stream(
    worker: &Arc<Worker>,
    mut connection: Connection,
    parts: Parts,
    mut body: Incoming,
    held_bytes_max: usize,
) -> Result<Answer, Failure> {
    let mut held = BytesMut::new();
    loop {
        match sse::first_event(&held) {
            FirstEvent::Error(json) => {
                let status = error_status(json);
                // A stream that is refused is an attempt that failed, whatever its status says.
                return Err(Failure::Refused(status, Bytes::copy_from_slice(json)));
            }
            FirstEvent::Waiting if held.len() < held_bytes_max => {}
            _ => {
                return Ok(Answer::Begun(Box::new(Begun {
                    parts,
                    held: held.freeze(),
                    body,
                    connection,
                    events: true,
                })));
            }
        }
        match poll_fn(|cx| connection.poll_frame(&mut body, cx)).await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    held.extend_from_slice(&data);
                }
            }
            Some(Err(error)) => return Err(Failure::Closed(error)),
            None => {
                rest(worker, connection, &body).await;
                return Ok(Answer::Whole(parts, held.freeze()));
            }
        }
    }
}

/// The status that an error event names, else 500.
fn error_status(json: &[u8]) -> StatusCode {
    #[derive(serde::Deserialize)]
    struct Event {
        error: Inner,
    }
    #[derive(serde::Deserialize)]
    struct Inner {
        code: Option<u16>,
    }
    serde_json::from_slice::<Event>(json)
        .ok()
        .and_then(|event| event.error.code)
        .and_then(|code| StatusCode::from_u16(code).ok())
        .filter(|status| status.is_client_error() || status.is_server_error())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

async fn read_whole(connection: &mut Connection, body: &mut Incoming) -> Result<Bytes, Failure> {
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| connection.poll_frame(body, cx)).await {
        let Ok(data) = frame.map_err(Failure::Closed)?.into_data() else {
            continue;
        };
        if first.is_empty() {
            first = data;
        } else {
            if more.is_empty() {
                more.extend_from_slice(&first);
            }
            more.extend_from_slice(&data);
        }
    }
    Ok(if more.is_empty() {
        first
    } else {
        more.freeze()
    })
}

/// An error's body as far as it fits and arrives; what is missing is not worth another failure.
async fn read_error_body(connection: &mut Connection, body: &mut Incoming) -> Bytes {
    let mut bytes = BytesMut::new();
    while bytes.len() < ERROR_BODY_BYTES_MAX {
        match poll_fn(|cx| connection.poll_frame(body, cx)).await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    let room = ERROR_BODY_BYTES_MAX - bytes.len();
                    bytes.extend_from_slice(&data[..data.len().min(room)]);
                }
            }
            Some(Err(_)) | None => break,
        }
    }
    bytes.freeze()
}

/// Puts a connection back if its response has been read to the end.
async fn rest(worker: &Worker, mut connection: Connection, body: &Incoming) {
    if body.is_end_stream()
        && poll_fn(|cx| std::task::Poll::Ready(connection.is_reusable(cx))).await
    {
        worker.idle.put(connection, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_for_another_worker() {
        for code in [408_u16, 429, 500, 502, 503, 504] {
            assert!(is_retryable(StatusCode::from_u16(code).expect("status")));
        }
        for code in [200_u16, 400, 401, 404, 422, 501] {
            assert!(!is_retryable(StatusCode::from_u16(code).expect("status")));
        }
    }

    #[test]
    fn error_events_name_their_status() {
        let table: &[(&[u8], u16)] = &[
            (br#"{"error":{"code":503}}"#, 503),
            (br#"{"error":{"code":null}}"#, 500),
            (br#"{"error":{"code":"odd"}}"#, 500),
            (br#"{"error":{"code":200}}"#, 500),
            (br#"{"error":1}"#, 500),
        ];
        for (json, expected) in table {
            assert_eq!(error_status(json).as_u16(), *expected);
        }
    }
}
