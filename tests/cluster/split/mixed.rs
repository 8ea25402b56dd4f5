//! Pairs beside workers of whole requests, and changes of the cluster under way.

use std::time::Duration;

use grapevine_testbed::fake_worker::{FakeWorker, Leg, Role, StopMode};
use grapevine_tests::chat::{Ending, MODEL, Stream, distinct};
use grapevine_tests::cluster::Plan;
use grapevine_tests::invariants::agreement;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use super::scene::{CHATS, Member, Scene, as_stream, halves, legs, scene, seen, short};
use crate::rolling::{Load, balancer, restart};

fn chats(count: usize) -> Vec<Value> {
    distinct(count).into_iter().map(short).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_whole_requests_beside_pairs_gets_what_cannot_be_divided() {
    let members = [halves(2, 2), vec![Member::new(Role::Both)]].concat();
    let scene = scene(Plan::default(), 3, &members).await;
    let whole = scene.of(Role::Both)[0];
    for (number, chat) in chats(18).into_iter().enumerate() {
        let answer = scene.ask_at(number % 3, CHATS, &chat).await.good();
        assert!(answer.pair().0.is_some(), "{answer:?}");
        let mut two = chat;
        two["n"] = 2.into();
        let answer = scene.ask_at(number % 3, CHATS, &two).await.good();
        assert_eq!(answer.pair(), (None, Some(&*whole.url())));
    }
    assert_eq!(seen(&[whole]), 18);
    scene.ends().await;
}

/// Every replica names this worker for some prompt.
async fn all_use(scene: &Scene, url: &str, leg: Leg) {
    let chats = chats(150);
    eventually(LIMIT, "all replicas use it", async || {
        let found = agreement(&scene.cluster, &chats).await;
        let named = match leg {
            Leg::Prefill => &found.prefill,
            Leg::Decode => &found.workers,
        };
        let used = named.iter().filter(|worker| *worker == url).count();
        so(found.agreed == chats.len() && used > 0, || {
            format!("{used} prompts, {} agreed", found.agreed)
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_a_role_that_is_added_at_one_replica_is_used_by_all() {
    let mut scene = scene(Plan::default(), 3, &halves(1, 1)).await;
    let (prefill, decode) = (Member::new(Role::Prefill), Member::new(Role::Decode));
    for (replica, member, role, leg) in [
        (0, prefill, "prefill", Leg::Prefill),
        (1, decode, "decode", Leg::Decode),
    ] {
        let worker = member.start().await;
        let added = json!({
            "id": worker.url(), "url": worker.url(), "models": [MODEL], "role": role, "kv_connector": "nixl",
        });
        let admin = scene.cluster.replicas[replica].admin();
        let change = admin.add_described(&added).await;
        assert!(change.replicated, "{change:?}");
        all_use(&scene, &worker.url(), leg).await;
        scene.workers.push(worker);
    }
    for chat in chats(24) {
        scene.ask_at(2, CHATS, &chat).await.good();
    }
    let [.., prefill, decode] = &scene.workers[..] else {
        panic!("two were added");
    };
    assert!(!legs(prefill, Leg::Prefill).is_empty());
    assert!(!legs(decode, Leg::Decode).is_empty());
    scene.ends().await;
}

/// A worker drains while streams run: they end whole, and no new request comes.
async fn drains(role: Role, leg: Leg) {
    let mut members = halves(2, 2);
    for member in &mut members {
        member.config.engine.step_base = Duration::from_millis(10);
    }
    let scene = scene(Plan::default(), 2, &members).await;
    let drained: &FakeWorker = scene.of(role)[0];
    let mut streams = Vec::new();
    for chat in chats(12) {
        let stream = Stream::open(scene.data(0), &as_stream(&chat, 60)).await;
        streams.push(stream.expect("answered"));
    }
    assert!(!legs(drained, leg).is_empty(), "it has some of them");
    let admin = scene.cluster.replicas[0].admin();
    let change = admin
        .change(&drained.url(), &json!({ "state": "draining" }))
        .await;
    assert!(change.replicated, "{change:?}");
    for replica in &scene.cluster.replicas {
        eventually(LIMIT, "all know that it drains", async || {
            let worker = replica.admin().worker(&drained.url()).await;
            so(worker.state == "draining", || worker.state.clone())
        })
        .await;
    }
    let before = seen(&[drained]);
    for (number, chat) in distinct(60).into_iter().skip(30).enumerate() {
        scene.ask_at(number % 2, CHATS, &short(chat)).await.good();
    }
    assert_eq!(seen(&[drained]), before, "new prompts go elsewhere");
    for stream in streams {
        let outcome = stream.finish().await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_drains_gets_no_new_prompt() {
    drains(Role::Prefill, Leg::Prefill).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_that_drains_keeps_its_streams_and_gets_no_new_one() {
    drains(Role::Decode, Leg::Decode).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_fails_no_divided_request() {
    let mut members = halves(2, 2);
    for member in &mut members {
        member.config.engine.step_base = Duration::from_millis(10);
    }
    let plan = Plan::default().set("timeouts.settle", "\"1s\"");
    let mut scene = scene(plan, 3, &members).await;
    let balancer = balancer(&scene.cluster).await;
    let load = Load::start(&balancer);
    load.answers(24).await;
    for index in 0..3 {
        restart(&mut scene.cluster, index, |_| {}).await;
    }
    load.answers(24).await;
    let (requests, _) = load.succeeded().await;
    let pairs: usize = scene
        .decode()
        .iter()
        .map(|w| legs(w, Leg::Decode).len())
        .sum();
    println!("rolling restart of 3 replicas: {requests} requests, 0 failed, {pairs} decode legs");
    assert!(pairs as u64 >= requests, "each was divided");
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_both_roles_die_under_load_and_only_streams_that_had_begun_there_fail() {
    let mut members = halves(2, 3);
    for member in &mut members {
        member.config.engine.step_base = Duration::from_millis(10);
    }
    // Half of 40 requests may fail at once at one replica, which is more than its budget lends by default.
    let plan = Plan::default().set("retry.budget_floor", "40");
    let scene = scene(plan, 2, &members).await;
    let mut running = tokio::task::JoinSet::new();
    for (number, chat) in chats(40).into_iter().enumerate() {
        let data = scene.data(number % 2);
        running
            .spawn(async move { grapevine_tests::chat::stream(data, &as_stream(&chat, 40)).await });
    }
    super::scene::until("both are at work", async || {
        let of = |worker: &FakeWorker, leg| legs(worker, leg).len();
        of(scene.prefill()[0], Leg::Prefill) > 0 && of(scene.decode()[0], Leg::Decode) > 0
    })
    .await;
    scene.prefill()[0].terminate(StopMode::Exit);
    scene.decode()[0].terminate(StopMode::Exit);
    let dead = scene.decode()[0].url();
    let mut broken = 0;
    while let Some(outcome) = running.join_next().await {
        let outcome = outcome.expect("no client panics");
        match outcome.ending {
            Ending::Done => {}
            Ending::ErrorEvent(_) => {
                assert_eq!(outcome.worker, Some(dead.clone()), "{outcome:?}");
                assert!(outcome.had_begun(), "{outcome:?}");
                broken += 1;
            }
            _ => panic!("{outcome:?}"),
        }
    }
    println!("{broken} of 40 streams had begun on the worker that died");
    for chat in chats(20) {
        scene.ask(&chat).await.good();
    }
}

/// While no worker of whole requests can be used, requests go to those that decode; what either holds is found all along.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_found_at_its_worker_whichever_workers_are_in_use() {
    const PATH: &str = "/v1/responses";
    let roles = [Role::Both, Role::Decode, Role::Decode];
    let plan = Plan::default().set("transfer.decode_alone", "\"always\"");
    let scene = scene(plan, 1, &roles.map(Member::new)).await;
    let whole = scene.of(Role::Both)[0].url();
    let ask = async |previous: Option<&Value>| {
        let mut body = json!({ "model": MODEL, "input": "one", "max_output_tokens": 4 });
        if let Some(previous) = previous {
            body["previous_response_id"] = previous["id"].clone();
        }
        scene.ask_at(0, PATH, &body).await
    };
    let is_in = async |state: &str| {
        let admin = scene.cluster.replicas[0].admin();
        admin.change(&whole, &json!({ "state": state })).await;
    };
    let at_whole = ask(None).await.good();
    assert_eq!(at_whole.pair().1, Some(&*whole));
    is_in("draining").await;
    let at_decode = ask(None).await.good();
    assert_ne!(at_decode.pair().1, Some(&*whole));
    let refused = ask(Some(&at_whole.body)).await;
    assert_eq!(refused.status(), 503, "it is there: {refused:?}");
    for state in ["draining", "active"] {
        is_in(state).await;
        let next = ask(Some(&at_decode.body)).await.good();
        assert_eq!(next.pair().1, at_decode.pair().1, "{state}");
    }
    let next = ask(Some(&at_whole.body)).await.good();
    assert_eq!(next.pair().1, Some(&*whole));
    scene.ends().await;
}
