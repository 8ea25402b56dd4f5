//! Workers that take requests and send no tokens, whatever the result of their health checks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use grapevine_testbed::fake_worker::{FakeWorker, Fault, How, Point, Rule, When};
use grapevine_tests::chat::{self, Ending, MODEL, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{Connection, request};
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::net::TcpListener;

use crate::house::{House, quick};

pub(crate) fn impatient() -> Plan {
    let limits = [
        ("timeouts.first_token", "\"400ms\""),
        ("timeouts.first_token_per_1k", "\"0s\""),
        ("timeouts.inter_token", "\"400ms\""),
        ("timeouts.connect", "\"300ms\""),
        ("health.token_timeout", "\"1s\""),
    ];
    let plan = Plan::default();
    limits
        .into_iter()
        .fold(plan, |plan, (key, value)| plan.set(key, value))
}

/// Requests of clients that a worker has seen.
pub(crate) fn of_clients(worker: &FakeWorker) -> usize {
    let is_probe = |id: &Option<String>| {
        id.as_deref()
            .is_some_and(|id| id.starts_with("token-probe-"))
    };
    let log = worker.log();
    log.iter()
        .filter(|entry| !is_probe(&entry.request_id))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_engine_behind_a_good_health_check_waits_for_a_token() {
    let house = House::of(impatient(), vec![quick(); 2]).await;
    let admin = house.cluster.replicas[0].admin();
    let chat = streamed("whose home is frozen", 3);
    let home = &house.workers[house.home(&chat).await];
    home.freeze(true);
    let outcome = chat::stream(house.data(), &chat).await;
    assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    assert_ne!(outcome.worker, Some(home.url()));
    let frozen = admin.worker(&home.url()).await;
    assert_eq!((&*frozen.verdict, &*frozen.health), ("stalled", "healthy"));

    let probes = || home.stats().paths.get("/health").copied().unwrap_or(0);
    let (before, seen) = (probes(), of_clients(home));
    assert_eq!(seen, 1);
    let mut number = 0;
    eventually(LIMIT, "many probes pass", async || {
        number += 1;
        let outcome = chat::stream(house.data(), &streamed(&format!("question {number}"), 1)).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
        let passed = probes() - before;
        so(passed >= 10, || format!("{passed}"))
    })
    .await;
    assert_eq!(admin.worker(&home.url()).await.verdict, "stalled");
    assert_eq!(
        of_clients(home),
        1,
        "{number} later requests, none of which was sent to it"
    );
    let asked = |result: &str, metrics: grapevine_tests::admin::Metrics| {
        metrics.sum("grapevine_token_probes_total", result)
    };
    assert!(asked("token\"", admin.metrics().await) == 0.0);

    home.freeze(false);
    let took = admin.verdict(&home.url(), "good").await;
    println!("in use {took:?} after its engine went on");
    assert!(asked("token\"", admin.metrics().await) >= 1.0);
    eventually(LIMIT, "its prompts are its own again", async || {
        let outcome = chat::stream(house.data(), &chat).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
        let worker = outcome.worker.unwrap_or_default();
        (worker == home.url()).then_some(()).ok_or(worker)
    })
    .await;
    house.close().await;
}

/// Clients that are less patient than the limit take with them what their waits would have shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_engine_is_found_by_clients_that_do_not_wait_for_it() {
    let plan = impatient().set("timeouts.first_token", "\"2s\"");
    let house = House::of(plan, vec![quick(); 2]).await;
    let admin = house.cluster.replicas[0].admin();
    let chat = streamed("whose home is frozen", 3);
    let home = &house.workers[house.home(&chat).await];
    home.freeze(true);
    let body = chat.to_string();
    let bytes = request("POST", "/v1/chat/completions", &[], body.as_bytes());
    eventually(LIMIT, "it is stalled", async || {
        let mut impatient = Connection::open(house.data()).await;
        impatient.send(&bytes).await.expect("taken");
        let answer = impatient.response_within(Duration::from_millis(300)).await;
        let verdict = admin.worker(&home.url()).await.verdict;
        let given_up = answer.is_none();
        so(verdict == "stalled", || {
            format!("{verdict}, given up: {given_up}")
        })
    })
    .await;
    let outcome = chat::stream(house.data(), &chat).await;
    assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    home.freeze(false);
    admin.verdict(&home.url(), "good").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_streams_stall_again_and_again_is_ejected() {
    // It answers each one-token probe, and each time a client's stream stalls.
    let plan = impatient().set("breaker.open_for", "\"1h\"");
    let plan = plan.set("breaker.success_rate", "0.0");
    let house = House::of(plan, vec![quick(); 2]).await;
    let admin = house.cluster.replicas[0].admin();
    let stalling = &house.workers[0];
    let when = When {
        path: Some("/v1/chat/completions".to_owned()),
        ..When::default()
    };
    let rule = Rule {
        when,
        ..Rule::always(Fault::stop(Point::Event(2), How::Stall))
    };
    stalling.add_rule(rule).expect("there is room");
    let mut number = 0;
    eventually(LIMIT, "it is ejected", async || {
        number += 1;
        let body = streamed(&format!("question {number}"), 8);
        let outcome = chat::stream(house.data(), &body).await;
        let at_it = outcome.worker == Some(stalling.url());
        let cut = matches!(outcome.ending, Ending::ErrorEvent(_));
        assert_eq!(at_it, cut, "{outcome:?}");
        let verdict = admin.worker(&stalling.url()).await.verdict;
        (verdict == "ejected").then_some(()).ok_or(verdict)
    })
    .await;
    let cost = of_clients(stalling);
    println!("{cost} streams cut of {number}");
    assert_eq!(cost, 5, "one stream for each failure that opens a breaker");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_accepts_and_never_answers_costs_one_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent = format!("http://{}", listener.local_addr().expect("bound"));
    let held = Arc::new(Mutex::new(Vec::new()));
    let holder = tokio::spawn({
        let held = Arc::clone(&held);
        async move {
            while let Ok((stream, _)) = listener.accept().await {
                held.lock().expect("no holder panics").push(stream);
            }
        }
    });
    let plan = impatient().worker(&silent, &[MODEL]);
    // Its probes fail as well, but here only requests may show that it stalls.
    let plan = plan.set("health.failure_threshold", "1000000");
    let house = House::of(plan, vec![quick(); 2]).await;
    let admin = house.cluster.replicas[0].admin();
    for number in 0..60 {
        let outcome = chat::stream(house.data(), &streamed(&format!("question {number}"), 1)).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
    assert_eq!(admin.worker(&silent).await.verdict, "stalled");
    let attempts = admin.attempts(&silent).await;
    assert!(attempts == 1.0, "{attempts} requests were sent to it");
    holder.abort();
    house.close().await;
}
