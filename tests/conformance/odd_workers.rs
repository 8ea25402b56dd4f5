//! Workers whose answers are odd, hostile, or not valid HTTP.

use grapevine_testbed::fake_worker::{Canned, Fault, Rule};
use grapevine_tests::chat::{self, CHATS, Ending, MODEL, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::errors::assert_error;
use crate::house::{House, quick};

pub(crate) fn canned(status: u16, headers: &[(&str, &str)]) -> Fault {
    let headers = headers.iter().map(|&(n, v)| (n.to_owned(), v.to_owned()));
    let reply = Canned {
        status,
        headers: headers.collect(),
        body: Some(String::new()),
        repeat: 1,
        gzip: false,
    };
    Fault {
        reply: Some(reply),
        ..Fault::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_is_a_502_or_another_workers_answer() {
    let faults = [
        (
            "a head of 100 KiB",
            Fault {
                header_bytes: 100 << 10,
                ..Fault::default()
            },
        ),
        (
            "a million early hints",
            Fault {
                early_hints: 1_000_000,
                ..Fault::default()
            },
        ),
        ("a status without a meaning", canned(600, &[])),
        (
            "another protocol",
            canned(101, &[("connection", "upgrade"), ("upgrade", "websocket")]),
        ),
    ];
    let patient = || Plan::default().set("breaker.enabled", "false");
    let alone = House::of(patient(), vec![quick()]).await;
    let pair = House::of(patient(), vec![quick(); 2]).await;
    for (what, fault) in faults {
        let rule = Rule::next(2, fault.clone());
        alone.workers[0].add_rule(rule).expect("room for a rule");
        for body in [chat(what, 1), streamed(what, 1)] {
            let answer = http1::post(alone.data(), CHATS, &body).await;
            println!("{what}: {}", answer.text());
            assert_error(&answer, 502, "upstream_failed");
        }
        let answer = http1::post(alone.data(), CHATS, &chat(what, 1)).await;
        assert_eq!(answer.head.status, 200, "{what}: {}", answer.text());

        let body = streamed(what, 1);
        let home = pair.home(&body).await;
        let rule = Rule::next(1, fault);
        pair.workers[home].add_rule(rule).expect("room for a rule");
        let outcome = chat::stream(pair.data(), &body).await;
        assert_eq!(outcome.ending, Ending::Done, "{what}: {outcome:?}");
        assert_eq!(outcome.worker, Some(pair.workers[1 - home].url()), "{what}");
    }
    alone.close().await;
}

/// What becomes of a connection behind an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It stays: a replica that trusts the answer would use it again.
    Stays,
    /// It ends.
    Ends,
}

/// A worker that writes what `answer` gives for each request's bytes. It serves while the second value lives.
async fn worker_that<A: AsRef<[u8]> + Send>(
    answer: impl Fn(&[u8]) -> A + Clone + Send + 'static,
    then: Then,
) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            open.spawn(async move {
                let mut read = vec![0; 16 << 10];
                while let Ok(bytes @ 1..) = stream.read(&mut read).await {
                    let is_taken = stream.write_all(answer(&read[..bytes]).as_ref()).await;
                    // The router may have left.
                    if is_taken.is_err() || then == Then::Ends {
                        return;
                    }
                }
            });
        }
    });
    (url, serving)
}

/// A worker that answers each request with these bytes.
pub(crate) async fn raw_worker(bytes: &'static str) -> (String, JoinSet<()>) {
    worker_that(move |_| bytes, Then::Stays).await
}

/// A worker that answers each request with these bytes, and breaks off behind them.
pub(crate) async fn breaking_worker(bytes: Vec<u8>) -> (String, JoinSet<()>) {
    worker_that(move |_| bytes.clone(), Then::Ends).await
}

/// A worker that answers checks, and every other request with these bytes.
async fn worker_but_for_checks(bytes: &'static str, then: Then) -> (String, JoinSet<()>) {
    const CHECKED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let answer = move |request: &[u8]| match request.starts_with(b"GET") {
        true => CHECKED,
        false => bytes,
    };
    worker_that(answer, then).await
}

