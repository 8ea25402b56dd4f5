//! The data port: accepts connections, with TLS or without, and serves HTTP/1.1 and HTTP/2 on them.
//!
//! One tracked task per connection. Limits: connections (a permit before the accept, so that surplus clients
//! wait in the backlog), first byte, head, idle time, streams, bytes that wait in the kernel.

pub mod client_io;
pub mod framing;
pub mod guard;
mod quiet;
mod sniff;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ipnet::IpNet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use self::client_io::{ClientIo, ClientSocket, Gone};
use self::framing::HeadLimits;
use self::guard::{Guarded, Progress, Waits};
pub use self::quiet::Quiet;
use self::sniff::{Opening, Protocol};
use self::tls::ListenerTls;
use crate::config::{LimitConfig, TimeoutConfig};
use crate::descriptors;
use crate::metrics::Metrics;
use crate::proxy::Proxy;
use crate::proxy::forwarded::Peer;
use crate::shutdown::{Cutoff, Phase};

/// After a failed accept (no file descriptors left, mostly) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Nobody waits in the queue if nobody came for so long.
const LAST_CALL_PAUSE: Duration = Duration::from_millis(20);
/// For how long connections that wait in the queue are accepted when the port is about to close.
const LAST_CALL: Duration = Duration::from_millis(500);
/// Bytes of an answer that may wait unsent in the kernel. It would otherwise keep up to 4 MiB for each client that
/// does not read; what is on its way to a client that does is not limited by this.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// Connections that may wait to be accepted; the system may take fewer (`net.core.somaxconn`). With the usual 128, a
/// thousand clients that come over from a replica that died would meet a full queue, and wait for a second or more.
const BACKLOG: u32 = 4096;

/// Listens on an address. Needs a runtime.
///
/// # Errors
/// The system's, such as `AddrInUse`.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restarted replica takes its port at once, although connections of its last life still linger there.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What every connection is served with.
#[derive(Debug)]
pub struct Front {
    /// Handles the requests.
    pub proxy: Arc<Proxy>,
    /// TLS, where clients are to speak it.
    pub tls: Option<Arc<ListenerTls>>,
    /// Time limits.
    pub timeouts: TimeoutConfig,
    /// Sizes and counts.
    pub limits: LimitConfig,
    /// Proxies whose word about a request's origin counts.
    pub trusted_proxies: Vec<IpNet>,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// Where this replica is between start and end.
    pub phase: Phase,
    /// Keeps clients that speak the wrong protocol from filling the log.
    pub misled: Quiet,
}

