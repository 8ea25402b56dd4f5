//! The peers that this replica dials: one task each, with its queue and its connection.

mod renewal;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, SendDatagramError};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::hello::{self, DialError, Dialled};
use super::stream::{StreamError, read_frame, send_uni, write_all};
use super::{Close, DATAGRAM_FRAME_MAX, Receiver, Shared, credentials, limits};
use crate::frame::FrameError;
use crate::metrics::Metrics;
use crate::peers::{Member, Reason};
use crate::plane::{Link, RequestError};
use crate::replica::ReplicaId;
use crate::wire::{self, Message, PeerHint, Queue, Rate, Received};

/// Messages for one peer, each with the name of its plane.
type Lane = mpsc::Receiver<(&'static str, Bytes)>;

/// One of each queue of one peer, which are sent beside each other: a full one delays no other.
#[derive(Clone)]
struct Queues<T> {
    urgent: T,
    bulk: T,
    latest: T,
}

/// The receiving ends.
type Waiting = Queues<Lane>;

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
    task: u64,
    address: SocketAddr,
    /// Whether it ever proved its certificate, or was only named by another replica.
    proven: bool,
    queues: Queues<mpsc::Sender<(&'static str, Bytes)>>,
    link: Option<(u64, Connection)>,
    wake: Arc<Notify>,
    /// Its connection should get a successor.
    renew: Arc<Notify>,
    stop: CancellationToken,
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

    /// True if a hint about this replica is worth a dial.
    fn is_news(&self, id: &ReplicaId) -> bool {
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

    fn is_proven(&self, id: &ReplicaId) -> bool {
        self.by_id.get(id).is_some_and(|peer| peer.proven)
    }

    fn set_link(&mut self, id: &ReplicaId, task: u64, link: Option<(u64, Connection)>) {
        if let Some(peer) = self.by_id.get_mut(id).filter(|peer| peer.task == task) {
            peer.proven = true;
            peer.link = link;
        }
    }

    /// Adds a peer; the caller runs its task. The table is bounded by its callers: the table of peers
    /// admits so many proven replicas, and [`Peers::is_news`] lets in so many hints.
    fn add(&mut self, id: &ReplicaId, address: SocketAddr, proven: bool) -> (Peer, Waiting) {
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

/// A replica proved itself: dial it at its address, at once if that was tried in vain.
pub(super) fn meet(shared: &Arc<Shared>, receiver: &Arc<dyn Receiver>, member: &Member) {
    let mut peers = shared.peers();
    peers.absent.remove(&member.id);
    if let Some(peer) = peers.by_id.get_mut(&member.id) {
        peer.proven = true;
        if peer.address == member.address {
            match &peer.link {
                // It restarted: what we hold is a connection to its former life.
                Some((generation, connection)) if *generation < member.generation => {
                    connection.close(Close::Renewed.code(), b"");
                }
                Some(_) => {}
                None => peer.wake.notify_one(),
            }
            return;
        }
        peers.remove(&member.id);
    }
    dial(
        &mut peers,
        shared,
        receiver,
        &member.id,
        member.address,
        true,
    );
}

/// A replica leaves in this generation: it is dialled no more, and nothing of it counts. False if that is not the one in
/// which it is here: another process of its id came since, or it has left before.
pub(super) fn leave(
    shared: &Shared,
    receiver: &Arc<dyn Receiver>,
    id: &ReplicaId,
    generation: u64,
) -> bool {
    {
        let mut table = shared.peer_table();
        if table.generation(id) != Some(generation) {
            return false;
        }
        table.forget(id, super::now());
    }
    tracing::debug!(replica = %id, "a replica leaves");
    shared.peers().leave(id);
    receiver.left(id);
    true
}

/// Passes on what an answered HELLO brought: the replica that answered, and others to dial.
pub(super) fn learn(
    shared: &Arc<Shared>,
    receiver: &Arc<dyn Receiver>,
    member: &Member,
    hints: &[PeerHint],
) {
    meet(shared, receiver, member);
    let outrun = shared.twins().take_outrun(super::now());
    if let Some(seen) = outrun {
        receiver.outrun(seen);
    }
    for hint in hints
        .iter()
        .filter(|hint| hint.replica != shared.own && hint.replica != member.id)
    {
        consider(shared, receiver, &hint.replica, hint.gossip_addr);
    }
}

/// A peer dialled us and showed a certificate. If that of our connection to it is another one, it was
/// replaced: ours should show the new one too, while both are accepted.
pub(super) fn shown(shared: &Shared, id: &ReplicaId, accepted: &Connection) {
    let peers = shared.peers();
    let dialled = peers.connection(id);
    let is_other = dialled.is_some_and(|dialled| {
        credentials::chain(&dialled).first() != credentials::chain(accepted).first()
    });
    if is_other {
        peers.renew(id);
    }
}

/// Another replica named this one: dial it, unless it is known already.
pub(super) fn consider(
    shared: &Arc<Shared>,
    receiver: &Arc<dyn Receiver>,
    id: &ReplicaId,
    address: SocketAddr,
) {
    let mut peers = shared.peers();
    if peers.is_news(id) {
        dial(&mut peers, shared, receiver, id, address, false);
    }
}

fn dial(
    peers: &mut Peers,
    shared: &Arc<Shared>,
    receiver: &Arc<dyn Receiver>,
    id: &ReplicaId,
    address: SocketAddr,
    proven: bool,
) {
    let (peer, waiting) = peers.add(id, address, proven);
    let task = Task {
        shared: shared.clone(),
        receiver: receiver.clone(),
        id: id.clone(),
        peer,
    };
    shared.tracker.spawn(task.run(waiting));
}

/// What the task of a peer works with.
struct Task {
    shared: Arc<Shared>,
    receiver: Arc<dyn Receiver>,
    id: ReplicaId,
    peer: Peer,
}

impl Task {
    async fn run(self, mut waiting: Waiting) {
        let stop = self.peer.stop.clone();
        let whole = self.shared.stop.clone();
        tokio::select! {
            () = self.dial_and_serve(&mut waiting) => {}
            () = stop.cancelled() => {}
            () = whole.cancelled() => return, // the endpoint closes all connections itself
        }
        // Given up; if removed by somebody else, there is nothing left to do.
        let mut peers = self.shared.peers();
        if peers
            .by_id
            .get(&self.id)
            .is_some_and(|peer| peer.task == self.peer.task)
        {
            peers.leave(&self.id);
            drop(peers);
            self.shared.peer_table().forget(&self.id, super::now());
        }
    }

    async fn dial_and_serve(&self, waiting: &mut Waiting) {
        let mut heard = Instant::now();
        loop {
            let mut pause_min = Duration::ZERO;
            let known = self.shared.peer_table().generation(&self.id);
            match hello::dial(&self.shared, self.peer.address, Some(&self.id)).await {
                Ok(dialled) => {
                    self.serve(dialled, waiting).await;
                    heard = Instant::now();
                }
                // It answers, as its certificate proves, and another process of our id has to end first.
                Err(DialError::Twin { .. }) => {
                    heard = Instant::now();
                    pause_min = limits::TWIN_PAUSE;
                }
                Err(DialError::Leaving) => {
                    let is_gone = known.map_or_else(
                        || !self.shared.peers().is_proven(&self.id),
                        |generation| self.leaves(generation),
                    );
                    if is_gone {
                        return;
                    }
                }
                Err(error) => {
                    let is_proven = self.shared.peers().is_proven(&self.id);
                    self.failed(&error, is_proven);
                    let patience = if is_proven {
                        limits::PROVEN_FOR
                    } else {
                        limits::HINT_FOR
                    };
                    if heard.elapsed() > patience {
                        return;
                    }
                }
            }
            let pause = limits::pause(heard.elapsed(), rand::random()).max(pause_min);
            tokio::select! {
                () = sleep(pause) => {}
                // It came back and dialled us first.
                () = self.peer.wake.notified() => {}
            }
        }
    }

    fn failed(&self, error: &DialError, is_proven: bool) {
        // Hearsay about a replica that is gone needs nobody's attention.
        if is_proven {
            hello::report(&self.shared, self.peer.address, self.id.as_str(), error);
        }
        if let DialError::Outrun { seen, .. } = error {
            self.receiver.outrun(*seen);
        }
    }

    /// Sends what is queued until the connection ends.
    async fn serve(&self, dialled: Dialled, waiting: &mut Waiting) {
        let Dialled {
            connection,
            generation,
            member,
            hints,
        } = dialled;
        // What was queued for the last connection is old by now.
        for lane in [&mut waiting.urgent, &mut waiting.bulk, &mut waiting.latest] {
            while lane.try_recv().is_ok() {
                self.shared.metrics.dropped("link_lost");
            }
        }
        self.take(&connection, generation, &member);
        learn(&self.shared, &self.receiver, &member, &hints);
        tracing::info!(replica = %self.id, address = %self.peer.address, "connected");
        self.receiver.linked(&member);
        let current = Mutex::new(connection);
        let lanes = async {
            tokio::join!(
                self.drain(&current, &mut waiting.urgent),
                self.drain(&current, &mut waiting.bulk),
                self.drain(&current, &mut waiting.latest)
            );
        };
        let (closed, generation) = tokio::select! {
            closed = self.renewed_until_closed(&current, member) => closed,
            // Not before this task ends: it holds the other ends itself.
            () = lanes => return,
        };
        self.shared.peers().set_link(&self.id, self.peer.task, None);
        if let Some(kept) = hello::kept_instead(&renewal::current(&current)) {
            let mut twins = self.shared.twins();
            twins.refused(&self.id, kept, super::now());
        }
        tracing::info!(replica = %self.id, address = %self.peer.address, reason = %closed, "connection ended");
        // Its message may be lost.
        if hello::is_leaving(&renewal::current(&current)) {
            self.leaves(generation);
        }
    }

    fn leaves(&self, generation: u64) -> bool {
        leave(&self.shared, &self.receiver, &self.id, generation)
    }

    /// Sends one lane, one message after the other.
    async fn drain(&self, connection: &Mutex<Connection>, lane: &mut Lane) {
        while let Some((plane, bytes)) = lane.recv().await {
            match send_uni(&renewal::current(connection), &bytes).await {
                Ok(()) => self.shared.metrics.sent(plane, bytes.len()),
                Err(_) => self.shared.metrics.dropped("stream_broken"),
            }
        }
    }
}

/// Sends one request on a bi stream and reads the answer to its end. An answer that no honest peer
/// gives counts against it.
pub(super) async fn request(
    shared: &Shared,
    to: &ReplicaId,
    connection: &Connection,
    message: &Message,
) -> Result<Vec<Received>, RequestError> {
    let kind = message.kind();
    let bytes = shared.encode(message).ok_or(RequestError::Broken)?;
    let is_registry = kind.rate == Rate::Registry;
    let most = match is_registry {
        true => limits::REGISTRY_ANSWER_FRAMES,
        false => limits::ANSWER_FRAMES,
    };
    let exchange = async {
        let (mut send, mut receive) = connection
            .open_bi()
            .await
            .map_err(|_| RequestError::Broken)?;
        write_all(&mut send, &bytes)
            .await
            .map_err(|_| RequestError::Broken)?;
        shared.metrics.sent(kind.plane, bytes.len());
        let mut answer = Vec::new();
        let lie = || {
            let address = shared.peers().address(to).unwrap_or(shared.address);
            shared.strike(to, address, Reason::Malformed);
            RequestError::Broken
        };
        let judge = |error| match error {
            // A later release may speak another version.
            FrameError::Version(_) => RequestError::Broken,
            _ => lie(),
        };
        loop {
            let frame = match read_frame(&mut receive).await {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(StreamError::Frame(error)) => return Err(judge(error)),
                Err(_) => return Err(RequestError::Broken),
            };
            if answer.len() == most {
                return Err(if is_registry {
                    RequestError::Broken
                } else {
                    lie()
                });
            }
            shared.metrics.received(kind.plane, frame.len());
            let received = wire::decode_with(&frame, &shared.kinds).map_err(judge)?;
            let is_answer = |answer: &Message| answer.kind().answers(kind);
            if !received.message.as_ref().is_none_or(is_answer) {
                return Err(lie());
            }
            answer.push(received);
        }
        Ok(answer)
    };
    timeout(limits::REQUEST, exchange)
        .await
        .unwrap_or(Err(RequestError::Slow))
}

/// Announces to every connected peer that this replica leaves, and waits until each has it or is gone.
pub(super) async fn say_leave(shared: &Arc<Shared>) {
    let Some(bytes) = shared.encode(&Message::Leave) else {
        return;
    };
    let goodbyes = tokio_util::task::TaskTracker::new();
    for (_, connection) in shared
        .peers()
        .linked()
        .into_iter()
        .filter_map(|peer| peer.link)
    {
        let bytes = bytes.clone();
        goodbyes.spawn(async move {
            if let Ok(mut stream) = connection.open_uni().await
                && write_all(&mut stream, &bytes).await.is_ok()
            {
                // Resolves once the peer has acknowledged every byte.
                let _ = stream.stopped().await;
            }
        });
    }
    goodbyes.close();
    goodbyes.wait().await;
}
