//! The admin API is for callers with the right token.

use std::net::SocketAddr;

use futures_util::future::join_all;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Response};
use grapevine_tests::process::{self, Process};
use grapevine_tests::wait::{LIMIT, eventually};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::errors::assert_refusal;
use crate::house::{House, quick};

const TOKEN: &str = "right-token-of-the-operator";

#[derive(Deserialize)]
struct Listening {
    data: SocketAddr,
    admin: SocketAddr,
    prometheus: SocketAddr,
}

async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    authorization: Option<&str>,
) -> Response {
    let headers: Vec<(&str, &str)> = authorization
        .map(|value| ("authorization", value))
        .into_iter()
        .collect();
    http1::exchange(address, method, path, &headers, b"").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_takes_its_token_and_nothing_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("log");
    let args = [
        "serve",
        "--port=0",
        "--admin-port=0",
        "--gossip-port=0",
        "--prometheus-port=0",
        "--admin-token",
    ];
    let args: Vec<String> = [&args[..], &[TOKEN]]
        .concat()
        .iter()
        .map(|&arg| arg.to_owned())
        .collect();
    let (process, at): (_, Listening) = Process::start(&args, &log).await;

    let wrong = format!("Bearer {}x", &TOKEN[..TOKEN.len() - 1]);
    let prefix = format!("Bearer {}", &TOKEN[..5]);
    let longer = format!("Bearer {TOKEN}x");
    let lower = format!("bearer{TOKEN}");
    let basic = format!("Basic {TOKEN}");
    let refused = [
        None,
        Some(""),
        Some("Bearer "),
        Some(TOKEN),
        Some(&wrong),
        Some(&prefix),
        Some(&longer),
        Some(&lower),
        Some(&basic),
    ];
    let right = format!("Bearer {TOKEN}");
    let worker = "http://127.0.0.1:1";
    let with_token = format!("/workers?token={TOKEN}");
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/cluster"),
        ("GET", "/ring"),
        ("GET", "/workers"),
        ("GET", "/list_workers"),
        ("GET", "/nothing-here"),
        ("GET", "/healthz/"),
        ("POST", "/workers"),
        ("POST", "/explain"),
        ("POST", &format!("/add_worker?url={worker}")),
        ("POST", &format!("/remove_worker?url={worker}")),
        ("DELETE", "/workers/x"),
        ("PATCH", "/workers/x"),
        ("POST", "/workers/x/drain"),
        ("GET", &with_token),
    ] {
        for authorization in refused {
            let answer = ask(at.admin, method, path, authorization).await;
            assert_refusal(&answer, 401, "unauthorized");
        }
        // The data port and the Prometheus port serve none of it, with or without a token.
        for authorization in [None, Some(right.as_str())] {
            if path != "/metrics" {
                let answer = ask(at.prometheus, method, path, authorization).await;
                assert_refusal(&answer, 404, "not_found");
            }
            let answer = ask(at.data, method, path, authorization).await;
            assert!(
                answer.head.status >= 400,
                "{method} {path} on the data port: {}",
                answer.text()
            );
        }
    }
    for path in ["/metrics", "/cluster", "/ring", "/workers", "/list_workers"] {
        assert_eq!(
            ask(at.admin, "GET", path, Some(&right)).await.head.status,
            200,
            "{path}"
        );
    }
    for (method, path, allow) in [
        ("GET", "/config/reload", "POST"),
        ("GET", "/workers/x/drain", "POST"),
        ("PUT", "/workers", "GET, HEAD, POST"),
        ("POST", "/workers/x", "GET, HEAD, PATCH, DELETE"),
        ("DELETE", "/events", "GET, HEAD"),
        ("GET", "/leases/x", "PUT, DELETE"),
        ("PUT", "/page/explain", "GET, HEAD, POST"),
        ("DELETE", "/", "GET, HEAD"),
    ] {
        let answer = ask(at.admin, method, path, Some(&right)).await;
        assert_refusal(&answer, 405, "method_not_allowed");
        assert_eq!(answer.head.header("allow"), Some(allow), "{method} {path}");
    }
    // Probes carry no token and get nothing else.
    assert_eq!(ask(at.admin, "GET", "/healthz", None).await.text(), "ok\n");
    let ready = ask(at.admin, "GET", "/readyz", None).await;
    let ready: Value = ready.json();
    assert!(["ready", "not ready"].contains(&ready["status"].as_str().expect("a status")));
    assert!(!ready.to_string().contains(worker), "{ready}");
    assert_eq!(
        ask(at.prometheus, "GET", "/metrics", None)
            .await
            .head
            .status,
        200
    );
    let listed = ask(at.admin, "GET", "/list_workers", Some(&right)).await;
    assert!(!listed.text().contains(worker), "{}", listed.text());
    eventually(LIMIT, "who came without the token", async || {
        let log = process.log();
        let is_told = log.contains("a caller of the admin port has no token, or a wrong one");
        let is_named = log.contains("client=127.0.0.1:");
        (is_told && is_named).then_some(()).ok_or(log)
    })
    .await;
    assert!(!process.log().contains(TOKEN), "{}", process.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_the_admin_api_stays_on_loopback() {
    let open = ["serve", "--check", "--admin-host", "0.0.0.0"];
    let done = process::run(&open).await;
    assert_ne!(done.code, Some(0));
    assert!(done.text.contains("a token is required"), "{}", done.text);
    let done = process::run(&[&open[..], &["--admin-token", TOKEN]].concat()).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert!(!done.text.contains(TOKEN), "{}", done.text);
    let done = process::run(&["serve", "--check", "--admin-token", "not printable: \u{e9}"]).await;
    assert_ne!(done.code, Some(0));
    assert!(!done.text.contains("not printable"), "{}", done.text);
    let done = process::run(&["serve", "--print-config"]).await;
    assert!(done.text.contains("token") && !done.text.contains(TOKEN));
}

/// As its operator knows it, whatever it is called.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_found_by_its_address_where_no_other_has_it() {
    let house = House::of(Plan::default(), vec![quick()]).await;
    let admin = house.cluster.replicas[0].admin().0;
    let add = async |id: &str| {
        let body = json!({ "url": "http://127.0.0.1:9", "id": id }).to_string();
        let added = http1::exchange(admin, "POST", "/workers", &[], body.as_bytes()).await;
        assert_eq!(added.head.status, 201, "{}", added.text());
    };
    let remove = async |name: &str| {
        let path = format!("/workers/{name}");
        let removed = http1::exchange(admin, "DELETE", &path, &[], b"").await;
        removed.head.status
    };
    let address = "http%3A%2F%2F127.0.0.1%3A9";
    add("gpu-7").await;
    add("gpu-8").await;
    assert_eq!(remove(address).await, 404, "two have it");
    assert_eq!(remove("gpu-8").await, 200);
    assert_eq!(remove(address).await, 200);
    assert_eq!(remove("gpu-7").await, 404, "it is gone");
    add("gpu-9").await;
    let path = format!("/remove_worker?url={address}");
    let removed = http1::exchange(admin, "POST", &path, &[], b"").await;
    assert_eq!(removed.head.status, 200, "{}", removed.text());
    assert_eq!(remove("gpu-9").await, 404, "it is gone");
    house.close().await;
}

