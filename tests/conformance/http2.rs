//! HTTP/2 with prior knowledge: the same answers, many at once on one connection, and resets that count.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;

use grapevine_testbed::fake_worker::Rule;
use grapevine_tests::chat::{self, MODEL, chat, paced, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::wait::{LIMIT, eventually, so};
use grapevine_tests::{http1, invariants};
use http::Request;
use reqwest::{Client, Version};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Duration, timeout};

use crate::house::{House, quick};
use crate::leaving::{PROMISED, unix_now};
use crate::odd_workers::raw_worker;
use crate::slow_reader;

pub(crate) fn client() -> Client {
    // A second installation in this process changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .http2_prior_knowledge()
        .no_proxy()
        .tls_certs_only([])
        .build()
        .expect("a client can be built")
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_over_http2_are_those_over_http1() {
    let house = House::new(2).await;
    let url = format!("http://{}/v1/chat/completions", house.data());
    let client = client();
    let mut requests = JoinSet::new();
    for number in 0..40 {
        let (client, url, data) = (client.clone(), url.clone(), house.data());
        requests.spawn(async move {
            let prompt = format!("question {number}");
            let plain = client
                .post(&url)
                .json(&chat(&prompt, 3))
                .send()
                .await
                .expect("answered");
            assert_eq!(
                (plain.status().as_u16(), plain.version()),
                (200, Version::HTTP_2)
            );
            assert!(plain.headers().contains_key("x-request-id"));
            let plain: Value = plain.json().await.expect("JSON");
            let over_http1 = http1::post(data, "/v1/chat/completions", &chat(&prompt, 3)).await;
            let text = |answer: &Value| answer["choices"][0]["message"]["content"].clone();
            assert_eq!(text(&plain), text(&over_http1.json()));

            let stream = client
                .post(&url)
                .json(&streamed(&prompt, 5))
                .send()
                .await
                .expect("answered");
            let stream = stream.text().await.expect("a whole stream");
            assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
            assert_eq!(
                stream.matches("data: ").count(),
                7,
                "role, 5 tokens, [DONE]"
            );
        });
    }
    requests.join_all().await;
    let wrong = client.post(&url).body("{").send().await.expect("answered");
    assert_eq!(wrong.status().as_u16(), 400);
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    assert!(
        metrics.sum("grapevine_connections", "") <= 2.0,
        "one connection carries all"
    );
    house.close().await;
}

/// hyper strips no body over HTTP/2: whoever asked for a head alone must not get more.
#[tokio::test(flavor = "multi_thread")]
async fn the_head_alone_is_that_of_the_whole_answer() {
    let house = House::new(1).await;
    let data = house.data();
    let socket = TcpStream::connect(data).await.expect("accepted");
    let (mut requests, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    for (path, status) in [
        ("/health", 200),
        ("/v1/models", 200),
        ("/nosuch", 404),
        ("/v1/chat/completions", 405),
    ] {
        let mut answers = Vec::new();
        for method in ["GET", "HEAD"] {
            let head = Request::builder().method(method);
            let head = head.uri(format!("http://{data}{path}")).body(());
            let (answer, _) = requests
                .send_request(head.expect("a head"), true)
                .expect("a stream");
            answers.push(answer.await.expect("an answer"));
        }
        let [whole, alone] = &mut answers[..] else {
            unreachable!("two were asked for");
        };
        assert_eq!(
            (alone.status(), alone.status().as_u16()),
            (whole.status(), status)
        );
        let length = &whole.headers()["content-length"].clone();
        assert_eq!(
            alone.headers().get("content-length"),
            Some(length),
            "{path}"
        );
        assert!(alone.body().is_end_stream(), "{path}: no DATA follows");
        let body = whole.body_mut().data().await.expect("a body");
        assert_eq!(body.expect("whole").len().to_string(), *length, "{path}");
    }
    connection.abort();
    house.close().await;
}

/// Trailers are held to what holds for heads; what is for one hop, or a length, would end the stream with an error. An answer that is
/// read to its end before its head goes out has none.
#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_a_worker_pass_as_headers_do() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n";
    let own = "connection: close, x-hop\r\nx-hop: 1\r\nkeep-alive: 1\r\nx-grapevine-worker: w\r\n\
        access-control-allow-origin: *\r\ncontent-length: 5\r\nset-cookie: a=b\r\n";
    for (kept, expected) in [("x-sum: 1\r\n", Some("1")), ("", None)] {
        let answer: &'static str = format!("{head}{own}{kept}\r\n").leak();
        let (worker, _serving) = raw_worker(answer).await;
        let plan = Plan::default().worker(&worker, &[MODEL]);
        let house = House::with(plan, Vec::new()).await;
        let socket = TcpStream::connect(house.data()).await.expect("accepted");
        let (mut requests, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        let url = format!("http://{}/v1/chat/completions", house.data());
        let head = Request::post(url).header("content-type", "application/json");
        let head = head.body(()).expect("a head");
        let (answer, mut body) = requests.send_request(head, false).expect("a stream");
        let chat = chat("with trailers", 1).to_string();
        body.send_data(chat.into(), true).expect("taken");
        let mut answer = answer.await.expect("an answer");
        let mut data = Vec::new();
        while let Some(piece) = answer.body_mut().data().await {
            data.extend_from_slice(&piece.expect("whole"));
        }
        assert_eq!(data, b"{}");
        let trailers = answer.body_mut().trailers().await.expect("a good end");
        let trailers = trailers.unwrap_or_default();
        let sum = trailers.get("x-sum").map(|sum| sum.to_str().expect("text"));
        assert_eq!(
            (trailers.len(), sum),
            (usize::from(expected.is_some()), expected)
        );
        connection.abort();
    }
}

/// The limits are those of HTTP/1, and who is above them hears which.
#[tokio::test(flavor = "multi_thread")]
async fn heads_that_are_too_large_are_refused_in_words() {
    let plan = Plan::default().set("limits.header_bytes", "\"16KiB\"");
    let house = House::of(plan, vec![quick()]).await;
    let client = client();
    let url = format!("http://{}/v1/chat/completions", house.data());
    let many = |count: usize| -> http::HeaderMap {
        let name = |number| format!("x-{number}").parse().expect("a name");
        let fields = (0..count).map(|number| (name(number), "1".parse().expect("a value")));
        fields.collect()
    };
    let long = |bytes: usize| -> http::HeaderMap {
        let name = "x-long".parse().expect("a name");
        [(name, "l".repeat(bytes).parse().expect("a value"))]
            .into_iter()
            .collect()
    };
    for (what, headers, status) in [
        ("fields within the limit", many(80), 200),
        ("a long one within the limit", long(15 << 10), 200),
        ("too many", many(101), 431),
        ("too long", long(17 << 10), 431),
    ] {
        let request = client.post(&url).headers(headers).json(&chat("hello", 1));
        let answer = request.send().await.expect("answered");
        assert_eq!(answer.status().as_u16(), status, "{what}");
        let body: Value = answer.json().await.expect("JSON");
        if status != 200 {
            assert_eq!(body["error"]["code"], "head_too_large", "{what}: {body}");
        }
    }
    let target = format!("{url}?{}", "t".repeat(17 << 10));
    let answer = client.get(target).send().await.expect("answered");
    assert_eq!(answer.status().as_u16(), 414);
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let reached = metrics.sum("grapevine_limits_reached_total", "header_bytes");
    assert_eq!(reached, 3.0, "each is counted");
    assert_eq!(house.workers[0].log().len(), 2, "no worker saw the others");
    house.close().await;
}

/// As over HTTP/1, where two hosts, or none, are refused as the head is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_names_one_host() {
    let house = House::new(1).await;
    let data = house.data();
    let socket = TcpStream::connect(data).await.expect("accepted");
    let (mut requests, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let whole = format!("http://{data}/v1/models");
    let own = data.to_string();
    let (own, bare) = (own.as_str(), "/v1/models");
    for (target, hosts, status) in [
        (whole.as_str(), &[][..], 200),
        (&whole, &[own], 200),
        (bare, &[own], 200),
        (&whole, &["other"], 400),
        (&whole, &[own, own], 400),
        (bare, &[own, "other"], 400),
        (bare, &["a/b"], 400),
        (bare, &[], 400),
    ] {
        // Of a request that was HTTP/1.1 before, the library sends no authority.
        let version = match target == bare {
            true => Version::HTTP_11,
            false => Version::HTTP_2,
        };
        let mut head = Request::get(target).version(version);
        for host in hosts {
            head = head.header("host", *host);
        }
        let head = head.body(()).expect("a head");
        let (answer, _) = requests.send_request(head, true).expect("a stream");
        let answer = answer.await.expect("an answer");
        assert_eq!(answer.status().as_u16(), status, "{target} {hosts:?}");
    }
    connection.abort();
    house.close().await;
}

/// A line that the router writes is none of its client's.
#[tokio::test(flavor = "multi_thread")]
async fn a_head_may_have_as_many_fields_as_the_limit_says() {
    const MOST: usize = 20;
    let plan = Plan::default().set("limits.headers", &MOST.to_string());
    let house = House::of(plan, vec![quick()]).await;
    let socket = TcpStream::connect(house.data()).await.expect("accepted");
    let (mut requests, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    for (fields, status) in [(MOST, 200), (MOST + 1, 431)] {
        let mut head = Request::get(format!("http://{}/v1/models", house.data()));
        for number in 0..fields {
            head = head.header(format!("x-{number}"), "1");
        }
        let head = head.body(()).expect("a head");
        let (answer, _) = requests.send_request(head, true).expect("a stream");
        let answer = answer.await.expect("an answer");
        assert_eq!(answer.status().as_u16(), status, "{fields} fields");
    }
    connection.abort();
    house.close().await;
}

/// Sends what the other side has room for now, at most `bytes`.
async fn send_some(body: &mut h2::SendStream<bytes::Bytes>, bytes: &[u8]) -> usize {
    body.reserve_capacity(bytes.len());
    let room = poll_fn(|cx| body.poll_capacity(cx)).await;
    let room = room.expect("an open stream").expect("no reset");
    let sent = &bytes[..room.min(bytes.len())];
    body.send_data(sent.to_vec().into(), false)
        .expect("there is room");
    sent.len()
}

/// What nobody reads yet must not take the room of what is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_stops_no_upload_on_its_connection() {
    let plan = Plan::default().set("limits.requests", "2");
    let house = House::of(plan, vec![paced(Duration::from_millis(10))]).await;
    let (data, admin) = (house.data(), house.cluster.replicas[0].admin());
    let held = streamed("held", 100_000);
    let mut held = chat::Stream::open(data, &held).await.expect("accepted");
    held.read_events(1).await.expect("it has begun");
    let until = async |name: &str, label: &str, count: f64| {
        eventually(LIMIT, name, async || {
            let counted = admin.metrics().await.sum(name, label);
            so(counted == count, || format!("{counted}"))
        })
        .await;
    };
    let socket = TcpStream::connect(data).await.expect("accepted");
    let (mut requests, mut connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let mut pings = connection.ping_pong().expect("asked once");
    let connection = tokio::spawn(connection);
    let mut begin = || {
        let head = Request::post(format!("http://{data}/v1/chat/completions"));
        let head = head.header("content-type", "application/json").body(());
        let begun = requests.send_request(head.expect("a head"), false);
        begun.expect("a stream")
    };
    // One takes the last place and is read; the other waits, and sends as much as it may.
    let mut upload = chat("an upload", 1);
    upload["metadata"] = "long ".repeat(300_000).into();
    let upload = upload.to_string();
    let mut left = upload.as_bytes();
    let (answer, mut read) = begin();
    let sent = send_some(&mut read, &left[..10]).await;
    left = &left[sent..];
    until("grapevine_requests_active", "", 2.0).await;
    let (_waits, mut unread) = begin();
    until("grapevine_queue_length", "admission", 1.0).await;
    // The windows that the replica has set are known behind this.
    pings.ping(h2::Ping::opaque()).await.expect("it lives");
    send_some(&mut unread, &vec![b' '; 2 << 20]).await;
    let rest = async {
        while !left.is_empty() {
            let sent = send_some(&mut read, left).await;
            left = &left[sent..];
        }
        read.send_data(bytes::Bytes::new(), true).expect("the end");
        answer.await.expect("an answer")
    };
    let answer = timeout(LIMIT, rest).await;
    let answer = answer.expect("the one that waits has taken its room");
    assert_eq!(answer.status().as_u16(), 200);
    connection.abort();
    held.leave(false);
    house.close().await;
}

/// Sends `bytes` more of a body once its request was refused; whether its stream stayed open for them.
async fn is_heard_out(data: SocketAddr, bytes: usize) -> bool {
    let socket = TcpStream::connect(data).await.expect("accepted");
    let (mut requests, mut connection) = h2::client::handshake(socket).await.expect("HTTP/2");
    let mut pings = connection.ping_pong().expect("asked once");
    let connection = tokio::spawn(connection);
    let url = format!("http://{data}/nosuch");
    let head = Request::post(url).body(()).expect("a head");
    let (answer, mut body) = requests.send_request(head, false).expect("a stream");
    let (head, mut answer) = answer.await.expect("an answer").into_parts();
    assert_eq!(head.status.as_u16(), 404);
    while let Some(piece) = answer.data().await {
        let piece = piece.expect("a whole answer");
        let taken = answer.flow_control().release_capacity(piece.len());
        taken.expect("as much as there was");
    }
    // What was sent behind the answer has come before the answer to this.
    pings.ping(h2::Ping::opaque()).await.expect("it lives");
    let reset = poll_fn(|cx| Poll::Ready(body.poll_reset(cx))).await;
    if reset.is_ready() {
        return false;
    }
    let mut left = bytes;
    while left > 0 {
        body.reserve_capacity(left);
        let Some(Ok(room)) = poll_fn(|cx| body.poll_capacity(cx)).await else {
            return false;
        };
        let piece = vec![b'x'; room.min(left)];
        left -= piece.len();
        if body.send_data(piece.into(), left == 0).is_err() {
            return false;
        }
    }
    connection.abort();
    true
}

/// A reset behind an answer makes common clients drop the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_may_end_its_body() {
    let house = House::new(1).await;
    // The second is more than fits into a stream's window.
    for bytes in [8, 4_000_000] {
        // A machine that stands still for as long as the replica listens is asked again.
        let mut tries = 0..3;
        let data = house.data();
        while !is_heard_out(data, bytes).await {
            assert!(tries.next().is_some(), "{bytes} bytes were never taken");
        }
    }
    house.close().await;
}

/// By a reset of its stream, or of the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_within_its_body_is_counted_as_such() {
    let house = House::new(1).await;
    let data = house.data();
    for (by_reset, left) in [(true, 1.0), (false, 2.0)] {
        let socket = TcpStream::connect(data).await.expect("accepted");
        let (mut requests, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        let head = Request::post(format!("http://{data}/v1/chat/completions"));
        let head = head.body(()).expect("a head");
        let (_answer, mut body) = requests.send_request(head, false).expect("a stream");
        body.send_data("{\"mod".into(), false).expect("it is open");
        eventually(LIMIT, "the request is there", async || {
            let metrics = house.cluster.replicas[0].admin().metrics().await;
            let active = metrics.sum("grapevine_requests_active", "");
            so(active == 1.0, || format!("{active} are"))
        })
        .await;
        match by_reset {
            true => body.send_reset(h2::Reason::CANCEL),
            false => connection.abort(),
        }
        eventually(LIMIT, "it counts", async || {
            let metrics = house.cluster.replicas[0].admin().metrics().await;
            let counted = metrics.sum("grapevine_requests_total", "client_left");
            so(counted == left, || format!("{counted} of {left}"))
        })
        .await;
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    assert_eq!(
        metrics.sum("grapevine_errors_total", "invalid_request"),
        0.0
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_stream_is_closed_at_the_worker() {
    let worker = chat::worker(paced(Duration::from_millis(10))).await;
    let cluster = Plan::default().workers([&worker]).start(1).await;
    let url = format!("http://{}/v1/chat/completions", cluster.replicas[0].data());
    let client = client();
    let stays = client
        .post(&url)
        .json(&streamed("stays", 100))
        .send()
        .await
        .expect("answered");
    let mut leaves = client
        .post(&url)
        .json(&streamed("leaves", 10_000))
        .send()
        .await
        .expect("answered");
    leaves
        .chunk()
        .await
        .expect("it has begun")
        .expect("a chunk");
    let left = unix_now();
    drop(leaves);
    let (gone, _) = eventually(LIMIT, "the worker sees the close", async || {
        let log = worker.log();
        let gone = log.iter().find_map(|entry| entry.client_gone_us);
        gone.ok_or_else(|| format!("{log:?}"))
    })
    .await;
    let took = Duration::from_micros(gone).saturating_sub(left);
    println!("stream reset by its client: closed at the worker after {took:?}");
    assert!(took <= 10 * PROMISED, "{took:?} after the client left");
    let whole = stays.text().await.expect("its neighbour goes on");
    assert!(whole.ends_with("data: [DONE]\n\n"));
    invariants::hold(&cluster, &[worker], &[]).await;
}

/// Nothing but the limit ends such a stream: its connection is busy with others, and its worker has more to say.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_opens_no_window_is_cut_and_its_neighbour_is_not() {
    let plan = Plan::default().set("timeouts.write_stall", "\"500ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let data = house.data();
    house.workers[0]
        .add_rule(Rule::next(1, slow_reader::long_answer()))
        .expect("room for a rule");
    let socket = TcpStream::connect(data).await.expect("accepted");
    // Far less than the connection's, which would be gone else, for the neighbour as well.
    let mut client = h2::client::Builder::new();
    client.initial_window_size(16 * 1024);
    let connected = client.handshake::<_, bytes::Bytes>(socket).await;
    let (mut requests, connection) = connected.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let mut ask = async |body: Value| {
        let head = Request::post(format!("http://{data}/v1/chat/completions"));
        let head = head.header("content-type", "application/json").body(());
        let (answer, mut out) = requests
            .send_request(head.expect("a head"), false)
            .expect("a stream");
        let sent = out.send_data(body.to_string().into(), true);
        sent.expect("there is room for a chat");
        answer.await.expect("an answer").into_body()
    };
    let mut stalled = ask(chat("a very long answer", 1)).await;
    let mut goes_on = ask(streamed("its neighbour", 1_500)).await;
    let mut neighbour = Vec::new();
    while let Some(piece) = goes_on.data().await {
        let piece = piece.expect("its neighbour goes on");
        let taken = goes_on.flow_control().release_capacity(piece.len());
        taken.expect("as much as there was");
        neighbour.extend_from_slice(&piece);
    }
    assert!(neighbour.ends_with(b"data: [DONE]\n\n"));
    let error = loop {
        match timeout(LIMIT, stalled.data()).await.expect("it is cut") {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("an answer that was cut is not whole"),
        }
    };
    assert_eq!(error.reason(), Some(h2::Reason::CANCEL), "{error}");
    eventually(LIMIT, "the worker is freed, and it counts", async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        let gone = house.workers[0].stats().clients_gone;
        let counted = [
            ("grapevine_limits_reached_total", "\"write_stall\""),
            ("grapevine_requests_total", "client_left"),
        ];
        let counted = counted.map(|(name, label)| metrics.sum(name, label));
        let active = metrics.sum("grapevine_requests_active", "");
        so(gone == 1 && counted == [1.0, 1.0] && active == 0.0, || {
            format!("{gone} gone, {counted:?} counted, {active} active")
        })
    })
    .await;
    connection.abort();
    house.close().await;
}

/// It answers PINGs, and asks for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_ends_in_time_and_a_long_answer_does_not() {
    let plan = Plan::default()
        .set("timeouts.first_byte", "\"500ms\"")
        .set("timeouts.keep_alive", "\"500ms\"");
    let house = House::of(plan, vec![paced(Duration::from_millis(10))]).await;
    let data = house.data();
    for asks in [false, true] {
        let socket = TcpStream::connect(data).await.expect("accepted");
        let (mut requests, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
        let connection = tokio::spawn(connection);
        if asks {
            let head = Request::post(format!("http://{data}/v1/chat/completions"));
            let head = head.header("content-type", "application/json").body(());
            let head = head.expect("a head");
            let (answer, mut body) = requests.send_request(head, false).expect("a stream");
            // An answer of a second.
            let asked = streamed("a long answer", 100).to_string();
            body.send_data(asked.into(), true).expect("it is open");
            let mut answer = answer.await.expect("an answer").into_body();
            let mut read = Vec::new();
            while let Some(piece) = answer.data().await {
                let piece = piece.expect("a whole answer");
                let taken = answer.flow_control().release_capacity(piece.len());
                taken.expect("as much as there was");
                read.extend_from_slice(&piece);
            }
            assert!(read.ends_with(b"data: [DONE]\n\n"));
        }
        let ended = timeout(LIMIT, connection).await.expect("it ends in time");
        let ended = ended.expect("no panic");
        assert!(ended.is_ok(), "by GOAWAY, asks: {asks}: {ended:?}");
        drop(requests);
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let reached = metrics.sum("grapevine_limits_reached_total", "\"first_byte\"");
    assert_eq!(reached, 1.0, "only the one that asked for nothing counts");
    house.close().await;
}
