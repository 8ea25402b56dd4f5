//! A bad network in user space, which needs no root: a UDP relay in front of each replica's gossip socket.
//!
//! Others reach the replica at the relay's address only (`--gossip-advertise`). Each sender has a socket of
//! its own towards the replica, on which answers return; its address shows which replica it is. A pair of
//! replicas has two connections, one dialled by each, and every packet of both passes exactly one relay: that
//! of the replica that was dialled.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use parking_lot::RwLock;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::link::{Copies, Links};

/// Largest UDP payload.
const PACKET_BYTES: usize = 65_536;
/// Senders that one relay knows; packets of further ones are dropped.
const SENDERS_MAX: usize = 64;
/// Packets of one relay that are held back at once; further ones are dropped.
const HELD_MAX: usize = 10_000;

/// State that all relays share: addresses of replicas, and the state of the links.
#[derive(Debug, Default)]
pub(super) struct Network {
    links: RwLock<Links>,
    /// Gossip sockets by the numbers of their replicas.
    places: RwLock<HashMap<SocketAddr, usize>>,
    /// Packets dropped because a limit was reached, not by a fault.
    overflowed: AtomicU64,
}

impl Network {
    pub(super) fn change(&self, change: impl FnOnce(&mut Links)) {
        change(&mut self.links.write());
    }

    fn place(&self, replica: usize, address: SocketAddr) {
        let mut places = self.places.write();
        places.retain(|_, number| *number != replica);
        places.insert(address, replica);
    }

    fn who(&self, address: SocketAddr) -> Option<usize> {
        let places = self.places.read();
        places.get(&address).copied()
    }

    fn copies(&self, from: Option<usize>, to: Option<usize>) -> Copies {
        let links = self.links.read();
        links.copies(from, to, &mut rand::rng())
    }

    fn overflow(&self) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Packets dropped because a limit was reached.
    pub(super) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }
}

/// The relay in front of one replica.
pub(super) struct Shaper {
    replica: usize,
    public: SocketAddr,
    network: Arc<Network>,
    /// The replica's gossip socket, once it is known.
    target: Arc<RwLock<Option<SocketAddr>>>,
    _task: AbortOnDropHandle<()>,
}

impl Shaper {
    pub(super) async fn start(replica: usize, network: Arc<Network>) -> anyhow::Result<Self> {
        let public = bind().await.context("cannot open a UDP socket")?;
        let address = public.local_addr().context("socket has no address")?;
        let target = Arc::default();
        let relay = Relay {
            replica,
            public: Arc::new(public),
            network: Arc::clone(&network),
            target: Arc::clone(&target),
            held: Arc::new(Semaphore::new(HELD_MAX)),
        };
        Ok(Self {
            replica,
            public: address,
            network,
            target,
            _task: AbortOnDropHandle::new(tokio::spawn(relay.run())),
        })
    }

    /// The address at which other replicas reach this one.
    pub(super) fn address(&self) -> SocketAddr {
        self.public
    }

    /// Sets the replica's gossip socket, once it is started.
    pub(super) fn found(&self, gossip: SocketAddr) {
        self.network.place(self.replica, gossip);
        *self.target.write() = Some(gossip);
    }
}

async fn bind() -> io::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await
}

struct Relay {
    replica: usize,
    public: Arc<UdpSocket>,
    network: Arc<Network>,
    target: Arc<RwLock<Option<SocketAddr>>>,
    held: Arc<Semaphore>,
}

impl Relay {
    async fn run(self) {
        let relay = Arc::new(self);
        let mut senders: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
        let mut answers = JoinSet::new();
        let mut packet = vec![0; PACKET_BYTES];
        loop {
            let (bytes, sender) = match relay.public.recv_from(&mut packet).await {
                Ok(received) => received,
                // An ICMP error of an earlier send: receive the next packet.
                Err(_) => continue,
            };
            let target = *relay.target.read();
            let Some(target) = target else {
                continue;
            };
            let inner = match senders.get(&sender) {
                Some(inner) => Arc::clone(inner),
                None if senders.len() >= SENDERS_MAX => {
                    relay.network.overflow();
                    continue;
                }
                None => {
                    let Ok(inner) = bind().await else {
                        relay.network.overflow();
                        continue;
                    };
                    let inner = Arc::new(inner);
                    senders.insert(sender, Arc::clone(&inner));
                    answers.spawn(Arc::clone(&relay).answer(Arc::clone(&inner), sender));
                    inner
                }
            };
            let copies = relay
                .network
                .copies(relay.network.who(sender), Some(relay.replica));
            relay.pass(&packet[..bytes], &inner, target, copies).await;
        }
    }

