//! A transport against a peer that does not keep to the rules, on loopback.

use std::sync::atomic::AtomicUsize;

use quinn::{Connection, ConnectionError};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;
use crate::config::Facts;
use crate::identity::{Authority, create, issue};
use crate::wire::Hello;

pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Records what arrives.
struct Recorder {
    gossip: mpsc::Sender<Vec<u8>>,
    links: AtomicUsize,
}

impl Receiver for Recorder {
    fn gossip(&self, _: SocketAddr, bytes: Vec<u8>) {
        let _ = self.gossip.try_send(bytes);
    }
    fn has_news(&self, _: SocketAddr) {}
    fn outdone(&self, _: u64) {}
    fn message(&self, _: &ReplicaId, _: Header, _: Message, _: usize) -> Vec<Message> {
        Vec::new()
    }
    fn linked(&self, _: &Member) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }
    fn left(&self, _: &ReplicaId) {}
    fn outrun(&self, _: u64) {}
}

pub(super) struct Bench {
    pub(super) authority: Authority,
    pub(super) transport: Transport,
    gossip: mpsc::Receiver<Vec<u8>>,
    recorder: Arc<Recorder>,
}

pub(super) fn identity_of(authority: &Authority, replica: &str) -> Identity {
    let leaf = issue(&authority.cert_pem, &authority.key_pem, "demo", replica).expect("leaf");
    Identity::from_pem(
        "demo",
        replica,
        &authority.cert_pem,
        &leaf.cert_pem,
        &leaf.key_pem,
    )
    .expect("identity")
}

impl Bench {
    pub(super) async fn new() -> Self {
        Self::on(Arc::new(SystemNetwork), &[]).await
    }

    /// Under an authority of its own, with these seeds.
    pub(super) async fn on(network: Arc<dyn Network>, seeds: &[&str]) -> Self {
        let authority = create("demo").expect("authority");
        Self::with(authority, "me", network, seeds).await
    }

    /// Another replica of the same cluster.
    pub(super) async fn under(authority: &Authority, replica: &str) -> Self {
        let authority = Authority {
            cert_pem: authority.cert_pem.clone(),
            key_pem: authority.key_pem.clone(),
        };
        Self::with(authority, replica, Arc::new(SystemNetwork), &[]).await
    }

    async fn with(
        authority: Authority,
        replica: &str,
        network: Arc<dyn Network>,
        seeds: &[&str],
    ) -> Self {
        let config = GossipConfig::new(([127, 0, 0, 1], 0).into(), Facts::default());
        let identity = identity_of(&authority, replica);
        let transport = Transport::open(
            &config,
            identity,
            network,
            GENERATION,
            Vec::new(),
            Metrics::default(),
        )
        .await
        .expect("opens");
        let (sender, gossip) = mpsc::channel(64);
        let recorder = Arc::new(Recorder {
            gossip: sender,
            links: AtomicUsize::new(0),
        });
        let receiver: Arc<dyn Receiver> = recorder.clone();
        let seeds: Vec<String> = seeds.iter().map(|&seed| seed.to_owned()).collect();
        transport.start(&seeds, &receiver);
        Self {
            authority,
            transport,
            gossip,
            recorder,
        }
    }

    /// Connects with the certificate of `a`.
    async fn connect(&self) -> (Endpoint, Connection) {
        self.connect_to("a", self.transport.address()).await
    }

    /// Connects with the certificate of a replica to somebody under the name `me`.
    pub(super) async fn connect_to(
        &self,
        replica: &str,
        address: SocketAddr,
    ) -> (Endpoint, Connection) {
        let identity = identity_of(&self.authority, replica);
        let client = identity::client_config(&identity).expect("config");
        let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("endpoint");
        endpoint.set_default_client_config(client);
        let connecting = endpoint.connect(address, "me.demo").expect("dials");
        let connection = connecting.await.expect("connects");
        (endpoint, connection)
    }

    /// Connects and sends HELLO; returns the answer's first frame.
    async fn hello(
        &self,
        replica: &str,
        cluster: &str,
        generation: u64,
    ) -> (Endpoint, Connection, Option<Received>) {
        let (endpoint, connection) = self.connect().await;
        let hello = hello(replica, cluster, &endpoint);
        let answer = greet(&connection, generation, hello).await;
        (endpoint, connection, answer)
    }

