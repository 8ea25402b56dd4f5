//! turmoil's UDP under QUIC.

use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use turmoil::net::UdpSocket;

/// Sends a packet to an address, or does not.
pub(crate) type Send = dyn Fn(&Arc<UdpSocket>, &[u8], SocketAddr) + std::marker::Send + Sync;

/// A socket of the simulated host on which this is called.
pub(crate) async fn bind(
    address: SocketAddr,
    send: Box<Send>,
) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    Ok(Arc::new(SimSocket {
        socket: Arc::new(UdpSocket::bind(address).await?),
        readable: Mutex::new(None),
        send,
    }))
}

/// Passes a packet to turmoil. A packet to a host that does not exist is lost, as on a real network.
pub(crate) fn send_now(socket: &Arc<UdpSocket>, packet: &[u8], to: SocketAddr) {
    let _ = socket.try_send_to(packet, to);
}

type Readable = Pin<Box<dyn Future<Output = io::Result<()>> + std::marker::Send>>;

struct SimSocket {
    socket: Arc<UdpSocket>,
    readable: Mutex<Option<Readable>>,
    send: Box<Send>,
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
        (self.send)(&self.socket, transmit.contents, transmit.destination);
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
                    // The result holds the socket's lock until it is dropped.
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
