//! Heads that two HTTP readers could understand differently are refused, and the connection ends.

use grapevine_tests::http1::Connection;

use crate::house::House;

/// What would be a request of its own if the replica and a worker disagreed about the first one's end.
const SMUGGLED: &str = "POST /smuggled HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";

const HEADS: [&str; 23] = [
    "host: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    "host: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    "host: a\r\ntransfer-encoding: gzip, chunked\r\n",
    "host: a\r\ntransfer-encoding: chunked, identity\r\n",
    "host: a\r\ntransfer-encoding: xchunked\r\n",
    "host: a\r\ntransfer-encoding: \x0bchunked\r\n",
    "host: a\r\ntransfer-encoding : chunked\r\n",
    "host: a\r\ntransfer-encoding:\r\n chunked\r\n",
    "host: a\r\ncontent-length: 3\r\ncontent-length: 5\r\n",
    "host: a\r\ncontent-length: 3, 3\r\n",
    "host: a\r\ncontent-length: +3\r\n",
    "host: a\r\ncontent-length: -1\r\n",
    "host: a\r\ncontent-length: 0x3\r\n",
    "host: a\r\ncontent-length: 3 3\r\n",
    "host: a\r\ncontent-length: 99999999999999999999\r\n",
    "host: a\r\ncontent-length : 3\r\n",
    "content-length: 3\r\n",
    "host: a\r\nhost: b\r\ncontent-length: 3\r\n",
    "host: a\r\nx-a: 1\r\n x-folded: 2\r\n",
    "host: a\r\nx-a: 1\rx-b: 2\r\n",
    "host: a\r\nx-a: \0\r\n",
    "host: a\r\nx a: 1\r\n",
    "host: a\r\n: 1\r\n",
];

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_heads_are_refused_and_nothing_follows_them() {
    let house = House::new(1).await;
    for head in HEADS {
        let bytes = format!("POST /tokenize HTTP/1.1\r\n{head}\r\n0\r\n\r\n{SMUGGLED}");
        let mut connection = Connection::open(house.data()).await;
        connection.send(bytes.as_bytes()).await.expect("taken");
        let answer = connection.response().await;
        let answer = answer.unwrap_or_else(|_| panic!("no answer to {head:?}"));
        assert_eq!(answer.head.status, 400, "{head:?}: {}", answer.text());
        assert!(connection.is_closed().await, "{head:?}: something followed");
        let log = house.workers[0].log();
        assert!(log.is_empty(), "{head:?}: a worker saw {log:?}");
    }
    // Bare line feeds, the version, and the request line.
    for bytes in [
        "POST /tokenize HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /tokenize HTTP/9.9\r\nhost: a\r\n\r\n",
        "POST  /tokenize HTTP/1.1\r\nhost: a\r\n\r\n",
        "P\x01ST /tokenize HTTP/1.1\r\nhost: a\r\n\r\n",
    ] {
        let mut connection = Connection::open(house.data()).await;
        let bytes = format!("{bytes}{SMUGGLED}");
        connection.send(bytes.as_bytes()).await.expect("taken");
        let status = connection.response().await.map(|answer| answer.head.status);
        assert!(matches!(status, Ok(400 | 505)), "{bytes:?}: {status:?}");
        assert!(
            connection.is_closed().await,
            "{bytes:?}: something followed"
        );
    }
    let log = house.workers[0].log();
    assert!(log.is_empty(), "a worker saw {log:?}");
    house.close().await;
}

/// RFC 9112, section 6.3: `Transfer-Encoding` wins over `Content-Length`, and the connection must end.
#[tokio::test(flavor = "multi_thread")]
async fn both_framings_are_one_request_at_most_and_end_the_connection() {
    let house = House::new(1).await;
    for head in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 500\r\n",
    ] {
        house.workers[0].reset();
        let bytes = format!(
            "POST /tokenize HTTP/1.1\r\nhost: a\r\n{head}\r\n2\r\n{{}}\r\n0\r\n\r\n{SMUGGLED}"
        );
        let mut connection = Connection::open(house.data()).await;
        connection.send(bytes.as_bytes()).await.expect("taken");
        connection.response().await.expect("answered");
        assert!(connection.is_closed().await, "{head:?}: something followed");
        let log = house.workers[0].log();
        for entry in &log {
            assert_eq!(
                (entry.path.as_str(), entry.body_bytes),
                ("/tokenize", 2),
                "{head:?}"
            );
        }
        assert!(log.len() <= 1, "{head:?}: {log:?}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_heads_are_refused() {
    let house = House::new(1).await;
    for (what, head) in [
        (
            "a long value",
            format!("x-long: {}\r\n", "v".repeat(128 << 10)),
        ),
        ("many headers", "x-many: 1\r\n".repeat(200)),
    ] {
        let bytes = format!("GET /version HTTP/1.1\r\nhost: a\r\n{head}\r\n");
        let mut connection = Connection::open(house.data()).await;
        // It may close before it has taken everything.
        let _ = connection.send(bytes.as_bytes()).await;
        let status = connection.head().await.map(|head| head.status);
        assert!(!matches!(status, Ok(200)), "{what}: {status:?}");
    }
    assert!(!house.workers[0].stats().paths.contains_key("/version"));
}
