//! Streams of responses, and of messages: how they begin, fall silent and end.

use grapevine_testbed::fake_worker::{Canned, Config, EngineConfig, Fault, How, Point, Rule, When};
use grapevine_tests::chat::{EXPLAIN, MODEL};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use serde_json::{Value, json};

use super::{PATH, asked, held_somewhere, streamed, worker_of};
use crate::house::{House, quick};

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_is_read_as_a_stream_counts_no_tokens_and_no_pace() {
    let house = House::new(1).await;
    let made = http1::post(house.data(), PATH, &asked("x")).await;
    let id = made.json::<Value>()["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let counted = async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        let paces = [
            "first_token",
            "worker_first_token",
            "inter_token",
            "time_per_output_token",
            "stream_pause",
        ];
        let paces = paces.map(|pace| metrics.count(&format!("grapevine_{pace}_seconds_count"), ""));
        (metrics.sum("grapevine_completion_tokens_total", ""), paces)
    };
    let before = counted().await;
    assert!(before.0 > 0.0, "those of the response itself");
    let path = format!("{PATH}/{id}");
    let delta = "event: response.output_text.delta\ndata: {}\n\n";
    let reply = Canned {
        status: 200,
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
        body: Some(format!(
            "{delta}{delta}event: response.completed\ndata: {{}}\n\n"
        )),
        // Longer than what is waited for as a whole.
        repeat: 4_000,
        gzip: false,
    };
    let rule = Rule {
        when: When {
            path: Some(path.clone()),
            ..When::default()
        },
        ..Rule::always(Fault {
            reply: Some(reply),
            ..Fault::default()
        })
    };
    house.workers[0].add_rule(rule).expect("room for a rule");
    let read = http1::get(house.data(), &path).await;
    assert_eq!(read.text().matches("delta").count(), 8_000);
    // The line is written when all is counted.
    house.until_log_says("endpoint=\"responses_by_id\"").await;
    assert_eq!(counted().await, before);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_with_named_events_end_well_or_with_a_named_error() {
    let house = House::new(1).await;
    let worker = &house.workers[0];
    let message = json!({
        "model": MODEL, "max_tokens": 5, "stream": true, "system": "be brief",
        "messages": [{ "role": "user", "content": "hello" }],
    });
    let mut response = asked("hello");
    response["stream"] = true.into();
    let by_events = async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        metrics.count("grapevine_completion_tokens_total", "source=\"events\"")
    };
    for (path, body, last) in [
        ("/v1/messages", &message, "event: message_stop"),
        (PATH, &response, "event: response.completed"),
    ] {
        let is_anthropic = path == "/v1/messages";
        let whole = http1::post(house.data(), path, body).await;
        assert_eq!(whole.head.status, 200, "{}", whole.text());
        assert!(whole.text().contains(last), "{}", whole.text());
        let broken = Rule::next(1, Fault::stop(Point::Event(6), How::Fin));
        worker.add_rule(broken).expect("room for a rule");
        let before = by_events().await;
        let cut = http1::post(house.data(), path, body).await.text();
        assert!(!cut.contains(last), "{cut}");
        let deltas = cut.matches("delta\ndata:").count();
        assert!(deltas > 0, "{cut}");
        assert_eq!(by_events().await - before, deltas as f64, "{cut}");
        let (_, error) = cut
            .rsplit_once("event: error\ndata: ")
            .expect("a named error");
        let error: Value = serde_json::from_str(error.trim_end()).expect("JSON");
        assert_eq!(error["type"], "error");
        if is_anthropic {
            assert_eq!(error["error"]["type"], "api_error", "{error}");
            assert_eq!(error["error"].get("code"), None, "{error}");
        } else {
            assert_eq!(error["error"]["code"], "upstream_broke");
        }
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    for endpoint in ["messages", "responses"] {
        let counted = |outcome: &str| {
            let has = [("endpoint", endpoint), ("outcome", outcome)];
            let has = has.map(|(name, value)| format!("{name}=\"{value}\""));
            let series = metrics.series("grapevine_requests_total").into_iter();
            let of_both = series.filter(|(labels, _)| has.iter().all(|has| labels.contains(has)));
            of_both.map(|(_, value)| value).sum::<f64>()
        };
        assert_eq!(
            (counted("success"), counted("worker_broke")),
            (1.0, 1.0),
            "{endpoint}"
        );
    }
    house.close().await;
}

