//! Clients that say themselves where the KV of a prompt is, to workers that take whole requests (`transfer.from_clients`).

use grapevine_testbed::fake_worker::FakeWorker;
use grapevine_tests::chat::{CHATS, MODEL, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use serde_json::{Value, json};

use crate::errors::assert_error;
use crate::house::{House, quick};

const OPENED: &str = "/v1/custom";

fn plan() -> Plan {
    Plan::default().set("listen.open_paths", r#"["POST /v1/custom"]"#)
}

/// A request of each form, with these fields in its body.
fn requests(fields: &Value) -> Vec<(&'static str, Value)> {
    let messages = json!([{ "role": "user", "content": "kv_transfer_params" }]);
    let bodies = [
        (CHATS, json!({ "messages": messages })),
        ("/v1/messages", json!({ "messages": messages })),
        ("/v1/completions", json!({ "prompt": "a text" })),
        ("/v1/responses", json!({ "input": "a text" })),
        ("/v1/embeddings", json!({ "input": "a text" })),
        ("/inference/v1/generate", json!({ "token_ids": [1, 2, 3] })),
        (OPENED, json!({})),
    ];
    let with = |(path, mut body): (&'static str, Value)| {
        let of = body.as_object_mut().expect("an object");
        of.insert("model".to_owned(), MODEL.into());
        of.insert("max_tokens".to_owned(), 2.into());
        of.extend(fields.as_object().expect("an object").clone());
        (path, body)
    };
    bodies.into_iter().map(with).collect()
}

/// What says where blocks are, in the words of engines.
fn places() -> Vec<Value> {
    vec![
        json!({ "kv_transfer_params": {
            "do_remote_prefill": true, "remote_host": "10.0.0.9", "remote_port": 5600, "remote_block_ids": [1, 2],
        } }),
        json!({ "kv_transfer_params": { "do_remote_decode": true } }),
        json!({ "kv_transfer_params": { "lmcache.ttl": 60, "disagg_spec": { "receiver_host": "10.0.0.9" } } }),
        json!({ "ec_transfer_params": {} }),
        json!({ "bootstrap_host": "10.0.0.9", "bootstrap_room": 7 }),
        json!({ "vllm_xargs": { "kv_transfer_params": { "remote_host": "10.0.0.9" } } }),
        json!({ "sampling_params": { "extra_args": { "kv_transfer_params": { "remote_host": "10.0.0.9" } } } }),
        json!({ "request_id": "a___prefill_addr_10.0.0.9:1___decode_addr_10.0.0.9:2" }),
    ]
}

fn hints() -> Vec<Value> {
    vec![
        json!({ "kv_transfer_params": { "lmcache.tag.user": "a", "lmcache.ttl": 60 } }),
        json!({ "kv_transfer_params": null }),
        json!({ "vllm_xargs": { "a": "1" } }),
    ]
}

/// Bytes of the bodies that a worker got from clients.
fn got(worker: &FakeWorker) -> Vec<u64> {
    let log = worker.log();
    let of_clients = log.iter().filter(|entry| entry.method == "POST");
    of_clients.map(|entry| entry.body_bytes).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_says_where_blocks_are() {
    let house = House::of(plan(), vec![quick()]).await;
    let admin = house.cluster.replicas[0].admin();
    for fields in places() {
        for (path, body) in requests(&fields) {
            let answer = http1::post(house.data(), path, &body).await;
            if path == "/v1/messages" {
                assert_eq!(answer.head.status, 400, "{}", answer.text());
                continue;
            }
            let error = assert_error(&answer, 400, "invalid_request");
            assert_eq!(error["param"], "kv_transfer_params", "{error}");
            let message = error["message"].as_str().unwrap_or_default();
            assert!(message.contains("transfer.from_clients"), "{message}");
        }
        let (_, body) = requests(&fields).swap_remove(0);
        let explained = http1::post(admin.0, "/explain", &body).await;
        assert_eq!(explained.head.status, 400, "{}", explained.text());
    }
    let named = (
        "x-request-id",
        "a___prefill_addr_10.0.0.9:1___decode_addr_10.0.0.9:2",
    );
    let body = chat("by its id", 1).to_string();
    let answer = http1::exchange(house.data(), "POST", CHATS, &[named], body.as_bytes()).await;
    assert_error(&answer, 400, "invalid_request");
    assert_eq!(got(&house.workers[0]), [0_u64; 0]);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_names_no_place_passes() {
    let house = House::of(plan(), vec![quick()]).await;
    let mut sent = Vec::new();
    for fields in hints() {
        for (path, body) in requests(&fields) {
            let answer = http1::post(house.data(), path, &body).await;
            assert_ne!(answer.head.status, 400, "{path}: {}", answer.text());
            sent.push(body.to_string().len() as u64);
        }
    }
    assert_eq!(got(&house.workers[0]), sent);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_may_say_it_are_passed_on_as_they_are() {
    let house = House::of(plan().set("transfer.from_clients", "true"), vec![quick()]).await;
    let mut sent = Vec::new();
    for fields in places() {
        let (path, body) = requests(&fields).swap_remove(0);
        let answer = http1::post(house.data(), path, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        sent.push(body.to_string().len() as u64);
    }
    assert_eq!(got(&house.workers[0]), sent);
    house.close().await;
}
