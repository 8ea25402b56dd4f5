//! A connection in HTTP/1.1: hyper's sender and driver in one value.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::broken::SendError;
use super::limits::{HEADERS_MAX, READ_BYTES_MAX};
use crate::http::worker_body::WorkerBody;
use crate::upstream::head_count::{Counted, HEAD_BYTES_MAX, HeadCount};
use crate::upstream::tls::WorkerIo;

/// Longest wait for hyper to let go of a socket whose protocol changes.
const LET_GO: Duration = Duration::from_secs(1);

type Driver = http1::Connection<TokioIo<Counted<WorkerIo>>, WorkerBody>;

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

#[derive(Debug)]
pub(super) struct Connection {
    sender: http1::SendRequest<WorkerBody>,
    driver: Driving,
    head: HeadCount,
}

impl Connection {
    pub(super) async fn open(io: WorkerIo) -> io::Result<Self> {
        let head = HeadCount::up_to(HEAD_BYTES_MAX);
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(READ_BYTES_MAX as usize)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(Counted::new(io, head.clone())))
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
        })
    }

    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        self.driver.drive(cx);
    }

    pub(super) async fn switch(mut self) -> Option<Switched> {
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

    pub(super) async fn send(
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
            () if error.is_canceled() => SendError::Unsent(error.into()),
            () if self.head.bytes() == 0 => SendError::Unanswered(error.into()),
            () => SendError::Malformed(error.into()),
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

    pub(super) fn is_reusable(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        self.driver.running.is_some() && self.sender.is_ready()
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
