//! Only known paths and methods, and those that were opened, reach a worker, with the router's key or with a
//! client's. The admin API is never on the data port.

use grapevine_testbed::fake_worker::Config;
use grapevine_tests::chat::{MODEL, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::keys::KeyFile;
use serde_json::{Value, json};

use crate::errors::assert_error;
use crate::house::{House, quick};

/// Control paths of engines, and unknown paths.
const SHUT: [&str; 26] = [
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/pause",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/update_weights",
    "/server_info",
    "/abort_requests",
    "/inference/v1/abort_requests",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/start_profile",
    "/flush_cache",
    "/kv_event_sources",
    "/metrics",
    "/load",
    "/version",
    "/openapi.json",
    "/docs",
    "/no/such/path",
    "/v1/unknown",
    "/v1/files",
    "/v1/chat/completions/",
    "/v1/./completions",
    "/v1/%63hat/completions",
];

/// A worker with a key of its own, and a replica that has it.
async fn keyed(plan: Plan) -> House {
    let config = Config {
        api_key: Some("worker-key".to_owned()),
        models: vec![MODEL.to_owned(), "b".to_owned()],
        ..quick()
    };
    House::of(plan.set("workers.api_key", "\"worker-key\""), vec![config]).await
}

fn assert_untouched(house: &House, what: &str) {
    let log = house.workers[0].log();
    assert!(log.is_empty(), "{what}: a worker saw {log:?}");
    let paths = house.workers[0].stats().paths;
    assert!(!paths.contains_key("other"), "{what}: {paths:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_known_paths_reaches_a_worker() {
    let house = keyed(Plan::default()).await;
    let body = json!({ "model": MODEL, "level": 2 }).to_string();
    for path in SHUT {
        for method in ["GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "FOO"] {
            let answer = http1::exchange(house.data(), method, path, &[], body.as_bytes()).await;
            assert_error(&answer, 404, "not_found");
        }
    }
    assert_untouched(&house, "unknown paths");
    for (method, path, allow) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("PUT", "/v1/responses", "POST"),
        ("PATCH", "/v1/responses/resp_1", "GET, DELETE"),
        ("GET", "/v1/responses/resp_1/cancel", "POST"),
        ("DELETE", "/v1/models/fake-model", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("FOO", "/v1/embeddings", "POST"),
    ] {
        let answer = http1::exchange(house.data(), method, path, &[], body.as_bytes()).await;
        assert_error(&answer, 405, "method_not_allowed");
        assert_eq!(answer.head.header("allow"), Some(allow), "{method} {path}");
    }
    assert_untouched(&house, "wrong methods");
    // Known paths still reach it, with the query as it was written.
    let answer = http1::post(
        house.data(),
        "/tokenize?x=1&y=%20",
        &json!({ "model": MODEL, "prompt": "a" }),
    )
    .await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(house.workers[0].log()[0].path, "/tokenize?x=1&y=%20");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_for_one_model_opens_no_other_door() {
    let mut file = KeyFile::new();
    let bound = file.add("bound", "models = [\"fake-model\"]").await;
    let opened = r#"["POST /v1/load_lora_adapter", "GET /version"]"#;
    let house = keyed(file.plan().set("listen.open_paths", opened)).await;
    let bearer = format!("Bearer {bound}");
    let headers = [("authorization", bearer.as_str())];
    let ask = async |method: &str, path: &str, body: &str| {
        http1::exchange(house.data(), method, path, &headers, body.as_bytes()).await
    };
    for path in SHUT {
        if path == "/v1/load_lora_adapter" || path == "/version" {
            continue;
        }
        assert_error(
            &ask("POST", path, r#"{"model":"fake-model"}"#).await,
            404,
            "not_found",
        );
    }
    // A key with a list of models may send no request without a model, and other models do not exist for it.
    for (method, path, body, status, code) in [
        ("GET", "/version", "", 403, "permission_denied"),
        (
            "POST",
            "/v1/load_lora_adapter",
            r#"{"lora_name":"x"}"#,
            403,
            "permission_denied",
        ),
        (
            "POST",
            "/v1/load_lora_adapter",
            r#"{"model":"b"}"#,
            404,
            "model_not_found",
        ),
        (
            "POST",
            "/tokenize",
            r#"{"prompt":"x"}"#,
            403,
            "permission_denied",
        ),
        (
            "POST",
            "/v1/responses",
            r#"{"input":"x","prompt":{"id":"p"},"model":"b"}"#,
            404,
            "model_not_found",
        ),
    ] {
        assert_error(&ask(method, path, body).await, status, code);
    }
    assert_untouched(&house, "a key for one model");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_opens_further_paths() {
    let opened = r#"["GET /version", "POST /custom/*", "DELETE /custom/*", "POST /sleep"]"#;
    let house = keyed(Plan::default().set("listen.open_paths", opened)).await;
    house
        .until_log_says("listen.open_paths has POST /sleep")
        .await;
    for (method, path) in [
        ("GET", "/version"),
        ("POST", "/custom/a"),
        ("POST", "/custom/a/b"),
        ("DELETE", "/custom/a"),
        ("POST", "/sleep"),
    ] {
        let direct = http1::exchange(house.workers[0].addr(), method, path, &[], b"").await;
        let routed = http1::exchange(house.data(), method, path, &[], b"").await;
        assert_eq!(routed.head.status, direct.head.status, "{method} {path}");
        assert_eq!(routed.body, direct.body, "{method} {path}");
    }
    house.workers[0].reset();
    for path in [
        "/custom",
        "/custom/",
        "/custom/../sleep",
        "/custom/..%2fsleep",
        "/custom//sleep",
        "/custom/./a",
        "/custom\\a",
        "/custom/\\..\\sleep",
        "/customs/a",
    ] {
        let answer = http1::exchange(house.data(), "POST", path, &[], b"{}").await;
        let status = answer.head.status;
        assert!(
            status == 404 || status == 400,
            "{path}: {status} {}",
            answer.text()
        );
    }
    for (method, path, allow) in [
        ("GET", "/sleep", "POST"),
        ("PUT", "/custom/a", "POST, DELETE"),
        ("POST", "/version", "GET"),
    ] {
        let answer = http1::exchange(house.data(), method, path, &[], b"").await;
        assert_error(&answer, 405, "method_not_allowed");
        assert_eq!(answer.head.header("allow"), Some(allow), "{method} {path}");
    }
    // A model in a request to an opened path is looked up as on any other path.
    for (body, status) in [
        (r#"{"model":"nobody"}"#, 404),
        (r#"{"model":7}"#, 400),
        (r#"{"model":"a","model":"b"}"#, 400),
        ("[", 400),
    ] {
        let answer = http1::exchange(house.data(), "POST", "/custom/a", &[], body.as_bytes()).await;
        assert_eq!(answer.head.status, status, "{body}: {}", answer.text());
    }
    assert_untouched(&house, "what was not opened");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_header_names_another_path_or_method() {
    let house = House::new(1).await;
    let headers = [
        ("x-original-url", "/sleep"),
        ("X-Original-URI", "/sleep"),
        ("x-rewrite-url", "/sleep"),
        ("x-http-method-override", "DELETE"),
        ("x-http-method", "DELETE"),
        ("x-method-override", "DELETE"),
        ("x-forwarded-uri", "/sleep"),
        ("x-forwarded-prefix", "/sleep"),
        ("x-envoy-original-path", "/sleep"),
        ("x-kept", "1"),
    ];
    let body = chat("hello", 1).to_string();
    let path = "/v1/chat/completions";
    let answer = http1::exchange(house.data(), "POST", path, &headers, body.as_bytes()).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let log = house.workers[0].log();
    let seen: Vec<String> = log[0]
        .headers
        .iter()
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect();
    let passed = headers
        .iter()
        .filter(|(name, _)| seen.contains(&name.to_ascii_lowercase()));
    let passed: Vec<_> = passed.collect();
    assert_eq!(passed, [&("x-kept", "1")]);
    house.close().await;
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
    // Neither the replica's own metrics nor a worker's are on this port.
    assert_error(&http1::get(host, "/metrics").await, 404, "not_found");

    let mut tunnel = Connection::open(host).await;
    let connect = b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nhost: 127.0.0.1:1\r\n\r\nGET /version HTTP/1.1\r\nhost: a\r\n\r\n";
    tunnel.send(connect).await.expect("taken");
    let answer = tunnel.response().await.expect("answered");
    assert_eq!(answer.head.status, 405, "{}", answer.text());
    assert!(answer.json::<Value>()["error"]["message"].is_string());
    assert!(tunnel.is_closed().await, "nothing follows a refused tunnel");
}
