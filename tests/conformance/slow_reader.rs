//! Clients that do not read: the replica holds a bounded part of the answer and the worker waits.

use std::time::Duration;

use grapevine_testbed::fake_worker::{Canned, Fault, Rule};
use grapevine_tests::chat::{chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, Cut, request};
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::time::{Instant, sleep, sleep_until};

use crate::house::{House, quick};

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
        so(complete == READERS as u64 + 1, || format!("{complete}"))
    })
    .await;
    house.close().await;
}

/// Its worker is always ahead, so nobody ever waits for that one.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_request_is_over_for_a_client_that_reads_slowly() {
    const PIECE: usize = 64 << 10;
    let time = Duration::from_secs(1);
    let plan = Plan::default().set("timeouts.whole_request", "\"1s\"");
    let house = House::of(plan, vec![quick()]).await;
    let event = format!("data: {{\"text\":\"{}\"}}\n\n", "x".repeat(4_000));
    for (number, events) in [(1.0, false), (2.0, true)] {
        let mut fault = long_answer();
        if events && let Some(reply) = &mut fault.reply {
            reply.headers = vec![("content-type".into(), "text/event-stream".into())];
            reply.repeat = u32::try_from(ANSWER_BYTES / event.len()).expect("some thousand");
            reply.body = Some(event.clone());
        }
        let rule = Rule::next(1, fault);
        house.workers[0].add_rule(rule).expect("room for a rule");
        let body = if events {
            streamed("much", 1)
        } else {
            chat("much", 1)
        };
        let body = body.to_string();
        let bytes = request("POST", "/v1/chat/completions", &[], body.as_bytes());
        let mut connection = Connection::open(house.data()).await;
        let begun = Instant::now();
        connection.send(&bytes).await.expect("taken");
        connection.head().await.expect("the answer has begun");
        sleep_until(begun + time).await;
        let mut read = Vec::new();
        let cut = loop {
            match connection.data().await {
                Ok(None) => break false,
                Err(Cut) => break true,
                Ok(Some(data)) => {
                    let before = read.len();
                    read.extend_from_slice(&data);
                    if before / PIECE < read.len() / PIECE {
                        sleep(Duration::from_millis(5)).await;
                    }
                }
            }
        };
        let length = read.len();
        // A stream ends with the event that says why; of a plain answer a part must not look like the whole.
        assert_eq!(cut, !events, "{length} bytes");
        assert!(length < ANSWER_BYTES, "{length} bytes: {events}");
        let last = String::from_utf8_lossy(&read[length.saturating_sub(1_000)..]);
        assert_eq!(last.contains("\"error\""), events, "{last}");
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        let counted = metrics.sum("grapevine_requests_total", "\"out_of_time\"");
        assert_eq!(counted, number);
    }
    house.close().await;
}
