//! One prompt from everywhere: the bound on requests in flight counts the whole cluster.

use std::time::Duration;

use grapevine_testbed::fake_worker::FakeWorker;
use grapevine_tests::chat::{self, Ending, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::invariants;
use tokio::task::JoinSet;

const REPLICAS: usize = 3;
const CLIENTS: usize = 40;
const WORKERS: usize = 4;
const REQUESTS: usize = 4;
/// `[cluster] bound` of the mean, when every client has its request in flight.
const BOUND: usize = REPLICAS * CLIENTS / WORKERS * 3 / 2;

#[tokio::test(flavor = "multi_thread")]
async fn one_prompt_from_all_clients_stays_within_the_cluster_wide_bound() {
    let workers = chat::workers(WORKERS, &chat::paced(Duration::from_millis(20))).await;
    let cluster = Plan::default().workers(&workers).start(REPLICAS).await;
    let mut clients = JoinSet::new();
    for client in 0..REPLICAS * CLIENTS {
        let data = cluster.replicas[client % REPLICAS].data();
        clients.spawn(async move {
            let body = streamed(&"the same long question ".repeat(200), 30);
            for _ in 0..REQUESTS {
                let outcome = chat::stream(data, &body).await;
                assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
            }
        });
    }
    clients.join_all().await;
    let mut peaks: Vec<u64> = workers.iter().map(|w| w.stats().in_flight_peak).collect();
    peaks.sort_unstable();
    println!(
        "{REPLICAS} x {CLIENTS} clients of one prompt, {WORKERS} workers: peaks in flight {peaks:?}, bound {BOUND} + 1"
    );
    let served: u64 = workers
        .iter()
        .map(|worker: &FakeWorker| worker.stats().complete)
        .sum();
    assert_eq!(served, (REPLICAS * CLIENTS * REQUESTS) as u64);
    let peak = *peaks.last().expect("there are workers");
    // Each replica's own part is bounded, too, so the sum does not depend on the age of gossip. One more: a
    // worker may see the next request before it has counted the last one out.
    let allowed = (BOUND + 1) as u64;
    assert!(peak <= allowed, "peak {peak}, allowed {allowed}");
    invariants::hold(&cluster, &workers, &[]).await;
}