/// It breaks off in the middle of each short answer in chunks.
async fn curt_worker() -> (String, JoinSet<()>) {
    let half = "HTTP/1.1 200 OK\r\ncontent-type: Application/JSON\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{\"id\":1\r\n";
    worker_but_for_checks(half, Then::Ends).await
}

/// Of each refusal it sends the head alone.
async fn halting_worker() -> (String, JoinSet<()>) {
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 90\r\n\r\n";
    worker_but_for_checks(head, Then::Stays).await
}

/// Its status says what is to be done, and its body might never come: a plain request has no limit but its worker's life.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_whose_body_does_not_come_is_tried_elsewhere() {
    let (url, _serving) = halting_worker().await;
    let plan = Plan::default()
        .worker(&url, &[MODEL])
        .set("health.interval", "\"1h\"")
        .set("retry.budget", "1.0")
        .set("breaker.enabled", "false");
    let house = House::of(plan, vec![quick()]).await;
    let refused = async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        metrics.sum("grapevine_attempts_total", "result=\"back_pressure\"")
    };
    // As good as surely one of them is for the halting one.
    for chat in chat::distinct(48) {
        let answer = http1::post(house.data(), CHATS, &chat).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        if refused().await > 0.0 {
            return;
        }
    }
    panic!("the halting one was not asked");
}

/// Nothing of a short JSON answer is of use without its end, so nothing of it is passed on before.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_answer_in_chunks_that_breaks_off_is_another_workers() {
    let (url, _serving) = curt_worker().await;
    let plan = Plan::default().worker(&url, &[MODEL]);
    let plan = plan
        .set("health.interval", "\"1h\"")
        .set("breaker.enabled", "false");
    let house = House::of(plan, vec![quick()]).await;
    // As good as surely one of them is for the curt one.
    for chat in chat::distinct(48) {
        let answer = http1::post(house.data(), CHATS, &chat).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let whole: Value = answer.json();
        assert!(whole["choices"].is_array(), "{whole}");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let closed = metrics.sum("grapevine_attempts_total", "result=\"closed\"");
    assert!(closed >= 1.0, "the curt one was asked");
}

/// A client of HTTP/1.0 takes the end of the connection for that of the answer, so the connection must be reset.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_breaks_off_looks_whole_to_no_client() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n40000\r\n";
    // More than a router holds back of an answer.
    let half = [head.as_bytes(), &[b' '; 0x20000]].concat();
    let (url, _serving) = breaking_worker(half).await;
    let plan = Plan::default().worker(&url, &[MODEL]);
    let plan = plan
        .set("health.interval", "\"1h\"")
        .set("breaker.enabled", "false");
    let house = House::with(plan, Vec::new()).await;
    let body = chat("half an answer", 1).to_string();
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    let bytes = String::from_utf8(bytes).expect("text");
    for version in ["HTTP/1.0", "HTTP/1.1"] {
        let bytes = bytes.replacen("HTTP/1.1", version, 1);
        let mut stream = TcpStream::connect(house.data()).await.expect("accepted");
        stream.write_all(bytes.as_bytes()).await.expect("taken");
        let mut read = Vec::new();
        let ended = timeout(LIMIT, stream.read_to_end(&mut read)).await;
        let ended = ended.expect("the connection ends");
        let text = String::from_utf8_lossy(&read);
        assert!(text.contains(" 200 OK\r\n"), "{text:.200}");
        match version {
            "HTTP/1.0" => {
                let error = ended.expect_err("an end without a reset is that of a whole answer");
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            }
            _ => assert!(
                !text.ends_with("0\r\n\r\n"),
                "chunks have an end of their own"
            ),
        }
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    assert_eq!(metrics.sum("grapevine_requests_total", "worker_broke"), 2.0);
}

