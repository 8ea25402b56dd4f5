//! Encrypted, mutually authenticated connections between replicas, over one UDP socket.
//!
//! Each replica dials every peer for what it sends, and only reads on what it accepted: two
//! connections a pair, no rule for simultaneous opens. A connection counts once HELLO was answered,
//! because a refused certificate shows to the dialling side only after its connect succeeded.
//!
//! What each kind of message is carried by is in its row of the table of kinds (`wire/kinds.rs`):
//!
//! | role | how |
//! |---|---|
//! | a push | one uni stream each, from the queue of its kind; or a datagram, if it fits one |
//! | a question | one bi stream, with its answers |
//! | chitchat's messages, which are no kind | as a push, raw bytes (they do not begin with our magic) |
//!
//! Sending never waits: [`Transport::send`] only enqueues. The task of each peer (`peer`) owns its connection; one
//! unreachable peer slows nobody else.

mod credentials;
mod handshakes;
mod hello;
mod inbound;
mod limits;
#[cfg(test)]
mod link_tests;
mod links;
mod log_limit;
mod loops;
mod network;
mod peer;
#[cfg(test)]
mod refusal_tests;
mod reminders;
#[cfg(test)]
mod seed_tests;
mod seeds;
mod seen;
mod slept;
mod stream;
#[cfg(test)]
mod tests;
mod twins;
mod window;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use quinn::{Endpoint, EndpointConfig, TokioRuntime, VarInt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::GossipConfig;
use crate::error::StartError;
use crate::frame::Header;
use crate::identity::{self, Identity, IdentityError};
use crate::metrics::{HANDSHAKES, Metrics, Why};
use crate::peers::{Member, PeerTable, Reason, Refused};
use crate::plane::{Link, RequestError};
use crate::replica::ReplicaId;
use crate::twin::{Sightings, Twin};
use crate::wire::{self, Kind, Message, Queue, Received, Role};

use credentials::Credentials;
pub(crate) use limits::{CHITCHAT_BYTES_MAX, DATAGRAM_FRAME_MAX};
use links::Peers;
use log_limit::LogLimit;
use loops::Loops;
pub(crate) use network::system_ms;
pub use network::{Network, SystemNetwork};
pub use seeds::SilentSeed;
pub use seen::PathReport;
use seen::SeenLink;

/// The receiver of what arrives. Called from connection tasks: must not wait.
pub(crate) trait Receiver: Send + Sync + 'static {
    /// A message for chitchat that the judge passed, from the peer that is dialled at `from`.
    fn gossip(&self, from: SocketAddr, bytes: Vec<u8>);
    /// The peer at this address has news of itself, another one says.
    fn has_news(&self, address: SocketAddr);
    /// A peer holds this version of our own keys, which is above ours.
    fn outdone(&self, version: u64);
    /// A push or a question of an authenticated peer, in a frame of so many bytes. What is returned answers a question
    /// on the same stream.
    fn message(
        &self,
        from: &ReplicaId,
        header: Header,
        message: Message,
        bytes: usize,
    ) -> Vec<Message>;
    /// The connection to a peer is up.
    fn linked(&self, member: &Member);
    /// A peer announced that it leaves.
    fn left(&self, id: &ReplicaId);
    /// A peer has seen this generation of our own id, which is not below ours.
    fn outrun(&self, seen: u64);
}

/// The socket and all connections. Clones share them.
#[derive(Clone)]
pub(crate) struct Transport {
    shared: Arc<Shared>,
}

struct Shared {
    identity: Credentials,
    own: ReplicaId,
    release: String,
    network: Arc<dyn Network>,
    endpoint: Endpoint,
    /// Where the others dial us.
    address: SocketAddr,
    generation: AtomicU64,
    /// Drawn at the start (see [`wire::Hello::process`]).
    process: u64,
    loops: Loops,
    seq: AtomicU64,
    peer_table: Mutex<PeerTable>,
    peers: Mutex<Peers>,
    twins: Mutex<Sightings>,
    /// Seeds at none of whose addresses a replica answers, and since when. As many as are configured.
    silent_seeds: Mutex<BTreeMap<String, seeds::Silent>>,
    seeds: seeds::Asked,
    log_limit: LogLimit,
    /// Kinds from outside this crate.
    kinds: Vec<&'static Kind>,
    metrics: Metrics,
    tracker: TaskTracker,
    /// This replica says goodbye: it dials nobody and lets nobody in any more.
    leaving: CancellationToken,
    stop: CancellationToken,
}

