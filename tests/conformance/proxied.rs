//! Behind a balancer that only passes bytes: the PROXY protocol on the data port.

use std::net::SocketAddr;

use grapevine_testbed::fake_worker::Entry;
use grapevine_tests::chat::chat;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::tls::{Authority, shake_hands};
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::house::{House, quick};

const FROM_HERE: &str = r#"["127.0.0.0/8"]"#;
const V1: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 443\r\n";

/// A header of version 2 with fields behind the addresses.
fn v2(command: u8) -> Vec<u8> {
    let addresses = [203, 0, 113, 9, 10, 0, 0, 1, 0x9c, 0x40, 0x01, 0xbb];
    let tlvs = [0x02, 0, 4, b'h', b'o', b's', b't', 0xe0, 0, 0];
    let head = [b"\r\n\r\n\0\r\nQUIT\n", &[0x20 | command, 0x11, 0, 22][..]].concat();
    [&head[..], &addresses, &tlvs].concat()
}

fn request() -> Vec<u8> {
    let body = chat("through a balancer", 1).to_string();
    http1::request("POST", "/v1/chat/completions", &[], body.as_bytes())
}

/// The status of a request behind this header.
async fn ask(house: &House, header: &[u8]) -> u16 {
    let mut connection = Connection::open(house.data()).await;
    let bytes = [header, &request()].concat();
    connection.send(&bytes).await.expect("taken");
    connection.response().await.expect("answered").head.status
}

fn forwarded_for(house: &House) -> String {
    let log = house.workers[0].log();
    let last: &Entry = log.last().expect("the worker was asked");
    last.header("x-forwarded-for")
        .expect("always there")
        .to_owned()
}

/// All bytes that come back until the connection ends.
async fn end_of(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(bytes).await.expect("taken");
    let mut all = Vec::new();
    // A reset is an end, too.
    let _ = timeout(LIMIT, stream.read_to_end(&mut all))
        .await
        .expect("the connection ends");
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_is_who_the_balancer_says() {
    let plan = Plan::default()
        .set("listen.proxy_protocol_from", FROM_HERE)
        .set("listen.trusted_proxies", r#"["203.0.113.0/24"]"#);
    let house = House::of(plan, vec![quick()]).await;
    assert_eq!(ask(&house, V1).await, 200);
    assert_eq!(forwarded_for(&house), "192.0.2.7");
    house.until_log_says("client=192.0.2.7").await;
    // The balancer's own connections, such as its health checks.
    for own in [b"PROXY UNKNOWN\r\n".to_vec(), v2(0)] {
        assert_eq!(ask(&house, &own).await, 200);
        assert_eq!(forwarded_for(&house), "127.0.0.1");
    }
    // The address in the header is trusted as the connection's address.
    let mut connection = Connection::open(house.data()).await;
    let body = chat("a chain", 1).to_string();
    let chain = [("x-forwarded-for", "198.51.100.1")];
    let bytes = http1::request("POST", "/v1/chat/completions", &chain, body.as_bytes());
    // Byte by byte at first: the pieces of the header must not matter.
    let header = v2(1);
    for byte in &header {
        connection.send(&[*byte]).await.expect("taken");
    }
    connection.send(&bytes).await.expect("taken");
    let answer = connection.response().await.expect("answered");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(forwarded_for(&house), "198.51.100.1, 203.0.113.9");

    // Without a header, or with two, a client is not served.
    let asked = house.workers[0].log().len();
    assert_eq!(end_of(house.data(), &request()).await, "");
    let twice = [V1, V1, &request()].concat();
    assert_eq!(end_of(house.data(), &twice).await, "");
    assert_eq!(house.workers[0].log().len(), asked, "a worker was asked");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    for (result, expected) in [
        ("proxied", 3.0),
        ("own", 2.0),
        ("malformed", 1.0),
        ("unasked", 1.0),
    ] {
        let counted = metrics.sum("grapevine_proxy_headers_total", result);
        assert_eq!(counted, expected, "{result}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_from_anybody_else_is_refused() {
    let plan = Plan::default().set("listen.proxy_protocol_from", r#"["10.0.0.0/8"]"#);
    let house = House::of(plan, vec![quick()]).await;
    for header in [V1.to_vec(), v2(1)] {
        let bytes = [header, request()].concat();
        assert_eq!(end_of(house.data(), &bytes).await, "", "it was answered");
    }
    assert!(house.workers[0].log().is_empty(), "a worker was asked");
    assert_eq!(ask(&house, b"").await, 200);
    assert_eq!(forwarded_for(&house), "127.0.0.1");
    house.until_log_says("listen.proxy_protocol_from").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_does_not_end_is_closed_in_time() {
    let plan = Plan::default()
        .set("listen.proxy_protocol_from", FROM_HERE)
        .set("timeouts.first_byte", "\"300ms\"");
    let house = House::of(plan, vec![quick()]).await;
    for part in [&b""[..], b"PROXY TCP4 192.", &v2(1)[..20]] {
        assert_eq!(end_of(house.data(), part).await, "");
    }
    let endless = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"[..], &[0; 8_192]].concat();
    assert_eq!(end_of(house.data(), &endless).await, "");
    eventually(LIMIT, "no connection is left", async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        let open = metrics.sum("grapevine_connections", "");
        so(open == 0.0, || format!("{open} are"))
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_comes_behind_the_header() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let authority = Authority::new();
    let pair = authority.issue(dir.path(), "port", &["localhost"]);
    let plan = Plan::default()
        .set("tls.cert", &format!("{:?}", pair.cert))
        .set("tls.key", &format!("{:?}", pair.key))
        .set("listen.proxy_protocol_from", FROM_HERE);
    let house = House::of(plan, vec![quick()]).await;
    let mut stream = TcpStream::connect(house.data()).await.expect("connected");
    stream.write_all(&v2(1)).await.expect("taken");
    let mut stream = shake_hands(authority.client(), stream)
        .await
        .expect("shaken");
    stream.write_all(&request()).await.expect("taken");
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.expect("answered");
    assert_eq!(&first, b"HTTP/1.1 200");
    assert_eq!(forwarded_for(&house), "203.0.113.9");
    house.close().await;
}
