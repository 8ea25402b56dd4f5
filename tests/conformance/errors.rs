//! Every refusal is in OpenAI's shape, at the right place, and leaves nothing hanging.

use grapevine_testbed::fake_worker::{Fault, Rule};
use grapevine_tests::chat::{MODEL, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, Response, request};
use grapevine_tests::keys::KeyFile;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};

use crate::house::{House, quick};

const CHATS: &str = "/v1/chat/completions";
const CAP: usize = 64 << 10;

/// Asserts the parts of every error answer to a request: those of [`assert_refusal`], and the request's id.
pub(crate) fn assert_error(answer: &Response, status: u16, code: &str) -> Value {
    let id = answer.head.header("x-request-id");
    assert!(id.is_some(), "{}", answer.text());
    assert_refusal(answer, status, code)
}

/// Asserts status, shape, type, and `Retry-After` where it belongs; returns the error. Answers of the admin port have no
/// id.
pub(crate) fn assert_refusal(answer: &Response, status: u16, code: &str) -> Value {
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
    error
}

/// The same below `/v1/messages`, exactly in Anthropic's shape: its clients decide by the name of the type.
pub(crate) fn assert_anthropic_error(answer: &Response, status: u16, name: &str) {
    let text = answer.text();
    assert_eq!(answer.head.status, status, "{text}");
    assert!(answer.head.header("x-request-id").is_some(), "{text}");
    let kind = answer.head.header("content-type");
    assert_eq!(kind, Some("application/json"), "{text}");
    let later = answer.head.header("retry-after").is_some();
    assert_eq!(later, matches!(status, 429 | 503), "{text}");
    let body: Value = answer.json();
    let message = body["error"]["message"].as_str();
    assert!(message.is_some_and(|message| !message.is_empty()), "{text}");
    let expected = json!({ "type": "error", "error": { "type": name, "message": message } });
    assert_eq!(body, expected, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropics_clients_read_anthropics_errors() {
    const PATH: &str = "/v1/messages";
    let mut file = KeyFile::new();
    let key = file.add("own", "").await;
    let slow = file.add("slow", "requests_per_minute = 1").await;
    let plan = file.plan().set("limits.body_bytes", &CAP.to_string());
    let mut house = House::of(plan, vec![quick()]).await;
    let data = house.data();
    let ask = async |key: &str, method: &str, path: &str, body: &str| {
        // Its clients send the key like this.
        let headers = [("x-api-key", key), ("anthropic-version", "2023-06-01")];
        http1::exchange(data, method, path, &headers, body.as_bytes()).await
    };
    let asked = |model: &str| {
        let messages = json!([{ "role": "user", "content": "hello" }]);
        json!({ "model": model, "max_tokens": 2, "messages": messages }).to_string()
    };
    let long = asked(&"x".repeat(CAP));
    for (key, method, path, body, status, name) in [
        (&*key, "POST", PATH, "{", 400, "invalid_request_error"),
        ("gv-nobody", "POST", PATH, "{}", 401, "authentication_error"),
        (&key, "POST", PATH, &asked("nobody"), 404, "not_found_error"),
        (
            &key,
            "POST",
            "/v1/messages/batches",
            "{}",
            404,
            "not_found_error",
        ),
        (
            &key,
            "POST",
            "/v1/messages/count_tokens",
            "[]",
            400,
            "invalid_request_error",
        ),
        (&key, "GET", PATH, "", 405, "invalid_request_error"),
        (&key, "POST", PATH, &long, 413, "request_too_large"),
    ] {
        let answer = ask(key, method, path, body).await;
        assert_anthropic_error(&answer, status, name);
    }
    let good = asked(MODEL);
    assert_eq!(ask(&slow, "POST", PATH, &good).await.head.status, 200);
    let again = ask(&slow, "POST", PATH, &good).await;
    assert_anthropic_error(&again, 429, "rate_limit_error");
    // A worker's own error passes unchanged.
    let worker = &house.workers[0];
    let reply = Fault::status(418);
    worker.add_rule(Rule::next(1, reply)).expect("room");
    assert_eq!(ask(&key, "POST", PATH, &good).await.head.status, 418);
    // Until it is gone completely it may accept a connection and break it: 502.
    house.workers.remove(0).kill().await;
    let nobody = ask(&key, "POST", PATH, &good).await;
    assert_anthropic_error(&nobody, 503, "overloaded_error");
    // Other endpoints keep OpenAI's shape.
    let chat = ask(&key, "POST", CHATS, &chat("x", 1).to_string()).await;
    assert_error(&chat, 503, "no_worker_available");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused_before_a_worker_sees_them() {
    let house = House::new(1).await;
    let messages = r#""messages":[{"role":"user","content":"x"}]"#;
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

    // Nor does the replica ask for it.
    let mut asking = Connection::open(house.data()).await;
    let expecting = request(
        "POST",
        CHATS,
        &[("expect", "100-continue")],
        sized(CAP + 1).as_bytes(),
    );
    asking
        .send(&expecting[..expecting.len() - CAP - 1])
        .await
        .expect("taken");
    let answer = asking.response().await.expect("answered");
    assert_error(&answer, 413, "request_too_large");

    // Without a length the limit is reached while reading.
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

/// Two hundred bodies at once, all but their last byte, none with a length: they stay within the budget of all, and each
/// client beyond it hears so.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_bodies_at_once_stay_within_the_budget_of_all() {
    const CLIENTS: usize = 200;
    const BODY: usize = 1 << 20;
    const HELD: usize = 16;
    let plan = Plan::default()
        .set("limits.body_bytes", &BODY.to_string())
        .set("limits.body_bytes_total", &(HELD * BODY).to_string());
    let house = House::of(plan, vec![quick()]).await;
    let process = house.cluster.replicas[0].process();
    let before = process.resident_kib();
    let mut body = chat("held", 1).to_string();
    body.push_str(&" ".repeat(BODY - body.len()));
    let head = format!(
        "POST {CHATS} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let size = format!("{BODY:x}\r\n");
    let begun = [
        head.as_bytes(),
        size.as_bytes(),
        &body.as_bytes()[..BODY - 1],
    ]
    .concat();
    let begun = bytes::Bytes::from(begun);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (data, begun) = (house.data(), begun.clone());
        clients.spawn(async move {
            let mut connection = Connection::open(data).await;
            // One that is refused may be closed before all of it is sent.
            let _ = connection.send(&begun).await;
            connection
        });
    }
    let connections = clients.join_all().await;
    let metrics = async || house.cluster.replicas[0].admin().metrics().await;
    let mut peak = 0;
    eventually(LIMIT, "all that have no room were refused", async || {
        peak = peak.max(process.resident_kib().saturating_sub(before));
        let refused = metrics()
            .await
            .sum("grapevine_limits_reached_total", "body_bytes_total");
        // Bodies that grow side by side may take the room from each other: fewer are held then than would fit.
        (refused >= (CLIENTS - HELD) as f64)
            .then_some(())
            .ok_or_else(|| format!("{refused} refused, {peak} KiB"))
    })
    .await;
    let budget = (HELD * BODY) >> 10;
    println!("{peak} KiB more in memory, of a budget of {budget} KiB");
    assert!(peak <= (budget + (64 << 10)) as u64, "{peak} KiB");
    let (mut served, mut refused) = (0, 0);
    for mut connection in connections {
        let end = connection.send(b" \r\n0\r\n\r\n").await;
        match connection.response().await {
            Ok(answer) if answer.head.status == 200 => {
                end.expect("taken");
                served += 1;
            }
            Ok(answer) => {
                assert_error(&answer, 503, "overloaded");
                refused += 1;
            }
            // Its answer was lost with the reset of what it still sent.
            Err(http1::Cut) => refused += 1,
        }
    }
    println!("{served} served, {refused} refused");
    assert!(served > 0, "those that had room are served");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_workers_says_so() {
    let house = House::new(0).await;
    for path in [CHATS, "/v1/completions", "/v1/embeddings", "/v1/responses"] {
        let body = r#"{"model":"m","messages":[],"prompt":"","input":""}"#;
        let answer = http1::exchange(house.data(), "POST", path, &[], body.as_bytes()).await;
        assert_error(&answer, 503, "no_worker_available");
    }
    let list: Value = http1::get(house.data(), "/v1/models").await.json();
    assert_eq!(list["data"], Value::Array(Vec::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_bombs_are_refused_or_cost_little() {
    const DEEP: usize = 100_000;
    let house = House::new(1).await;
    let messages = r#""messages":[{"role":"user","content":"x"}]"#;
    let nest = format!("{}{}", "[".repeat(DEEP), "]".repeat(DEEP));
    let objects = format!("{}1{}", "{\"a\":".repeat(DEEP), "}".repeat(DEEP));
    let keys: Vec<String> = (0..1_000_000).map(|n| format!("\"{n}\":1")).collect();
    let with = |more: &str| format!("{{\"model\":\"{MODEL}\",{messages},{more}}}");
    let million = |element: &str| vec![element; 1_000_000].join(",");
    let of_messages = |list: &str| format!("{{\"model\":\"{MODEL}\",\"messages\":[{list}]}}");
    // The worker answers those that reach it as it likes; the replica must go on.
    let cases = [
        ("deep lists as messages", of_messages(&nest), None),
        (
            "deep lists as a prompt",
            with(&format!("\"prompt\":{nest}")),
            None,
        ),
        (
            "deep lists as an input",
            with(&format!("\"input\":{nest}")),
            None,
        ),
        (
            "deep objects as tools",
            with(&format!("\"tools\":{objects}")),
            None,
        ),
        ("deep lists elsewhere", with(&format!("\"x\":{nest}")), None),
        (
            "deep lists without an end",
            with(&format!("\"x\":{}", "[".repeat(DEEP))),
            Some(400),
        ),
        ("a million keys", with(&keys.join(",")), None),
        (
            "a million messages",
            of_messages(&million(r#"{"role":""}"#)),
            None,
        ),
        (
            "a million parts",
            of_messages(&format!(
                "{{\"role\":\"user\",\"content\":[{}]}}",
                million("1")
            )),
            None,
        ),
        (
            "a million prompts",
            with(&format!("\"prompt\":[{}]", million("\"\""))),
            None,
        ),
        (
            "a million items",
            with(&format!("\"input\":[{{}},{}]", million("0"))),
            None,
        ),
        (
            "a long string",
            with(&format!("\"x\":\"{}\"", "s".repeat(15 << 20))),
            None,
        ),
        (
            "a long escaped string",
            with(&format!("\"prompt\":\"{}\"", "\\n".repeat(7 << 20))),
            None,
        ),
        ("messages twice", with(messages), Some(400)),
        ("not a number", with("\"temperature\":NaN"), Some(400)),
        ("half a surrogate", with(r#""prompt":"\ud800""#), None),
    ];
    let process = house.cluster.replicas[0].process();
    for (what, body, status) in cases {
        let before = process.resident_kib();
        let path = match (body.contains("\"prompt\""), body.contains("\"input\"")) {
            (true, _) => "/v1/completions",
            (false, true) => "/v1/responses",
            (false, false) => CHATS,
        };
        let answer = http1::exchange(house.data(), "POST", path, &[], body.as_bytes()).await;
        let found = answer.head.status;
        match status {
            Some(400) => drop(assert_error(&answer, 400, "invalid_request")),
            _ => assert!(
                found == 200 || found == 400,
                "{what}: {found} {}",
                answer.text()
            ),
        }
        let grown = process.resident_kib().saturating_sub(before);
        println!(
            "{what}: {} KiB, {found}, {grown} KiB more afterwards",
            body.len() >> 10
        );
    }
    let answer = http1::post(house.data(), CHATS, &chat("after all that", 1)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_bodies_are_not_taken() {
    let house = House::new(1).await;
    let bomb = b"\x1f\x8b\x08\x00 whatever follows is never looked at";
    for coding in ["gzip", "zstd", "br", "deflate", "gzip, identity"] {
        for path in [CHATS, "/tokenize"] {
            let headers = [("content-encoding", coding)];
            let answer = http1::exchange(house.data(), "POST", path, &headers, bomb).await;
            assert_error(&answer, 415, "unsupported_content_encoding");
            assert_eq!(answer.head.header("accept-encoding"), Some("identity"));
        }
    }
    let body = chat("plain", 1).to_string();
    let headers = [("content-encoding", "identity")];
    let answer = http1::exchange(house.data(), "POST", CHATS, &headers, body.as_bytes()).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(house.workers[0].log().len(), 1, "a worker saw another one");
    house.close().await;
}
