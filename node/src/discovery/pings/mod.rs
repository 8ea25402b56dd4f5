//! Workers that register by ZeroMQ, as vLLM's engines with P2P NCCL and MoRI-IO do: each sends a ping every three
//! seconds to the one router that it is told of.
//!
//! A ping renews a lease (`leases`), so a worker that reaches one replica is known to all, and one that falls silent
//! gets nothing new before it is removed. What it says beyond its address becomes labels. Nothing is answered; engines
//! wait for no answer.
//!
//! Whoever reaches the port may ping, so everything has a limit: connections, the time of a handshake, silence, sizes,
//! messages a second. A peer that breaks the protocol loses its connection; one that sends what is no ping keeps it.

mod connection;
mod registrar;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use grapevine_placement::named;
use grapevine_transfer::ping::Ping;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use crate::log_limit::LogLimit;
use crate::metrics::{Counter, Family, ResultLabels, metrics};
use crate::shutdown::Phase;

pub use registrar::{LeaseRegistrar, NotRegistered};

/// The source's name in the registry.
pub const SOURCE: &str = "ping";
/// Pause after a connection could not be accepted: mostly because there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

metrics! {
    /// Metrics of pings.
    pub PingMetrics {
        pings: Family<ResultLabels, Counter>,
            "pings", "Pings of workers, and what came in their place, by result";
    }
}

named! {
    /// What became of a ping, or of what came in its place.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum PingResult {
        /// The worker's lease lasts on.
        Renewed = "renewed",
        /// It cannot be a worker here: its address, or the registry is full.
        Refused = "refused",
        /// Neither prefill nor decode.
        UnknownType = "unknown_type",
        /// No ping, or one with values out of range.
        Malformed = "malformed",
        /// The connection was made to wait, because it sent too many.
        TooOften = "too_often",
        /// Beyond the limits of sizes; the connection was closed.
        TooLarge = "too_large",
        /// No ZeroMQ, or not as it should be; the connection was closed.
        Violation = "violation",
        /// The connection was closed after a handshake that did not end, or silence.
        Silent = "silent",
        /// The connection was closed at once: there are as many as there may be.
        NoRoom = "no_room",
    }
}

/// Where pings lead.
pub trait Register: Send + Sync + 'static {
    /// Registers the worker that sent this, or renews its lease.
    /// Errors: [`NotRegistered`]: it cannot be a worker here.
    fn register(&self, ping: Ping) -> impl Future<Output = Result<(), NotRegistered>> + Send;
}

/// The listener's parts, for all of its connections.
pub struct Pings<R> {
    register: R,
    metrics: PingMetrics,
    connections_max: usize,
    log: LogLimit,
}

impl<R: Register> Pings<R> {
    /// A listener that is yet to be run.
    pub fn new(register: R, metrics: PingMetrics, connections_max: usize) -> Arc<Self> {
        for result in PingResult::ALL {
            let labels = ResultLabels {
                result: result.as_str(),
            };
            drop(metrics.pings.get_or_create(&labels));
        }
        Arc::new(Self {
            register,
            metrics,
            connections_max,
            log: LogLimit::default(),
        })
    }

    /// Hears pings until the replica ends.
    pub async fn run(self: Arc<Self>, socket: TcpListener, phase: Phase) {
        // Its end ends the connections.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = phase.closed() => return,
                Some(_) = connections.join_next() => {}
                accepted = socket.accept() => match accepted {
                    Ok(_) if connections.len() >= self.connections_max => self.count(PingResult::NoRoom),
                    Ok((stream, peer)) => {
                        let pings = Arc::clone(&self);
                        connections.spawn(async move { pings.serve(stream, peer).await });
                    }
                    Err(error) => {
                        if self.log.allows_line() {
                            tracing::warn!(%error, "a connection for pings could not be accepted");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    fn count(&self, result: PingResult) {
        let result = result.as_str();
        let labels = ResultLabels { result };
        self.metrics.pings.get_or_create(&labels).inc();
    }
}
