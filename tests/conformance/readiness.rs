//! Readiness: 200 only while a request would be served, otherwise the reasons.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_testbed::fake_worker::Config;
use grapevine_tests::admin::Admin;
use grapevine_tests::chat;
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::Value;

use crate::house::{House, quick};

/// Starts of a replica that are tried one after the other.
const FRESH_STARTS: usize = 12;

/// Status of `GET /readiness`, and the reasons that its body names.
async fn readiness(address: SocketAddr, path: &str) -> (u16, Vec<String>) {
    let answer = http1::get(address, path).await;
    let body: Value = answer.json();
    let of = |status: u16| if status == 200 { "ready" } else { "not ready" };
    assert_eq!(body["status"], of(answer.head.status), "{body}");
    let again = answer.head.header("retry-after");
    assert_eq!(again, (answer.head.status != 200).then_some("1"), "{body}");
    let missing = body["missing"].as_array().cloned().unwrap_or_default();
    let reasons = missing.iter().map(|lack| {
        assert!(
            lack["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{body}"
        );
        lack["reason"].as_str().expect("a reason").to_owned()
    });
    (answer.head.status, reasons.collect())
}

/// Waits until the data port and the admin port both say this.
async fn until_says(cluster: &Cluster, wanted: (u16, &[&str])) {
    let wanted = (
        wanted.0,
        wanted.1.iter().map(|&reason| reason.to_owned()).collect(),
    );
    let replica = &cluster.replicas[0];
    let Admin(admin) = replica.admin();
    eventually(LIMIT, "both ports say how ready it is", async || {
        for (port, path) in [(replica.data(), "/readiness"), (admin, "/readyz")] {
            let said = readiness(port, path).await;
            if said != wanted {
                return Err(format!("{path}: {said:?}, not {wanted:?}"));
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_chat_after_a_fresh_start_is_served() {
    let workers = chat::workers(3, &quick()).await;
    for start in 0..FRESH_STARTS {
        let plan = workers.iter().fold(Plan::default(), |plan, worker| {
            plan.worker(&worker.url(), &[])
        });
        let mut cluster = plan.found().await;
        let data = cluster.join("r1", Vec::new()).await.data();
        let mut told = Vec::new();
        eventually(LIMIT, "the replica is ready", async || {
            let (status, missing) = readiness(data, "/readiness").await;
            told.extend(missing.clone());
            (status == 200).then_some(()).ok_or(format!("{missing:?}"))
        })
        .await;
        let answer = http1::post(data, "/v1/chat/completions", &chat::chat("first", 2)).await;
        assert_eq!(answer.head.status, 200, "start {start}: {}", answer.text());
        let known = [
            "gossip",
            "caches",
            "no_worker",
            "no_worker_reachable",
            "models_unknown",
        ];
        assert!(
            told.iter().all(|reason| known.contains(&reason.as_str())),
            "{told:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_workers_and_with_dead_ones_it_is_not_ready() {
    let plan = Plan::default().set("health.unready_after", "\"200ms\"");
    let house = House::of(plan, Vec::new()).await;
    let replica = &house.cluster.replicas[0];
    until_says(&house.cluster, (503, &["no_worker"])).await;

    let worker = chat::worker(quick()).await;
    let url = worker.url();
    replica.admin().add(&url, &url, &[]).await;
    until_says(&house.cluster, (200, &[])).await;
    let answer = http1::post(
        replica.data(),
        "/v1/chat/completions",
        &chat::chat("one", 2),
    )
    .await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert!(replica.admin().view().await.ready);

    let listen = worker.addr();
    worker.kill().await;
    until_says(&house.cluster, (503, &["no_worker_reachable"])).await;
    let view = replica.admin().view().await;
    assert_eq!(
        (view.ready, view.missing),
        (false, vec!["no_worker_reachable".to_owned()])
    );
    assert!(!view.replicas[0].ready, "the other replicas hear it, too");

    let again = Config { listen, ..quick() };
    let worker = chat::worker(again).await;
    until_says(&house.cluster, (200, &[])).await;
    let answer = http1::post(
        replica.data(),
        "/v1/chat/completions",
        &chat::chat("two", 2),
    )
    .await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());

    replica.admin().remove(&url).await;
    until_says(&house.cluster, (503, &["no_worker"])).await;
    drop(worker);
}

/// While the models are unknown, no request can be placed.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_tells_no_models_makes_no_replica_ready() {
    // The worker asks for a key on `/v1`, and the replica has none.
    let silent = Config {
        api_key: Some("unknown".to_owned()),
        ..quick()
    };
    let worker = chat::worker(silent).await;
    let house = House::with(Plan::default().worker(&worker.url(), &[]), vec![worker]).await;
    until_says(&house.cluster, (503, &["models_unknown"])).await;
}

/// One failing worker, or a short absence of the only one, does not change readiness.
#[tokio::test(flavor = "multi_thread")]
async fn one_dead_worker_of_two_changes_nothing() {
    let plan = Plan::default().set("health.unready_after", "\"100ms\"");
    let mut house = House::of(plan, vec![quick(), quick()]).await;
    until_says(&house.cluster, (200, &[])).await;
    let dead = house.workers.remove(0);
    let url = dead.url();
    dead.kill().await;
    let replica = &house.cluster.replicas[0];
    eventually(LIMIT, "its death is seen", async || {
        let (status, missing) = readiness(replica.data(), "/readiness").await;
        assert_eq!(status, 200, "{missing:?}");
        let workers = replica.admin().workers().await;
        let seen = workers
            .iter()
            .any(|worker| worker.id == url && worker.health == "unhealthy");
        so(seen, || format!("{workers:?}"))
    })
    .await;
    // Longer than `unready_after`, and than the look at workers takes.
    let until = tokio::time::Instant::now() + Duration::from_millis(600);
    while tokio::time::Instant::now() < until {
        let (status, missing) = readiness(replica.data(), "/readiness").await;
        assert_eq!(status, 200, "{missing:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_without_workers_is_a_setting() {
    let plan = Plan::default().set("health.ready_without_workers", "true");
    let house = House::of(plan, Vec::new()).await;
    until_says(&house.cluster, (200, &[])).await;
}
