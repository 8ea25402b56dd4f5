//! One try on one worker: connect, send, and hold the answer back until it is known to be one.
//!
//! A 200 head from vLLM proves nothing: a stream's head leaves before admission, and an overloaded worker
//! refuses a stream as 200 + an error event. So a stream is held until its first `data:` event (of `/v1/responses` the
//! first that vLLM sends once its engine has the request), a short plain answer until its end, and a long one until its
//! first bytes; up to there everything can still be tried on another worker. Whether an answer in chunks is a short one
//! shows while it comes, so that is waited for where its beginning is of no use alone: a JSON value. Nothing here decides
//! about retries: `retry` does. What can go wrong is in `failure`, how long is waited in `patience`.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::{AnswerBody, Connection, SendError, Switched, WorkerRequest};
pub use super::failure::{Failure, is_retryable};
use super::failure::{head_of_refused, is_about_request, says_no_such_model, says_no_such_rank};
use super::patience::{Known, Next, Patience};
use super::worker::Worker;
use crate::api::error::status_of_type;
use crate::http::handshake;
use crate::http::headers::RANK;
use crate::http::sse::{self, FirstEvent};
use crate::http::worker_body::WorkerBody;
use crate::lag::{LISTEN_FIRST, overslept};
use crate::media_type::{EVENT_STREAM, JSON, is_of_type};

/// Longest plain answer, in bytes, that is read to its end before the head goes out. Longer ones are relayed.
const HELD_ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The highest status that HTTP has a meaning for (RFC 9110, section 15).
const STATUS_MAX: u16 = 599;
/// Longest error body, in bytes, that is kept to be passed on when all attempts fail.
const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;
/// So long is waited for it after its head.
const ERROR_BODY_WITHIN: Duration = Duration::from_secs(1);
/// What a worker may do to the bytes of an answer that is read here: nothing, whatever its client takes. The error in a
/// compressed event would pass for a token, and a stream that was refused would not be tried elsewhere.
pub const PLAIN: HeaderValue = HeaderValue::from_static("identity");
/// A connection that was at rest and ends within this time may have been closed before the request came there. Longer
/// than a packet's way and back; later, the worker had it.
const CLOSED_MEANWHILE: Duration = Duration::from_secs(1);
/// A request that waits for longer than this listens for verdicts against its worker; most are over by then.
const LISTENS_AFTER: Duration = Duration::from_millis(250);

/// A request as every worker gets it.
#[derive(Debug)]
pub struct Outgoing {
    /// The client's method.
    pub method: Method,
    /// Path and query, as the client wrote them.
    pub target: Uri,
    /// Headers for a worker; those that differ from worker to worker take the place of any here.
    pub headers: HeaderMap,
    /// The client's body, unchanged but for an alias.
    pub body: WorkerBody,
    /// The client asked for a stream.
    pub stream: bool,
    /// The request is a WebSocket handshake; what accepts it.
    pub upgrade: Option<HeaderValue>,
    /// May a worker see it twice? A completion costs compute and no more; an unknown path may store something.
    pub repeatable: bool,
    /// The client's key stays with this replica, which has asked for it: a worker's 401 speaks of this replica's key.
    pub keeps_key: bool,
    /// An answer in JSON is one value that an engine computes: nobody reads it before its end.
    pub one_value: bool,
}

/// Limits of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct AttemptLimits {
    /// Longest wait for the socket.
    pub connect: Duration,
    /// Longest wait for what may be shown.
    pub patience: Patience,
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
    /// The head of a 101; the connection is a tunnel from now on.
    Switched(Parts, Box<Switched>),
}

impl Answer {
    /// What has come of its body.
    pub fn beginning(&self) -> &[u8] {
        match self {
            Self::Whole(_, bytes) => bytes,
            Self::Begun(begun) => &begun.held,
            Self::Switched(..) => &[],
        }
    }

