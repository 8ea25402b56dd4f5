//! Both legs are sent at once, as for SGLang: the decode worker waits for blocks that the prefill worker may never compute.

use grapevine_testbed::fake_worker::{Canned, Connector, FakeWorker, Fault, KvFault, Leg, Role};
use grapevine_tests::chat::{self, Ending};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use super::scene::{Member, Scene, as_stream, legs, next, scene, short};

/// One replica, so many prefill workers, one decode worker, and a chat for the first prefill worker.
async fn with_chat(prefill: usize, member: impl Fn(Role) -> Member) -> (Scene, Value) {
    let mut members = vec![member(Role::Prefill); prefill];
    members.push(member(Role::Decode));
    let scene = scene(Plan::default(), 1, &members).await;
    scene.talks().await;
    let chat = scene.prompts_at(scene.prefill()[0]).await.swap_remove(0);
    (scene, chat)
}

/// A stream whose first event is an error, as an engine writes it that has no room: the 200 was there before.
fn refused_in_its_first_event() -> Fault {
    let error = json!({ "error": { "message": "the queue is full", "code": 503 } });
    Fault {
        reply: Some(Canned {
            status: 200,
            headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
            body: Some(format!("data: {error}\n\ndata: [DONE]\n\n")),
            repeat: 1,
            gzip: false,
        }),
        ..Fault::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_prompt_is_refused_in_its_first_event_is_computed_elsewhere() {
    let (scene, chat) = with_chat(2, Member::at_once).await;
    let [first, second] = [0, 1].map(|at| scene.prefill()[at]);
    next(first, refused_in_its_first_event());
    let outcome = chat::stream(scene.data(0), &as_stream(&chat, 5)).await;
    assert!(matches!(outcome.ending, Ending::Done), "{outcome:?}");
    let asked = |worker: &FakeWorker| worker.log().len();
    assert_eq!((asked(first), legs(second, Leg::Prefill).len()), (1, 1));
    let failures = "grapevine_transfer_failures_total";
    assert_eq!(scene.metric(0, failures, "").await, 0.0);
    is_logged(&scene, 2).await;
    scene.ends().await;
}

/// The line of the only request says that it took so many attempts.
async fn is_logged(scene: &Scene, attempts: usize) {
    eventually(LIMIT, "its line", async || {
        let log = scene.cluster.replicas[0].log();
        let mut lines = log.lines();
        let line = lines.find(|line| line.contains("grapevine::access"));
        let said = line.map(|line| line.contains(&format!("attempts={attempts} ")));
        said.unwrap_or_default().then_some(()).ok_or(log)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_left_where_the_answer_fails_after_the_prompt_was_computed() {
    // Its prefill workers answer when they have computed, and push the blocks to whoever takes them.
    let pushes = |role| {
        let member = Member::new(role).connector(Connector::NixlPush);
        member.line("labels = { \"kv.mode\" = \"push\" }")
    };
    let (scene, chat) = with_chat(1, pushes).await;
    // What the decode worker is told of it is learned from its first answer.
    scene
        .ask(&short(chat::distinct(1).swap_remove(0)))
        .await
        .good();
    eventually(LIMIT, "its engine's id", async || {
        let admin = scene.cluster.replicas[0].admin();
        let shown = http1::get(admin.0, "/workers").await.text();
        shown.contains("kv.engine_id").then_some(()).ok_or(shown)
    })
    .await;
    // Long after the prompt.
    let late = Fault {
        delay_ms: 8_000,
        ..Fault::status(500)
    };
    next(scene.decode()[0], late);
    let asked = short(chat);
    tokio::join!(scene.ask(&asked), async {
        let computed = "grapevine_prefill_leg_seconds_count";
        scene.metric_is(0, computed, "", 2.0).await;
        assert_eq!(scene.decode()[0].log().len(), 2, "it has not answered");
        let left = "grapevine_prefill_blocks_left_total";
        assert_eq!(scene.metric(0, left, "").await, 0.0);
    });
    let left = "grapevine_prefill_blocks_left_total";
    scene.metric_is(0, left, "", 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_does_not_end_with_the_worker_of_its_prompt() {
    let (scene, chat) = with_chat(1, Member::at_once).await;
    next(scene.prefill()[0], Fault::kv(KvFault::HangComputed));
    let outcome = chat::stream(scene.data(0), &as_stream(&chat, 5)).await;
    assert!(matches!(outcome.ending, Ending::Done), "{outcome:?}");
    let answer = scene.decode()[0].log();
    assert_eq!((answer.len(), scene.prefill()[0].log().len()), (1, 1));
    is_logged(&scene, 1).await;
    scene.ends().await;
}

/// Whatever the worker of the prompt says too late: what it computed is known to be there.
#[tokio::test(flavor = "multi_thread")]
async fn a_good_answer_proves_that_its_prompt_was_computed() {
    let (scene, chat) = with_chat(1, Member::at_once).await;
    let (prefill, chat) = (scene.prefill()[0], short(chat));
    next(prefill, Fault::kv(KvFault::HangComputed));
    scene.ask(&chat).await.good();
    scene.ask(&chat).await.good();
    let label = format!("worker=\"{}\"", prefill.url());
    eventually(LIMIT, "it was expected there", async || {
        let expected = scene
            .metric(0, "grapevine_expected_tokens_total", &label)
            .await;
        so(expected > 0.0, || format!("{expected} tokens"))
    })
    .await;
    scene.ends().await;
}
