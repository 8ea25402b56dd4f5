//! The data port: accepts connections, with TLS or without, and serves HTTP/1.1 and HTTP/2 on them.
//!
//! One tracked task per connection. Limits: connections (a permit before the accept, so that surplus clients
//! wait in the backlog), first byte, head, idle time, streams.

pub mod client_io;
mod quiet;
mod sniff;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use self::client_io::{ClientIo, ClientSocket, Gone};
pub use self::quiet::Quiet;
use self::sniff::{Opening, Protocol};
use self::tls::ListenerTls;
use crate::config::{LimitConfig, TimeoutConfig};
use crate::metrics::Metrics;
use crate::proxy::Proxy;
use crate::shutdown::Phase;

/// After a failed accept (no file descriptors left, mostly) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// Where this replica is between start and end.
    pub phase: Phase,
    /// Keeps clients that speak the wrong protocol from filling the log.
    pub misled: Quiet,
}

/// Accepts until the replica stops accepting.
pub async fn run(listener: TcpListener, front: Arc<Front>, tracker: TaskTracker) {
    let connections = Arc::new(Semaphore::new(front.limits.connections as usize));
    loop {
        let accepted = tokio::select! {
            () = front.phase.draining() => return,
            accepted = accept(&listener, &connections, &front.metrics) => accepted,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                tracker.spawn(serve(stream, peer, permit, Arc::clone(&front)));
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed; going on");
                front.metrics.limit_reached("accept");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
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
    front.metrics.connections.inc();
    if let Err(error) = serve_connection(stream, &front).await {
        tracing::debug!(%peer, error = &*error, "connection ended");
    }
    front.metrics.connections.dec();
}

async fn serve_connection(
    stream: TcpStream,
    front: &Arc<Front>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let opening = sniff::opening(&stream, front.timeouts.first_byte).await?;
    match (&front.tls, opening) {
        (None, Opening::Plain(protocol)) => {
            let (io, socket) = ClientIo::new(stream, front.timeouts.write_stall);
            serve_http(protocol, io, socket, front).await
        }
        (Some(tls), Opening::Tls) => {
            let (io, socket) = ClientIo::new(stream, front.timeouts.write_stall);
            let (io, protocol) = shake_hands(tls, io, front).await?;
            serve_http(protocol, io, socket, front).await
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
    front: &Arc<Front>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match protocol {
        Protocol::Http2 => serve_http2(io, front).await?,
        Protocol::Http1 => serve_http1(io, socket, front).await?,
    }
    Ok(())
}

async fn serve_http1<Io>(
    io: Io,
    socket: ClientSocket,
    front: &Arc<Front>,
) -> Result<(), hyper::Error>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        let (front, gone) = (Arc::clone(front), Gone::watch(socket.clone()));
        async move { front.proxy.serve(request, gone).await }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(front.timeouts.keep_alive.max(front.timeouts.header))
        .max_buf_size(front.limits.header_bytes.as_usize())
        .max_headers(front.limits.headers as usize)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return result,
        () = front.phase.draining() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        result = connection => result,
        () = front.phase.closed() => Ok(()),
    }
}

async fn serve_http2<Io>(io: Io, front: &Arc<Front>) -> Result<(), hyper::Error>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        let front = Arc::clone(front);
        async move { front.proxy.serve(request, Gone::never()).await }
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
