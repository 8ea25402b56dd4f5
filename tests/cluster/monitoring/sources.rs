//! Alarms of sources of workers: files that differ, files that lose a worker, leases that are not renewed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use grapevine_testbed::fake_worker::FakeWorker;
use grapevine_tests::binary::grapevine;
use grapevine_tests::chat::{self, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::keys;
use grapevine_tests::process::Program;
use grapevine_tests::wait::eventually;
use serde_json::json;
use tokio::process::{Child, Command};

use super::prometheus::Prometheus;
use super::{LIMIT, faults};

const SECRET: &str = "a-secret-of-the-whole-cluster";

fn write(file: &Path, urls: &[String]) {
    let targets = json!([{ "targets": urls, "labels": { "model": MODEL } }]);
    keys::write(file, &targets.to_string());
}

/// Three replicas, each with a file of its own.
async fn watching(plan: Plan, urls: &[String]) -> (Cluster, Vec<PathBuf>) {
    let mut cluster = plan.found().await;
    let mut files = Vec::new();
    for name in ["r1", "r2", "r3"] {
        let file = cluster.dir().join(format!("{name}.json"));
        write(&file, urls);
        let variable = file.display().to_string().leak();
        cluster.set_program(Program {
            environment: vec![("GRAPEVINE_FILES__PATHS", &*variable)],
            ..Program::default()
        });
        let seeds = cluster.others(usize::MAX);
        cluster.join(name, seeds).await;
        files.push(file);
    }
    cluster.settled().await;
    (cluster, files)
}

/// Waits until every replica knows so many workers.
async fn know(cluster: &Cluster, count: usize) {
    eventually(LIMIT, "workers are known", async || {
        for replica in cluster.running() {
            let known = replica.admin().workers().await.len();
            if known != count {
                return Err(format!("{} knows {known}", replica.name));
            }
        }
        Ok(())
    })
    .await;
}

fn register(cluster: &Cluster, worker: &FakeWorker) -> Child {
    let to = format!("http://{}", cluster.replicas[0].admin().0);
    Command::new(grapevine())
        .args(["register", "--worker", &worker.url(), "--to", &to])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("grapevine can be started")
}

#[tokio::test(flavor = "multi_thread")]
async fn alarms_of_sources_fire_under_their_faults_alone() {
    let workers = chat::workers(5, &chat::paced(Duration::from_millis(2))).await;
    let (found, leased) = workers.split_at(3);
    let urls: Vec<String> = found.iter().map(FakeWorker::url).collect();
    let plan = Plan::default()
        .set("leases.ttl", "\"5s\"")
        .set("leases.grace", "\"5s\"")
        .set("leases.secret", &format!("{SECRET:?}"))
        .set("discovery.hold", "\"1h\"")
        .set("discovery.empty_hold", "\"1h\"")
        .set("discovery.contest", "\"1h\"")
        .set("files.every", "\"1s\"");
    let (cluster, files) = watching(plan, &urls).await;
    let mut registered = register(&cluster, &leased[0]);
    // Without another one the replica could not tell its own deafness from a worker's silence.
    let _renewed = register(&cluster, &leased[1]);
    know(&cluster, workers.len()).await;
    let mut prometheus = Prometheus::start(&cluster).await;

    write(&files[0], &urls[1..]);
    prometheus.fires(&faults::ONE_FILE_DIFFERS).await;
    for file in &files {
        write(file, &[]);
    }
    prometheus.fires(&faults::ALL_FILES_LOSE).await;
    registered.kill().await.expect("it runs");
    prometheus.fires(&faults::NO_RENEWALS).await;
}
