//! Engines that sleep: they pass their checks, and keep what they are sent until somebody wakes them.

use std::time::Duration;

use grapevine_testbed::fake_worker::{Config, FakeWorker};
use grapevine_tests::admin::{Admin, worker_path};
use grapevine_tests::chat::{self, CHATS, EXPLAIN, chat};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1::{self, Response};
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::Value;

const STEP: Duration = Duration::from_millis(1);

async fn scene(count: usize) -> (Vec<FakeWorker>, Cluster) {
    let config = Config {
        dev_mode: true,
        ..chat::paced(STEP)
    };
    let workers = chat::workers(count, &config).await;
    let plan = Plan::default().set("health.slow_start", "\"0s\"");
    let cluster = plan.workers(&workers).start(2).await;
    (workers, cluster)
}

async fn tell(worker: &FakeWorker, path: &str) {
    let done = http1::exchange(worker.addr(), "POST", path, &[], b"").await;
    assert_eq!(done.head.status, 200, "{path}: {}", done.text());
}

/// How a worker sleeps, as a replica says.
async fn asleep(admin: Admin, worker: &FakeWorker) -> Value {
    let shown: Value = http1::get(admin.0, &worker_path(&worker.url()))
        .await
        .json();
    shown["asleep"].clone()
}

/// Waits until every replica says this of a worker.
async fn until(cluster: &Cluster, worker: &FakeWorker, expected: Value) {
    for replica in &cluster.replicas {
        eventually(LIMIT, "every replica knows", async || {
            let says = asleep(replica.admin(), worker).await;
            so(says == expected, || says.to_string())
        })
        .await;
    }
}

async fn ask(cluster: &Cluster, replica: usize, body: &Value) -> Response {
    let data = cluster.replicas[replica].data();
    http1::exchange(data, "POST", CHATS, &[EXPLAIN], body.to_string().as_bytes()).await
}

/// The worker that answered, and what it was expected to hold.
fn placed(answer: &Response) -> (String, u64) {
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let header = |name: &str| answer.head.header(name).expect("explained").to_owned();
    let expected = header("x-grapevine-expected-tokens")
        .parse()
        .expect("a number");
    (header("x-grapevine-worker"), expected)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_sleeps_gets_nothing_and_wakes_cold() {
    let (workers, cluster) = scene(2).await;
    let long = chat(&"A long text that is worth a cache. ".repeat(60), 2);
    let (home, _) = placed(&ask(&cluster, 0, &long).await);
    let (again, warm) = placed(&ask(&cluster, 0, &long).await);
    assert!(again == home && warm > 100, "{again}: {warm} tokens");
    let [sleeper, other] = match workers[0].url() == home {
        true => [&workers[0], &workers[1]],
        false => [&workers[1], &workers[0]],
    };
    let epoch = cluster.replicas[0].admin().worker(&home).await.epoch;

    tell(sleeper, "/sleep?level=2").await;
    until(&cluster, sleeper, "discard_all".into()).await;
    sleeper.reset();
    for replica in [0, 1] {
        for number in 0..5 {
            let body = chat(&format!("question {number} at {replica}"), 2);
            let (worker, _) = placed(&ask(&cluster, replica, &body).await);
            assert_eq!(worker, other.url());
        }
        let (worker, _) = placed(&ask(&cluster, replica, &long).await);
        assert_eq!(worker, other.url());
        let admin = cluster.replicas[replica].admin();
        let shown = admin.worker(&home).await;
        assert_eq!((&*shown.health, &*shown.verdict), ("healthy", "good"));
        let label = format!("worker=\"{home}\"");
        let metrics = admin.metrics().await;
        assert_eq!(metrics.sum("grapevine_worker_asleep", &label), 1.0);
    }
    assert_eq!(sleeper.log().len(), 0, "it was sent nothing");

    tell(sleeper, "/wake_up").await;
    // That was no request of the router's.
    sleeper.reset();
    until(&cluster, sleeper, Value::Null).await;
    let later = cluster.replicas[1].admin().worker(&home).await.epoch;
    assert!(later > epoch, "{later} after {epoch}");
    for replica in &cluster.replicas {
        let held: Value = http1::post(replica.admin().0, "/explain", &long)
            .await
            .json();
        let rows = held["order"].as_array().expect("rows").clone();
        let row = rows.into_iter().find(|row| row["worker"] == home.as_str());
        let row = row.expect("it is one of them");
        assert_eq!(row["expected_tokens"], 0, "its cache is empty: {held}");
        assert_ne!(row["verdict"], "asleep", "{held}");
    }
    let fresh = (0..50).map(|number| chat(&format!("after it woke, {number}"), 1));
    let mut used = false;
    for body in fresh {
        used |= placed(&ask(&cluster, 0, &body).await).0 == home;
    }
    assert!(used, "it is used again");
    invariants::hold(&cluster, &workers, &[]).await;
}

/// Its gauges say awake as soon as any part of it is back, and nothing where its scheduler alone stands.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_awake_in_part_gets_nothing() {
    let (workers, cluster) = scene(2).await;
    let [sleeper, other] = [&workers[0], &workers[1]];
    let gets_nothing = async || {
        sleeper.reset();
        for replica in [0, 1] {
            for number in 0..10 {
                let body = chat(&format!("question {number} at {replica}"), 2);
                let (worker, _) = placed(&ask(&cluster, replica, &body).await);
                assert_eq!(worker, other.url());
            }
        }
        assert_eq!(sleeper.log().len(), 0);
    };
    tell(sleeper, "/sleep?level=2").await;
    until(&cluster, sleeper, "discard_all".into()).await;
    tell(sleeper, "/wake_up?tags=weights").await;
    let read = || sleeper.stats().paths.get("/metrics").copied().unwrap_or(0);
    let before = read();
    eventually(LIMIT, "its metrics are read again", async || {
        so(read() >= before + 2, || read().to_string())
    })
    .await;
    until(&cluster, sleeper, "discard_all".into()).await;
    gets_nothing().await;
    tell(sleeper, "/wake_up?tags=kv_cache").await;
    until(&cluster, sleeper, Value::Null).await;

    tell(sleeper, "/sleep?level=0").await;
    until(&cluster, sleeper, "paused".into()).await;
    gets_nothing().await;
    tell(sleeper, "/wake_up").await;
    until(&cluster, sleeper, Value::Null).await;
    // Those were no requests of the router's.
    sleeper.reset();
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_all_sleep_clients_are_told_so() {
    let (workers, cluster) = scene(2).await;
    for worker in &workers {
        worker.sleep(1);
    }
    for worker in &workers {
        until(&cluster, worker, "weights_offloaded".into()).await;
        worker.reset();
    }
    for replica in [0, 1] {
        let answer = ask(&cluster, replica, &chat("anybody awake?", 1)).await;
        assert_eq!(answer.head.status, 503, "{}", answer.text());
        assert!(answer.head.header("retry-after").is_some(), "{answer:?}");
        let error: Value = answer.json();
        assert_eq!(error["error"]["code"], "no_worker_available", "{error}");
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("every worker is asleep"), "{message}");
    }
    assert!(workers.iter().all(|worker| worker.log().is_empty()));
    workers[0].wake();
    until(&cluster, &workers[0], Value::Null).await;
    for replica in [0, 1] {
        let (worker, _) = placed(&ask(&cluster, replica, &chat("and now?", 1)).await);
        assert_eq!(worker, workers[0].url());
    }
    workers[1].wake();
    until(&cluster, &workers[1], Value::Null).await;
    invariants::hold(&cluster, &workers, &[]).await;
}
