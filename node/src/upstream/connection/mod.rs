//! One connection to a worker, driven by its user, with one request at a time.
//!
//! A client of HTTP is usually split into a sender and a driver that is spawned. Here both stay in one value: the
//! request's own task drives the socket (no hand-over between tasks per chunk), and dropping the value closes the
//! socket at once, which is how vLLM learns that a request is abandoned. HTTP/2 is used in the same way: streams that
//! shared a connection would need a task of their own, wait for each other's windows, and break together.

mod broken;
pub mod http1;
mod http2;
mod length;
mod limits;
mod request;

use std::io;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use tokio::time::Instant;

pub use self::broken::{Broken, SendError};
pub use self::http1::Switched;
pub use self::request::WorkerRequest;
use super::address::Address;
use super::connector::Connector;
use crate::config::WorkerHttp2;

/// A connection to one worker.
#[derive(Debug)]
pub struct Connection {
    speaks: Speaks,
    /// When it last became idle.
    pub idle_since: Instant,
}

#[derive(Debug)]
enum Speaks {
    // On the heap: they are large, and change hands with each request.
    Http1(Box<http1::Connection>),
    Http2(Box<http2::Connection>),
}

impl Connection {
    /// Connects to a worker at this address, in this version of HTTP. `label`: its name in the log.
    /// Errors: as [`Connector::dial`]: the socket's, `TimedOut` after `within`, or one of TLS; where HTTP/2 is spoken
    /// and the worker does not, `InvalidData`, or `TimedOut` after the limit of a TLS handshake.
    pub async fn open(
        connector: &Connector,
        address: &Address,
        label: &str,
        within: Duration,
        http2: WorkerHttp2,
    ) -> io::Result<Self> {
        let io = connector.dial(address, within, http2).await?;
        let speaks = if io.speaks_http2(http2) {
            let opened = http2::Connection::open(io, address, connector.handshake_within()).await;
            if let Err(error) = &opened
                && connector.no_http2.allows_line()
            {
                tracing::warn!(worker = label, %error, "a worker was asked in HTTP/2 (workers.http2) and did not answer in it");
            }
            Speaks::Http2(Box::new(opened?))
        } else {
            Speaks::Http1(Box::new(http1::Connection::new(io)))
        };
        Ok(Self {
            speaks,
            idle_since: Instant::now(),
        })
    }

    /// After a 101: the socket. None where the connection ended instead.
    pub async fn switch(self) -> Option<Switched> {
        match self.speaks {
            Speaks::Http1(connection) => connection.switch().await,
            // It has no 101.
            Speaks::Http2(_) => None,
        }
    }

    /// Sends a request and waits for the response's head.
    /// Errors: how far it had got when the connection failed.
    pub async fn send(
        &mut self,
        request: &WorkerRequest<'_>,
    ) -> Result<Response<AnswerBody>, SendError> {
        Ok(match &mut self.speaks {
            Speaks::Http1(connection) => connection.send(request).await?.map(AnswerBody::Http1),
            Speaks::Http2(connection) => {
                let sent = Box::pin(connection.send(request));
                sent.await?.map(AnswerBody::Http2)
            }
        })
    }

    /// Next frame of the body of a response that came on this connection.
    pub fn poll_frame(
        &mut self,
        body: &mut AnswerBody,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match (&mut self.speaks, body) {
            (Speaks::Http1(connection), AnswerBody::Http1(body)) => connection.poll_frame(body, cx),
            (Speaks::Http2(connection), AnswerBody::Http2(body)) => connection.poll_frame(body, cx),
            _ => unreachable!("a body is read from the connection that it came on"),
        }
    }

    /// After a complete response: can the connection carry another request? Nobody is woken by it while it rests.
    pub fn may_rest(&mut self) -> bool {
        match &mut self.speaks {
            Speaks::Http1(connection) => connection.is_reusable(&mut quiet()),
            Speaks::Http2(connection) => connection.may_rest(),
        }
    }

    /// Before reuse: has the worker closed it meanwhile?
    pub fn is_still_open(&mut self) -> bool {
        match &mut self.speaks {
            Speaks::Http1(connection) => connection.is_reusable(&mut quiet()),
            Speaks::Http2(connection) => connection.is_still_open(),
        }
    }
}

/// Wakes nobody.
fn quiet() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// The body of a worker's answer, which is read by [`Connection::poll_frame`].
#[derive(Debug)]
pub enum AnswerBody {
    /// HTTP/1.1.
    Http1(http1::AnswerBody),
    /// HTTP/2.
    Http2(http2::AnswerBody),
}

impl AnswerBody {
    /// All of it has been read.
    pub fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.has_ended(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    /// Its end is that of its connection, as in HTTP/1.0: nobody can tell it from the end of its worker.
    pub fn is_until_close(&self) -> bool {
        matches!(self, Self::Http1(body) if body.is_until_close())
    }

    /// Bytes that are still to come, where the head says it.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Http1(body) => body.length(),
            Self::Http2(body) => body.length(),
        }
    }
}
