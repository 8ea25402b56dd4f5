//! Whose a stored response is, at every replica.

use std::time::Duration;

use grapevine_tests::chat::{self, MODEL};
use grapevine_tests::cluster::Replica;
use grapevine_tests::http1::{self, Response};
use grapevine_tests::invariants;
use grapevine_tests::keys::KeyFile;
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

async fn ask(replica: &Replica, key: &str, method: &str, path: &str, body: &Value) -> Response {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str())];
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    http1::exchange(replica.data(), method, path, &headers, body.as_bytes()).await
}

/// The code of an error, and the field that it is about.
fn error_of(answer: &Response) -> (u16, Value, Value) {
    let mut error = answer.json::<Value>()["error"].take();
    (
        answer.head.status,
        error["code"].take(),
        error["param"].take(),
    )
}

/// Nothing but its id says whose a response is: no replica remembers any, and one has started anew since.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_its_tenants_at_every_replica_and_after_a_restart() {
    let mut file = KeyFile::new();
    let own = file.add("own", "tenant = \"a\"").await;
    let foreign = file.add("foreign", "tenant = \"b\"").await;
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(1))).await;
    let plan = file.plan().workers(&workers);
    let plan = plan.set("limits.response_ids", "0");
    let plan = plan.set("model", r#"[{ name = "alias", targets = ["fake-model"] }]"#);
    let mut cluster = plan.start(2).await;
    let mut ids = Vec::new();
    for (model, stream) in [(MODEL, false), ("alias", false), (MODEL, true)] {
        let body = json!({ "model": model, "input": "whose is it?", "max_output_tokens": 3, "stream": stream });
        let made = ask(&cluster.replicas[0], &own, "POST", PATH, &body).await;
        let text = made.text();
        assert_eq!(made.head.status, 200, "{text}");
        let begins = r#""id":"resp_g1"#;
        let (_, rest) = text.split_once(begins).unwrap_or_else(|| panic!("{text}"));
        let rest = rest.split('"').next().expect("its end");
        ids.push(format!("resp_g1{rest}"));
    }
    assert!(cluster.replicas[0].terminate().await.success());
    cluster.replicas[0].start().await;
    cluster.settled().await;
    let next = |id: &str| json!({ "model": MODEL, "input": "and then?", "max_output_tokens": 1, "previous_response_id": id });
    let nothing = Value::Null;
    for id in &ids {
        let path = format!("{PATH}/{id}");
        let cancel = format!("{path}/cancel");
        let next = next(id);
        let mut taken = next.clone();
        taken["previous_response_id"].take();
        // It would take its place at the worker.
        taken["request_id"] = id.as_str().into();
        for replica in &cluster.replicas {
            for (method, path, body) in [
                ("GET", path.as_str(), &nothing),
                ("DELETE", &path, &nothing),
                ("POST", &cancel, &nothing),
                ("POST", PATH, &next),
            ] {
                let answer = ask(replica, &foreign, method, path, body).await;
                let (status, code, _) = error_of(&answer);
                assert_eq!((status, code), (404, "not_found".into()), "{method} {path}");
            }
            let answer = ask(replica, &foreign, "POST", PATH, &taken).await;
            let (status, _, param) = error_of(&answer);
            assert_eq!((status, param), (400, "request_id".into()));
            for (method, path, body) in [("GET", path.as_str(), &nothing), ("POST", PATH, &next)] {
                let answer = ask(replica, &own, method, path, body).await;
                assert_eq!(
                    answer.head.status,
                    200,
                    "{method} {path}: {}",
                    answer.text()
                );
            }
        }
    }
    invariants::hold(&cluster, &workers, &[]).await;
}
