//! `kill -9` of a worker under load: nothing fails but the streams that had begun on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use grapevine_tests::chat::{self, Ending, MODEL, Outcome, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::invariants;
use grapevine_tests::process::{Process, Signal};
use grapevine_tests::wait::{LIMIT, eventually};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::Instant;

const CLIENTS: usize = 48;
const TOKENS: u32 = 30;
const WORKERS: usize = 4;

#[derive(Deserialize)]
struct Listening {
    http: String,
}

/// Starts a fake worker as a process, so that it can be killed; `port` 0 for a free one.
pub(crate) async fn start_worker(dir: &TempDir, name: &str, port: &str) -> (Process, String) {
    let args = [
        "fake-worker",
        "--port",
        port,
        "--served-model-name",
        MODEL,
        "--step-base",
        "15ms",
        "--step-per-sequence",
        "0ms",
        "--prefill-tokens-per-s",
        "1000000",
    ];
    let log = dir.path().join(format!("{name}.log"));
    let (process, Listening { http }) = Process::start(&args.map(str::to_owned), &log).await;
    (process, format!("http://{http}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fake_worker_that_a_fault_ends_is_a_process_that_ended() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (mut process, url) = start_worker(&dir, "w", "0").await;
    let address = url.strip_prefix("http://").map(str::parse);
    let address = address
        .expect("a URL")
        .expect("an address in the fake worker's URL");
    let body = chat::chat("end", 1).to_string();
    let headers = [
        ("content-type", "application/json"),
        ("x-fault", r#"{"exit":true}"#),
    ];
    let request = http1::request("POST", "/v1/chat/completions", &headers, body.as_bytes());
    let mut connection = Connection::open(address).await;
    connection
        .send(&request)
        .await
        .expect("the request is taken");
    assert!(connection.is_closed().await);
    assert!(process.ended().await.success(), "{}", process.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_streams_that_had_begun_on_the_killed_worker_fail() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let mut plan = Plan::default();
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let (process, url) = start_worker(&dir, &format!("w{number}"), "0").await;
        plan = plan.worker(&url, &[MODEL]);
        workers.push((process, url));
    }
    let cluster = plan.start(3).await;

    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let data = cluster.replicas[client % 3].data();
        let stop = Arc::clone(&stop);
        clients.spawn(async move {
            let mut outcomes = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let prompt = format!("client {client}, request {}", outcomes.len());
                outcomes.push(chat::stream(data, &streamed(&prompt, TOKENS)).await);
            }
            outcomes
        });
    }
    let (mut victim, victim_url) = workers.remove(0);
    let requests_at_least = |count: f64| {
        let cluster = &cluster;
        async move || {
            let mut ended = 0.0;
            for replica in cluster.running() {
                let metrics = replica.admin().metrics().await;
                ended += metrics.sum("grapevine_requests_total", "success");
            }
            if ended >= count {
                Ok(ended)
            } else {
                Err(format!("{ended} requests"))
            }
        }
    };
    let rounds = CLIENTS as f64;
    let (ended, _) = eventually(LIMIT, "load runs", requests_at_least(2.0 * rounds)).await;
    victim.signal(Signal::KILL);
    let killed = Instant::now();
    victim.ended().await;
    let later = requests_at_least(ended + 4.0 * rounds);
    eventually(LIMIT, "load goes on", later).await;
    stop.store(true, Ordering::Relaxed);
    let outcomes = clients.join_all().await.concat();

    let failed: Vec<&Outcome> = outcomes
        .iter()
        .filter(|o| o.ending != Ending::Done)
        .collect();
    for outcome in &failed {
        assert_eq!(outcome.worker.as_ref(), Some(&victim_url), "{outcome:?}");
        assert!(outcome.had_begun(), "it could have been moved: {outcome:?}");
        assert!(
            matches!(outcome.ending, Ending::ErrorEvent(_)),
            "{outcome:?}"
        );
    }
    assert!(!failed.is_empty(), "the worker was killed under load");
    let slowest = failed
        .iter()
        .map(|o| o.ended.saturating_duration_since(killed))
        .max();
    println!(
        "killed 1 of {WORKERS} workers: {} requests, {} failed, all of them begun on it; last error event {:?} after the kill",
        outcomes.len(),
        failed.len(),
        slowest.unwrap_or_default(),
    );

    passed_over(&cluster, &victim_url, "unhealthy").await;
    for replica in cluster.running() {
        let before = replica.admin().attempts(&victim_url).await;
        for number in 0..40 {
            let outcome =
                chat::stream(replica.data(), &streamed(&format!("later {number}"), 1)).await;
            assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
        }
        let after = replica.admin().attempts(&victim_url).await;
        assert!(
            after == before,
            "{} sent {} more",
            replica.name,
            after - before
        );
    }
    let port = victim_url.rsplit(':').next().expect("a URL has a port");
    let (_back, url) = start_worker(&dir, "w0-again", port).await;
    assert_eq!(url, victim_url);
    passed_over(&cluster, &victim_url, "healthy").await;
    invariants::hold(&cluster, &[], &[]).await;
}

async fn passed_over(cluster: &grapevine_tests::cluster::Cluster, worker: &str, health: &str) {
    let (_, took) = eventually(LIMIT, health, async || {
        for replica in cluster.running() {
            let workers = replica.admin().workers().await;
            let seen = workers.into_iter().find(|seen| seen.id == worker);
            let seen = seen.expect("it stays registered").health;
            if seen != health {
                return Err(format!("{} says {seen}", replica.name));
            }
        }
        Ok(())
    })
    .await;
    println!("{health} on all replicas after {took:?}");
}
