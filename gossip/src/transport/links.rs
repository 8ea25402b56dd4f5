//! Links: the peers that are dialled, with their queues, and all open connections with them.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use quinn::{Connection, SendDatagramError};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Close, DATAGRAM_FRAME_MAX, limits};
use crate::metrics::Metrics;
use crate::peers::Member;
use crate::plane::Link;
use crate::replica::ReplicaId;
use crate::wire::{PeerHint, Queue};

/// Messages for one peer, each with the name of its plane.
pub(super) type Lane = mpsc::Receiver<(&'static str, Bytes)>;

/// One of each queue of one peer, which are sent beside each other: a full one delays no other.
#[derive(Clone)]
pub(super) struct Queues<T> {
    pub(super) urgent: T,
    pub(super) bulk: T,
    pub(super) latest: T,
}

/// The receiving ends.
pub(super) type Waiting = Queues<Lane>;

impl<T> Queues<T> {
    fn of(&self, queue: Queue) -> &T {
        match queue {
            Queue::Datagram | Queue::Urgent => &self.urgent,
            Queue::Bulk => &self.bulk,
            Queue::Latest => &self.latest,
        }
    }
}

/// All peers by id. Each peer in it is dialled, and dialled again, until it is removed.
#[derive(Default)]
pub(super) struct Peers {
    by_id: HashMap<ReplicaId, Peer>,
    /// Connections that peers dialled, oldest first.
    accepted: HashMap<ReplicaId, Vec<Open>>,
    /// Replicas that left or never answered: others still name them for a while.
    absent: HashMap<ReplicaId, Instant>,
    tasks: u64,
}

/// An open connection with a process of a peer.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) generation: u64,
    /// As its HELLO says (see [`wire::Hello::process`]); `None` where it does not, or was not sent: on a connection that
    /// was dialled from here.
    pub(super) process: Option<u64>,
    pub(super) connection: Connection,
}

/// The handle of one peer's task.
#[derive(Clone)]
pub(super) struct Peer {
    /// Distinguishes this task from a later one for the same id.
    pub(super) task: u64,
    pub(super) address: SocketAddr,
    /// Whether it ever proved its certificate, or was only named by another replica.
    proven: bool,
    queues: Queues<mpsc::Sender<(&'static str, Bytes)>>,
    pub(super) link: Option<(u64, Connection)>,
    pub(super) wake: Arc<Notify>,
    /// Its connection should get a successor.
    pub(super) renew: Arc<Notify>,
    pub(super) stop: CancellationToken,
}

impl Peers {
    /// The peer that is dialled at this address, if it is connected.
    pub(super) fn at(&self, address: SocketAddr) -> Option<&Peer> {
        self.by_id
            .values()
            .find(|peer| peer.address == address && peer.link.is_some())
    }

    /// All connected peers.
    pub(super) fn linked(&self) -> Vec<Peer> {
        self.by_id
            .values()
            .filter(|peer| peer.link.is_some())
            .cloned()
            .collect()
    }

    /// A connected peer.
    pub(super) fn linked_peer(&self, id: &ReplicaId) -> Option<&Peer> {
        self.by_id.get(id).filter(|peer| peer.link.is_some())
    }

    /// All connected peers, with what a plane may know of the connection.
    pub(super) fn open_links(&self) -> Vec<Link> {
        let link = |(id, peer): (&ReplicaId, &Peer)| {
            let (generation, _) = peer.link.as_ref()?;
            Some(Link {
                peer: id.clone(),
                generation: *generation,
                room: peer.queues.bulk.capacity(),
                address: peer.address,
            })
        };
        self.by_id.iter().filter_map(link).collect()
    }

    /// Ids of all connected peers.
    pub(super) fn linked_ids(&self) -> Vec<ReplicaId> {
        let linked = self.by_id.iter().filter(|(_, peer)| peer.link.is_some());
        linked.map(|(id, _)| id.clone()).collect()
    }

    /// Number of peers that are dialled.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Where a peer is dialled.
    pub(super) fn address(&self, id: &ReplicaId) -> Option<SocketAddr> {
        self.by_id.get(id).map(|peer| peer.address)
    }

    /// The open connection to a peer.
    pub(super) fn connection(&self, id: &ReplicaId) -> Option<Connection> {
        self.by_id
            .get(id)?
            .link
            .as_ref()
            .map(|(_, connection)| connection.clone())
    }