    /// Relays what the replica sends to one sender.
    async fn answer(self: Arc<Self>, inner: Arc<UdpSocket>, sender: SocketAddr) {
        let mut packet = vec![0; PACKET_BYTES];
        loop {
            let Ok((bytes, _)) = inner.recv_from(&mut packet).await else {
                continue;
            };
            let to = self.network.who(sender);
            let copies = self.network.copies(Some(self.replica), to);
            self.pass(&packet[..bytes], &self.public, sender, copies)
                .await;
        }
    }

    async fn pass(&self, packet: &[u8], socket: &Arc<UdpSocket>, to: SocketAddr, copies: Copies) {
        for delay in copies.into_iter().flatten() {
            if delay.is_zero() {
                // A full buffer or a closed port: the packet is lost, as on a real network.
                let _ = socket.send_to(packet, to).await;
                continue;
            }
            let Ok(permit) = Arc::clone(&self.held).try_acquire_owned() else {
                self.network.overflow();
                continue;
            };
            let (socket, packet) = (Arc::clone(socket), packet.to_vec());
            tokio::spawn(async move {
                sleep(delay).await;
                let _ = socket.send_to(&packet, to).await;
                drop(permit);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::chaos::fault::Link;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Two replicas, each behind its relay.
    struct Two {
        network: Arc<Network>,
        relays: [Shaper; 2],
        sockets: [UdpSocket; 2],
    }

    async fn two() -> Two {
        let network = Arc::new(Network::default());
        let start = |number| Shaper::start(number, Arc::clone(&network));
        let relays = [start(1).await.expect("UDP"), start(2).await.expect("UDP")];
        let sockets = [bind().await.expect("UDP"), bind().await.expect("UDP")];
        for (relay, socket) in relays.iter().zip(&sockets) {
            relay.found(socket.local_addr().expect("it is bound"));
        }
        Two {
            network,
            relays,
            sockets,
        }
    }

    /// Sends from replica `from` to the other one.
    async fn send(two: &Two, from: usize, text: &str) {
        let to = two.relays[1 - from].address();
        let sent = two.sockets[from].send_to(text.as_bytes(), to).await;
        sent.expect("loopback takes packets");
    }

    async fn receive(two: &Two, at: usize) -> (String, SocketAddr) {
        let mut bytes = [0; 100];
        let received = timeout(LIMIT, two.sockets[at].recv_from(&mut bytes)).await;
        let (count, from) = received.expect("a packet comes").expect("it is read");
        (String::from_utf8_lossy(&bytes[..count]).into_owned(), from)
    }

    #[tokio::test]
    async fn packets_and_their_answers_pass() {
        let two = two().await;
        send(&two, 0, "question").await;
        let (text, from) = receive(&two, 1).await;
        assert_eq!(text, "question");
        two.sockets[1].send_to(b"answer", from).await.expect("sent");
        let (text, from) = receive(&two, 0).await;
        assert_eq!((text.as_str(), from), ("answer", two.relays[1].address()));
    }

    #[tokio::test]
    async fn a_one_way_cut_takes_questions_one_way_and_answers_the_other() {
        let two = two().await;
        send(&two, 1, "before").await;
        let (_, back) = receive(&two, 0).await;
        two.network.change(|links| links.cut(1, 2, true));
        // What replica 1 sends is lost, on the connection that it dialled and on that of replica 2.
        send(&two, 0, "lost").await;
        two.sockets[0].send_to(b"lost", back).await.expect("sent");
        send(&two, 1, "passes").await;
        assert_eq!(receive(&two, 0).await.0, "passes");
        two.network.change(Links::heal);
        send(&two, 0, "healed").await;
        assert_eq!(receive(&two, 1).await.0, "healed", "nothing came before");
    }

    #[tokio::test]
    async fn late_packets_come_and_copies_come_twice() {
        let two = two().await;
        let link = Link {
            delay: Duration::from_millis(30),
            duplicate: 1.0,
            ..Link::default()
        };
        two.network.change(|links| links.impair(2, link));
        send(&two, 0, "twice").await;
        assert_eq!(receive(&two, 1).await.0, "twice");
        assert_eq!(receive(&two, 1).await.0, "twice");
        assert_eq!(two.network.overflowed(), 0);
    }
}
