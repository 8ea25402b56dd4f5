//! Workers that fail, and workers that only refuse.

use grapevine_testbed::fake_worker::{Canned, FakeWorker, Fault, How, Point, Rule, When};
use grapevine_tests::chat::{CHATS, MODEL, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::json;
use tokio::task::JoinSet;

use crate::errors::assert_error;
use crate::house::{House, quick};
use crate::stalls::impatient;

/// A rule: every chat with this text gets the status.
fn when_it_says(text: &str, status: u16) -> Rule {
    Rule {
        when: When {
            body_contains: Some(text.to_owned()),
            ..When::default()
        },
        ..Rule::always(Fault::status(status))
    }
}

/// Sends a chat and returns the status of its answer.
async fn ask(house: &House, text: &str) -> u16 {
    http1::post(house.data(), CHATS, &chat(text, 1))
        .await
        .head
        .status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_fails_is_left_alone_until_trials_succeed() {
    // Long enough that no trial request falls into the first part of the test.
    let plan = Plan::default().set("breaker.open_for", "\"2s\"");
    let house = House::of(plan, vec![quick(); 3]).await;
    let (failing, url) = (&house.workers[0], house.workers[0].url());
    let admin = house.cluster.replicas[0].admin();
    failing
        .add_rule(Rule::always(Fault::status(500)))
        .expect("there is room");
    let mut number = 0;
    eventually(LIMIT, "its breaker opens", async || {
        number += 1;
        assert_eq!(ask(&house, &format!("question {number}")).await, 200);
        let open = admin.worker(&url).await.breaker == "open";
        so(open, || format!("{number} questions"))
    })
    .await;
    assert_eq!(
        failing.log().len(),
        5,
        "asked one at a time, five failures in a row are enough"
    );
    println!(
        "1 of 3 workers fails everything: out after 5 of {number} requests, all of which were answered"
    );

    failing.clear_rules();
    // Without traffic it waits for a request, and nobody has to be called for it.
    eventually(LIMIT, "it is on trial", async || {
        let metrics = admin.metrics().await;
        let of = |verdict| metrics.sum("grapevine_workers_by_verdict", verdict);
        let counts = [of("on_trial"), of("ejected"), of("good")];
        let is_so = counts == [1.0, 0.0, 2.0];
        so(is_so, || format!("{counts:?}"))
    })
    .await;
    let (_, took) = eventually(LIMIT, "trials close it", async || {
        number += 1;
        assert_eq!(ask(&house, &format!("question {number}")).await, 200);
        let worker = admin.worker(&url).await;
        (worker.verdict == "good")
            .then_some(worker.slow_start)
            .ok_or_else(|| format!("{:?}", worker.breaker))
    })
    .await;
    println!("in use again after {took:?}");
    let metrics = admin.metrics().await;
    let ejected = metrics.sum("grapevine_worker_health_changes_total", "to=\"ejected\"");
    assert!(ejected >= 1.0);
    house.close().await;
}

/// A rule: every request to this path gets the status.
fn at(path: &str, status: u16) -> Rule {
    Rule {
        when: When {
            path: Some(path.to_owned()),
            ..When::default()
        },
        ..Rule::always(Fault::status(status))
    }
}

/// A rule: requests for this path get the body.
fn canned(path: &str, media_type: &str, body: &str) -> Rule {
    let reply = Canned {
        status: 200,
        headers: vec![("content-type".to_owned(), media_type.to_owned())],
        body: Some(body.to_owned()),
        repeat: 1,
        gzip: false,
    };
    Rule {
        when: at(path, 200).when,
        ..Rule::always(Fault {
            reply: Some(reply),
            ..Fault::default()
        })
    }
}

/// Tokenizes, which the worker's HTTP server does alone, and returns the status of the answer.
async fn tokenize(house: &House, text: &str) -> u16 {
    let body = json!({ "model": MODEL, "prompt": text });
    let answer = http1::post(house.data(), "/tokenize", &body).await;
    answer.head.status
}

/// Has a response computed later, which the worker's HTTP server takes, and returns the status of the answer.
async fn queue(house: &House, text: &str) -> u16 {
    let body = json!({ "model": MODEL, "input": text, "background": true });
    let answer = http1::post(house.data(), "/v1/responses", &body).await;
    answer.head.status
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_engine_computes_speaks_neither_for_nor_against_a_worker() {
    let plan = Plan::default().set("retry.enabled", "false");
    let plan = plan.set("breaker.open_for", "\"100ms\"");
    let plan = plan.set("breaker.open_max", "\"100ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let (worker, url) = (&house.workers[0], house.workers[0].url());
    let admin = house.cluster.replicas[0].admin();
    let breaker = async || admin.worker(&url).await.breaker;
    for path in ["/tokenize", "/v1/responses"] {
        worker.add_rule(at(path, 500)).expect("there is room");
    }
    for number in 0..20 {
        assert_eq!(tokenize(&house, &format!("fails {number}")).await, 500);
        assert_eq!(queue(&house, &format!("fails {number}")).await, 500);
    }
    assert_eq!(breaker().await, "closed", "its engine was not asked");
    worker.clear_rules();
    worker.add_rule(at(CHATS, 500)).expect("there is room");
    for number in 0..5 {
        assert_eq!(tokenize(&house, &format!("between {number}")).await, 200);
        assert_eq!(queue(&house, &format!("between {number}")).await, 200);
        assert_eq!(ask(&house, &format!("question {number}")).await, 500);
    }
    assert_ne!(breaker().await, "closed", "its engine fails everything");
    eventually(LIMIT, "it is on trial", async || {
        let breaker = breaker().await;
        (breaker == "half_open").then_some(()).ok_or(breaker)
    })
    .await;
    for number in 0..5 {
        assert_eq!(tokenize(&house, &format!("trial {number}")).await, 200);
        assert_eq!(queue(&house, &format!("trial {number}")).await, 200);
    }
    assert_eq!(breaker().await, "half_open", "its engine has shown nothing");
    worker.clear_rules();
    for number in 0..3 {
        assert_eq!(ask(&house, &format!("again {number}")).await, 200);
    }
    assert_eq!(breaker().await, "closed");
    house.close().await;
}

/// It would be computed twice where its worker had it and did not say so; one that refused it has not.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_computed_later_goes_elsewhere_once_it_was_refused() {
    for (fault, goes_elsewhere) in [
        (Fault::status(503), true),
        (Fault::status(500), true),
        (Fault::stop(Point::Head(0), How::Fin), false),
    ] {
        let house = House::of(Plan::default(), vec![quick(); 2]).await;
        for worker in &house.workers {
            let rule = Rule {
                when: at("/v1/responses", 200).when,
                ..Rule::next(1, fault.clone())
            };
            worker.add_rule(rule).expect("there is room");
        }
        let status = queue(&house, "later").await;
        let asked = |worker: &FakeWorker| {
            let log = worker.log();
            log.iter().any(|entry| entry.path == "/v1/responses")
        };
        let asked = house.workers.iter().filter(|worker| asked(worker)).count();
        assert_eq!(asked == 2, goes_elsewhere, "{fault:?}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_engine_computes_does_not_end_a_stall() {
    let plan = impatient().set("health.token_probe", "false");
    let plan = plan.set("retry.enabled", "false");
    let plan = plan.set("breaker.open_for", "\"100ms\"");
    let plan = plan.set("breaker.open_max", "\"100ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let (worker, url) = (&house.workers[0], house.workers[0].url());
    let admin = house.cluster.replicas[0].admin();
    worker.freeze(true);
    // As vLLM takes one: its engine is not asked for the answer.
    let taken = canned(
        "/v1/responses",
        "application/json",
        r#"{"id":"resp_1","status":"queued"}"#,
    );
    worker.add_rule(taken).expect("there is room");
    assert_eq!(ask_for_stream(&house, "frozen").await, 504);
    assert_eq!(admin.worker(&url).await.verdict, "stalled");
    eventually(LIMIT, "clients may try it", async || {
        let breaker = admin.worker(&url).await.breaker;
        (breaker == "half_open").then_some(()).ok_or(breaker)
    })
    .await;
    for number in 0..5 {
        assert_eq!(tokenize(&house, &format!("text {number}")).await, 200);
        assert_eq!(queue(&house, &format!("text {number}")).await, 200);
    }
    let found = admin.worker(&url).await;
    assert_eq!((&*found.verdict, &*found.breaker), ("stalled", "half_open"));
    worker.freeze(false);
    assert_eq!(ask_for_stream(&house, "thawed").await, 200);
    assert_eq!(admin.worker(&url).await.verdict, "good");
    house.close().await;
}

/// vLLM replays the events of a background response that has failed, as often as it is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_response_that_is_read_again_is_no_failure_of_its_worker() {
    let house = House::of(Plan::default(), vec![quick()]).await;
    let (worker, url) = (&house.workers[0], house.workers[0].url());
    let admin = house.cluster.replicas[0].admin();
    let path = "/v1/responses/resp_1";
    let failed = r#"{"type":"response.failed","response":{"id":"resp_1","status":"failed"}}"#;
    let replayed = format!("event: response.failed\ndata: {failed}\n\n");
    let replayed = canned(path, "text/event-stream", &replayed);
    worker.add_rule(replayed).expect("there is room");
    for _ in 0..20 {
        let answer = http1::get(house.data(), &format!("{path}?stream=true")).await;
        assert_eq!(answer.head.status, 200);
        assert!(answer.text().contains("response.failed"));
    }
    assert_eq!(admin.worker(&url).await.breaker, "closed");
    assert_eq!(ask(&house, "and a question").await, 200);
    house.close().await;
}

/// The status of a short stream.
async fn ask_for_stream(house: &House, text: &str) -> u16 {
    let body = streamed(text, 1);
    let answer = http1::post(house.data(), CHATS, &body).await;
    answer.head.status
}

/// The behaviour that users of vllm-router's `--cb-*` flags expect when no other worker is left: failing workers get no
/// requests for that time, clients get an error at once with a time to retry, and successes let all requests in again.
#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_holds_where_no_other_worker_is_left() {
    for workers in [1, 2] {
        let plan = Plan::default().set("breaker.open_for", "\"3s\"");
        let plan = plan.set("breaker.failure_threshold", "3");
        let plan = plan.set("breaker.success_threshold", "2");
        let plan = plan.set("breaker.jitter", "0.0");
        let plan = plan.set("retry.enabled", "false");
        let house = House::of(plan, vec![quick(); workers]).await;
        let admin = house.cluster.replicas[0].admin();
        for worker in &house.workers {
            let fails = Rule::always(Fault::status(500));
            worker.add_rule(fails).expect("there is room");
        }
        let seen = || house.workers.iter().map(|w| w.log().len()).sum::<usize>();
        let mut number = 0;
        eventually(LIMIT, "all breakers open", async || {
            number += 1;
            ask(&house, &format!("question {number}")).await;
            let known = admin.workers().await;
            let open = known.iter().all(|worker| worker.breaker == "open");
            so(open, || format!("{known:?}"))
        })
        .await;
        let before = seen();
        assert_eq!(before, 3 * workers, "three failures of each are enough");
        for number in 0..20 {
            let body = chat(&format!("meanwhile {number}"), 1);
            let answer = http1::post(house.data(), CHATS, &body).await;
            assert_error(&answer, 503, "no_worker_available");
            let after = answer.head.header("retry-after").expect("it says when");
            assert!(["1", "2", "3"].contains(&after), "{after}");
        }
        assert_eq!(seen(), before, "nobody was asked");
        for worker in &house.workers {
            worker.clear_rules();
        }
        eventually(LIMIT, "served again", async || {
            number += 1;
            let status = ask(&house, &format!("question {number}")).await;
            let known = admin.workers().await;
            let closed = known.iter().all(|worker| worker.breaker == "closed");
            so(closed && status == 200, || format!("{status}, {known:?}"))
        })
        .await;
        house.close().await;
    }
}

/// One client's requests fail in every engine: another's are served all along.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_everywhere_ejects_nobody() {
    let plan = Plan::default().set("retry.initial_backoff", "\"1ms\"");
    let house = House::of(plan, vec![quick(); 4]).await;
    let admin = house.cluster.replicas[0].admin();
    for worker in &house.workers {
        let fails = when_it_says("boom", 500);
        worker.add_rule(fails).expect("there is room");
    }
    // Far more than the budget has retries for.
    for number in 0..200 {
        assert_eq!(ask(&house, &format!("boom {number}")).await, 500);
        if number % 4 == 0 {
            assert_eq!(ask(&house, &format!("good {number}")).await, 200);
        }
    }
    let known = admin.workers().await;
    let closed = known.iter().all(|worker| worker.breaker == "closed");
    assert!(closed, "{known:?}");
    let metrics = admin.metrics().await;
    let faults = metrics.sum("grapevine_request_faults_total", "");
    let retries = metrics.sum("grapevine_retries_total", "");
    assert!(faults > 0.0 && retries < 200.0, "{faults}, {retries}");

    // A worker that fails what others answer is ejected all the same.
    house.workers[0].clear_rules();
    let broken = Rule::always(Fault::status(500));
    house.workers[0].add_rule(broken).expect("there is room");
    let url = house.workers[0].url();
    let mut number = 0;
    eventually(LIMIT, "the broken one is left alone", async || {
        number += 1;
        ask(&house, &format!("other {number}")).await;
        let known = admin.workers().await;
        let open = known.iter().filter(|worker| worker.breaker != "closed");
        let open: Vec<&str> = open.map(|worker| &*worker.id).collect();
        so(open == [&*url], || format!("{open:?}"))
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_did_wrong_speaks_against_no_worker() {
    const CLIENTS: usize = 20;
    const EACH: usize = 100;
    let house = House::new(2).await;
    for worker in &house.workers {
        let rule = when_it_says("nonsense", 400);
        worker.add_rule(rule).expect("there is room");
    }
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let data = house.data();
        clients.spawn(async move {
            let mut connection = Connection::open(data).await;
            for number in 0..EACH {
                let wrong = number % 10 < 3;
                let text = if wrong { "nonsense" } else { "question" };
                let body = chat(&format!("{text} {client} {number}"), 1).to_string();
                let request = http1::request("POST", CHATS, &[], body.as_bytes());
                connection
                    .send(&request)
                    .await
                    .expect("the replica is there");
                let answer = connection.response().await.expect("the replica is there");
                assert_eq!(answer.head.status, if wrong { 400 } else { 200 });
            }
        });
    }
    clients.join_all().await;
    let seen: usize = house.workers.iter().map(|worker| worker.log().len()).sum();
    assert_eq!(seen, CLIENTS * EACH, "nothing was tried twice");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    for verdict in ["ejected", "stalled", "unreachable", "unhealthy"] {
        let label = format!("to=\"{verdict}\"");
        let times = metrics.sum("grapevine_worker_health_changes_total", &label);
        assert!(times == 0.0, "{times} times {verdict}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_400_is_no_proof_that_a_worker_is_back() {
    let plan = Plan::default().set("breaker.open_for", "\"50ms\"");
    let plan = plan.set("breaker.open_max", "\"50ms\"");
    let house = House::of(plan, vec![quick(); 2]).await;
    let (sick, url) = (&house.workers[0], house.workers[0].url());
    let admin = house.cluster.replicas[0].admin();
    sick.add_rule(when_it_says("break", 500))
        .expect("there is room");
    for worker in &house.workers {
        let rule = when_it_says("nonsense", 400);
        worker.add_rule(rule).expect("there is room");
    }
    let mut number = 0;
    eventually(LIMIT, "its breaker opens", async || {
        number += 1;
        assert_eq!(ask(&house, &format!("break {number}")).await, 200);
        let ejected = admin.worker(&url).await.verdict == "ejected";
        so(ejected, || format!("{number} questions"))
    })
    .await;
    let refused = || {
        sick.log()
            .iter()
            .filter(|entry| entry.status == Some(400))
            .count()
    };
    eventually(LIMIT, "trials that prove nothing", async || {
        number += 1;
        assert_eq!(ask(&house, &format!("nonsense {number}")).await, 400);
        let refused = refused();
        so(refused >= 6, || format!("{refused}"))
    })
    .await;
    assert_eq!(
        admin.worker(&url).await.verdict,
        "ejected",
        "after {} trials",
        refused()
    );
    eventually(LIMIT, "trials that do", async || {
        number += 1;
        assert_eq!(ask(&house, &format!("question {number}")).await, 200);
        let verdict = admin.worker(&url).await.verdict;
        (verdict == "good").then_some(()).ok_or(verdict)
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_most_workers_unhealthy_all_are_used_unless_told_otherwise() {
    for (panics, used) in [("true", 4), ("false", 1)] {
        let plan = Plan::default().set("cluster.panic", panics);
        let house = House::of(plan, vec![quick(); 4]).await;
        let admin = house.cluster.replicas[0].admin();
        for worker in &house.workers[1..] {
            let when = When {
                path: Some("/health".to_owned()),
                ..When::default()
            };
            let rule = Rule {
                when,
                ..Rule::always(Fault::status(500))
            };
            worker.add_rule(rule).expect("there is room");
        }
        for worker in &house.workers[1..] {
            admin.verdict(&worker.url(), "unhealthy").await;
        }
        for number in 0..80 {
            assert_eq!(ask(&house, &format!("question {number}")).await, 200);
        }
        let busy = house
            .workers
            .iter()
            .filter(|worker| !worker.log().is_empty());
        assert_eq!(busy.count(), used, "cluster.panic = {panics}");
        let metrics = admin.metrics().await;
        let told = metrics.sum("grapevine_panic", MODEL);
        assert!(
            told == f64::from(u8::from(used == 4)),
            "grapevine_panic {told}"
        );
        for worker in &house.workers {
            worker.clear_rules();
        }
        house.close().await;
    }
}

/// Whole answers may take minutes: so long a worker that fails everything would stay in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_fails_is_ejected_while_the_others_still_compute_what_it_failed() {
    let plan = Plan::default().set("breaker.failure_threshold", "2");
    let plan = plan.set("breaker.open_for", "\"60s\"");
    let house = House::of(plan, vec![quick(); 2]).await;
    let (broken, other) = (&house.workers[0], &house.workers[1]);
    let fails = Rule::always(Fault::status(500));
    broken.add_rule(fails).expect("there is room");
    other.freeze(true);
    let (mut asked, mut number) = (JoinSet::new(), 0);
    eventually(LIMIT, "two of them begin at the broken one", async || {
        number += 1;
        let (data, body) = (house.data(), chat(&format!("question {number}"), 1));
        asked.spawn(async move { http1::post(data, CHATS, &body).await.head.status });
        so(broken.log().len() >= 2, || number.to_string())
    })
    .await;
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "its breaker opens", async || {
        let known = admin.worker(&broken.url()).await;
        so(known.breaker == "open", || format!("{known:?}"))
    })
    .await;
    assert!(asked.try_join_next().is_none(), "nobody has an answer");
    other.freeze(false);
    while let Some(status) = asked.join_next().await {
        assert_eq!(status.expect("no panic"), 200);
    }
    house.close().await;
}