    pub(super) fn receiver(&self) -> Arc<dyn Receiver> {
        self.recorder.clone()
    }

    pub(super) fn count(&self, family: impl Fn(&Metrics) -> u64) -> u64 {
        family(&self.transport.shared.metrics)
    }
}

fn hello(replica: &str, cluster: &str, endpoint: &Endpoint) -> Hello {
    Hello {
        replica: replica.parse().expect("id"),
        cluster: cluster.to_owned(),
        // Nobody is there: the transport's own dials go nowhere.
        gossip_addr: endpoint.local_addr().expect("bound"),
        version: "test".into(),
        process: None,
    }
}

/// Sends HELLO; returns the answer's first frame.
async fn greet(connection: &Connection, generation: u64, hello: Hello) -> Option<Received> {
    let mut bytes = Vec::new();
    wire::encode(&mut bytes, generation, 0, &Message::Hello(hello)).expect("fits");
    let (mut send, mut receive) = connection.open_bi().await.expect("opens");
    send.write_all(&bytes).await.expect("writes");
    send.finish().expect("finishes");
    let answer = receive.read_to_end(1 << 16).await.ok()?;
    wire::decode(&answer).ok()
}

fn refusals(reason: &'static str) -> impl Fn(&Metrics) -> u64 {
    move |metrics| metrics.refusals.get_or_create(&Why { reason }).get()
}

pub(super) async fn closed_with(connection: &Connection) -> Option<Close> {
    match timeout(LIMIT, connection.closed())
        .await
        .expect("the other side closes")
    {
        ConnectionError::ApplicationClosed(told) => Close::from_code(told.error_code),
        other => panic!("{other}"),
    }
}

async fn send(connection: &Connection, bytes: &[u8]) {
    let mut stream = connection.open_uni().await.expect("opens");
    stream.write_all(bytes).await.expect("writes");
    stream.finish().expect("finishes");
}

pub(super) const GENERATION: u64 = 1_700_000_000_000;

#[tokio::test]
async fn an_honest_hello_is_answered_and_messages_pass() {
    let mut bench = Bench::new().await;
    let (_endpoint, connection, answer) = bench.hello("a", "demo", 5).await;
    let Some(Received {
        header,
        message: Some(Message::HelloAck(ack)),
        ..
    }) = answer
    else {
        panic!("no HELLO-ACK");
    };
    assert_eq!(
        (header.generation, ack.replica.as_str(), ack.generation_seen),
        (GENERATION, "me", 0)
    );
    assert_eq!(ack.hints[0].gossip_addr, bench.transport.address());
    // A Syn without entries: digest of none, cluster id.
    let syn = [&[0x53, 0xb0, 0, 0, 0, 0, 4, 0], &b"demo"[..]].concat();
    send(&connection, &syn).await;
    let passed = timeout(LIMIT, bench.gossip.recv()).await.expect("in time");
    assert_eq!(passed.expect("open"), syn);
    assert_eq!(
        bench.recorder.links.load(Ordering::Relaxed),
        0,
        "a peer that cannot be dialled is not linked"
    );
}

/// As many as were killed within a day would else keep every new one out.
#[tokio::test]
async fn a_new_replica_finds_a_place_among_those_that_were_killed() {
    let bench = Bench::new().await;
    let long_ago = now().checked_sub(crate::peers::SILENT_AFTER);
    let long_ago = long_ago.expect("the machine has run for a minute");
    for n in 0..crate::peers::REPLICAS_MAX {
        let killed = Member {
            id: format!("x{n}").parse().expect("valid"),
            generation: 5,
            address: bench.transport.address(),
        };
        let mut table = bench.transport.shared.peer_table.lock();
        table.admit(&killed, long_ago).expect("a place");
    }
    let (_endpoint, _connection, answer) = bench.hello("a", "demo", 5).await;
    assert!(answer.is_some(), "it is let in");
    let a = "a".parse().expect("valid");
    assert_eq!(bench.transport.generation_of(&a), Some(5));
}

/// S02: a certificate of `a` does not make a `b`.
#[tokio::test]
async fn a_claim_that_the_certificate_does_not_prove_is_refused() {
    let bench = Bench::new().await;
    let (_endpoint, connection, answer) = bench.hello("b", "demo", 5).await;
    assert!(answer.is_none());
    assert_eq!(closed_with(&connection).await, Some(Close::WrongName));
}

