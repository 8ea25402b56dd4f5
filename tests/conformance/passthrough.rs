//! Paths that the replica does not know go to a worker as they came, and never to the admin API.

use grapevine_tests::chat::MODEL;
use grapevine_tests::http1::{self, Connection};
use serde_json::{Value, json};

use crate::house::House;

#[tokio::test(flavor = "multi_thread")]
async fn other_paths_are_answered_by_a_worker() {
    let house = House::new(2).await;
    let worker = house.workers[0].addr();
    let body = json!({ "model": MODEL, "prompt": "count me" }).to_string();
    for (method, path, body) in [
        ("POST", "/tokenize", body.as_str()),
        ("POST", "/tokenize?x=1&y=%20", body.as_str()),
        ("GET", "/version", ""),
        ("GET", "/version?verbose=1", ""),
        ("GET", "/ping", ""),
        ("GET", "/no/such/path", ""),
        ("DELETE", "/version", ""),
        ("POST", "/v1/unknown", "{}"),
    ] {
        let direct = http1::exchange(worker, method, path, &[], body.as_bytes()).await;
        let routed = http1::exchange(house.data(), method, path, &[], body.as_bytes()).await;
        assert_eq!(routed.head.status, direct.head.status, "{method} {path}");
        assert_eq!(routed.body, direct.body, "{method} {path}");
    }
    let log: Vec<_> = house
        .workers
        .iter()
        .flat_map(|worker| worker.log())
        .collect();
    let paths: Vec<&str> = log.iter().map(|entry| entry.path.as_str()).collect();
    assert!(
        paths.contains(&"/tokenize?x=1&y=%20"),
        "the query is kept: {paths:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_is_not_on_the_data_port() {
    let house = House::new(1).await;
    let host = house.data();
    let mut tricks: Vec<String> = [
        "/workers",
        "/cluster",
        "/ring",
        "/explain",
        "/readyz",
        "/healthz",
        "/list_workers",
        "/add_worker?url=http://127.0.0.1:1",
        "/remove_worker?url=http://127.0.0.1:1",
        "//workers",
        "/./workers",
        "/v1/../workers",
        "/v1/models/../../workers",
        "/%77orkers",
        "/workers/",
        "/WORKERS",
        "/v1/chat/completions/../../../cluster",
        "/v1%2f..%2fcluster",
    ]
    .map(str::to_owned)
    .to_vec();
    tricks.push(format!("http://{host}/workers"));
    for target in tricks {
        for method in ["GET", "POST"] {
            let answer = http1::exchange(host, method, &target, &[], b"").await;
            let text = answer.text();
            assert!(
                answer.head.status >= 400,
                "{method} {target} gave {}: {text}",
                answer.head.status
            );
            for secret in ["digest", "confirmed_by", "in_flight", "urls"] {
                assert!(!text.contains(secret), "{method} {target} gave {text}");
            }
        }
    }
    assert_eq!(house.cluster.replicas[0].admin().ring().await.workers, 1);
    // Metrics of the worker may be asked for; the replica's own are not on this port.
    let metrics = http1::get(host, "/metrics").await.text();
    assert!(
        metrics.contains("vllm:") && !metrics.contains("grapevine_"),
        "{metrics}"
    );

    let mut tunnel = Connection::open(host).await;
    let connect = b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nhost: 127.0.0.1:1\r\n\r\nGET /version HTTP/1.1\r\nhost: a\r\n\r\n";
    tunnel.send(connect).await.expect("taken");
    let answer = tunnel.response().await.expect("answered");
    assert_eq!(answer.head.status, 405, "{}", answer.text());
    assert!(answer.json::<Value>()["error"]["message"].is_string());
    assert!(tunnel.is_closed().await, "nothing follows a refused tunnel");
}
