//! How fast all replicas hold the same ring after a change of the worker set.

use std::time::Duration;

use grapevine_tests::chat::{self, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::invariants;
use grapevine_tests::wait::{eventually, quantile, so};

const TRIES: usize = 50;
/// The promise for a quiet machine; the test allows ten times as much for a busy one.
const PROMISED: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_change_through_one_replica_is_the_same_ring_everywhere() {
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(1))).await;
    let cluster = Plan::default().workers(&workers[..1]).start(3).await;
    let mut added = Vec::with_capacity(TRIES);
    let mut removed = Vec::with_capacity(TRIES);
    for number in 0..TRIES {
        let id = format!("extra-{number}");
        let through = cluster.replicas[number % 3].admin();
        through.add(&id, &workers[1].url(), &[MODEL]).await;
        added.push(equal_with(&cluster, 2).await);
        let through = cluster.replicas[(number + 1) % 3].admin();
        through.remove(&id).await;
        removed.push(equal_with(&cluster, 1).await);
    }
    report("added", added);
    report("removed", removed);
    invariants::hold(&cluster, &workers, &[]).await;
}

/// Time from the acknowledged change to equal digests over so many workers.
async fn equal_with(cluster: &Cluster, workers: usize) -> Duration {
    let (_, took) = eventually(10 * PROMISED, "equal digests", async || {
        let mut rings = Vec::new();
        for replica in cluster.running() {
            rings.push(replica.admin().ring().await);
        }
        let first = &rings[0];
        let equal = rings.iter().all(|ring| ring == first) && first.workers == workers;
        so(equal, || format!("{rings:?}"))
    })
    .await;
    took
}

fn report(what: &str, mut took: Vec<Duration>) {
    took.sort();
    println!(
        "worker {what}: equal digests on 3 replicas after p50 {:?}, p99 {:?} of {TRIES} ({PROMISED:?} promised)",
        quantile(&took, 0.5),
        quantile(&took, 0.99),
    );
}
