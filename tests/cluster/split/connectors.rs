//! Each further way of the blocks: pairs that work through any replica, and two failures each.

use std::path::Path;

use grapevine_testbed::fake_worker::{Connector, EngineConfig, Fault, Hold, HoldState, Leg, Role};
use grapevine_tests::chat::distinct;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::Value;

use super::scene::{CHATS, Member, Scene, as_stream, legs, next, scene, short};

/// Two prefill and two decode workers; `lines` say what nobody can learn of them by itself.
async fn fleet(connector: Connector, lines: &[&str]) -> Scene {
    let roles = [Role::Prefill, Role::Prefill, Role::Decode, Role::Decode];
    let member = |role| {
        let member = Member::new(role).connector(connector);
        lines.iter().fold(member, |member, line| member.line(line))
    };
    // Several failures in a row are no outage here, and what is well again is soon used again.
    let plan = Plan::default()
        .set("retry.budget_floor", "100")
        .set("breaker.open_for", "\"1s\"")
        .set("health.slow_start", "\"0s\"");
    let scene = scene(plan, 2, &roles.map(member)).await;
    scene.talks().await;
    scene
}

fn chats(count: usize) -> Vec<Value> {
    distinct(count).into_iter().map(short).collect()
}

fn text(body: &Value) -> &str {
    let text = &body["choices"][0]["message"]["content"];
    text.as_str().unwrap_or_else(|| panic!("no text in {body}"))
}

/// Chats through both replicas, plain and streamed, say what one worker says, and each is a pair.
async fn works(scene: &Scene) {
    let one = Member::new(Role::Both).start().await;
    for (number, chat) in chats(10).iter().enumerate() {
        let expected = http1::post(one.addr(), CHATS, chat).await.json::<Value>();
        let answer = scene.ask_at(number % 2, CHATS, chat).await.good();
        assert!(answer.pair().0.is_some(), "{answer:?}");
        assert_eq!(text(&answer.body), text(&expected), "{answer:?}");
        let data = scene.data((number + 1) % 2);
        let stream = grapevine_tests::chat::stream(data, &as_stream(chat, 5)).await;
        assert_eq!(stream.text(), text(&expected), "{stream:?}");
    }
    let count = |leg, workers: Vec<&grapevine_testbed::fake_worker::FakeWorker>| -> usize {
        workers.iter().map(|worker| legs(worker, leg).len()).sum()
    };
    assert_eq!(count(Leg::Prefill, scene.prefill()), 20);
    assert_eq!(count(Leg::Decode, scene.decode()), 20);
    scene.ends().await;
}

/// A prefill worker that fails and a decode worker that is full cost their clients nothing.
async fn survives(scene: &Scene) {
    let (prefill, decode) = (scene.prefill()[0], scene.decode()[0]);
    let chat = scene.prompts_at(prefill).await.swap_remove(0);
    next(prefill, Fault::status(500));
    let answer = scene.ask(&chat).await.good();
    assert_eq!(answer.pair().0, Some(&*scene.prefill()[1].url()));
    let chat = scene.answers_at(decode).await.swap_remove(1);
    next(decode, Fault::status(503));
    let answer = scene.ask(&chat).await.good();
    assert_eq!(answer.pair().1, Some(&*scene.decode()[1].url()));
    invariants::hold(&scene.cluster, &scene.workers, &[]).await;
}

