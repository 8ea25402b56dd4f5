//! Seeds that are dead, silent, odd, the replica itself, or late: a replica serves at once and joins when it
//! can.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_tests::chat::{self, Ending, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::net::{TcpListener, UdpSocket};

const ANY: &str = "127.0.0.1:0";

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_living_seeds_serves_and_joins_late_ones() {
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(1))).await;
    let mut cluster = Plan::default().workers(&workers).found().await;
    // Its ports are known, and nothing listens on them.
    cluster.join("late", Vec::new()).await.kill().await;
    let late = cluster.replicas[0].gossip_address();
    let port = late.rsplit(':').next().expect("an address has a port");
    let seeds = vec![
        late.clone(),
        format!("localhost:{port}"),
        "no-such-host.invalid:1".into(),
    ];
    cluster.join("early", seeds).await;

    let early = &cluster.replicas[1];
    let (_, took) = eventually(LIMIT, "ready alone", async || {
        let ready = early.admin().is_ready().await;
        so(ready, || "not ready".to_owned())
    })
    .await;
    println!("ready without a living seed after {took:?}");
    let outcome = chat::stream(early.data(), &streamed("alone", 3)).await;
    assert_eq!(outcome.ending, Ending::Done);
    logs(early, "no connection: no answer").await;
    logs(early, "seed does not resolve").await;

    // The late one knows only itself; the early one joins it.
    cluster.replicas[0].seeds = vec![late];
    cluster.replicas[0].start().await;
    let (_, took) = eventually(LIMIT, "joined", async || {
        let live = cluster.replicas[1].admin().view().await.live;
        so(live == 2, || format!("{live} live"))
    })
    .await;
    println!("joined {took:?} after the seed came");
    cluster.settled().await;
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seeds_that_are_no_replicas_are_named_and_do_no_harm() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(1))).await;
    let mut cluster = Plan::default().workers(&workers).found().await;
    let silent = UdpSocket::bind(ANY).await.expect("a socket");
    let other = UdpSocket::bind(ANY).await.expect("a socket");
    let http = TcpListener::bind(ANY).await.expect("a socket");
    let address = |found: std::io::Result<SocketAddr>| found.expect("bound").to_string();
    let odd = [
        address(silent.local_addr()),
        address(other.local_addr()),
        address(http.local_addr()),
    ];
    let answering = tokio::spawn(async move {
        let mut packet = vec![0; 2_048];
        while let Ok((_, from)) = other.recv_from(&mut packet).await {
            // The sender may be gone already.
            let _ = other.send_to(b"this is another protocol", from).await;
        }
    });
    cluster.join("r1", odd.to_vec()).await;
    cluster.settled().await;
    for seed in &odd {
        logs(&cluster.replicas[0], &format!("address={seed}")).await;
    }
    let mut seeds = odd.to_vec();
    seeds.push(cluster.replicas[0].gossip_address());
    cluster.join("r2", seeds).await;
    cluster.settled().await;
    answering.abort();
    invariants::hold(&cluster, &workers, &[]).await;
}

async fn logs(replica: &grapevine_tests::cluster::Replica, part: &str) {
    eventually(LIMIT, part, async || {
        let said = replica.log().contains(part);
        so(said, || "it is not in the log".to_owned())
    })
    .await;
}

/// Without a worker of its own it waits longer for them, and which workers it lacks is not known before.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_waits_for_its_seeds_says_nothing_of_workers() {
    let silent = UdpSocket::bind(ANY).await.expect("a free port");
    let seed = silent.local_addr().expect("bound").to_string();
    let mut cluster = Plan::default().found().await;
    let replica = cluster.join("r1", vec![seed]).await;
    let mut waited = 0;
    eventually(LIMIT, "it knows that there is no worker", async || {
        let missing = replica.admin().view().await.missing;
        if missing.iter().any(|lack| lack == "gossip") {
            waited += 1;
            let of_workers = missing.iter().any(|lack| lack.contains("worker"));
            assert!(!of_workers, "{missing:?}");
        }
        so(missing == ["no_worker"], || format!("{missing:?}"))
    })
    .await;
    assert!(waited > 0, "it waits");
}
