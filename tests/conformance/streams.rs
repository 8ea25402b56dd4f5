//! A stream belongs to one worker from its first event on; before that it may move, after it never.

use std::collections::HashMap;

use grapevine_testbed::fake_worker::{Config, EngineConfig, Fault, How, Point, Rule};
use grapevine_tests::chat::{self, CHATS, Ending, Outcome, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::invariants;
use serde_json::Value;

use crate::errors::assert_error;
use crate::house::{House, quick};

const TOKENS: u32 = 4;

/// A worker that is always full.
fn full() -> Config {
    let engine = EngineConfig {
        queued_requests_max: Some(0),
        ..quick().engine
    };
    Config { engine, ..quick() }
}

/// A breaker that never opens: these tests break every stream.
fn patient() -> Plan {
    Plan::default()
        .set("breaker.enabled", "false")
        // Nor does load move away from a failing worker: each test knows where its request goes.
        .set("health.failure_half_life", "\"0s\"")
        .set("health.interval", "\"20ms\"")
}

/// Sends one stream whose home cuts it, and returns what the client saw and how many workers saw it.
async fn cut(house: &House, number: usize, at: Point, how: How) -> (Outcome, usize) {
    let body = streamed(&format!("cut number {number}"), TOKENS);
    let home = house.home(&body).await;
    let rule = Rule::next(1, Fault::stop(at, how));
    house.workers[home].add_rule(rule).expect("room for a rule");
    house.workers.iter().for_each(|worker| worker.reset());
    let outcome = chat::stream(house.data(), &body).await;
    let attempts = house.workers.iter().map(|worker| worker.log().len()).sum();
    house.workers[home].clear_rules();
    (outcome, attempts)
}

/// The text of the whole answer; equal prompts have equal answers on all workers.
async fn whole(house: &House, number: usize) -> String {
    let body = streamed(&format!("cut number {number}"), TOKENS);
    let outcome = chat::stream(house.workers[0].addr(), &body).await;
    assert_eq!(outcome.ending, Ending::Done);
    outcome.text()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_cut_before_its_first_event_moves_unnoticed() {
    let house = House::of(patient(), vec![quick(); 2]).await;
    let points = [
        Point::Head(0),
        Point::Head(1),
        Point::Head(40),
        Point::Body(0),
        Point::Body(1),
        Point::Body(50),
        Point::Event(0),
    ];
    let cases = points
        .into_iter()
        .flat_map(|at| [(at, How::Fin), (at, How::Rst)]);
    for (number, (at, how)) in cases.enumerate() {
        let (outcome, attempts) = cut(&house, number, at, how).await;
        assert_eq!(outcome.ending, Ending::Done, "{at} {how:?}: {outcome:?}");
        assert_eq!(attempts, 2, "{at} {how:?}");
        assert_eq!(outcome.text(), whole(&house, number).await, "{at} {how:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_cut_after_its_first_event_ends_with_one_error_event() {
    let house = House::of(patient(), vec![quick(); 2]).await;
    let mut seen = HashMap::new();
    let events = (1..=TOKENS + 1).map(Point::Event).chain([Point::Done]);
    let inside = (0..1_400).step_by(35).map(Point::Body);
    let cases = events
        .chain(inside)
        .flat_map(|at| [(at, How::Fin), (at, How::Rst)]);
    for (number, (at, how)) in cases.enumerate() {
        let (outcome, attempts) = cut(&house, number, at, how).await;
        let text = outcome.text();
        let whole = whole(&house, number).await;
        match &outcome.ending {
            // The client got nothing of the first attempt.
            Ending::Done => {
                assert_eq!(text, whole, "{at} {how:?}");
                assert!(
                    matches!(at, Point::Body(_)) || how == How::Rst,
                    "{at} {how:?} was not cut"
                );
            }
            // In any case no other worker got the request.
            Ending::ErrorEvent(error) => {
                assert_eq!(
                    attempts, 1,
                    "{at} {how:?}: sent again after a byte was shown"
                );
                assert!(whole.starts_with(&text), "{text:?} of {whole:?}");
                assert_eq!(error["code"], "upstream_broke");
            }
            other => panic!("{at} {how:?}: {other:?}"),
        }
        let kind = std::mem::discriminant(&outcome.ending);
        *seen.entry(kind).or_insert(0) += 1;
    }
    assert_eq!(
        seen.len(),
        2,
        "some moved, some ended with an error: {seen:?}"
    );
    let broken = std::mem::discriminant(&Ending::ErrorEvent(Value::Null));
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    for (name, label) in [
        ("grapevine_requests_total", "worker_broke"),
        ("grapevine_errors_total", "upstream_broke"),
    ] {
        let counted = metrics.sum(name, label);
        assert_eq!(counted, f64::from(seen[&broken]), "{name}: {seen:?}");
    }
}

/// A client that got the beginning of an event cannot be told to forget it, so it gets none: what it reads are whole events,
/// and the error is one of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_cut_within_an_event_ends_between_events() {
    let house = House::of(patient(), vec![quick()]).await;
    let mut halves = 0;
    for (number, how) in [How::Fin, How::Rst]
        .into_iter()
        .cycle()
        .take(40)
        .enumerate()
    {
        // An event has some 250 bytes.
        let bytes = 800 + 23 * number as u64;
        let rule = Rule::next(1, Fault::stop(Point::Body(bytes), how));
        house.workers[0].add_rule(rule).expect("room for a rule");
        let body = streamed(&format!("number {number}"), 40);
        let text = http1::post(house.data(), CHATS, &body).await.text();
        let (events, end) = text.rsplit_once("\n\n").expect("blank lines");
        assert_eq!(end, "", "{text}");
        let events: Vec<Value> = events
            .split("\n\n")
            .map(|event| {
                let json = event.strip_prefix("data: ").expect("an event");
                serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {event}"))
            })
            .collect();
        let (last, before) = events.split_last().expect("some");
        assert_eq!(last["error"]["code"], "upstream_broke", "{text}");
        assert!(
            before.iter().all(|event| event["choices"].is_array()),
            "{text}"
        );
        let passed = text.len() - last.to_string().len() - "data: \n\n".len();
        halves += usize::from(passed < bytes as usize);
    }
    assert!(halves > 20, "{halves} were cut within an event");
    house.close().await;
}

/// Nothing is left to be said but the end of the body.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_cut_behind_its_end_mark_is_whole() {
    let plan = patient().set("timeouts.inter_token", "\"400ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let hows = [How::Fin, How::Stall];
    for (number, how) in hows.into_iter().enumerate() {
        // The role, the tokens, and the end mark.
        let rule = Rule::next(1, Fault::stop(Point::Event(TOKENS + 2), how));
        house.workers[0].add_rule(rule).expect("room for a rule");
        let body = streamed(&format!("cut number {number}"), TOKENS);
        let answer = http1::post(house.data(), CHATS, &body).await;
        let text = answer.text();
        assert!(text.ends_with("\n\ndata: [DONE]\n\n"), "{how:?}: {text}");
        assert!(!text.contains("upstream_broke"), "{how:?}: {text}");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let counted = |outcome| metrics.sum("grapevine_requests_total", outcome);
    assert_eq!(
        ["success", "worker_broke", "worker_stalled"].map(counted),
        [hows.len() as f64, 0.0, 0.0]
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_stream_moves_to_a_worker_with_room() {
    let house = House::of(Plan::default(), vec![full(), quick()]).await;
    for number in 0..20 {
        let prompt = format!("question {number}");
        let outcome = chat::stream(house.data(), &streamed(&prompt, 3)).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
        assert_eq!(outcome.worker, Some(house.workers[1].url()));
        let plain = http1::post(house.data(), CHATS, &chat(&prompt, 3)).await;
        assert_eq!(plain.head.status, 200, "{}", plain.text());
    }
    assert!(
        house.workers[0].stats().requests > 0,
        "the full one was asked"
    );
    let workers = house.cluster.replicas[0].admin().workers().await;
    assert!(
        workers.iter().all(|w| w.health == "healthy"),
        "full is not sick: {workers:?}"
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_all_refuse_is_503_in_the_workers_words() {
    let house = House::of(Plan::default(), vec![full(), full()]).await;
    for body in [streamed("no room", 3), chat("no room", 3)] {
        let answer = http1::post(house.data(), CHATS, &body).await;
        let text = answer.text();
        assert_eq!(answer.head.status, 503, "{text}");
        assert!(
            answer.head.header("retry-after").is_some(),
            "{:?}",
            answer.head
        );
        assert_eq!(answer.head.header("content-type"), Some("application/json"));
        let error = &answer.json::<Value>()["error"];
        let direct = http1::post(house.workers[0].addr(), CHATS, &chat("no room", 3)).await;
        assert_eq!(*error, direct.json::<Value>()["error"], "vLLM's own words");
    }
    for worker in &house.workers {
        assert!(worker.stats().requests > 0, "both were asked");
    }
    invariants::hold(&house.cluster, &[], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_shorter_than_promised_is_never_a_success() {
    let house = House::of(patient(), vec![quick()]).await;
    let short = Fault {
        short_by: 10,
        ..Fault::default()
    };
    house.workers[0]
        .add_rule(Rule::next(1, short.clone()))
        .expect("room for a rule");
    let answer = http1::post(house.data(), CHATS, &chat("short", 3)).await;
    assert_error(&answer, 502, "upstream_failed");

    let house = House::of(patient(), vec![quick(); 2]).await;
    let body = chat("short", 3);
    let home = house.home(&body).await;
    house.workers[home]
        .add_rule(Rule::next(1, short))
        .expect("room for a rule");
    let answer = http1::post(house.data(), CHATS, &body).await;
    assert_eq!(
        answer.head.status,
        200,
        "another worker answers: {}",
        answer.text()
    );
}
