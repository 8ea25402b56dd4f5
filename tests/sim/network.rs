//! turmoil's UDP under QUIC.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;
use grapevine_gossip::Network;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use turmoil::net::UdpSocket;

/// The network of the simulated host on which it is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimNetwork {
    pub(crate) seed: u64,
}

#[async_trait]
impl Network for SimNetwork {
    async fn bind(&self, address: SocketAddr) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let socket = Arc::new(UdpSocket::bind(address).await?);
        Ok(Arc::new(SimSocket {
            socket,
            readable: Mutex::new(None),
        }))
    }

    /// Host names of the simulation, and literal addresses.
    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        let unknown = || io::Error::other("no such name");
        let (host, port) = name.rsplit_once(':').ok_or_else(unknown)?;
        if host.ends_with(".invalid") {
            return Err(unknown());
        }
        let port = port.parse().map_err(|_| unknown())?;
        Ok(vec![SocketAddr::new(turmoil::lookup(host), port)])
    }

    fn seed(&self) -> Option<[u8; 32]> {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        Some(seed)
    }
}

type Readable = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

struct SimSocket {
    socket: Arc<UdpSocket>,
    readable: Mutex<Option<Readable>>,
}

impl std::fmt::Debug for SimSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.socket.fmt(f)
    }
}

impl AsyncUdpSocket for SimSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        // To a host that does not exist: lost, as on a real network.
        let _ = self
            .socket
            .try_send_to(transmit.contents, transmit.destination);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut readable = self.readable.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(waiting) = readable.as_mut() {
                match waiting.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    // It holds the socket's lock until it is dropped.
                    Poll::Ready(result) => {
                        *readable = None;
                        result?;
                    }
                }
            }
            match self.socket.try_recv_from(&mut buffers[0]) {
                Ok((length, from)) => {
                    meta[0] = RecvMeta {
                        addr: from,
                        len: length,
                        stride: length,
                        ecn: None,
                        dst_ip: None,
                    };
                    return Poll::Ready(Ok(1));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let socket = self.socket.clone();
                    *readable = Some(Box::pin(async move { socket.readable().await }));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
