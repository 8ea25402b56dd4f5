//! Sessions over WebSocket: `/v1/realtime`, from handshake to the last byte.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use grapevine_testbed::fake_worker::{
    Canned, Config, Entry, FakeWorker, Fault, Rule, StopMode, When,
};
use grapevine_tests::chat::MODEL;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Response};
use grapevine_tests::keys::KeyFile;
use grapevine_tests::process::Signal;
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};

use crate::errors::assert_error;
use crate::house::{House, quick};

type Socket = WebSocketStream<TcpStream>;

const PATH: &str = "/v1/realtime";
/// The promise is 100 ms, and the time is printed. A busy machine may take longer, but every limit of a
/// session is longer than this.
const FREED_WITHIN: Duration = Duration::from_secs(2);

/// Opens a session as the library does, with these headers.
async fn open(house: &House, target: &str, headers: &[(&'static str, &str)]) -> Socket {
    let url = format!("ws://{}{target}", house.data());
    let mut request = url.into_client_request().expect("a request");
    for (name, value) in headers {
        let value = value.parse().expect("a header");
        request.headers_mut().insert(*name, value);
    }
    let stream = TcpStream::connect(house.data()).await.expect("connected");
    let opened = tokio_tungstenite::client_async(request, stream);
    let opened = timeout(LIMIT, opened).await.expect("answered");
    let (mut socket, answer) = opened.expect("a session");
    assert_eq!(answer.status(), 101);
    assert!(answer.headers().contains_key("x-request-id"));
    let greeting = next(&mut socket).await;
    assert!(
        greeting.to_string().contains("session.created"),
        "{greeting}"
    );
    socket
}

async fn next(socket: &mut Socket) -> Message {
    let message = timeout(LIMIT, socket.next()).await.expect("in time");
    message.expect("no end").expect("a message")
}

async fn say(socket: &mut Socket, text: &str) {
    socket.send(Message::text(text)).await.expect("taken");
}

/// Sends a handshake written by hand; returns the answer.
async fn ask(house: &House, target: &str, headers: &[(&str, &str)]) -> Response {
    let key = generate_key();
    let own = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", key.as_str()),
    ];
    let headers = [&own[..], headers].concat();
    http1::exchange(house.data(), "GET", target, &headers, b"").await
}

/// Waits until no worker has a session any more; returns the time.
async fn freed(workers: &[FakeWorker]) -> Duration {
    let (_, took) = eventually(LIMIT, "the workers are free", async || {
        let open: u64 = workers.iter().map(|worker| worker.stats().in_flight).sum();
        so(open == 0, || format!("{open} sessions"))
    })
    .await;
    took
}

fn last_seen(worker: &FakeWorker) -> Entry {
    worker.log().last().expect("the worker was asked").clone()
}

async fn finished(house: &House, outcome: &str) -> f64 {
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let series = metrics.series("grapevine_requests_total");
    let ours = series.iter().filter(|(labels, _)| {
        labels.contains("realtime") && labels.contains(&format!("\"{outcome}\""))
    });
    ours.map(|(_, value)| value).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_pass_both_ways_as_they_are() {
    let house = House::new(2).await;
    let target = format!("{PATH}?model={MODEL}&x=1");
    let headers = [("authorization", "Bearer client"), ("x-session-id", "s")];
    let mut socket = open(&house, &target, &headers).await;
    for size in [0, 1, 125, 126, 65_535, 65_536, 1 << 20] {
        let sent = Message::binary(vec![7; size]);
        socket.send(sent.clone()).await.expect("taken");
        assert_eq!(next(&mut socket).await, sent, "{size} bytes");
    }
    socket
        .send(Message::Ping(b"p".as_slice().into()))
        .await
        .expect("taken");
    assert_eq!(
        next(&mut socket).await,
        Message::Pong(b"p".as_slice().into())
    );
    let [one] = &house
        .workers
        .iter()
        .filter(|worker| worker.stats().in_flight > 0)
        .collect::<Vec<_>>()[..]
    else {
        panic!("one worker has it");
    };
    let seen = last_seen(one);
    assert_eq!(seen.path, target);
    assert_eq!(seen.header("authorization"), Some("Bearer client"));
    let held = house.cluster.replicas[0].admin().metrics().await;
    assert_eq!(held.sum("grapevine_requests_active", ""), 1.0);
    assert_eq!(held.sum("grapevine_worker_in_flight", ""), 1.0);

    socket.close(None).await.expect("said");
    while let Some(Ok(_)) = timeout(LIMIT, socket.next()).await.expect("in time") {}
    freed(&house.workers).await;
    eventually(LIMIT, "counted as a success", async || {
        let count = finished(&house, "success").await;
        so(count == 1.0, || format!("{count}"))
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_frees_the_other_side() {
    let house = House::new(1).await;
    // The client leaves: while idle, or after messages that its worker does not read.
    let socket = open(&house, PATH, &[]).await;
    drop(socket);
    let took = freed(&house.workers).await;
    assert!(took < FREED_WITHIN, "after {took:?}");
    let mut socket = open(&house, PATH, &[]).await;
    say(&mut socket, "sleep").await;
    let flood = async { while socket.send(Message::binary(vec![0; 1 << 16])).await.is_ok() {} };
    let _ = timeout(Duration::from_millis(500), flood).await;
    // A FIN would wait behind unread bytes; a client that is killed or gives up resets the connection.
    socket.get_ref().set_zero_linger().expect("it is open");
    drop(socket);
    let behind = freed(&house.workers).await;
    println!("free {took:?} after an idle client had left, {behind:?} after one that was not read");
    assert!(behind < FREED_WITHIN, "after {behind:?}");

    // The worker leaves without a close frame: the client gets one.
    let mut socket = open(&house, PATH, &[]).await;
    say(&mut socket, "leave").await;
    let told = next(&mut socket).await;
    let Message::Close(Some(frame)) = &told else {
        panic!("{told:?}");
    };
    assert_eq!(u16::from(frame.code), 1011);
    eventually(LIMIT, "all are counted", async || {
        let (left, broke) = (
            finished(&house, "client_left").await,
            finished(&house, "worker_broke").await,
        );
        so((left, broke) == (2.0, 1.0), || format!("{left}, {broke}"))
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_to_a_worker_of_its_model() {
    let models = |names: &[&str]| Config {
        models: names.iter().map(|&name| name.to_owned()).collect(),
        ..quick()
    };
    let plan = Plan::default();
    let house = House::of(plan, vec![models(&[MODEL]), models(&["org/b"])]).await;
    for (target, index) in [
        ("?model=fake-model", 0),
        ("?model=org%2Fb", 1),
        ("?x=1&model=fake-model", 0),
    ] {
        let before = house.workers[index].stats().requests;
        let socket = open(&house, &format!("{PATH}{target}"), &[]).await;
        assert_eq!(
            house.workers[index].stats().requests,
            before + 1,
            "{target}"
        );
        drop(socket);
    }
    for (target, status, code) in [
        ("", 400, "invalid_request"),
        ("?model=", 400, "invalid_request"),
        ("?model=c", 404, "model_not_found"),
        ("?model=fake-model&model=org%2Fb", 400, "invalid_request"),
    ] {
        let answer = ask(&house, &format!("{PATH}{target}"), &[]).await;
        assert_error(&answer, status, code);
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_stay_together_and_single_ones_spread() {
    let house = House::new(3).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(open(&house, PATH, &[("x-session-id", "one conversation")]).await);
    }
    let with = |house: &House| {
        house
            .workers
            .iter()
            .filter(|worker| worker.stats().in_flight > 0)
            .count()
    };
    assert_eq!(with(&house), 1, "one session, one worker");
    for _ in 0..24 {
        held.push(open(&house, PATH, &[]).await);
    }
    assert_eq!(with(&house), 3, "others are placed by themselves");
    drop(held);
    freed(&house.workers).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_pages_are_checked_before_a_worker_is_asked() {
    let mut file = KeyFile::new();
    let key = file.add("web", "").await;
    let plan = file
        .plan()
        .set("cors.allowed_origins", r#"["https://chat.example.com"]"#);
    let house = House::of(plan, vec![quick()]).await;
    let answer = ask(&house, PATH, &[]).await;
    assert_error(&answer, 401, "invalid_api_key");
    let bearer = format!("Bearer {key}");
    let key = ("authorization", bearer.as_str());
    let foreign = ask(&house, PATH, &[key, ("origin", "https://evil.example")]).await;
    assert_error(&foreign, 403, "permission_denied");
    assert!(house.workers[0].log().is_empty(), "a worker was asked");
    for origin in ["https://chat.example.com", "https://grapevine.test"] {
        let headers = [
            ("authorization", bearer.as_str()),
            ("origin", origin),
            ("host", "grapevine.test"),
        ];
        drop(open(&house, PATH, &headers).await);
        let seen = last_seen(&house.workers[0]);
        let named = seen.header("authorization");
        assert_eq!(named, None, "a worker saw the key");
    }
    freed(&house.workers).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_other_models_does_not_learn_the_only_ones_name() {
    let mut file = KeyFile::new();
    let other = file.add("other", "models = [\"other\"]").await;
    let own = file.add("own", &format!("models = [\"{MODEL}\"]")).await;
    let house = House::of(file.plan(), vec![quick()]).await;
    let bearer = format!("Bearer {other}");
    let answer = ask(&house, PATH, &[("authorization", &bearer)]).await;
    assert_error(&answer, 403, "permission_denied");
    assert!(!answer.text().contains(MODEL), "{}", answer.text());
    assert!(house.workers[0].log().is_empty(), "a worker was asked");
    let bearer = format!("Bearer {own}");
    drop(open(&house, PATH, &[("authorization", &bearer)]).await);
    freed(&house.workers).await;
    house.close().await;
}

/// A browser can set no header, and closes a session whose answer agrees to nothing of what it offers; so does the library
/// here.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_be_offered_as_a_subprotocol_and_goes_nowhere() {
    const OFFER: &str = "sec-websocket-protocol";
    let mut file = KeyFile::new();
    let key = file.add("web", "").await;
    let house = House::of(file.plan(), vec![quick()]).await;
    let offered = |key: &str| format!("realtime, openai-insecure-api-key.{key}, x.v1");
    let wrong = ask(&house, PATH, &[(OFFER, &offered("gv-other"))]).await;
    assert_error(&wrong, 401, "invalid_api_key");
    assert!(house.workers[0].log().is_empty(), "a worker was asked");
    let good = offered(&key);
    drop(open(&house, PATH, &[(OFFER, &good)]).await);
    for seen in house.workers[0].log() {
        let offers = seen.headers.iter();
        let offers = offers.filter(|(name, _)| name.eq_ignore_ascii_case(OFFER));
        let offers: Vec<&str> = offers.map(|(_, value)| value.as_str()).collect();
        assert_eq!(offers, ["realtime, x.v1"]);
        assert!(
            !format!("{:?}", seen.headers).contains(&*key),
            "a worker saw the key"
        );
    }
    freed(&house.workers).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_to_no_model_that_its_key_may_not_have() {
    let mut file = KeyFile::new();
    let bound = file.add("bound", "models = [\"fake-model\"]").await;
    let free = file.add("free", "").await;
    let both = Config {
        models: vec![MODEL.to_owned(), "org/b".to_owned()],
        ..quick()
    };
    let house = House::of(file.plan(), vec![both]).await;
    let target = format!("{PATH}?model={MODEL}");
    let update = |model: &str| format!(r#"{{"type":"session.update","model":"{model}"}}"#);
    let offers = |house: &House| {
        let seen = last_seen(&house.workers[0]);
        seen.header("sec-websocket-extensions").is_some()
    };
    let headers = |bearer| {
        let offer = ("sec-websocket-extensions", "permessage-deflate");
        [("authorization", bearer), offer]
    };
    // With a key for all models nothing is read.
    let bearer = format!("Bearer {free}");
    let mut socket = open(&house, &target, &headers(bearer.as_str())).await;
    assert!(offers(&house));
    for model in [MODEL, "org/b"] {
        say(&mut socket, &update(model)).await;
        assert_eq!(next(&mut socket).await, Message::text(update(model)));
    }
    drop(socket);

    let bearer = format!("Bearer {bound}");
    let mut socket = open(&house, &target, &headers(bearer.as_str())).await;
    assert!(!offers(&house), "what is to be read is not compressed");
    for _ in 0..2 {
        say(&mut socket, &update(MODEL)).await;
        assert_eq!(next(&mut socket).await, Message::text(update(MODEL)));
        say(&mut socket, &update("org/b")).await;
        let told = next(&mut socket).await.to_string();
        let told: serde_json::Value = serde_json::from_str(&told).expect("an event");
        assert_eq!(told["type"], "error", "{told}");
        assert_eq!(told["error"]["code"], "model_not_found", "{told}");
        // The next echo is of the next message, so the worker never got the one before.
        let audio = format!(r#"{{"audio":"{}","type":"x"}}"#, "A".repeat(100_000));
        say(&mut socket, &audio).await;
        assert_eq!(next(&mut socket).await, Message::text(audio));
    }
    say(
        &mut socket,
        r#"{"type":"session.update","model":"a","model":"b"}"#,
    )
    .await;
    let told = next(&mut socket).await.to_string();
    assert!(told.contains("invalid_request"), "{told}");
    // An update after other messages ends the session.
    let late = format!(
        r#"{{"x":"{}",{}"#,
        "A".repeat(100_000),
        &update("org/b")[1..]
    );
    say(&mut socket, &late).await;
    let told = next(&mut socket).await;
    let Message::Close(Some(frame)) = &told else {
        panic!("{told:?}");
    };
    assert_eq!(u16::from(frame.code), 1008);
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    for (code, count) in [("model_not_found", 2.0), ("\"invalid_request\"", 1.0)] {
        let refused = metrics.sum("grapevine_errors_total", code);
        assert_eq!(refused, count, "{code}");
    }
    freed(&house.workers).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_in_a_session_gives_way_to_its_model() {
    let aliases = r#"[{ name = "alias", targets = ["gone:9", "fake-model"] }]"#;
    let plan = Plan::default().set("model", aliases);
    let house = House::of(plan, vec![quick()]).await;
    let mut socket = open(&house, &format!("{PATH}?model=alias"), &[]).await;
    let update = r#"{"type":"session.update", "session":{"model":"alias"}, "model" : "alias"}"#;
    say(&mut socket, update).await;
    let expected = update.replace("\"alias\"", "\"fake-model\"");
    assert_eq!(next(&mut socket).await, Message::text(expected));
    drop(socket);
    freed(&house.workers).await;
    eventually(LIMIT, "a log line with both names", async || {
        let log = house.cluster.replicas[0].log();
        let said = r#"model="fake-model" asked_model="alias""#;
        let both = |line: &str| {
            said.split(' ').all(|part| line.contains(part)) && line.contains(" bytes_in=")
        };
        log.lines().any(both).then_some(()).ok_or(log)
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_valid_handshake_no_tunnel() {
    let house = House::new(1).await;
    // Requests of clients that are not valid handshakes.
    for headers in [
        &[("upgrade", "h2c")][..],
        &[("sec-websocket-version", "8")],
        &[("sec-websocket-key", "c2hvcnQ=")],
        &[("content-length", "0")],
    ] {
        let plain = http1::exchange(house.data(), "GET", PATH, headers, b"").await;
        assert_error(&plain, 400, "invalid_request");
    }
    let key = generate_key();
    let old = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "8"),
        ("sec-websocket-key", key.as_str()),
    ];
    let old = http1::exchange(house.data(), "GET", PATH, &old, b"").await;
    assert_error(&old, 426, "upgrade_required");
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
    ] {
        assert_eq!(old.head.header(name), Some(value), "{name}");
    }
    let posted = http1::exchange(house.data(), "POST", PATH, &[], b"{}").await;
    assert_eq!(posted.head.status, 405);
    assert!(house.workers[0].log().is_empty(), "a worker was asked");

    // Answers of workers: a refusal is passed on, and any other answer without a handshake is an error.
    let answer_with = |status: u16, headers: &[(&str, &str)]| {
        let headers = headers
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect();
        let reply = Canned {
            status,
            headers,
            body: Some("{\"detail\":\"no\"}".to_owned()),
            repeat: 1,
            gzip: false,
        };
        let fault = Fault {
            reply: Some(reply),
            ..Fault::default()
        };
        let mut rule = Rule::next(1, fault);
        rule.when.path = Some(PATH.to_owned());
        house.workers[0].add_rule(rule).expect("room for a rule");
    };
    answer_with(403, &[]);
    let refused = ask(&house, PATH, &[]).await;
    assert_eq!(
        (refused.head.status, refused.text().as_str()),
        (403, "{\"detail\":\"no\"}")
    );
    let wrong = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-accept", "AAAA"),
    ];
    answer_with(101, &wrong);
    let refused = ask(&house, PATH, &[]).await;
    assert_error(&refused, 502, "upstream_failed");
    freed(&house.workers).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_before_the_101_go_nowhere() {
    let house = House::new(1).await;
    for behind in [
        &b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"[..],
        b"POST /sleep HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
        b"\x81\x85\0\0\0\0hello",
    ] {
        let key = generate_key();
        let headers = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", key.as_str()),
        ];
        let bytes = [&http1::request("GET", PATH, &headers, b""), behind].concat();
        let mut stream = TcpStream::connect(house.data()).await.expect("connected");
        stream.write_all(&bytes).await.expect("taken");
        let mut all = Vec::new();
        let _ = timeout(LIMIT, stream.read_to_end(&mut all))
            .await
            .expect("it ends");
        let text = String::from_utf8_lossy(&all);
        assert!(
            !text.contains("session.created") && !text.contains("hello"),
            "{text}"
        );
    }
    freed(&house.workers).await;
    let paths = house.workers[0].log();
    assert!(paths.iter().all(|entry| entry.path == PATH), "{paths:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_have_limits() {
    let plan = Plan::default()
        .set("realtime.sessions", "1")
        .set("realtime.idle", "\"1s\"")
        .set("realtime.session_bytes", "\"64KiB\"");
    let house = House::of(plan, vec![quick()]).await;
    let mut socket = open(&house, PATH, &[]).await;
    let full = ask(&house, PATH, &[]).await;
    assert_error(&full, 503, "overloaded");
    let begun = Instant::now();
    let told = next(&mut socket).await;
    let code = |message: &Message| match message {
        Message::Close(Some(frame)) => u16::from(frame.code),
        other => panic!("{other:?}"),
    };
    assert_eq!(code(&told), 1001);
    assert!(begun.elapsed() < Duration::from_secs(10));
    freed(&house.workers).await;
    // Its place is free again.
    let mut socket = open(&house, PATH, &[]).await;
    let mut last = None;
    for _ in 0..100 {
        if socket.send(Message::binary(vec![1; 4_096])).await.is_err() {
            break;
        }
        match timeout(LIMIT, socket.next()).await.expect("in time") {
            Some(Ok(message @ Message::Close(_))) => last = Some(message),
            Some(Ok(_)) => {}
            _ => break,
        }
    }
    assert_eq!(code(&last.expect("told")), 1009);
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    for limit in [
        "realtime_sessions",
        "realtime_idle",
        "realtime_session_bytes",
    ] {
        assert_eq!(
            metrics.sum("grapevine_limits_reached_total", &format!("\"{limit}\"")),
            1.0,
            "{limit}"
        );
    }
    house.close().await;
}

/// The limit for whole requests ends a session without messages, long before it would be idle for too long.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_session_ends_with_its_whole_time() {
    let plan = Plan::default()
        .set("timeouts.whole_request", "\"2s\"")
        .set("realtime.idle", "\"10m\"");
    let house = House::of(plan, vec![quick()]).await;
    let begun = Instant::now();
    let mut socket = open(&house, PATH, &[]).await;
    let told = next(&mut socket).await;
    assert!(matches!(told, Message::Close(Some(_))), "{told:?}");
    assert!(begun.elapsed() >= Duration::from_secs(2));
    freed(&house.workers).await;
    assert_eq!(finished(&house, "out_of_time").await, 1.0);
    house.close().await;
}

/// A handshake has no body that could end an engine, and by which a repeat could be recognised. So it never
/// counts as a query of death, however many workers end during one.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_is_condemned_by_nobody() {
    let house = House::new(3).await;
    for worker in &house.workers {
        let fault = Fault {
            exit: true,
            ..Fault::default()
        };
        let when = When {
            path: Some(PATH.to_owned()),
            ..When::default()
        };
        let rule = Rule {
            when,
            ..Rule::always(fault)
        };
        worker.add_rule(rule).expect("room for a rule");
    }
    let answer = ask(&house, PATH, &[]).await;
    let status = answer.head.status;
    assert!(matches!(status, 502 | 503), "{status} {}", answer.text());
    let asked = house.workers.iter().filter(|w| !w.log().is_empty());
    assert_eq!(asked.count(), 3, "each in its turn");
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_may_be_switched_off() {
    let house = House::of(
        Plan::default().set("realtime.enabled", "false"),
        vec![quick()],
    )
    .await;
    let answer = ask(&house, PATH, &[]).await;
    assert_error(&answer, 501, "not_implemented");
    assert!(house.workers[0].log().is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_replica_is_said_to_its_sessions() {
    let plan = Plan::default()
        .set("timeouts.settle", "\"200ms\"")
        .set("timeouts.drain", "\"1s\"");
    let mut house = House::of(plan, vec![quick()]).await;
    let mut socket = open(&house, PATH, &[]).await;
    house.cluster.replicas[0].process().signal(Signal::TERM);
    // It goes on until the limit.
    let begun = Instant::now();
    say(&mut socket, "still there?").await;
    assert_eq!(next(&mut socket).await, Message::text("still there?"));
    let told = next(&mut socket).await;
    let Message::Close(Some(frame)) = &told else {
        panic!("{told:?}");
    };
    assert_eq!(u16::from(frame.code), 1001);
    assert!(
        begun.elapsed() > Duration::from_millis(500),
        "before the limit"
    );
    let status = house.cluster.replicas[0].ended().await;
    assert!(status.success(), "{status}");
    freed(&house.workers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_worker_is_asked_where_one_is_gone() {
    let house = House::new(2).await;
    house.workers[0].terminate(StopMode::Exit);
    for _ in 0..8 {
        let mut socket = open(&house, PATH, &[]).await;
        say(&mut socket, "hello").await;
        assert_eq!(next(&mut socket).await, Message::text("hello"));
    }
    freed(&house.workers[1..]).await;
}
