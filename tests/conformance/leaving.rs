//! When a client leaves, its request ends: the worker sees the close in every state of the answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use grapevine_testbed::fake_worker::{Config, EngineConfig, Fault, How, Point, Rule};
use grapevine_tests::chat::{CHATS, Stream, chat, paced, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{Connection, request};
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::Value;

use crate::house::{House, quick};

/// The promised time; the tests allow ten times as much, for a busy machine.
pub(crate) const PROMISED: Duration = Duration::from_millis(100);

pub(crate) fn unix_now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Fin,
    Rst,
    HalfClose,
}

/// Leaves in this way; the returned value keeps a half-closed connection open.
async fn leave(mut connection: Connection, way: Way) -> Option<Connection> {
    match way {
        Way::Fin => None,
        Way::Rst => {
            connection.reset();
            None
        }
        Way::HalfClose => {
            connection.half_close().await;
            Some(connection)
        }
    }
}

/// Waits until the worker notices that the client of its one request has left; returns the time since `left`.
async fn noticed(house: &House, left: Duration, what: &str) -> Duration {
    let worker = &house.workers[0];
    let (gone, _) = eventually(LIMIT, what, async || {
        let log = worker.log();
        let gone = log.last().and_then(|entry| entry.client_gone_us);
        gone.ok_or_else(|| format!("{log:?}"))
    })
    .await;
    let took = Duration::from_micros(gone).saturating_sub(left);
    assert!(
        took <= 10 * PROMISED,
        "{what}: {took:?} after the client left"
    );
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_silent_prefill_is_noticed() {
    let house = House::new(1).await;
    let worker = &house.workers[0];
    let mut slowest = Duration::ZERO;
    // After the request: nothing, a stray line end, a byte, another request.
    let extras: [&[u8]; 4] = [
        b"",
        b"\r\n",
        b"x",
        b"GET /version HTTP/1.1\r\nhost: a\r\n\r\n",
    ];
    for body in [chat("silent", 3), streamed("silent", 3)] {
        for extra in extras {
            for way in [Way::Fin, Way::Rst, Way::HalfClose] {
                worker.reset();
                worker
                    .add_rule(Rule::next(1, Fault::never_answer()))
                    .expect("room for a rule");
                let mut connection = Connection::open(house.data()).await;
                let bytes = request("POST", CHATS, &[], body.to_string().as_bytes());
                connection
                    .send(&[&bytes, extra].concat())
                    .await
                    .expect("taken");
                eventually(LIMIT, "the worker has it", async || {
                    let begun = worker.stats().in_flight == 1;
                    so(begun, || "not yet".to_owned())
                })
                .await;
                let left = unix_now();
                let half_open = leave(connection, way).await;
                let what = format!("{way:?} after {extra:?}, stream {}", body["stream"]);
                slowest = slowest.max(noticed(&house, left, &what).await);
                drop(half_open);
            }
        }
    }
    eventually(LIMIT, "each attempt counts once", async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        let given_up = metrics.sum("grapevine_attempts_total", "result=\"given_up\"");
        let all = metrics.sum("grapevine_attempts_total", "");
        so((given_up, all) == (24.0, 24.0), || {
            format!("{given_up} of {all}")
        })
    })
    .await;
    println!(
        "client gone before the first byte: slowest close at the worker {slowest:?} ({PROMISED:?} promised)"
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_within_its_body_is_counted_as_such() {
    let house = House::new(1).await;
    let chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"mod";
    let announced =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n{";
    let mut half_open = Vec::new();
    let mut left = 0.0;
    for begun in [chunked.as_slice(), announced] {
        for way in [Way::Fin, Way::Rst, Way::HalfClose] {
            let mut connection = Connection::open(house.data()).await;
            connection.send(begun).await.expect("taken");
            half_open.push(leave(connection, way).await);
            left += 1.0;
            let what = format!("{way:?} counts");
            eventually(LIMIT, &what, async || {
                let metrics = house.cluster.replicas[0].admin().metrics().await;
                let counted = metrics.sum("grapevine_requests_total", "client_left");
                so(counted == left, || format!("{counted} of {left}"))
            })
            .await;
        }
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    assert_eq!(
        metrics.sum("grapevine_errors_total", "invalid_request"),
        0.0
    );
    house.close().await;
}

/// OpenAI's client for Python closes so.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_has_all_of_a_stream_has_not_left_it() {
    let house = House::new(1).await;
    let body = streamed("all of it", 3);
    let whole = Stream::open(house.data(), &body).await.expect("accepted");
    let whole = whole.finish().await;
    assert_eq!(whole.events.last().map(String::as_str), Some("[DONE]"));
    let events = u32::try_from(whole.events.len()).expect("few");
    // All is said, and the framing does not end.
    let stop = Fault::stop(Point::Event(events), How::Stall);
    house.workers[0]
        .add_rule(Rule::next(1, stop))
        .expect("room");
    let mut stream = Stream::open(house.data(), &body).await.expect("accepted");
    stream.read_events(whole.events.len()).await.expect("all");
    stream.leave(false);
    eventually(LIMIT, "both are good", async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        let count = |outcome| metrics.sum("grapevine_requests_total", outcome);
        let (good, left) = (count("\"success\""), count("\"client_left\""));
        so((good, left) == (2.0, 0.0), || {
            format!("{good} good, {left} left")
        })
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_mid_stream_is_noticed() {
    let config = paced(Duration::from_millis(10));
    let house = House::of(Plan::default(), vec![config]).await;
    let mut slowest = (Duration::ZERO, 0);
    for by_reset in [false, true, false, true] {
        house.workers[0].reset();
        let body = streamed("a very long answer", 10_000);
        let mut stream = Stream::open(house.data(), &body).await.expect("accepted");
        stream.read_events(5).await.expect("it has begun");
        let left = unix_now();
        stream.leave(by_reset);
        let took = noticed(&house, left, "mid-stream").await;
        let log = house.workers[0].log();
        let tokens = log.last().map_or(0, |entry| entry.tokens);
        slowest = slowest.max((took, tokens));
    }
    println!(
        "client gone mid-stream: slowest close at the worker {:?}, {} tokens made in all",
        slowest.0, slowest.1
    );
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    assert_eq!(metrics.sum("grapevine_requests_total", "client_left"), 4.0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_queued_at_the_worker_is_noticed() {
    let engine = EngineConfig {
        running_max: 1,
        ..paced(Duration::from_millis(10)).engine
    };
    let house = House::of(Plan::default(), vec![Config { engine, ..quick() }]).await;
    let worker = &house.workers[0];
    let mut running = Stream::open(house.data(), &streamed("running", 10_000))
        .await
        .expect("accepted");
    running.read_events(2).await.expect("it has begun");
    let mut queued = Connection::open(house.data()).await;
    let body: Value = streamed("queued", 3);
    let bytes = request("POST", CHATS, &[], body.to_string().as_bytes());
    queued.send(&bytes).await.expect("taken");
    eventually(LIMIT, "both are at the worker", async || {
        let both = worker.stats().in_flight == 2;
        so(both, || "not yet".to_owned())
    })
    .await;
    let left = unix_now();
    drop(queued);
    let took = noticed(&house, left, "queued").await;
    println!("client gone while queued: close at the worker after {took:?}");
    let log = worker.log();
    assert_eq!(
        log.last().map(|entry| entry.tokens),
        Some(0),
        "it never ran"
    );
    running.leave(false);
    house.close().await;
}
