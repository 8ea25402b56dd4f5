//! Where datagrams and names come from: the operating system, or a simulated network in tests.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime};

/// The only door to the network. Time is tokio's in both worlds.
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
