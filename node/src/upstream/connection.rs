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
use http::{Request, Response, Version, header};
use http_body::Body;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout};

use super::Worker;
use super::head_count::{Counted, HEAD_BYTES_MAX, HeadCount};
use super::tls::WorkerIo;
use crate::proxy::worker_body::WorkerBody;

/// Most bytes that are read ahead of a slow client.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Most header lines that a worker may answer with.
const HEADERS_MAX: usize = 100;

/// Longest wait for hyper to let go of a socket whose protocol changes.
const LET_GO: Duration = Duration::from_secs(1);

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
    /// The head leaves open where its body ends.
    #[error("the head of the response leaves open where its body ends")]
    LengthInDoubt,
}

/// What drives a connection.
#[derive(Debug)]
struct Driving {
    /// None once it has ended: a request still in its queue fails only when it is dropped.
    running: Option<Driver>,
    /// The driver that has ended, if the request asked for another protocol: it has the socket.
    ended: Option<Driver>,
    /// The request asks for another protocol.
    may_switch: bool,
}

/// The socket of a connection that speaks another protocol from now on.
#[derive(Debug)]
pub struct Switched {
    /// The socket.
    pub io: WorkerIo,
    /// What the worker has said in that protocol already.
    pub early: Bytes,
}

/// A connection to one worker.
#[derive(Debug)]
pub struct Connection {
    sender: http1::SendRequest<WorkerBody>,
    driver: Driving,
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
            driver: Driving {
                running: Some(driver),
                ended: None,
                may_switch: false,
            },
            head,
            idle_since: Instant::now(),
        })
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        self.driver.drive(cx);
    }

    /// After a 101: the socket. None where the connection ended instead.
    pub async fn switch(mut self) -> Option<Switched> {
        // hyper lets go of it once it has written the last of the request.
        let let_go = poll_fn(|cx| {
            self.drive(cx);
            match self.driver.running {
                None => Poll::Ready(()),
                Some(_) => Poll::Pending,
            }
        });
        timeout(LET_GO, let_go).await.ok()?;
        let parts = self.driver.ended?.into_parts();
        Some(Switched {
            io: parts.io.into_inner().into_inner(),
            early: parts.read_buf,
        })
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
        // No other request has this header: it is for one hop.
        self.driver.may_switch = request.headers().contains_key(header::UPGRADE);
        let mut answer = std::pin::pin!(self.sender.send_request(request));
        let driver = &mut self.driver;
        let result = poll_fn(|cx| {
            driver.drive(cx);
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
            Ok(response) if is_length_in_doubt(&response) => Err(SendError::LengthInDoubt),
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
        self.driver.running.is_some() && self.sender.is_ready()
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

/// Whether the head says more than one thing about where its body ends, or something that is not understood here
/// (RFC 9112, section 6.3). hyper takes one of them, and whoever is behind another proxy may take the other.
fn is_length_in_doubt(response: &Response<Incoming>) -> bool {
    let headers = response.headers();
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let (length, coding) = (lengths.next(), codings.next());
    match coding {
        None => lengths.next().is_some(),
        Some(coding) => {
            let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
            let is_known = response.version() == Version::HTTP_11;
            !is_chunked || !is_known || length.is_some() || codings.next().is_some()
        }
    }
}

impl Driving {
    /// Polls the driver, and drops it when it has ended.
    fn drive(&mut self, cx: &mut Context<'_>) {
        // The driver's own result says nothing that the response or its body does not say as well.
        if let Some(running) = &mut self.running
            && Pin::new(running).poll(cx).is_ready()
        {
            let ended = self.running.take();
            self.ended = ended.filter(|_| self.may_switch);
        }
    }
}
