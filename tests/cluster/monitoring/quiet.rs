//! A cluster that shows everything: every expression has an answer and nothing fires; then operators' faults, workers and
//! replicas that end.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use grapevine_testbed::fake_worker::{FakeWorker, StopMode};
use grapevine_tests::chat::{self, MODEL, chat, streamed};
use grapevine_tests::cluster::{Cluster, Replica};
use grapevine_tests::http1;
use grapevine_tests::keys::{self, KeyFile};
use grapevine_tests::process::Signal;
use grapevine_tests::tls::Authority;
use grapevine_tests::wait::{eventually, so};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::expressions::{board, selectors_of_rules};
use super::prometheus::{Prometheus, tools};
use super::{LIMIT, faults};

/// A cluster in which everything that the board shows is counted: keys, a source of workers, certificates for clients'
/// workers.
struct Scene {
    cluster: Cluster,
    workers: Vec<FakeWorker>,
    keys: KeyFile,
    key: String,
    prometheus: Prometheus,
}

impl Scene {
    async fn start() -> Self {
        let mut keys = KeyFile::new();
        let key = keys.add("shop", "max_requests = 500").await;
        let workers = chat::workers(4, &chat::paced(Duration::from_millis(2))).await;
        let folder = keys.path().parent().expect("a folder").to_owned();
        let pair = Authority::new().issue(&folder, "replica", &["localhost"]);
        let targets: Vec<String> = workers
            .iter()
            .map(|worker| worker.url().replace("http://", ""))
            .collect();
        let found = json!([{ "targets": targets, "labels": { "model": MODEL } }]).to_string();
        keys::write(&folder.join("workers.json"), &found);
        let plan = keys
            .plan()
            .set(
                "files.paths",
                &format!("[{:?}]", folder.join("workers.json")),
            )
            .set("files.every", "\"1s\"")
            .set("workers.client_cert", &format!("{:?}", pair.cert))
            .set("workers.client_key", &format!("{:?}", pair.key));
        let cluster = plan.start(3).await;
        Self {
            prometheus: Prometheus::start(&cluster).await,
            cluster,
            workers,
            keys,
            key,
        }
    }

    /// Some chats at each running replica: streams with and without usage, and plain ones.
    async fn traffic(&self) {
        let running: Vec<&Replica> = self.cluster.running().collect();
        for number in 0..12 {
            let mut body = match number % 3 {
                0 => chat(&format!("a question that comes again {}", number % 2), 3),
                _ => streamed(&format!("a question that comes again {}", number % 2), 3),
            };
            if number % 3 == 1 {
                body["stream_options"] = json!({ "include_usage": true });
            }
            let bearer = format!("Bearer {}", self.key);
            let headers = [("authorization", bearer.as_str())];
            let to = running[number % running.len()].data();
            let body = body.to_string();
            http1::exchange(
                to,
                "POST",
                "/v1/chat/completions",
                &headers,
                body.as_bytes(),
            )
            .await;
        }
    }
}

/// `promtool check metrics` has nothing to say about text format 0.0.4.
async fn passes_promtool(admin: SocketAddr) {
    let text = http1::get(admin, "/metrics").await.text();
    let mut child = Command::new(tools().join("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool can be started");
    let mut stdin = child.stdin.take().expect("a pipe");
    let written = stdin.write_all(text.as_bytes()).await;
    written.expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().await.expect("promtool ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_expression_has_an_answer_and_alarms_fire_under_their_faults_alone() {
    let mut scene = Scene::start().await;
    let (board, selectors) = (board(), selectors_of_rules());
    let expressions: Vec<_> = board.iter().chain(&selectors).collect();
    eventually(LIMIT, "every expression has an answer", async || {
        scene.traffic().await;
        let mut empty = Vec::new();
        for (place, expression) in &expressions {
            if scene.prometheus.query(expression).await.is_empty() {
                empty.push(format!("{place}: {expression}"));
            }
        }
        let said = || format!("empty are\n{}", empty.join("\n"));
        so(empty.is_empty(), said)
    })
    .await;
    println!("{} expressions have answers", expressions.len());
    passes_promtool(scene.cluster.replicas[0].admin().0).await;

    // Every rule was evaluated since, and none fires.
    let rules = scene.prometheus.get("/api/v1/rules").await;
    let rules = rules["data"]["groups"][0]["rules"].as_array().cloned();
    let rules = rules.expect("a group of rules");
    assert!(
        rules.len() >= 30 && rules.iter().all(|rule| rule["health"] == "ok"),
        "{rules:?}"
    );
    let mut firing = scene.prometheus.alarms().await;
    firing.retain(|name| !faults::OF_BUSY_MACHINES.contains(&name.as_str()));
    assert!(firing.is_empty(), "in a quiet cluster: {firing:?}");

    faults_of_operators(&mut scene).await;
    faults_of_workers(&mut scene).await;
    for index in [1, 2] {
        scene.cluster.replicas[index].kill().await;
    }
    scene.prometheus.fires(&faults::REPLICAS_DIE).await;
    scene.cluster.replicas[0].kill().await;
    scene.prometheus.fires(&faults::ALL_DIE).await;
}

/// A wrong page, a configuration, a file of workers and one of keys that cannot be read.
async fn faults_of_operators(scene: &mut Scene) {
    let replica = &scene.cluster.replicas[0];
    let headers = [("sec-fetch-site", "cross-site")];
    let answer = http1::exchange(replica.admin().0, "GET", "/workers", &headers, b"").await;
    assert_eq!(answer.head.status, 403, "{}", answer.text());
    scene.prometheus.fires(&faults::WEB_PAGE).await;
    std::fs::write(scene.cluster.config(), "no = [").expect("a file can be written");
    replica.process().signal(Signal::HUP);
    scene.prometheus.fires(&faults::BROKEN_CONFIGURATION).await;
    let found = scene.keys.path().with_file_name("workers.json");
    keys::write(&found, "no JSON");
    scene.prometheus.fires(&faults::BROKEN_SOURCE).await;
}

/// Most workers end, then all of them.
async fn faults_of_workers(scene: &mut Scene) {
    for worker in &scene.workers[..3] {
        worker.terminate(StopMode::Exit);
    }
    scene.prometheus.fires(&faults::WORKERS_END).await;
    scene.workers[3].terminate(StopMode::Exit);
    scene.prometheus.fires(&faults::ALL_WORKERS_END).await;
}
