//! No pair can be made: no worker is left for one half, or no two of them can talk.

use grapevine_testbed::fake_worker::{FakeWorker, Fault, Role, StopMode};
use grapevine_tests::chat::distinct;
use grapevine_tests::cluster::Plan;
use grapevine_tests::process;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};

use super::scene::{Member, Scene, halves, next, scene, seen, short};

fn chat() -> Value {
    short(distinct(1).swap_remove(0))
}

/// Ends these workers, and waits until the first replica knows.
async fn die(scene: &Scene, workers: &[&FakeWorker]) {
    for worker in workers {
        worker.terminate(StopMode::Exit);
    }
    let admin = scene.cluster.replicas[0].admin();
    for worker in workers {
        eventually(LIMIT, "it is known to be dead", async || {
            let seen = admin.worker(&worker.url()).await;
            let is_dead = seen.verdict == "unreachable" || seen.verdict == "unhealthy";
            so(is_dead, || format!("{seen:?}"))
        })
        .await;
    }
}

/// Waits until the first replica has no such worker.
async fn is_gone(scene: &Scene, worker: &FakeWorker) {
    let admin = scene.cluster.replicas[0].admin();
    eventually(LIMIT, "it is gone", async || {
        let workers = admin.workers().await;
        let is_there = workers.iter().any(|seen| seen.id == worker.url());
        let rings = admin.ring().await.workers;
        so(!is_there && rings == workers.len(), || {
            format!("{rings} in rings, {workers:?}")
        })
    })
    .await;
}