impl Transport {
    /// Binds the socket, for the kinds of this crate and these; nothing is accepted or dialled before [`Transport::start`].
    pub(crate) async fn open(
        config: &GossipConfig,
        identity: Identity,
        network: Arc<dyn Network>,
        generation: u64,
        kinds: Vec<&'static Kind>,
        metrics: Metrics,
    ) -> Result<Self, StartError> {
        let bind = |cause| StartError::Bind {
            address: config.bind,
            cause,
        };
        let socket = network.bind(config.bind).await.map_err(bind)?;
        let bound = socket.local_addr().map_err(bind)?;
        let address = advertised(config, bound, &*network).await?;

        let keys = identity::endpoint_keys(&identity);
        let mut endpoint_config = EndpointConfig::new(keys.reset.clone());
        endpoint_config.cid_generator(move || Box::new(keys.connection_ids()));
        endpoint_config.rng_seed(network.seed());
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config,
            Some(credentials::server(&identity)?),
            socket,
            Arc::new(TokioRuntime),
        )
        .map_err(bind)?;

        let own = identity.replica().clone();
        let member = Member {
            id: own.clone(),
            generation,
            address,
        };
        Ok(Self {
            shared: Arc::new(Shared {
                peer_table: Mutex::new(PeerTable::new(identity.cluster(), member)),
                identity: Credentials::new(identity)?,
                own,
                release: config.facts.version.clone(),
                network,
                endpoint,
                address,
                generation: AtomicU64::new(generation),
                process: rand::random(),
                loops: Loops::default(),
                seq: AtomicU64::new(0),
                peers: Mutex::default(),
                twins: Mutex::default(),
                silent_seeds: Mutex::default(),
                seeds: seeds::Asked::default(),
                log_limit: LogLimit::default(),
                kinds,
                metrics,
                tracker: TaskTracker::new(),
                leaving: CancellationToken::new(),
                stop: CancellationToken::new(),
            }),
        })
    }

    /// Begins to accept connections and to dial the seeds.
    pub(crate) fn start(&self, seeds: &[String], receiver: &Arc<dyn Receiver>) {
        let shared = &self.shared;
        shared
            .tracker
            .spawn(inbound::accept(shared.clone(), receiver.clone()));
        self.spawn(reminders::remind(shared.clone()));
        self.spawn(slept::give_up_links(shared.clone()));
        shared.seeds.begin(seeds.len());
        for seed in seeds {
            shared
                .tracker
                .spawn(seeds::ask(shared.clone(), receiver.clone(), seed.clone()));
        }
    }

    /// The bound address.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.shared.endpoint.local_addr().ok()
    }

    /// The address under which others dial this replica.
    pub(crate) fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The generation under which this replica speaks.
    pub(crate) fn generation(&self) -> u64 {
        self.shared.generation()
    }

    /// This replica's wall clock, Unix milliseconds.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.shared.network.unix_ms()
    }

    /// True if a line of this kind about this replica itself is due: one a minute.
    pub(crate) fn may_log(&self, kind: &'static str) -> bool {
        self.shared.log_limit.due(self.shared.address, kind)
    }

    /// Queues a chitchat message for the peer at `to`; dropped and counted if it cannot take it now.
    pub(crate) fn send_gossip(&self, to: SocketAddr, bytes: Vec<u8>) {
        let sent = self
            .shared
            .peers
            .lock()
            .at(to)
            .is_some_and(|peer| peer.enqueue(Queue::Urgent, "gossip", bytes.into()));
        if !sent {
            self.shared.metrics.dropped("gossip_not_queued");
        }
    }

    /// Queues a push for one connected peer, or for all. One whose queue is full goes without it, which is counted.
    pub(crate) fn send(&self, to: Option<&ReplicaId>, message: &Message) {
        let kind = message.kind();
        let Role::Push(queue) = kind.role else {
            tracing::error!(kind = kind.name, "only a push is sent without a question");
            return;
        };
        let peers = match to {
            Some(id) => self
                .shared
                .peers
                .lock()
                .linked_peer(id)
                .cloned()
                .into_iter()
                .collect(),
            None => self.shared.peers.lock().linked(),
        };
        let Some(bytes) = self.shared.encode(message) else {
            return;
        };
        let bytes = bytes::Bytes::from(bytes);
        for peer in peers {
            if !peer.send(queue, kind.plane, bytes.clone(), &self.shared.metrics) {
                self.shared.metrics.dropped(not_queued(queue));
            }
        }
    }

    /// Scores an offence that only the receiver of a message can see.
    pub(crate) fn strike(&self, from: &ReplicaId, reason: Reason) {
        let address = self.address_of(from).unwrap_or(self.shared.address);
        self.shared.strike(from, address, reason);
    }

    /// The open connections from here.
    pub(crate) fn open_links(&self) -> Vec<Link> {
        self.shared.peers.lock().open_links()
    }

    /// Sends a request to one peer and waits for its whole answer.
    pub(crate) async fn request(
        &self,
        to: &ReplicaId,
        message: &Message,
    ) -> Result<Vec<Received>, RequestError> {
        let connection = self
            .shared
            .peers
            .lock()
            .connection(to)
            .ok_or(RequestError::NotLinked)?;
        peer::request(&self.shared, to, &connection, message).await
    }

    /// Peers with an open connection from here.
    pub(crate) fn linked(&self) -> Vec<ReplicaId> {
        self.shared.peers.lock().linked_ids()
    }

    /// The shortest time of late to each connected peer.
    pub(crate) fn one_ways(&self) -> Vec<(ReplicaId, Duration)> {
        let links = self.shared.peers.lock().links().into_iter();
        let ways = links.map(|(peer, connection)| {
            let way = window::shortest_way(&connection);
            (peer, way)
        });
        ways.collect()
    }

    /// The open connections that this replica dialled.
    pub(crate) fn seen_links(&self) -> Vec<SeenLink> {
        let links = self.shared.peers.lock().links().into_iter();
        let seen = links.map(|(peer, connection)| SeenLink::of(peer, &connection));
        seen.collect()
    }

    /// Seeds at none of whose addresses a replica lets this one in.
    pub(crate) fn silent_seeds(&self) -> Vec<SilentSeed> {
        let silent = self.shared.silent_seeds.lock();
        let silent = silent.iter().map(|(seed, (since, why))| SilentSeed {
            seed: seed.clone(),
            lasts: since.elapsed(),
            why: why.clone(),
        });
        silent.collect()
    }

    /// Whether each seed was asked once.
    pub(crate) fn has_asked_seeds(&self) -> bool {
        self.shared.seeds.is_over()
    }

    /// Whether no peer is connected, and a seed answers with whom no certificates fit.
    pub(crate) fn is_shut_out(&self) -> bool {
        self.shared.seeds.is_unfit() && self.linked().is_empty()
    }

    /// End of the certificate of this replica.
    pub(crate) fn certificate_ends(&self) -> SystemTime {
        let [own, _] = self.shared.identity.ends();
        own
    }

    /// Number of peers that are dialled, connected or not.
    pub(crate) fn dialled(&self) -> usize {
        self.shared.peers.lock().len()
    }

    /// Where a peer is dialled.
    pub(crate) fn address_of(&self, id: &ReplicaId) -> Option<SocketAddr> {
        self.shared.peers.lock().address(id)
    }

    /// The generation in which a peer proved itself, if it did.
    pub(crate) fn generation_of(&self, id: &ReplicaId) -> Option<u64> {
        self.shared.peer_table.lock().generation(id)
    }

    /// Ids under which this replica saw two processes.
    pub(crate) fn twins(&self) -> Vec<Twin> {
        self.shared.twins.lock().twins(now())
    }

    /// The process that the cluster keeps instead of this one.
    pub(crate) fn kept_instead(&self) -> Option<SocketAddr> {
        self.shared.kept_instead()
    }

    /// Gives the judge of chitchat's messages how far our own keys have come; call it before a peer can have seen them.
    pub(crate) fn own_version(&self, version: u64) {
        self.shared.peer_table.lock().own_version(version);
    }

    /// The gossip task starts again under a higher generation: every peer gets a new HELLO.
    pub(crate) fn renew(&self, generation: u64) {
        self.shared.generation.store(generation, Ordering::Relaxed);
        self.shared.peer_table.lock().renew(generation);
        self.shared.peers.lock().close_links(Close::Renewed);
    }

    /// Takes another certificate, other roots or other revocations into use; false if they are those
    /// in use. Connections follow by and by.
    /// Errors: it is the identity of another replica or cluster; nothing has changed.
    pub(crate) fn replace_identity(
        &self,
        receiver: &Arc<dyn Receiver>,
        identity: Identity,
    ) -> Result<bool, IdentityError> {
        credentials::replace(&self.shared, receiver, identity)
    }

    /// Runs a task until it ends or the transport closes.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.shared.stop.clone();
        self.shared
            .tracker
            .spawn(async move { stop.run_until_cancelled(task).await });
    }

    /// Waits for something; `None` if the transport closes before it comes, or has closed.
    pub(crate) async fn until_closed<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        self.shared.stop.run_until_cancelled(wait).await
    }

    /// Announces to every peer that this replica leaves, closes all connections and ends all tasks, within `limit`.
    pub(crate) async fn close(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        // First: who has taken its leave already would let this replica in again.
        self.shared.leaving.cancel();
        let goodbyes = peer::say_leave(&self.shared);
        let _ = tokio::time::timeout_at(deadline, goodbyes).await;
        self.shared.stop.cancel();
        self.shared
            .endpoint
            .close(Close::Leaving.code(), b"leaving");
        self.shared.tracker.close();
        let ended = async {
            self.shared.tracker.wait().await;
            self.shared.endpoint.wait_idle().await;
        };
        let _ = tokio::time::timeout_at(deadline, ended).await;
    }
}

