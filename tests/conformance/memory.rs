//! Memory after a burst: it is freed, requests are served again at once, and while it is short the replica
//! reports it.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Fault, Rule};
use grapevine_tests::chat::{CHATS, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::task::JoinSet;

use crate::house::{House, quick};

/// From the end of a burst until a request is served, and until memory is freed.
const SERVED_WITHIN: Duration = Duration::from_secs(5);
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// Clients that connect at the same time.
const TOGETHER: usize = 64;

/// Connections on which these bytes were sent and, if `answered`, one answer was read. Connections that the replica
/// closed meanwhile count, too.
async fn burst(data: SocketAddr, count: usize, bytes: &[u8], answered: bool) -> Vec<Connection> {
    let mut clients = JoinSet::new();
    for share in 0..TOGETHER {
        let bytes = bytes.to_vec();
        clients.spawn(async move {
            let mut open = Vec::new();
            for _ in (share..count).step_by(TOGETHER) {
                let mut connection = Connection::open(data).await;
                let _ = connection.send(&bytes).await;
                if answered {
                    let _ = connection.response().await;
                }
                open.push(connection);
            }
            open
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

/// Asserts after a burst that requests are served, the replica is ready, and memory is freed.
async fn recovers(house: &House, before: u64, what: &str) {
    let (data, replica) = (house.data(), &house.cluster.replicas[0]);
    let (_, served) = eventually(SERVED_WITHIN, "served again and ready", async || {
        let answer = http1::post(data, CHATS, &chat("after", 1)).await;
        let ready = http1::get(data, "/readiness").await;
        match (answer.head.status, ready.head.status) {
            (200, 200) => Ok(()),
            both => Err(format!("{both:?}")),
        }
    })
    .await;
    let most = before + before / 2;
    let (after, back) = eventually(BACK_WITHIN, "memory is back", async || {
        let now = replica.process().resident_kib();
        (now <= most)
            .then_some(now)
            .ok_or_else(|| format!("{now} of {most} KiB"))
    })
    .await;
    println!("{what}: served after {served:?}, {before} -> {after} KiB after {back:?}");
}

/// Memory of the ready replica after its first few hundred connections, for which it keeps memory for good.
async fn warm(house: &House) -> u64 {
    house.until_ready().await;
    let live = request("GET", "/liveness", &[], b"");
    drop(burst(house.data(), 4 * TOGETHER, &live, true).await);
    house.cluster.replicas[0].process().resident_kib()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_leave_no_memory_behind_and_keep_nobody_out() {
    const IDLE: usize = 9_000;
    let plan = Plan::default()
        .set("limits.memory", "\"84MiB\"")
        .set("limits.connections", &IDLE.to_string());
    let house = House::of(plan, vec![quick()]).await;
    let before = warm(&house).await;
    let live = request("GET", "/liveness", &[], b"");
    let idle = burst(house.data(), IDLE, &live, true).await;
    let took = house.cluster.replicas[0].process().resident_kib() - before;
    println!("{IDLE} idle: {took} KiB, those not counted that left for it meanwhile");
    eventually(LIMIT, "short of memory, and not ready", async || {
        let ready = http1::get(house.data(), "/readiness").await;
        let is_short = ready.head.status == 503 && ready.text().contains("\"memory\"");
        so(is_short, || ready.text())
    })
    .await;
    house.until_log_says("short of memory: new").await;
    drop(idle);
    recovers(&house, before, "idle connections").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_leave_no_memory_behind() {
    const HELD: usize = 1_500;
    let house = House::of(Plan::default(), vec![quick()]).await;
    let before = warm(&house).await;
    let worker = &house.workers[0];
    worker
        .add_rule(Rule::next(HELD as u32, Fault::never_answer()))
        .expect("room for a rule");
    let body = chat(&"a long prompt ".repeat(24_000 / 14), 1).to_string();
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    let held = burst(house.data(), HELD, &bytes, false).await;
    let in_flight = async |count: u64| {
        eventually(LIMIT, "so many are at the worker", async || {
            let open = worker.stats().in_flight;
            so(open == count, || open.to_string())
        })
        .await;
    };
    in_flight(HELD as u64).await;
    let took = house.cluster.replicas[0].process().resident_kib() - before;
    println!("{HELD} requests of {} bytes: {took} KiB", bytes.len());
    assert!(
        took as usize > HELD * bytes.len() / 2 / 1024,
        "they were held"
    );
    drop(held);
    in_flight(0).await;
    recovers(&house, before, "waiting requests").await;
    house.close().await;
}