/// A 503 that clients may try again.
async fn is_refused(scene: &Scene) {
    let answer = scene.ask(&chat()).await;
    assert_eq!(answer.status(), 503, "{answer:?}");
    assert!(answer.response.head.header("retry-after").is_some());
    let code = answer.body["error"]["code"].as_str().unwrap_or_default();
    assert!(code.starts_with("no_worker"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_living_prefill_worker_requests_are_refused() {
    let scene = scene(Plan::default(), 1, &halves(2, 2)).await;
    die(&scene, &scene.prefill()).await;
    is_refused(&scene).await;
    assert_eq!(seen(&scene.decode()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_living_decode_worker_requests_are_refused() {
    let scene = scene(Plan::default(), 1, &halves(2, 2)).await;
    die(&scene, &scene.decode()).await;
    is_refused(&scene).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_registered_prefill_worker_requests_are_refused_and_say_why() {
    let scene = scene(Plan::default(), 1, &halves(1, 1)).await;
    let admin = scene.cluster.replicas[0].admin();
    admin.remove(&scene.prefill()[0].url()).await;
    is_gone(&scene, scene.prefill()[0]).await;
    is_refused(&scene).await;
    let answer = scene.ask(&chat()).await.response.text();
    assert!(answer.contains("transfer.decode_alone"), "{answer}");
    assert_eq!(seen(&scene.decode()), 0);
}

/// Before the first of them: nobody has to look at what clients got.
#[tokio::test(flavor = "multi_thread")]
async fn that_nobody_computes_prompts_is_told_without_any_request() {
    for (alone, is_wrong) in [("indivisible", true), ("always", false)] {
        let plan = Plan::default().set("transfer.decode_alone", &format!("\"{alone}\""));
        let scene = scene(plan, 1, &halves(1, 1)).await;
        let admin = format!("http://{}", scene.cluster.replicas[0].admin().0);
        let told = "no usable prefill worker for 1 model (long prompts may get 503): ";
        let says = async |what: &str, is_told: bool| {
            eventually(LIMIT, what, async || {
                let shown = process::run(&["status", "--admin", &admin]).await;
                let code = if is_told { 4 } else { 0 };
                let is_so = shown.code == Some(code) && shown.text.contains(told) == is_told;
                so(is_so, || format!("{:?}: {}", shown.code, shown.text))
            })
            .await;
        };
        says("all is well", false).await;
        let url = scene.prefill()[0].url();
        let drained = process::run(&["workers", "drain", &url, "--admin", &admin]).await;
        assert_eq!(drained.code, Some(0), "{}", drained.text);
        says(alone, is_wrong).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_registered_decode_worker_requests_are_refused() {
    let scene = scene(Plan::default(), 1, &halves(1, 1)).await;
    let admin = scene.cluster.replicas[0].admin();
    admin.remove(&scene.decode()[0].url()).await;
    is_gone(&scene, scene.decode()[0]).await;
    let answer = scene.ask(&chat()).await;
    assert_eq!(answer.status(), 503, "{answer:?}");
    assert_eq!(seen(&scene.prefill()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn decode_workers_may_answer_alone_while_no_prefill_worker_lives() {
    let plan = Plan::default().set("transfer.decode_alone", "\"always\"");
    let scene = scene(plan, 1, &halves(2, 2)).await;
    die(&scene, &scene.prefill()).await;
    let answer = scene.ask(&chat()).await.good();
    assert_eq!(answer.pair().0, None, "{answer:?}");
    assert_eq!(scene.ways("alone_no_prefill").await, 1.0);
    let admin = scene.cluster.replicas[0].admin();
    for worker in scene.prefill() {
        admin.remove(&worker.url()).await;
        is_gone(&scene, worker).await;
    }
    scene.ask(&chat()).await.good();
    assert_eq!(scene.ways("alone_no_prefill").await, 2.0);
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_whole_requests_takes_what_no_pair_can() {
    let members = [halves(1, 1), vec![Member::new(Role::Both)]].concat();
    let scene = scene(Plan::default(), 1, &members).await;
    die(&scene, &scene.prefill()).await;
    let answer = scene.ask(&chat()).await.good();
    let whole = scene.of(Role::Both)[0].url();
    assert_eq!(answer.pair(), (None, Some(&*whole)));
    assert_eq!(scene.ways("whole_no_pair").await, 1.0);
    scene.ends().await;
}

/// What the prefill worker did for the attempt that failed is no part of the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_whole_requests_that_takes_over_from_a_pair_answers_alone() {
    let members = [halves(1, 1), vec![Member::new(Role::Both)]].concat();
    let scene = scene(Plan::default(), 1, &members).await;
    next(scene.decode()[0], Fault::status(503));
    let answer = scene.ask(&chat()).await.good();
    let whole = scene.of(Role::Both)[0].url();
    assert_eq!(seen(&scene.prefill()), 1, "a pair was tried first");
    assert_eq!(answer.pair(), (None, Some(&*whole)));
    scene.ends_with(1).await;
}

/// A worker whose engine is spread over so many processors.
fn sharded(role: Role, size: u32) -> Member {
    let mut member = Member::new(role).line(&format!("labels = {{ \"kv.tp_size\" = \"{size}\" }}"));
    if let Some(transfer) = &mut member.config.transfer {
        transfer.tensor_parallel = size;
    }
    member
}

/// A prefill and a decode worker with these lines: no request is sent to either, and its client learns why.
async fn cannot_talk(prefill: &str, decode: &str, why: &str) {
    let members = [
        Member::new(Role::Prefill).line(prefill),
        Member::new(Role::Decode).line(decode),
    ];
    let scene = scene(Plan::default(), 1, &members).await;
    let admin = scene.cluster.replicas[0].admin();
    eventually(LIMIT, why, async || {
        let explained = admin.explain(&[chat()]).await;
        match explained[0].pair() {
            (None, _) => Ok(()),
            pair => Err(format!("{pair:?}")),
        }
    })
    .await;
    let answer = scene.ask(&chat()).await;
    assert_eq!(answer.status(), 503, "{answer:?}");
    let message = answer.body["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(why), "{message}");
    assert_eq!(seen(&scene.workers.iter().collect::<Vec<_>>()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_differ_in_what_must_agree_are_no_pair() {
    let label = |name: &str, value: &str| format!("labels = {{ \"{name}\" = \"{value}\" }}");
    cannot_talk(
        "kv_connector = \"p2p_nccl\"",
        "kv_connector = \"store\"",
        "KV connector differs: prefill p2p_nccl, decode store",
    )
    .await;
    for (name, prefill, decode, why) in [
        (
            "kv.tp_size",
            "2",
            "1",
            "tensor-parallel size differs: prefill 2, decode 1",
        ),
        (
            "kv.mode",
            "push",
            "pull",
            "KV transfer mode differs: prefill push, decode pull",
        ),
    ] {
        cannot_talk(&label(name, prefill), &label(name, decode), why).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_go_to_those_that_have_a_partner() {
    let members = [
        sharded(Role::Prefill, 1),
        sharded(Role::Prefill, 2),
        sharded(Role::Prefill, 4),
        sharded(Role::Decode, 1),
        sharded(Role::Decode, 2),
    ];
    let scene = scene(Plan::default(), 2, &members).await;
    for chat in distinct(24) {
        let answer = scene.ask(&short(chat)).await.good();
        let at = |workers: Vec<&FakeWorker>, url: Option<&str>| {
            workers.iter().position(|w| Some(&*w.url()) == url)
        };
        let (prefill, decode) = answer.pair();
        let pair = (at(scene.prefill(), prefill), at(scene.decode(), decode));
        assert!(pair.0 == pair.1 && pair.0.is_some(), "{pair:?}");
    }
    assert_eq!(seen(&scene.prefill()[2..]), 0, "it has no partner");
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn different_tensor_parallel_sizes_are_a_pair_where_settings_say_so() {
    let plan = Plan::default().set("transfer.mixed_tensor_parallel", "true");
    let members = [sharded(Role::Prefill, 2), sharded(Role::Decode, 1)];
    let scene = scene(plan, 1, &members).await;
    scene.ask(&chat()).await.good();
    assert_eq!(scene.ways("pair").await, 1.0);
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_whose_only_partner_died_is_passed_over() {
    let members = [
        sharded(Role::Prefill, 1),
        sharded(Role::Prefill, 2),
        sharded(Role::Decode, 1),
        sharded(Role::Decode, 2),
    ];
    let scene = scene(Plan::default(), 1, &members).await;
    die(&scene, &scene.decode()[..1]).await;
    let alive = (scene.prefill()[1].url(), scene.decode()[1].url());
    for chat in distinct(24) {
        let answer = scene.ask(&short(chat)).await.good();
        assert_eq!(answer.pair(), (Some(&*alive.0), Some(&*alive.1)));
    }
    assert_eq!(seen(&scene.prefill()[..1]), 0);
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_half_that_has_no_worker_left_is_named() {
    let scene = scene(Plan::default(), 1, &halves(1, 1)).await;
    let admin = scene.cluster.replicas[0].admin();
    for (worker, half) in [
        (scene.decode()[0], "decode"),
        (scene.prefill()[0], "prefill"),
    ] {
        let drains = json!({ "state": "draining" });
        admin.change(&worker.url(), &drains).await;
        let expected =
            format!("no {half} worker of this model can be used: every worker is draining");
        eventually(LIMIT, "its drain is known", async || {
            let answer = scene.ask(&chat()).await;
            let message = answer.body["error"]["message"].as_str();
            so(
                answer.status() == 503 && message == Some(&*expected),
                || format!("{answer:?}"),
            )
        })
        .await;
    }
}
