//! Accepts the connections of one port, and seats them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::keep_alive;
use crate::log_limit::LogLimit;
use crate::metrics::refusals::RefusalMetrics;
use crate::seats::{Seat, Seats};
use crate::upstream::is_own_lack;

/// After a failed accept (no file descriptors left, mostly) before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The same when a connection was asked to leave, which takes a moment.
const LEAVE_PAUSE: Duration = Duration::from_millis(10);
/// While all places are taken, between two looks whether a connection has become idle.
const FULL_LOOK: Duration = Duration::from_millis(100);

/// Where connections of one port come in.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    seats: Arc<Seats>,
    refusals: RefusalMetrics,
    failures: LogLimit,
}

impl Door {
    /// `listener` is bound.
    pub fn new(listener: TcpListener, seats: Arc<Seats>, refusals: RefusalMetrics) -> Self {
        if let Err(error) = keep_alive::OF_REQUESTS.set(&listener) {
            tracing::warn!(%error, "clients that vanish without a word will not be noticed");
        }
        Self {
            listener,
            seats,
            refusals,
            failures: LogLimit::default(),
        }
    }

    /// The next connection. Failures of the system are logged, counted, and waited out; surplus clients wait in the
    /// backlog. Cancel safe.
    pub async fn next(&self) -> (TcpStream, SocketAddr, Seat) {
        loop {
            match self.accept().await {
                Ok((stream, peer, Some(seat))) => return (stream, peer, seat),
                // Its address is at its limit: it is closed without an answer.
                Ok((_, _, None)) => self.refusals.limit_reached("connections_per_address"),
                // Its client has left the queue: nothing is short.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if self.failures.allows_line() {
                        tracing::warn!(%error, "accept failed; going on");
                    }
                    self.refusals.limit_reached("accept");
                    // What a sandbox forbids is no more allowed with fewer connections.
                    let relieved = is_own_lack(&error) && self.seats.relieve();
                    sleep(if relieved { LEAVE_PAUSE } else { ACCEPT_PAUSE }).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr, Option<Seat>)> {
        let place = loop {
            if self.seats.is_full() {
                self.seats.free_one();
            }
            if let Ok(place) = timeout(FULL_LOOK, self.seats.place()).await {
                break place;
            }
        };
        let (stream, peer) = self.listener.accept().await?;
        let seat = self.seats.take(place, peer.ip());
        Ok((stream, peer, seat))
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::seats::{Counts, SeatLimits};

    /// A client's host may vanish while nothing is sent to it: in a silent prefill, or between two requests.
    #[tokio::test]
    async fn what_comes_in_is_looked_at_when_it_is_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("bound");
        let limits = SeatLimits {
            capacity: 1,
            share_percent: 50,
            per_address: None,
            proxies: Vec::new(),
        };
        let seats = Seats::new(limits, Counts::default());
        let door = Door::new(
            listener,
            seats,
            RefusalMetrics::register(&mut Registry::default()),
        );
        let (_client, (stream, _, _seat)) = tokio::join!(TcpStream::connect(at), door.next());
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.keepalive().expect("a socket"));
        let after = socket.tcp_keepalive_time().expect("a socket");
        assert_eq!(after, keep_alive::OF_REQUESTS.after);
    }
}