#[tokio::test]
async fn another_cluster_is_refused() {
    let bench = Bench::new().await;
    let (_endpoint, connection, answer) = bench.hello("a", "prod", 5).await;
    assert!(answer.is_none());
    assert_eq!(closed_with(&connection).await, Some(Close::OtherCluster));
}

/// The caller was stopped in its handshake, or gave up: nothing was refused, and no certificate is at fault.
#[tokio::test]
async fn a_handshake_that_is_given_up_is_no_refusal() {
    let bench = Bench::new().await;
    let client = identity::client_config(&identity_of(&bench.authority, "a")).expect("config");
    let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("endpoint");
    endpoint.set_default_client_config(client);
    let connecting = endpoint.connect(bench.transport.address(), "me.demo");
    drop(connecting.expect("dials"));
    let ended = |reason| {
        bench.count(move |metrics| metrics.handshakes.get_or_create(&Why { reason }).get())
    };
    let is_seen = async {
        while ended("closed") + ended("refused") == 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, is_seen).await.expect("it is counted");
    assert_eq!((ended("closed"), ended("refused")), (1, 0));
}

#[tokio::test]
async fn a_connection_without_hello_ends() {
    let bench = Bench::new().await;
    let (_endpoint, connection) = bench.connect().await;
    assert_eq!(closed_with(&connection).await, Some(Close::NoHello));
}

/// `a` greets in this generation, hears which one was seen, and is not let in.
async fn is_outdated(bench: &Bench, generation: u64, seen: u64) {
    let (_endpoint, connection, answer) = bench.hello("a", "demo", generation).await;
    let Some(Received {
        message: Some(Message::HelloAck(ack)),
        ..
    }) = answer
    else {
        panic!("no HELLO-ACK");
    };
    assert_eq!(ack.generation_seen, seen);
    assert_eq!(closed_with(&connection).await, Some(Close::Outdated));
}

/// A restart whose clock went back gets the reason, and is not let in under its old generation.
#[tokio::test]
async fn an_older_generation_learns_the_highest_seen() {
    let bench = Bench::new().await;
    let (first, connection, _) = bench.hello("a", "demo", 9).await;
    connection.close(Close::Done.code(), b"");
    first.wait_idle().await;
    is_outdated(&bench, 5, 9).await;
}

/// The planes remember its last frames for a minute, so what it sends in a lower generation would not count.
#[tokio::test]
async fn an_older_generation_learns_the_highest_seen_also_after_a_leave() {
    let bench = Bench::new().await;
    let (first, connection, _) = bench.hello("a", "demo", 9).await;
    let mut leave = Vec::new();
    wire::encode(&mut leave, 9, 0, &Message::Leave).expect("fits");
    send(&connection, &leave).await;
    let a = "a".parse().expect("id");
    let left = async {
        while bench.transport.generation_of(&a).is_some() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, left).await.expect("it has left");
    connection.close(Close::Leaving.code(), b"");
    first.wait_idle().await;
    is_outdated(&bench, 5, 9).await;
    let (_third, _connection, answer) = bench.hello("a", "demo", 10).await;
    assert!(answer.is_some(), "above it");
    assert_eq!(bench.transport.generation_of(&a), Some(10));
}

/// While the later process answers, the earlier one is not asked to start again above it, but gets its address.
#[tokio::test]
async fn an_older_generation_learns_of_the_process_that_lives() {
    let bench = Bench::new().await;
    let (first, _connection, _) = bench.hello("a", "demo", 9).await;
    let (second, connection, answer) = bench.hello("a", "demo", 5).await;
    assert!(answer.is_none());
    assert_eq!(closed_with(&connection).await, Some(Close::Twin));
    let kept = hello::kept_instead(&connection);
    let address = |of: &Endpoint| of.local_addr().expect("bound");
    let expected = crate::twin::TwinKept {
        address: address(&first),
        generation: 9,
    };
    assert_eq!(kept, Some(expected));
    let twins = bench.transport.twins();
    assert_eq!(twins.len(), 1);
    assert_eq!(
        (twins[0].kept, twins[0].cut_off),
        (address(&first), address(&second))
    );
}

