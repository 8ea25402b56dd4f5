//! How a request or its answer broke, whichever version of HTTP it was in.

use std::io;

use super::limits::HEADERS_MAX;
use crate::upstream::head_count::HEAD_BYTES_MAX;

/// What the version of HTTP says about an exchange that broke.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// HTTP/1.1: the socket failed, or TLS on it.
    #[error(transparent)]
    Io(io::Error),
    /// HTTP/1.1: the connection ended before the answer did.
    #[error("the connection ended before the answer did")]
    Cut,
    /// HTTP/1.1: what came is no head.
    #[error("the head of the answer: {0}")]
    Head(httparse::Error),
    /// HTTP/1.1: what came is nothing that may be there.
    #[error("{0}")]
    Content(&'static str),
    /// HTTP/2.
    #[error(transparent)]
    Http2(#[from] h2::Error),
}

/// How far a request had got when its connection failed.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nothing of it was written, or the worker says that it has not looked at it.
    #[error("the connection ended before the request was sent")]
    Unsent(#[source] Broken),
    /// Some of it may have been; not a byte of a response came.
    #[error("the connection ended without a response")]
    Unanswered(#[source] Broken),
    /// What came is not the head of an HTTP response, is too long to be read, or broke off.
    #[error("the head of the response is malformed, too long, or cut short")]
    Malformed(#[source] Broken),
    /// The head of the response is longer than [`HEAD_BYTES_MAX`], or has more lines than [`HEADERS_MAX`].
    #[error(
        "the head of the response is longer than {HEAD_BYTES_MAX} bytes or {HEADERS_MAX} lines"
    )]
    HeadTooLong,
    /// The head leaves open where its body ends.
    #[error("the head of the response leaves open where its body ends")]
    LengthInDoubt,
}

impl Broken {
    /// The worker reset the stream, or announced that the connection ends.
    pub fn is_declined(&self) -> bool {
        matches!(self, Self::Http2(error) if error.is_reset() || error.is_go_away())
    }

    /// The connection ended, or the worker gave the request up; else what came is nothing that HTTP knows.
    pub fn is_cut(&self) -> bool {
        match self {
            Self::Cut => true,
            Self::Head(_) | Self::Content(_) => false,
            Self::Io(error) => !is_of_content(error.kind()),
            Self::Http2(error) => match error.get_io() {
                Some(error) => !is_of_content(error.kind()),
                // A reset, or the end of all.
                None => error.is_remote(),
            },
        }
    }
}

/// The reader's verdict on what came; every other kind is the socket's.
fn is_of_content(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
    )
}
