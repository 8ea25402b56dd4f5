//! Requests that wait on a worker move when it is found to be bad, not at the end of their own limit.

use grapevine_tests::chat::{self, CHATS, Ending, MODEL, Stream, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::process::{Process, Signal};
use grapevine_tests::wait::{LIMIT, eventually, so};
use grapevine_tests::{http1, invariants};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};

use crate::worker_kill::start_worker;

const REPLICAS: usize = 3;
/// Replicas with the default limits of requests, and health checks that need a second and a half for a verdict.
async fn start(dir: &TempDir, workers: usize) -> (Cluster, Vec<(Process, String)>) {
    let mut plan = Plan::default()
        .set("health.timeout", "\"500ms\"")
        .set("timeouts.worker_bad", "\"2s\"")
        // Requests that move from a dead worker need no place in the budget.
        .set("retry.budget", "0.0")
        .set("retry.budget_floor", "0");
    let mut started = Vec::new();
    for number in 0..workers {
        let (process, url) = start_worker(dir, &format!("w{number}"), "0").await;
        plan = plan.worker(&url, &[MODEL]);
        started.push((process, url));
    }
    let cluster = plan.start(REPLICAS).await;
    for (_, url) in &started {
        for replica in cluster.running() {
            replica.admin().verdict(url, "good").await;
        }
    }
    (cluster, started)
}

/// Chats whose home is this worker.
async fn at_home(cluster: &Cluster, url: &str, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    let mut number = 0;
    while found.len() < count {
        number += 1;
        let body = chat::chat(&format!("question {number}"), 3);
        let explained = cluster.replicas[0]
            .admin()
            .explain(std::slice::from_ref(&body))
            .await;
        if explained[0].worker.as_deref() == Some(url) {
            found.push(body);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_frees_what_has_shown_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (cluster, workers) = start(&dir, 4).await;
    let (victim, url) = &workers[0];
    let mut chats = at_home(&cluster, url, 4 * REPLICAS + 1).await;
    let mut begun = chats.pop().expect("one more than others");
    begun["stream"] = true.into();
    begun["max_tokens"] = 2_000.into();
    let data = |index: usize| cluster.replicas[index % REPLICAS].data();
    let mut begun = Stream::open(data(0), &begun).await.expect("a head");
    begun.read_events(2).await.expect("it has begun");
    assert_eq!(begun.head().header("x-grapevine-worker"), Some(&**url));

    victim.signal(Signal::STOP);
    let stopped = Instant::now();
    let mut waiting = JoinSet::new();
    for (index, mut body) in chats.into_iter().enumerate() {
        let data = data(index);
        body["stream"] = (index % 2 == 0).into();
        waiting.spawn(async move {
            if index % 2 == 0 {
                assert_eq!(chat::stream(data, &body).await.ending, Ending::Done);
            } else {
                let response = http1::post(data, CHATS, &body).await;
                assert_eq!(response.head.status, 200, "{}", response.text());
            }
            Instant::now()
        });
    }
    let mut known = Duration::ZERO;
    for replica in cluster.running() {
        replica.admin().verdict(url, "unhealthy").await;
        known = stopped.elapsed();
    }
    let answered = waiting.join_all().await;
    let last = answered.into_iter().max().expect("some waited");
    let last = last.saturating_duration_since(stopped);
    println!(
        "unhealthy everywhere after {known:?}, the last one that waited was answered after {last:?}"
    );
    assert!(last < LIMIT, "{last:?}, and a first token has a minute");

    let mut moved = Vec::new();
    for replica in cluster.running() {
        let metrics = replica.admin().metrics().await;
        let attempts = metrics.series("grapevine_attempts_total");
        let of_victim = attempts.iter().filter(|(labels, _)| {
            labels.contains(&**url) && labels.contains("result=\"worker_bad\"")
        });
        moved.push(of_victim.map(|(_, count)| count).sum::<f64>());
    }
    println!("moved by each replica: {moved:?}");
    assert!(moved.iter().all(|&count| count >= 1.0), "{moved:?}");

    let cut = begun.finish().await;
    assert!(matches!(cut.ending, Ending::ErrorEvent(_)), "{cut:?}");
    let cut = cut.ended.saturating_duration_since(stopped);
    println!("the stream that had begun was cut after {cut:?}");
    assert!(cut < LIMIT, "{cut:?}, and a pause has a minute");

    victim.signal(Signal::CONT);
    for replica in cluster.running() {
        replica.admin().verdict(url, "good").await;
    }
    invariants::hold(&cluster, &[], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_another_worker_requests_outlive_the_verdict() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (cluster, workers) = start(&dir, 1).await;
    let (only, url) = &workers[0];
    let data = cluster.replicas[0].data();
    only.signal(Signal::STOP);
    let plain = tokio::spawn(async move {
        let body = chat::chat("plain", 3);
        http1::post(data, CHATS, &body).await.head.status
    });
    let stream = tokio::spawn(async move { chat::stream(data, &streamed("stream", 3)).await });
    let admin = cluster.replicas[0].admin();
    eventually(LIMIT, "both wait there", async || {
        let in_flight = admin.worker(url).await.in_flight;
        so(in_flight >= 2.0, || format!("{in_flight}"))
    })
    .await;
    admin.verdict(url, "unhealthy").await;
    only.signal(Signal::CONT);
    assert_eq!(plain.await.expect("no panic"), 200);
    let outcome = stream.await.expect("no panic");
    assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    for replica in cluster.running() {
        replica.admin().verdict(url, "good").await;
    }
    invariants::hold(&cluster, &[], &[]).await;
}
