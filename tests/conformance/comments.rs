//! Comments to clients of streams whose answer has not begun (`timeouts.stream_comment`).

use grapevine_testbed::fake_worker::{Canned, Fault, How, Point, Rule};
use grapevine_tests::chat::{self, CHATS, Ending, MODEL, Stream, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, Response, request};
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use crate::house::{House, quick};
use crate::http2;

const COMMENT: &str = ": keep-alive\n\n";
/// Longer than a client has to wait for two comments.
const SLOW_MS: u64 = 500;

/// A comment each tenth of a second.
fn commented() -> Plan {
    Plan::default()
        .set("timeouts.stream_comment", "\"100ms\"")
        .set("breaker.enabled", "false")
}

/// Streams of all endpoints that may begin with comments.
fn streams(prompt: &str) -> [(&'static str, Value); 4] {
    let messages = json!([{ "role": "user", "content": prompt }]);
    let completion = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 3, "stream": true });
    let response =
        json!({ "model": MODEL, "input": prompt, "max_output_tokens": 3, "stream": true });
    let message = json!({ "model": MODEL, "messages": messages, "max_tokens": 3, "stream": true });
    [
        (CHATS, streamed(prompt, 3)),
        ("/v1/completions", completion),
        ("/v1/responses", response),
        ("/v1/messages", message),
    ]
}

/// A refusal after so long a time that the head of the stream is out.
fn late(status: u16, body: Option<&str>) -> Fault {
    let refusal = Canned {
        status,
        headers: Vec::new(),
        body: body.map(str::to_owned),
        repeat: 1,
        gzip: false,
    };
    Fault {
        reply: Some(refusal),
        ..Fault::delay_ms(SLOW_MS)
    }
}

/// What follows the comments that a body begins with, of which there are two at least.
fn behind_comments(body: &str) -> &str {
    let rest = body.trim_start_matches(COMMENT);
    let comments = (body.len() - rest.len()) / COMMENT.len();
    assert!(comments >= 2, "{comments} comments: {body}");
    assert!(!rest.contains(COMMENT), "{body}");
    rest
}

fn assert_stream_head(answer: &Response) {
    let kind = answer.head.header("content-type").unwrap_or_default();
    assert_eq!((answer.head.status, kind), (200, "text/event-stream"));
    assert!(answer.head.header("x-request-id").is_some(), "{answer:?}");
}

/// What the access log says of a request.
#[derive(Debug)]
struct Line(String);

impl Line {
    /// That of the request with this id.
    async fn of(house: &House, id: &str) -> Self {
        let (line, _) = eventually(LIMIT, "the access log is written", async || {
            let log = house.cluster.replicas[0].log();
            let is_of = |line: &&str| line.contains("outcome=") && line.contains(id);
            log.lines()
                .find(is_of)
                .map(str::to_owned)
                .ok_or(log.clone())
        })
        .await;
        Self(line)
    }

    /// One of its fields; empty where it is not there.
    fn field(&self, name: &str) -> &str {
        let begin = format!(" {name}=");
        let value = self.0.split_once(&begin).map_or("", |(_, rest)| rest);
        let value = value.split(' ').next().unwrap_or_default();
        value.trim_matches('"')
    }

    /// Status, outcome, error and bytes.
    fn ended(&self) -> [&str; 4] {
        ["status", "outcome", "error", "bytes_out"].map(|name| self.field(name))
    }
}

