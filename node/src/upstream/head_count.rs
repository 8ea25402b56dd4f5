//! Counts the bytes that a worker sends before the head of its response is whole, in HTTP/2.
//!
//! h2 skips informational heads (1xx) without an end. Here a head, with all 1xx before it, has a limit.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Longest head of a response with all informational ones before it, in bytes.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The count while a body is read.
const NOT_COUNTING: usize = usize::MAX;

/// Shared by a connection and its socket.
#[derive(Debug, Clone)]
pub struct HeadCount {
    bytes: Arc<AtomicUsize>,
    /// What may come besides the limit.
    allowed: Arc<AtomicUsize>,
    limit: usize,
}

impl HeadCount {
    /// Reading fails beyond `limit` bytes.
    pub fn up_to(limit: usize) -> Self {
        Self {
            bytes: Arc::new(AtomicUsize::new(NOT_COUNTING)),
            allowed: Arc::default(),
            limit,
        }
    }

    /// A request goes out: counts from 0.
    pub fn begin(&self) {
        self.allowed.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// So many bytes more may come before the response's head is whole.
    pub fn allow(&self, bytes: usize) {
        self.allowed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The response's head is whole: what follows is not counted.
    pub fn end(&self) {
        self.bytes.store(NOT_COUNTING, Ordering::Relaxed);
    }
}

/// A socket whose heads are counted.
#[derive(Debug)]
pub struct Counted<S> {
    socket: S,
    count: HeadCount,
}

impl<S> Counted<S> {
    /// Counts what `socket` reads.
    pub fn new(socket: S, count: HeadCount) -> Self {
        Self { socket, count }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let so_far = self.count.bytes.load(Ordering::Relaxed);
        if so_far == NOT_COUNTING {
            return Pin::new(&mut self.socket).poll_read(cx, buf);
        }
        // h2 may ask for more while it has a whole head, so its limit has room for what is behind one.
        if so_far >= self.count.limit + self.count.allowed.load(Ordering::Relaxed) {
            let message = "the head of the response is too long";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut self.socket).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        self.count.bytes.store(so_far + read, Ordering::Relaxed);
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn heads_end_at_the_limit_and_bodies_do_not() {
        let (mut worker, socket) = tokio::io::duplex(4 * HEAD_BYTES_MAX);
        let count = HeadCount::up_to(HEAD_BYTES_MAX);
        let mut counted = Counted::new(socket, count.clone());
        let bytes = vec![b'x'; HEAD_BYTES_MAX];
        let mut read = vec![0; HEAD_BYTES_MAX];

        worker.write_all(&bytes).await.expect("room");
        counted.read_exact(&mut read).await.expect("not counted");

        count.begin();
        count.allow(2);
        worker.write_all(&bytes).await.expect("room");
        counted
            .read_exact(&mut read)
            .await
            .expect("up to the limit");
        // What was allowed early counts as well.
        for _ in 0..2 {
            worker.write_all(b"x").await.expect("room");
            assert_eq!(counted.read_u8().await.expect("allowed"), b'x');
        }
        worker.write_all(b"x").await.expect("room");
        let error = counted.read_u8().await.expect_err("above the limit");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);

        count.end();
        assert_eq!(counted.read_u8().await.expect("a body"), b'x');
    }
}
