//! Every refusal is in OpenAI's shape, at the right place, and leaves nothing hanging.

use grapevine_testbed::fake_worker::{Fault, Rule};
use grapevine_tests::chat::{MODEL, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, Response, request};
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::Value;

use crate::house::{House, quick};

const CHATS: &str = "/v1/chat/completions";
const CAP: usize = 64 << 10;

/// Asserts status, shape, type, and `Retry-After` where it belongs; returns the error.
pub(crate) fn assert_error(answer: &Response, status: u16, code: &str) -> Value {
    let text = answer.text();
    assert_eq!(answer.head.status, status, "{text}");
    assert_eq!(
        answer.head.header("content-type"),
        Some("application/json"),
        "{text}"
    );
    let body: Value = answer.json();
    let error = body["error"].clone();
    for field in ["message", "type", "param", "code"] {
        assert!(error.get(field).is_some(), "no {field} in {text}");
    }
    assert_eq!(error["code"], code, "{text}");
    let later = answer.head.header("retry-after").is_some();
    assert_eq!(
        later,
        matches!(status, 429 | 503),
        "retry-after of {status}: {text}"
    );
    assert!(answer.head.header("x-request-id").is_some(), "{text}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused_before_a_worker_sees_them() {
    let house = House::new(1).await;
    let messages = r#""messages":[{"role":"user","content":"x"}]"#;
    let no_model = format!("{{{messages}}}");
    let other_model = format!("{{\"model\":\"other\",{messages}}}");
    let number_model = format!("{{\"model\":7,{messages}}}");
    let two_models = format!("{{\"model\":\"{MODEL}\",\"model\":\"other\",{messages}}}");
    let deep = format!(
        "{{\"model\":\"{MODEL}\",\"messages\":{}",
        "[".repeat(10_000)
    );
    for (body, status, code) in [
        ("", 400, "invalid_request"),
        ("{", 400, "invalid_request"),
        ("[1, 2]", 400, "invalid_request"),
        ("\u{feff}{}", 400, "invalid_request"),
        (&no_model, 400, "invalid_request"),
        (&number_model, 400, "invalid_request"),
        (&two_models, 400, "invalid_request"),
        (&deep, 400, "invalid_request"),
        (&other_model, 404, "model_not_found"),
    ] {
        let answer = http1::exchange(house.data(), "POST", CHATS, &[], body.as_bytes()).await;
        assert_error(&answer, status, code);
    }
    let answer = http1::exchange(house.data(), "POST", CHATS, &[], other_model.as_bytes()).await;
    assert_eq!(answer.json::<Value>()["error"]["param"], "model");
    for (method, path) in [
        ("GET", CHATS),
        ("DELETE", "/v1/completions"),
        ("PUT", "/v1/embeddings"),
        ("POST", "/v1/models"),
        ("DELETE", "/v1/models/fake-model"),
    ] {
        let answer = http1::exchange(house.data(), method, path, &[], b"").await;
        assert_error(&answer, 405, "method_not_allowed");
    }
    assert!(
        house.workers[0].log().is_empty(),
        "a worker saw one of them"
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_up_to_the_cap_pass_and_no_byte_more() {
    let plan = Plan::default().set("limits.body_bytes", &CAP.to_string());
    let house = House::of(plan, vec![quick()]).await;
    let sized = |bytes: usize| {
        let mut body = chat("", 1).to_string();
        body.push_str(&" ".repeat(bytes - body.len()));
        body
    };
    let answer = http1::exchange(house.data(), "POST", CHATS, &[], sized(CAP).as_bytes()).await;
    assert_eq!(
        answer.head.status,
        200,
        "exactly the cap: {}",
        answer.text()
    );

    // Refused by its length alone: not one byte of the body is sent.
    let mut announced = Connection::open(house.data()).await;
    let whole = request("POST", CHATS, &[], sized(CAP + 1).as_bytes());
    let head = &whole[..whole.len() - CAP - 1];
    announced.send(head).await.expect("taken");
    let answer = announced.response().await.expect("answered");
    assert_error(&answer, 413, "request_too_large");
    assert!(
        announced.is_closed().await,
        "the body could be read as the next request"
    );

    // Without a length the cap is found while reading.
    let mut chunked = Connection::open(house.data()).await;
    let head = format!("POST {CHATS} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    chunked.send(head.as_bytes()).await.expect("taken");
    let body = sized(CAP + 1);
    for part in body.as_bytes().chunks(16 << 10) {
        let chunk = [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
        chunked.send(&chunk).await.expect("taken");
    }
    let answer = chunked.response().await.expect("answered before the end");
    assert_error(&answer, 413, "request_too_large");
    assert!(chunked.is_closed().await);
    assert_eq!(
        house.workers[0].log().len(),
        1,
        "the worker saw the first one only"
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_cap_takes_16_mib() {
    let house = House::new(1).await;
    let mut body = chat("long", 1).to_string();
    body.push_str(&" ".repeat((16 << 20) - body.len()));
    let answer = http1::exchange(house.data(), "POST", CHATS, &[], body.as_bytes()).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    body.push(' ');
    let mut beyond = Connection::open(house.data()).await;
    let whole = request("POST", CHATS, &[], body.as_bytes());
    beyond
        .send(&whole[..whole.len() - body.len()])
        .await
        .expect("taken");
    assert_error(
        &beyond.response().await.expect("answered"),
        413,
        "request_too_large",
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_beyond_the_budget_of_all_are_shed_until_there_is_room() {
    const HELD: usize = 4;
    let plan = Plan::default()
        .set("limits.body_bytes", &CAP.to_string())
        .set("limits.body_bytes_total", &(HELD * CAP).to_string());
    let house = House::of(plan, vec![quick()]).await;
    let worker = &house.workers[0];
    let silent = Rule::next(HELD as u32, Fault::never_answer());
    worker.add_rule(silent).expect("room for a rule");
    let mut body = chat("held", 1).to_string();
    body.push_str(&" ".repeat(CAP - body.len()));
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    let mut held = Vec::new();
    for _ in 0..HELD {
        let mut connection = Connection::open(house.data()).await;
        connection.send(&bytes).await.expect("taken");
        held.push(connection);
    }
    eventually(LIMIT, "the worker has them all", async || {
        let begun = worker.stats().in_flight;
        (begun == HELD as u64)
            .then_some(())
            .ok_or_else(|| format!("{begun}"))
    })
    .await;
    let answer = http1::exchange(house.data(), "POST", CHATS, &[], body.as_bytes()).await;
    assert_error(&answer, 503, "overloaded");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let reached = metrics.sum("grapevine_limits_reached_total", "body_bytes_total");
    assert_eq!(reached, 1.0, "each limit counts how often it was reached");
    held.pop();
    eventually(LIMIT, "room again", async || {
        let answer = http1::exchange(house.data(), "POST", CHATS, &[], body.as_bytes()).await;
        let status = answer.head.status;
        (status == 200)
            .then_some(())
            .ok_or_else(|| status.to_string())
    })
    .await;
    drop(held);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_workers_says_so() {
    let house = House::new(0).await;
    for path in [CHATS, "/v1/completions", "/v1/embeddings", "/version"] {
        let body = r#"{"model":"m","messages":[],"prompt":"","input":""}"#;
        let answer = http1::exchange(house.data(), "POST", path, &[], body.as_bytes()).await;
        assert_error(&answer, 503, "no_worker_available");
    }
    let list: Value = http1::get(house.data(), "/v1/models").await.json();
    assert_eq!(list["data"], Value::Array(Vec::new()));
}
