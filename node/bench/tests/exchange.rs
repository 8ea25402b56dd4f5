//! What the client reports of good and bad replies.

use std::time::Duration;

use grapevine_bench::client::{Ask, Client, Complaint, Failure, Spread, Unreached, tls};
use grapevine_testbed::fake_worker::{Config, FakeWorker, Fault, How, Point, Rule};
use hyper::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

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
            if stream { 3 } else { 0 },
            "4 tokens; a role and usage are none"
        );
        assert!(outcome.first_event <= outcome.first_token);
        assert!(outcome.first_token.unwrap_or_default() <= outcome.latency);
    }
    assert_eq!(worker.stats().connections, 1);
}

/// As behind a firewall that drops: nobody refuses, and nobody answers.
#[tokio::test]
async fn who_is_not_connected_within_the_limit_is_no_slow_answer() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket
        .bind(([127, 0, 0, 1], 0).into())
        .expect("a free port");
    let full = socket.listen(1).expect("it listens");
    let addr = full.local_addr().expect("bound");
    let short = Duration::from_millis(200);
    let mut held = Vec::new();
    while let Ok(connected) = timeout(short, TcpStream::connect(addr)).await {
        held.push(connected.expect("there is room"));
        assert!(held.len() < 1_000, "the backlog ends");
    }
    let client = Client::one(format!("http://{addr}").parse().expect("URL"));
    let outcome = client.exchange(&ask(false), short).await;
    assert_eq!(outcome.failure, Some(Failure::Connect));
    let said = outcome.complaint.expect("why").message;
    assert_eq!(said, "no connection within 200ms");
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
        (
            Fault::stop(Point::Event(2), How::Stall),
            Failure::Timeout,
            true,
        ),
    ] {
        worker.add_rule(Rule::next(1, fault)).expect("room");
        let limit = if failure == Failure::Timeout {
            Duration::from_millis(200)
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

/// Answers one connection, of which it reads the head alone.
async fn answers_early(listener: TcpListener, answer: &'static str) {
    let (mut stream, _) = listener.accept().await.expect("a client");
    let mut head = [0; 1_000];
    let read = stream.read(&mut head).await.expect("a request");
    assert!(read > 0);
    stream.write_all(answer.as_bytes()).await.expect("sent");
    // Unread bytes of the body make this a reset.
    drop(stream);
}

#[tokio::test]
async fn an_answer_before_the_end_of_a_large_body_is_read_although_writing_fails() {
    const ANSWER: &str = "HTTP/1.1 413 Payload Too Large\r\ncontent-length: 50\r\nconnection: close\r\n\r\n\
                          {\"error\":{\"message\":\"much\",\"code\":\"body_too_big\"}}";
    for _ in 0..20 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let client = Client::one(url.parse().expect("URL"));
        let large = Ask {
            body: vec![b' '; 32 << 20].into(),
            ..ask(true)
        };
        let answered = tokio::spawn(answers_early(listener, ANSWER));
        let outcome = client.exchange(&large, LIMIT).await;
        answered.await.expect("answered");
        assert_eq!(outcome.failure, Some(Failure::Status(413)));
        let said = outcome.complaint.expect("a body");
        assert_eq!(
            (said.code.as_str(), said.message.as_str()),
            ("body_too_big", "much")
        );
    }
}

#[tokio::test]
async fn a_key_is_sent_and_never_shown_also_where_the_endpoint_repeats_it() {
    let (worker, client) = worker().await;
    let client = client.with_token("sk-hush").expect("a key");
    let body = r#"{"error":{"message":"wrong key: sk-hush","code":"invalid_api_key"}}"#;
    let reply = json!({"fault": {"reply": {"status": 401, "body": body}}});
    worker
        .add_rule(serde_json::from_value(reply).expect("a rule"))
        .expect("room");
    let outcome = client.exchange(&ask(true), LIMIT).await;
    let expected = Complaint {
        code: "invalid_api_key".into(),
        message: "wrong key: (the key)".into(),
    };
    assert_eq!(outcome.complaint, Some(expected));
    let log = worker.log();
    let sent = &log.last().expect("one request").headers;
    let sent = sent.iter().find(|(name, _)| name == "authorization");
    assert_eq!(sent.expect("sent").1, "Bearer sk-hush");
}

#[tokio::test]
async fn the_code_of_an_error_event_shows_no_key_and_commands_no_terminal() {
    let (worker, client) = worker().await;
    // Cut to 40 characters first, this key would no longer be found.
    let key = format!("sk-{}", "hush".repeat(12));
    let client = client.with_token(&key).expect("a key");
    for (code, shown) in [
        (key.clone(), "(the key)".to_owned()),
        ("a\u{1b}[2Jb".to_owned(), "a\u{fffd}[2Jb".to_owned()),
        ("long ".repeat(20), "long ".repeat(8)),
    ] {
        let event = json!({"error": {"code": code, "message": format!("no {code}")}});
        let reply = json!({"status": 200, "headers": [["content-type", "text/event-stream"]],
            "body": format!("data: {event}\n\ndata: [DONE]\n\n")});
        let rule = json!({"times": 1, "fault": {"reply": reply}});
        worker
            .add_rule(serde_json::from_value(rule).expect("a rule"))
            .expect("room");
        let outcome = client.exchange(&ask(true), LIMIT).await;
        let said = outcome.complaint.expect("an error");
        assert_eq!(said.code, shown);
        assert!(!said.message.contains("hush") && !said.message.contains('\u{1b}'));
        assert_eq!(outcome.failure, Some(Failure::ErrorEvent(shown)));
    }
}

#[tokio::test]
async fn an_error_names_the_url_that_was_asked() {
    let (one, other) = (worker().await.0, worker().await.0);
    let urls = [one.url(), other.url()];
    let targets = urls.iter().map(|url| url.parse().expect("URL"));
    let client = Client::new(targets.collect(), Spread::RoundRobin).expect("two");
    one.kill().await;
    other.kill().await;
    for url in &urls {
        let error = client.text(Method::GET, "/v1/models", "", LIMIT).await;
        let error = error.expect_err("nobody is there");
        assert!(error.downcast_ref::<Unreached>().is_some(), "{error:#}");
        let address = url.strip_prefix("http://").expect("a URL");
        assert!(format!("{error:#}").contains(address), "{error:#}");
    }
}

#[tokio::test]
async fn a_plain_reply_that_is_no_answer_is_a_failure() {
    let (worker, client) = worker().await;
    let reply = json!({"fault": {"reply": {"status": 200, "body": "<html>"}}});
    worker
        .add_rule(serde_json::from_value(reply).expect("a rule"))
        .expect("room");
    let outcome = client.exchange(&ask(false), LIMIT).await;
    assert_eq!(outcome.failure, Some(Failure::NoAnswer));
}

/// TLS in front of a worker, for connections that come one after the other.
async fn encrypted(worker: &FakeWorker) -> (std::net::SocketAddr, String) {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a name");
    let key = rustls::pki_types::PrivateKeyDer::try_from(signed.signing_key.serialize_der());
    let provider = rustls::crypto::ring::default_provider();
    let config = rustls::ServerConfig::builder_with_provider(std::sync::Arc::new(provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key.expect("a key"))
        .expect("a pair");
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let behind = worker.addr();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut inside) = acceptor.accept(stream).await else {
                continue;
            };
            let mut worker = TcpStream::connect(behind).await.expect("it listens");
            // It ends with the connection, in whatever way.
            let _ = tokio::io::copy_bidirectional(&mut inside, &mut worker).await;
        }
    });
    (address, signed.cert.pem())
}

#[tokio::test]
async fn https_is_spoken_with_those_whom_the_authorities_name() {
    let (worker, _) = worker().await;
    let (address, pem) = encrypted(&worker).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, pem).expect("written");
    let config = tls(Some(&file)).expect("a certificate");
    let client = |url: String| Client::one(url.parse().expect("URL")).with_tls(&config);

    let named = client(format!("https://localhost:{}/v1", address.port()));
    let outcome = named.exchange(&ask(true), LIMIT).await;
    assert_eq!((outcome.failure, outcome.gaps.len()), (None, 3));
    drop(named);

    let other = client(format!("https://{address}"));
    let outcome = other.exchange(&ask(true), LIMIT).await;
    assert_eq!(outcome.failure, Some(Failure::Connect));
    let why = outcome.complaint.expect("a cause").message;
    assert!(why.starts_with("TLS: "), "{why}");
}
