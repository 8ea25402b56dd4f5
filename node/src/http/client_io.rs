//! The client's socket: bytes for its server, and the answer to "is the client still there?" for the handler.
//!
//! A server alone misses a client that leaves after it sent one byte too many (a stray newline, a pipelined
//! request): it stops reading until the answer is written, so neither FIN nor RST is seen, and the worker
//! goes on generating for nobody. The socket's readiness shows it, whatever is unread. Hence the shared socket.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::client_body::LINGER_BYTES;
use super::progress::{InProgress, Progress};
use crate::lag::{LISTEN_FIRST, overslept};

/// How often a client with unread bytes is looked at. Without unread bytes the kernel's event is enough.
const UNREAD_POLL: Duration = Duration::from_millis(50);
/// How long, up to [`LINGER_BYTES`], a client is listened to after the last answer.
const LINGER: Duration = Duration::from_secs(1);

/// The client's socket as its server sees it.
#[derive(Debug)]
pub struct ClientIo {
    /// Reads through tokio's own half: it knows that a short read leaves nothing to try again for.
    socket: OwnedReadHalf,
    write_stall_max: Duration,
    /// Runs while a write is blocked.
    stalled: Option<Pin<Box<Sleep>>>,
    progress: Progress,
}

impl ClientIo {
    /// Wraps a socket; a write that makes no progress for `write_stall_max` fails. The second value is for
    /// [`Gone::watch`].
    pub fn new(
        stream: TcpStream,
        write_stall_max: Duration,
        progress: Progress,
    ) -> (Self, ClientSocket) {
        let (socket, watched) = stream.into_split();
        let io = Self {
            socket,
            write_stall_max,
            stalled: None,
            progress,
        };
        (io, ClientSocket(Arc::new(watched)))
    }

    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let stream = self.socket.as_ref();
            if stream.poll_write_ready(cx)?.is_pending() {
                return self.poll_stalled(cx);
            }
            match write(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    if self.stalled.take().is_some() {
                        self.progress.set_write_blocked(false);
                    }
                    return Poll::Ready(result);
                }
            }
        }
    }

    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let max = self.write_stall_max;
        let progress = &self.progress;
        let timer = self.stalled.get_or_insert_with(|| {
            progress.set_write_blocked(true);
            Box::pin(sleep(max))
        });
        ready!(timer.as_mut().poll(cx));
        while overslept(timer.deadline()) {
            // What the client took meanwhile is not known yet.
            timer.as_mut().reset(Instant::now() + LISTEN_FIRST);
            ready!(timer.as_mut().poll(cx));
        }
        self.progress.set_stalled();
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client took no byte for the write-stall limit",
        )))
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = socket2::SockRef::from(self.socket.as_ref());
        Poll::Ready(socket.shutdown(std::net::Shutdown::Write))
    }
}

/// The socket of one connection, for looking at its readiness. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClientSocket(Arc<OwnedWriteHalf>);

impl ClientSocket {
    /// Ends the connection by a reset, for what was sent last is no whole answer and must not look like one. Nothing else
    /// may hold the socket.
    pub fn reset(self) {
        let stream: &TcpStream = self.0.as_ref().as_ref();
        // A socket that refuses this is closed already.
        let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
        if let Some(half) = Arc::into_inner(self.0) {
            // Dropped, it would say the end first.
            half.forget();
        }
    }

    /// Says the end, and takes for a moment what the client still sends: closing a socket with unread bytes resets
    /// it, and a reset can destroy the last answer before the client has read it (RFC 9112, section 9.6).
    pub async fn linger(&self) {
        let stream: &TcpStream = self.0.as_ref().as_ref();
        if is_closed(stream) {
            return;
        }
        // It may have been said already.
        let _ = socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write);
        let discarding = async {
            let mut left = LINGER_BYTES;
            while left > 0 && stream.readable().await.is_ok() {
                // Not across an await: every connection's task would have room for it.
                let mut scrap = [0; 4096];
                match stream.try_read(&mut scrap) {
                    Ok(0) => return,
                    Ok(bytes) => left = left.saturating_sub(bytes),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        };
        // A client that has not closed by then is cut.
        let _ = timeout(LINGER, discarding).await;
    }
}

/// Tells when an HTTP/1 client has left. One per request.
///
/// A half-close counts as leaving: vLLM's clients never half-close, and a client that crashed looks the same.
#[derive(Debug)]
pub struct Gone {
    socket: Option<ClientSocket>,
    recheck: Option<Pin<Box<Sleep>>>,
    /// Lasts as long as the request.
    _progress: Option<InProgress>,
}

impl Gone {
    /// Watches an HTTP/1 connection's socket, for a request that is in progress until this is dropped.
    pub fn watch(socket: ClientSocket, progress: InProgress) -> Self {
        Self {
            socket: Some(socket),
            recheck: None,
            _progress: Some(progress),
        }
    }

