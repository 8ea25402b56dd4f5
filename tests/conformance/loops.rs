//! Replicas that were added as workers, to themselves and to each other.

use grapevine_tests::admin::Admin;
use grapevine_tests::chat::{CHATS, MODEL, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::json;

use crate::errors::assert_error;
use crate::house::{House, quick};

/// Adds a worker and waits for the verdict on it.
async fn add(admin: Admin, id: &str, url: &str, verdict: &str) {
    admin.add_cold(id, url, &[MODEL]).await;
    eventually(LIMIT, verdict, async || {
        let workers = admin.workers().await;
        let is_so = workers.iter().any(|w| w.id == id && w.verdict == verdict);
        so(is_so, || format!("{workers:?}"))
    })
    .await;
}

/// An address of its data port that is not known to be one.
fn spelled_otherwise(house: &House) -> String {
    format!("http://localhost:{}", house.data().port())
}

/// Names of the replicas that a request has passed, as a worker gets them.
async fn hops_to_worker(house: &House) -> Vec<String> {
    let answer = http1::post(house.data(), CHATS, &chat("a request", 2)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let log = house.workers[0].log();
    let last = log.last().expect("it was asked");
    let hops = last
        .headers
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case("via"));
    hops.map(|(_, value)| value.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_no_worker_of_itself() {
    let house = House::of(Plan::default(), vec![quick()]).await;
    house.until_ready().await;
    let admin = house.cluster.replicas[0].admin();
    for (own, port) in [(house.data(), "data port"), (admin.0, "admin port")] {
        let own = json!({ "url": format!("http://{own}") });
        let answer = http1::post(admin.0, "/workers", &own).await;
        assert_eq!(answer.head.status, 400, "{}", answer.text());
        let why = format!("is the {port} of the replica r1");
        assert!(answer.text().contains(&why), "{}", answer.text());
    }
    add(admin, "itself", &spelled_otherwise(&house), "unhealthy").await;
    for number in 0..20 {
        let text = format!("prompt {number}");
        let answer = http1::post(house.data(), CHATS, &chat(&text, 2)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    assert_eq!(house.workers[0].stats().requests, 20);

    // A request that comes back to its sender is refused and reaches no worker.
    let hops = hops_to_worker(&house).await;
    let [hop] = hops.as_slice() else {
        panic!("one hop, not {hops:?}")
    };
    let before = house.workers[0].stats().requests;
    let via = format!("1.1 cdn, {hop}");
    let body = chat("a request", 2).to_string();
    let headers = [("via", via.as_str())];
    for path in [CHATS, "/v1/messages", "/v1/models", "/health"] {
        let method = if path.ends_with("s") && path != "/v1/models" {
            "POST"
        } else {
            "GET"
        };
        let answer = http1::exchange(house.data(), method, path, &headers, body.as_bytes()).await;
        assert_eq!(answer.head.status, 508, "{path}: {}", answer.text());
    }
    let answer = http1::exchange(house.data(), "POST", CHATS, &headers, body.as_bytes()).await;
    assert_error(&answer, 508, "loop_detected");
    assert_eq!(house.workers[0].stats().requests, before);

    // With only itself as a worker the replica is not ready: it could serve no request.
    admin.remove(&house.workers[0].url()).await;
    eventually(LIMIT, "it is not ready", async || {
        let is_ready = admin.is_ready().await;
        so(!is_ready, || "ready".to_owned())
    })
    .await;
    admin.remove("itself").await;
    add(admin, "back", &house.workers[0].url(), "good").await;
    house.close().await;
}

/// What one of them would ask itself in a circle, another one does not ask either.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_no_worker_of_its_cluster() {
    let mut house = House::of(Plan::default(), vec![quick()]).await;
    let others = house.cluster.others(1);
    house.cluster.join("r2", others).await;
    house.cluster.settled().await;
    let beside = house.cluster.replicas[1].admin();
    let own = format!("http://{}", house.data());
    let answer = http1::post(beside.0, "/workers", &json!({ "url": own })).await;
    assert_eq!(answer.head.status, 400, "{}", answer.text());

    let admin = house.cluster.replicas[0].admin();
    add(admin, "r1", &spelled_otherwise(&house), "unhealthy").await;
    beside.verdict("r1", "unhealthy").await;
    for number in 0..20 {
        let text = format!("prompt {number}");
        let answer = http1::post(house.cluster.replicas[1].data(), CHATS, &chat(&text, 2)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    assert_eq!(house.workers[0].stats().requests, 20);
    assert_eq!(beside.attempts("r1").await, 0.0, "not by way of the other");
    admin.remove("r1").await;
    house.close().await;
}

/// Each is the other's worker: a request that loops comes back once, and then a real worker serves it.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_are_each_others_workers_serve_what_they_can() {
    let one = House::of(Plan::default(), vec![quick()]).await;
    let other = House::of(Plan::default(), vec![quick()]).await;
    let houses = [&one, &other];
    for (house, beside) in [(&one, &other), (&other, &one)] {
        let url = format!("http://{}", beside.data());
        let admin = house.cluster.replicas[0].admin();
        house.until_ready().await;
        add(admin, "beside", &url, "good").await;
    }
    for number in 0..40 {
        let text = format!("prompt {number}");
        for house in houses {
            let answer = http1::post(house.data(), CHATS, &chat(&text, 2)).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
        }
    }
    let asked: u64 = houses
        .iter()
        .map(|house| house.workers[0].stats().requests)
        .sum();
    assert_eq!(asked, 80, "each once");
    for house in houses {
        let admin = house.cluster.replicas[0].admin();
        admin.remove("beside").await;
    }
    one.close().await;
    other.close().await;
}
