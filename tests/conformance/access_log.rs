//! One line for each request, with figures of how its answer was sent.

use std::time::Duration;

use grapevine_tests::chat::{self, CHATS, Ending, MODEL, Stream, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::process;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use crate::house::{House, quick};

/// Lines of the access log, once there are `count` of them.
async fn lines(house: &House, count: usize) -> Vec<Value> {
    let (lines, _) = eventually(LIMIT, "the access log is written", async || {
        let log = house.cluster.replicas[0].log();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let access = lines.filter(|line| line["target"] == "grapevine::access");
        let access: Vec<_> = access.collect();
        (access.len() >= count)
            .then_some(access)
            .ok_or_else(|| log.clone())
    })
    .await;
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

/// A log that is JSON is JSON to its last line.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_ends_with_a_line_of_json() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let words = ["serve", "--log-json", "--port", &port];
    let ended = process::run(&words).await;
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    let lines: Result<Vec<Value>, _> = ended.text.lines().map(serde_json::from_str).collect();
    let lines = lines.unwrap_or_else(|error| panic!("{error}: {}", ended.text));
    let last = lines.last().expect("a line");
    assert_eq!(last["level"], "ERROR", "{last}");
    let why = last["message"].as_str().expect("a message");
    assert!(why.starts_with("cannot listen on"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_one_line_of_json() {
    let plan = Plan::default()
        .set("log.json", "true")
        .set("cache.enabled", "true");
    let house = House::of(plan, vec![quick()]).await;
    let mut body = chat("a \"quoted\"\nline break", 2);
    body["temperature"] = 0.into();
    let absent = json!({ "model": format!("no\n{}", "x".repeat(200)), "messages": [] }).to_string();
    let mut passed = Vec::new();
    for (id, body) in [
        ("first", body.to_string()),
        ("second", body.to_string()),
        ("third", "{".to_owned()),
        ("fourth", absent.clone()),
    ] {
        let headers = [("x-request-id", id)];
        let answer = http1::exchange(house.data(), "POST", CHATS, &headers, body.as_bytes()).await;
        passed.push(answer.body.len());
    }
    let mut lines = lines(&house, 4).await;
    // A line is written behind its answer, so those of other connections may be before it.
    let sent = |line: &Value| {
        let mut ids = ["first", "second", "third", "fourth"].into_iter();
        ids.position(|id| line["request_id"] == id)
    };
    lines.sort_by_key(sent);
    let worker = house.workers[0].url();
    let shortened = format!("no\n{}...", "x".repeat(97));
    for (line, key, value) in [
        (&lines[0], "request_id", Value::from("first")),
        (&lines[0], "client", "127.0.0.1".into()),
        (&lines[0], "endpoint", "chat_completions".into()),
        (&lines[0], "model", MODEL.into()),
        (&lines[0], "worker", worker.as_str().into()),
        (&lines[0], "outcome", "success".into()),
        (&lines[0], "status", 200.into()),
        (&lines[0], "attempts", 1.into()),
        (&lines[0], "completion_tokens", 2.into()),
        (&lines[0], "cache", "miss".into()),
        (&lines[0], "bytes_in", body.to_string().len().into()),
        (&lines[0], "error", Value::Null),
        (&lines[0], "key", Value::Null),
        (&lines[1], "reason", Value::Null),
        (&lines[2], "error", "invalid_request".into()),
        (&lines[1], "request_id", "second".into()),
        (&lines[1], "cache", "hit".into()),
        (&lines[1], "attempts", 0.into()),
        (&lines[1], "worker", Value::Null),
        (&lines[1], "completion_tokens", Value::Null),
        (&lines[2], "outcome", "error".into()),
        (&lines[2], "status", 400.into()),
        (&lines[2], "cache", Value::Null),
        (&lines[2], "bytes_in", 1.into()),
        (&lines[2], "asked_model", Value::Null),
        (&lines[3], "status", 404.into()),
        (&lines[3], "bytes_in", absent.len().into()),
        (&lines[3], "model", Value::Null),
        (&lines[3], "asked_model", shortened.into()),
    ] {
        assert_eq!(line[key], value, "{key} in {line}");
    }
    for (line, passed) in lines.iter().zip(passed) {
        // Worker's, kept, and the replica's own; none of them was a stream.
        assert_eq!(line["bytes_out"], passed, "{line}");
        assert_eq!(line["first_token_ms"], Value::Null, "{line}");
    }
    assert!(!house.cluster.replicas[0].log().contains("quoted"));
}

/// A wait is told, however it ends.
#[tokio::test(flavor = "multi_thread")]
async fn who_left_a_queue_has_waited() {
    for (queue, requests) in [("admission", "1"), ("worker", "10")] {
        let plan = Plan::default().set("log.json", "true");
        let plan = plan.set("limits.requests", requests);
        let house = House::of(plan, vec![chat::paced(Duration::from_millis(20))]).await;
        let admin = house.cluster.replicas[0].admin();
        admin
            .change(&house.workers[0].url(), &json!({ "max_in_flight": 1 }))
            .await;
        let held = Stream::open(house.data(), &streamed("held", 100_000)).await;
        let mut held = held.expect("accepted");
        held.read_events(1).await.expect("it has begun");
        let mut waits = Connection::open(house.data()).await;
        let body = chat("waits", 1).to_string();
        let bytes = http1::request("POST", CHATS, &[], body.as_bytes());
        waits.send(&bytes).await.expect("taken");
        eventually(LIMIT, "it waits", async || {
            let metrics = admin.metrics().await;
            let waiting = metrics.sum("grapevine_queue_length", queue);
            so(waiting == 1.0, || format!("{waiting}"))
        })
        .await;
        drop(waits);
        let lines = lines(&house, 1).await;
        assert_eq!(lines[0]["outcome"], "client_left", "{queue}");
        let waited = lines[0]["queued_ms"].as_f64();
        assert!(waited > Some(0.0), "{queue}: {}", lines[0]);
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_names_the_client_as_far_as_proxies_are_trusted() {
    for (trusted, expected) in [
        ("[]", "127.0.0.1"),
        (r#"["127.0.0.1"]"#, "192.0.2.9"),
        (r#"["127.0.0.1", "192.0.2.0/24"]"#, "198.51.100.1"),
    ] {
        let plan = Plan::default()
            .set("log.json", "true")
            .set("listen.trusted_proxies", trusted);
        let house = House::of(plan, vec![quick()]).await;
        let headers = [("x-forwarded-for", "198.51.100.1, 192.0.2.9")];
        let body = chat("from afar", 1).to_string();
        http1::exchange(house.data(), "POST", CHATS, &headers, body.as_bytes()).await;
        let lines = lines(&house, 1).await;
        assert_eq!(lines[0]["client"], expected, "{trusted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_can_be_switched_off() {
    let plan = Plan::default().set("log.access", "false");
    let house = House::of(plan, vec![quick()]).await;
    let answer = http1::post(house.data(), CHATS, &chat("unlogged", 1)).await;
    assert_eq!(answer.head.status, 200);
    // A later line shows that the log is written.
    let mut house = house;
    assert!(house.cluster.replicas[0].terminate().await.success());
    let log = house.cluster.replicas[0].log();
    assert!(
        log.contains("ended: every open request was finished"),
        "{log}"
    );
    assert!(!log.contains("grapevine::access"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_counted_by_their_pace() {
    let slow = chat::paced(Duration::from_millis(50));
    let house = House::of(Plan::default(), vec![slow]).await;
    let outcome = chat::stream(house.data(), &streamed("step by step", 5)).await;
    assert_eq!(outcome.ending, Ending::Done);
    http1::post(house.data(), CHATS, &chat("at once", 5)).await;
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let value = |name: &str| metrics.sum(name, MODEL);
    for name in ["time_per_output_token", "stream_pause"] {
        let count = value(&format!("grapevine_{name}_seconds_count"));
        assert_eq!(count, 1.0, "{name}: a plain answer has no pace");
    }
    // Each gap between five tokens; the worker's last event is without one.
    let gaps = value("grapevine_inter_token_seconds_count");
    assert!((4.0..=5.0).contains(&gaps), "{gaps} gaps");
    let sum = value("grapevine_inter_token_seconds_sum");
    assert!(sum > 0.0, "{sum} s");
    let mean = value("grapevine_time_per_output_token_seconds_sum");
    let longest = value("grapevine_stream_pause_seconds_sum");
    assert!(mean > 0.0 && longest > 0.0, "{mean} {longest}");
    println!("50 ms a token: mean {mean} s, longest pause {longest} s");
    house.close().await;
}
