//! An address that leads to a replica, for one other: what goes there can be held up, and what comes back passes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// It stands before a socket.
pub(crate) struct Gate {
    /// Where the other one dials.
    pub(crate) address: SocketAddr,
    leads: watch::Sender<SocketAddr>,
    is_closed: Arc<AtomicBool>,
    _task: AbortOnDropHandle<()>,
}

impl Gate {
    /// It leads nowhere yet.
    pub(crate) async fn new() -> Self {
        let (public, inner) = (bind().await, bind().await);
        let address = public.local_addr().expect("bound");
        let is_closed = Arc::<AtomicBool>::default();
        let (leads, target) = watch::channel(address);
        let holds = is_closed.clone();
        let task = tokio::spawn(async move {
            let (mut there, mut back) = ([0; 2048], [0; 2048]);
            let mut user = address;
            loop {
                // What is lost is lost, as on a network.
                tokio::select! {
                    Ok((bytes, from)) = public.recv_from(&mut there) => {
                        user = from;
                        let to = *target.borrow();
                        if to != address && !holds.load(Ordering::Relaxed) {
                            let _ = inner.send_to(&there[..bytes], to).await;
                        }
                    }
                    Ok((bytes, _)) = inner.recv_from(&mut back) => {
                        let _ = public.send_to(&back[..bytes], user).await;
                    }
                }
            }
        });
        Self {
            address,
            leads,
            is_closed,
            _task: AbortOnDropHandle::new(task),
        }
    }

    pub(crate) fn leads_to(&self, target: SocketAddr) {
        self.leads.send_replace(target);
    }

    pub(crate) fn close(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Relaxed);
    }
}

async fn bind() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await;
    socket.expect("loopback has free ports")
}
