//! `grapevine doctor`: of a cluster that is well it says nothing that needs to be done; of one with planted faults it
//! names each, with what to do.

use std::time::Duration;

use grapevine_testbed::fake_worker::{Canned, Config, FakeWorker, Fault, Rule};
use grapevine_tests::chat;
use grapevine_tests::cluster::{Cluster, Identity, Plan, ca};
use grapevine_tests::http1;
use grapevine_tests::process::{self, Finished, Program};
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};

/// What the machine that runs the tests may have too little of: a processor with a quota, memory, a quick kernel.
const OF_MACHINES: [&str; 5] = ["cpu", "memory", "files", "loss", "udp_buffer"];

fn quick() -> Config {
    chat::paced(Duration::from_millis(1))
}

async fn doctor(cluster: &Cluster, more: &[&str]) -> (Finished, Value) {
    let admin = format!("http://{}", cluster.replicas[0].admin().0);
    let words = [&["doctor", "--json", "--admin", &admin][..], more].concat();
    let done = process::run(&words).await;
    let found = serde_json::from_str(&done.text);
    let found = found.unwrap_or_else(|error| panic!("{error}: {}", done.text));
    (done, found)
}

fn findings(answer: &Value) -> &[Value] {
    let found = answer["findings"].as_array();
    found.expect("a list")
}