    /// The open connections that this replica dialled.
    pub(super) fn links(&self) -> Vec<(ReplicaId, Connection)> {
        let link = |(id, peer): (&ReplicaId, &Peer)| Some((id.clone(), peer.link.clone()?.1));
        self.by_id.iter().filter_map(link).collect()
    }

    /// Connected peers, as hints for others.
    pub(super) fn hints(&self) -> Vec<PeerHint> {
        let linked = self.by_id.iter().filter(|(_, peer)| peer.link.is_some());
        linked
            .map(|(id, peer)| PeerHint {
                replica: id.clone(),
                gossip_addr: peer.address,
            })
            .collect()
    }

    /// Keeps an accepted connection, so that it can be closed; the oldest gives way.
    pub(super) fn accepted(&mut self, id: &ReplicaId, new: Open) {
        let open = self.accepted.entry(id.clone()).or_default();
        if open.len() == limits::CONNECTIONS_PER_PEER {
            let oldest = open.remove(0).connection;
            oldest.close(Close::Crowded.code(), b"");
        }
        open.push(new);
    }

    /// Drops the accepted connections of a peer that have ended.
    pub(super) fn ended(&mut self, id: &ReplicaId) {
        if let Some(open) = self.accepted.get_mut(id) {
            open.retain(|open| open.connection.close_reason().is_none());
            if open.is_empty() {
                self.accepted.remove(id);
            }
        }
    }

    /// Stops dialling a peer.
    pub(super) fn remove(&mut self, id: &ReplicaId) {
        if let Some(peer) = self.by_id.remove(id) {
            peer.stop.cancel();
        }
    }

    /// Stops dialling a peer that left or never answered, and does not take hints about it for a while.
    pub(super) fn leave(&mut self, id: &ReplicaId) {
        self.remove(id);
        self.absent
            .retain(|_, since| since.elapsed() < limits::HINT_FOR);
        if self.absent.len() < limits::ABSENT {
            self.absent.insert(id.clone(), Instant::now());
        }
    }

    /// Notes that a replica proved itself. True if it is to be dialled: it is not yet, or at another address.
    pub(super) fn meet(&mut self, member: &Member) -> bool {
        self.absent.remove(&member.id);
        let Some(peer) = self.by_id.get_mut(&member.id) else {
            return true;
        };
        peer.proven = true;
        if peer.address != member.address {
            self.remove(&member.id);
            return true;
        }
        match &peer.link {
            // It restarted: what we hold is a connection to its former life.
            Some((generation, connection)) if *generation < member.generation => {
                connection.close(Close::Renewed.code(), b"");
            }
            Some(_) => {}
            None => peer.wake.notify_one(),
        }
        false
    }

    /// Whether this task is the peer's, and not an earlier one for the same id.
    pub(super) fn is_task(&self, id: &ReplicaId, task: u64) -> bool {
        self.by_id.get(id).is_some_and(|peer| peer.task == task)
    }

    /// True if a hint about this replica is worth a dial.
    pub(super) fn is_news(&self, id: &ReplicaId) -> bool {
        let is_absent = self
            .absent
            .get(id)
            .is_some_and(|since| since.elapsed() < limits::HINT_FOR);
        let hinted = self.by_id.values().filter(|peer| !peer.proven).count();
        !is_absent && !self.by_id.contains_key(id) && hinted < limits::HINTED
    }

    /// Ends every connection with an offender; its task goes on, and gets in again after the ban.
    pub(super) fn cut(&mut self, id: &ReplicaId) {
        let accepted = self.accepted.remove(id).unwrap_or_default();
        let dialled = self
            .by_id
            .get(id)
            .and_then(|peer| peer.link.clone())
            .map(|(_, link)| link);
        let accepted = accepted.iter().map(|open| &open.connection);
        for connection in accepted.chain(&dialled) {
            connection.close(Close::Banned.code(), b"");
        }
    }

    /// All open connections of each peer, in both directions.
    pub(super) fn open(&self) -> HashMap<ReplicaId, Vec<Connection>> {
        let ids = self.accepted.keys().chain(self.by_id.keys());
        let of_one = |id: &ReplicaId| {
            let open = self.connections_of(id).into_iter();
            (id.clone(), open.map(|open| open.connection).collect())
        };
        ids.map(of_one).collect()
    }

