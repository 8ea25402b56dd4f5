//! "Another process of your id is kept instead": believed only of a replica that showed its certificate, and once.

use quinn::ConnectionId;
use quinn_proto::crypto::ServerConfig as InitialKeys;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::hello::DialError;
use super::stream::read_frame;
use super::tests::{Bench, GENERATION, LIMIT, identity_of};
use super::*;
use crate::twin::TwinKept;

fn kept() -> TwinKept {
    TwinKept {
        address: ([127, 0, 0, 1], 1).into(),
        generation: GENERATION + 1,
    }
}

/// What it takes to answer a first packet: the keys of these packets come from a number that the packet itself shows, so
/// anybody has them (RFC 9001, 5.2).
struct Forger(Arc<dyn InitialKeys>);

impl Forger {
    fn new(bench: &Bench) -> Self {
        // Only the kind of cipher is taken from it.
        let config = identity::server_config(&identity_of(&bench.authority, "stranger"));
        Self(config.expect("a configuration").crypto)
    }

    /// Answers every first packet that comes to the socket with the end of the connection.
    async fn answer(self, socket: UdpSocket) {
        let mut packet = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut packet).await {
            if let Some(forged) = self.forged(&packet[..length]) {
                let _ = socket.send_to(&forged, from).await;
            }
        }
    }

    /// An answer to a client's first packet (RFC 9000, 17.2.2) that closes the connection for this reason.
    fn forged(&self, initial: &[u8]) -> Option<Vec<u8>> {
        const VERSION: u32 = 1;
        const TAG_BYTES: usize = 16;
        let (head, rest) = initial.split_at_checked(5)?;
        let is_initial = head[0] & 0xf0 == 0xc0 && head[1..] == VERSION.to_be_bytes();
        let (length, rest) = rest.split_first().filter(|_| is_initial)?;
        let (theirs, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_first()?;
        let (source, _) = rest.split_at_checked(usize::from(*length))?;

        let reason = kept().to_string();
        // CONNECTION_CLOSE of the application: code, length of the reason, reason (RFC 9000, 19.19).
        let mut close = vec![0x1d, Close::Twin as u8, reason.len() as u8];
        close.extend_from_slice(reason.as_bytes());
        let mut packet = vec![0xc0];
        packet.extend_from_slice(&VERSION.to_be_bytes());
        packet.push(source.len() as u8);
        packet.extend_from_slice(source);
        packet.extend_from_slice(&[4, 9, 9, 9, 9]); // an id of our own
        packet.push(0); // no token
        let body = 1 + close.len() + TAG_BYTES;
        packet.extend_from_slice(&(0x4000 | body as u16).to_be_bytes());
        let number_at = packet.len();
        packet.push(0); // packet number
        let header = packet.len();
        packet.extend_from_slice(&close);
        packet.resize(packet.len() + TAG_BYTES, 0);
        let keys = self.0.initial_keys(VERSION, &ConnectionId::new(theirs));
        let keys = keys.ok()?;
        keys.packet.local.encrypt(0, &mut packet, header);
        keys.header.local.encrypt(number_at, &mut packet);
        Some(packet)
    }
}

/// A socket where nobody has a certificate, and every dial is ended with a forged message.
async fn forging(bench: &Bench) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let address = socket.local_addr().expect("bound");
    bench.transport.spawn(Forger::new(bench).answer(socket));
    address
}

/// A replica with the certificate of `a` that refuses every HELLO.
fn refusing(bench: &Bench) -> SocketAddr {
    let server = credentials::server(&identity_of(&bench.authority, "a")).expect("config");
    let endpoint = Endpoint::server(server, ([127, 0, 0, 1], 0).into()).expect("endpoint");
    let address = endpoint.local_addr().expect("bound");
    bench.transport.spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let Ok(connection) = incoming.await else {
                continue;
            };
            if let Ok((_, mut receive)) = connection.accept_bi().await {
                let _ = read_frame(&mut receive).await;
                connection.close(Close::Twin.code(), kept().to_string().as_bytes());
            }
        }
    });
    address
}

/// Dials as a seed is dialled, or as the replica that it is reported to be.
async fn dial(bench: &Bench, address: SocketAddr, id: Option<&str>) -> DialError {
    let id: Option<ReplicaId> = id.map(|id| id.parse().expect("valid"));
    let dialled = hello::dial(&bench.transport.shared, address, id.as_ref());
    let dialled = timeout(LIMIT, dialled).await.expect("in time");
    dialled.err().expect("it is refused")
}

/// For a seed, for a replica that another one named, and however often: no replica sent it.
#[tokio::test]
async fn a_forged_refusal_is_not_believed() {
    let bench = Bench::new().await;
    for id in [None, Some("a"), Some("b")] {
        let address = forging(&bench).await;
        let error = dial(&bench, address, id).await;
        // It came, and was read.
        assert!(
            matches!(&error, DialError::Closed(reason) if reason == "Twin"),
            "{error}"
        );
    }
    assert_eq!(bench.transport.kept_instead(), None);
}

/// By whatever address it is dialled, as a seed or by its name.
#[tokio::test]
async fn a_replica_that_refuses_counts_once() {
    let bench = Bench::new().await;
    for id in [None, Some("a"), None] {
        let error = dial(&bench, refusing(&bench), id).await;
        let DialError::Twin { by, kept: told } = error else {
            panic!("{error}");
        };
        assert_eq!((by.as_str(), told), ("a", kept()));
    }
    let kept_by = |connected| {
        let mut twins = bench.transport.shared.twins.lock();
        twins.kept_instead(connected, now())
    };
    assert_eq!(kept_by(1), None, "one replica against one connection");
    assert_eq!(kept_by(0), Some(kept().address));
}