/// W27: the end of an answer must be beyond doubt (RFC 9112, 6.3), or the bytes after it could be read as
/// another answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_whose_length_is_in_doubt_is_a_502() {
    let chunked = "transfer-encoding: chunked\r\n\r\n5\r\nwrong\r\n0\r\n\r\n";
    let cases = [
        ("length, then chunks", "content-length: 5\r\n", chunked),
        (
            "chunks, then length",
            "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
            "\r\n5\r\nwrong\r\n0\r\n\r\n",
        ),
        (
            "a length in place of chunks",
            "transfer-encoding: chunked\r\ncontent-length: 30\r\n",
            "\r\n{\"wrong\": \"not in chunks\"}     ",
        ),
        (
            "two lengths",
            "content-length: 5\r\ncontent-length: 6\r\n",
            "\r\nwrong!",
        ),
        (
            "two lengths in one",
            "content-length: 5, 6\r\n",
            "\r\nwrong!",
        ),
        (
            "a length with a sign",
            "content-length: +5\r\n",
            "\r\nwrong",
        ),
        (
            "an unknown coding",
            "transfer-encoding: gzip\r\n",
            "\r\nwrong",
        ),
        (
            "chunks within a coding",
            "transfer-encoding: chunked, gzip\r\n",
            "\r\n5\r\nwrong\r\n0\r\n\r\n",
        ),
        (
            "a coding within chunks",
            "transfer-encoding: gzip\r\n",
            chunked,
        ),
        (
            "no coding and chunks",
            "transfer-encoding: identity\r\n",
            chunked,
        ),
        (
            "two codings",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "\r\n5\r\nwrong\r\n0\r\n\r\n",
        ),
        (
            "chunks that are almost so",
            "transfer-encoding: xchunked\r\n",
            "\r\nwrong",
        ),
    ];
    // Each is the only worker of a model of its own.
    let mut plan = Plan::default().set("health.interval", "\"1h\"");
    let (mut models, mut serving) = (Vec::new(), Vec::new());
    for (what, first, rest) in cases {
        for kind in ["application/json", "text/event-stream"] {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: ";
            let bytes = format!("{head}{kind}\r\n{first}{rest}");
            let (url, worker) = raw_worker(bytes.leak()).await;
            let model = format!("{what} as {kind}");
            plan = plan.worker(&url, &[&model]);
            serving.push(worker);
            models.push(model);
        }
    }
    let house = House::with(plan, Vec::new()).await;
    for model in &models {
        for mut body in [chat("well?", 1), streamed("well?", 1)] {
            body["model"] = model.as_str().into();
            let answer = http1::post(house.data(), CHATS, &body).await;
            println!("{model}: {}", answer.text());
            assert_error(&answer, 502, "upstream_failed");
            assert!(!answer.text().contains("wrong"), "{model}");
        }
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let malformed = metrics.sum("grapevine_attempts_total", "result=\"malformed\"");
    assert_eq!(malformed, 2.0 * models.len() as f64, "each was asked once");
}

/// A proxy before an engine that wants a log-in: what it says reaches the client as it is, and somebody is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_in_place_of_an_answer_counts_as_a_failure() {
    let house = House::new(1).await;
    let page = canned(200, &[("content-type", "text/html; charset=utf-8")]);
    let rule = Rule::always(page);
    house.workers[0].add_rule(rule).expect("room for a rule");
    for body in [chat("well?", 1), streamed("well?", 1)] {
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let replica = &house.cluster.replicas[0];
    let metrics = replica.admin().metrics().await;
    let failed = metrics.sum("grapevine_worker_errors_total", "\"failed\"");
    assert_eq!(failed, 2.0);
    // Lines are written behind what they tell of.
    let (line, _) = eventually(LIMIT, "it is in the log", async || {
        let log = replica.log();
        let line = log.lines().find(|line| line.contains("with a web page"));
        line.map(str::to_owned).ok_or(log)
    })
    .await;
    assert!(line.contains(&house.workers[0].url()), "{line}");
    // Nor is it a sign that the engine works: its breaker opens.
    let breaker = async || {
        let admin = replica.admin();
        admin.worker(&house.workers[0].url()).await.breaker
    };
    assert_eq!(breaker().await, "closed");
    for _ in 0..3 {
        http1::post(house.data(), CHATS, &chat("well?", 1)).await;
    }
    assert_eq!(breaker().await, "open");
}

