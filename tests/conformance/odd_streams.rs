//! Workers whose streams of events are odd: without an end, without events, compressed, or unasked for.

use grapevine_testbed::fake_worker::{BadSse, Canned, Fault, How, Point, Rule, Stop};
use grapevine_tests::chat::{self, CHATS, Ending, MODEL, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use serde_json::Value;

use crate::errors::assert_error;
use crate::house::{House, quick};
use crate::odd_workers::{breaking_worker, canned};

/// A proxy before a worker may know how long a stream is; what the router says at its end comes behind that.
#[tokio::test(flavor = "multi_thread")]
async fn the_length_of_a_stream_does_not_cut_off_why_it_ended() {
    let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"half\"}}]}\n\n";
    let length = event.len() + 20;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n"
    );
    let (url, _serving) = breaking_worker((head + event).into_bytes()).await;
    let plan = Plan::default().worker(&url, &[MODEL]);
    let plan = plan
        .set("health.interval", "\"1h\"")
        .set("breaker.enabled", "false");
    let house = House::with(plan, Vec::new()).await;
    let outcome = chat::stream(house.data(), &streamed("question", 3)).await;
    assert!(
        matches!(outcome.ending, Ending::ErrorEvent(_)),
        "{outcome:?}"
    );
    assert_eq!(outcome.text(), "half");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_without_its_mark_is_incomplete_and_harms_nobody() {
    let plan = Plan::default().set("breaker.failure_threshold", "1");
    let house = House::of(plan, vec![quick()]).await;
    let no_done = Rule::next(3, Fault::sse(BadSse::NoDone));
    house.workers[0].add_rule(no_done).expect("room for a rule");
    for number in 0..3 {
        let body = streamed(&format!("question {number}"), 3);
        let outcome = chat::stream(house.data(), &body).await;
        assert_eq!(
            outcome.ending,
            Ending::Silent,
            "passed as it came: {outcome:?}"
        );
        assert!(!outcome.text().is_empty());
    }
    let whole = chat::stream(house.data(), &streamed("question 0", 3)).await;
    assert_eq!(whole.ending, Ending::Done, "no breaker opened: {whole:?}");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let incomplete = metrics.sum("grapevine_requests_total", "outcome=\"incomplete\"");
    assert_eq!(incomplete, 3.0);
    house.close().await;
}

/// Without chunks and without a length the end of a worker is the end of its answer: only the last event tells them apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_with_its_connection_is_whole_if_it_has_its_last_event() {
    const HEAD: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let half = &EVENT[..30];
    for (events, is_whole, failover) in [
        (EVENT.to_owned(), false, "false"),
        (EVENT.to_owned(), false, "true"),
        (format!("{EVENT}{half}"), false, "false"),
        (half.to_owned(), false, "false"),
        (format!("{EVENT}data: [DONE]\n\n"), true, "false"),
        (format!("{EVENT}data: [DONE]"), true, "false"),
        (format!("{EVENT}data: [DONE]\n\n"), true, "true"),
    ] {
        let bytes = format!("{HEAD}{events}");
        let (url, _serving) = breaking_worker(bytes.into_bytes()).await;
        let plan = Plan::default().worker(&url, &[MODEL]);
        let plan = plan
            .set("health.interval", "\"1h\"")
            .set("failover.enabled", failover);
        let house = House::with(plan, Vec::new()).await;
        let answer = http1::post(house.data(), CHATS, &streamed("well?", 1)).await;
        let text = answer.text();
        if events == half {
            // Nothing was shown: with another worker, that one would have it.
            assert_error(&answer, 502, "upstream_failed");
            continue;
        }
        let said = events.contains(EVENT);
        assert_eq!(text.contains("\"content\":\"a\""), said, "{text}");
        assert_eq!(
            text.contains("upstream_broke"),
            !is_whole,
            "{events}: {text}"
        );
        assert_eq!(text.contains("[DONE]"), is_whole, "{events}: {text}");
    }
}

/// A worker behind a gateway whose connection ends with its first byte: nothing was shown, so another one has the request.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_an_event_is_no_answer() {
    let event_stream = [("content-type", "text/event-stream")];
    let with = |body: &str| {
        let mut fault = canned(200, &event_stream);
        let reply = fault.reply.as_mut().expect("canned");
        reply.body = Some(body.to_owned());
        fault
    };
    let plan = || Plan::default().set("breaker.enabled", "false");
    let alone = House::of(plan(), vec![quick()]).await;
    let pair = House::of(plan(), vec![quick(); 2]).await;
    for empty in ["", ": alive\n\n", ": alive"] {
        let rule = Rule::next(1, with(empty));
        alone.workers[0].add_rule(rule).expect("room for a rule");
        let answer = http1::post(alone.data(), CHATS, &streamed(empty, 1)).await;
        assert_error(&answer, 502, "upstream_failed");

        let body = streamed(&format!("empty {empty:?}"), 1);
        let home = pair.home(&body).await;
        let rule = Rule::next(1, with(empty));
        pair.workers[home].add_rule(rule).expect("room for a rule");
        let outcome = chat::stream(pair.data(), &body).await;
        assert_eq!(outcome.ending, Ending::Done, "{empty:?}: {outcome:?}");
        assert_eq!(outcome.worker, Some(pair.workers[1 - home].url()));
    }
    // The end of the last line is missing, which harms nobody.
    let unended = "data: {\"choices\": []}";
    let rule = Rule::next(1, with(unended));
    alone.workers[0].add_rule(rule).expect("room for a rule");
    let answer = http1::post(alone.data(), CHATS, &streamed("unended", 1)).await;
    assert_eq!((answer.head.status, &*answer.text()), (200, unended));
    alone.close().await;
    pair.close().await;
}

