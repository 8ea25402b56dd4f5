//! Requests that end their worker's process, and requests that were only in flight on it.

use std::process::Command;

use grapevine_testbed::fake_worker::{FakeWorker, Fault, Rule, When};
use grapevine_tests::binary::grapevine;
use grapevine_tests::chat::{self, Ending, MODEL, chat, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::admission;
use crate::errors::{assert_error, assert_refusal};
use crate::house::{House, quick, until_log_says};

const CHATS: &str = "/v1/chat/completions";

/// A rule: a worker that reads this text ends.
fn deadly(text: &str) -> Rule {
    let fault = Fault {
        exit: true,
        ..Fault::default()
    };
    when_it_says(text, fault)
}

fn when_it_says(text: &str, fault: Fault) -> Rule {
    Rule {
        when: When {
            body_contains: Some(text.to_owned()),
            ..When::default()
        },
        ..Rule::always(fault)
    }
}

async fn dead(workers: &[FakeWorker]) -> usize {
    let mut dead = 0;
    for worker in workers {
        dead += usize::from(TcpStream::connect(worker.addr()).await.is_err());
    }
    dead
}

/// W24: a request that ends its worker ends at most one more, here and behind the other replicas; all other
/// requests on these workers are answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_ends_its_worker_ends_one_more_at_most() {
    const INNOCENTS: usize = 40;
    let mut plan = Plan::default();
    let mut workers = Vec::new();
    for _ in 0..8 {
        let worker = chat::worker(quick()).await;
        plan = plan.worker(&worker.url(), &[MODEL]);
        worker.add_rule(deadly("deadly")).expect("room for a rule");
        // They are in flight at that moment, and their clients have got nothing yet.
        let slow = when_it_says("innocent", Fault::delay_ms(2_000));
        worker.add_rule(slow).expect("room for a rule");
        workers.push(worker);
    }
    let cluster = plan.start(2).await;
    cluster.settled().await;
    let (first, second) = (&cluster.replicas[0], &cluster.replicas[1]);

    let mut innocents = JoinSet::new();
    for number in 0..INNOCENTS {
        let data = first.data();
        innocents.spawn(async move {
            let id = format!("innocent-{number}");
            let body = chat(&format!("innocent question {number}"), 1).to_string();
            let headers = [("x-request-id", &*id)];
            let answer = http1::exchange(data, "POST", CHATS, &headers, body.as_bytes()).await;
            (id, answer.head.status)
        });
    }
    let at_workers = || {
        workers
            .iter()
            .map(|worker| worker.log().len())
            .sum::<usize>()
    };
    eventually(LIMIT, "the innocent are there", async || {
        let there = at_workers();
        (there == INNOCENTS)
            .then_some(())
            .ok_or_else(|| format!("{there}"))
    })
    .await;

    let body = streamed("deadly", 5);
    let answer = http1::post(first.data(), CHATS, &body).await;
    assert_error(&answer, 422, "query_of_death");
    assert_eq!(dead(&workers).await, 2);

    let (mut gone, mut alive) = (Vec::new(), Vec::new());
    for worker in &workers {
        let is_gone = TcpStream::connect(worker.addr()).await.is_err();
        if is_gone { &mut gone } else { &mut alive }.push(worker);
    }
    let (mut moved, mut lost) = (0, 0);
    for (id, status) in innocents.join_all().await {
        let seen_by = |workers: &[&FakeWorker]| {
            let seen = workers.iter().flat_map(|worker| worker.log());
            seen.filter(|entry| entry.request_id.as_deref() == Some(&id))
                .count()
        };
        if status == 200 {
            moved += usize::from(seen_by(&gone) > 0);
            continue;
        }
        // A request that was on both of them, and on no other, cannot be told from the culprit.
        assert_eq!((status, seen_by(&alive)), (422, 0), "{id}");
        assert!(seen_by(&gone) > 0, "{id}");
        lost += 1;
    }
    println!(
        "2 of 8 workers ended: of {INNOCENTS} others {moved} moved, {lost} had been with both"
    );
    assert!(lost < INNOCENTS / 4, "{lost} were lost");
    until_log_says(&cluster, "sent to no other").await;
    let log = first.log();
    let line = log.lines().find(|line| line.contains("sent to no other"));
    let line = line.unwrap_or_else(|| panic!("nothing in the log: {log}"));
    assert!(
        line.contains("request_id") && line.contains("body"),
        "{line}"
    );

    // Its client tries again, also at other replicas.
    let before = at_workers();
    eventually(LIMIT, "the other replica has heard of it", async || {
        let metrics = second.admin().metrics().await;
        let held = metrics.sum("grapevine_quarantined", "");
        (held >= 1.0).then_some(()).ok_or_else(|| format!("{held}"))
    })
    .await;
    for replica in [first, second] {
        let answer = http1::post(replica.data(), CHATS, &body).await;
        let error = assert_error(&answer, 422, "query_of_death");
        let message = error["message"].as_str().expect("a text");
        assert!(message.contains("a request like this one"), "{message}");
    }
    // What explains a request refuses it as well.
    let explained = http1::post(second.admin().0, "/explain", &body).await;
    let error = assert_refusal(&explained, 422, "query_of_death");
    assert!(error["message"].is_string(), "{error}");
    assert_eq!(at_workers(), before, "no worker was asked");
    assert_eq!(dead(&workers).await, 2);
    let other = http1::post(second.data(), CHATS, &chat("something else", 1)).await;
    assert_eq!(other.head.status, 200, "{}", other.text());
    lifted_everywhere(&cluster, &workers, &body).await;
}

