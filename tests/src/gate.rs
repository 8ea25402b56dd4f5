//! A gate in front of a replica's gossip socket: packets between it and named others can be dropped, each way by itself.
//!
//! Others reach the replica at the gate's address alone (`--gossip-advertise`). A pair of replicas has two connections,
//! one dialled by each, and every packet of both passes the gate of the replica that was dialled.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Largest UDP payload.
const PACKET_BYTES: usize = 65_536;
/// Senders of one test.
const SENDERS_MAX: usize = 64;

/// What passes and where to.
#[derive(Debug, Default)]
struct State {
    target: Option<SocketAddr>,
    /// What these send is dropped.
    from: HashSet<SocketAddr>,
    /// What is sent to these is dropped.
    to: HashSet<SocketAddr>,
}

/// The gate of one replica. Dropping it closes it.
pub struct Gate {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _task: AbortOnDropHandle<()>,
}

impl Gate {
    /// Opens one; nothing passes before [`Gate::found`].
    pub async fn open() -> Self {
        let public = bind().await;
        let state = Arc::<Mutex<State>>::default();
        Self {
            address: public.local_addr().expect("it is bound"),
            _task: AbortOnDropHandle::new(tokio::spawn(relay(public, Arc::clone(&state)))),
            state,
        }
    }

    /// Where others reach the replica.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells the replica's own socket.
    pub fn found(&self, gossip: SocketAddr) {
        look(&self.state).target = Some(gossip);
    }

    /// No packet of the replica behind the first gate reaches the one behind the second any more; the other way they do.
    pub fn cut_one_way(from: &Self, to: &Self) {
        let (sender, receiver) = (from.target(), to.target());
        look(&to.state).from.insert(sender);
        look(&from.state).to.insert(receiver);
    }

    /// Everything passes.
    pub fn heal(&self) {
        let mut state = look(&self.state);
        state.from.clear();
        state.to.clear();
    }

    fn target(&self) -> SocketAddr {
        look(&self.state).target.expect("its replica is started")
    }
}

fn look(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no holder panics")
}

async fn bind() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    socket.expect("loopback has free ports")
}

/// Each sender has a socket of its own towards the replica, on which answers return.
async fn relay(public: UdpSocket, state: Arc<Mutex<State>>) {
    let public = Arc::new(public);
    let mut senders: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut answers = JoinSet::new();
    let mut packet = vec![0; PACKET_BYTES];
    loop {
        // An error is an ICMP answer to what was sent earlier.
        let Ok((bytes, sender)) = public.recv_from(&mut packet).await else {
            continue;
        };
        if !senders.contains_key(&sender) {
            assert!(senders.len() < SENDERS_MAX, "more senders than replicas");
            let inner = Arc::new(bind().await);
            let (public, state) = (Arc::clone(&public), Arc::clone(&state));
            answers.spawn(answer(Arc::clone(&inner), public, sender, state));
            senders.insert(sender, inner);
        }
        let target = {
            let state = look(&state);
            state.target.filter(|_| !state.from.contains(&sender))
        };
        if let Some(target) = target {
            // What is lost is lost, as on a network.
            let _ = senders[&sender].send_to(&packet[..bytes], target).await;
        }
    }
}

async fn answer(
    inner: Arc<UdpSocket>,
    public: Arc<UdpSocket>,
    sender: SocketAddr,
    state: Arc<Mutex<State>>,
) {
    let mut packet = vec![0; PACKET_BYTES];
    loop {
        let Ok((bytes, _)) = inner.recv_from(&mut packet).await else {
            continue;
        };
        let is_cut = look(&state).to.contains(&sender);
        if !is_cut {
            let _ = public.send_to(&packet[..bytes], sender).await;
        }
    }
}