    /// All of it, of at most so many bytes. Its connection to this worker stays, if it may.
    ///
    /// # Errors
    /// It broke off, is longer, or is none that can be read to an end.
    pub async fn whole(self, worker: &Worker, bytes_max: usize) -> Result<(Parts, Bytes), Failure> {
        let begun = match self {
            Self::Whole(parts, bytes) => return Ok((parts, bytes)),
            Self::Begun(begun) => *begun,
            Self::Switched(..) => return Err(Failure::Malformed("it is a tunnel".into())),
        };
        let Begun {
            parts,
            held,
            mut body,
            mut connection,
            ..
        } = begun;
        let mut all = BytesMut::from(&held[..]);
        while let Some(frame) = poll_fn(|cx| connection.poll_frame(&mut body, cx)).await {
            if let Ok(data) = frame.map_err(Failure::of_broken)?.into_data() {
                all.extend_from_slice(&data);
            }
            if all.len() > bytes_max {
                let why = format!("an answer of more than {bytes_max} bytes");
                return Err(Failure::Malformed(why.into()));
            }
        }
        rest(worker, connection, &body);
        Ok((parts, all.freeze()))
    }

    /// What the client will see.
    pub fn status(&self) -> StatusCode {
        self.head().status
    }

    /// A page for people, which no engine sends: of a proxy before it, mostly, that wants a log-in.
    pub fn is_web_page(&self) -> bool {
        is_of_type(&self.head().headers, "text/html")
    }

    fn head(&self) -> &Parts {
        match self {
            Self::Whole(parts, _) | Self::Switched(parts, _) => parts,
            Self::Begun(begun) => &begun.parts,
        }
    }
}

/// An answer that may be shown from its beginning on.
#[derive(Debug)]
pub struct Begun {
    /// Status and headers.
    pub parts: Parts,
    /// What has been read of the body.
    pub held: Bytes,
    /// Where the rest comes from.
    pub body: AnswerBody,
    /// The connection that it comes on.
    pub connection: Connection,
    /// It is a stream of events.
    pub events: bool,
    /// What has been read shows that it is an answer; otherwise its first event will.
    pub judged: bool,
}

impl Begun {
    /// It is a stream of events that begins well.
    pub fn is_good_stream(&self) -> bool {
        self.events && self.parts.status == StatusCode::OK
    }
}

