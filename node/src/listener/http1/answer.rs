//! The head of an answer → its bytes, and how its body is framed (RFC 9112, section 6). Pure but for the date.

use std::cell::Cell;
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::response::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use hyper::ext::ReasonPhrase;

use crate::api::ApiError;
use crate::http::syntax::{decimal, has_item};
use crate::http::{headers, request_id};

/// Bytes of a head without its headers, and of one header as most are.
const HEAD_BYTES: usize = 160;
const HEADER_BYTES: usize = 40;

/// What of a request decides how its answer is framed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) is_head: bool,
    pub(super) is_connect: bool,
    pub(super) is_http10: bool,
    pub(super) keeps_alive: bool,
}

/// How the end of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framed {
    /// So many bytes.
    Length(u64),
    Chunked,
    /// It ends with the connection.
    UntilClose,
}

/// The bytes of a head, and what follows them.
#[derive(Debug)]
pub(super) struct AnswerHead {
    pub(super) bytes: Vec<u8>,
    pub(super) framed: Framed,
    pub(super) keeps_alive: bool,
}

impl Asked {
    pub(super) fn of(method: &Method, is_http10: bool, keeps_alive: bool) -> Self {
        Self {
            is_head: method == Method::HEAD,
            is_connect: method == Method::CONNECT,
            is_http10,
            keeps_alive,
        }
    }

    fn may_say_length(self, status: StatusCode) -> bool {
        !(status.is_informational()
            || self.is_connect && status.is_success()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED))
    }

    /// Whether a length that the maker of the answer has put into its headers stays there.
    fn may_repeat_length(self, status: StatusCode) -> bool {
        status == StatusCode::NOT_MODIFIED || self.may_say_length(status)
    }

    fn may_have_body(self, status: StatusCode) -> bool {
        !self.is_head && self.may_say_length(status)
    }
}

/// `length`: of the body, as far as the answer's maker knows it; otherwise its headers may tell. Trailers are never sent.
pub(super) fn encode(head: &Parts, length: Option<u64>, asked: Asked) -> AnswerHead {
    let (status, headers) = (head.status, &head.headers);
    let is_switch = status == StatusCode::SWITCHING_PROTOCOLS;
    let said = said_length(headers).filter(|_| asked.may_repeat_length(status));
    let framed = match length.or(said) {
        _ if !asked.may_have_body(status) => Framed::Length(0),
        Some(bytes) => Framed::Length(bytes),
        None if asked.is_http10 => Framed::UntilClose,
        None => Framed::Chunked,
    };
    // What is said is what is sent, or would be.
    let said = said.filter(|bytes| match framed {
        Framed::Length(sent) => *bytes == sent || !asked.may_have_body(status),
        Framed::Chunked | Framed::UntilClose => false,
    });
    let says_close = has_item(headers, &header::CONNECTION, "close");
    let keeps_alive = asked.keeps_alive && !says_close && framed != Framed::UntilClose;
    let mut bytes = Vec::with_capacity(HEAD_BYTES + headers.len() * HEADER_BYTES);
    begin(&mut bytes, head, asked.is_http10);
    for (name, value) in headers {
        if matches!(*name, header::TRANSFER_ENCODING | header::TRAILER)
            || *name == header::CONTENT_LENGTH && said.is_none()
        {
            continue;
        }
        line(&mut bytes, name.as_str(), value.as_bytes());
    }
    let implied = length.filter(|bytes| *bytes > 0 || !asked.is_head);
    if let (None, Some(length)) = (said, implied)
        && asked.may_say_length(status)
    {
        // Writing to a vector cannot fail.
        let _ = write!(bytes, "content-length: {length}\r\n");
    }
    if framed == Framed::Chunked {
        line(&mut bytes, "transfer-encoding", b"chunked");
    }
    if is_switch {
    } else if asked.is_http10 {
        if keeps_alive && !has_item(headers, &header::CONNECTION, "keep-alive") {
            line(&mut bytes, "connection", b"keep-alive");
        }
    } else if !keeps_alive && !says_close {
        line(&mut bytes, "connection", b"close");
    }
    if !headers.contains_key(header::DATE) {
        line(&mut bytes, "date", &date());
    }
    bytes.extend_from_slice(b"\r\n");
    AnswerHead {
        bytes,
        framed,
        keeps_alive,
    }
}

/// A whole answer, after which the connection ends.
pub(in crate::listener) fn refusal(error: &ApiError) -> Vec<u8> {
    let (mut head, body) = error.response().into_parts();
    // No id is taken from a head that was refused.
    head.headers.insert(headers::REQUEST_ID, request_id::new());
    let asked = Asked::of(&Method::GET, false, false);
    let mut bytes = encode(&head, Some(body.len() as u64), asked).bytes;
    bytes.extend_from_slice(&body);
    bytes
}

fn begin(bytes: &mut Vec<u8>, head: &Parts, is_http10: bool) {
    bytes.extend_from_slice(match is_http10 {
        true => b"HTTP/1.0 ",
        false => b"HTTP/1.1 ",
    });
    bytes.extend_from_slice(head.status.as_str().as_bytes());
    bytes.push(b' ');
    let usual = head.status.canonical_reason().unwrap_or_default();
    let said = head.extensions.get::<ReasonPhrase>();
    bytes.extend_from_slice(said.map_or(usual.as_bytes(), ReasonPhrase::as_bytes));
    bytes.extend_from_slice(b"\r\n");
}

fn line(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b": ");
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}

/// What `Content-Length` says; none if it says nothing, or nothing that all readers understand alike.
fn said_length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    decimal(value.as_bytes())
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`
const DATE_BYTES: usize = 29;

thread_local! {
    /// The second that was written last, and its text.
    static DATE: Cell<(u64, [u8; DATE_BYTES])> = const { Cell::new((0, [b' '; DATE_BYTES])) };
}

/// The value of `Date`; made anew once a second and thread.
fn date() -> [u8; DATE_BYTES] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let second = now.map_or(0, |since| since.as_secs());
    let (written, text) = DATE.get();
    if written == second {
        return text;
    }
    let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
    let mut bytes = [b' '; DATE_BYTES];
    let length = text.len().min(DATE_BYTES);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    DATE.set((second, bytes));
    bytes
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    #[test]
    fn a_status_has_the_words_of_its_worker_or_the_usual_ones_or_none() {
        let asked = Asked::of(&Method::GET, false, true);
        for (status, said, expected) in [
            (200, None, "HTTP/1.1 200 OK\r\n"),
            (200, Some("Fine"), "HTTP/1.1 200 Fine\r\n"),
            (599, None, "HTTP/1.1 599 \r\n"),
            (599, Some("Of its own"), "HTTP/1.1 599 Of its own\r\n"),
        ] {
            let mut parts = Response::new(()).into_parts().0;
            parts.status = StatusCode::from_u16(status).expect("a status");
            if let Some(said) = said {
                parts
                    .extensions
                    .insert(ReasonPhrase::from_static(said.as_bytes()));
            }
            let head = encode(&parts, Some(0), asked).bytes;
            let head = String::from_utf8(head).expect("text");
            assert!(head.starts_with(expected), "{head}");
        }
    }
}
