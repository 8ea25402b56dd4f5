//! The headers that pass the replica, in each direction.

use std::collections::BTreeSet;

use grapevine_testbed::fake_worker::{Canned, Entry};
use grapevine_tests::chat::{MODEL, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Response};

use crate::house::{House, quick};
use crate::http2;

async fn ask(house: &House, headers: &[(&str, &str)]) -> Response {
    let body = chat("headers", 1).to_string();
    let path = "/v1/chat/completions";
    http1::exchange(house.data(), "POST", path, headers, body.as_bytes()).await
}

fn last_seen(house: &House) -> Entry {
    let log = house.workers[0].log();
    log.last().expect("the worker was asked").clone()
}

fn values<'a>(entry: &'a Entry, name: &str) -> Vec<&'a str> {
    let named = entry
        .headers
        .iter()
        .filter(|(n, _)| n.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.as_str()).collect()
}

/// Without it each request of this policy goes to the next worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_may_be_named_by_a_header_of_the_configuration() {
    let plan = Plan::default()
        .set("cluster.policy", "\"sticky\"")
        .set("cluster.session_headers", r#"["session-id", "thread-id"]"#);
    let house = House::of(plan, vec![quick(); 3]).await;
    for _ in 0..6 {
        let answer = ask(&house, &[("session-id", ""), ("thread-id", "t")]).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    let asked = house
        .workers
        .iter()
        .filter(|worker| !worker.log().is_empty());
    assert_eq!(asked.count(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_has_one_id_at_client_and_worker() {
    let house = House::new(1).await;
    let long = "a".repeat(128);
    let too_long = "a".repeat(129);
    for (name, id, kept) in [
        ("x-request-id", "client.id_1-2", true),
        ("x-request-id", long.as_str(), true),
        ("x-correlation-id", "from-elsewhere", true),
        ("x-request-id", too_long.as_str(), false),
        ("x-request-id", "two words", false),
        ("x-request-id", "quote\"", false),
        ("x-request-id", "\u{1b}[31mred", false),
        ("x-request-id", "caf\u{e9}", false),
        ("x-request-id", "", false),
    ] {
        // ESC is not valid in a header: refused before the id is checked.
        let answer = ask(&house, &[(name, id)]).await;
        if id.contains('\u{1b}') {
            assert_eq!(answer.head.status, 400);
            continue;
        }
        let returned = answer.head.header("x-request-id").expect("always there");
        assert_eq!(returned == id, kept, "{id:?} -> {returned:?}");
        assert_eq!(values(&last_seen(&house), "x-request-id"), [returned]);
        let valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        assert!(returned.chars().all(valid), "{returned:?}");
    }
    let made: BTreeSet<String> = {
        let mut made = BTreeSet::new();
        for _ in 0..20 {
            let answer = ask(&house, &[]).await;
            let id = answer.head.header("x-request-id").expect("always there");
            made.insert(id.to_owned());
        }
        made
    };
    assert_eq!(made.len(), 20, "an id is made for each request");
    let refused = http1::exchange(
        house.data(),
        "POST",
        "/v1/chat/completions",
        &[("x-request-id", "bad-body")],
        b"{",
    )
    .await;
    assert_eq!(refused.head.status, 400);
    assert_eq!(refused.head.header("x-request-id"), Some("bad-body"));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_end_to_end_headers_reach_the_worker() {
    let house = House::new(1).await;
    let answer = ask(
        &house,
        &[
            ("authorization", "Bearer client-key"),
            ("accept", "application/json"),
            ("user-agent", "OpenAI/Python"),
            ("x-stainless-lang", "python"),
            ("x-session-id", "s-1"),
            (
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ),
            ("connection", "keep-alive, x-hop-secret"),
            ("x-hop-secret", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "Basic eDp5"),
            ("proxy-connection", "keep-alive"),
            ("x-grapevine-explain", "1"),
            ("x-grapevine-worker", "http://127.0.0.1:1"),
            ("X-Grapevine-Anything", "1"),
        ],
    )
    .await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let seen = last_seen(&house);
    for (name, value) in [
        ("authorization", "Bearer client-key"),
        ("accept", "application/json"),
        ("user-agent", "OpenAI/Python"),
        ("x-stainless-lang", "python"),
        ("x-session-id", "s-1"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("content-type", "application/json"),
    ] {
        assert_eq!(values(&seen, name), [value], "{name}");
    }
    for name in [
        "x-hop-secret",
        "keep-alive",
        "te",
        "upgrade",
        "proxy-authorization",
        "proxy-connection",
        "x-grapevine-explain",
        "x-grapevine-worker",
        "x-grapevine-anything",
    ] {
        assert!(values(&seen, name).is_empty(), "{name} reached the worker");
    }
    let worker = house.workers[0].addr().to_string();
    assert_eq!(values(&seen, "host"), [worker.as_str()]);
    assert_eq!(values(&seen, "content-length").len(), 1);

    let doubled = [("authorization", "Bearer a"), ("authorization", "Bearer b")];
    let before = house.workers[0].log().len();
    let answer = ask(&house, &doubled).await;
    assert_eq!(answer.head.status, 400, "{}", answer.text());
    assert_eq!(house.workers[0].log().len(), before, "reached the worker");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_end_to_end_headers_reach_the_client() {
    let house = House::new(1).await;
    let headers = [
        ("content-type", "application/json"),
        ("x-model-version", "7"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-authenticate", "Basic"),
        ("upgrade", "h2c"),
    ];
    let reply = Canned {
        status: 200,
        headers: headers.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec(),
        body: Some("{\"from\":\"worker\"}".to_owned()),
        repeat: 1,
        gzip: false,
    };
    house.reply_next(reply);
    let answer = ask(&house, &[]).await;
    assert_eq!(answer.text(), "{\"from\":\"worker\"}");
    assert_eq!(answer.head.header("x-model-version"), Some("7"));
    let cookies = answer
        .head
        .headers
        .iter()
        .filter(|(name, _)| name == "set-cookie");
    assert_eq!(cookies.count(), 2, "both arrive");
    for name in [
        "connection",
        "x-hop",
        "keep-alive",
        "proxy-authenticate",
        "upgrade",
    ] {
        assert_eq!(answer.head.header(name), None, "{name} reached the client");
    }
    let internal = |head: &http1::Head| {
        let names = head.headers.iter().map(|(name, _)| name.clone());
        names
            .filter(|name| name.starts_with("x-grapevine-"))
            .collect::<BTreeSet<_>>()
    };
    assert!(internal(&answer.head).is_empty());

    let explained = ask(&house, &[("x-grapevine-explain", "1")]).await;
    let names = ["digest", "expected-tokens", "reason", "replica", "worker"]
        .map(|n| format!("x-grapevine-{n}"));
    assert_eq!(internal(&explained.head), BTreeSet::from(names));
    assert_eq!(
        explained.head.header("x-grapevine-worker"),
        Some(house.workers[0].url().as_str())
    );
    assert_eq!(explained.head.header("x-grapevine-replica"), Some("r1"));
    let ring = house.cluster.replicas[0].admin().ring().await;
    assert_eq!(
        explained.head.header("x-grapevine-digest"),
        Some(ring.digest.as_str())
    );
    assert_eq!(ring.pools[0].model, MODEL);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_request_comes_from_is_what_its_connection_says() {
    let spoofed = [
        ("x-forwarded-for", "192.0.2.1"),
        ("X-Forwarded-For", "192.0.2.2"),
        ("x-forwarded-host", "evil.test"),
        ("x-forwarded-proto", "https"),
        ("forwarded", "for=192.0.2.3"),
        ("x-real-ip", "192.0.2.4"),
    ];
    let house = House::new(1).await;
    ask(&house, &spoofed).await;
    let seen = last_seen(&house);
    assert_eq!(values(&seen, "x-forwarded-for"), ["127.0.0.1"]);
    for (name, _) in &spoofed[2..] {
        assert!(values(&seen, name).is_empty(), "{name} was believed");
    }
    // The connection's address is the replica's word, and not the client's to drop.
    ask(&house, &[("connection", "x-forwarded-for, close")]).await;
    let seen = last_seen(&house);
    assert_eq!(values(&seen, "x-forwarded-for"), ["127.0.0.1"]);
    house.close().await;

    let plan = Plan::default().set("listen.trusted_proxies", r#"["10.0.0.0/8", "127.0.0.1"]"#);
    let house = House::of(plan, vec![quick()]).await;
    ask(&house, &spoofed).await;
    let seen = last_seen(&house);
    let chain = "192.0.2.1, 192.0.2.2, 127.0.0.1";
    assert_eq!(values(&seen, "x-forwarded-for"), [chain]);
    for (name, value) in &spoofed[2..] {
        assert_eq!(values(&seen, name), [*value], "{name}");
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cookies_of_a_client_over_http2_reach_the_worker_in_one_line() {
    let house = House::new(1).await;
    let url = format!("http://{}/v1/chat/completions", house.data());
    let request = http2::client().post(url).json(&chat("cookies", 1));
    let request = request.header("cookie", "a=1").header("cookie", "b=2; c=3");
    let answer = request.send().await.expect("answered");
    assert_eq!(answer.version(), reqwest::Version::HTTP_2);
    assert_eq!(answer.status().as_u16(), 200);
    assert_eq!(values(&last_seen(&house), "cookie"), ["a=1; b=2; c=3"]);
    house.close().await;
}

/// Events are read on their way; a worker that compressed them would hide its errors in them.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_asked_for_uncompressed_whatever_its_client_takes() {
    let house = House::new(1).await;
    let takes = [("accept-encoding", "gzip, br")];
    for (body, headers, expected) in [
        (chat("plain", 1), &takes[..], &["gzip, br"][..]),
        (chat("plain", 1), &[], &[]),
        (streamed("a stream", 1), &takes, &["identity"]),
        (streamed("a stream", 1), &[], &["identity"]),
    ] {
        let (data, body) = (house.data(), body.to_string());
        let path = "/v1/chat/completions";
        let answer = http1::exchange(data, "POST", path, headers, body.as_bytes()).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        assert_eq!(values(&last_seen(&house), "accept-encoding"), expected);
    }
    house.close().await;
}
