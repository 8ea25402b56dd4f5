//! Clients that do not read: the replica holds a bounded part of the answer and the worker waits.

use std::time::Duration;

use grapevine_testbed::fake_worker::{Canned, Fault, Rule};
use grapevine_tests::chat::chat;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::wait::{LIMIT, eventually};
use tokio::time::{Instant, sleep};

use crate::house::House;

const CLIENTS: usize = 100;
/// Clients of these that read on afterwards; the others leave.
const READERS: usize = 10;
const LINE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde\n";
const REPEAT: u32 = 256 << 10;
const ANSWER_BYTES: usize = LINE.len() * REPEAT as usize;
/// A client's share of the replica's memory, and of the kernel's; the answer is 16 times as much.
const KIB_EACH_MAX: u64 = 1 << 10;
/// How long memory is watched while no client reads.
const WATCHED: Duration = Duration::from_secs(1);

/// Memory of all TCP sockets of this machine.
fn kernel_kib() -> u64 {
    let sockets = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let pages = sockets
        .lines()
        .find_map(|line| line.strip_prefix("TCP:")?.rsplit(' ').next()?.parse().ok());
    pages.unwrap_or(0) * 4
}

/// An answer of 16 MiB in one piece.
pub(crate) fn long_answer() -> Fault {
    let reply = Canned {
        status: 200,
        headers: Vec::new(),
        body: Some(LINE.to_owned()),
        repeat: REPEAT,
        gzip: false,
    };
    Fault {
        reply: Some(reply),
        ..Fault::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_clients_hold_back_their_workers() {
    let house = House::new(1).await;
    let fault = long_answer();
    let body = chat("a very long answer", 1).to_string();
    let bytes = request("POST", "/v1/chat/completions", &[], body.as_bytes());
    http1::post(house.data(), "/v1/chat/completions", &chat("warm", 1)).await;
    let process = house.cluster.replicas[0].process();
    let (before, kernel_before) = (process.resident_kib(), kernel_kib());
    house.workers[0]
        .add_rule(Rule::always(fault))
        .expect("room for a rule");

    let mut stalled = Vec::new();
    for _ in 0..CLIENTS {
        let mut connection = Connection::open(house.data()).await;
        connection.send(&bytes).await.expect("taken");
        connection.head().await.expect("the answer has begun");
        stalled.push(connection);
    }
    let watched = Instant::now();
    let mut peak = 0;
    while watched.elapsed() < WATCHED {
        peak = peak.max(process.resident_kib().saturating_sub(before));
        assert!(
            peak <= KIB_EACH_MAX * CLIENTS as u64,
            "{peak} KiB for {CLIENTS} stalled clients"
        );
        let open = house.workers[0].stats().in_flight;
        assert_eq!(open, CLIENTS as u64, "a worker must wait for its client");
        sleep(Duration::from_millis(20)).await;
    }
    let kernel = kernel_kib().saturating_sub(kernel_before);
    println!(
        "{CLIENTS} stalled clients of {ANSWER_BYTES} bytes each: {} KiB each in the replica, {} KiB each in all \
         sockets of this machine, those of the clients and of the worker included",
        peak / CLIENTS as u64,
        kernel / CLIENTS as u64
    );

    let mut readers = tokio::task::JoinSet::new();
    for mut connection in stalled.drain(..READERS) {
        readers.spawn(async move { connection.rest().await.expect("the rest comes").len() });
    }
    for length in readers.join_all().await {
        // The worker's own framing says how long it is; every byte arrived.
        assert_eq!(length, ANSWER_BYTES);
    }
    drop(stalled);
    house.workers[0].clear_rules();
    eventually(LIMIT, "all are complete", async || {
        let complete = house.workers[0].stats().complete;
        (complete == READERS as u64 + 1)
            .then_some(())
            .ok_or_else(|| format!("{complete}"))
    })
    .await;
    house.close().await;
}
