//! The one worker that holds a response is waited for, and others are not asked instead.

use std::time::Duration;

use grapevine_testbed::fake_worker::{Fault, How, Point, Rule, When};
use grapevine_tests::chat::{self, EXPLAIN, MODEL};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{PATH, asked, held_somewhere, worker_of};
use crate::admission;
use crate::errors::assert_error;
use crate::house::{House, quick};
use crate::retries::{refusal, retry_after};

/// A request that waits for the one worker that holds a response does not move to others, which do not hold
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_read_and_cancelled_while_every_place_is_taken() {
    let plan = Plan::default().set("limits.requests", "1");
    let house = House::of(plan, vec![chat::paced(Duration::from_millis(20))]).await;
    let made = http1::post(house.data(), PATH, &asked("x")).await;
    let made = made.json::<Value>();
    let id = made["id"].as_str().expect("an id");
    let body = chat::streamed("held", 4_000);
    let mut held = chat::Stream::open(house.data(), &body)
        .await
        .expect("accepted");
    held.read_events(1).await.expect("it has begun");
    let path = format!("{PATH}/{id}");
    let cancel = format!("{path}/cancel");
    // That it cannot be cancelled is the worker's word.
    for (method, path, status) in [("GET", &path, 200), ("POST", &cancel, 400)] {
        let answer = http1::exchange(house.data(), method, path, &[], b"");
        let answer = timeout(LIMIT, answer).await.expect("it waits for a place");
        assert_eq!(answer.head.status, status, "{method}: {}", answer.text());
        let log = house.workers[0].log();
        let seen = log.iter().find(|entry| entry.path == *path).expect("asked");
        let is_length = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("content-length");
        let length = seen.headers.iter().find(is_length);
        let length = length.map(|(_, value)| value.as_str());
        assert_eq!(
            length,
            (method == "POST").then_some("0"),
            "{method} without a body"
        );
    }
    held.leave(false);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_looks_bad_is_waited_for() {
    let plan = Plan::default()
        .set("health.interval", "\"100ms\"")
        .set("health.failure_threshold", "1");
    let house = House::of(plan, vec![quick(); 2]).await;
    let (id, holder) = held_somewhere(&house).await;
    let path = format!("{PATH}/{id}");
    let on = |path: &str, fault: Fault| {
        let when = When {
            path: Some(path.to_owned()),
            ..When::default()
        };
        let rule = Rule {
            when,
            ..Rule::always(fault)
        };
        holder.add_rule(rule).expect("room for a rule");
    };
    on(&path, Fault::delay_ms(4_000));
    let waiting = tokio::spawn({
        let (data, path) = (house.data(), path.clone());
        async move { http1::get(data, &path).await }
    });
    eventually(LIMIT, "it is asked", async || {
        let log = holder.log();
        let is_asked = log.iter().any(|entry| entry.path == path);
        is_asked.then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    on("/health", Fault::status(500));
    let admin = house.cluster.replicas[0].admin();
    admin.verdict(&holder.url(), "unhealthy").await;
    let got = waiting.await.expect("no panic");
    assert_eq!(got.head.status, 200, "{}", got.text());
    holder.clear_rules();
    admin.verdict(&holder.url(), "good").await;
    house.close().await;
}

/// Other workers are idle: for them alone nobody would have to wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_asks_to_be_left_alone_is_not_waited_for() {
    // Short, so that a request that waits all the same fails the test soon.
    let plan = Plan::default().set("admission.queue_timeout", "\"5s\"");
    let house = House::of(plan, vec![quick(); 3]).await;
    let (id, holder) = held_somewhere(&house).await;
    let mut next = asked("and then?");
    next["previous_response_id"] = id.as_str().into();
    let rule = Rule::next(1, refusal(429, "60"));
    holder.add_rule(rule).expect("room for a rule");
    let told = http1::post(house.data(), PATH, &next).await;
    assert_eq!(told.head.status, 429, "the holder's word: {}", told.text());
    assert!((2..=60).contains(&retry_after(&told)), "{:?}", told.head);
    let told = http1::post(house.data(), PATH, &next).await;
    assert_error(&told, 503, "no_worker_available");
    assert!((2..=60).contains(&retry_after(&told)), "{:?}", told.head);
    let seen = holder.log();
    let seen = seen.iter().filter(|entry| entry.path == PATH).count();
    assert_eq!(seen, 2, "it was left alone");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_full_holder_holds_nobody_back() {
    let workers = chat::workers(3, &quick()).await;
    let plan = Plan::default().set("admission.queue_timeout", "\"20s\"");
    let plan = workers.iter().fold(plan, |plan, worker| {
        plan.worker_with(&worker.url(), &[MODEL], "max_in_flight = 1\n")
    });
    let house = House::with(plan, workers).await;
    let (id, holder) = held_somewhere(&house).await;
    let mut next = asked("and then?");
    next["previous_response_id"] = id.as_str().into();
    let mut long = next.clone();
    long["stream"] = true.into();
    long["max_output_tokens"] = 100_000.into();
    let mut busy = Connection::open(house.data()).await;
    let bytes = request("POST", PATH, &[], long.to_string().as_bytes());
    busy.send(&bytes).await.expect("taken");
    assert_eq!(busy.head().await.expect("it has begun").status, 200);

    let waiting = tokio::spawn({
        let (data, next) = (house.data(), next.clone());
        async move { http1::exchange(data, "POST", PATH, &[EXPLAIN], next.to_string().as_bytes()).await }
    });
    admission::waiting(&house, "worker", 1).await;
    for number in 0..6 {
        let body = chat::chat(&format!("question {number}"), 1);
        let answer = http1::post(house.data(), "/v1/chat/completions", &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    assert!(!waiting.is_finished(), "the others went past it");
    // What the holder has is read, and cancelled, without a place there.
    let got = http1::get(house.data(), &format!("{PATH}/{id}")).await;
    assert_eq!(got.head.status, 200, "{}", got.text());
    let cancel = format!("{PATH}/{id}/cancel");
    let told = http1::exchange(house.data(), "POST", &cancel, &[], b"").await;
    assert_eq!(told.head.status, 400, "its own word: {}", told.text());
    assert!(!waiting.is_finished(), "the holder is full");
    drop(busy);
    let got = waiting.await.expect("no panic");
    assert_eq!(got.head.status, 200, "{}", got.text());
    assert_eq!(worker_of(&got), holder.url());
    house.close().await;
}

/// A stored response that is followed as a stream takes nothing of what its worker computes with.
#[tokio::test(flavor = "multi_thread")]
async fn who_follows_a_response_takes_no_place_of_its_worker() {
    let worker = chat::worker(quick()).await;
    let plan = Plan::default().worker_with(&worker.url(), &[MODEL], "max_in_flight = 1\n");
    let house = House::with(plan, vec![worker]).await;
    let (id, holder) = held_somewhere(&house).await;
    let path = format!("{PATH}/{id}");
    let rule = Rule {
        when: When {
            path: Some(path.clone()),
            ..When::default()
        },
        ..Rule::always(Fault::stop(Point::Head(0), How::Stall))
    };
    holder.add_rule(rule).expect("room for a rule");
    let mut follows = Connection::open(house.data()).await;
    let bytes = request("GET", &path, &[], b"");
    follows.send(&bytes).await.expect("taken");
    eventually(LIMIT, "it is asked", async || {
        let log = holder.log();
        let is_asked = log.iter().any(|entry| entry.path == path);
        is_asked.then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    let answer = http1::post(house.data(), PATH, &asked("and you?")).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    drop(follows);
    holder.clear_rules();
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_holder_tells_what_it_has() {
    let house = House::of(Plan::default(), vec![quick(); 2]).await;
    let (id, holder) = held_somewhere(&house).await;
    let admin = house.cluster.replicas[0].admin();
    let drained = json!({ "state": "draining" });
    admin.change(&holder.url(), &drained).await;
    let mut next = asked("and then?");
    next["previous_response_id"] = id.as_str().into();
    eventually(LIMIT, "nothing new", async || {
        let refused = http1::post(house.data(), PATH, &next).await;
        (refused.head.status == 503)
            .then_some(())
            .ok_or_else(|| refused.text())
    })
    .await;
    let got = http1::get(house.data(), &format!("{PATH}/{id}")).await;
    assert_eq!(got.head.status, 200, "{}", got.text());
    house.close().await;
}
