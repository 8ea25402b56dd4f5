//! Anthropic's messages are divided as chats are.

use grapevine_testbed::fake_worker::{Fault, KvFault, Leg, Role};
use grapevine_tests::chat::MODEL;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use serde_json::{Value, json};

use super::scene::{Member, always, halves, legs, scene, seen};

const MESSAGES: &str = "/v1/messages";

/// Messages that nobody has seen under this number.
fn message(number: usize) -> Value {
    json!({
        "model": MODEL, "max_tokens": 6, "system": "You are brief.",
        "messages": [{ "role": "user", "content": format!("tell me story number {number} ").repeat(30) }],
    })
}

/// The text of an answer, plain or streamed.
fn said(answer: &str) -> String {
    let events = answer
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let deltas: Vec<Value> = events
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    if deltas.is_empty() {
        let whole: Value = serde_json::from_str(answer).expect("JSON");
        return whole["content"][0]["text"]
            .as_str()
            .expect("a text")
            .to_owned();
    }
    let last = deltas.last().map(|last| last["type"].clone());
    assert_eq!(last, Some("message_stop".into()), "{answer}");
    let texts = deltas
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str());
    texts.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_divided_and_answered_as_by_one_worker() {
    let one = Member::new(Role::Both).start().await;
    let scene = scene(Plan::default(), 1, &halves(2, 2)).await;
    for number in 0..4 {
        let mut body = message(number);
        if number % 2 == 1 {
            body["stream"] = true.into();
        }
        let expected = said(&http1::post(one.addr(), MESSAGES, &body).await.text());
        let answer = scene.ask_at(0, MESSAGES, &body).await.good();
        assert_eq!(said(&answer.response.text()), expected);
        assert!(!expected.is_empty(), "it says something");
        assert!(answer.pair().0.is_some(), "{:?}", answer.response.head);
    }
    assert_eq!(scene.ways("pair").await, 4.0);
    let of_leg = |workers: Vec<_>, leg| {
        let workers: Vec<&grapevine_testbed::fake_worker::FakeWorker> = workers;
        workers
            .iter()
            .flat_map(|worker| legs(worker, leg))
            .collect::<Vec<_>>()
    };
    let prefills = of_leg(scene.prefill(), Leg::Prefill);
    let decodes = of_leg(scene.decode(), Leg::Decode);
    assert_eq!((prefills.len(), decodes.len()), (4, 4));
    assert!(prefills.iter().all(|leg| leg.tokens == 1), "{prefills:?}");
    assert!(
        decodes.iter().all(|leg| leg.external_tokens > 0),
        "the blocks travelled: {decodes:?}"
    );
    scene.ends().await;
}

/// Engines before vLLM 0.32: found out soon, without a request that fails or a retry that is paid.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_engines_that_do_not_say_where_their_kv_is() {
    let scene = scene(Plan::default(), 1, &halves(2, 2)).await;
    for worker in scene.prefill() {
        always(worker, Fault::kv(KvFault::NoParams));
    }
    for number in 0..20 {
        scene.ask_at(0, MESSAGES, &message(number)).await.good();
    }
    let answers = seen(&scene.prefill());
    // One answer shows nothing; three of one worker do.
    assert!((3..=5).contains(&answers), "{answers}");
    assert_eq!(scene.ways("messages").await, 20.0);
    assert_eq!(scene.ways("pair").await, 0.0);
}
