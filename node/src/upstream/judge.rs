//! Holds an answer back until it is known to be one.
//!
//! A 200 head from vLLM proves nothing: a stream's head leaves before admission, and an overloaded worker
//! refuses a stream as 200 + an error event. So a stream is held until its first `data:` event (of `/v1/responses` the
//! first that vLLM sends once its engine has the request), a short plain answer until its end, and a long one until its
//! first bytes; up to there everything can still be tried on another worker. Whether an answer in chunks is a short one
//! shows while it comes, so that is waited for where its beginning is of no use alone: a JSON value.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tokio::time::timeout;

use super::answer::{Answer, Begun, rest};
use super::connection::{AnswerBody, Connection};
use super::failure::{
    Failure, head_of_refused, is_about_request, is_retryable, says_no_such_model, says_no_such_rank,
};
use super::outgoing::Outgoing;
use super::worker::Worker;
use crate::api::error::{retry_after, status_of_type};
use crate::http::sse::{self, FirstEvent};
use crate::http::{credentials, handshake};
use crate::media_type::{EVENT_STREAM, JSON, is_of_type};

/// Longest plain answer, in bytes, that is read to its end before the head goes out. Longer ones are relayed.
const HELD_ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The highest status that HTTP has a meaning for (RFC 9110, section 15).
const STATUS_MAX: u16 = 599;
/// Longest error body, in bytes, that is kept to be passed on when all attempts fail.
const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;
/// So long is waited for it after its head.
const ERROR_BODY_WITHIN: Duration = Duration::from_secs(1);

/// Holds a response back until it is known whether it may be shown.
///
/// `came`: is told of each piece of a body that is read to its end.
///
/// # Errors
/// See [`Failure`].
pub(super) async fn judge(
    worker: &Arc<Worker>,
    mut connection: Connection,
    response: Response<AnswerBody>,
    outgoing: &Outgoing,
    held_bytes: usize,
    came: impl Fn(),
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
        if is_clients_limit(parts.status, worker, outgoing) {
            // What is passed on may be shorter than what the worker promised.
            parts.headers.remove(header::CONTENT_LENGTH);
            return Ok(Answer::Whole(with_time(parts), bytes));
        }
        return Err(Failure::Status(Box::new(parts), bytes));
    }
    if outgoing.stream && parts.status == StatusCode::OK && is_event_stream(&parts.headers) {
        return hold_stream(worker, connection, parts, body, outgoing, held_bytes).await;
    }
    let events = is_event_stream(&parts.headers);
    let until_close = body.is_until_close();
    let may_be_short = match body.length() {
        Some(length) => length <= HELD_ANSWER_BYTES_MAX as u64,
        None => outgoing.one_value && !outgoing.stream && is_of_type(&parts.headers, JSON),
    };
    // A long answer has its id near its beginning; an event that was not asked for may take its time.
    let held = if may_be_short {
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
            until_close,
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

/// Whether a refusal speaks of the client that asks, and not of the worker: its own key went there, and has reached a limit.
/// Another worker would be asked at that client's cost, and other clients have nothing to do with it.
fn is_clients_limit(status: StatusCode, worker: &Worker, outgoing: &Outgoing) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS
        && asks_with_clients_key(worker, outgoing)
        && outgoing.headers.keys().any(credentials::proves)
}

/// The head of a refusal that passes, which says when the client may come again, as each does.
fn with_time(mut parts: Parts) -> Parts {
    if let Some(after) = retry_after(parts.status) {
        let said = parts.headers.entry(header::RETRY_AFTER);
        said.or_insert_with(|| after.as_secs().into());
    }
    parts
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
    outgoing: &Outgoing,
    held_bytes_max: usize,
) -> Result<Answer, Failure> {
    let refused = |json: &[u8]| refused(json, |status| is_clients_limit(status, worker, outgoing));
    let mut held = BytesMut::new();
    let until_close = body.is_until_close();
    let judged = loop {
        let first = sse::first_event(&held);
        let is_data = first == FirstEvent::Data;
        match first {
            FirstEvent::Error(json) => return refused(json),
            FirstEvent::Waiting if held.len() < held_bytes_max => {}
            FirstEvent::Waiting | FirstEvent::Data => break is_data,
        }
        match poll_fn(|cx| connection.poll_frame(&mut body, cx)).await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    held.extend_from_slice(&data);
                }
            }
            Some(Err(error)) => return Err(Failure::of_broken(error)),
            None if until_close && is_cut_within(&held) => {
                return Err(Failure::Closed("it ended within its first event".into()));
            }
            // Whoever passes it on knows whether its last event is missing.
            None if until_close && has_event(&held) => break false,
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
    };
    Ok(Answer::Begun(Box::new(Begun {
        parts,
        held: held.freeze(),
        body,
        connection,
        events: true,
        judged,
        until_close,
    })))
}

/// Whether a stream ended within the data of its first event: what is there of its last line is no JSON.
fn is_cut_within(held: &[u8]) -> bool {
    let line = held
        .rsplit(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
        return false;
    };
    data.starts_with(b"{") && serde_json::from_slice::<serde::de::IgnoredAny>(data).is_err()
}

/// Whether a stream that has ended has an event, whose last line may lack its end, and which is no error.
fn has_event(held: &[u8]) -> bool {
    sse::first_event(&[held, b"\n"].concat()) == FirstEvent::Data
}

/// What an error in place of a stream's first event is: a failed attempt, whatever the status of its head says, unless it
/// is about the request, or about its client, whose limit it says.
fn refused(json: &[u8], is_clients_limit: impl Fn(StatusCode) -> bool) -> Result<Answer, Failure> {
    let (status, json) = (error_status(json), Bytes::copy_from_slice(json));
    match is_about_request(status, &json) || is_clients_limit(status) {
        true => Ok(Answer::Whole(with_time(head_of_refused(status)), json)),
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
pub(super) async fn read_error_body(connection: &mut Connection, body: &mut AnswerBody) -> Bytes {
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

#[cfg(test)]
mod tests {
    use super::*;

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
