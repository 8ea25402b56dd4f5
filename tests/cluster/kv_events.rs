//! What workers say of their caches is what every replica knows of them: through loss, restarts and garbage.

use std::time::Duration;

use grapevine_kv_events::index::digest_of;
use grapevine_kv_events::{BlockHash, Tier};
use grapevine_testbed::fake_worker::{
    Config, EngineConfig, FakeWorker, KvEventsConfig, KvEventsFault,
};
use grapevine_tests::chat::{self, CHATS, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::wait::{eventually, so};
use serde_json::Value;

/// Pauses between connections grow to some seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// A worker with a small cache, so that blocks leave it.
fn publishing(kv_events: KvEventsConfig) -> Config {
    let quick = chat::paced(Duration::from_millis(1));
    Config {
        engine: EngineConfig {
            blocks: 400,
            ..quick.engine
        },
        kv_events: Some(kv_events),
        ..quick
    }
}

async fn cluster(worker: &FakeWorker) -> Cluster {
    let lines = "id = \"w\"\n";
    let plan = Plan::default().set("kv_events.silence", "\"1s\"");
    plan.worker_with(&worker.url(), &[MODEL], lines)
        .start(3)
        .await
}

/// Requests through all replicas, with some that come twice.
async fn traffic(cluster: &Cluster, from: usize, count: usize) {
    for number in from..from + count {
        let prompt = format!("Story {} of many. ", number - number % 3).repeat(60);
        let replica = &cluster.replicas[number % cluster.replicas.len()];
        let answer = http1::post(replica.data(), CHATS, &chat::chat(&prompt, 4)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
}

fn truth(worker: &FakeWorker, rank: u32) -> (usize, String) {
    let blocks = worker.cached_blocks(rank);
    let digest = digest_of(blocks.iter().map(|block| (Tier::Gpu, BlockHash(*block))));
    (blocks.len(), format!("{digest:016x}"))
}

/// What a replica shows of each engine of the worker.
async fn shown(cluster: &Cluster, replica: usize) -> Vec<Value> {
    let answer = http1::get(cluster.replicas[replica].admin().0, "/workers/w").await;
    let shown: Value = answer.json();
    shown["kv_caches"].as_array().cloned().unwrap_or_default()
}

/// Every replica knows exactly what the worker holds, and says how sure it is.
async fn is_known(cluster: &Cluster, worker: &FakeWorker, knowledge: &str, what: &str) {
    eventually(LIMIT, what, async || {
        for replica in 0..cluster.replicas.len() {
            let engines = shown(cluster, replica).await;
            let (count, digest) = truth(worker, 0);
            let is_so = engines.len() == 1
                && engines[0]["knowledge"] == knowledge
                && engines[0]["current"] == true
                && engines[0]["digest"] == digest;
            if !is_so {
                return Err(format!(
                    "replica {replica}: {engines:?}, and the worker has {count} blocks, {digest}"
                ));
            }
        }
        Ok(())
    })
    .await;
}

/// The sum of a counter with this label over all replicas.
async fn counted(cluster: &Cluster, series: &str) -> f64 {
    let mut sum = 0.0;
    for replica in cluster.running() {
        let text = http1::get(replica.admin().0, "/metrics").await.text();
        let line = text.lines().find(|line| line.starts_with(series));
        let value = line.and_then(|line| line.rsplit(' ').next());
        sum += value
            .and_then(|value| value.parse::<f64>().ok())
            .unwrap_or(0.0);
    }
    sum
}

/// Every replica has counted one of these.
async fn until_counted(cluster: &Cluster, series: &str) {
    eventually(LIMIT, series, async || {
        let count = counted(cluster, series).await;
        so(count >= 3.0, || count.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_is_the_cache_through_loss_restarts_and_garbage() {
    let config = KvEventsConfig {
        topic: "kv@w".into(),
        ..KvEventsConfig::default()
    };
    let worker = chat::worker(publishing(config)).await;
    let cluster = cluster(&worker).await;
    let is_whole = async |what: &str| is_known(&cluster, &worker, "whole", what).await;
    traffic(&cluster, 0, 12).await;
    is_whole("the first blocks").await;
    // Far more than fits: most of it is evicted again.
    traffic(&cluster, 100, 60).await;
    assert!(truth(&worker, 0).0 <= 400);
    is_whole("what is left after evictions").await;

    // Messages that are lost are asked for: with the next one, or after a silence.
    worker.set_kv_events(KvEventsFault::Lost);
    traffic(&cluster, 200, 9).await;
    worker.set_kv_events(KvEventsFault::None);
    is_whole("what was lost without another message").await;
    worker.set_kv_events(KvEventsFault::Lost);
    traffic(&cluster, 300, 9).await;
    worker.set_kv_events(KvEventsFault::None);
    traffic(&cluster, 400, 3).await;
    is_whole("what was lost before another message").await;

    // Connections that are cut, and cannot be made for a while.
    worker.set_kv_events(KvEventsFault::Closed);
    traffic(&cluster, 500, 9).await;
    eventually(LIMIT, "the lost connection is shown", async || {
        let engines = shown(&cluster, 0).await;
        let is_lost = engines[0]["current"] == false && engines[0]["connected"] == false;
        so(is_lost, || format!("{engines:?}"))
    })
    .await;
    worker.set_kv_events(KvEventsFault::None);
    is_whole("what happened while nobody listened").await;

    // Another process, with numbers from 0 on.
    worker.restart();
    is_known(
        &cluster,
        &worker,
        "unknown",
        "nothing of a process that said nothing",
    )
    .await;
    assert_eq!(truth(&worker, 0).0, 0);
    traffic(&cluster, 600, 12).await;
    is_whole("the new process's blocks").await;
    // Whatever each replica noticed first: that nobody knows its last message any more, or that the worker was started anew.
    let forgotten = async |reason: &str| {
        let series = format!("grapevine_kv_caches_forgotten_total{{reason=\"{reason}\"}}");
        counted(&cluster, &series).await
    };
    let (restarts, ends) = (forgotten("restart").await, forgotten("left").await);
    assert!(restarts >= 3.0, "{restarts} restarts and {ends} ends");
    assert_eq!(ends, 0.0, "{restarts} restarts");

    // A header that promises too much ends the connection, and nothing else.
    worker.set_kv_events(KvEventsFault::Oversize);
    traffic(&cluster, 700, 3).await;
    worker.set_kv_events(KvEventsFault::None);
    traffic(&cluster, 710, 3).await;
    is_whole("what came behind an oversized message").await;
    let too_large = "grapevine_kv_event_faults_total{reason=\"too_large\"}";
    assert!(counted(&cluster, too_large).await >= 1.0);

    // What cannot be read makes everything unknown. After a silence the engine is asked for its last message, and that
    // is another one than was heard.
    worker.set_kv_events(KvEventsFault::Garbage);
    traffic(&cluster, 800, 3).await;
    worker.set_kv_events(KvEventsFault::None);
    until_counted(
        &cluster,
        "grapevine_kv_event_faults_total{reason=\"unreadable\"}",
    )
    .await;
    is_whole("what could not be read was asked for again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_replay_socket_a_gap_makes_the_cache_unknown_and_arrays_are_read() {
    let config = KvEventsConfig {
        replay: false,
        arrays: true,
        ..KvEventsConfig::default()
    };
    let worker = chat::worker(publishing(config)).await;
    let cluster = cluster(&worker).await;
    let is_whole = async |what: &str| is_known(&cluster, &worker, "whole", what).await;
    eventually(LIMIT, "all replicas listen", async || {
        for replica in 0..3 {
            let engines = shown(&cluster, replica).await;
            if engines.len() != 1 || engines[0]["connected"] != true {
                return Err(format!("{engines:?}"));
            }
        }
        Ok(())
    })
    .await;
    traffic(&cluster, 0, 12).await;
    is_whole("all from the first message on").await;
    worker.set_kv_events(KvEventsFault::LostForGood);
    traffic(&cluster, 100, 3).await;
    worker.set_kv_events(KvEventsFault::None);
    traffic(&cluster, 200, 3).await;
    until_counted(
        &cluster,
        "grapevine_kv_caches_forgotten_total{reason=\"gap\"}",
    )
    .await;
    for replica in 0..3 {
        let engines = shown(&cluster, replica).await;
        assert_eq!(engines[0]["knowledge"], "partial", "{engines:?}");
        let (count, _) = truth(&worker, 0);
        assert!(engines[0]["blocks"]["gpu"].as_u64() < Some(count as u64));
    }
    // Those that nobody heard of are evicted in time.
    traffic(&cluster, 300, 120).await;
    is_known(&cluster, &worker, "partial", "what came later").await;
}