/// Accepts until the replica stops accepting, and what waits in the queue then.
pub async fn run(listener: TcpListener, front: Arc<Front>, tracker: TaskTracker) {
    let most = descriptors::connections_for(front.limits.connections);
    let connections = Arc::new(Semaphore::new(most as usize));
    let failures = Quiet::default();
    loop {
        let accepted = tokio::select! {
            () = front.phase.draining() => break,
            accepted = accept(&listener, &connections, &front.metrics) => accepted,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                tracker.spawn(serve(stream, peer, permit, Arc::clone(&front)));
            }
            Err(error) => {
                if failures.is_over() {
                    tracing::warn!(%error, "accept failed; going on");
                }
                front.metrics.limit_reached("accept");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Whoever has connected by now believes to be heard: closing the socket would reset all that wait in its queue.
    let last_call = async {
        while let Ok(Ok((stream, peer, permit))) = timeout(
            LAST_CALL_PAUSE,
            accept(&listener, &connections, &front.metrics),
        )
        .await
        {
            tracker.spawn(serve(stream, peer, permit, Arc::clone(&front)));
        }
    };
    let _ = timeout(LAST_CALL, last_call).await;
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
    metrics: &Metrics,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    if connections.available_permits() == 0 {
        metrics.limit_reached("connections");
    }
    let permit = Arc::clone(connections)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    _permit: OwnedSemaphorePermit,
    front: Arc<Front>,
) {
    let _open = Open::counted(&front.metrics);
    if let Err(error) = serve_connection(stream, peer, &front).await {
        tracing::debug!(%peer, error = &*error, "connection ended");
    }
}

/// An open connection; counted out however it ends.
struct Open<'a>(&'a Metrics);

impl<'a> Open<'a> {
    fn counted(metrics: &'a Metrics) -> Self {
        metrics.connections.inc();
        Self(metrics)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    front: &Arc<Front>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    let opening = sniff::opening(&stream, front.timeouts.first_byte).await;
    if matches!(&opening, Err(error) if error.kind() == io::ErrorKind::TimedOut) {
        front.metrics.limit_reached("first_byte");
    }
    let opening = opening?;
    let peer = Peer::new(peer.ip(), &front.trusted_proxies);
    match (&front.tls, opening) {
        (None, Opening::Plain(protocol)) => {
            let (io, socket) = ClientIo::new(stream, front.timeouts.write_stall);
            serve_http(protocol, io, socket, peer, front).await
        }
        (Some(tls), Opening::Tls) => {
            let (io, socket) = ClientIo::new(stream, front.timeouts.write_stall);
            // On the heap: the task of a connection without TLS must not have the room that one with it needs.
            let (io, protocol) = Box::pin(shake_hands(tls, io, front)).await?;
            serve_http(protocol, Box::new(io), socket, peer, front).await
        }
        (tls, _) => {
            drop(stream);
            misled(tls.is_some(), front);
            Ok(())
        }
    }
}

async fn shake_hands(
    tls: &ListenerTls,
    io: ClientIo,
    front: &Front,
) -> io::Result<(TlsStream<ClientIo>, Protocol)> {
    let shaken = tls.accept(io, front.timeouts.tls_handshake).await;
    let result = match &shaken {
        Ok(_) => "ok",
        Err(error) if error.kind() == io::ErrorKind::TimedOut => "late",
        Err(_) => "failed",
    };
    front.metrics.tls.handshake(result);
    shaken
}

/// A client that spoke the wrong protocol: counted, and said in the log from time to time.
fn misled(with_tls: bool, front: &Front) {
    let (result, what) = if with_tls {
        (
            "not_tls",
            "a client spoke plain HTTP to the data port, which has TLS: use https://",
        )
    } else {
        (
            "unexpected_tls",
            "a client spoke TLS to the data port, which has none: use http://, or set --ssl-certfile and \
             --ssl-keyfile",
        )
    };
    front.metrics.tls.handshake(result);
    if front.misled.is_over() {
        tracing::warn!("{what}");
    }
}

async fn serve_http<Io>(
    protocol: Protocol,
    io: Io,
    socket: ClientSocket,
    peer: Peer,
    front: &Arc<Front>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let served = match protocol {
        Protocol::Http2 => Box::pin(serve_http2(io, peer, front)).await,
        Protocol::Http1 => serve_http1(io, socket.clone(), peer, front).await,
    };
    tokio::select! {
        () = socket.linger() => {}
        () = front.phase.closed() => {}
    }
    Ok(served?)
}

async fn serve_http1<Io>(
    io: Io,
    socket: ClientSocket,
    peer: Peer,
    front: &Arc<Front>,
) -> Result<(), hyper::Error>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let progress = Progress::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        peer.rewrite(request.headers_mut());
        let gone = Gone::watch(socket.clone(), progress.begin());
        let cutoff = Cutoff::of_connection(&front.phase);
        let front = Arc::clone(front);
        async move { front.proxy.serve(request, gone, cutoff).await }
    });
    let head = HeadLimits {
        bytes: front.limits.header_bytes.as_usize(),
        lines: front.limits.headers as usize,
    };
    let waits = Waits {
        header: front.timeouts.header,
        keep_alive: front.timeouts.keep_alive,
    };
    let metrics = Arc::clone(&front.metrics);
    let guarded = Guarded::new(io, head, waits, progress.clone(), metrics);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Both waits are the guard's.
        .header_read_timeout(None)
        .max_buf_size(head.bytes)
        .max_headers(head.lines)
        .serve_connection(TokioIo::new(guarded), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // In this order: told to end, hyper closes a connection of which it has read nothing, or that is idle, although
        // a request may be waiting in its socket.
        biased;
        result = connection.as_mut() => return result,
        () = front.phase.draining() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        result = connection.as_mut() => return result,
        // hyper asks the answer for more when it is polled again, which is when it gives its last word.
        () = front.phase.cutting() => {}
    }
    tokio::select! {
        result = connection => result,
        () = front.phase.closed() => Ok(()),
    }
}

async fn serve_http2<Io>(io: Io, peer: Peer, front: &Arc<Front>) -> Result<(), hyper::Error>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        peer.rewrite(request.headers_mut());
        let front = Arc::clone(front);
        let cutoff = Cutoff::of_task(&front.phase);
        async move { front.proxy.serve(request, Gone::never(), cutoff).await }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(front.limits.streams_per_connection)
        .max_header_list_size(u32::try_from(front.limits.header_bytes.0).unwrap_or(u32::MAX))
        .keep_alive_interval(front.timeouts.keep_alive)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return result,
        // GOAWAY already while settling: a client that keeps one connection for hours would never leave.
        () = front.phase.leaving() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        result = connection => result,
        () = front.phase.closed() => Ok(()),
    }
}
