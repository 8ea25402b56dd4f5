//! The listener, with real sockets, and peers that behave, that flood, and that are something else.

use std::net::SocketAddr;
use std::sync::Mutex;

use bytes::{Bytes, BytesMut};
use grapevine_gossip::worker::WorkerError;
use grapevine_transfer::ping::Side;
use grapevine_zmtp::{Limits, Session, SocketType, encode_message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::*;
use crate::shutdown::Shutdown;

const WAIT: Duration = Duration::from_secs(20);
/// MessagePack of what an engine with P2P NCCL sends.
const PING: &[u8] =
    b"\x83\xa4type\xa1P\xachttp_address\xad10.0.0.1:8000\xabzmq_address\xae10.0.0.1:21001";

/// Writes pings down; none of a host `refused`.
#[derive(Default)]
struct Recorder(Arc<Mutex<Vec<Ping>>>);

impl Register for Recorder {
    async fn register(&self, ping: Ping) -> Result<(), NotRegistered> {
        if ping.url.contains("refused") {
            return Err(NotRegistered::Worker(WorkerError::Zone));
        }
        self.0.lock().expect("no panic").push(ping);
        Ok(())
    }
}

struct Scene {
    address: SocketAddr,
    metrics: PingMetrics,
    heard: Arc<Mutex<Vec<Ping>>>,
    /// Its end ends the listener.
    shutdown: Shutdown,
}

impl Scene {
    async fn new(connections_max: usize) -> Self {
        let recorder = Recorder::default();
        let heard = Arc::clone(&recorder.0);
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = PingMetrics::register(&mut registry);
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("bound");
        let shutdown = Shutdown::new();
        let pings = Pings::new(recorder, metrics.clone(), connections_max);
        shutdown
            .background()
            .spawn(pings.run(socket, shutdown.phase()));
        Self {
            address,
            metrics,
            heard,
            shutdown,
        }
    }

    fn counted(&self, result: PingResult) -> u64 {
        let result = result.as_str();
        self.metrics
            .pings
            .get_or_create(&ResultLabels { result })
            .get()
    }

    async fn counts(&self, result: PingResult, times: u64) {
        let reached = async {
            while self.counted(result) < times {
                tokio::task::yield_now().await;
            }
        };
        let name = result.as_str();
        timeout(WAIT, reached)
            .await
            .unwrap_or_else(|_| panic!("{name}: {}", self.counted(result)));
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// A DEALER after its handshake.
    async fn dealer(&self) -> TcpStream {
        let mut stream = self.connect().await;
        let limits = Limits {
            message_bytes: 1,
            frames: 1,
        };
        let mut session = Session::new(SocketType::Dealer, limits);
        let mut buffer = BytesMut::new();
        let handshake = async {
            while !session.is_ready() {
                stream
                    .write_all(&session.take_output())
                    .await
                    .expect("open");
                assert_ne!(stream.read_buf(&mut buffer).await.expect("open"), 0);
                assert_eq!(session.next(&mut buffer), Ok(None));
            }
        };
        timeout(WAIT, handshake).await.expect("a handshake");
        stream
    }
}

async fn send(stream: &mut TcpStream, frames: &[&'static [u8]]) {
    let frames: Vec<Bytes> = frames
        .iter()
        .map(|frame| Bytes::from_static(frame))
        .collect();
    let mut wire = BytesMut::new();
    encode_message(&frames, &mut wire);
    stream.write_all(&wire).await.expect("open");
}

async fn is_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end, too: what was not read is still in flight then.
    let _ = timeout(WAIT, stream.read_to_end(&mut rest))
        .await
        .expect("it is closed");
}

#[tokio::test]
async fn a_ping_is_registered_and_what_is_none_costs_no_connection() {
    let scene = Scene::new(10).await;
    let mut dealer = scene.dealer().await;
    send(&mut dealer, &[b"garbage"]).await;
    send(&mut dealer, &[b"\x81\xa4type\xa1X"]).await;
    send(&mut dealer, &[PING]).await;
    // As a REQ does it.
    send(&mut dealer, &[b"", PING]).await;
    scene.counts(PingResult::Renewed, 2).await;
    assert_eq!(scene.counted(PingResult::Malformed), 1);
    assert_eq!(scene.counted(PingResult::UnknownType), 1);
    let heard = scene.heard.lock().expect("no panic").clone();
    assert_eq!(
        (heard[0].side, &*heard[0].url),
        (Side::Prefill, "http://10.0.0.1:8000")
    );
    assert_eq!(heard[0], heard[1]);
}

#[tokio::test]
async fn a_worker_that_is_refused_is_counted_and_keeps_its_connection() {
    let scene = Scene::new(10).await;
    let mut dealer = scene.dealer().await;
    send(
        &mut dealer,
        &[b"\x83\xa4type\xa1D\xachttp_address\xa9refused:1\xabzmq_address\xa3z:1"],
    )
    .await;
    send(&mut dealer, &[PING]).await;
    scene.counts(PingResult::Renewed, 1).await;
    assert_eq!(scene.counted(PingResult::Refused), 1);
}

#[tokio::test]
async fn who_breaks_the_protocol_or_sends_too_much_is_cut_and_others_are_heard() {
    let scene = Scene::new(10).await;
    let mut good = scene.dealer().await;
    let mut web = scene.connect().await;
    web.write_all(b"GET / HTTP/1.1\r\n\r\n")
        .await
        .expect("open");
    is_closed(&mut web).await;
    scene.counts(PingResult::Violation, 1).await;
    let mut large = scene.dealer().await;
    large
        .write_all(b"\x02\0\0\0\xff\xff\xff\xff\xff")
        .await
        .expect("open");
    is_closed(&mut large).await;
    scene.counts(PingResult::TooLarge, 1).await;
    let mut many = scene.dealer().await;
    send(&mut many, &[b"a", b"b", b"c"]).await;
    is_closed(&mut many).await;
    scene.counts(PingResult::TooLarge, 2).await;
    send(&mut good, &[PING]).await;
    scene.counts(PingResult::Renewed, 1).await;
}

#[tokio::test]
async fn a_flood_waits_and_does_not_keep_others_waiting() {
    let scene = Scene::new(10).await;
    let (mut flood, mut good) = (scene.dealer().await, scene.dealer().await);
    let began = Instant::now();
    for _ in 0..15 {
        send(&mut flood, &[b"x"]).await;
    }
    scene.counts(PingResult::TooOften, 1).await;
    send(&mut good, &[PING]).await;
    scene.counts(PingResult::Renewed, 1).await;
    scene.counts(PingResult::Malformed, 15).await;
    assert!(
        began.elapsed() >= Duration::from_millis(900),
        "the flood did not wait"
    );
}

#[tokio::test]
async fn there_are_no_more_connections_than_there_may_be() {
    let scene = Scene::new(1).await;
    let first = scene.dealer().await;
    let mut second = scene.connect().await;
    is_closed(&mut second).await;
    scene.counts(PingResult::NoRoom, 1).await;
    drop(first);
    // Its place is free once its end was seen.
    let again = async {
        loop {
            let mut stream = scene.connect().await;
            let mut byte = [0];
            if stream.read(&mut byte).await.is_ok_and(|read| read == 1) {
                return;
            }
        }
    };
    timeout(WAIT, again).await.expect("a place");
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_does_not_end_and_silence_end_the_connection() {
    let scene = Scene::new(10).await;
    // Paused time runs on by itself while all wait.
    let mut mute = scene.connect().await;
    is_closed_in_time(&mut mute).await;
    scene.counts(PingResult::Silent, 1).await;
    // Bytes that make no message are silence, too.
    let mut slow = scene.dealer().await;
    let began = Instant::now();
    let drip = async {
        while slow.write_all(b"\x04\x03\x02HI").await.is_ok() {
            sleep(Duration::from_secs(7)).await;
        }
    };
    timeout(Duration::from_secs(600), drip)
        .await
        .expect("it is closed");
    assert!(began.elapsed() >= Duration::from_secs(60));
    scene.counts(PingResult::Silent, 2).await;
}

/// As [`is_closed`], under paused time, where the wait itself must be longer than every limit.
async fn is_closed_in_time(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let closed = timeout(Duration::from_secs(600), stream.read_to_end(&mut rest));
    let _ = closed.await.expect("it is closed");
}

#[tokio::test]
async fn the_listener_ends_with_the_replica() {
    let scene = Scene::new(10).await;
    let mut dealer = scene.dealer().await;
    drop(scene.shutdown);
    is_closed(&mut dealer).await;
}
