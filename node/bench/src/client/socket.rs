//! A connection, with or without TLS, that is read to its end also after it can no longer be written to.
//!
//! A server that refuses a large body answers early, and closes: writing then fails while its answer is already here.
//! hyper would report the failure of the write; the answer (413, say) is what a client needs to know.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// What is written after the first failure is dropped; reading says how the connection ended.
pub(super) struct Socket {
    inner: Box<dyn Duplex>,
    is_broken: Broken,
}

/// Whether writing to a connection has failed.
#[derive(Debug, Clone, Default)]
pub(super) struct Broken(Arc<AtomicBool>);

impl Broken {
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Socket {
    pub(super) fn new(inner: impl Duplex + 'static) -> (Self, Broken) {
        let is_broken = Broken::default();
        let socket = Self {
            inner: Box::new(inner),
            is_broken: is_broken.clone(),
        };
        (socket, is_broken)
    }

    /// Does `io`, or as if it had been done with `done` where that cannot be done any more.
    fn unless_broken<T>(
        &mut self,
        done: T,
        io: impl FnOnce(Pin<&mut dyn Duplex>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.is_broken.is_set() {
            return Poll::Ready(Ok(done));
        }
        match io(Pin::new(&mut *self.inner)) {
            Poll::Ready(Err(_)) => {
                self.is_broken.0.store(true, Ordering::Relaxed);
                Poll::Ready(Ok(done))
            }
            other => other,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.unless_broken(buf.len(), |io| io.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = bufs.iter().map(|buf| buf.len()).sum();
        self.unless_broken(all, |io| io.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.unless_broken((), |io| io.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.unless_broken((), |io| io.poll_shutdown(cx))
    }
}
