//! One HTTP/1.1 connection to a worker, driven by whoever uses it.
//!
//! hyper's client splits a connection into a sender and a driver that is usually spawned. Here both stay in
//! one value: the request's own task drives the socket (no hand-over between tasks per chunk), and dropping
//! the value closes the socket at once, which is how vLLM learns that a request is abandoned.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::Worker;
use super::head_count::{Counted, HEAD_BYTES_MAX, HeadCount};
use super::tls::WorkerIo;
use crate::proxy::worker_body::WorkerBody;

/// Most bytes that are read ahead of a slow client.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Most header lines that a worker may answer with.
const HEADERS_MAX: usize = 100;

type Driver = http1::Connection<TokioIo<Counted<WorkerIo>>, WorkerBody>;

/// How far a request had got when its connection failed.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nothing of it was written.
    #[error("the connection ended before the request was sent")]
    Unsent(#[source] hyper::Error),
    /// Some of it may have been; not a byte of a response came.
    #[error("the connection ended without a response")]
    Unanswered(#[source] hyper::Error),
    /// What came is not the head of an HTTP response, is too long to be read, or broke off.
    #[error("the head of the response is malformed, too long, or cut short")]
    Malformed(#[source] hyper::Error),
    /// The head of the response is longer than [`HEAD_BYTES_MAX`].
    #[error("the head of the response is longer than {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
}

/// A connection to one worker.
#[derive(Debug)]
pub struct Connection {
    sender: http1::SendRequest<WorkerBody>,
    /// None once it has ended: a request still in its queue fails only when it is dropped.
    driver: Option<Driver>,
    head: HeadCount,
    /// When it last became idle.
    pub idle_since: Instant,
}

impl Connection {
    /// Connects to a worker.
    ///
    /// # Errors
    /// As [`Reach::dial`](super::Reach::dial): the socket's, `TimedOut` after `within`, or one of TLS.
    pub async fn open(worker: &Worker, within: Duration) -> io::Result<Self> {
        let stream = worker.reach.dial(&worker.address, within).await?;
        let head = HeadCount::default();
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(READ_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(Counted::new(stream, head.clone())))
            .await
            .map_err(io::Error::other)?;
        Ok(Self {
            sender,
            driver: Some(driver),
            head,
            idle_since: Instant::now(),
        })
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.driver, cx);
    }

    /// Sends a request and waits for the response's head.
    ///
    /// # Errors
    /// How far it had got when the connection failed.
    pub async fn send(
        &mut self,
        request: Request<WorkerBody>,
    ) -> Result<Response<Incoming>, SendError> {
        self.head.begin();
        let mut answer = std::pin::pin!(self.sender.send_request(request));
        let driver = &mut self.driver;
        let result = poll_fn(|cx| {
            drive(driver, cx);
            answer.as_mut().poll(cx)
        })
        .await;
        let result = result.map_err(|error| match () {
            () if error.is_canceled() => SendError::Unsent(error),
            () if self.head.bytes() == 0 => SendError::Unanswered(error),
            () => SendError::Malformed(error),
        });
        // One read may give more than the limit; only then is a look at the headers needed.
        let much = self.head.bytes() > HEAD_BYTES_MAX;
        self.head.end();
        match result {
            Ok(response) if much && head_bytes(&response) > HEAD_BYTES_MAX => {
                Err(SendError::HeadTooLong)
            }
            result => result,
        }
    }

    /// Next frame of a response's body.
    pub fn poll_frame(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        self.drive(cx);
        Pin::new(body).poll_frame(cx)
    }

    /// After a complete response: can the connection carry another request?
    pub fn is_reusable(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Before reuse: has the worker closed it meanwhile?
    pub fn is_still_open(&mut self) -> bool {
        self.is_reusable(&mut Context::from_waker(Waker::noop()))
    }
}

/// Length of a head's header lines as they came, in bytes.
fn head_bytes(response: &Response<Incoming>) -> usize {
    let lines = response.headers().iter();
    // With `: ` and the line's end.
    lines
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum()
}

/// Polls the driver, and drops it when it has ended.
fn drive(driver: &mut Option<Driver>, cx: &mut Context<'_>) {
    // The driver's own result says nothing that the response or its body does not say as well.
    if let Some(running) = driver
        && Pin::new(running).poll(cx).is_ready()
    {
        *driver = None;
    }
}
