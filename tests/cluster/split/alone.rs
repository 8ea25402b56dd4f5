//! Requests that cannot be divided, or need not be: who answers them, and what their clients learn.

use grapevine_testbed::fake_worker::{FakeWorker, Fault, Role};
use grapevine_tests::chat::{MODEL, distinct};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use serde_json::{Value, json};

use super::scene::{CHATS, Member, Scene, always, halves, next, scene, seen, short};

const COMPLETIONS: &str = "/v1/completions";

/// A chat with these fields in place of its own.
fn chat_with(fields: &Value) -> Value {
    merged(short(distinct(1).swap_remove(0)), fields)
}

fn completion_with(fields: &Value) -> Value {
    merged(
        json!({ "model": MODEL, "prompt": "Once upon", "max_tokens": 3 }),
        fields,
    )
}

fn merged(mut body: Value, fields: &Value) -> Value {
    let fields = fields.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

/// Why a request cannot be divided, and one.
fn indivisible() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("choices", CHATS, chat_with(&json!({ "n": 2 }))),
        ("choices", COMPLETIONS, completion_with(&json!({ "n": 3 }))),
        (
            "best_of",
            COMPLETIONS,
            completion_with(&json!({ "best_of": 2 })),
        ),
        (
            "beam_search",
            CHATS,
            chat_with(&json!({ "use_beam_search": true })),
        ),
        (
            "echo",
            COMPLETIONS,
            completion_with(&json!({ "echo": true })),
        ),
        (
            "prompt_logprobs",
            CHATS,
            chat_with(&json!({ "prompt_logprobs": 1 })),
        ),
        (
            "several_prompts",
            COMPLETIONS,
            completion_with(&json!({ "prompt": ["one", "two"] })),
        ),
        (
            "forced_tool",
            CHATS,
            chat_with(&json!({ "tools": [tool()], "tool_choice": "required" })),
        ),
        (
            "forced_tool",
            "/v1/messages",
            json!({
                "model": MODEL, "max_tokens": 3, "messages": [{ "role": "user", "content": "Hello" }],
                "tools": [{ "name": "f", "input_schema": { "type": "object" } }], "tool_choice": { "type": "any" },
            }),
        ),
        (
            "several_prompts",
            "/v1/chat/completions/batch",
            json!({ "model": MODEL, "max_tokens": 3, "messages": [[{ "role": "user", "content": "Hello" }]] }),
        ),
        ("invocations", "/invocations", chat_with(&json!({}))),
    ]
}

fn tool() -> Value {
    json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } })
}

/// Requests that generate nothing.
fn not_generated() -> Vec<(&'static str, Value)> {
    vec![
        (
            "/v1/embeddings",
            json!({ "model": MODEL, "input": "a text" }),
        ),
        ("/tokenize", json!({ "model": MODEL, "prompt": "a text" })),
    ]
}

