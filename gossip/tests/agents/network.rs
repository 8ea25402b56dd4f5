//! The network of a simulated host: real QUIC over turmoil's packets.

#[path = "../../../tests/sim/socket.rs"]
mod socket;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use grapevine_gossip::Network;
use quinn::AsyncUdpSocket;

/// The network of the simulated host on which it is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimNetwork {
    pub(crate) seed: u64,
}

#[async_trait]
impl Network for SimNetwork {
    async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        socket::bind(address, Box::new(socket::send_now)).await
    }

    /// Host names of the simulation.
    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        let unknown = || io::Error::other("no such name");
        let (host, port) = name.rsplit_once(':').ok_or_else(unknown)?;
        let port = port.parse().map_err(|_| unknown())?;
        Ok(vec![SocketAddr::new(turmoil::lookup(host), port)])
    }

    fn seed(&self) -> Option<[u8; 32]> {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        Some(seed)
    }
}
