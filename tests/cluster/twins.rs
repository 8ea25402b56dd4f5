//! R11: a second process with the id and the certificate of a live replica.

use std::time::Duration;

use grapevine_tests::chat;
use grapevine_tests::cluster::{Cluster, Plan, Replica};
use grapevine_tests::http1;
use grapevine_tests::invariants;
use grapevine_tests::process;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::Value;
use tokio::time::Instant;

const SAID: &str = "two processes run under";

/// The twins in a replica's `GET /cluster`: id, kept, cut off.
async fn twins(of: &Replica) -> Vec<[String; 3]> {
    let view: Value = http1::get(of.admin().0, "/cluster").await.json();
    let list = view["twins"].as_array().expect("a list").clone();
    let text = |twin: &Value, key: &str| twin[key].as_str().expect("a text").to_owned();
    let of_one = |twin: &Value| ["id", "kept", "cut_off"].map(|key| text(twin, key));
    list.iter().map(of_one).collect()
}

async fn all_name(cluster: &Cluster, expected: &[[String; 3]]) {
    eventually(LIMIT, "all name the two", async || {
        for replica in cluster.running() {
            let found = twins(replica).await;
            let metrics = replica.admin().metrics().await;
            let counted = metrics.sum("grapevine_gossip_twins", "");
            if found != expected || counted != expected.len() as f64 {
                return Err(format!("{}: {found:?}, {counted}", replica.name));
            }
        }
        Ok(())
    })
    .await;
}

async fn until_ready(replica: &Replica, expected: bool) {
    eventually(LIMIT, "readiness of both ports", async || {
        let admin = http1::get(replica.admin().0, "/readyz").await;
        let data = http1::get(replica.data(), "/readiness").await;
        let found = [admin.head.status, data.head.status].map(|status| status == 200);
        let why = data.text();
        let says_why = expected || (why.contains("another process") && admin.text() == why);
        so(found == [expected; 2] && says_why, || {
            format!("{}: {found:?} {why}", replica.name)
        })
    })
    .await;
}

/// Lines of the log about twins, each with level and both addresses.
fn said(replica: &Replica) -> Vec<String> {
    let log = replica.last_log();
    let lines = log.lines().filter(|line| line.contains(SAID));
    lines.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_of_one_id_are_named_and_the_earlier_one_is_not_ready() {
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(5))).await;
    let mut cluster = Plan::default().workers(&workers).found().await;
    let identity = cluster.issue("r1").await;
    cluster.join_as("r1", identity.clone(), Vec::new()).await;
    for name in ["r2", "r3"] {
        let seeds = cluster.others(usize::MAX);
        cluster.join(name, seeds).await;
    }
    cluster.settled().await;

    // A restart is no twin: killed, with its connections half open, and back at once, on its port and on
    // others.
    for _ in 0..2 {
        cluster.replicas[0].kill().await;
        cluster.replicas[0].seeds = cluster.others(0);
        cluster.replicas[0].start().await;
        cluster.settled().await;
    }
    cluster.replicas[0].kill().await;
    let seeds = cluster.others(0);
    cluster.join_as("r1", identity.clone(), seeds).await;
    cluster.settled().await;
    assert_eq!(cluster.replicas.iter().flat_map(said).count(), 0);

    // A copy is a twin.
    let first = 3;
    let seeds = cluster.others(usize::MAX);
    cluster.join_as("r1", identity.clone(), seeds).await;
    let second = first + 1;
    let begun = Instant::now();
    until_ready(&cluster.replicas[first], false).await;
    println!("the earlier one is not ready after {:?}", begun.elapsed());
    let address = |index: usize| cluster.replicas[index].gossip_address();
    let both = ["r1".to_owned(), address(second), address(first)];
    all_name(&cluster, std::slice::from_ref(&both)).await;
    println!("all name both after {:?}", begun.elapsed());
    for replica in cluster.running() {
        eventually(LIMIT, "the log names both", async || {
            let lines = said(replica);
            let names_both = lines.iter().any(|line| {
                line.contains(" ERROR ") && both.iter().all(|part| line.contains(part.as_str()))
            });
            so(names_both, || replica.last_log())
        })
        .await;
    }
    let admin = format!("http://{}", cluster.replicas[1].admin().0);
    let shown = process::run(&["status", "--admin", &admin]).await;
    assert!(
        shown.text.contains("TWO PROCESSES run as r1") && shown.text.contains(&both[2]),
        "{}",
        shown.text
    );
    until_ready(&cluster.replicas[second], true).await;
    // Clients of the earlier one are still served. Where it places their prompts it alone knows, since the others take
    // evidence of the later process only: so these are none of the prompts that all must agree on in the end.
    for number in 0..4 {
        let prompt = chat::chat(&format!("asked of the earlier twin, {number}"), 2);
        let data = cluster.replicas[first].data();
        let answer = http1::post(data, "/v1/chat/completions", &prompt).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }

    // The copy is killed: no trace of it remains.
    cluster.replicas[second].kill().await;
    until_ready(&cluster.replicas[first], true).await;
    all_name(&cluster, &[]).await;
    cluster.settled().await;
    invariants::hold(&cluster, &workers, &[SAID]).await;
}
