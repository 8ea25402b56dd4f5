//! Connections to the admin port and to the Prometheus port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::pages::Outgoing;
use super::{Admin, Port};
use crate::http::client_io::ClientIo;
use crate::listener::Door;
use crate::listener::framing::HeadLimits;
use crate::listener::http1_guard::Guarded;
use crate::listener::waits::Waits;
use crate::seats::{Goodbye, Seat};

/// From the first byte of a request to the end of its head; between requests, and before the first one.
const WAITS: Waits = Waits {
    header: Duration::from_secs(15),
    keep_alive: Duration::from_secs(15),
};
/// Largest head that is taken.
const HEAD: HeadLimits = HeadLimits {
    bytes: 64 << 10,
    lines: 100,
};
/// Longest time that a client may leave its answer unread.
const WRITE_STALL: Duration = Duration::from_secs(30);

/// Serves until the replica is closed: an operator needs the admin port most while something ends.
pub async fn run(door: Door, port: Port, admin: Arc<Admin>, tracker: TaskTracker) {
    loop {
        let (stream, peer, seat) = tokio::select! {
            () = admin.phase.closed() => return,
            next = door.next() => next,
        };
        let admin = Arc::clone(&admin);
        tracker.spawn(async move { serve(stream, peer, port, &seat, admin).await });
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, port: Port, seat: &Seat, admin: Arc<Admin>) {
    let phase = admin.phase.clone();
    let progress = seat.progress();
    let (io, socket) = ClientIo::new(stream, WRITE_STALL, progress.clone());
    let refusals = admin.metrics.refusals.clone();
    let guarded = Guarded::new(io, HEAD, WAITS, progress.clone(), refusals);
    let service = service_fn(|request| {
        let admin = Arc::clone(&admin);
        let in_progress = progress.begin();
        async move {
            let mut answer = admin.answer(port, request).await;
            if answer.status() == StatusCode::UNAUTHORIZED && admin.uninvited.allows_line() {
                tracing::warn!(client = %peer, "a caller of the admin port has no token, or a wrong one");
            }
            if let Outgoing::Right(live) = answer.body_mut() {
                live.hold(in_progress);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Both waits are the guard's.
        .header_read_timeout(None)
        .max_buf_size(HEAD.bytes)
        .max_headers(HEAD.lines)
        .serve_connection(TokioIo::new(guarded), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        // In this order: a request that has come is answered before the connection ends.
        biased;
        result = connection.as_mut() => result,
        () = progress.told_to_leave() => {
            connection.as_mut().graceful_shutdown();
            match seat.goodbye(connection.as_mut()).await {
                Goodbye::Ended(ended) => ended,
                Goodbye::Idle => Ok(()),
                Goodbye::Busy => connection.await,
            }
        }
        () = phase.closed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "admin connection ended");
    }
    if !seat.is_wanted() {
        socket.linger().await;
    }
}
