//! The head of an answer: httparse's reading of it, within limits, and what it says of the body and the connection.
//!
//! Pure: bytes in, a head out. Each head is read once it may be whole, and copied out of the buffer once: what is left
//! there is the body, and no header keeps the buffer alive.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version, header};
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use memchr::memchr;

use super::body::AnswerBody;
use crate::http::syntax::has_item;
use crate::upstream::connection::broken::{Broken, SendError};
use crate::upstream::connection::length::{BodyLength, body_length};
use crate::upstream::connection::limits::HEADERS_MAX;
use crate::upstream::head_count::HEAD_BYTES_MAX;

/// The head of an answer that may have a body.
#[derive(Debug)]
pub struct Head {
    /// Status, version and headers.
    pub response: Response<()>,
    /// How to read what follows.
    pub body: AnswerBody,
    /// Another request may follow on the connection, once the body was read.
    pub keeps_alive: bool,
}

/// Reads the head of the answer to one request. Informational ones before it (100, 103) are passed over, within one
/// limit for all of them together.
#[derive(Debug)]
pub struct HeadReader {
    /// Answers to HEAD have no body, whatever they say.
    is_without_body: bool,
    /// Bytes of informational heads.
    passed: usize,
    /// So many bytes of the next head were looked at.
    looked: usize,
}

impl HeadReader {
    /// For the answer to a request with this method.
    pub fn of(method: &Method) -> Self {
        Self {
            is_without_body: *method == Method::HEAD,
            passed: 0,
            looked: 0,
        }
    }

    /// Whether a byte of the answer has come, of which `buf` has what was not passed over.
    pub fn has_begun(&self, buf: &BytesMut) -> bool {
        self.passed > 0 || !buf.is_empty()
    }

    /// Takes the head off the front of `buf`, once it is whole.
    /// Errors: it is none, is longer than [`HEAD_BYTES_MAX`] bytes or `HEADERS_MAX` lines, or leaves open where its
    /// body ends.
    pub fn take(&mut self, buf: &mut BytesMut) -> Result<Option<Head>, SendError> {
        while self.may_have_ended(buf) {
            let Some(Parsed { length, response }) = parse(buf)? else {
                break;
            };
            buf.advance(length);
            self.passed += length;
            self.looked = 0;
            if self.passed > HEAD_BYTES_MAX {
                return Err(SendError::HeadTooLong);
            }
            if let Some(response) = response {
                return self.judge(response).map(Some);
            }
        }
        self.looked = buf.len();
        match self.passed + self.looked > HEAD_BYTES_MAX {
            true => Err(SendError::HeadTooLong),
            false => Ok(None),
        }
    }

    /// Parsing begins anew each time, so a head that comes in small pieces is looked at line by line, and its beginning
    /// at once: garbage may have no line.
    fn may_have_ended(&self, buf: &BytesMut) -> bool {
        let new = buf.get(self.looked..).unwrap_or_default();
        match self.looked {
            0 => !new.is_empty(),
            _ => memchr(b'\n', new).is_some(),
        }
    }

    fn judge(&self, response: Response<()>) -> Result<Head, SendError> {
        let (version, headers) = (response.version(), response.headers());
        let length = body_length(version, headers).ok_or(SendError::LengthInDoubt)?;
        let status = response.status();
        let switches = status == StatusCode::SWITCHING_PROTOCOLS;
        let bodiless = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED];
        let length = match self.is_without_body || switches || bodiless.contains(&status) {
            true => BodyLength::Fixed(0),
            false => length,
        };
        let keeps_alive = keeps_alive(version, headers);
        Ok(Head {
            body: AnswerBody::of(length),
            keeps_alive: keeps_alive && !switches && length != BodyLength::Open,
            response,
        })
    }
}

/// A whole head at the front of some bytes.
struct Parsed {
    /// In bytes.
    length: usize,
    /// None where it is informational and no 101.
    response: Option<Response<()>>,
}

fn parse(bytes: &[u8]) -> Result<Option<Parsed>, SendError> {
    let mut lines = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut read = httparse::Response::new(&mut []);
    let strict = ParserConfig::default();
    let length = match strict.parse_response_with_uninit_headers(&mut read, bytes, &mut lines) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(SendError::HeadTooLong),
        Err(error) => return Err(SendError::Malformed(Broken::Head(error))),
    };
    let response = response_of(&read, &bytes[..length]);
    let response = response.map_err(|what| SendError::Malformed(Broken::Content(what)))?;
    Ok(Some(Parsed { length, response }))
}

/// What httparse has read in `head`.
fn response_of(
    read: &httparse::Response<'_, '_>,
    head: &[u8],
) -> Result<Option<Response<()>>, &'static str> {
    let status = StatusCode::from_u16(read.code.unwrap_or_default());
    let status = status.map_err(|_| "the status of an answer is below 100")?;
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(None);
    }
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = match read.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    // As hyper's server writes it, where it is not the usual one.
    let unusual = |reason: &&str| status.canonical_reason() != Some(*reason);
    if let Some(reason) = read.reason.filter(unusual) {
        let words = ReasonPhrase::try_from(reason.as_bytes());
        let words = words.map_err(|_| "the reason of a status is malformed")?;
        response.extensions_mut().insert(words);
    }
    let copy = Bytes::copy_from_slice(head);
    let headers = response.headers_mut();
    headers.reserve(read.headers.len());
    for line in &*read.headers {
        let name = HeaderName::from_bytes(line.name.as_bytes());
        let name = name.map_err(|_| "the name of a header is malformed")?;
        let value = value_in(&copy, head, line.value);
        headers.append(name, value.ok_or("the value of a header is malformed")?);
    }
    Ok(Some(response))
}

/// The value, which is a part of `bytes`, as the same part of their copy.
fn value_in(copy: &Bytes, bytes: &[u8], value: &[u8]) -> Option<HeaderValue> {
    let at = value.as_ptr().addr() - bytes.as_ptr().addr();
    HeaderValue::from_maybe_shared(copy.slice(at..at + value.len())).ok()
}

/// RFC 9112, section 9.3.
fn keeps_alive(version: Version, headers: &HeaderMap) -> bool {
    let has = |option| has_item(headers, &header::CONNECTION, option);
    !has("close") && (version == Version::HTTP_11 || has("keep-alive"))
}
