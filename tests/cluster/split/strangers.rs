//! What people did with prefill and decode workers who had read the documents alone.

use grapevine_testbed::fake_worker::{Role, StopMode};
use grapevine_tests::admin::Explained;
use grapevine_tests::chat::{MODEL, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use super::scene::{Member, Scene, halves, scene, seen};

const RESPONSES: &str = "/v1/responses";

async fn explained(scene: &Scene, chat: &Value) -> Explained {
    let admin = scene.cluster.replicas[0].admin().0;
    http1::post(admin, "/explain?path=/v1/chat/completions", chat)
        .await
        .json()
}

/// The engine's answer to a response does not say where its KV is: found out soon, without a request that fails, a
/// retry that is paid, or a prompt that counts as left.
#[tokio::test(flavor = "multi_thread")]
async fn responses_of_an_engine_that_does_not_say_where_their_kv_is() {
    let scene = scene(Plan::default(), 1, &halves(2, 2)).await;
    for number in 0..40 {
        let input = format!("tell me story number {number} ").repeat(20);
        let body = json!({ "model": MODEL, "input": input, "max_output_tokens": 3 });
        scene.ask_at(0, RESPONSES, &body).await.good();
    }
    let answers = seen(&scene.prefill());
    // One answer shows nothing; three of one worker do.
    assert!((3..=5).contains(&answers), "{answers}");
    assert_eq!(scene.ways("responses").await, 40.0);
    let left = "grapevine_prefill_blocks_left_total";
    assert_eq!(scene.metric(0, left, "").await, 0.0);
    scene.ends().await;
}

/// The commonest mistake: engines that were started without a connector.
#[tokio::test(flavor = "multi_thread")]
async fn workers_without_a_connector_are_named_as_the_reason() {
    let bare = |role| {
        let mut member = Member::new(role);
        member.config.transfer = None;
        member
    };
    let members = [bare(Role::Prefill), bare(Role::Decode)];
    let scene = scene(Plan::default(), 1, &members).await;
    let answer = scene.ask(&chat(&"a long story ".repeat(40), 3)).await;
    assert_eq!(answer.status(), 502, "{answer:?}");
    let message = answer.body["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("do not say where the KV"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_prompt_needs_no_prefill_worker() {
    let plan = Plan::default().set("transfer.short_prompt_tokens", "60");
    let scene = scene(plan, 1, &halves(1, 1)).await;
    let admin = scene.cluster.replicas[0].admin();
    admin.remove(&scene.prefill()[0].url()).await;
    let brief = chat("Hello", 3);
    eventually(LIMIT, "the worker is gone", async || {
        let long = scene.ask(&chat(&"a long story ".repeat(40), 3)).await;
        so(long.status() == 503, || format!("{long:?}"))
    })
    .await;
    let answer = scene.ask(&brief).await.good();
    assert_eq!(answer.pair().0, None);
    assert_eq!(explained(&scene, &brief).await.prefill, None);
}

/// A model whose only decode worker is gone is known, and says what it lacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_with_prefill_workers_alone_says_so() {
    let scene = scene(Plan::default(), 1, &halves(1, 1)).await;
    let admin = scene.cluster.replicas[0].admin();
    admin.remove(&scene.decode()[0].url()).await;
    eventually(LIMIT, "it says what it lacks", async || {
        let answer = scene.ask(&chat("Hello", 3)).await;
        let message = answer.body["error"]["message"].to_string();
        (answer.status() == 503 && message.contains("add a decode worker"))
            .then_some(())
            .ok_or(message)
    })
    .await;
}

/// `explain` takes the way that a request takes, also where that is no pair.
#[tokio::test(flavor = "multi_thread")]
async fn explain_knows_what_is_not_divided() {
    let plan = Plan::default().set("transfer.short_prompt_tokens", "60");
    let members = [halves(1, 1), vec![Member::new(Role::Both)]].concat();
    let scene = scene(plan, 1, &members).await;
    let whole = scene.of(Role::Both)[0].url();
    let brief = chat("Hello", 3);
    let found = explained(&scene, &brief).await;
    assert_eq!((found.worker, found.prefill), (Some(whole.clone()), None));
    let answer = scene.ask(&brief).await.good();
    assert_eq!(answer.pair(), (None, Some(&*whole)));
    let long = chat(&"a long story ".repeat(40), 3);
    let found = explained(&scene, &long).await;
    let prefill = found.prefill.and_then(|prefill| prefill.worker);
    let decode = scene.decode()[0].url();
    assert_eq!(
        (prefill, found.worker),
        (Some(scene.prefill()[0].url()), Some(decode))
    );
}

/// A drain of the last worker of whole requests, or its death, is no outage where another one can decode alone.
#[tokio::test(flavor = "multi_thread")]
async fn while_no_whole_worker_can_be_used_the_model_is_as_if_it_had_none() {
    let members = [halves(1, 1), vec![Member::new(Role::Both)]].concat();
    let scene = scene(Plan::default(), 1, &members).await;
    let (whole, decode) = (scene.of(Role::Both)[0], scene.decode()[0].url());
    let mut two = chat("Hello", 3);
    two["n"] = 2.into();
    let answer = scene.ask(&two).await.good();
    assert_eq!(answer.pair(), (None, Some(&*whole.url())));
    let admin = scene.cluster.replicas[0].admin();
    let drain = async |state: &str| {
        let state = json!({ "state": state });
        admin.change(&whole.url(), &state).await;
    };
    let goes_to = async |worker: &str| {
        eventually(LIMIT, "it is answered there", async || {
            let answer = scene.ask(&two).await.good();
            so(answer.pair() == (None, Some(worker)), || {
                format!("{answer:?}")
            })
        })
        .await;
    };
    drain("draining").await;
    goes_to(&decode).await;
    drain("active").await;
    goes_to(&whole.url()).await;
    whole.terminate(StopMode::Exit);
    admin.verdict(&whole.url(), "unhealthy").await;
    goes_to(&decode).await;
}