/// By the way to each of our addresses a process dials from another one of its own.
#[tokio::test]
async fn one_process_at_two_addresses_is_no_twin_of_itself() {
    let bench = Bench::new().await;
    // A socket for each call, held so long: another address.
    let mut held = Vec::new();
    let mut seen_by_calling = async |generation, process| {
        let (endpoint, connection) = bench.connect().await;
        let hello = Hello {
            process: Some(process),
            ..hello("a", "demo", &endpoint)
        };
        let answer = greet(&connection, generation, hello).await;
        held.push((endpoint, connection));
        match answer.and_then(|answer| answer.message) {
            Some(Message::HelloAck(ack)) => ack.generation_seen,
            other => panic!("no HELLO-ACK: {other:?}"),
        }
    };
    assert_eq!(seen_by_calling(5, 1).await, 0);
    assert_eq!(seen_by_calling(5, 1).await, 5);
    // Another process, of the same millisecond: it is asked to start above it.
    assert_eq!(seen_by_calling(5, 2).await, 6);
    // The first one, in another generation; and what it sent before that and comes late.
    assert_eq!(seen_by_calling(7, 1).await, 5);
    assert_eq!(seen_by_calling(6, 1).await, 7);
    assert!(bench.transport.twins().is_empty());
}

/// No limit of a peer's reaches it.
#[tokio::test]
async fn a_process_of_our_own_id_keeps_no_connection() {
    let bench = Bench::new().await;
    let (endpoint, connection) = bench.connect_to("me", bench.transport.address()).await;
    let answer = greet(&connection, 5, hello("me", "demo", &endpoint)).await;
    assert!(answer.is_some(), "it learns that there is another one");
    assert_eq!(closed_with(&connection).await, Some(Close::Done));
}

#[tokio::test]
async fn ten_bad_messages_cut_the_sender_off() {
    let mut bench = Bench::new().await;
    let (_endpoint, connection, _) = bench.hello("a", "demo", 5).await;
    for _ in 0..10 {
        send(&connection, b"neither chitchat nor ours").await;
    }
    assert_eq!(closed_with(&connection).await, Some(Close::Banned));
    assert_eq!(bench.count(refusals("malformed")), 10);
    let (_again, connection, answer) = bench.hello("a", "demo", 6).await;
    assert!(answer.is_none());
    assert_eq!(closed_with(&connection).await, Some(Close::Banned));
    assert!(bench.gossip.try_recv().is_err(), "nothing got through");
}

/// Frames of a former life are ignored, those of a later release too; neither is an offence.
#[tokio::test]
async fn former_generations_and_later_releases_are_no_offence() {
    let mut bench = Bench::new().await;
    let (_endpoint, connection, _) = bench.hello("a", "demo", 5).await;
    let mut former = Vec::new();
    wire::encode(&mut former, 4, 0, &Message::Leave).expect("fits");
    let mut later = former.clone();
    later[2] += 1; // the version
    for _ in 0..10 {
        send(&connection, &former).await;
        send(&connection, &later).await;
    }
    let syn = [&[0x53, 0xb0, 0, 0, 0, 0, 4, 0], &b"demo"[..]].concat();
    send(&connection, &syn).await;
    timeout(LIMIT, bench.gossip.recv())
        .await
        .expect("still listened to");
    assert_eq!(bench.count(refusals("malformed")), 0);
}

/// What a later release asks: an empty answer, no offence. It takes that for "does not know".
#[tokio::test]
async fn an_unknown_question_is_answered_with_nothing() {
    let bench = Bench::new().await;
    let (_endpoint, connection, _) = bench.hello("a", "demo", 5).await;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        crate::frame::seal(&mut bytes, 200, 5, 1, &"from a later release").expect("fits");
        let (mut send, mut receive) = connection.open_bi().await.expect("opens");
        send.write_all(&bytes).await.expect("writes");
        send.finish().expect("finishes");
        let answer = timeout(LIMIT, receive.read_to_end(1))
            .await
            .expect("in time");
        assert_eq!(answer.expect("ends"), b"");
    }
    assert_eq!(bench.count(refusals("malformed")), 0);
    assert!(connection.close_reason().is_none());
}