/// What describes a worker anew takes the word from its sources, which can then take nothing back.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_details_keeps_a_drain_by_hand_and_makes_none_of_a_sources() {
    let house = House::of(Plan::default(), vec![quick()]).await;
    let admin = house.cluster.replicas[0].admin().0;
    let ask = async |method: &str, path: &str, body: Value| {
        let body = body.to_string();
        let answer = http1::exchange(admin, method, path, &[], body.as_bytes()).await;
        assert_eq!(
            answer.head.status,
            200,
            "{method} {path}: {}",
            answer.text()
        );
        let shown: Value = http1::get(admin, "/workers/w").await.json();
        let state = shown["state"].as_str().expect("a state").to_owned();
        (state, shown["drained"] == true)
    };
    let url = "http://127.0.0.1:9";
    let lease = async |state: &str| {
        let body = json!({ "url": url, "state": state });
        ask("PUT", "/leases/w", body).await
    };
    let (active, draining) = (("active".to_owned(), false), ("draining".to_owned(), false));
    let by_hand = ("draining".to_owned(), true);
    assert_eq!(lease("active").await, active);
    assert_eq!(lease("draining").await, draining);
    ask("PATCH", "/workers/w", json!({ "weight": 2.0 })).await;
    assert_eq!(lease("active").await, active);

    let drain = ask("PATCH", "/workers/w", json!({ "state": "draining" })).await;
    assert_eq!(drain, by_hand);
    let weight = ask("PATCH", "/workers/w", json!({ "weight": 3.0 })).await;
    assert_eq!(weight, by_hand);
    assert_eq!(lease("active").await, by_hand);
    let both = json!({ "weight": 1.0, "state": "active" });
    assert_eq!(ask("PATCH", "/workers/w", both).await, active);
    house.close().await;
}

