//! Cached answers: the same bytes, for the same caller, and only if they were whole.

use bytes::Bytes;
use grapevine_testbed::fake_worker::{Canned, Config, Fault, How, Point, Rule};
use grapevine_tests::chat::{CHATS, MODEL, Stream, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, Head};
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use crate::house::{House, quick};

fn caching() -> Plan {
    Plan::default().set("cache.enabled", "true")
}

fn greedy(mut body: Value) -> Value {
    body["temperature"] = 0.into();
    body
}

/// Head and body of an answer; a chunked body in the pieces in which it arrived.
struct Given {
    head: Head,
    pieces: Vec<Bytes>,
}

impl Given {
    fn cache(&self) -> Option<&str> {
        self.head.header("x-grapevine-cache")
    }

    /// Headers of the answer itself.
    fn headers(&self) -> Vec<&(String, String)> {
        let anew = ["date", "age", "x-request-id", "x-grapevine-cache"];
        let own = |header: &&(String, String)| !anew.contains(&header.0.as_str());
        let mut headers: Vec<_> = self.head.headers.iter().filter(own).collect();
        headers.sort();
        headers
    }
}

async fn ask_at(house: &House, path: &str, headers: &[(&str, &str)], body: &str) -> Given {
    let mut connection = Connection::open(house.data()).await;
    let bytes = http1::request("POST", path, headers, body.as_bytes());
    connection.send(&bytes).await.expect("taken");
    let head = connection.head().await.expect("a head");
    let mut pieces = Vec::new();
    while let Some(data) = connection.data().await.expect("whole") {
        pieces.push(data);
    }
    if head.header("content-length").is_some() {
        // Without chunks its pieces are those of the socket.
        pieces = vec![pieces.concat().into()];
    }
    Given { head, pieces }
}

async fn ask(house: &House, body: &Value) -> Given {
    ask_at(house, CHATS, &[], &body.to_string()).await
}

