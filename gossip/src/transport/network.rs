//! Where datagrams, names and the time of day come from: the operating system, or a simulation.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime};

/// The only door to the world outside. Monotonic time is tokio's in both worlds.
#[async_trait]
pub trait Network: fmt::Debug + Send + Sync + 'static {
    /// Binds a UDP socket; port 0 takes a free one.
    async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>>;

    /// All addresses of `HOST:PORT`, in the resolver's order.
    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>>;

    /// Seed for QUIC's own random numbers, for runs that repeat. `None`: from the system.
    fn seed(&self) -> Option<[u8; 32]> {
        None
    }

    /// This replica's wall clock: Unix time in milliseconds, 0 before 1970. It may jump either way.
    ///
    /// Generations, stamps, epochs and warm-ups are made and judged by it. Certificates are not: TLS
    /// reads the operating system's clock.
    fn unix_ms(&self) -> u64 {
        system_ms()
    }
}

/// The operating system's wall clock.
pub(crate) fn system_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Sockets and resolver of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemNetwork;

#[async_trait]
impl Network for SystemNetwork {
    async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(std::net::UdpSocket::bind(address)?)
    }

    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host(name).await?.collect())
    }
}
