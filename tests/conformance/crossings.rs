//! Connections that were asked to leave, and whose clients do not hear it, or asked for more before they could: they keep
//! no place that is another one's.

use grapevine_testbed::fake_worker::{Fault, Rule};
use grapevine_tests::chat::chat;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::wait::LIMIT;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::house::{House, quick};

const CHATS: &str = "/v1/chat/completions";

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