/// Tries one worker. `has_another`: whether another worker would take the request, should this one turn out bad.
///
/// # Errors
/// See [`Failure`]. Dropping the future drops the connection, which aborts the request at the worker.
pub async fn attempt(
    worker: &Arc<Worker>,
    outgoing: &Outgoing,
    limits: &AttemptLimits,
    has_another: impl Fn() -> bool,
) -> Result<Answer, Failure> {
    let (patience, heard) = (&limits.patience, Heard::default());
    let look = || {
        patience.look(
            Instant::now(),
            known(worker, patience, &heard, &has_another),
        )
    };
    let mut answer = std::pin::pin!(attempt_untimed(worker, outgoing, limits, &heard));
    let first = look()?.at.min(patience.begun + LISTENS_AFTER);
    let mut timer = std::pin::pin!(sleep_until(first));
    let mut verdict = std::pin::pin!(worker.health.gives_up());
    let mut listens = false;
    poll_fn(|cx| {
        if let Poll::Ready(result) = answer.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        loop {
            let told = listens && verdict.as_mut().poll(cx).is_ready();
            if told {
                verdict.set(worker.health.gives_up());
            }
            let fired = timer.as_mut().poll(cx).is_ready();
            if !fired && !told {
                return Poll::Pending;
            }
            listens = true;
            if fired && overslept(timer.deadline()) {
                timer.as_mut().reset(Instant::now() + LISTEN_FIRST);
                continue;
            }
            match look() {
                Ok(Next { at, wants_sign }) => {
                    if wants_sign {
                        worker.health.want_sign(patience.look_every());
                    }
                    timer.as_mut().reset(at);
                }
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
    })
    .await
}

/// When the latest byte of an answer's body came, in microseconds after the request was sent; 0: none yet.
#[derive(Debug, Default)]
struct Heard(AtomicU64);

impl Heard {
    fn now(&self, patience: &Patience) {
        let us = u64::try_from(patience.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.store(us.max(1), Ordering::Relaxed);
    }

    fn at(&self, patience: &Patience) -> Option<Instant> {
        let us = self.0.load(Ordering::Relaxed);
        (us > 0).then(|| patience.begun + Duration::from_micros(us))
    }
}

/// What the wait depends on, as it is now.
fn known(
    worker: &Worker,
    patience: &Patience,
    heard: &Heard,
    has_another: impl Fn() -> bool,
) -> Known {
    let bad_since = worker.health.given_up_since();
    Known {
        heard: heard.at(patience),
        sign: worker.health.last_sign(),
        refuses_since: worker.refuses_since.get(),
        // Asked for last: it looks at all workers.
        bad_since: bad_since.filter(|at| *at > patience.begun && has_another()),
    }
}

async fn attempt_untimed(
    worker: &Arc<Worker>,
    outgoing: &Outgoing,
    limits: &AttemptLimits,
    heard: &Heard,
) -> Result<Answer, Failure> {
    let (connection, response) = send(worker, outgoing, limits.connect).await?;
    judge(worker, connection, response, outgoing, limits, heard).await
}

/// Connects, sends the request, and waits for a response's head.
async fn send(
    worker: &Worker,
    outgoing: &Outgoing,
    connect: Duration,
) -> Result<(Connection, Response<AnswerBody>), Failure> {
    let request = request_for(worker, outgoing);
    let mut was_sent = false;
    // What is at rest may speak HTTP/2, which knows no change of protocols.
    let switches = outgoing.upgrade.is_some();
    // And its worker may be closing it, after which nobody knows whether it has read the request: one that must not be
    // sent twice gets a new connection.
    let may_rest = !switches && outgoing.repeatable;
    let idle = may_rest.then(|| worker.idle.take(Instant::now()));
    if let Some(mut idle) = idle.flatten() {
        let begun = Instant::now();
        match idle.send(&request).await {
            Ok(response) => return Ok((idle, response)),
            // The worker closed it while the request was on its way: the one race that an idle limit leaves.
            Err(SendError::Unsent(_)) => {}
            Err(SendError::Unanswered(_)) if begun.elapsed() < CLOSED_MEANWHILE => {
                was_sent = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
    // On the heap: most requests find a connection, and must not have the room that its handshakes need.
    let opened = match switches {
        true => Box::pin(worker.connect_http1(connect)).await,
        false => Box::pin(worker.connect(connect)).await,
    };
    worker.connected(&opened);
    let mut fresh = opened.map_err(|error| match was_sent {
        // The process may have ended by what it got on the other connection.
        true => Failure::Closed(error.into()),
        false => Failure::of_connect(error),
    })?;
    let response = fresh.send(&request).await?;
    Ok((fresh, response))
}

/// The status of a worker's answer to a request of this replica's own. The connection stays if its answer was short.
///
/// # Errors
/// It did not say anything.
pub(crate) async fn status_of(
    worker: &Worker,
    question: &Outgoing,
    connect: Duration,
) -> Result<StatusCode, Failure> {
    let (mut connection, response) = send(worker, question, connect).await?;
    let (parts, mut body) = response.into_parts();
    if !parts.status.is_success() {
        read_error_body(&mut connection, &mut body).await;
        rest(worker, connection, &body);
    }
    Ok(parts.status)
}

/// Holds a response back until it is known whether it may be shown.
async fn judge(
    worker: &Arc<Worker>,
    mut connection: Connection,
    response: Response<AnswerBody>,
    outgoing: &Outgoing,
    limits: &AttemptLimits,
    heard: &Heard,
) -> Result<Answer, Failure> {
    let (mut parts, mut body) = response.into_parts();
    let accept = outgoing.upgrade.as_ref();
    let is_accepted = accept.is_some_and(|accept| handshake::is_accepted(&parts, accept));
    crate::http::headers::clean_response(&mut parts.headers);

    if is_accepted {
        // On the heap: no other request must have its room.
        let switched = Box::pin(connection.switch()).await;
        let ended = || Failure::Closed("it ended with its handshake".into());
        return Ok(Answer::Switched(
            parts,
            Box::new(switched.ok_or_else(ended)?),
        ));
    }
    if parts.status.is_informational() {
        // 101: hyper passes over all others. The client did not ask for this protocol, so it gets no tunnel.
        return Err(Failure::Malformed("it switched protocols unasked".into()));
    }
    if parts.status.as_u16() > STATUS_MAX {
        return Err(Failure::Malformed("its status has no meaning".into()));
    }
    if parts.status == StatusCode::UNAUTHORIZED && !asks_with_clients_key(worker, outgoing) {
        read_error_body(&mut connection, &mut body).await;
        rest(worker, connection, &body);
        worker.refused_key(parts.status);
        return Err(Failure::KeyRefused);
    }
    if is_retryable(parts.status) {
        let bytes = read_error_body(&mut connection, &mut body).await;
        rest(worker, connection, &body);
        return Err(Failure::Status(Box::new(parts), bytes));
    }
    if outgoing.stream && parts.status == StatusCode::OK && is_event_stream(&parts.headers) {
        return hold_stream(worker, connection, parts, body, limits.held_bytes).await;
    }
    let events = is_event_stream(&parts.headers);
    let may_be_short = match body.length() {
        Some(length) => length <= HELD_ANSWER_BYTES_MAX as u64,
        None => outgoing.one_value && !outgoing.stream && is_of_type(&parts.headers, JSON),
    };
    // A long answer has its id near its beginning; an event that was not asked for may take its time.
    let held = if may_be_short {
        let came = || heard.now(&limits.patience);
        read_held(&mut connection, &mut body, came).await?
    } else if events {
        Held::Beginning(Bytes::new())
    } else {
        first_data(&mut connection, &mut body).await?
    };
    match held {
        Held::Whole(bytes) => {
            rest(worker, connection, &body);
            if parts.status == StatusCode::BAD_REQUEST
                && let Some(rank) = worker.address.rank()
                && says_no_such_rank(&bytes, rank)
            {
                return Err(Failure::NoSuchRank);
            }
            if parts.status == StatusCode::NOT_FOUND && says_no_such_model(&bytes) {
                worker.doubt_models();
                return Err(Failure::NoSuchModel);
            }
            Ok(Answer::Whole(parts, bytes))
        }
        Held::Beginning(held) => Ok(Answer::Begun(Box::new(Begun {
            parts,
            held,
            body,
            connection,
            events,
            judged: !events,
        }))),
    }
}

/// Whether it is for the client to bring the key that the worker wants.
fn asks_with_clients_key(worker: &Worker, outgoing: &Outgoing) -> bool {
    let own = worker.connector.authorization(&worker.address.url);
    !outgoing.keeps_key && own.is_none()
}

/// What was read of a plain answer's body before its head goes out.
#[derive(Debug)]
enum Held {
    /// All of it.
    Whole(Bytes),
    /// More is to come.
    Beginning(Bytes),
}

/// The first bytes of a body.
async fn first_data(connection: &mut Connection, body: &mut AnswerBody) -> Result<Held, Failure> {
    while let Some(frame) = poll_fn(|cx| connection.poll_frame(body, cx)).await {
        if let Ok(data) = frame.map_err(Failure::of_broken)?.into_data()
            && !data.is_empty()
        {
            return Ok(Held::Beginning(data));
        }
    }
    Ok(Held::Whole(Bytes::new()))
}

fn request_for<'a>(worker: &Worker, outgoing: &'a Outgoing) -> WorkerRequest<'a> {
    let (address, body) = (&worker.address, &outgoing.body);
    let key = worker.connector.authorization(&address.url);
    let length = body.len();
    WorkerRequest {
        method: &outgoing.method,
        target: address.target(&outgoing.target),
        headers: &outgoing.headers,
        own: [
            Some((header::HOST, address.host.clone())),
            key.map(|key| (header::AUTHORIZATION, key)),
            address.rank().map(|rank| (RANK, rank.into())),
            says_length(&outgoing.method, length).then(|| (header::CONTENT_LENGTH, length.into())),
            outgoing.stream.then_some((header::ACCEPT_ENCODING, PLAIN)),
        ],
        body,
    }
}

/// Of a request without a body only where its method means one (RFC 9110, section 8.6): servers refuse it as 411 else.
fn says_length(method: &Method, length: u64) -> bool {
    length > 0 || matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

/// Whether events can be read in it: compressed ones pass like any other answer.
fn is_event_stream(headers: &HeaderMap) -> bool {
    let is_coded = |value: &HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
    is_of_type(headers, EVENT_STREAM)
        && !headers.get(header::CONTENT_ENCODING).is_some_and(is_coded)
}

/// Reads until the first event shows what the 200 was worth.
async fn hold_stream(
    worker: &Arc<Worker>,
    mut connection: Connection,
    parts: Parts,
    mut body: AnswerBody,
    held_bytes_max: usize,
) -> Result<Answer, Failure> {
    let mut held = BytesMut::new();
    loop {
        let first = sse::first_event(&held);
        let judged = first == FirstEvent::Data;
        match first {
            FirstEvent::Error(json) => return refused(json),
            FirstEvent::Waiting if held.len() < held_bytes_max => {}
            FirstEvent::Waiting | FirstEvent::Data => {
                return Ok(Answer::Begun(Box::new(Begun {
                    parts,
                    held: held.freeze(),
                    body,
                    connection,
                    events: true,
                    judged,
                })));
            }
        }
        match poll_fn(|cx| connection.poll_frame(&mut body, cx)).await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    held.extend_from_slice(&data);
                }
            }
            Some(Err(error)) => return Err(Failure::of_broken(error)),
            None => {
                rest(worker, connection, &body);
                // Its last line may have come without its end.
                held.extend_from_slice(b"\n");
                return match sse::first_event(&held) {
                    FirstEvent::Error(json) => refused(json),
                    FirstEvent::Data => {
                        held.truncate(held.len() - 1);
                        Ok(Answer::Whole(parts, held.freeze()))
                    }
                    FirstEvent::Waiting => {
                        let why = "the stream ended without an event";
                        Err(Failure::Malformed(why.into()))
                    }
                };
            }
        }
    }
}

/// What an error in place of a stream's first event is: a failed attempt, whatever the status of its head says, unless it
/// is about the request.
fn refused(json: &[u8]) -> Result<Answer, Failure> {
    let (status, json) = (error_status(json), Bytes::copy_from_slice(json));
    match is_about_request(status, &json) {
        true => Ok(Answer::Whole(head_of_refused(status), json)),
        false => Err(Failure::Refused(status, json)),
    }
}

/// The status that an error event names by its code, as vLLM's do, or by its type, as Anthropic's; else 500.
fn error_status(json: &[u8]) -> StatusCode {
    let event: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let error = &event["error"];
    let code = error["code"].as_u64();
    let code = code.and_then(|code| StatusCode::from_u16(code.try_into().ok()?).ok());
    code.filter(|status| status.is_client_error() || status.is_server_error())
        .or_else(|| status_of_type(error["type"].as_str()?))
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// A body to its end, or until it is longer than what is held.
async fn read_held(
    connection: &mut Connection,
    body: &mut AnswerBody,
    came: impl Fn(),
) -> Result<Held, Failure> {
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| connection.poll_frame(body, cx)).await {
        let Ok(data) = frame.map_err(Failure::of_broken)?.into_data() else {
            continue;
        };
        came();
        if first.is_empty() {
            first = data;
        } else {
            if more.is_empty() {
                more.extend_from_slice(&first);
            }
            more.extend_from_slice(&data);
        }
        if first.len().max(more.len()) > HELD_ANSWER_BYTES_MAX {
            return Ok(Held::Beginning(one_of(first, more)));
        }
    }
    Ok(Held::Whole(one_of(first, more)))
}

/// What was read: `more` begins with `first`, if there was more.
fn one_of(first: Bytes, more: BytesMut) -> Bytes {
    match more.is_empty() {
        true => first,
        false => more.freeze(),
    }
}

/// An error's body as far as it fits and arrives in time; what is missing is worth neither another failure nor a wait, since
/// its status says already what is to be done.
async fn read_error_body(connection: &mut Connection, body: &mut AnswerBody) -> Bytes {
    let mut bytes = BytesMut::new();
    let read = async {
        while bytes.len() < ERROR_BODY_BYTES_MAX {
            let frame = poll_fn(|cx| connection.poll_frame(body, cx)).await;
            let Some(Ok(frame)) = frame else { break };
            if let Ok(data) = frame.into_data() {
                let room = ERROR_BODY_BYTES_MAX - bytes.len();
                bytes.extend_from_slice(&data[..data.len().min(room)]);
            }
        }
    };
    // Mostly it has come with its head.
    let _ = timeout(ERROR_BODY_WITHIN, read).await;
    bytes.freeze()
}

/// Puts a connection back if its response has been read to the end.
fn rest(worker: &Worker, mut connection: Connection, body: &AnswerBody) {
    if body.is_end_stream() && connection.may_rest() {
        worker.idle.put(connection, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::alone::{Alone, worker_with};
    use crate::config::KvEventsConfig;
    use crate::upstream::patience::WaitsFor;

    /// As the prefill leg of a stream: nobody reads its events, and the next prompt wants its connection.
    #[tokio::test]
    async fn the_connection_of_a_stream_that_was_read_to_its_end_stays() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let described = worker_with("w", "m", |raw| {
            raw.url = format!("http://127.0.0.1:{port}");
        });
        let alone = Alone::new("r1", [described], &KvEventsConfig::default(), 1);
        let fleet = alone.cluster.fleet();
        let worker = Arc::clone(fleet.workers().next().expect("one"));
        let serves = async {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut heard = Vec::new();
            while !heard.ends_with(b"{}") {
                client.read_buf(&mut heard).await.expect("a request");
            }
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            let answer = [
                head,
                "9\r\ndata: 1\n\n\r\n",
                "9\r\ndata: 2\n\n\r\n",
                "0\r\n\r\n",
            ];
            for piece in answer {
                client.write_all(piece.as_bytes()).await.expect("taken");
            }
            client
        };
        let outgoing = Outgoing {
            method: Method::POST,
            target: Uri::from_static("/v1/completions"),
            headers: HeaderMap::new(),
            body: WorkerBody::unchanged(Bytes::from_static(b"{}")),
            stream: true,
            upgrade: None,
            repeatable: true,
            keeps_key: false,
            one_value: false,
        };
        let limit = Duration::from_secs(60);
        let limits = AttemptLimits {
            connect: limit,
            patience: Patience {
                begun: Instant::now(),
                waits_for: WaitsFor::Token,
                silence: limit,
                deadline: None,
                worker_gone: limit,
            },
            held_bytes: 1024,
        };
        let asks = async {
            let answer = attempt(&worker, &outgoing, &limits, || false).await;
            let whole = answer.expect("a stream").whole(&worker, 1024).await;
            whole.expect("to its end").1
        };
        let (read, _client) = tokio::join!(asks, serves);
        assert_eq!(read, "data: 1\n\ndata: 2\n\n");
        assert!(worker.idle.take(Instant::now()).is_some());
    }

    #[test]
    fn a_stream_of_events_is_known_however_its_type_is_written() {
        for (kind, coding, expected) in [
            ("text/event-stream", None, true),
            ("Text/Event-Stream; charset=utf-8", None, true),
            ("text/event-stream ;x=1", Some("Identity"), true),
            ("text/event-stream", Some("gzip"), false),
            ("text/event-streams", None, false),
            ("application/json", None, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            if let Some(coding) = coding {
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
            }
            assert_eq!(is_event_stream(&headers), expected, "{kind} {coding:?}");
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
            (br#"no JSON"#, 500),
            (
                br#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#,
                503,
            ),
            (
                br#"{"error":{"type":"invalid_request_error","code":"odd"}}"#,
                400,
            ),
            (br#"{"error":{"type":"overloaded_error","code":429}}"#, 429),
            (br#"{"error":{"type":"internal_error"}}"#, 500),
            (br#"{"error":{"type":7}}"#, 500),
        ];
        for (json, expected) in table {
            assert_eq!(error_status(json).as_u16(), *expected);
        }
    }
}