    /// Peers with an open connection, in either direction.
    pub(super) fn connected(&self) -> HashSet<ReplicaId> {
        let open = self.open().into_iter();
        open.filter(|(_, open)| !open.is_empty())
            .map(|(id, _)| id)
            .collect()
    }

    /// Number of open connections with peers, in both directions.
    pub(super) fn open_count(&self) -> usize {
        let accepted: usize = self.accepted.values().map(Vec::len).sum();
        let links = self.by_id.values().filter(|peer| peer.link.is_some());
        accepted + links.count()
    }

    /// Open connections in both directions with processes of this id.
    pub(super) fn connections_of(&self, id: &ReplicaId) -> Vec<Open> {
        let accepted = self.accepted.get(id).into_iter().flatten().cloned();
        let dialled = self.by_id.get(id).and_then(|peer| peer.link.clone());
        let dialled = dialled.map(|(generation, connection)| Open {
            generation,
            process: None,
            connection,
        });
        let all = accepted.chain(dialled);
        all.filter(|open| open.connection.close_reason().is_none())
            .collect()
    }

    /// Has the connection to a peer replaced, without a gap.
    pub(super) fn renew(&self, id: &ReplicaId) {
        if let Some(peer) = self.by_id.get(id) {
            peer.renew.notify_one();
        }
    }

    /// Ends the dialled connections; their tasks dial again at once.
    pub(super) fn close_links(&self, close: Close) {
        for (_, connection) in self.by_id.values().filter_map(|peer| peer.link.as_ref()) {
            connection.close(close.code(), b"");
        }
    }

    pub(super) fn is_proven(&self, id: &ReplicaId) -> bool {
        self.by_id.get(id).is_some_and(|peer| peer.proven)
    }

    pub(super) fn set_link(&mut self, id: &ReplicaId, task: u64, link: Option<(u64, Connection)>) {
        if let Some(peer) = self.by_id.get_mut(id).filter(|peer| peer.task == task) {
            peer.proven = true;
            peer.link = link;
        }
    }

    /// Adds a peer; the caller runs its task. The table is bounded by its callers: the table of peers
    /// admits so many proven replicas, and [`Peers::is_news`] lets in so many hints.
    pub(super) fn add(
        &mut self,
        id: &ReplicaId,
        address: SocketAddr,
        proven: bool,
    ) -> (Peer, Waiting) {
        let (urgent, urgent_waiting) = mpsc::channel(limits::URGENT_QUEUE);
        let (bulk, bulk_waiting) = mpsc::channel(limits::BULK_QUEUE);
        let (latest, latest_waiting) = mpsc::channel(limits::LATEST_QUEUE);
        self.tasks += 1;
        let peer = Peer {
            task: self.tasks,
            address,
            proven,
            queues: Queues {
                urgent,
                bulk,
                latest,
            },
            link: None,
            wake: Arc::default(),
            renew: Arc::default(),
            stop: CancellationToken::new(),
        };
        self.by_id.insert(id.clone(), peer.clone());
        let waiting = Waiting {
            urgent: urgent_waiting,
            bulk: bulk_waiting,
            latest: latest_waiting,
        };
        (peer, waiting)
    }
}

impl Peer {
    /// Queues a message of a plane; false if the queue is full.
    pub(super) fn enqueue(&self, queue: Queue, plane: &'static str, bytes: Bytes) -> bool {
        self.queues.of(queue).try_send((plane, bytes)).is_ok()
    }

    /// Queues a message of a plane, or sends it now as a datagram; false if neither can be.
    pub(super) fn send(
        &self,
        queue: Queue,
        plane: &'static str,
        bytes: Bytes,
        metrics: &Metrics,
    ) -> bool {
        let Some((_, connection)) = &self.link else {
            return false;
        };
        if queue != Queue::Datagram || bytes.len() > DATAGRAM_FRAME_MAX {
            return self.enqueue(queue, plane, bytes);
        }
        match connection.send_datagram(bytes.clone()) {
            Ok(()) => {
                metrics.sent(plane, bytes.len());
                true
            }
            Err(SendDatagramError::TooLarge) => self.enqueue(queue, plane, bytes),
            Err(_) => false,
        }
    }
}
