//! Workers that get requests in HTTP/2 (`workers.http2`): a hyper server in front of a fake worker, and workers that
//! send frames that a test wrote.

mod broken;
mod front;
mod scripted;

use std::path::Path;

use futures_util::StreamExt;
use grapevine_testbed::fake_worker::Rule;
use grapevine_tests::chat::{self, CHATS, Ending, MODEL, Stream, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::tls::{Authority, Front};
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Duration, Instant, sleep};

use crate::errors::assert_error;
use crate::house::{House, quick};
use crate::odd_workers::raw_worker;
use crate::slow_reader::long_answer;

use self::front::*;

fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

/// A replica, one fake worker, and HTTP/2 in front of it, with TLS or without.
async fn fronted(plan: Plan, dir: &Path, with_tls: bool) -> (House, Http2Front) {
    let fake = chat::worker(quick()).await;
    let authority = Authority::new();
    let pair = authority.issue(dir, "worker", &["localhost"]);
    let ca = dir.join("ca.pem");
    authority.write(&ca);
    let front = Http2Front::start(fake.addr(), with_tls.then_some(&pair)).await;
    let url = front.url(if with_tls { "https" } else { "http" });
    let plan = plan.set("workers.ca", &quoted(&ca)).worker(&url, &[MODEL]);
    let house = House::with(plan, vec![fake]).await;
    until_healthy(&house, 1).await;
    (house, front)
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_are_whole_and_connections_are_used_again() {
    const REQUESTS: usize = 20;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for (http2, with_tls) in [("on", false), ("on", true), ("tls", true)] {
        let alias = format!("[{{ name = \"alias\", targets = [{MODEL:?}] }}]");
        let plan = asking(http2).set("model", &alias);
        let (house, front) = fronted(plan, dir.path(), with_tls).await;
        for number in 0..REQUESTS {
            let answer = http1::post(house.data(), CHATS, &chat("plain", 3)).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
            // A body longer than a window, sent in pieces; the model's name is at its end.
            let mut long = streamed(&format!("{number} {}", "x".repeat(200 << 10)), 5);
            long["model"] = "alias".into();
            let outcome = chat::stream(house.data(), &long).await;
            assert_eq!(outcome.ending, Ending::Done, "{http2}: {outcome:?}");
            assert_eq!(outcome.events.len(), 7, "role, 5 tokens, [DONE]");
        }
        let requests = front.requests();
        assert_eq!(requests.len(), 2 * REQUESTS, "{http2}: all in HTTP/2");
        assert!(front.connections() < REQUESTS, "{http2}: not used again");
        let target = front.url(if with_tls { "https" } else { "http" }) + CHATS;
        for (seen, headers) in requests {
            assert_eq!(seen, target);
            let of_one_hop = ["host", "connection", "transfer-encoding", "te", "upgrade"];
            let mut names = headers.iter().map(|(name, _)| name.as_str());
            assert!(names.all(|name| !of_one_hop.contains(&name)), "{headers:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_is_gone_from_the_worker() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for with_tls in [false, true] {
        let (house, _front) = fronted(asking("on"), dir.path(), with_tls).await;
        let stays = Stream::open(house.data(), &streamed("stays", 2_000)).await;
        for (gone, by_reset) in [(1, false), (2, true)] {
            let leaves = Stream::open(house.data(), &streamed("leaves", 100_000)).await;
            let mut leaves = leaves.expect("accepted");
            leaves.read_events(3).await.expect("it has begun");
            let left = Instant::now();
            leaves.leave(by_reset);
            eventually(LIMIT, "the worker sees it", async || {
                let seen = house.workers[0].stats().clients_gone;
                so(seen == gone, || format!("{seen} gone"))
            })
            .await;
            println!("left, and gone at the worker after {:?}", left.elapsed());
        }
        // This stream is on a connection of its own.
        let stays = stays.expect("accepted").finish().await;
        assert_eq!(stays.ending, Ending::Done);
    }
}

/// Clients that do not read: no more of an answer is held than over HTTP/1.1.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_hold_back_their_worker() {
    const CLIENTS: u64 = 20;
    /// The answer is 16 times as much.
    const KIB_EACH_MAX: u64 = 1 << 10;
    const WATCHED: Duration = Duration::from_secs(1);
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (house, front) = fronted(asking("on"), dir.path(), false).await;
    http1::post(house.data(), CHATS, &chat("warm", 1)).await;
    let process = house.cluster.replicas[0].process();
    let before = process.resident_kib();
    house.workers[0]
        .add_rule(Rule::always(long_answer()))
        .expect("room for a rule");
    let body = chat("a very long answer", 1).to_string();
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    let mut stalled = Vec::new();
    for _ in 0..CLIENTS {
        let mut connection = Connection::open(house.data()).await;
        connection.send(&bytes).await.expect("taken");
        connection.head().await.expect("the answer has begun");
        stalled.push(connection);
    }
    let (watched, mut peak) = (Instant::now(), 0);
    while watched.elapsed() < WATCHED {
        peak = peak.max(process.resident_kib().saturating_sub(before));
        assert!(peak <= KIB_EACH_MAX * CLIENTS, "{peak} KiB");
        let open = house.workers[0].stats().in_flight;
        assert_eq!(open, CLIENTS, "a worker must wait for its client");
        sleep(Duration::from_millis(20)).await;
    }
    println!(
        "{} KiB for each of {CLIENTS} stalled clients",
        peak / CLIENTS
    );
    let mut reader = stalled.swap_remove(0);
    let rest = reader.rest().await.expect("the rest comes");
    assert_eq!(rest.len(), 16 << 20);
    assert!(front.requests().len() as u64 > CLIENTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_choose_http2_is_asked_in_http1() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let authority = Authority::new();
    let pair = authority.issue(dir.path(), "worker", &["localhost"]);
    let ca = dir.path().join("ca.pem");
    authority.write(&ca);
    let fake = chat::worker(quick()).await;
    let front = Front::start(&pair, None, fake.addr()).await;
    for (http2, url) in [
        ("on", front.url("localhost")),
        ("tls", front.url("localhost")),
        ("tls", fake.url()),
    ] {
        let plan = asking(http2)
            .set("workers.ca", &quoted(&ca))
            .worker(&url, &[MODEL]);
        let house = House::with(plan, Vec::new()).await;
        until_healthy(&house, 1).await;
        for _ in 0..3 {
            let answer = http1::post(house.data(), CHATS, &chat("hello", 2)).await;
            assert_eq!(answer.head.status, 200, "{http2} {url}: {}", answer.text());
        }
    }
}

/// A worker that sends no SETTINGS counts as unreachable, soon and with a log line that gives the reason.
#[tokio::test(flavor = "multi_thread")]
async fn who_must_speak_http2_and_does_not_is_named_in_the_log() {
    let fake = chat::worker(quick()).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent_url = format!("http://{}", silent.local_addr().expect("bound"));
    let refuses = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n";
    let (refusing_url, _refusing) = raw_worker(refuses).await;
    for (url, why) in [
        (silent_url, "timed out"),
        (refusing_url, "frame with invalid size"),
        // A reset, or an end, whichever comes first.
        (fake.url(), "error="),
    ] {
        let plan = asking("on")
            .set("timeouts.tls_handshake", "\"300ms\"")
            .set("health.interval", "\"1h\"")
            .worker(&url, &[MODEL]);
        let house = House::with(plan, Vec::new()).await;
        let begun = Instant::now();
        let answer = http1::post(house.data(), CHATS, &chat("hello", 1)).await;
        assert_error(&answer, 503, "no_worker_available");
        println!("{why}: refused after {:?}", begun.elapsed());
        assert!(begun.elapsed() < LIMIT / 2, "{why}: it hung");
        house.until_log_says("did not answer in it").await;
        let log = house.cluster.replicas[0].log();
        let mut lines = log.lines().filter(|line| line.contains("(workers.http2)"));
        let line = lines.next().expect("it says so");
        assert!(line.contains(&url) && line.contains(why), "{line}");
        assert_eq!(lines.next(), None, "once");
    }
    assert_eq!(fake.stats().requests, 0);
}

/// Sessions change protocols, which HTTP/2 does not.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_asked_for_in_http1() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for with_tls in [false, true] {
        let (house, front) = fronted(asking("on"), dir.path(), with_tls).await;
        // Leaves an idle connection that could be reused.
        let answer = http1::post(house.data(), CHATS, &chat("hello", 1)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let url = format!("ws://{}/v1/realtime?model={MODEL}", house.data());
        let stream = TcpStream::connect(house.data()).await.expect("connected");
        let opened = tokio_tungstenite::client_async(url, stream).await;
        let (mut socket, _) = opened.expect("a session");
        let greeting = socket.next().await.expect("no end").expect("a message");
        assert!(
            greeting.to_string().contains("session.created"),
            "{greeting}"
        );
        assert_eq!(front.requests().len(), 1, "the chat alone was in HTTP/2");
    }
}
