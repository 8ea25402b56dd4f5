//! R08, R09: a part of a replica fails by a bug of ours; the rest runs on, and the part is started again.
//!
//! Only debug builds can provoke such bugs: a release has no way to ask for one.
#![cfg(debug_assertions)]

use std::time::Duration;

use grapevine_tests::chat::{self, Ending, Stream, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::invariants;
use grapevine_tests::process::{self, Program, Signal};
use grapevine_tests::wait::{LIMIT, eventually, so};

const PATH: &str = "/v1/chat/completions";
const PROVOKED: [&str; 3] = [
    "src/fault_injection.rs",
    "src/membership/chitchat/mod.rs",
    "the gossip task ended",
];

fn plan() -> Plan {
    Plan::default().program(Program {
        environment: vec![("GRAPEVINE_PROVOKE", "1")],
        ..Program::default()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_on_while_the_gossip_task_is_started_again() {
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(20))).await;
    let cluster = plan().workers(&workers).start(2).await;
    let tripped = &cluster.replicas[0];
    let generation = async || {
        let view = tripped.admin().view().await;
        let own = view.replicas.iter().find(|replica| replica.id == "r1");
        own.expect("it knows itself").generation
    };
    let former = generation().await;
    let mut open = Stream::open(tripped.data(), &streamed("over it", 100))
        .await
        .expect("it is accepted");
    open.read_events(2).await.expect("it has begun");
    tripped.process().signal(Signal::USR1);

    // Either state may be seen first on a busy machine: the replica is not ready for only a fifth of a
    // second.
    let (_, took) = eventually(LIMIT, "not ready, or back already", async || {
        let ready = tripped.admin().is_ready().await;
        let risen = generation().await > former;
        so(!ready || risen, || {
            "ready in its former generation".to_owned()
        })
    })
    .await;
    println!("not ready, or back already, after {took:?}");
    let during = chat::stream(tripped.data(), &streamed("meanwhile", 3)).await;
    assert_eq!(
        during.ending,
        Ending::Done,
        "requests go on with the last list of workers"
    );
    let (_, took) = eventually(LIMIT, "back in a higher generation", async || {
        let ready = tripped.admin().is_ready().await;
        let risen = generation().await > former;
        so(ready && risen, || format!("ready {ready}, risen {risen}"))
    })
    .await;
    println!("back in a higher generation after another {took:?}");
    cluster.settled().await;
    assert_eq!(open.finish().await.ending, Ending::Done);
    let restarts = tripped.admin().metrics().await;
    assert_eq!(restarts.sum("grapevine_gossip_restarts_total", ""), 1.0);
    invariants::hold(&cluster, &workers, &PROVOKED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_costs_its_request_and_nothing_else() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(5))).await;
    let cluster = plan().workers(&workers).start(1).await;
    let replica = &cluster.replicas[0];
    let mut other = Stream::open(replica.data(), &streamed("another one", 200))
        .await
        .expect("it is accepted");
    other.read_events(2).await.expect("it has begun");

    for number in 0..3 {
        let body = chat::chat(&format!("panic {number}"), 3).to_string();
        let headers = [("x-request-id", "panic-in-handler")];
        let answer = http1::exchange(replica.data(), "POST", PATH, &headers, body.as_bytes()).await;
        assert_eq!(answer.head.status, 500, "{}", answer.text());
        let error = answer.json::<serde_json::Value>()["error"].clone();
        assert_eq!(error["code"], "internal_error", "{error}");
        assert_eq!(error["type"], "server_error", "{error}");
    }
    // After the head: an error event, and the end.
    let body = streamed("panic later", 50).to_string();
    let mut connection = Connection::open(replica.data()).await;
    let headers = [("x-request-id", "panic-in-stream")];
    let request = http1::request("POST", PATH, &headers, body.as_bytes());
    connection.send(&request).await.expect("it is there");
    let answer = connection.response().await.expect("it ends well-formed");
    assert_eq!(answer.head.status, 200);
    let text = answer.text();
    drop(connection);
    assert!(
        text.contains("internal_error") && !text.contains("[DONE]"),
        "{text}"
    );

    assert_eq!(other.finish().await.ending, Ending::Done);
    let after = chat::stream(replica.data(), &streamed("after it", 3)).await;
    assert_eq!(after.ending, Ending::Done);
    let metrics = replica.admin().metrics().await;
    let errors = metrics.sum("grapevine_errors_total", "code=\"internal_error\"");
    assert_eq!(errors, 4.0);
    let outcomes = metrics.sum("grapevine_requests_total", "outcome=\"error\"");
    assert_eq!(outcomes, 4.0);
    assert_no_connections(&cluster).await;
    // Ids given by clients are not unique here, and the invariants count by id.
    let log = replica.log();
    let panics = log.lines().filter(|line| line.contains("panicked at"));
    let are_lines = panics
        .map(|line| line.contains(" ERROR "))
        .collect::<Vec<_>>();
    assert_eq!(are_lines, [true; 4], "{log}");
}

/// What is no part of gossip is not started again: so it is told as long as the replica runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_a_bug_ended_is_named_and_requests_go_on() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(1))).await;
    let cluster = plan().workers(&workers).start(1).await;
    let replica = &cluster.replicas[0];
    let admin = replica.admin();
    let lost = async || admin.metrics().await.sum("grapevine_lost_tasks", "");
    assert_eq!(lost().await, 0.0);
    replica.process().signal(Signal::USR2);

    eventually(LIMIT, "the task is told of", async || {
        let lost = lost().await;
        so(lost == 1.0, || lost.to_string())
    })
    .await;
    let at = format!("http://{}", admin.0);
    let shown = process::run(&["status", "--admin", &at]).await;
    assert_eq!(shown.code, Some(4), "{}", shown.text);
    assert!(
        shown
            .text
            .starts_with("a bug ended task fault_injection of r1: start it again"),
        "{}",
        shown.text
    );
    let during = chat::stream(replica.data(), &streamed("all the same", 3)).await;
    assert_eq!(during.ending, Ending::Done);
    eventually(LIMIT, "the log names it", async || {
        let log = replica.log();
        let named = log
            .lines()
            .any(|line| line.contains(" ERROR ") && line.contains("a task of this replica ended"));
        named.then_some(()).ok_or(log)
    })
    .await;
}

async fn assert_no_connections(cluster: &Cluster) {
    eventually(LIMIT, "no connection, nothing in flight", async || {
        let metrics = cluster.replicas[0].admin().metrics().await;
        for name in [
            "grapevine_connections",
            "grapevine_requests_active",
            "grapevine_worker_in_flight",
        ] {
            let left = metrics.sum(name, "");
            if left != 0.0 {
                return Err(format!("{name} {left}"));
            }
        }
        Ok(())
    })
    .await;
}
