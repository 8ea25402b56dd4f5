//! A connection in HTTP/1.1: one request at a time, driven by its user.
//!
//! Not by hyper: its connection keeps a buffer for reading and one for writing of 8 KiB each while nothing comes, and
//! copies each head into the second. Here a request goes out as one vectored write, and an answer's bytes go on from
//! where the socket was read to. What the bytes mean is decided in `head`, `body` and `chunked`, which are pure; how
//! much is read and kept in `inbox`.

mod body;
mod chunked;
mod front;
mod head;
mod inbox;
#[cfg(test)]
mod tests;
mod upload;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::timeout;

pub use self::body::AnswerBody;
pub use self::head::{Head, HeadReader};
use self::inbox::Inbox;
use self::upload::Upload;
use super::broken::{Broken, SendError};
use super::request::WorkerRequest;
use crate::upstream::tls::WorkerIo;

/// Longest wait for the last of a request whose connection changes its protocol.
const LET_GO: Duration = Duration::from_secs(1);

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
    io: WorkerIo,
    inbox: Inbox,
    /// What is left to send of the request.
    upload: Option<Upload>,
    /// The rest of the request cannot be sent. An answer may have come all the same.
    is_unwritable: bool,
    /// The answer that is read allows another one behind it.
    keeps_alive: bool,
    /// No answer is to come, or still to be read.
    is_free: bool,
}

impl Connection {
    pub(super) fn new(io: WorkerIo) -> Self {
        Self {
            io,
            inbox: Inbox::new(),
            upload: None,
            is_unwritable: false,
            keeps_alive: false,
            is_free: true,
        }
    }

    pub(super) async fn send(
        &mut self,
        request: &WorkerRequest<'_>,
    ) -> Result<Response<AnswerBody>, SendError> {
        let look = poll_fn(|cx| Poll::Ready(self.poll_unfit(cx)));
        if let Poll::Ready(broken) = look.await {
            return Err(SendError::Unsent(broken));
        }
        self.is_free = false;
        let mut reader = HeadReader::of(request.method);
        self.upload = Some(Upload::of(request));
        let head = poll_fn(|cx| self.poll_head(&mut reader, cx)).await?;
        self.keeps_alive = head.keeps_alive;
        let body = head.body;
        if body.has_ended() {
            self.end_answer();
        }
        Ok(head.response.map(|()| body))
    }

    /// Reads on while it writes: a worker may answer before it has the whole request. It may also close the connection
    /// behind that answer, so that writing fails before the runtime knows of the answer. Then that can be read, or the end.
    fn poll_head(
        &mut self,
        reader: &mut HeadReader,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Head, SendError>> {
        let _ = self.poll_upload(cx);
        loop {
            if let Some(head) = reader.take(&mut self.inbox.buf)? {
                return Poll::Ready(Ok(head));
            }
            let broken = match self.inbox.poll_fill(&mut self.io, cx, None) {
                Poll::Ready(Ok(1..)) => continue,
                Poll::Ready(Ok(0)) => Broken::Cut,
                Poll::Ready(Err(error)) => Broken::Io(error),
                Poll::Pending => return Poll::Pending,
            };
            return Poll::Ready(Err(match reader.has_begun(&self.inbox.buf) {
                true => SendError::Malformed(broken),
                false => SendError::Unanswered(broken),
            }));
        }
    }

    /// Ready once nothing is left to write, or to be written with success.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(upload) = &mut self.upload {
            self.is_unwritable = ready!(upload.poll(&mut self.io, cx)).is_err();
            self.upload = None;
        }
        Poll::Ready(())
    }

    pub(super) fn poll_frame(
        &mut self,
        body: &mut AnswerBody,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let _ = self.poll_upload(cx);
        loop {
            if body.has_ended() {
                return Poll::Ready(None);
            }
            let frame = body.take(&mut self.inbox.buf)?;
            if body.has_ended() {
                self.end_answer();
            }
            if let Some(frame) = frame {
                return Poll::Ready(Some(Ok(frame)));
            }
            if !body.has_ended() {
                let filled = self.inbox.poll_fill(&mut self.io, cx, body.length());
                if ready!(filled).map_err(Broken::Io)? == 0 {
                    body.close()?;
                }
            }
        }
    }

    /// A request that is not sent yet leaves the connection to nobody else.
    fn end_answer(&mut self) {
        self.is_free = self.keeps_alive && self.upload.is_none() && !self.is_unwritable;
        self.inbox.rest();
    }

    pub(super) fn is_reusable(&mut self, cx: &mut Context<'_>) -> bool {
        self.is_free && self.poll_unfit(cx).is_pending()
    }

    /// Ready once the worker has closed the connection, or says what nobody asked for.
    fn poll_unfit(&mut self, cx: &mut Context<'_>) -> Poll<Broken> {
        const UNASKED: Broken = Broken::Content("the worker spoke unasked");
        if !self.inbox.buf.is_empty() {
            return Poll::Ready(UNASKED);
        }
        let mut scrap = [0; 1];
        let mut read = ReadBuf::new(&mut scrap);
        // An error is met by reading, too.
        let _ = ready!(self.io.poll_readable(cx));
        Poll::Ready(
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut read)) {
                Err(error) => Broken::Io(error),
                Ok(()) if read.filled().is_empty() => Broken::Cut,
                Ok(()) => UNASKED,
            },
        )
    }

    pub(super) async fn switch(mut self) -> Option<Switched> {
        let written = poll_fn(|cx| self.poll_upload(cx));
        timeout(LET_GO, written).await.ok()?;
        (!self.is_unwritable).then(|| Switched {
            early: self.inbox.buf.freeze(),
            io: self.io,
        })
    }
}