/// Left out in silence, two owners of one worker were never noticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_whose_caller_cannot_be_told_apart_is_refused() {
    let house = House::of(Plan::default(), vec![quick()]).await;
    let admin = house.cluster.replicas[0].admin().0;
    let body = json!({ "url": "http://127.0.0.1:9" }).to_string();
    let renew = async |query: String| {
        let path = format!("/leases/w?{query}");
        http1::exchange(admin, "PUT", &path, &[], body.as_bytes()).await
    };
    let refused = [
        ("process", format!("process={}&number=1", "p".repeat(65))),
        ("number", "process=p&number=abc".to_owned()),
    ];
    for (param, query) in refused {
        let answer = renew(query).await;
        assert_eq!(answer.head.status, 400, "{}", answer.text());
        assert_eq!(answer.json::<Value>()["error"]["param"], param);
    }
    let shown = http1::get(admin, "/workers/w").await;
    assert_eq!(shown.head.status, 404, "nothing was registered");
    let longest = renew(format!("process={}&number=1", "p".repeat(64))).await;
    assert_eq!(longest.head.status, 200, "{}", longest.text());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_one_worker_at_once_are_all_made() {
    let house = House::of(Plan::default(), vec![quick()]).await;
    let admin = house.cluster.replicas[0].admin();
    admin.add_cold("w", "http://127.0.0.1:9", &[]).await;
    for round in 2..12 {
        let (weight, zone) = (f64::from(round), format!("zone-{round}"));
        let parts = [
            json!({ "weight": weight }),
            json!({ "zone": zone }),
            json!({ "max_in_flight": round }),
            json!({ "labels": { "a": zone } }),
        ];
        let changes = parts.iter().map(|part| admin.change("w", part));
        join_all(changes).await;
        let shown: Value = http1::get(admin.0, "/workers/w").await.json();
        let all = [
            &shown["weight"],
            &shown["zone"],
            &shown["max_in_flight"],
            &shown["labels"]["a"],
        ];
        let wanted = [json!(weight), json!(zone), json!(round), json!(zone)];
        assert_eq!(all, wanted.each_ref());
    }
    house.close().await;
}

/// As in a JSON merge patch: what was limited once can be without a limit again.
#[tokio::test(flavor = "multi_thread")]
async fn null_takes_away_what_a_worker_may_be_without() {
    let house = House::of(Plan::default(), vec![quick()]).await;
    let admin = house.cluster.replicas[0].admin().0;
    let body = json!({ "url": "http://127.0.0.1:9", "id": "w", "zone": "a" }).to_string();
    let added = http1::exchange(admin, "POST", "/workers", &[], body.as_bytes()).await;
    assert_eq!(added.head.status, 201, "{}", added.text());
    let change = async |body: &str| {
        let answer = http1::exchange(admin, "PATCH", "/workers/w", &[], body.as_bytes()).await;
        let shown = http1::get(admin, "/workers/w").await;
        let shown: Value = shown.json();
        let limits = (shown["max_in_flight"].as_u64(), shown["zone"].is_null());
        (answer.head.status, limits)
    };
    let limited = change(r#"{"max_in_flight":3}"#).await;
    assert_eq!(limited, (200, (Some(3), false)));
    let refused = change(r#"{"max_in_flight":null,"weight":null}"#).await;
    assert_eq!(refused, (400, (Some(3), false)), "all or nothing");
    let without = change(r#"{"max_in_flight":null}"#).await;
    assert_eq!(without, (200, (None, false)));
    let without = change(r#"{"zone":null}"#).await;
    assert_eq!(without, (200, (None, true)));
    house.close().await;
}
