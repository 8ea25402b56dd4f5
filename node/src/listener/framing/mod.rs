//! The strict reading of RFC 9112: what two readers could understand differently is refused.
//!
//! Many readers take more than is safe in a chain of HTTP readers: of `Content-Length` with `Transfer-Encoding` only the
//! second counts, a bare line feed ends a line, `gzip, chunked` is a coding. The data port's server ([`super::http1`])
//! reads its heads and chunks by these rules and by nothing else. On the admin port, which hyper serves, [`Framing`] reads
//! along and refuses before hyper gets the bytes; there it never changes a byte.
//!
//! Pure: bytes in, verdict out, whatever the pieces in which they come. `head` reads heads, `chunked` bodies in chunks,
//! `line` what both are made of.

mod chunked;
mod head;
mod line;
#[cfg(test)]
mod tests;

pub(super) use self::chunked::Chunked;
pub use self::head::BodyLength;
pub(super) use self::head::{Head, HeadSink};
use self::line::skip;
use crate::api::error::{ApiError, ErrorKind};

/// Largest head that is taken.
#[derive(Debug, Clone, Copy)]
pub struct HeadLimits {
    /// Bytes, from the request line to the empty line.
    pub bytes: usize,
    /// Header lines.
    pub lines: usize,
}

/// What is wrong with a head, or with the framing of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Against RFC 9112, or ambiguous.
    Malformed(&'static str),
    /// The request line alone is above the limit.
    TargetTooLong,
    /// More bytes or lines than the limits.
    HeadTooLarge,
}

impl Fault {
    /// The answer to it.
    pub fn error(self) -> ApiError {
        match self {
            Self::Malformed(what) => ApiError::new(ErrorKind::InvalidRequest, what),
            Self::TargetTooLong => ApiError::target_too_long(),
            Self::HeadTooLarge => ApiError::head_too_large(),
        }
    }
}

/// Where reading has to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramingError {
    /// The head of a request; so many of the bytes just read come before it.
    Head(usize, Fault),
    /// The framing of a body; so many of the bytes just read come before the fault.
    Body(usize, &'static str),
}

/// Where in the stream of requests a connection is.
#[derive(Debug)]
pub struct Framing {
    limits: HeadLimits,
    state: State,
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    /// Heads that have begun.
    heads: u64,
}

#[derive(Debug)]
enum State {
    Head(Head),
    /// So many bytes of a body are to come.
    Fixed(u64),
    Chunked(Chunked),
}

impl State {
    fn head() -> Self {
        Self::Head(Head::default())
    }

    /// What follows a head, by the length of its body.
    fn of_body(length: BodyLength) -> Self {
        match length {
            BodyLength::Nothing => Self::head(),
            BodyLength::Fixed(bytes) => Self::Fixed(bytes),
            BodyLength::Chunked => Self::Chunked(Chunked::default()),
        }
    }
}

impl Framing {
    /// Before the first byte of a connection.
    pub fn new(limits: HeadLimits) -> Self {
        Self {
            limits,
            state: State::head(),
            line: Vec::new(),
            heads: 0,
        }
    }

    /// How many heads have begun.
    pub fn heads(&self) -> u64 {
        self.heads
    }

    /// The number of the head that has begun and is not complete. Empty lines between requests begin none.
    pub fn open_head(&self) -> Option<u64> {
        match &self.state {
            State::Head(head) if head.has_begun() => Some(self.heads),
            _ => None,
        }
    }

    /// Takes the next bytes of the connection. Not to be called again after a refusal.
    /// Errors: where reading has to stop, and why.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), FramingError> {
        let mut rest = bytes;
        // Where in `bytes` the head being read began.
        let mut began = 0;
        while !rest.is_empty() {
            let at = bytes.len() - rest.len();
            let next = match &mut self.state {
                State::Head(head) => {
                    let had_begun = head.has_begun();
                    let body = head.feed(&mut self.line, &mut rest, self.limits, &mut ());
                    self.heads += u64::from(head.has_begun() && !had_begun);
                    let body = body.map_err(|fault| FramingError::Head(began, fault))?;
                    body.map(State::of_body)
                }
                State::Fixed(left) => skip(left, &mut rest).then(State::head),
                State::Chunked(chunked) => {
                    let is_over = chunked.feed(&mut self.line, &mut rest);
                    let is_over = is_over.map_err(|what| FramingError::Body(at, what))?;
                    is_over.then(State::head)
                }
            };
            if let Some(next) = next {
                self.state = next;
                began = bytes.len() - rest.len();
            }
        }
        Ok(())
    }
}