/// A prefill worker that restarted has other engine ids: within a moment pairs work as before.
async fn outlives_a_restart(scene: &Scene) {
    let prefill = scene.prefill()[0];
    let chats = scene.prompts_at(prefill).await;
    prefill.restart();
    // Nobody is refused meanwhile.
    for chat in &chats[..2] {
        scene.ask(chat).await.good();
    }
    let mut turn = 2;
    eventually(LIMIT, "it is used under its new id", async || {
        let chat = &chats[turn % chats.len()];
        scene.ask_at(turn % 2, CHATS, chat).await.good();
        turn += 1;
        let engine = prefill.engine_id(0);
        let is_fetched = |hold: &&Hold| {
            Some(&hold.engine_id) == engine.as_ref() && hold.state == HoldState::Read
        };
        let count = prefill.holds().iter().filter(is_fetched).count();
        so(count > 1, || format!("{count} prompts"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nixl_that_pushes() {
    let scene = fleet(
        Connector::NixlPush,
        &["labels = { \"kv.mode\" = \"push\" }"],
    )
    .await;
    works(&scene).await;
    survives(&scene).await;
    outlives_a_restart(&scene).await;
}

/// Its former name is not used once its process is known to be another one, nor until the new one is known.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_that_is_known_costs_no_push() {
    let member = |role| {
        let member = Member::new(role).connector(Connector::NixlPush);
        member.line("labels = { \"kv.mode\" = \"push\" }")
    };
    let plan = Plan::default().set("health.interval", "\"20ms\"");
    let scene = scene(plan, 1, &[Role::Prefill, Role::Decode].map(member)).await;
    scene.talks().await;
    let prefill = scene.prefill()[0];
    let admin = scene.cluster.replicas[0].admin();
    let chats = chats(6);
    scene.ask(&chats[0]).await.good();
    let is_named = async || {
        eventually(LIMIT, "its name is learned", async || {
            let id = prefill.engine_id(0).expect("it takes part");
            let known = http1::get(admin.0, "/workers").await.text();
            known.contains(&id).then_some(()).ok_or(known)
        })
        .await;
    };
    is_named().await;
    scene.ask(&chats[1]).await.good();
    let before = admin.worker(&prefill.url()).await.epoch;
    prefill.restart();
    eventually(LIMIT, "its restart is known", async || {
        let epoch = admin.worker(&prefill.url()).await.epoch;
        so(epoch > before, || format!("{epoch}"))
    })
    .await;
    for chat in &chats[2..] {
        scene.ask(chat).await.good();
    }
    let failures = "grapevine_transfer_failures_total";
    assert_eq!(scene.metric(0, failures, "").await, 0.0);
    is_named().await;
}

const MOONCAKE: [&str; 2] = ["kv_connector = \"mooncake\"", "bootstrap_port = {side}"];

#[tokio::test(flavor = "multi_thread")]
async fn mooncake_with_ids_that_its_bootstrap_server_tells() {
    let scene = fleet(Connector::Mooncake, &MOONCAKE).await;
    works(&scene).await;
    survives(&scene).await;
    outlives_a_restart(&scene).await;
}

const MORIIO: &str = "\"kv.address\" = \"host:127.0.0.1,handshake:{side},notify:{side}\"";

#[tokio::test(flavor = "multi_thread")]
async fn moriio_that_reads() {
    let labels = format!("labels = {{ \"kv.mode\" = \"read\", {MORIIO} }}");
    let scene = fleet(
        Connector::MoriioRead,
        &["kv_connector = \"moriio\"", &labels],
    )
    .await;
    works(&scene).await;
    survives(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn moriio_that_writes() {
    let labels = format!("labels = {{ \"kv.mode\" = \"write\", {MORIIO} }}");
    let scene = fleet(
        Connector::MoriioWrite,
        &["kv_connector = \"moriio\"", &labels],
    )
    .await;
    works(&scene).await;
    survives(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nccl_with_addresses_in_the_request_id() {
    let lines = [
        "kv_connector = \"p2p_nccl\"",
        "kv_address = \"127.0.0.1:{side}\"",
    ];
    let scene = fleet(Connector::P2pNccl, &lines).await;
    works(&scene).await;
    survives(&scene).await;
}

/// Two of each role that share a store in this directory.
async fn at_store(directory: &Path) -> Scene {
    let roles = [Role::Prefill, Role::Prefill, Role::Decode, Role::Decode];
    let member = |role| {
        let mut member = Member::new(role)
            .connector(Connector::Store)
            .line("kv_connector = \"store\"");
        if let Some(transfer) = &mut member.config.transfer {
            transfer.store = Some(directory.to_owned());
        }
        member
    };
    let scene = scene(Plan::default(), 2, &roles.map(member)).await;
    scene.talks().await;
    scene
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_all_share() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let scene = at_store(directory.path()).await;
    works(&scene).await;
    survives(&scene).await;
}

/// It computes what it does not find there, so its failure says nothing of the prefill worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_at_a_store_fails_by_itself() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let scene = at_store(directory.path()).await;
    let [broken, other] = [0, 1].map(|at| scene.decode()[at]);
    let chat = scene.answers_at(broken).await.swap_remove(0);
    next(broken, Fault::status(500));
    let answer = scene.ask(&chat).await.good();
    assert_eq!(answer.pair().1, Some(&*other.url()), "{answer:?}");
    let failures = "grapevine_transfer_failures_total";
    assert_eq!(scene.metric(0, failures, "").await, 0.0);
    let asked = scene.prefill().iter().map(|at| at.log().len()).max();
    assert_eq!(asked, Some(2), "the same one, which has it in its cache");
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_with_rooms() {
    let lines = ["kv_connector = \"sglang\"", "bootstrap_port = {side}"];
    let scene = fleet(Connector::Sglang, &lines).await;
    works(&scene).await;
    survives(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_another_size_are_learned_and_make_no_pair() {
    let sized = |role, block_tokens| {
        let mut member = Member::new(role);
        member.config.engine = EngineConfig {
            block_tokens,
            ..member.config.engine
        };
        member
    };
    let members = [
        sized(Role::Prefill, 16),
        sized(Role::Prefill, 32),
        sized(Role::Decode, 16),
    ];
    let scene = scene(Plan::default(), 2, &members).await;
    eventually(LIMIT, "sizes are learned", async || {
        let found = invariants::agreement(&scene.cluster, &chats(60)).await;
        let other = scene.prefill()[1].url();
        let still = found
            .prefill
            .iter()
            .filter(|worker| **worker == other)
            .count();
        so(still == 0 && found.agreed == 60, || {
            format!("{still} prompts")
        })
    })
    .await;
    for chat in chats(10) {
        scene.ask(&chat).await.good();
    }
    assert_eq!(
        scene
            .metric(0, "grapevine_transfer_failures_total", "")
            .await,
        0.0
    );
    scene.ends().await;
}