/// Only the numbers of the answers differ: each request of a worker has its own.
fn without_ids(stream: &str) -> Vec<Value> {
    let lines = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let without = |line: &str| {
        let mut event: Value = serde_json::from_str(line).unwrap_or_else(|_| line.into());
        for key in ["id", "created", "response", "message", "item_id", "item"] {
            if let Some(fields) = event.as_object_mut() {
                fields.remove(key);
            }
        }
        event
    };
    lines.map(without).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_come_until_the_first_event() {
    let house = House::of(commented(), vec![quick()]).await;
    let (client, other) = (http2::client(), chat::worker(quick()).await);
    for (path, body) in streams("which takes long") {
        let expected = http1::post(other.addr(), path, &body).await.text();
        let rule = Rule::next(2, Fault::delay_ms(SLOW_MS));
        house.workers[0].add_rule(rule).expect("room for a rule");
        let answer = http1::post(house.data(), path, &body).await;
        assert_stream_head(&answer);
        let text = answer.text();
        let events = behind_comments(&text);
        assert_eq!(without_ids(events), without_ids(&expected), "{path}");

        let url = format!("http://{}{path}", house.data());
        let answer = client.post(&url).json(&body).send().await.expect("a head");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let text = answer.text().await.expect("a whole stream");
        let events = behind_comments(&text);
        assert_eq!(without_ids(events), without_ids(&expected), "{path}");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let success = "outcome=\"success\"";
    assert_eq!(metrics.sum("grapevine_requests_total", success), 8.0);
    house.close().await;
}

/// A client that asks for no stream gets no head before its answer, and one that is answered in time no comment.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_gets_a_comment() {
    let house = House::of(commented(), vec![quick()]).await;
    let quick_one = http1::post(house.data(), CHATS, &streamed("quick", 3)).await;
    assert!(quick_one.text().starts_with("data: "), "{quick_one:?}");
    let kind = quick_one.head.header("content-type").unwrap_or_default();
    assert!(kind.contains("charset"), "the worker's own head: {kind}");
    let rule = Rule::next(1, late(400, None));
    house.workers[0].add_rule(rule).expect("room for a rule");
    let plain = http1::post(house.data(), CHATS, &chat("refused", 3)).await;
    assert_eq!(plain.head.status, 400, "{plain:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_comments_still_moves() {
    let house = House::of(commented(), vec![quick(); 2]).await;
    let cut = Fault {
        delay_ms: SLOW_MS,
        ..Fault::stop(Point::Event(0), How::Fin)
    };
    for (number, fault) in [late(503, None), cut].into_iter().enumerate() {
        let body = streamed(&format!("whose home is full, {number}"), 3);
        let home = house.home(&body).await;
        let rule = Rule::next(1, fault);
        house.workers[home].add_rule(rule).expect("room for a rule");
        let id = format!("moves-{number}");
        let headers = [("x-request-id", id.as_str())];
        let bytes = body.to_string();
        let answer = http1::exchange(house.data(), "POST", CHATS, &headers, bytes.as_bytes()).await;
        assert_stream_head(&answer);
        let text = answer.text();
        let events = behind_comments(&text);
        assert!(events.ends_with("data: [DONE]\n\n"), "{text}");
        assert!(!events.contains("error"), "{text}");
        assert_eq!(house.seen(&id).len(), 2, "both workers had it");
        let line = Line::of(&house, &id).await;
        let other = house.workers[1 - home].url();
        assert_eq!(line.field("worker"), other, "{line:?}");
        let bytes = text.len().to_string();
        assert_eq!(line.ended(), ["200", "success", "", &bytes], "{line:?}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_behind_comments_is_the_last_event() {
    let house = House::of(commented(), vec![quick()]).await;
    let of_anthropic = r#"{"type":"error","error":{"type":"overloaded_error","message":"full"}}"#;
    for (number, (path, body)) in streams("which nobody takes").into_iter().enumerate() {
        let own = (path == "/v1/messages").then_some(of_anthropic);
        let rule = Rule::next(1, late(503, own));
        house.workers[0].add_rule(rule).expect("room for a rule");
        let id = format!("refused-{number}");
        let headers = [("x-request-id", id.as_str())];
        let bytes = body.to_string();
        let answer = http1::exchange(house.data(), "POST", path, &headers, bytes.as_bytes()).await;
        assert_stream_head(&answer);
        let text = answer.text();
        let event = behind_comments(&text);
        let named = path == "/v1/messages" || path == "/v1/responses";
        let data = match named {
            true => event.strip_prefix("event: error\n"),
            false => Some(event),
        };
        let data = data.and_then(|data| data.strip_prefix("data: "));
        let data = data.unwrap_or_else(|| panic!("{path}: {event}"));
        let error: Value = serde_json::from_str(data).unwrap_or_else(|_| panic!("{event}"));
        assert_eq!(error.get("type").is_some(), named, "{error}");
        assert!(error["error"]["message"].is_string(), "{error}");
        let line = Line::of(&house, &id).await;
        let bytes = text.len().to_string();
        assert_eq!(
            line.ended(),
            ["200", "worker_error", "", &bytes],
            "{line:?}"
        );
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let series = metrics.series("grapevine_requests_total");
    let failed = series.iter().filter(|(labels, _)| {
        labels.contains("outcome=\"worker_error\"") && labels.contains("status=\"2xx\"")
    });
    assert_eq!(failed.map(|(_, count)| count).sum::<f64>(), 4.0);
    house.close().await;
}

/// A mistake of the client's is none of the worker's, also behind a head with 200; what is no JSON is told in words.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_behind_comments_say_whose_fault_they_are() {
    let house = House::of(commented(), vec![quick()]).await;
    let json_answer = r#"{"object":"text_completion","choices":[]}"#;
    for (status, body, outcome, code) in [
        (400, None, "error", ""),
        (
            502,
            Some("<html>Bad Gateway"),
            "worker_error",
            "upstream_failed",
        ),
        (200, Some(json_answer), "worker_error", "upstream_failed"),
    ] {
        let rule = Rule::next(1, late(status, body));
        house.workers[0].add_rule(rule).expect("room for a rule");
        let id = format!("late-{status}");
        let headers = [("x-request-id", id.as_str())];
        let bytes = streamed("a question", 3).to_string();
        let answer = http1::exchange(house.data(), "POST", CHATS, &headers, bytes.as_bytes()).await;
        assert_stream_head(&answer);
        let text = answer.text();
        let event = behind_comments(&text);
        let error: Value = event
            .strip_prefix("data: ")
            .and_then(|data| serde_json::from_str(data).ok())
            .unwrap_or_else(|| panic!("{text}"));
        assert!(error["error"]["message"].is_string(), "{error}");
        let line = Line::of(&house, &id).await;
        let bytes = text.len().to_string();
        assert_eq!(line.ended(), ["200", outcome, code, &bytes], "{line:?}");
    }
    house.close().await;
}

/// A stream that waits for room at its worker, or for a place of its model, waits with comments.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_worker_gets_comments() {
    let worker = chat::worker(quick()).await;
    let plan = commented().set("admission.queue_timeout", "\"1s\"");
    let plan = plan.worker_with(&worker.url(), &[MODEL], "max_in_flight = 1\n");
    let house = House::with(plan, vec![worker]).await;
    let hold = async || {
        let stream = Stream::open(house.data(), &streamed("which goes on", 100_000)).await;
        let mut stream = stream.expect("a head");
        stream.read_events(1).await.expect("it goes on");
        stream
    };
    let held = hold().await;
    let mut waits = Connection::open(house.data()).await;
    let bytes = streamed("which waits", 3).to_string();
    waits
        .send(&request("POST", CHATS, &[], bytes.as_bytes()))
        .await
        .expect("taken");
    assert_eq!(waits.head().await.expect("a head").status, 200);
    assert_eq!(house.workers[0].log().len(), 1, "it is at no worker");
    for _ in 0..2 {
        let comment = waits.data().await.expect("a comment");
        assert_eq!(comment.as_deref(), Some(COMMENT.as_bytes()));
    }
    held.leave(true);
    let rest = waits.rest().await.expect("whole");
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");

    let held = hold().await;
    let outcome = chat::stream(house.data(), &streamed("which waits in vain", 3)).await;
    let Ending::ErrorEvent(error) = outcome.ending else {
        panic!("{outcome:?}");
    };
    assert_eq!(error["code"], "overloaded", "{error}");
    held.leave(true);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_it_gets_comments_leaves_nothing_behind() {
    let house = House::of(commented(), vec![quick()]).await;
    let rule = Rule::next(1, Fault::never_answer());
    house.workers[0].add_rule(rule).expect("room for a rule");
    let mut leaves = Connection::open(house.data()).await;
    let headers = [("x-request-id", "leaves")];
    let bytes = streamed("which is never answered", 3).to_string();
    leaves
        .send(&request("POST", CHATS, &headers, bytes.as_bytes()))
        .await
        .expect("taken");
    leaves.head().await.expect("a head");
    leaves.data().await.expect("a comment");
    drop(leaves);
    let line = Line::of(&house, "leaves").await;
    let [status, outcome, ..] = line.ended();
    assert_eq!((status, outcome), ("200", "client_left"), "{line:?}");
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "nothing is under way", async || {
        let active = admin.metrics().await.sum("grapevine_requests_active", "");
        so(active == 0.0, || format!("{active}"))
    })
    .await;
    house.close().await;
}

/// The limits of a request hold behind comments, too.
#[tokio::test(flavor = "multi_thread")]
async fn comments_do_not_lengthen_a_request() {
    let plan = commented().set("timeouts.whole_request", "\"700ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let rule = Rule::next(1, Fault::never_answer());
    house.workers[0].add_rule(rule).expect("room for a rule");
    let headers = [("x-request-id", "late")];
    let bytes = streamed("which is never answered", 3).to_string();
    let answer = http1::exchange(house.data(), "POST", CHATS, &headers, bytes.as_bytes()).await;
    assert_stream_head(&answer);
    let text = answer.text();
    assert!(
        behind_comments(&text).contains("upstream_timeout"),
        "{text}"
    );
    let line = Line::of(&house, "late").await;
    let [status, outcome, ..] = line.ended();
    assert_eq!((status, outcome), ("200", "out_of_time"), "{line:?}");
    house.close().await;
}