/// One worker answers everything that cannot be divided, as it would by itself.
async fn all_at(scene: &Scene, worker: &FakeWorker, way: impl Fn(&'static str) -> &'static str) {
    let one = Member::new(Role::Both).start().await;
    for (why, path, body) in indivisible() {
        let before = scene.ways(way(why)).await;
        let expected = http1::post(one.addr(), path, &body).await.head.status;
        let answer = scene.ask_at(0, path, &body).await;
        assert_eq!(answer.status(), expected, "{why}: {answer:?}");
        assert_eq!(answer.pair(), (None, Some(&*worker.url())), "{why}");
        assert_eq!(scene.ways(way(why)).await, before + 1.0, "{why}");
    }
    for (path, body) in not_generated() {
        let answer = scene.ask_at(0, path, &body).await.good();
        assert_eq!(answer.pair(), (None, Some(&*worker.url())), "{path}");
    }
    let generated_nothing = scene.ways("not_generated").await;
    assert_eq!(generated_nothing, not_generated().len() as f64);
    assert_eq!(seen(&scene.prefill()), 0);
    scene.ends().await;
}

fn never() -> Plan {
    Plan::default().set("transfer.decode_alone", "\"never\"")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_divided_goes_to_a_worker_of_whole_requests() {
    let members = [halves(1, 1), vec![Member::new(Role::Both)]].concat();
    // It needs no leave to be alone.
    let scene = scene(never(), 1, &members).await;
    let whole = scene.of(Role::Both)[0];
    all_at(&scene, whole, |_| "whole").await;
    assert_eq!(seen(&scene.decode()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_such_a_worker_decode_answers_alone() {
    let scene = scene(Plan::default(), 1, &halves(1, 1)).await;
    let decode = scene.decode()[0];
    all_at(&scene, decode, |why| why).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_decode_must_never_be_alone_it_is_refused_with_the_reason() {
    let scene = scene(never(), 1, &halves(1, 1)).await;
    for (why, path, body) in indivisible() {
        let answer = scene.ask_at(0, path, &body).await;
        assert_eq!(answer.status(), 400, "{why}: {answer:?}");
        let message = answer.body["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("cannot be divided"), "{why}: {message}");
    }
    assert_eq!(seen(&scene.workers.iter().collect::<Vec<_>>()), 0);
    for (path, body) in not_generated() {
        scene.ask_at(0, path, &body).await.good();
    }
    assert_eq!(seen(&scene.prefill()), 0, "a decode worker has them");
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_must_not_say_itself_where_blocks_are() {
    let members = [halves(1, 1), vec![Member::new(Role::Both)]].concat();
    let scene = scene(Plan::default(), 1, &members).await;
    let steering = [
        json!({ "kv_transfer_params": { "do_remote_prefill": true } }),
        json!({ "kv_transfer_params": {} }),
        json!({ "bootstrap_host": "10.0.0.1" }),
        json!({ "bootstrap_port": 8998 }),
        json!({ "bootstrap_room": 1 }),
        json!({ "vllm_xargs": { "kv_transfer_params": "{}" } }),
    ];
    for fields in &steering {
        for (path, body) in [
            (CHATS, chat_with(fields)),
            (COMPLETIONS, completion_with(fields)),
        ] {
            let answer = scene.ask_at(0, path, &body).await;
            assert_eq!(answer.status(), 400, "{fields}: {answer:?}");
            assert_eq!(answer.body["error"]["param"], "kv_transfer_params");
        }
    }
    assert_eq!(seen(&scene.workers.iter().collect::<Vec<_>>()), 0);
    let nothing = chat_with(&json!({ "kv_transfer_params": null }));
    scene.ask(&nothing).await.good();
    scene.ends().await;
}

/// The decode worker that has nearly all of a prompt fails: what is short for it is not short for another one, and it is
/// not asked again.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_to_compute_is_asked_anew_for_another_worker() {
    for status in [500, 503] {
        let plan = Plan::default().set("transfer.short_prompt_tokens", "60");
        let scene = scene(plan, 1, &halves(1, 2)).await;
        let long = chat_with(&json!({}));
        let holder = scene
            .ask(&long)
            .await
            .good()
            .pair()
            .1
            .expect("one of the two")
            .to_owned();
        let decode = scene.decode();
        let found = decode.iter().find(|worker| worker.url() == holder);
        let holding = found.expect("one of the two");
        next(holding, Fault::status(status));
        let ways = async || (scene.ways("alone_short").await, scene.ways("pair").await);
        let (before, (alone, pairs)) = (seen(&[holding]), ways().await);
        let again = scene.ask(&long).await.good();
        let (prefill, answered) = again.pair();
        assert!(prefill.is_some(), "{status}: {again:?}");
        assert_ne!(answered, Some(&*holder), "{status}: {again:?}");
        assert_eq!(seen(&[holding]), before + 1, "{status}: asked once");
        assert_eq!(ways().await, (alone, pairs + 1.0), "{status}");
        scene.ends().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_prompt_is_not_worth_a_transfer() {
    let plan = Plan::default().set("transfer.short_prompt_tokens", "60");
    let scene = scene(plan, 1, &halves(1, 2)).await;
    let brief = grapevine_tests::chat::chat("Hello", 3);
    let answer = scene.ask(&brief).await.good();
    assert_eq!(answer.pair().0, None, "{answer:?}");
    let long = chat_with(&json!({}));
    let first = scene.ask(&long).await.good();
    assert!(first.pair().0.is_some(), "{first:?}");
    // What is left to compute of it is as short.
    let again = scene.ask(&long).await.good();
    assert_eq!(again.pair(), (None, first.pair().1));
    let ways = (scene.ways("alone_short").await, scene.ways("pair").await);
    assert_eq!(ways, (2.0, 1.0));
    scene.ends().await;
}

/// Some requests fail in every engine: one client's must not eject all workers for everybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_everywhere_ejects_no_worker_that_had_all_of_it() {
    let plan = Plan::default().set("transfer.short_prompt_tokens", "60");
    let plan = plan.set("retry.initial_backoff", "\"1ms\"");
    let scene = scene(plan, 1, &halves(1, 2)).await;
    for worker in scene.decode() {
        always(worker, Fault::status(500));
    }
    for number in 0..30 {
        let brief = grapevine_tests::chat::chat(&format!("Hello {number}"), 3);
        assert_eq!(scene.ask(&brief).await.status(), 500);
    }
    let admin = scene.cluster.replicas[0].admin();
    let known = admin.workers().await;
    let closed = known.iter().all(|worker| worker.breaker == "closed");
    assert!(closed, "{known:?}");
    let faults = scene.metric(0, "grapevine_request_faults_total", "").await;
    assert!(faults > 0.0, "{faults}");
}