impl Shared {
    fn kept_instead(&self) -> Option<SocketAddr> {
        let connected = self.peers.lock().linked_ids().len();
        self.twins.lock().kept_instead(connected, now())
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// One frame under our generation and the next sequence number.
    fn encode(&self, message: &Message) -> Option<Vec<u8>> {
        self.encode_under(self.generation(), message)
    }

    fn encode_under(&self, generation: u64, message: &Message) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let seq = self.seq.fetch_add(1, Ordering::Relaxed);
        match wire::encode(&mut bytes, generation, seq, message) {
            Ok(()) => Some(bytes),
            Err(error) => {
                tracing::error!(%error, "a message of this replica does not fit a frame");
                self.metrics.dropped("too_long");
                None
            }
        }
    }

    /// Counts a handshake.
    fn handshake(&self, reason: &'static str) {
        debug_assert!(HANDSHAKES.contains(&reason), "{reason} is not listed");
        self.metrics.handshakes.get_or_create(&Why { reason }).inc();
    }

    /// Counts an offence; the tenth ends every connection with the offender.
    fn offence(&self, from: &ReplicaId, address: SocketAddr, refused: Refused) {
        let reason = refused.reason.label();
        self.metrics.refusals.get_or_create(&Why { reason }).inc();
        if self.log_limit.due(address, reason) {
            tracing::warn!(replica = %from, %address, reason, "refused a message of a replica");
        }
        if refused.cut {
            tracing::error!(replica = %from, %address, reason, "cut off a replica that keeps sending refused messages");
            self.peers.lock().cut(from);
        }
    }

