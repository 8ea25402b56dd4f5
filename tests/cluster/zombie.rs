//! R03, X04: replicas that are paused for a while, as in a suspended machine, and then go on.

use std::time::Duration;

use grapevine_tests::chat::{self, Ending, MODEL, Stream, distinct, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::invariants::{self, agreement};
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Longer than it takes to see a death, than load counts, and than idle connections between replicas live.
const ASLEEP: Duration = Duration::from_secs(8);
const STEP: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_frozen_believes_nothing_old_and_blames_nobody() {
    let workers = chat::workers(4, &chat::paced(STEP)).await;
    let cluster = plan().workers(&workers[..3]).start(3).await;
    let prompts = distinct(100);
    let before = agreement(&cluster, &prompts).await;
    let frozen = &cluster.replicas[0];
    let (admin, data) = (frozen.admin(), frozen.data());
    let streams = open_streams(&cluster, 3).await;

    frozen.process().freeze();
    // Meanwhile the others see it gone, and the worker set changes.
    let other = cluster.replicas[1].admin();
    other.add_cold("late", &workers[3].url(), &[MODEL]).await;
    eventually(LIMIT, "the others see it dead", async || {
        let live = other.view().await.live;
        so(live == 2, || format!("{live} live"))
    })
    .await;
    sleep(ASLEEP).await;
    frozen.process().thaw();

    // At once, by its view at that moment.
    let mut woken = JoinSet::new();
    for number in 0..16 {
        woken.spawn(async move {
            let body = streamed(&format!("just awake {number}"), 3);
            chat::stream(data, &body).await
        });
    }
    for outcome in woken.join_all().await {
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
    ended_whole(streams).await;
    cluster.settled().await;
    eventually(LIMIT, "it has the new worker", async || {
        let workers = admin.workers().await;
        let known = workers.iter().any(|worker| worker.id == "late");
        so(known, || format!("{workers:?}"))
    })
    .await;
    nobody_is_blamed(&cluster).await;
    other.remove("late").await;
    cluster.settled().await;
    let after = agreement(&cluster, &prompts).await;
    assert_eq!(after.workers, before.workers, "same prompt, same worker");
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_were_all_frozen_go_on_as_before() {
    let workers = chat::workers(3, &chat::paced(STEP)).await;
    let cluster = plan().workers(&workers).start(3).await;
    let prompts = distinct(100);
    let before = agreement(&cluster, &prompts).await;
    let streams = open_streams(&cluster, 6).await;
    for replica in &cluster.replicas {
        replica.process().freeze();
    }
    sleep(ASLEEP).await;
    for replica in &cluster.replicas {
        replica.process().thaw();
    }
    let (_, took) = eventually(LIMIT, "all back, rings equal", async || {
        let mut rings = Vec::new();
        for replica in cluster.running() {
            let view = replica.admin().view().await;
            if !view.ready || view.live != 3 || view.agreeing != 3 {
                return Err(format!("{} sees {view:?}", replica.name));
            }
            rings.push(replica.admin().ring().await);
        }
        let equal = rings.windows(2).all(|pair| pair[0] == pair[1]);
        so(equal, || format!("{rings:?}"))
    })
    .await;
    println!("3 replicas, all frozen for {ASLEEP:?}: all back with equal digests after {took:?}");
    ended_whole(streams).await;
    nobody_is_blamed(&cluster).await;
    let after = agreement(&cluster, &prompts).await;
    assert_eq!(after.workers, before.workers, "same prompt, same worker");
    invariants::hold(&cluster, &workers, &[]).await;
}

/// Limits that pass while a replica is paused.
fn plan() -> Plan {
    Plan::default()
        .set("timeouts.inter_token", "\"4s\"")
        .set("health.timeout", "\"1s\"")
}

/// Open streams, through each replica in turn.
async fn open_streams(cluster: &Cluster, count: usize) -> Vec<Stream> {
    let mut streams = Vec::new();
    for number in 0..count {
        let data = cluster.replicas[number % 3].data();
        let body = streamed(&format!("over the pause {number}"), 150);
        let mut stream = Stream::open(data, &body).await.expect("it is accepted");
        stream.read_events(2).await.expect("it has begun");
        streams.push(stream);
    }
    streams
}

async fn ended_whole(streams: Vec<Stream>) {
    for stream in streams {
        let outcome = stream.finish().await;
        assert_eq!(outcome.ending, Ending::Done);
    }
}

/// The workers were healthy all the time.
async fn nobody_is_blamed(cluster: &Cluster) {
    for replica in cluster.running() {
        for worker in replica.admin().workers().await {
            assert_eq!(worker.verdict, "good", "on {}: {worker:?}", replica.name);
        }
        let metrics = replica.admin().metrics().await;
        for verdict in ["unreachable", "unhealthy", "stalled", "ejected"] {
            let label = format!("to=\"{verdict}\"");
            let changes = metrics.sum("grapevine_worker_health_changes_total", &label);
            assert_eq!(changes, 0.0, "{verdict} on {}", replica.name);
        }
    }
}
