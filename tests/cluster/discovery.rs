//! Workers that are found: three replicas, each with a file of its own, which agree before anything is removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use grapevine_testbed::fake_worker::FakeWorker;
use grapevine_tests::chat::{self, Ending, MODEL, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::process::{self, Program};
use grapevine_tests::wait::{eventually, so};
use serde_json::{Value, json};

/// Looks at files, statements and holds, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Replicas that look at files of their own; the times of the rule are short.
struct Watching {
    cluster: Cluster,
    files: Vec<PathBuf>,
}

impl Watching {
    async fn start(urls: &[String]) -> Self {
        let plan = Plan::default()
            .set("discovery.hold", "\"3s\"")
            .set("discovery.empty_hold", "\"1h\"")
            .set("discovery.contest", "\"1h\"")
            .set("files.every", "\"1s\"");
        let mut watching = Self {
            cluster: plan.found().await,
            files: Vec::new(),
        };
        for name in ["r1", "r2", "r3"] {
            let file = watching.cluster.dir().join(format!("{name}.json"));
            write(&file, urls);
            let variable = file.display().to_string().leak();
            let environment = vec![("GRAPEVINE_FILES__PATHS", &*variable)];
            watching.cluster.set_program(Program {
                binary: None,
                environment,
            });
            let seeds = watching.cluster.replicas.iter();
            let seeds = seeds.map(|replica| replica.gossip_address()).collect();
            watching.cluster.join(name, seeds).await;
            watching.files.push(file);
        }
        watching.cluster.settled().await;
        watching.sees(&all_active(urls)).await;
        watching
    }

    fn all_write(&self, urls: &[String]) {
        for file in &self.files {
            write(file, urls);
        }
    }

    /// Waits until every replica has these workers, in these states, and one ring digest.
    async fn sees(&self, expected: &BTreeMap<String, String>) {
        eventually(LIMIT, &format!("{expected:?} everywhere"), async || {
            let mut digests = Vec::new();
            for replica in self.cluster.running() {
                let answer = http1::get(replica.admin().0, "/workers").await;
                let seen = states(&answer.json());
                if seen != *expected {
                    return Err(format!("{}: {seen:?}", replica.name));
                }
                digests.push(replica.admin().ring().await.digest);
            }
            digests.dedup();
            so(digests.len() == 1, || format!("{digests:?}"))
        })
        .await;
    }

    /// Waits until this is so of the source at one replica.
    async fn source(&self, at: usize, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let admin = self.cluster.replicas[at].admin().0;
        let (seen, _) = eventually(LIMIT, what, async || {
            let view: Value = http1::get(admin, "/discovery").await.json();
            let source = view["sources"][0].clone();
            is_so(&source)
                .then_some(source.clone())
                .ok_or_else(|| source.to_string())
        })
        .await;
        seen
    }
}

/// By URL.
fn states(view: &Value) -> BTreeMap<String, String> {
    let workers = view["workers"].as_array().expect("a list");
    let of = |worker: &Value, key: &str| worker[key].as_str().expect("a text").to_owned();
    workers
        .iter()
        .map(|worker| (of(worker, "url"), of(worker, "state")))
        .collect()
}

fn all_active(urls: &[String]) -> BTreeMap<String, String> {
    urls.iter()
        .map(|url| (url.clone(), "active".to_owned()))
        .collect()
}

/// Replaces the file by renaming, as tools do.
fn write(file: &Path, urls: &[String]) {
    let targets = json!([{ "targets": urls, "labels": { "model": MODEL } }]);
    put(file, &targets.to_string());
}

fn put(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).expect("a file can be written");
    std::fs::rename(&new, file).expect("a file can be renamed");
}