/// Bytes that a worker sends after the end of its answer reach no client, least of all with the next request.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_behind_an_answer_are_no_other_requests_answer() {
    let bytes = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}\
                 HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n\"wrong\"";
    let (url, _serving) = raw_worker(bytes).await;
    let plan = Plan::default().worker(&url, &[MODEL]);
    let plan = plan.set("health.interval", "\"1h\"");
    let house = House::with(plan, Vec::new()).await;
    for number in 0..20 {
        let body = chat(&format!("question {number}"), 1);
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!((answer.head.status, &*answer.body), (200, &b"{}"[..]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_up_to_the_limit_and_some_hints_pass() {
    let house = House::new(1).await;
    let fault = Fault {
        header_bytes: 48 << 10,
        early_hints: 50,
        ..Fault::default()
    };
    for body in [chat("large", 3), streamed("large", 3)] {
        let rule = Rule::next(1, fault.clone());
        house.workers[0].add_rule(rule).expect("room for a rule");
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_tunnels_through_an_upgrade() {
    let house = House::new(1).await;
    let fault = canned(101, &[("connection", "upgrade"), ("upgrade", "websocket")]);
    house.workers[0]
        .add_rule(Rule::always(fault))
        .expect("room for a rule");
    let asked = [("connection", "upgrade"), ("upgrade", "websocket")];
    for path in [CHATS, "/tokenize"] {
        let mut client = Connection::open(house.data()).await;
        let body = chat("tunnel", 1).to_string();
        let bytes = request("POST", path, &asked, body.as_bytes());
        client.send(&bytes).await.expect("taken");
        let answer = client.response().await.expect("answered");
        assert_error(&answer, 502, "upstream_failed");
    }
    let log = house.workers[0].log();
    let upgrades = log.iter().filter_map(|entry| entry.header("upgrade"));
    assert_eq!(upgrades.count(), 0, "nobody is asked for another protocol");
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_answers_pass_unopened() {
    let house = House::new(1).await;
    let bomb = Fault {
        reply: Some(Canned {
            status: 200,
            headers: vec![("content-type".into(), "application/json".into())],
            body: Some(" ".repeat(1 << 20)),
            repeat: 8,
            gzip: true,
        }),
        ..Fault::default()
    };
    house.workers[0]
        .add_rule(Rule::always(bomb))
        .expect("room for a rule");
    let direct = http1::post(house.workers[0].addr(), CHATS, &chat("bomb", 1)).await;
    house.workers[0].reset();
    let before = house.cluster.replicas[0].process().resident_kib();
    for body in [chat("bomb", 1), streamed("bomb", 1)] {
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(answer.head.status, 200);
        assert_eq!(answer.head.header("content-encoding"), Some("gzip"));
        assert!(answer.body == direct.body, "byte for byte");
    }
    let grown = house.cluster.replicas[0]
        .process()
        .resident_kib()
        .saturating_sub(before);
    println!(
        "8 MiB in {} KiB of gzip, twice: resident size grew by {grown} KiB",
        direct.body.len() >> 10
    );
    assert!(grown < 6 << 10, "{grown} KiB: it was opened");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let whole = metrics.sum("grapevine_requests_total", "outcome=\"success\"");
    assert_eq!(whole, 2.0, "a length is as good an end as any");
    house.close().await;
}

/// A refusal whose length is not in its head counts as the same one with a length does.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_unknown_length_is_no_success() {
    let refusal = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
        transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    let (url, _serving) = raw_worker(refusal).await;
    let plan = Plan::default().worker(&url, &[MODEL]);
    let plan = plan.set("health.interval", "\"1h\"");
    let house = House::with(plan, Vec::new()).await;
    let answer = http1::post(house.data(), CHATS, &chat("refused", 1)).await;
    assert_eq!((answer.head.status, &*answer.text()), (400, "{}"));
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let of = |outcome| metrics.sum("grapevine_requests_total", outcome);
    let outcomes = (of("outcome=\"error\""), of("outcome=\"success\""));
    assert_eq!(outcomes, (1.0, 0.0));
    house.close().await;
}