/// Inference requests that workers saw.
fn computed(house: &House) -> usize {
    house.workers.iter().map(|worker| worker.log().len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_given_again_as_it_was() {
    let house = House::of(caching(), vec![quick(); 2]).await;
    let mut usage = greedy(streamed("a stream with usage", 5));
    usage["stream_options"] = json!({ "include_usage": true });
    let embedding = json!({ "model": MODEL, "input": "what does it mean" });
    for (path, body) in [
        (CHATS, greedy(chat("a plain answer", 4))),
        (CHATS, greedy(streamed("a stream", 5))),
        (CHATS, usage),
        (
            "/v1/completions",
            json!({ "model": MODEL, "prompt": "text", "top_k": 1, "max_tokens": 3 }),
        ),
        ("/v1/embeddings", embedding),
    ] {
        let before = computed(&house);
        let written = body.to_string();
        let first = ask_at(&house, path, &[], &written).await;
        assert_eq!(
            (first.head.status, first.cache()),
            (200, Some("miss")),
            "{written}"
        );
        assert_eq!(first.head.header("age"), None);
        // The same request, written differently: keys in reverse order, white space.
        let fields = body.as_object().expect("an object").iter().rev();
        let fields: Vec<String> = fields
            .map(|(key, value)| format!("\n{key:?} : {value}"))
            .collect();
        let otherwise = format!(" {{{}}} ", fields.join(" ,"));
        for written in [&written, &otherwise] {
            let again = ask_at(&house, path, &[], written).await;
            assert_eq!(
                (again.head.status, again.cache()),
                (200, Some("hit")),
                "{written}"
            );
            let age = again.head.header("age").expect("hits have an age");
            assert!(age.parse::<u64>().expect("seconds") < 600);
            assert_eq!(again.pieces, first.pieces);
            assert_eq!(again.headers(), first.headers());
            assert_ne!(
                again.head.header("x-request-id"),
                first.head.header("x-request-id")
            );
        }
        assert_eq!(computed(&house), before + 1, "{written}");
    }
    let admin = house.cluster.replicas[0].admin();
    let metrics = admin.metrics().await;
    let requests = |result| metrics.sum("grapevine_response_cache_requests_total", result);
    assert_eq!(["hit", "miss", "bypass"].map(requests), [10.0, 5.0, 0.0]);
    assert_eq!(metrics.sum("grapevine_response_cache_entries", ""), 5.0);
    assert_eq!(metrics.sum("grapevine_requests_total", "success"), 15.0);
    // Counted tokens are those that workers computed.
    let entries: Vec<_> = house
        .workers
        .iter()
        .flat_map(|worker| worker.log())
        .collect();
    let prompts: u64 = entries.iter().map(|entry| entry.prompt_tokens).sum();
    let counted = metrics.sum("grapevine_prompt_tokens_total", "");
    assert!(
        0.0 < counted && counted <= prompts as f64,
        "{counted} of {prompts}"
    );
    eventually(LIMIT, "hits are in the access log", async || {
        let log = house.cluster.replicas[0].log();
        let hits = log.matches("cache=\"hit\"").count();
        so(hits == 10, || format!("{hits} hits"))
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_answers_need_no_worker() {
    let mut house = House::of(caching(), vec![quick()]).await;
    let (plain, stream) = (greedy(chat("kept", 3)), greedy(streamed("kept", 3)));
    let first = [ask(&house, &plain).await, ask(&house, &stream).await];
    house.workers.remove(0).kill().await;
    for (body, first) in [&plain, &stream].into_iter().zip(&first) {
        let again = ask(&house, body).await;
        assert_eq!((again.head.status, again.cache()), (200, Some("hit")));
        assert_eq!(again.pieces, first.pieces);
    }
    let other = ask(&house, &greedy(chat("not kept", 3))).await;
    assert_eq!((other.head.status, other.cache()), (503, Some("miss")));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_something_else_asks_a_worker() {
    let plan = caching()
        .set("cluster.tenant_header", "\"x-tenant\"")
        .set("model", r#"[{ name = "alias", targets = ["fake-model"] }]"#);
    let models = vec![MODEL.to_owned(), "other".to_owned()];
    let house = House::of(plan, vec![Config { models, ..quick() }]).await;
    let base = greedy(chat("who asks", 2));
    let with = |key: &str, value: Value| {
        let mut body = base.clone();
        body[key] = value;
        body.to_string()
    };
    let same = base.to_string();
    let url = json!([{ "role": "user", "content": [
        { "type": "text", "text": "what is this" },
        { "type": "image_url", "image_url": { "url": "http://127.0.0.1:1/cat.png" } },
    ]}]);
    let none: &[(&str, &str)] = &[];
    for (path, headers, body, expected) in [
        (CHATS, none, &same, "miss"),
        (CHATS, none, &same, "hit"),
        (CHATS, none, &with("model", "alias".into()), "hit"),
        (CHATS, none, &with("user", "somebody".into()), "hit"),
        (CHATS, none, &with("model", "other".into()), "miss"),
        (CHATS, none, &with("max_tokens", 3.into()), "miss"),
        (CHATS, none, &with("cache_salt", "s".into()), "miss"),
        (CHATS, &[("x-tenant", "a")], &same, "miss"),
        (CHATS, &[("x-tenant", "a")], &same, "hit"),
        (CHATS, &[("x-tenant", "b")], &same, "miss"),
        (CHATS, &[("authorization", "Bearer 1")], &same, "miss"),
        (CHATS, &[("authorization", "Bearer 2")], &same, "miss"),
        (CHATS, &[("authorization", "Bearer 1")], &same, "hit"),
        (CHATS, &[("x-api-key", "good")], &same, "miss"),
        (CHATS, &[("x-api-key", "bad")], &same, "miss"),
        (CHATS, &[("x-api-key", "good")], &same, "hit"),
        (CHATS, &[("x-auth-request-user", "a")], &same, "miss"),
        // Of a client that is no trusted proxy no worker gets it.
        (CHATS, &[("x-forwarded-user", "a")], &same, "hit"),
        (CHATS, &[("api-key", "1")], &same, "miss"),
        (CHATS, &[("api-key", "2")], &same, "miss"),
        (
            CHATS,
            &[("user-agent", "a"), ("traceparent", "b")],
            &same,
            "hit",
        ),
        (CHATS, &[("cookie", "session=1")], &same, "miss"),
        (CHATS, &[("cookie", "session=2")], &same, "miss"),
        ("/v1/chat/completions?a=1", none, &same, "miss"),
        (CHATS, none, &with("temperature", 0.7.into()), "bypass"),
        (CHATS, none, &with("temperature", Value::Null), "bypass"),
        (CHATS, none, &with("n", 2.into()), "bypass"),
        (CHATS, none, &with("messages", url), "bypass"),
        (CHATS, &[("cache-control", "no-cache")], &same, "bypass"),
        (
            CHATS,
            &[("cache-control", "max-age=3600, no-store")],
            &same,
            "bypass",
        ),
        (
            "/tokenize",
            none,
            &json!({ "model": MODEL, "prompt": "x" }).to_string(),
            "bypass",
        ),
    ] {
        let before = computed(&house);
        let given = ask_at(&house, path, headers, body).await;
        assert_eq!(given.cache(), Some(expected), "{path} {headers:?} {body}");
        let asked = computed(&house) - before;
        assert_eq!(asked == 0, expected == "hit", "{path} {headers:?} {body}");
    }
    // `no-cache` has put the newer answer in place of the older.
    let fresh = ask_at(&house, CHATS, &[("cache-control", "no-cache")], &same).await;
    let again = ask_at(&house, CHATS, &[], &same).await;
    assert_eq!((again.cache(), &again.pieces), (Some("hit"), &fresh.pieces));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_whole_answers_are_given_again() {
    let plan = caching()
        .set("retry.enabled", "false")
        .set("breaker.enabled", "false")
        .set("cache.entry_bytes", "\"4KiB\"");
    let house = House::of(plan, vec![quick()]).await;
    let worker = &house.workers[0];
    let reply = |status: u16, headers: &[(&str, &str)], body: &str, repeat: u32| Fault {
        reply: Some(Canned {
            status,
            headers: headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
            body: Some(body.to_owned()),
            repeat,
            gzip: false,
        }),
        ..Fault::default()
    };
    let json = ("content-type", "application/json");
    let aborted = r#"{"choices":[{"finish_reason":"abort"}]}"#;
    for (number, fault) in [
        Fault::status(400),
        Fault::status(500),
        Fault::stop(Point::Event(2), How::Fin),
        Fault::stop(Point::Event(2), How::Rst),
        Fault::stop(Point::Done, How::Fin),
        Fault::sse(grapevine_testbed::fake_worker::BadSse::NoDone),
        reply(200, &[json], aborted, 1),
        reply(200, &[json, ("set-cookie", "a=1")], "{}", 1),
        reply(200, &[json, ("cache-control", "private")], "{}", 1),
        reply(200, &[json], "0123456789abcdef", 300),
    ]
    .into_iter()
    .enumerate()
    {
        let body = greedy(streamed(&format!("fault {number}"), 4));
        worker
            .add_rule(Rule::next(1, fault))
            .expect("room for a rule");
        let mut connection = Connection::open(house.data()).await;
        let bytes = http1::request("POST", CHATS, &[], body.to_string().as_bytes());
        connection.send(&bytes).await.expect("taken");
        // Whole or cut: the client has read it, and the replica is done with it.
        let _ = connection.response().await;
        let again = ask(&house, &body).await;
        assert_eq!(
            (again.head.status, again.cache()),
            (200, Some("miss")),
            "fault {number}"
        );
        assert_eq!(
            ask(&house, &body).await.cache(),
            Some("hit"),
            "fault {number}"
        );
    }
    // An answer that no client read to its end is not kept either.
    worker
        .add_rule(Rule::next(1, Fault::stop(Point::Event(3), How::Stall)))
        .expect("room");
    let body = greedy(streamed("its client leaves", 4));
    let mut stream = Stream::open(house.data(), &body).await.expect("begun");
    stream.read_events(2).await.expect("two events");
    stream.leave(false);
    eventually(LIMIT, "the worker is free", async || {
        let open = worker.stats().in_flight;
        so(open == 0, || format!("{open} open"))
    })
    .await;
    assert_eq!(ask(&house, &body).await.cache(), Some("miss"));
    invariants::hold(&house.cluster, &[], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_its_end_mark_is_not_whole() {
    // Not retried, and not an error either: the client gets the answer as it is.
    let house = House::of(caching(), vec![quick()]).await;
    let events = "data: {\"choices\":[]}\n\n";
    let reply = Canned {
        status: 200,
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
        body: Some(events.to_owned()),
        repeat: 3,
        gzip: false,
    };
    house.reply_next(reply);
    let body = greedy(streamed("no end mark", 2));
    let cut = ask(&house, &body).await;
    assert_eq!(cut.pieces.concat(), events.repeat(3).into_bytes());
    assert_eq!(ask(&house, &body).await.cache(), Some("miss"));
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_off_nothing_is_kept_or_said() {
    let house = House::new(1).await;
    let body = greedy(chat("no cache", 2));
    for _ in 0..2 {
        assert_eq!(ask(&house, &body).await.cache(), None);
    }
    assert_eq!(computed(&house), 2);
    house.close().await;
}
