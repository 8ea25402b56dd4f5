//! The blocks do not come: a closed side channel, a restart, blocks that expired.

use std::num::NonZeroU32;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Canned, Drip, Fault, KvFault, Leg, SideChannelState};
use grapevine_tests::cluster::Plan;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::Value;
use tokio::time::Instant;

use super::scene::{CHATS, Scene, always, halves, held_at, legs, next, scene, until};

/// Far below the time after which a closed side channel is noticed, which is 2 s.
const QUICK: Duration = Duration::from_millis(1_500);

/// Asks through a replica, and says how long it took.
async fn timed(scene: &Scene, replica: usize, chat: &Value) -> (Option<String>, Duration) {
    let begun = Instant::now();
    let answer = scene.ask_at(replica, CHATS, chat).await.good();
    (answer.pair().0.map(str::to_owned), begun.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_side_channel_is_found_by_one_request_and_told_to_all_replicas() {
    let plan = Plan::default().set("breaker.open_for", "\"5s\"");
    let scene = scene(plan, 3, &halves(2, 2)).await;
    let (broken, other) = (scene.prefill()[0], scene.prefill()[1]);
    let mut chats = scene.prompts_at(broken).await;
    // Both decode workers have fetched from the other one since.
    for chat in scene.prompts_at(other).await.iter().take(8) {
        scene.ask(chat).await.good();
    }
    broken.set_side_channel(SideChannelState::Closed);

    let (prefill, took) = timed(&scene, 0, &chats.remove(0)).await;
    println!("the request that found it took {took:?}");
    assert_eq!(prefill, Some(other.url()));
    assert_eq!(legs(broken, Leg::Prefill).len(), 1, "one request paid");
    for replica in 0..3 {
        eventually(LIMIT, "it is known to be bad", async || {
            let explained = computes(&scene, replica, &chats[0]).await;
            match explained.as_deref() {
                Some(url) if url == other.url() => Ok(()),
                url => Err(format!("r{}: {url:?}", replica + 1)),
            }
        })
        .await;
    }
    for (number, chat) in chats.drain(..6).enumerate() {
        let (prefill, took) = timed(&scene, number % 3, &chat).await;
        assert_eq!(prefill, Some(other.url()));
        assert!(took < QUICK, "a later request took {took:?}");
    }
    assert_eq!(legs(broken, Leg::Prefill).len(), 1, "and nobody else");
    let blamed = "grapevine_transfer_failures_total";
    assert_eq!(scene.metric(0, blamed, "prefill").await, 1.0);

    broken.set_side_channel(SideChannelState::Open);
    let begun = Instant::now();
    // Prompts that are new, half of which belong there: others stay where they were computed meanwhile.
    let mut fresh = Scene::unseen();
    eventually(LIMIT, "it is used again", async || {
        let chat = fresh.next().expect("there are enough");
        let prefill = timed(&scene, 0, &chat).await.0;
        so(prefill == Some(broken.url()), || format!("{prefill:?}"))
    })
    .await;
    println!("used again {:?} after it was opened", begun.elapsed());
    for replica in 0..3 {
        let admin = scene.cluster.replicas[replica].admin();
        eventually(LIMIT, "well again", async || {
            let chat = fresh.next().expect("there are enough");
            timed(&scene, replica, &chat).await;
            let worker = admin.worker(&broken.url()).await;
            so(worker.verdict == "good", || format!("{worker:?}"))
        })
        .await;
    }
    // What the first leg computed there was for nobody.
    scene.ends_with(1).await;
}

/// The worker that would compute a prompt now, load and health considered.
async fn computes(scene: &Scene, replica: usize, chat: &Value) -> Option<String> {
    let admin = scene.cluster.replicas[replica].admin().0;
    let target = "/explain?path=/v1/chat/completions";
    let response = grapevine_tests::http1::post(admin, target, chat).await;
    let explained: grapevine_tests::admin::Explained = response.json();
    explained.pair().0.map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn before_anything_was_transferred_a_closed_side_channel_costs_one_request() {
    let scene = scene(Plan::default(), 1, &halves(2, 1)).await;
    let (broken, other) = (scene.prefill()[0], scene.prefill()[1]);
    let chats = scene.prompts_at(broken).await;
    broken.set_side_channel(SideChannelState::Closed);
    for (number, chat) in chats.iter().take(4).enumerate() {
        let (prefill, took) = timed(&scene, 0, chat).await;
        assert_eq!(prefill, Some(other.url()));
        assert!(
            number == 0 || took < QUICK,
            "request {number} took {took:?}"
        );
    }
    assert_eq!(legs(broken, Leg::Prefill).len(), 1);
    let blamed = "grapevine_transfer_failures_total";
    assert_eq!(scene.metric(0, blamed, "unknown").await, 1.0);
    let found = scene.cluster.replicas[0]
        .admin()
        .worker(&broken.url())
        .await;
    assert_eq!(
        found.verdict, "ejected",
        "the second attempt told whose fault it was"
    );
    let decode = scene.cluster.replicas[0].admin();
    let decode = decode.worker(&scene.decode()[0].url()).await;
    assert_eq!(decode.verdict, "good", "it was not the decode worker's");
}

/// All that is known speaks against the prefill worker, until the same decode worker fails with another one, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_was_suspected_wrongly_stays_in_use() {
    let scene = scene(Plan::default(), 1, &halves(2, 1)).await;
    let (suspected, other, broken) = (scene.prefill()[0], scene.prefill()[1], scene.decode()[0]);
    let chats = scene.prompts_at(suspected).await;
    let others = scene.prompts_at(other).await;
    scene.ask(&chats[0]).await.good();
    // The decode worker has fetched from another one since.
    scene.ask(&others[0]).await.good();
    always(broken, Fault::status(500));
    let answer = scene.ask(&chats[1]).await;
    assert_eq!(answer.status(), 500, "{answer:?}");
    let blamed = "grapevine_transfer_failures_total";
    for fault in ["prefill", "decode"] {
        assert_eq!(scene.metric(0, blamed, fault).await, 1.0, "{fault}");
    }
    let admin = scene.cluster.replicas[0].admin();
    for prefill in scene.prefill() {
        let worker = admin.worker(&prefill.url()).await;
        assert_eq!(worker.verdict, "good", "{worker:?}");
    }
    broken.clear_rules();
    let (prefill, _) = timed(&scene, 0, &chats[2]).await;
    assert_eq!(prefill, Some(suspected.url()), "its prompts are its own");
}

/// Where nobody else could take its prompts one failure proves nothing, whatever speaks against it. The client gets what
/// the decode worker said.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_prefill_worker_stays_in_use_after_one_failure() {
    let scene = scene(Plan::default(), 1, &halves(2, 1)).await;
    let (suspected, other, decode) = (scene.prefill()[0], scene.prefill()[1], scene.decode()[0]);
    let chats = scene.prompts_at(suspected).await;
    let others = scene.prompts_at(other).await;
    scene.ask(&chats[0]).await.good();
    // The decode worker has fetched from another one since, which then leaves.
    scene.ask(&others[0]).await.good();
    let admin = scene.cluster.replicas[0].admin();
    admin.remove(&other.url()).await;
    eventually(LIMIT, "one is left", async || {
        let explained = computes(&scene, 0, &others[1]).await;
        so(explained == Some(suspected.url()), || {
            format!("{explained:?}")
        })
    })
    .await;
    let own_words = Canned {
        status: 500,
        headers: Vec::new(),
        body: Some(r#"{"error":{"message":"of its own"}}"#.to_owned()),
        repeat: 1,
        gzip: false,
    };
    let fault = Fault {
        reply: Some(own_words),
        ..Fault::default()
    };
    next(decode, fault);
    let answer = scene.ask(&chats[1]).await;
    let said = answer.body["error"]["message"].as_str();
    assert_eq!((answer.status(), said), (500, Some("of its own")));
    for worker in [suspected, decode] {
        let worker = admin.worker(&worker.url()).await;
        assert_eq!(worker.verdict, "good", "{worker:?}");
    }
    scene.ask(&chats[2]).await.good();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_restarts_is_used_under_its_new_engine_id() {
    let scene = scene(Plan::default(), 2, &halves(1, 1)).await;
    let chats = scene.prompts_at(scene.prefill()[0]).await;
    scene.ask(&chats[0]).await.good();
    let before = scene.prefill()[0].engine_id(0);
    scene.prefill()[0].restart();
    assert_ne!(scene.prefill()[0].engine_id(0), before);
    for replica in [0, 1] {
        scene.ask_at(replica, CHATS, &chats[0]).await.good();
    }
    let failures = scene
        .metric(0, "grapevine_transfer_failures_total", "")
        .await;
    assert_eq!(failures, 0.0);
    let holds = scene.prefill()[0].holds();
    let engines: Vec<bool> = holds
        .iter()
        .map(|hold| Some(&hold.engine_id) == before.as_ref())
        .collect();
    assert_eq!(engines, [true, false, false]);
    scene.ends().await;
}

/// The answer of a prefill worker that takes its time once the prompt is computed.
fn dripping() -> Fault {
    Fault {
        drip: Some(Drip {
            bytes: NonZeroU32::new(40).expect("not zero"),
            every_ms: 20,
        }),
        ..Fault::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_restarts_between_the_legs_computes_again() {
    let scene = scene(Plan::default(), 1, &halves(2, 2)).await;
    let restarting = scene.prefill()[0];
    let chat = scene.prompts_at(restarting).await.swap_remove(0);
    next(restarting, dripping());
    let restart = async {
        until("the prompt is computed", async || held_at(restarting) == 1).await;
        restarting.restart();
    };
    let (answer, ()) = tokio::join!(scene.ask(&chat), restart);
    answer.good();
    let prefill: usize = scene
        .prefill()
        .iter()
        .map(|w| legs(w, Leg::Prefill).len())
        .sum();
    assert_eq!(prefill, 2, "once more");
    let failures = scene
        .metric(0, "grapevine_transfer_failures_total", "")
        .await;
    assert_eq!(failures, 1.0);
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_expired_before_decode_are_computed_again() {
    let scene = scene(Plan::default(), 1, &halves(2, 2)).await;
    let hasty = scene.prefill()[0];
    let chat = scene.prompts_at(hasty).await.swap_remove(0);
    next(hasty, Fault::kv(KvFault::ExpireMs(0)));
    scene.ask(&chat).await.good();
    let decode = scene.decode();
    let decode = decode.iter().flat_map(|worker| legs(worker, Leg::Decode));
    let failed = decode.filter(|entry| entry.transfer_error.is_some());
    assert_eq!(failed.count(), 1);
    scene.ends().await;
}