async fn workers(count: usize) -> (Vec<FakeWorker>, Vec<String>) {
    let workers = chat::workers(count, &chat::paced(Duration::from_millis(1))).await;
    let urls = workers.iter().map(FakeWorker::url).collect();
    (workers, urls)
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_files_come_and_go_on_all_replicas() {
    let (_workers, urls) = workers(4).await;
    let watching = Watching::start(&urls[..3]).await;
    let outcome = chat::stream(watching.cluster.replicas[1].data(), &streamed("hello", 2)).await;
    assert_eq!(outcome.ending, Ending::Done);
    let listed: Value = http1::get(watching.cluster.replicas[0].admin().0, "/workers")
        .await
        .json();
    assert_eq!(listed["workers"][0]["sources"], json!(["files"]));

    // One replica sees a new worker first: all have it.
    write(&watching.files[2], &urls);
    watching.sees(&all_active(&urls)).await;
    // One leaves: out of use, and then gone.
    watching.all_write(&urls[1..]);
    let mut draining = all_active(&urls);
    draining.insert(urls[0].clone(), "draining".to_owned());
    watching.sees(&draining).await;
    watching.sees(&all_active(&urls[1..])).await;
    // It may return.
    watching.all_write(&urls);
    watching.sees(&all_active(&urls)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_empty_or_stale_file_of_one_replica_removes_nothing() {
    let (_workers, urls) = workers(3).await;
    let watching = Watching::start(&urls).await;

    put(&watching.files[0], "[{\"targets\": [\"10.0.0.1:80\"");
    let broken = watching
        .source(0, "a broken file is reported", |source| {
            source["up"] == false
        })
        .await;
    let failure = broken["failure"].as_str().expect("a reason");
    assert!(failure.contains("r1.json"), "{failure}");
    std::fs::remove_file(&watching.files[1]).expect("it is there");
    watching
        .source(1, "a missing file is reported", |source| {
            source["up"] == false
        })
        .await;
    // The only one that sees anything decides: one worker is gone there, and that is believed after the hold.
    write(&watching.files[2], &urls[1..]);
    watching.sees(&all_active(&urls[1..])).await;

    // The broken one is whole again, and was not changed: the worker it still names was removed before it saw it.
    watching.all_write(&urls);
    watching.sees(&all_active(&urls)).await;

    // Empty at one: the others see the workers, so all stay.
    put(&watching.files[0], "[]");
    let seen = |count: u64| move |source: &Value| source["seen"] == count && source["up"] == true;
    watching.source(0, "it is empty", seen(0)).await;
    watching
        .source(0, "it is contested", |source| source["contested"] == 3)
        .await;
    // What nobody sees leaves after the hold; what the others see stays for as long and longer.
    write(&watching.files[1], &urls[..2]);
    write(&watching.files[2], &urls[..2]);
    watching.sees(&all_active(&urls[..2])).await;
    let urls = &urls[..2];
    // Empty everywhere: in use, and not removed for an hour.
    for file in &watching.files {
        put(file, "[]");
    }
    for index in 0..3 {
        watching
            .source(index, "all are missing", |source| source["missing"] == 2)
            .await;
    }
    watching.sees(&all_active(urls)).await;
    write(&watching.files[1], urls);
    watching.sees(&all_active(urls)).await;
}

/// What an administrator says of a found worker's use stands beside its source, and ends with it.
/// Nobody lets go of workers whose source was taken out of the settings.
#[tokio::test(flavor = "multi_thread")]
async fn workers_of_a_source_that_nobody_watches_are_named() {
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(1))).await;
    let urls: Vec<_> = workers.iter().map(FakeWorker::url).collect();
    let mut watching = Watching::start(&urls).await;
    let seeds = watching.cluster.running();
    let seeds = seeds.map(|replica| replica.gossip_address()).collect();
    watching.cluster.set_program(Program::default());
    watching.cluster.join("r4", seeds).await;
    let late = watching.cluster.replicas.last().expect("it joined");
    eventually(LIMIT, "they are named", async || {
        let log = late.log();
        let is_it = |line: &&str| line.contains("source=\"files\"") && line.contains("workers=2");
        let named = log.lines().filter(is_it).count();
        (named == 1).then_some(()).ok_or(log)
    })
    .await;
    for watcher in &watching.cluster.replicas[..3] {
        assert!(!watcher.log().contains("does not watch"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_worker_stays_its_sources() {
    let (_workers, urls) = workers(3).await;
    let watching = Watching::start(&urls).await;
    let command = async |at: usize, action: &str| {
        let admin = format!("http://{}", watching.cluster.replicas[at].admin().0);
        let ended = process::run(&["workers", action, &urls[0], "--admin", &admin]).await;
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        ended.text
    };
    let mut drained = all_active(&urls);
    drained.insert(urls[0].clone(), "draining".to_owned());

    command(0, "drain").await;
    watching.sees(&drained).await;
    let listed: Value = http1::get(watching.cluster.replicas[2].admin().0, "/workers")
        .await
        .json();
    let workers = listed["workers"].as_array().expect("a list");
    let of_it = workers.iter().find(|worker| worker["url"] == urls[0]);
    let of_it = of_it.expect("it is there");
    assert_eq!(of_it["sources"], json!(["files"]), "it is not the admin's");
    assert_eq!(of_it["drained"], true);
    let activated = command(1, "activate").await;
    assert!(activated.starts_with("active:"), "{activated}");
    watching.sees(&all_active(&urls)).await;

    // Nobody sees it any more: it leaves, drained as it is.
    command(2, "drain").await;
    watching.sees(&drained).await;
    watching.all_write(&urls[1..]);
    watching.sees(&all_active(&urls[1..])).await;
    // The drain ended with it.
    watching.all_write(&urls);
    watching.sees(&all_active(&urls)).await;
}
