//! Alarms of requests: streams that break off, bugs, a request that ends workers, an engine that freezes, a thread
//! that stands still.
//!
//! Only debug builds can provoke bugs: a release has no way to ask for one.
#![cfg(debug_assertions)]

use std::time::Duration;

use grapevine_testbed::fake_worker::{FakeWorker, Fault, How, Point, Rule, When};
use grapevine_tests::chat::{self, CHATS, chat, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::process::{Program, Signal};
use serde_json::Value;

use super::faults;
use super::prometheus::Prometheus;

/// Requests with this text get this fault.
fn rule(workers: &[FakeWorker], text: &str, fault: &Fault) {
    for worker in workers {
        let when = When {
            body_contains: Some(text.to_owned()),
            ..When::default()
        };
        let rule = Rule {
            when,
            ..Rule::always(fault.clone())
        };
        worker.add_rule(rule).expect("room for a rule");
    }
}

/// Each replica in turn, with prompts that are new.
async fn ask(cluster: &Cluster, number: &mut usize, text: &str) {
    for replica in cluster.running() {
        *number += 1;
        let body = streamed(&format!("{text} {number}"), 5);
        chat::stream(replica.data(), &body).await;
    }
}

async fn panics(cluster: &Cluster) {
    let headers = [("x-request-id", "panic-in-handler")];
    let body = chat("panic", 3).to_string();
    let to = cluster.replicas[0].data();
    let answer = http1::exchange(to, "POST", CHATS, &headers, body.as_bytes()).await;
    let error = answer.json::<Value>()["error"].clone();
    assert_eq!(error["code"], "internal_error", "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn alarms_of_requests_fire_under_their_faults_alone() {
    let workers = chat::workers(8, &chat::paced(Duration::from_millis(2))).await;
    let program = Program {
        environment: vec![("GRAPEVINE_PROVOKE", "1")],
        ..Program::default()
    };
    let plan = Plan::default()
        .program(program)
        .set("timeouts.first_token", "\"1s\"")
        .set("timeouts.first_token_per_1k", "\"0s\"")
        .set("timeouts.inter_token", "\"1s\"");
    let cluster = plan.workers(&workers).start(3).await;
    rule(&workers, "breaks", &Fault::stop(Point::Event(2), How::Rst));
    let deadly = Fault {
        exit: true,
        ..Fault::default()
    };
    rule(&workers, "deadly", &deadly);
    let mut prometheus = Prometheus::start(&cluster).await;
    let mut number = 0;

    panics(&cluster).await;
    prometheus.fires(&faults::BUG_OF_REQUEST).await;
    cluster.replicas[1].process().signal(Signal::USR1);
    prometheus.fires(&faults::BUG_OF_GOSSIP).await;
    http1::post(cluster.replicas[0].data(), CHATS, &streamed("deadly", 5)).await;
    prometheus.fires(&faults::DEADLY_REQUEST).await;
    let breaks = async || {
        ask(&cluster, &mut number, "it breaks off").await;
        ask(&cluster, &mut number, "it goes well").await;
    };
    prometheus.fires_while(&faults::STREAMS_BREAK, breaks).await;
    for worker in &workers {
        worker.freeze(true);
    }
    let frozen = async || ask(&cluster, &mut number, "it waits").await;
    prometheus.fires_while(&faults::FROZEN_ENGINE, frozen).await;

    let headers = [("x-request-id", "block-the-lane")];
    let body = chat("stuck", 1).to_string();
    let request = http1::request("POST", CHATS, &headers, body.as_bytes());
    let mut stuck = Connection::open(cluster.replicas[2].data()).await;
    stuck.send(&request).await.expect("taken");
    prometheus.fires(&faults::STUCK_THREAD).await;
}