/// What vLLM's and SGLang's generators find wrong with a request comes as the first event of a 200.
#[tokio::test(flavor = "multi_thread")]
async fn a_clients_mistake_in_the_first_event_is_told_to_it_and_to_nobody_else() {
    let plan = Plan::default().set("breaker.failure_threshold", "1");
    let house = House::of(plan, vec![quick(); 2]).await;
    let mistake = r#"{"error":{"message":"no such thing","type":"BadRequestError","code":400}}"#;
    let mut fault = canned(200, &[("content-type", "text/event-stream")]);
    let reply = fault.reply.as_mut().expect("canned");
    for ended in ["\n\n", "\n", ""] {
        reply.body = Some(format!("data: {mistake}{ended}"));
        for worker in &house.workers {
            worker.clear_rules();
            let rule = Rule::always(Fault {
                reply: Some(reply.clone()),
                ..Fault::default()
            });
            worker.add_rule(rule).expect("room for a rule");
        }
        let before: usize = house.workers.iter().map(|worker| worker.log().len()).sum();
        for number in 0..5 {
            let body = streamed(&format!("mistake {number}"), 1);
            let answer = http1::post(house.data(), CHATS, &body).await;
            assert_eq!((answer.head.status, &*answer.text()), (400, mistake));
            let form = answer.head.header("content-type");
            assert_eq!(form, Some("application/json"));
        }
        let after: usize = house.workers.iter().map(|worker| worker.log().len()).sum();
        assert_eq!(after - before, 5, "each was tried once");
    }
    let admin = house.cluster.replicas[0].admin();
    for worker in admin.workers().await {
        assert_eq!(worker.breaker, "closed", "{worker:?}");
    }
    house.close().await;
}

/// Compressed events cannot be read; they pass like any other answer, and nobody waits for the first of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_stream_passes_unopened() {
    let house = House::new(1).await;
    let mut fault = canned(200, &[("content-type", "text/event-stream")]);
    let reply = fault.reply.as_mut().expect("canned");
    reply.gzip = true;
    reply.body = Some("data: {\"choices\": []}\n\ndata: [DONE]\n\n".to_owned());
    let rule = Rule::next(1, fault);
    house.workers[0].add_rule(rule).expect("room for a rule");
    let answer = http1::post(house.data(), CHATS, &streamed("compressed", 1)).await;
    let coding = answer.head.header("content-encoding");
    assert_eq!((answer.head.status, coding), (200, Some("gzip")));
    assert!(answer.body.starts_with(&[0x1f, 0x8b]), "{:?}", answer.body);
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let good = metrics.sum("grapevine_requests_total", "outcome=\"success\"");
    assert_eq!(good, 1.0);
    house.close().await;
}

/// A reply of events.
fn events(body: &str) -> Canned {
    Canned {
        status: 200,
        headers: vec![("content-type".into(), "text/event-stream".into())],
        body: Some(body.to_owned()),
        repeat: 1,
        gzip: false,
    }
}

/// vLLM takes words and numbers for truths, and answers with a stream.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_asked_for_in_other_words_is_held_back() {
    let plan = Plan::default().set("breaker.enabled", "false");
    let house = House::of(plan, vec![quick()]).await;
    for truth in [true.into(), 1.into(), Value::from("true"), "On".into()] {
        let mut body = chat("in other words", 1);
        body["stream"] = truth;
        house.reply_next(events(
            "data: {\"error\":{\"message\":\"full\",\"code\":503}}\n\n",
        ));
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(
            answer.head.status,
            503,
            "{}: {}",
            body["stream"],
            answer.text()
        );
    }
    house.close().await;
}

/// Nobody asked for these events, so they are not held back, and these are too long to be read to their end first.
#[tokio::test(flavor = "multi_thread")]
async fn the_head_of_events_is_no_token() {
    let house = House::new(1).await;
    let worker = &house.workers[0];
    let long = "x".repeat(70_000);
    let good = format!("data: {{\"text\":\"{long}\"}}\n\ndata: [DONE]\n\n");
    let body = chat("no events, please", 1).to_string();
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    let tokens = async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        metrics.count("grapevine_first_token_seconds_count", "")
    };
    let stalled = Fault {
        reply: Some(events(&good)),
        stop: Some(Stop {
            at: Point::Body(0),
            how: How::Stall,
        }),
        ..Fault::default()
    };
    worker
        .add_rule(Rule::next(1, stalled))
        .expect("room for a rule");
    let mut frozen = Connection::open(house.data()).await;
    frozen.send(&bytes).await.expect("taken");
    assert_eq!(frozen.head().await.expect("it has begun").status, 200);
    assert_eq!(tokens().await, 0.0, "the head alone is there");
    let refusal = format!("data: {{\"error\":{{\"message\":\"{long}\"}}}}\n\n");
    house.reply_next(events(&refusal));
    let refused = http1::post(house.data(), CHATS, &chat("refused", 1)).await;
    assert!(refused.text() == refusal);
    assert_eq!(tokens().await, 0.0, "nothing was computed");
    house.reply_next(events(&good));
    let whole = http1::post(house.data(), CHATS, &chat("whole", 1)).await;
    assert!(whole.text() == good);
    assert_eq!(tokens().await, 1.0);
    drop(frozen);
    house.close().await;
}