/// Waits until a finding of this severity and check has all these parts in its text.
async fn is_found(cluster: &Cluster, severity: &str, check: &str, parts: &[&str]) {
    eventually(LIMIT, &format!("{check}: {parts:?}"), async || {
        let (done, answer) = doctor(cluster, &["--fail-on", severity]).await;
        let is_it = |finding: &&Value| {
            let text = format!("{} → {}", finding["what"], finding["todo"]);
            finding["severity"] == severity
                && finding["check"] == check
                && parts.iter().all(|part| text.contains(part))
        };
        match findings(&answer).iter().find(is_it) {
            Some(_) if done.code == Some(4) => Ok(()),
            _ => Err(format!("{:?}: {answer:#}", done.code)),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_cluster_that_is_well_nothing_needs_to_be_done() {
    let workers = chat::workers(2, &quick()).await;
    let cluster = Plan::default().workers(&workers).start(3).await;
    // For its first seconds a replica asks workers, and others were not heard by all.
    eventually(LIMIT, "nothing but what is good to know", async || {
        let (done, answer) = doctor(&cluster, &[]).await;
        let mut others = findings(&answer).iter().filter(|finding| {
            let is_of_machine = OF_MACHINES.iter().any(|check| finding["check"] == *check);
            finding["severity"] != "info" && !is_of_machine
        });
        match others.next() {
            None if done.code == Some(0) => Ok(()),
            _ => Err(format!("{:?}: {answer:#}", done.code)),
        }
    })
    .await;
    let (_, answer) = doctor(&cluster, &[]).await;
    assert_eq!(answer["schema"], 1);
    assert_eq!(answer["asked"], json!(["r1", "r2", "r3"]));
    assert_eq!(answer["not_asked"], json!([]));
    assert_eq!(answer["config"], Value::Null);
    let admin = format!("http://{}", cluster.replicas[1].admin().0);
    let shown = process::run(&["doctor", "--admin", &admin]).await;
    let begins = "looked at 3 replicas (3 asked) and 2 workers: ";
    assert!(shown.text.starts_with(begins), "{}", shown.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn planted_faults_are_named_each_with_what_to_do() {
    let mut workers = chat::workers(3, &quick()).await;
    let mut cluster = Plan::default().workers(&workers).found().await;
    cluster.join("r1", Vec::new()).await;
    // A certificate that ends in days.
    let authority = cluster.dir().join("ca");
    ca(&["issue", "r2", "--days", "5"], &authority).await;
    let short = Identity {
        ca: authority.join("ca.pem"),
        cert: authority.join("r2.pem"),
        key: authority.join("r2.key"),
        cluster: "grapevine".to_owned(),
    };
    let seeds = cluster.others(usize::MAX);
    cluster.join_as("r2", short, seeds.clone()).await;
    // A setting that no other one has.
    cluster.set_program(Program {
        environment: vec![("GRAPEVINE_CLUSTER__SEED", "7")],
        ..Program::default()
    });
    cluster.join("r3", seeds.clone()).await;
    cluster.set_program(Program::default());
    cluster.join("r4", seeds).await;
    is_found(
        &cluster,
        "problem",
        "certificate",
        &["the certificate of r2 ends in", "ca issue r2 --force"],
    )
    .await;
    let parts = [
        "cluster.seed is 0 on r1, r2, r4 and 7 on r3",
        "make them equal",
    ];
    is_found(&cluster, "problem", "settings", &parts).await;

    // A worker that is registered for what it does not serve, and one that ends.
    let other = chat::worker(quick()).await;
    cluster.replicas[0]
        .admin()
        .add_cold(&other.url(), &other.url(), &["no-such-model"])
        .await;
    let parts = [
        &*other.url(),
        "is registered for no-such-model",
        "--served-model-name",
    ];
    is_found(&cluster, "problem", "models", &parts).await;
    let ended = workers.remove(0);
    let url = ended.url();
    ended.kill().await;
    is_found(
        &cluster,
        "problem",
        "worker",
        &["refusing connections", &url, "start the engine"],
    )
    .await;
    // Workers whose answers do not say what was cached.
    answer_without_details(&cluster, &workers).await;
    is_found(
        &cluster,
        "advice",
        "usage",
        &["--enable-prompt-tokens-details"],
    )
    .await;
    // Few files left, and a replica that died.
    let process = cluster.replicas[1].process();
    process.limit_descriptors(process.descriptors() + 4);
    is_found(
        &cluster,
        "problem",
        "files",
        &["r2 has", "files open", "LimitNOFILE"],
    )
    .await;
    cluster.replicas[3].kill().await;
    is_found(
        &cluster,
        "problem",
        "replica",
        &["r4 is dead for", "start it again"],
    )
    .await;

    // The file is that of all but r3, which was given another setting.
    let file = cluster.config().display().to_string();
    let admin = format!("http://{}", cluster.replicas[2].admin().0);
    let shown = process::run(&["doctor", "--config", &file, "--admin", &admin]).await;
    assert_eq!(shown.code, Some(4), "{}", shown.text);
    assert!(
        shown.text.contains("cluster.seed is 0 there, 7 runs"),
        "{}",
        shown.text
    );
}

/// Sends so many chats that each of these workers has answered enough of them.
async fn answer_without_details(cluster: &Cluster, workers: &[FakeWorker]) {
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10 });
    let message = json!({ "role": "assistant", "content": "yes" });
    let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
    let body = json!({
        "id": "a", "object": "chat.completion", "created": 1, "model": chat::MODEL, "choices": [choice], "usage": usage,
    });
    let canned = Canned {
        status: 200,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: Some(body.to_string()),
        repeat: 1,
        gzip: false,
    };
    for worker in workers {
        let fault = Fault {
            reply: Some(canned.clone()),
            ..Fault::default()
        };
        worker.add_rule(Rule::always(fault)).expect("there is room");
    }
    for number in 0..60 {
        let body = chat::chat(&format!("question {number}"), 1);
        let answer = http1::post(cluster.replicas[0].data(), "/v1/chat/completions", &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_looked_at_without_a_cluster() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let taken = taken.local_addr().map(|address| (taken, address.port()));
    let (listener, port) = taken.expect("bound");
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    let file = folder.path().join("g.toml");
    let text = format!(
        "listen.port = 0\nmetrics.port = 0\nadmin.port = {port}\nlimits.requests = \"many\"\n\
         [[worker]]\nurl = \"http://127.0.0.1:9\"\n"
    );
    std::fs::write(&file, text).expect("written");
    let path = file.display().to_string();
    let shown = process::run(&["doctor", "--config", &path]).await;
    assert_eq!(shown.code, Some(4), "{}", shown.text);
    for part in [
        &format!(
            "✖ problem port         127.0.0.1:{port} (admin.port) is taken by another process"
        )[..],
        "g.toml:4:",
        "1 of 1 worker is not reached from this machine: http://127.0.0.1:9 (",
        "no certificates for gossip",
    ] {
        assert!(
            shown.text.contains(part),
            "{part:?} is not in {}",
            shown.text
        );
    }
    drop(listener);
    let worker = chat::worker(quick()).await;
    let text = format!(
        "listen.port = 0\nmetrics.port = 0\nadmin.port = 0\n[[worker]]\nurl = \"{}\"\n",
        worker.url()
    );
    std::fs::write(&file, text).expect("written");
    let shown = process::run(&["doctor", "--config", &path]).await;
    assert_eq!(shown.code, Some(0), "{}", shown.text);
    assert!(
        shown.text.contains(": no problem, 1 to do better\n"),
        "{}",
        shown.text
    );
    let missing = folder.path().join("none.toml").display().to_string();
    let shown = process::run(&["doctor", "--config", &missing]).await;
    assert_eq!(shown.code, Some(2), "{}", shown.text);
}
