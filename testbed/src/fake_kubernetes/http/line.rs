//! A socket that can fall silent: no byte goes either way any more, and nobody is told. That is what a client sees of a
//! peer that lost power, or of a middlebox that forgot the connection.
//!
//! Or that is reset when it is dropped, as by a process that was killed with bytes unread, or a balancer that starts anew.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::fake_kubernetes::state::State;

pub(super) struct Line {
    stream: TcpStream,
    state: Arc<State>,
    /// Commands `half-open` before it was accepted.
    born: u64,
    /// Commands `reset` before it was accepted.
    resets: u64,
}

impl Line {
    pub(super) fn new(stream: TcpStream, state: Arc<State>) -> Self {
        let born = state.silenced.load(Ordering::SeqCst);
        let resets = *state.resets.borrow();
        Self {
            stream,
            state,
            born,
            resets,
        }
    }

    /// Nothing wakes a silent line, so a poll of it may just be pending: it stays so until the server ends.
    fn is_silent(&self) -> bool {
        self.state.silenced.load(Ordering::SeqCst) > self.born
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if *self.state.resets.borrow() > self.resets
            && let Err(e) = self.stream.set_zero_linger()
        {
            tracing::debug!("no reset: {e}");
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_silent() {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