/// vLLM sends two events before its engine has the request: they are no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_refused_behind_its_first_events_moves() {
    let engine = EngineConfig {
        queued_requests_max: Some(0),
        ..quick().engine
    };
    let full = Config { engine, ..quick() };
    let house = House::of(Plan::default(), vec![full, quick()]).await;
    for number in 0..20 {
        let body = streamed(&format!("question {number}")).to_string();
        let answer = http1::exchange(house.data(), "POST", PATH, &[EXPLAIN], body.as_bytes()).await;
        let text = answer.text();
        assert_eq!(answer.head.status, 200, "{text}");
        assert_eq!(worker_of(&answer), house.workers[1].url());
        let names = ["event: response.created", "event: response.completed"];
        let seen = names.map(|name| text.matches(name).count());
        assert_eq!(
            (seen, text.contains("event: error")),
            ([1, 1], false),
            "{text}"
        );
    }
    assert!(
        house.workers[0].stats().requests > 0,
        "the full one was asked"
    );
    house.close().await;
}

/// What stands in front of it is no token, so the time between two tokens does not hold yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_has_the_time_of_a_first_token() {
    let engine = EngineConfig {
        prefill_tokens_per_s: 60.0,
        step_tokens_max: 8,
        ..quick().engine
    };
    let slow = Config { engine, ..quick() };
    let plan = Plan::default().set("timeouts.inter_token", "\"400ms\"");
    let house = House::of(plan, vec![slow]).await;
    let body = streamed(&"a long question ".repeat(15));
    let answer = http1::post(house.data(), PATH, &body).await;
    let text = answer.text();
    assert!(text.contains("event: response.completed"), "{text}");
    house.close().await;
}

/// Whoever computes it, and when: its worker gives what it has of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_silence_of_a_stored_response_says_nothing_of_its_worker() {
    let plan = Plan::default()
        .set("timeouts.inter_token", "\"200ms\"")
        .set("health.token_probe", "false");
    let house = House::of(plan, vec![quick()]).await;
    let (id, holder) = held_somewhere(&house).await;
    let path = format!("{PATH}/{id}");
    let begun = "event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n";
    let events = Canned {
        status: 200,
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
        // Longer than what is waited for as a whole.
        body: Some(format!("{begun}data: {}\n\n", "x".repeat(70_000))),
        repeat: 1,
        gzip: false,
    };
    let fault = Fault {
        reply: Some(events),
        ..Fault::stop(Point::Body(begun.len() as u64), How::Stall)
    };
    let rule = Rule {
        when: When {
            path: Some(path.clone()),
            ..When::default()
        },
        ..Rule::always(fault)
    };
    holder.add_rule(rule).expect("room for a rule");
    let admin = house.cluster.replicas[0].admin();
    // More than open a breaker.
    for _ in 0..6 {
        let mut follows = Connection::open(house.data()).await;
        let bytes = request("GET", &format!("{path}?stream=true"), &[], b"");
        follows.send(&bytes).await.expect("taken");
        assert_eq!(follows.head().await.expect("it has begun").status, 200);
        let mut text = String::new();
        while let Ok(Some(data)) = follows.data().await {
            text.push_str(&String::from_utf8_lossy(&data));
        }
        assert!(
            text.starts_with(begun) && text.contains("upstream_broke"),
            "{text}"
        );
        assert_eq!(admin.worker(&holder.url()).await.verdict, "good");
    }
    holder.clear_rules();
    house.close().await;
}

/// The name of its last event comes before that event.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_cut_within_its_last_event_is_not_whole() {
    let house = House::new(1).await;
    let body = streamed("hello");
    let whole = http1::post(house.data(), PATH, &body).await.text();
    let rule = Fault::stop(Point::Body(whole.len() as u64 - 10), How::Fin);
    house.workers[0]
        .add_rule(Rule::next(1, rule))
        .expect("room for a rule");
    let cut = http1::post(house.data(), PATH, &body).await.text();
    assert!(!cut.contains("response.completed"), "{cut}");
    assert!(cut.contains("event: error\n"), "{cut}");
    house.close().await;
}
