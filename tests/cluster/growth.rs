//! Many workers added in a short time: changes that arrive together cost one view and one ring, not one each.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use grapevine_testbed::fake_worker::Config;
use grapevine_tests::admin::Admin;
use grapevine_tests::chat::{self, Ending, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::wait::{eventually, so};
use serde_json::json;
use tokio::task::JoinSet;

/// Workers that are added one by one.
const SINGLE: usize = 420;
/// Workers that are added in one list.
const LISTED: usize = 180;
/// Connections that add workers to each replica at the same time.
const ADDERS: usize = 4;
/// Far more than it takes on a busy machine in a debug build.
const GROWN_WITHIN: Duration = Duration::from_secs(90);

/// One process stands for many workers: every address of the loopback network is one of them.
fn url(port: u16, number: usize) -> String {
    let [_, _, high, low] = u32::try_from(number + 1).expect("few").to_be_bytes();
    format!("http://127.1.{high}.{low}:{port}")
}

/// Adds these one after the other, each confirmed before the next is sent.
async fn add(admin: Admin, urls: Vec<String>) {
    let mut connection = Connection::open(admin.0).await;
    for url in urls {
        let body = json!({ "url": url }).to_string();
        let bytes = http1::request("POST", "/workers?warmup=false", &[], body.as_bytes());
        connection.send(&bytes).await.expect("the replica is there");
        let answer = connection.response().await.expect("an answer");
        assert_eq!(answer.head.status, 201, "{}", answer.text());
        let added: serde_json::Value = answer.json();
        assert_eq!(added["replicated"], true, "{added}");
        assert_eq!(added["id"], url);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_come_together_cost_one_ring_and_not_one_each() {
    let config = Config {
        listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        ..chat::paced(Duration::from_millis(1))
    };
    let worker = chat::worker(config).await;
    let port = worker.addr().port();
    // Hundreds of workers are one process here: at the tests' usual interval it would do nothing but answer
    // checks.
    let plan = Plan::default()
        .set("health.interval", "\"10s\"")
        .worker(&url(port, SINGLE + LISTED), &[chat::MODEL]);
    let cluster = plan.start(3).await;
    let before: Vec<f64> = counted(&cluster).await;

    let mut adders = JoinSet::new();
    let shares = 3 * ADDERS;
    for share in 0..shares {
        let admin = cluster.replicas[share % 3].admin();
        let urls = (0..SINGLE).filter(|number| number % shares == share);
        adders.spawn(add(admin, urls.map(|number| url(port, number)).collect()));
    }
    let data: Vec<SocketAddr> = cluster.running().map(|replica| replica.data()).collect();
    let served = tokio::spawn(async move {
        let mut served = 0;
        for number in 0..60 {
            let chat = streamed(&format!("question {number}"), 3);
            let outcome = chat::stream(data[number % 3], &chat).await;
            assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
            served += 1;
        }
        served
    });
    adders.join_all().await;
    assert_eq!(served.await.expect("every chat is served meanwhile"), 60);

    let list: Vec<_> = (SINGLE..SINGLE + LISTED)
        .map(|number| json!({ "url": url(port, number) }))
        .collect();
    let answer = http1::post(cluster.replicas[1].admin().0, "/workers", &list.into()).await;
    assert_eq!(answer.head.status, 201, "{}", answer.text());
    let added: serde_json::Value = answer.json();
    assert_eq!(added["replicated"], true, "{added}");
    assert_eq!(added["workers"].as_array().map(Vec::len), Some(LISTED));

    let all = SINGLE + LISTED + 1;
    let (_, took) = eventually(GROWN_WITHIN, "one ring of all workers", async || {
        let mut rings = Vec::new();
        for replica in cluster.running() {
            rings.push(replica.admin().ring().await);
        }
        let known =
            |ring: &grapevine_tests::admin::Ring| ring.pools.first().map(|pool| pool.workers.len());
        let first = &rings[0];
        let equal = rings.iter().all(|ring| ring == first);
        let whole = first.workers == all && known(first) == Some(all);
        so(equal && whole, || {
            let seen = rings
                .iter()
                .map(|ring| (ring.digest.clone(), ring.workers, known(ring)));
            format!("{:?}", seen.collect::<Vec<_>>())
        })
    })
    .await;
    println!("{all} workers: one ring with all models {took:?} after the last was confirmed");
    for (replica, (now, before)) in cluster
        .running()
        .zip(counted(&cluster).await.iter().zip(before))
    {
        let made = now - before;
        println!(
            "{}: {made} fleets for {all} workers, each added and asked",
            replica.name
        );
        // Without batches there would be one fleet for each addition, and one for each worker's report of its
        // models.
        assert!(made < all as f64 / 4.0, "{}: {made} fleets", replica.name);
        let outcome = chat::stream(replica.data(), &streamed("after", 3)).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
}

/// Fleets that each replica has made.
async fn counted(cluster: &Cluster) -> Vec<f64> {
    let mut counts = Vec::new();
    for replica in cluster.running() {
        let metrics = replica.admin().metrics().await;
        counts.push(metrics.sum("grapevine_fleets_total", ""));
    }
    counts
}
