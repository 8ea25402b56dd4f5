//! Pings to a proxy, read as a ROUTER socket of ZeroMQ reads them.

use tokio::net::TcpListener;

use super::split::config;
use super::*;

/// Plays a proxy for one worker: its identity, and the first two payloads.
async fn listened(listener: &TcpListener) -> (String, [Vec<u8>; 2]) {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let mut greeting = [0; 64];
    stream.read_exact(&mut greeting).await.expect("a greeting");
    assert_eq!(&greeting[..16], b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL");
    stream.write_all(&greeting).await.expect("open");
    let ready = frame(&mut stream, 4).await;
    let router = b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER";
    let head = [4, router.len() as u8];
    stream
        .write_all(&[&head[..], router].concat())
        .await
        .expect("open");
    let identity = ready
        .strip_prefix(b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0")
        .expect("a dealer with an identity");
    let identity = String::from_utf8(identity[1..].to_vec()).expect("text");
    let payloads = [frame(&mut stream, 0).await, frame(&mut stream, 0).await];
    (identity, payloads)
}

async fn frame(stream: &mut TcpStream, flags: u8) -> Vec<u8> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.expect("a frame");
    assert_eq!(head[0], flags);
    let mut body = vec![0; usize::from(head[1])];
    stream.read_exact(&mut body).await.expect("its body");
    body
}

/// A worker that pings, and what the proxy hears.
async fn pinging(connector: Connector, role: Role) -> (FakeWorker, String, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut config = config(connector, role);
    let transfer = config.transfer.as_mut().expect("it has one");
    let proxy = listener.local_addr().expect("an address");
    transfer.proxy = Some(proxy.to_string());
    transfer.ping_every = Duration::from_millis(20);
    let worker = start(config).await;
    let heard = timeout(LIMIT, listened(&listener)).await;
    let (identity, [first, second]) = heard.expect("it pings");
    assert_eq!(first, second);
    // A proxy that comes back is pinged again.
    let again = timeout(LIMIT, listened(&listener)).await;
    assert_eq!(again.expect("it comes back").0, identity);
    (worker, identity, first)
}

#[tokio::test]
async fn p2p_nccl_pings_with_its_two_addresses() {
    let (worker, identity, ping) = pinging(Connector::P2pNccl, Role::Prefill).await;
    let side = worker.side_channel().expect("it has one").to_string();
    assert_eq!(identity, side);
    let http = worker.addr().to_string();
    let text = |text: &str| {
        let mut bytes = vec![0xa0 | text.len() as u8];
        bytes.extend_from_slice(text.as_bytes());
        bytes
    };
    let fields = ["type", "P", "http_address", &http, "zmq_address", &side];
    let expected: Vec<u8> = fields.iter().flat_map(|field| text(field)).collect();
    assert_eq!(ping, [&[0x83], &expected[..]].concat());
}

#[tokio::test]
async fn moriio_pings_with_its_mode_and_sizes() {
    let (worker, identity, ping) = pinging(Connector::MoriioWrite, Role::Decode).await;
    let side = worker.side_channel().expect("it has one");
    let (host, port) = (side.ip(), side.port());
    assert_eq!(
        identity,
        format!("host:{host},handshake:{port},notify:{port}")
    );
    assert_eq!(ping[..7], *b"\x86\xa4type\xa1");
    let end = b"\xadtransfer_mode\xa5WRITE\xa7tp_size\x01\xa7dp_size\x01";
    assert!(ping.ends_with(end), "{}", String::from_utf8_lossy(&ping));
}
