//! A worker's answer reaches the client unchanged, and a client's request reaches the worker unchanged.

use std::net::SocketAddr;

use grapevine_tests::chat::{MODEL, chat, streamed};
use grapevine_tests::http1::{self, Connection, Response};
use serde_json::{Value, json};

use crate::house::House;

/// Two equal answers differ in their time only.
fn without_created(body: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"\"created\":";
    let mut kept = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = rest.windows(NAME.len()).position(|window| window == NAME) {
        let (before, after) = rest.split_at(at + NAME.len());
        kept.extend_from_slice(before);
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit());
        rest = &after[digits.count()..];
    }
    kept.extend_from_slice(rest);
    kept
}

/// Asks the worker directly and then through the replica, and asserts that nothing differs.
async fn assert_same(house: &House, path: &str, headers: &[(&str, &str)], body: &[u8], what: &str) {
    let worker = house.workers[0].addr();
    let ask = async |address: SocketAddr| -> Response {
        http1::exchange(address, "POST", path, headers, body).await
    };
    // The first time fills the worker's cache, so that the next two see the same.
    ask(worker).await;
    let (direct, routed) = (ask(worker).await, ask(house.data()).await);
    assert_eq!(routed.head.status, direct.head.status, "{what}");
    assert_eq!(
        String::from_utf8_lossy(&without_created(&routed.body)),
        String::from_utf8_lossy(&without_created(&direct.body)),
        "{what}"
    );
    assert_eq!(without_created(&routed.body), without_created(&direct.body));
    for (name, value) in &direct.head.headers {
        if !["date", "transfer-encoding", "content-length"].contains(&name.as_str()) {
            assert_eq!(
                routed.head.header(name),
                Some(value.as_str()),
                "{what}: {name}"
            );
        }
    }
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_arrive_as_the_worker_sent_them() {
    let house = House::new(1).await;
    let id = [("x-request-id", "the-same-id")];
    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": {} } }]);
    let chats = "/v1/chat/completions";
    for (path, body) in [
        (chats, chat("plain", 5)),
        (chats, streamed("stream", 20)),
        (chats, with(streamed("usage", 5), "stream_options", options)),
        (chats, with(chat("choices", 5), "n", json!(3))),
        (chats, with(chat("tools", 5), "tools", tools.clone())),
        (chats, with(streamed("tools", 5), "tools", tools)),
        (
            "/v1/completions",
            json!({ "model": MODEL, "prompt": "text", "max_tokens": 5 }),
        ),
        (
            "/v1/completions",
            json!({ "model": MODEL, "prompt": "text", "stream": true }),
        ),
        (
            "/v1/completions",
            json!({ "model": MODEL, "prompt": [1, 2, 3], "max_tokens": 2_000 }),
        ),
        (
            "/v1/embeddings",
            json!({ "model": MODEL, "input": ["a", "b"] }),
        ),
        (
            "/v1/embeddings",
            json!({ "model": MODEL, "input": "a", "encoding_format": "base64", "dimensions": 4_000 }),
        ),
        // Refused by the worker, in its own words.
        (chats, json!({ "model": MODEL, "messages": [] })),
        (chats, with(chat("cold", 5), "temperature", json!(-1))),
        (chats, chat("none", 0)),
        ("/v1/completions", json!({ "model": MODEL, "prompt": {} })),
        ("/v1/embeddings", json!({ "model": MODEL })),
    ] {
        let text = body.to_string();
        assert_same(&house, path, &id, text.as_bytes(), &text).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_events_pass_untouched() {
    let house = House::new(1).await;
    for odd in [
        r#""crlf""#,
        r#""no_space""#,
        r#""nul""#,
        r#""bad_utf8""#,
        r#""broken_json""#,
        r#""done_in_content""#,
        r#""no_done""#,
        r#"{"small_chunks":1}"#,
        r#"{"small_chunks":7}"#,
        r#"{"no_newline":2000000}"#,
    ] {
        for failover in ["off", "on"] {
            // The router completes a stream that lacks only its end mark.
            if odd.contains("no_done") && failover == "on" {
                continue;
            }
            let fault = format!("{{\"sse\":{odd}}}");
            let wanted = ("x-grapevine-failover", failover);
            let headers = [("x-request-id", "odd"), ("x-fault", &fault), wanted];
            let body = streamed("odd events", 10).to_string();
            let path = "/v1/chat/completions";
            let what = format!("{odd}, failover {failover}");
            assert_same(&house, path, &headers, body.as_bytes(), &what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_bodies_arrive_as_the_client_sent_them() {
    let house = House::new(1).await;
    let bodies: [&[u8]; 5] = [
        b" {\"messages\" : [ {\"role\":\"user\",\"content\":\"a\\u00e9\\n\"} ],\t\"model\":\"fake-model\" }\r\n ",
        b"{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"weight\":0}],\"unknown\":{\"deep\":[1e400,-0.0,12345678901234567890]},\"seed\":7}",
        "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"\u{1f347} gr\u{e4}pe\"}],\"stream\":false}".as_bytes(),
        b"{\"x\":1,\"x\":2,\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"p\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:,\"}}]}]}",
        b"{\"model\":\"fake-model\",\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"r\"}]}",
    ];
    for (number, body) in bodies.into_iter().enumerate() {
        let path = "/v1/chat/completions";
        let id = format!("body-{number}");
        let headers = [("x-request-id", id.as_str())];
        for address in [house.workers[0].addr(), house.data()] {
            http1::exchange(address, "POST", path, &headers, body).await;
        }
        send_chunked(house.data(), path, &id, body).await;
        let seen = house.seen(&id);
        assert_eq!(seen.len(), 3, "direct, with a length, in chunks");
        for entry in &seen {
            assert_eq!(
                entry.body_hash,
                seen[0].body_hash,
                "{}",
                String::from_utf8_lossy(body)
            );
            assert_eq!(entry.body_bytes, body.len() as u64);
        }
    }
}

async fn send_chunked(address: SocketAddr, path: &str, id: &str, body: &[u8]) {
    let mut connection = Connection::open(address).await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nx-request-id: {id}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    connection.send(head.as_bytes()).await.expect("taken");
    for part in body.chunks(13) {
        let chunk = [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
        connection.send(&chunk).await.expect("taken");
    }
    connection.send(b"0\r\n\r\n").await.expect("taken");
    connection.response().await.expect("answered");
}
