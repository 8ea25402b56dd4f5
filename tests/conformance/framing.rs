//! A request that two HTTP readers could understand differently is refused, and the connection ends. Each
//! accepted request reaches a worker as exactly one well-formed request.

use grapevine_tests::chat::MODEL;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{Connection, request};
use grapevine_tests::invariants;
use grapevine_tests::recorder::Recorder;
use serde::Deserialize;

use crate::errors::assert_error;
use crate::house::{House, quick};

/// Bytes that would be a request of their own if the replica and a worker disagreed about the end of the
/// first one.
const SMUGGLED: &str = "POST /smuggled HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";

/// One way to write a request, and its allowed results.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    /// The bytes; [`SMUGGLED`] follows those that are refused.
    send: String,
    #[serde(default)]
    refused: bool,
    /// Of the requests that reach the worker.
    #[serde(default)]
    body: String,
    #[serde(default)]
    requests: usize,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("framing_vectors.json")).expect("vectors are valid")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_sees_one_well_formed_request_for_each_that_is_accepted() {
    let recorder = Recorder::start().await;
    let plan = Plan::default()
        .worker(&recorder.url(), &[MODEL])
        .set("listen.open_paths", r#"["POST /opened"]"#);
    let house = House::with(plan, Vec::new()).await;
    let (mut refused, mut accepted) = (0, 0);
    for vector in vectors() {
        let name = &vector.name;
        let mut connection = Connection::open(house.data()).await;
        if vector.refused {
            let bytes = format!("{}{SMUGGLED}", vector.send);
            // The replica may close before it has read everything.
            let _ = connection.send(bytes.as_bytes()).await;
            let answer = connection.response().await;
            let answer = answer.unwrap_or_else(|_| panic!("no answer to {name}"));
            assert_error(&answer, 400, "invalid_request");
            assert!(answer.head.header("date").is_some(), "{name}");
            assert!(connection.is_closed().await, "{name}: something followed");
            assert_eq!(recorder.take(), [], "{name}: reached the worker");
            refused += 1;
            continue;
        }
        let sent = connection.send(vector.send.as_bytes()).await;
        sent.unwrap_or_else(|_| panic!("{name} was cut"));
        for _ in 0..vector.requests {
            let answer = connection.response().await;
            let answer = answer.unwrap_or_else(|_| panic!("no answer to {name}"));
            assert_eq!(answer.head.status, 200, "{name}: {}", answer.text());
        }
        let seen = recorder.take();
        assert_eq!(seen.len(), vector.requests, "{name}: {seen:?}");
        for request in seen {
            assert_eq!(request.line, "POST /opened HTTP/1.1", "{name}");
            assert_eq!(request.body, vector.body.as_bytes(), "{name}");
            let length = vector.body.len().to_string();
            let lengths = request.values("content-length");
            assert!(
                lengths == [length.as_str()] || vector.body.is_empty(),
                "{name}: {request:?}"
            );
            for hop in [
                "connection",
                "upgrade",
                "http2-settings",
                "trailer",
                "expect",
            ] {
                assert_eq!(request.values(hop), [""; 0], "{name}: {hop}");
            }
        }
        accepted += 1;
    }
    println!("{refused} vectors refused, {accepted} accepted as one request each");
    invariants::hold(&house.cluster, &[], &[]).await;
}

/// A request is refused before its body was read: no part of that body may be read as a request.
#[tokio::test(flavor = "multi_thread")]
async fn an_unread_body_is_never_the_next_request() {
    let plan = Plan::default().set("limits.body_bytes", "1024");
    let house = House::of(plan, vec![quick()]).await;
    let padded = SMUGGLED.repeat(100);
    for (what, method, target, headers, status) in [
        ("too large", "POST", "/tokenize", &[][..], 413),
        (
            "compressed",
            "POST",
            "/tokenize",
            &[("content-encoding", "gzip")],
            415,
        ),
        (
            "two credentials",
            "POST",
            "/tokenize",
            &[("authorization", "a"), ("authorization", "b")],
            400,
        ),
        ("a wrong method", "PUT", "/v1/completions", &[], 405),
        ("a body for a probe", "GET", "/health", &[], 200),
        ("a body for the models", "GET", "/v1/models", &[], 200),
    ] {
        let bytes = request(method, target, headers, padded.as_bytes());
        let mut connection = Connection::open(house.data()).await;
        let _ = connection.send(&bytes).await;
        let answer = connection.response().await;
        let answer = answer.unwrap_or_else(|_| panic!("no answer to {what}"));
        assert_eq!(answer.head.status, status, "{what}: {}", answer.text());
        // The connection has ended, or the body was read as a body and the next request is answered.
        let _ = connection
            .send(&request("GET", "/liveness", &[], b""))
            .await;
        if let Ok(next) = connection.response().await {
            assert_eq!(
                (next.head.status, next.text().as_str()),
                (200, "ok\n"),
                "{what}"
            );
        }
        let log = house.workers[0].log();
        assert!(log.is_empty(), "{what}: a worker saw {log:?}");
    }
    let paths = house.workers[0].stats().paths;
    assert!(!paths.contains_key("other"), "{paths:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_above_the_limits_are_refused_by_name() {
    const CAP: usize = 64 << 10;
    let plan = Plan::default().set("listen.open_paths", r#"["GET /version"]"#);
    let house = House::of(plan, vec![quick()]).await;
    let value = |bytes: usize| {
        format!(
            "GET /version HTTP/1.1\r\nhost: a\r\nx-long: {}\r\n\r\n",
            "v".repeat(bytes)
        )
    };
    let around = value(0).len();
    let lines = |count: usize| {
        format!(
            "GET /version HTTP/1.1\r\nhost: a\r\n{}\r\n",
            "x-many: 1\r\n".repeat(count - 1)
        )
    };
    let target = |bytes: usize| {
        format!(
            "GET /version?{} HTTP/1.1\r\nhost: a\r\n\r\n",
            "t".repeat(bytes)
        )
    };
    for (what, head, status) in [
        ("a value up to the cap", value(CAP - around - 1), 200),
        ("a value above the cap", value(CAP - around + 1), 431),
        ("a value of 500 KB", value(500 << 10), 431),
        ("100 lines", lines(100), 200),
        ("101 lines", lines(101), 431),
        ("10,000 lines", lines(10_000), 431),
        ("a target of 60 KiB", target(60 << 10), 200),
        ("a target of 70 KiB", target(70 << 10), 414),
        ("a target of 1 MiB", target(1 << 20), 414),
        ("empty lines without end", "\r\n".repeat(CAP), 414),
    ] {
        let mut connection = Connection::open(house.data()).await;
        // The replica may close before it has read everything.
        let _ = connection.send(head.as_bytes()).await;
        let answer = connection.response().await;
        let answer = answer.unwrap_or_else(|_| panic!("no answer to {what}"));
        match status {
            431 => drop(assert_error(&answer, 431, "head_too_large")),
            414 => drop(assert_error(&answer, 414, "target_too_long")),
            _ => assert_eq!(answer.head.status, status, "{what}: {}", answer.text()),
        }
        if status != 200 {
            assert!(connection.is_closed().await, "{what}: something followed");
        }
    }
    let served = house.workers[0].stats().paths["/version"];
    assert_eq!(served, 3, "only those within the limits reached the worker");
    house.close().await;
}
