//! Bytes → the head of a request, by the rules of [`super::super::framing`], in one pass. Pure.
//!
//! Names and values are slices of the bytes as they came, but for lines that came in pieces.

use bytes::{Buf, Bytes};
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Uri, Version};

use crate::http::syntax::items;
use crate::listener::framing::{BodyLength, Fault, Head, HeadLimits, HeadSink};

/// What most clients send fits without growing.
const HEADERS_EXPECTED: usize = 12;

/// A whole head, and what it says of its connection.
#[derive(Debug)]
pub struct RequestHead {
    /// Method, target, version, headers.
    pub parts: Parts,
    /// How long its body is.
    pub length: BodyLength,
    /// Whether another request may follow.
    pub keeps_alive: bool,
    /// Whether its body is sent only once it is asked for (`Expect: 100-continue`).
    pub expects_continue: bool,
}

/// Reads one head, in whatever pieces it comes.
#[derive(Debug, Default)]
pub struct HeadReader {
    rules: Head,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    said: Said,
}

/// What a head has said so far.
#[derive(Debug, Default)]
struct Said {
    method: Method,
    target: Uri,
    is_http10: bool,
    headers: HeaderMap,
    closes: bool,
    keeps_alive: bool,
    expects_continue: bool,
}

impl HeadReader {
    /// Whether a byte of it has come. Empty lines between requests do not count.
    pub fn has_begun(&self) -> bool {
        self.rules.has_begun()
    }

    /// Takes what belongs to the head off the front of `input`: all of it, unless the head ends within. Not to be called
    /// again after a fault or the head.
    /// Errors: what is wrong with the head.
    pub fn feed(
        &mut self,
        input: &mut Bytes,
        limits: HeadLimits,
    ) -> Result<Option<RequestHead>, Fault> {
        let source = std::mem::take(input);
        let mut rest = &*source;
        let mut sink = Sink {
            source: &source,
            said: &mut self.said,
        };
        while !rest.is_empty() {
            let length = self
                .rules
                .feed(&mut self.line, &mut rest, limits, &mut sink)?;
            if let Some(length) = length {
                let used = source.len() - rest.len();
                *input = source;
                input.advance(used);
                return Ok(Some(std::mem::take(&mut self.said).head(length)));
            }
        }
        Ok(None)
    }
}

impl Said {
    fn head(self, length: BodyLength) -> RequestHead {
        let mut parts = Request::new(()).into_parts().0;
        parts.method = self.method;
        parts.uri = self.target;
        parts.headers = self.headers;
        parts.version = match self.is_http10 {
            true => Version::HTTP_10,
            false => Version::HTTP_11,
        };
        RequestHead {
            parts,
            length,
            keeps_alive: !self.closes && (self.keeps_alive || !self.is_http10),
            expects_continue: self.expects_continue
                && !self.is_http10
                && length != BodyLength::Nothing,
        }
    }
}

/// Keeps what passes the rules.
struct Sink<'a> {
    source: &'a Bytes,
    said: &'a mut Said,
}

impl Sink<'_> {
    /// A part of a line: of the source where the line came in one piece.
    fn share(&self, part: &[u8]) -> Bytes {
        match self.source.as_ptr_range().contains(&part.as_ptr()) {
            true => self.source.slice_ref(part),
            false => Bytes::copy_from_slice(part),
        }
    }
}

impl HeadSink for Sink<'_> {
    fn request_line(&mut self, method: &[u8], target: &[u8], is_http10: bool) -> Result<(), Fault> {
        let wrong = Fault::Malformed("the request line has no method or no target that exists");
        if target.len() > usize::from(u16::MAX) - 1 {
            return Err(Fault::TargetTooLong);
        }
        if memchr::memchr(b'#', target).is_some() {
            // Left out in silence by whoever parses it; the worker would be asked for something else (RFC 9112, section 3.2).
            return Err(Fault::Malformed("the request target has a fragment"));
        }
        self.said.method = Method::from_bytes(method).map_err(|_| wrong)?;
        self.said.target = Uri::from_maybe_shared(self.share(target)).map_err(|_| wrong)?;
        self.said.is_http10 = is_http10;
        self.said.headers.reserve(HEADERS_EXPECTED);
        Ok(())
    }

    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        let wrong = Fault::Malformed("a header line is malformed");
        let name = HeaderName::from_bytes(name).map_err(|_| wrong)?;
        let said = &mut *self.said;
        match name {
            header::CONNECTION => {
                let has = |option: &str| {
                    items(value).any(|one| one.eq_ignore_ascii_case(option.as_bytes()))
                };
                said.closes |= has("close");
                said.keeps_alive |= has("keep-alive");
            }
            header::EXPECT => said.expects_continue = value.eq_ignore_ascii_case(b"100-continue"),
            _ => {}
        }
        let value = HeaderValue::from_maybe_shared(self.share(value)).map_err(|_| wrong)?;
        let appended = self.said.headers.try_append(name, value);
        appended.map(drop).map_err(|_| Fault::HeadTooLarge)
    }
}
