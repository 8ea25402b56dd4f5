//! Whose fault a failed transfer was: what ejects a prefill worker, and what does not.

use grapevine_testbed::fake_worker::{Fault, Leg, SideChannelState};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;

use super::scene::{CHATS, Scene, always, halves, legs, next, scene, seen, until};

/// What the first replica says of its prefill workers.
async fn verdicts(scene: &Scene) -> Vec<String> {
    let admin = scene.cluster.replicas[0].admin();
    let mut verdicts = Vec::new();
    for prefill in scene.prefill() {
        verdicts.push(admin.worker(&prefill.url()).await.verdict);
    }
    verdicts
}

/// The request itself may be the cause: any client can send one.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_every_decode_worker_answers_with_500_ejects_nobody() {
    for prefill in [2, 1] {
        let scene = scene(Plan::default(), 1, &halves(prefill, 2)).await;
        let [first, second] = [0, 1].map(|at| scene.decode()[at]);
        if prefill == 1 {
            // So the first decode worker is blamed first, and then the prefill worker for its second failure.
            let chat = scene.answers_at(second).await.swap_remove(0);
            scene.ask(&chat).await.good();
        }
        let chats = scene.answers_at(first).await;
        for decode in [first, second] {
            always(decode, Fault::status(500));
        }
        let before = seen(&[second]);
        let answer = scene.ask(&chats[0]).await;
        assert_eq!(answer.status(), 500, "{answer:?}");
        let asked = [seen(&[first]), seen(&[second]) - before];
        assert!(!asked.contains(&0), "both were asked: {asked:?}");
        for decode in [first, second] {
            decode.clear_rules();
        }
        assert_eq!(verdicts(&scene).await, vec!["good"; prefill]);
        scene.ask(&chats[1]).await.good();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_the_second_attempt_proves_nothing() {
    let scene = scene(Plan::default(), 1, &halves(2, 1)).await;
    let (suspected, other, decode) = (scene.prefill()[0], scene.prefill()[1], scene.decode()[0]);
    let chats = scene.prompts_at(suspected).await;
    let others = scene.prompts_at(other).await;
    scene.ask(&chats[0]).await.good();
    // The decode worker has fetched from another one since.
    scene.ask(&others[0]).await.good();
    next(decode, Fault::status(500));
    next(other, Fault::never_answer());
    let (data, body) = (scene.data(0), chats[1].to_string());
    let client = tokio::spawn(async move {
        http1::exchange(data, "POST", CHATS, &[], body.as_bytes()).await;
    });
    let admin = scene.cluster.replicas[0].admin();
    until("it is tried again", async || {
        seen(&[other]) == 2 && admin.worker(&other.url()).await.in_flight == 1.0
    })
    .await;
    client.abort();
    until("it is over", async || {
        admin.worker(&other.url()).await.in_flight == 0.0
    })
    .await;
    assert_eq!(verdicts(&scene).await, ["good", "good"]);
}

/// However decode workers are chosen otherwise: the same one with another prefill worker is the proof.
#[tokio::test(flavor = "multi_thread")]
async fn who_did_not_get_the_prompt_is_asked_again_with_another_prefill_worker() {
    let plan = Plan::default().set("cluster.decode_policy", "\"round_robin\"");
    let scene = scene(plan, 1, &halves(2, 2)).await;
    let (broken, other) = (scene.prefill()[0], scene.prefill()[1]);
    let chat = scene.prompts_at(broken).await.swap_remove(0);
    broken.set_side_channel(SideChannelState::Closed);
    let answer = scene.ask(&chat).await.good();
    assert_eq!(answer.pair().0, Some(&*other.url()));
    let decode = scene.decode();
    let mut asked = [0, 1].map(|at| legs(decode[at], Leg::Decode).len());
    asked.sort_unstable();
    assert_eq!(asked, [0, 2]);
    assert_eq!(verdicts(&scene).await, ["ejected", "good"]);
}