/// A peer of a later release: fields, kinds and frame versions that this one does not know, on every way in. What is
/// known is read, the rest skipped and counted; nobody is struck, nobody cut.
#[tokio::test]
async fn a_later_release_is_understood_as_far_as_it_can_be() {
    let mut bench = Bench::new().await;
    let (_endpoint, connection, _) = bench.hello("a", "demo", 5).await;
    let mut kind = Vec::new();
    crate::frame::seal(&mut kind, 200, 5, 1, &"of a later release").expect("fits");
    let mut longer = Vec::new();
    crate::frame::seal(&mut longer, 12, 5, 1, &"the goodbye, and a reason").expect("fits");
    let mut version = kind.clone();
    version[2] += 1;
    for _ in 0..10 {
        send(&connection, &kind).await;
        send(&connection, &version).await;
        connection
            .send_datagram(kind.clone().into())
            .expect("taken");
        connection
            .send_datagram(version.clone().into())
            .expect("taken");
        let (mut send, mut receive) = connection.open_bi().await.expect("opens");
        send.write_all(&version).await.expect("writes");
        send.finish().expect("finishes");
        // No answer: the stream ends, or is refused.
        let answer = timeout(LIMIT, receive.read_to_end(1)).await;
        assert!(answer.expect("in time").is_ok_and(|bytes| bytes.is_empty()));
    }
    let syn = [&[0x53, 0xb0, 0, 0, 0, 0, 4, 0], &b"demo"[..]].concat();
    send(&connection, &syn).await;
    timeout(LIMIT, bench.gossip.recv())
        .await
        .expect("still listened to");
    assert_eq!(bench.count(refusals("malformed")), 0);
    assert!(connection.close_reason().is_none());
    let dropped = |reason: &'static str| {
        move |metrics: &Metrics| metrics.drops.get_or_create(&Why { reason }).get()
    };
    // Datagrams may be lost; streams are not.
    assert!(bench.count(dropped("unknown_kind")) >= 10);
    assert!(bench.count(dropped("other_version")) >= 20);
    // A message of a known kind with more fields than are known: it counts.
    send(&connection, &longer).await;
    let waiting = async {
        while bench.count(dropped("later_fields")) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, waiting).await.expect("in time");
    assert_eq!(bench.count(refusals("malformed")), 0);
}

/// Anybody can leave ended connections behind, and on a slow path by hundreds.
#[test]
fn what_has_ended_keeps_no_peer_out() {
    let (open, remembered) = (limits::CONNECTIONS, limits::CONNECTIONS_REMEMBERED);
    assert!(!inbound::is_full(open - 1, remembered - 1));
    assert!(inbound::is_full(open, open));
    assert!(inbound::is_full(0, remembered), "memory is bounded");
}

/// Ended connections count in what QUIC remembers, and not among those that are open.
#[tokio::test]
async fn only_open_connections_with_peers_are_counted() {
    let bench = Bench::new().await;
    let count = || bench.transport.shared.peers.lock().open_count();
    let (_endpoint, connection) = bench.connect().await;
    assert_eq!(count(), 0, "without HELLO it is nobody's");
    let (_other, again, _) = bench.hello("a", "demo", 5).await;
    let is = async |expected| {
        while count() != expected {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, is(1)).await.expect("in time");
    again.close(Close::Done.code(), b"");
    timeout(LIMIT, is(0)).await.expect("in time");
    drop(connection);
}

#[tokio::test]
async fn closing_is_bounded_and_ends_all_tasks() {
    let bench = Bench::new().await;
    let (_endpoint, connection, _) = bench.hello("a", "demo", 5).await;
    timeout(LIMIT, bench.transport.close(Duration::from_secs(1)))
        .await
        .expect("bounded");
    assert_eq!(closed_with(&connection).await, Some(Close::Leaving));
    assert!(bench.transport.shared.tracker.is_empty());
}

/// Replicas count a frame of load at one moment by it: the smoothed time would be taken in its place without a word.
#[tokio::test]
async fn the_shortest_way_is_measured() {
    let bench = Bench::new().await;
    let identity = identity_of(&bench.authority, "a");
    let mut config = identity::client_config(&identity).expect("config");
    config.transport_config(limits::quic());
    let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("endpoint");
    endpoint.set_default_client_config(config);
    let connecting = endpoint
        .connect(bench.transport.address(), "me.demo")
        .expect("dials");
    let connection = connecting.await.expect("connects");
    let shortest = async {
        loop {
            if let Some(shortest) = window::shortest_round_trip(&connection) {
                break shortest;
            }
            tokio::task::yield_now().await;
        }
    };
    let shortest = timeout(LIMIT, shortest).await.expect("acknowledged");
    assert!(
        shortest > Duration::ZERO && shortest < LIMIT,
        "{shortest:?}"
    );
    assert!(window::shortest_way(&connection) <= shortest / 2);
}