    /// Watches nothing.
    pub fn never() -> Self {
        Self {
            socket: None,
            recheck: None,
            _progress: None,
        }
    }

    /// Ready once the client has left. Must be polled from the task that serves the connection, which shares
    /// its one read waker.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(ClientSocket(socket)) = &self.socket else {
            return Poll::Pending;
        };
        let stream: &TcpStream = socket.as_ref().as_ref();
        loop {
            if let Some(timer) = &mut self.recheck {
                ready!(timer.as_mut().poll(cx));
                self.recheck = None;
            }
            if stream.poll_read_ready(cx).is_pending() {
                return Poll::Pending;
            }
            if is_closed(stream) {
                return Poll::Ready(());
            }
            self.recheck = Some(Box::pin(sleep(UNREAD_POLL)));
        }
    }
}

/// Whether the other side will send no more, or the connection is broken, whatever is unread: the socket's current
/// readiness, without waiting.
pub(crate) fn is_closed(stream: &TcpStream) -> bool {
    let interest = Interest::READABLE | Interest::ERROR;
    let readiness = std::pin::pin!(stream.ready(interest));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    match readiness.poll(&mut cx) {
        Poll::Ready(Ok(ready)) => ready.is_read_closed() || ready.is_error(),
        Poll::Ready(Err(_)) => true,
        Poll::Pending => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::{advance, timeout};

    async fn pair() -> (TcpStream, ClientIo, ClientSocket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let stream = accepted.expect("accept").0;
        let (io, socket) = ClientIo::new(stream, Duration::from_millis(50), Progress::default());
        (client.expect("connect"), io, socket)
    }

    async fn assert_notices(client: TcpStream, socket: ClientSocket) {
        let mut gone = Gone::watch(socket, Progress::default().begin());
        let quiet = timeout(Duration::from_millis(120), poll_fn(|cx| gone.poll(cx))).await;
        assert!(quiet.is_err(), "a client that is there was called gone");
        drop(client);
        timeout(Duration::from_secs(5), poll_fn(|cx| gone.poll(cx)))
            .await
            .expect("the client's leaving was not noticed");
    }

    #[tokio::test]
    async fn leaving_is_noticed() {
        let (client, _io, socket) = pair().await;
        assert_notices(client, socket).await;
    }

    #[tokio::test]
    async fn leaving_is_noticed_behind_unread_bytes() {
        let (mut client, io, socket) = pair().await;
        client.write_all(b"\n").await.expect("extra byte");
        io.socket.readable().await.expect("readable");
        assert_notices(client, socket).await;
    }

    #[tokio::test]
    async fn a_body_that_nobody_reads_resets_no_connection() {
        let (mut client, io, socket) = pair().await;
        let ending = async {
            socket.linger().await;
            drop((io, socket));
        };
        let sending = async {
            client.write_all(&vec![0; 4 << 20]).await.expect("taken");
            client.read_to_end(&mut Vec::new()).await.expect("an end");
            drop(client);
        };
        tokio::join!(ending, sending);
    }

    #[tokio::test]
    async fn a_reset_is_no_end() {
        let (mut client, mut io, socket) = pair().await;
        io.write_all(b"half of it").await.expect("taken");
        drop(io);
        socket.reset();
        let mut read = Vec::new();
        let ended = client.read_to_end(&mut read).await;
        let error = ended.expect_err("the end would pass for that of the answer");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn who_overslept_the_stall_limit_looks_at_the_socket_first() {
        let (_client, mut io, _socket) = pair().await;
        io.write_stall_max = Duration::from_secs(5);
        let mut write = async || {
            poll_fn(|cx| Poll::Ready(Pin::new(&mut io).poll_write(cx, &[0; 1 << 16]))).await
        };
        while write().await.is_ready() {}
        advance(Duration::from_secs(60)).await;
        assert!(write().await.is_pending(), "it was stopped, too");
        advance(LISTEN_FIRST * 2).await;
        let Poll::Ready(Err(error)) = write().await else {
            panic!("nothing was taken");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn blocked_write_fails_after_the_stall_limit() {
        let (client, mut io, _socket) = pair().await;
        let progress = io.progress.clone();
        let block = vec![0_u8; 1 << 20];
        let error = loop {
            match io.write_all(&block).await {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(progress.has_stalled());
        drop(client);
    }
}
