//! What the client reports of good and bad replies.

use serde_json::json;

use super::*;
use crate::fake_worker::{Config, FakeWorker, Fault, How, Point, Rule};

const LIMIT: Duration = Duration::from_secs(20);

async fn worker() -> (FakeWorker, Client) {
    let config = Config {
        speed: 1_000.0,
        ..Config::default()
    };
    let worker = FakeWorker::start(config)
        .await
        .expect("port 0 is always free");
    let client = Client::one(worker.url().parse().expect("URL"));
    (worker, client)
}

fn ask(stream: bool) -> Ask {
    let mut body = json!({"messages": [{"role": "user", "content": "hi ".repeat(100)}], "max_tokens": 4, "stream": stream});
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    Ask {
        path: "/v1/chat/completions",
        body: body.to_string().into(),
        stream,
        explain: false,
    }
}

#[tokio::test]
async fn success_is_measured_and_connections_are_used_again() {
    let (worker, client) = worker().await;
    for stream in [true, false, true] {
        let outcome = client.exchange(&ask(stream), LIMIT).await;
        assert_eq!(outcome.failure, None);
        let usage = outcome.usage.expect("reported");
        assert_eq!((usage.prompt, usage.completion), (81, 4));
        assert_eq!(outcome.first_event.is_some(), stream);
        assert_eq!(
            outcome.gaps.len(),
            if stream { 5 } else { 0 },
            "role, 4 tokens, usage"
        );
        assert!(outcome.first_event.unwrap_or_default() <= outcome.latency);
    }
    assert_eq!(worker.stats().connections, 1);
}

#[tokio::test]
async fn failures_by_kind() {
    let (worker, client) = worker().await;
    let error_event = r#"{"fault":{"reply":{"status":200,"headers":[["content-type","text/event-stream"]],"body":"data: {\"error\": {\"code\": 503}}\n\ndata: [DONE]\n\n"}}}"#;
    let no_done = r#"{"fault":{"sse":"no_done"}}"#;
    let parse = |text| serde_json::from_str::<Rule>(text).expect("valid").fault;
    for (fault, failure, begun) in [
        (Fault::status(500), Failure::Status(500), false),
        (
            Fault::stop(Point::Head(0), How::Fin),
            Failure::ClosedBeforeHead,
            false,
        ),
        (Fault::stop(Point::Body(0), How::Fin), Failure::Cut, false),
        (Fault::stop(Point::Event(2), How::Rst), Failure::Cut, true),
        (parse(error_event), Failure::ErrorEvent("503".into()), false),
        (parse(no_done), Failure::NoDone, true),
        (Fault::never_answer(), Failure::Timeout, false),
    ] {
        worker.add_rule(Rule::next(1, fault)).expect("room");
        let limit = if failure == Failure::Timeout {
            Duration::from_millis(50)
        } else {
            LIMIT
        };
        let outcome = client.exchange(&ask(true), limit).await;
        assert_eq!(
            (outcome.had_begun(), outcome.failure),
            (begun, Some(failure))
        );
    }
    worker.kill().await;
    assert_eq!(
        client.exchange(&ask(true), LIMIT).await.failure,
        Some(Failure::Connect)
    );
}
