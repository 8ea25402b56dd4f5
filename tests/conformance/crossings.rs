//! Connections that were asked to leave, and whose clients do not hear it, or asked for more before they could: they keep
//! no place that is another one's.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Fault, Rule};
use grapevine_tests::chat::{CHATS, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::wait::LIMIT;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::h2_floods::{END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, SETTINGS, frame};
use crate::house::{House, quick};

/// A client that asks for this over HTTP/2, and then does nothing, whatever it is sent.
async fn deaf(address: SocketAddr, path: &str) -> TcpStream {
    // RFC 7541: GET and http by their numbers, then names by theirs and literal values.
    let mut block = vec![0x82, 0x86];
    for (name, value) in [(4_u8, path), (1, "grapevine.test")] {
        block.extend([name, u8::try_from(value.len()).expect("short")]);
        block.extend(value.as_bytes());
    }
    let opening = [
        PREFACE,
        &frame(SETTINGS, 0, 0, b""),
        &frame(HEADERS, END_STREAM | END_HEADERS, 1, &block),
    ];
    let mut client = TcpStream::connect(address).await.expect("accepted");
    client.write_all(&opening.concat()).await.expect("taken");
    client
}

/// Reads up to the word to leave.
async fn until_told(client: &mut TcpStream) {
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        client.read_exact(&mut payload).await.expect("all of it");
        if head[3] == GOAWAY {
            return;
        }
    }
}

/// Its replica waits for an answer to the word, for as long as for one that reads slowly; but not where others wait.
#[tokio::test(flavor = "multi_thread")]
async fn connections_over_http2_that_do_not_end_keep_nobody_out() {
    /// As many again are spare.
    const PLACES: usize = 4;
    let plan = Plan::default()
        .set("limits.connections", &PLACES.to_string())
        .set("timeouts.keep_alive", "\"500ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let data = house.data();
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut crowd = Vec::new();
        for _ in 0..PLACES {
            crowd.push(deaf(data, "/liveness").await);
        }
        for client in &mut crowd {
            let told = timeout(LIMIT, until_told(client)).await;
            told.expect("it has rested for long enough");
        }
        kept.append(&mut crowd);
    }
    let live = timeout(Duration::from_secs(3), http1::get(data, "/liveness")).await;
    assert_eq!(live.expect("a place is free").head.status, 200);
    drop(kept);
    house.close().await;
}

/// Connections that make room for another one of their own client have half a second for a request that they did not hear
/// the word before.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cross_the_word_are_no_more_than_their_address_may_have() {
    const MOST: usize = 4;
    const CROWD: usize = 6 * MOST;
    let plan = Plan::default().set("limits.connections_per_address", &MOST.to_string());
    let house = House::of(plan, vec![quick()]).await;
    let (data, worker) = (house.data(), &house.workers[0]);
    worker
        .add_rule(Rule::next(CROWD as u32, Fault::never_answer()))
        .expect("room for a rule");
    let live = request("GET", "/liveness", &[], b"");
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        let mut connection = Connection::open(data).await;
        connection.send(&live).await.expect("taken");
        let answer = connection.response().await.expect("an answer");
        assert_eq!(answer.head.status, 200);
        crowd.push(connection);
    }
    let body = chat("crossing", 1).to_string();
    let asks = request("POST", CHATS, &[], body.as_bytes());
    let mut ended = JoinSet::new();
    for mut connection in crowd {
        // Some are closed by now.
        let _ = connection.send(&asks).await;
        ended.spawn(async move { connection.response().await.map(|answer| answer.head.status) });
    }
    let mut refused = 0;
    for number in 0..CROWD - MOST {
        let next = timeout(LIMIT, ended.join_next()).await;
        let next = next.unwrap_or_else(|_| panic!("{} are served", CROWD - number));
        // The others are closed, as they were told.
        if let Ok(status) = next.expect("more of them").expect("no panic") {
            assert_eq!(status, 503);
            refused += 1;
        }
    }
    let served = worker.stats().in_flight;
    println!("{refused} of {CROWD} were refused, {served} are served");
    assert!(served as usize <= MOST, "{served}");
    ended.abort_all();
    house.close().await;
}
