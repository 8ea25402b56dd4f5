//! The body of a client's request, whichever protocol it comes in.
//!
//! HTTP/2 has hyper's body. An HTTP/1 body is a handle on its connection, whose bytes are read only when it is asked for
//! them, straight into the reader's buffer where its length is known.

use std::error::Error as _;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The body of a client's request.
#[derive(Debug)]
pub enum ClientBody {
    /// On a connection of its own, one request at a time.
    Http1(Http1Body),
    /// A stream of HTTP/2.
    Http2(Http2Body),
}

/// For how many bytes a body is taken that nobody reads any more.
pub(super) const LINGER_BYTES: usize = 32 * 1024 * 1024;
/// For how long, over HTTP/2: until nothing more has come for a while, and at the latest then.
const LINGER_SILENCE: Duration = Duration::from_secs(5);
const LINGER: Duration = Duration::from_secs(30);

/// The body of an HTTP/2 request.
///
/// One that is dropped before its end is taken for a while all the same: else its stream would be reset behind the
/// answer, which RFC 9113, section 8.1, allows, and common clients (curl, httpx) then drop the answer, too. httpx does not
/// look at the answer before it has sent all of the body, so this must last as long as that takes.
#[derive(Debug)]
pub struct Http2Body(Option<Incoming>);

impl From<Incoming> for Http2Body {
    fn from(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        let Some(rest) = self.0.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        // Without a runtime the process ends.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(timeout(LINGER, pass_over(rest)));
    }
}

/// Takes what comes of a body, and keeps nothing of it.
async fn pass_over(mut rest: Incoming) {
    let mut left = LINGER_BYTES;
    while left > 0
        && let Ok(Some(Ok(frame))) = timeout(LINGER_SILENCE, rest.frame()).await
    {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
    }
}

/// Why a body cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client left before its end.
    #[error("the client left within the body")]
    Left,
    /// Its framing is wrong, or its request is over.
    #[error("the body broke off: {0}")]
    Broke(&'static str),
    /// HTTP/2's own reasons.
    #[error(transparent)]
    Http2(hyper::Error),
}

impl From<hyper::Error> for BodyError {
    fn from(error: hyper::Error) -> Self {
        let cause = error
            .source()
            .and_then(|cause| cause.downcast_ref::<h2::Error>());
        let has_left = |cause: &h2::Error| cause.is_io() || (cause.is_remote() && cause.is_reset());
        match cause.is_some_and(has_left) {
            true => Self::Left,
            false => Self::Http2(error),
        }
    }
}

/// A connection that a body is read from. `request`: the number of the body's request on it.
pub trait BodySource: Send + Sync {
    /// The next bytes; none at the end.
    fn poll_data(
        &self,
        request: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>>;

    /// Reads into the free room of `buffer`, of a body whose length is known; how many bytes, 0 only at the end.
    fn poll_read_into(
        &self,
        request: u64,
        buffer: &mut BytesMut,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, BodyError>>;
}

/// The body of an HTTP/1 request.
pub struct Http1Body {
    /// Does not keep the connection open.
    source: Weak<dyn BodySource>,
    request: u64,
    /// Bytes to come; none: nobody knows.
    left: Option<u64>,
    has_ended: bool,
}

impl fmt::Debug for Http1Body {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Http1Body")
            .field("request", &self.request)
            .field("left", &self.left)
            .field("has_ended", &self.has_ended)
            .finish_non_exhaustive()
    }
}

const CLOSED: BodyError = BodyError::Left;

impl Http1Body {
    /// The body of a connection's request; `length` in bytes, none if its chunks tell it.
    pub fn new(source: Weak<dyn BodySource>, request: u64, length: Option<u64>) -> Self {
        Self {
            source,
            request,
            left: length,
            has_ended: length == Some(0),
        }
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let next = match self.source.upgrade() {
            Some(source) => ready!(source.poll_data(self.request, cx)),
            None => Some(Err(CLOSED)),
        };
        match &next {
            Some(Ok(data)) => self.received(data.len()),
            Some(Err(_)) | None => self.has_ended = true,
        }
        Poll::Ready(next)
    }

    fn poll_read_into(
        &mut self,
        buffer: &mut BytesMut,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, BodyError>> {
        if self.has_ended {
            return Poll::Ready(Ok(0));
        }
        let read = match self.source.upgrade() {
            Some(source) => ready!(source.poll_read_into(self.request, buffer, cx)),
            None => Err(CLOSED),
        };
        match &read {
            Ok(bytes) => self.received(*bytes),
            Err(_) => self.has_ended = true,
        }
        Poll::Ready(read)
    }

    fn received(&mut self, bytes: usize) {
        if let Some(left) = &mut self.left {
            *left -= bytes as u64;
            self.has_ended = *left == 0;
        }
    }
}

impl ClientBody {
    /// Reads more of a body whose length is known to the end of `buffer`, into its free room where there is some; how
    /// many bytes, 0 only at the end. Cancel safe.
    ///
    /// # Errors
    /// It breaks off.
    pub async fn read_into(&mut self, buffer: &mut BytesMut) -> Result<usize, BodyError> {
        poll_fn(|cx| match self {
            Self::Http1(body) if body.left.is_some() && buffer.capacity() > buffer.len() => {
                body.poll_read_into(buffer, cx)
            }
            _ => loop {
                match ready!(Pin::new(&mut *self).poll_frame(cx)).transpose()? {
                    None => return Poll::Ready(Ok(0)),
                    Some(frame) => match frame.into_data() {
                        Ok(data) if !data.is_empty() => {
                            buffer.extend_from_slice(&data);
                            return Poll::Ready(Ok(data.len()));
                        }
                        // Trailers, and nothing, are passed over.
                        _ => {}
                    },
                }
            },
        })
        .await
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Http1(body) => body
                .poll_data(cx)
                .map(|next| next.map(|data| data.map(Frame::data))),
            Self::Http2(Http2Body(Some(body))) => Pin::new(body)
                .poll_frame(cx)
                .map(|next| next.map(|frame| frame.map_err(BodyError::from))),
            Self::Http2(Http2Body(None)) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.has_ended,
            Self::Http2(Http2Body(body)) => body.as_ref().is_none_or(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.left.map_or_else(SizeHint::new, SizeHint::with_exact),
            Self::Http2(Http2Body(body)) => {
                body.as_ref().map_or_else(SizeHint::new, Body::size_hint)
            }
        }
    }
}
