//! Requests that a web page can make a browser send to the admin and Prometheus ports change nothing and show
//! nothing.

use std::net::SocketAddr;

use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{Connection, Response};
use grapevine_tests::process::{self, Process};
use serde::Deserialize;
use serde_json::Value;

use crate::errors::assert_refusal;
use crate::house::House;

const WORKER: &str = r#"{"url":"http://127.0.0.1:9","models":["m"]}"#;
const TOKEN: &str = "a-token-of-the-operator";

/// Sends exactly this head and body, `\n` for a line end.
async fn raw(address: SocketAddr, head: &str, body: &str) -> Response {
    let mut connection = Connection::open(address).await;
    let mut bytes = head.replace('\n', "\r\n");
    if !body.is_empty() {
        bytes.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    let bytes = [bytes.as_bytes(), b"\r\n", body.as_bytes()].concat();
    connection.send(&bytes).await.expect("the request is taken");
    connection.response().await.expect("an answer")
}

/// Requests that a page of another site can cause, with the reason that is counted.
fn attacks(own: SocketAddr) -> Vec<(&'static str, String, &'static str)> {
    let add = "POST /add_worker?url=http%3A%2F%2F127.0.0.1%3A9 HTTP/1.1";
    let post = "POST /workers HTTP/1.1";
    let form = "content-type: application/x-www-form-urlencoded";
    let evil = "origin: http://attacker.example";
    vec![
        // A form, and `fetch` without a permission.
        ("origin", format!("{add}\nhost: {own}\n{evil}\n"), ""),
        ("origin", format!("{add}\nhost: {own}\norigin: null\n"), ""),
        (
            "origin",
            format!("{post}\nhost: {own}\n{evil}\ncontent-type: text/plain\n"),
            WORKER,
        ),
        (
            "origin",
            format!("DELETE /workers/x HTTP/1.1\nhost: {own}\norigin: http://localhost:3000\n"),
            "",
        ),
        (
            "cross_site",
            format!("{add}\nhost: {own}\nsec-fetch-site: cross-site\n{form}\n"),
            "",
        ),
        (
            "cross_site",
            format!("{add}\nhost: localhost\nsec-fetch-site: same-site\n"),
            "",
        ),
        // An old browser, which sends neither.
        (
            "content_type",
            format!("{add}\nhost: {own}\n{form}\n"),
            "a=b",
        ),
        (
            "content_type",
            format!("{post}\nhost: {own}\ncontent-type: text/plain\n"),
            WORKER,
        ),
        ("content_type", format!("{post}\nhost: {own}\n"), WORKER),
        (
            "content_type",
            format!("PATCH /workers/x HTTP/1.1\nhost: {own}\n{form}\n"),
            WORKER,
        ),
        (
            "content_type",
            format!("POST /explain HTTP/1.1\nhost: {own}\ncontent-type: text/plain\n"),
            "{}",
        ),
        // A name of the page's own that resolves to loopback by now: everything is of one origin.
        (
            "host",
            format!(
                "{post}\nhost: attacker.example:30001\norigin: http://attacker.example:30001\nsec-fetch-site: same-origin\ncontent-type: application/json\n"
            ),
            WORKER,
        ),
        ("host", format!("{add}\nhost: attacker.example\n"), ""),
        (
            "host",
            format!("{add}\nhost: 127.0.0.1.attacker.example\n"),
            "",
        ),
        (
            "host",
            format!(
                "POST http://attacker.example/workers HTTP/1.1\nhost: {own}\ncontent-type: application/json\n"
            ),
            WORKER,
        ),
        // Pages that could be read that way.
        (
            "host",
            "GET /workers HTTP/1.1\nhost: attacker.example\n".to_owned(),
            "",
        ),
        (
            "host",
            "GET /cluster HTTP/1.1\nhost: attacker.example\n".to_owned(),
            "",
        ),
        (
            "host",
            "GET /metrics HTTP/1.1\nhost: attacker.example\n".to_owned(),
            "",
        ),
        (
            "origin",
            format!("GET /workers HTTP/1.1\nhost: {own}\n{evil}\n"),
            "",
        ),
        (
            "cross_site",
            format!("GET /metrics HTTP/1.1\nhost: {own}\nsec-fetch-site: cross-site\n"),
            "",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_changes_and_sees_nothing() {
    let plan = Plan::default().set("admin.allowed_hosts", "[\"ops.example\"]");
    let house = House::of(plan, vec![crate::house::quick()]).await;
    let admin = house.cluster.replicas[0].admin();
    let own = admin.0;
    let before = admin.ring().await;
    let mut counted = std::collections::BTreeMap::<&str, f64>::new();
    for (reason, head, body) in attacks(own) {
        let answer = raw(own, &head, body).await;
        assert_eq!(answer.head.status, 403, "{head}: {}", answer.text());
        let error = assert_refusal(&answer, 403, "permission_denied");
        let said = error["message"].as_str().expect("a message");
        let hint = match reason {
            "content_type" => "application/json",
            "cross_site" => "another site",
            _ => "admin.allowed_hosts",
        };
        assert!(said.contains(hint), "{head}: {said}");
        *counted.entry(reason).or_default() += 1.0;
        assert_eq!(admin.ring().await, before, "{head}");
    }
    let metrics = admin.metrics().await;
    for (reason, times) in counted {
        let label = format!("reason=\"{reason}\"");
        let found = metrics.sum("grapevine_admin_refusals_total", &label);
        assert_eq!(found, times, "{reason}");
    }
    // A page of its own, a listed name behind a proxy, and clients that are no browsers.
    for head in [
        format!("GET /workers HTTP/1.1\nhost: {own}\nsec-fetch-site: none\n"),
        format!(
            "GET /workers HTTP/1.1\nhost: {own}\nsec-fetch-site: same-origin\norigin: http://{own}\n"
        ),
        "GET /workers HTTP/1.1\nhost: ops.example\norigin: https://ops.example\n".to_owned(),
        "GET /workers HTTP/1.1\nhost: localhost:1\n".to_owned(),
        "GET /readyz HTTP/1.1\nhost: a-balancer\n".to_owned(),
        "GET /healthz HTTP/1.0\n".to_owned(),
    ] {
        let answer = raw(own, &head, "").await;
        assert_ne!(answer.head.status, 403, "{head}: {}", answer.text());
    }
    let json = "Application/JSON; charset=utf-8";
    let head = format!("POST /workers?warmup=false HTTP/1.1\nhost: {own}\ncontent-type: {json}\n");
    let answer = raw(own, &head, WORKER).await;
    assert_eq!(answer.head.status, 201, "{}", answer.text());
    let added: Value = answer.json();
    admin.remove(added["id"].as_str().expect("an id")).await;
    house.close().await;
}

#[derive(Deserialize)]
struct Listening {
    admin: SocketAddr,
    prometheus: SocketAddr,
}

async fn start(host: &str, dir: &tempfile::TempDir) -> (Process, Listening) {
    let args = [
        "serve",
        "--port=0",
        "--admin-port=0",
        "--gossip-port=0",
        "--prometheus-port=0",
        "--admin-token",
        TOKEN,
        "--admin-host",
        host,
        "--prometheus-host",
        host,
    ];
    let log = dir.path().join(format!("{host}.log"));
    Process::start(&args.map(str::to_owned), &log).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_proves_more_than_a_name_and_no_page_has_one() {
    let dir = tempfile::tempdir().expect("a folder");
    for host in ["127.0.0.1", "0.0.0.0"] {
        let (_process, at) = start(host, &dir).await;
        let local = |address: SocketAddr| SocketAddr::from(([127, 0, 0, 1], address.port()));
        let (admin, metrics) = (local(at.admin), local(at.prometheus));
        let get = "GET /workers HTTP/1.1\nhost: router-1:30001\n";
        for scheme in ["Bearer", "bearer", "BEARER", "Bearer "] {
            let head = format!("{get}authorization: {scheme} {TOKEN}\n");
            assert_eq!(raw(admin, &head, "").await.head.status, 200, "{head}");
        }
        assert_refusal(&raw(admin, get, "").await, 401, "unauthorized");
        // Even a page that has the token may not send across sites.
        for page in [
            "origin: http://attacker.example",
            "sec-fetch-site: cross-site",
        ] {
            let head = format!("{get}{page}\nauthorization: Bearer {TOKEN}\n");
            assert_refusal(&raw(admin, &head, "").await, 403, "permission_denied");
        }
        // The Prometheus port has no token: on loopback the host name is checked, and elsewhere any client
        // may read.
        let named = raw(metrics, "GET /metrics HTTP/1.1\nhost: router-1:29000\n", "").await;
        let expected = if host == "127.0.0.1" { 403 } else { 200 };
        assert_eq!(named.head.status, expected, "{host}: {}", named.text());
        let own = raw(
            metrics,
            &format!("GET /metrics HTTP/1.1\nhost: {metrics}\n"),
            "",
        )
        .await;
        assert_eq!(own.head.status, 200, "{}", own.text());
        let page =
            format!("GET /metrics HTTP/1.1\nhost: {metrics}\norigin: http://attacker.example\n");
        assert_refusal(&raw(metrics, &page, "").await, 403, "permission_denied");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_loopback_a_token_is_long() {
    let check = async |host: &str, token: &str| {
        let args = [
            "serve",
            "--check",
            "--admin-host",
            host,
            "--admin-token",
            token,
        ];
        process::run(&args).await
    };
    let short = check("0.0.0.0", "fifteen-letters").await;
    assert_eq!(short.code, Some(2), "{}", short.text);
    assert!(
        short.text.contains("at least 16 characters"),
        "{}",
        short.text
    );
    assert!(!short.text.contains("fifteen-letters"), "{}", short.text);
    for (host, token) in [("0.0.0.0", "sixteen--letters"), ("127.0.0.1", "short")] {
        let done = check(host, token).await;
        assert_eq!(done.code, Some(0), "{host}: {}", done.text);
    }
}