    /// Counts what was not used of a frame that was.
    fn count_left_out(&self, received: &Received) {
        for _ in 0..received.refused {
            self.metrics.dropped("entry");
        }
        if received.unread > 0 {
            self.metrics.dropped("later_fields");
        }
    }

    /// Scores an offence found elsewhere than in chitchat's messages.
    fn strike(&self, from: &ReplicaId, address: SocketAddr, reason: Reason) {
        let refused = self.peer_table.lock().strike(from, reason, now());
        self.offence(from, address, refused);
    }
}

/// Why a push is dropped at its sender.
fn not_queued(queue: Queue) -> &'static str {
    match queue {
        Queue::Datagram => "load_not_sent",
        Queue::Urgent => "not_queued",
        Queue::Bulk => "evidence_not_queued",
        Queue::Latest => "bulletin_not_queued",
    }
}

/// Why this side ends a connection; travels as QUIC application code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    Done,
    Leaving,
    Renewed,
    OtherCluster,
    WrongName,
    Banned,
    NoHello,
    Crowded,
    Outdated,
    Revoked,
    /// Another process of the same id is kept; the reason names it.
    Twin,
}

impl Close {
    const ALL: [Self; 11] = [
        Self::Done,
        Self::Leaving,
        Self::Renewed,
        Self::OtherCluster,
        Self::WrongName,
        Self::Banned,
        Self::NoHello,
        Self::Crowded,
        Self::Outdated,
        Self::Revoked,
        Self::Twin,
    ];

    fn code(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    fn from_code(code: VarInt) -> Option<Self> {
        Self::ALL.into_iter().find(|close| close.code() == code)
    }
}

/// Resolves the address that the others are given to dial.
async fn advertised(
    config: &GossipConfig,
    bound: SocketAddr,
    network: &dyn Network,
) -> Result<SocketAddr, StartError> {
    let Some(name) = &config.advertise else {
        return Ok(bound);
    };
    let failed = |cause| StartError::Advertise {
        name: name.clone(),
        cause,
    };
    let found = network.resolve(name).await.map_err(failed)?;
    let same_family = |address: &&SocketAddr| address.is_ipv4() == bound.is_ipv4();
    let none = || {
        failed(std::io::Error::other(
            "no address of the same family as gossip-host",
        ))
    };
    let mut address = *found.iter().find(same_family).ok_or_else(none)?;
    if address.port() == 0 {
        address.set_port(bound.port());
    }
    Ok(address)
}

/// The clock of pure parts: tokio's, so that tests can pause it.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}