/// An operator lifts the marks at one replica, by the command: the others let the body through as well.
async fn lifted_everywhere(cluster: &Cluster, workers: &[FakeWorker], body: &Value) {
    let (first, second) = (&cluster.replicas[0], &cluster.replicas[1]);
    let run = |words: &[&str]| {
        let admin = format!("http://{}", second.admin().0);
        let words = [words, &["--admin", &admin]].concat();
        let done = Command::new(grapevine())
            .arg("quarantine")
            .args(words)
            .output();
        let done = done.expect("it runs");
        let text = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8(text).expect("text"))
    };
    let (code, listed) = run(&["list"]);
    assert_eq!(code, Some(0), "{listed}");
    let log = first.log();
    let marked = log
        .lines()
        .filter_map(|line| line.split_once("body=\"")?.1.get(..32));
    let marked: Vec<&str> = marked.collect();
    assert!(!marked.is_empty(), "{log}");
    assert!(marked.iter().all(|hash| listed.contains(hash)), "{listed}");
    let (code, said) = run(&["lift", "00000000000000000000000000000000"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no such mark"), "{said}");
    let (code, said) = run(&["lift", marked[0]]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("1 lifted here; "), "{said}");
    let (code, said) = run(&["lift", "--all"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = run(&[]);
    assert_eq!((code, said.trim()), (Some(0), "nothing is marked"));
    eventually(LIMIT, "the first replica has heard of it", async || {
        let metrics = first.admin().metrics().await;
        let held = metrics.sum("grapevine_quarantined", "");
        (held == 0.0).then_some(()).ok_or_else(|| format!("{held}"))
    })
    .await;
    // The fault is removed.
    for worker in workers {
        worker.clear_rules();
    }
    for replica in [first, second] {
        let answer = http1::post(replica.data(), CHATS, body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
}

/// Connections that end say nothing about a request while their workers live.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_close_connections_and_live_condemn_nobody() {
    let mut plan = Plan::default().set("health.interval", "\"1h\"");
    let mut closing = JoinSet::new();
    for _ in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        plan = plan.worker(&url, &[MODEL]);
        closing.spawn(async move { while listener.accept().await.is_ok() {} });
    }
    let good = chat::worker(quick()).await;
    plan = plan.worker(&good.url(), &[MODEL]);
    let house = House::with(plan, vec![good]).await;
    for number in 0..20 {
        let body = streamed(&format!("question {number}"), 1);
        let outcome = chat::stream(house.data(), &body).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    assert_eq!(metrics.sum("grapevine_quarantined", ""), 0.0);
    house.close().await;
}

/// vLLM's server outlives its engine by half a minute, and answers 500 meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_ends_an_engine_ends_one_more_at_most() {
    for message in [
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "The server had an error while processing your request.",
        "failed to submit the request: engine core reported fatal failure",
    ] {
        let dead = || {
            let mut fault = Fault::status(500);
            let body = serde_json::json!({ "error": { "message": message, "code": 500 } });
            if let Some(reply) = &mut fault.reply {
                reply.body = Some(body.to_string());
            }
            fault
        };
        let plan = Plan::default().set("retry.budget", "0.0");
        let plan = plan.set("retry.budget_floor", "0");
        let house = House::of(plan, vec![quick(); 5]).await;
        for worker in &house.workers {
            let rule = when_it_says("deadly", dead());
            worker.add_rule(rule).expect("room for a rule");
        }
        let answer = http1::post(house.data(), CHATS, &chat("deadly", 1)).await;
        assert_error(&answer, 422, "query_of_death");
        let asked = house
            .workers
            .iter()
            .filter(|worker| !worker.log().is_empty());
        assert_eq!(asked.count(), 2, "{message}");
        house.close().await;
    }
}

/// A copy that was read before its body was marked is looked at again when its turn comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_waits_for_room_is_not_sent_once_its_body_is_marked() {
    let workers = chat::workers(2, &quick()).await;
    let plan = Plan::default()
        .set("retry.deaths_max", "1")
        .set("admission.queue_timeout", "\"60s\"");
    let plan = workers.iter().fold(plan, |plan, worker| {
        plan.worker_with(&worker.url(), &[MODEL], "max_in_flight = 1\n")
    });
    for worker in &workers {
        let silent = Rule::always(Fault::never_answer());
        worker.add_rule(silent).expect("room for a rule");
    }
    let mut house = House::with(plan, workers).await;
    let data = house.data();
    let ask = |text: &'static str, id: &'static str| {
        let body = chat(text, 1).to_string();
        let headers = [("x-request-id", id)];
        tokio::spawn(async move {
            http1::exchange(data, "POST", CHATS, &headers, body.as_bytes()).await
        })
    };
    let until_asked = async |count: usize| {
        eventually(LIMIT, "the workers are asked", async || {
            let asked = house.workers.iter().map(|worker| worker.log().len());
            let asked: usize = asked.sum();
            (asked == count).then_some(()).ok_or(format!("{asked}"))
        })
        .await;
    };
    let busy = ask("innocent", "busy");
    until_asked(1).await;
    let first = ask("deadly", "first");
    until_asked(2).await;
    let second = ask("deadly", "second");
    admission::waiting(&house, "worker", 1).await;

    // The worker of the first copy ends with it.
    let at = house.workers.iter().position(|worker| {
        let id = &worker.log()[0].request_id;
        id.as_deref() == Some("first")
    });
    let at = at.expect("a worker has it");
    house.workers.remove(at).kill().await;
    let survivor = &house.workers[0];
    survivor.clear_rules();
    survivor
        .add_rule(deadly("deadly"))
        .expect("room for a rule");
    let answer = first.await.expect("no panic");
    assert_error(&answer, 422, "query_of_death");

    // The second copy may have looked at the place that became free there. If it still waits, the other has room now.
    busy.abort();
    let answer = second.await.expect("no panic");
    let error = assert_error(&answer, 422, "query_of_death");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("a request like this one"), "{message}");
    assert_eq!(survivor.log().len(), 1, "it got no copy");
    assert_eq!(dead(&house.workers).await, 0);
    house.close().await;
}
