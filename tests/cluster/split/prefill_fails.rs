//! The leg that computes the prompt fails, at each moment: another prefill worker computes it, and the client does not
//! notice. What any worker would refuse is shown as it is.

use grapevine_testbed::fake_worker::{Canned, FakeWorker, Fault, KvFault, Leg, StopMode};
use grapevine_tests::cluster::Plan;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::{Value, json};

use super::scene::{
    Scene, always, halves, impatient, legs, next, scene, seen, short, unchecked, until,
};

/// One replica, two prefill and two decode workers, and a chat for the first prefill worker.
async fn with_chat(plan: Plan) -> (Scene, Value) {
    let scene = scene(plan, 1, &halves(2, 2)).await;
    let chat = scene.prompts_at(scene.prefill()[0]).await.swap_remove(0);
    (scene, chat)
}

/// The chat was answered by a pair without the first prefill worker, and the decode leg was sent once.
async fn is_moved(scene: &Scene, chat: &Value) {
    let answer = scene.ask(chat).await.good();
    let other = scene.prefill()[1].url();
    assert_eq!(answer.pair().0, Some(&*other), "{answer:?}");
    assert_eq!(legs(scene.prefill()[1], Leg::Prefill).len(), 1);
    assert_eq!(seen(&scene.decode()), 1, "no decode leg before the blocks");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_refuses_connections_is_passed_over() {
    let (scene, chat) = with_chat(unchecked()).await;
    let dead = scene.prefill()[0];
    dead.terminate(StopMode::Exit);
    let refused = async || tokio::net::TcpStream::connect(dead.addr()).await.is_err();
    until("its port is closed", refused).await;
    is_moved(&scene, &chat).await;
    assert_eq!(scene.ways("pair").await, 1.0);
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_dies_before_computing_costs_nothing() {
    let (scene, chat) = with_chat(unchecked()).await;
    let exit = Fault {
        exit: true,
        ..Fault::default()
    };
    next(scene.prefill()[0], exit);
    is_moved(&scene, &chat).await;
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_dies_after_computing_costs_a_computation() {
    let (scene, chat) = with_chat(unchecked()).await;
    next(scene.prefill()[0], Fault::kv(KvFault::ExitComputed));
    is_moved(&scene, &chat).await;
    assert_eq!(legs(scene.prefill()[0], Leg::Prefill).len(), 1);
    // Its process is gone, and its blocks with it; what models it still lists them.
    scene.ends_with(1).await;
}

/// A fault of the first prefill worker that another one makes good.
async fn makes_good(plan: Plan, fault: Fault) -> Scene {
    let (scene, chat) = with_chat(plan).await;
    next(scene.prefill()[0], fault);
    is_moved(&scene, &chat).await;
    scene
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_answers_500_is_replaced() {
    let scene = makes_good(Plan::default(), Fault::status(500)).await;
    assert_eq!(scene.metric(0, "grapevine_retries_total", "").await, 1.0);
    // One decision a request, however many attempts it takes.
    let counts = ["decision", "preparation"].map(|what| format!("grapevine_{what}_seconds_count"));
    let [decisions, requests] = [&counts[0], &counts[1]];
    let decided = scene.metric(0, decisions, "").await;
    assert_eq!(decided, scene.metric(0, requests, "").await);
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_is_full_is_replaced() {
    let scene = makes_good(Plan::default(), Fault::status(503)).await;
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_hangs_before_computing_is_left() {
    let scene = makes_good(impatient(), Fault::delay_ms(20_000)).await;
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_that_hangs_after_computing_is_left() {
    let scene = makes_good(impatient(), Fault::kv(KvFault::HangComputed)).await;
    scene.ends_with(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_transfer_parameters_is_no_answer() {
    let scene = makes_good(Plan::default(), Fault::kv(KvFault::NoParams)).await;
    // The engine keeps what it has told nobody of.
    scene.ends_with(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_senseless_transfer_parameters_is_no_answer() {
    let senseless = Fault::kv(KvFault::Params(json!(["what", 7])));
    makes_good(Plan::default(), senseless)
        .await
        .ends_with(1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_garbage_is_no_answer() {
    let garbage = Canned {
        status: 200,
        headers: Vec::new(),
        body: Some("<html>".to_owned()),
        repeat: 1,
        gzip: false,
    };
    let fault = Fault {
        reply: Some(garbage),
        ..Fault::default()
    };
    makes_good(Plan::default(), fault).await.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_a_prefill_worker_that_is_cut_short_is_no_answer() {
    let cut = Fault {
        short_by: 40,
        ..Fault::default()
    };
    let scene = makes_good(unchecked(), cut).await;
    scene.ends_with(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_prefill_worker_refuses_is_shown_as_it_is() {
    let (scene, chat) = with_chat(Plan::default()).await;
    for status in [400, 404, 422] {
        next(scene.prefill()[0], Fault::status(status));
        let answer = scene.ask(&chat).await;
        assert_eq!(answer.status(), status, "{answer:?}");
        assert_eq!(answer.body["error"]["type"], "ScriptedFault", "{answer:?}");
    }
    assert_eq!(seen(&scene.prefill()), 3, "asked once each");
    assert_eq!(seen(&scene.decode()), 0, "no decode worker is bothered");
    assert_eq!(attempts_logged(&scene, "status=4", 3).await, 3);
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_all_prefill_workers_fail_retries_keep_to_their_budget() {
    const REQUESTS: usize = 20;
    let plan = Plan::default()
        .set("breaker.enabled", "false")
        .set("retry.initial_backoff", "\"1ms\"");
    let scene = scene(plan, 1, &halves(2, 2)).await;
    let fail = |worker: &FakeWorker| always(worker, Fault::status(500));
    scene.prefill().into_iter().for_each(fail);
    for chat in grapevine_tests::chat::distinct(REQUESTS) {
        let answer = scene.ask(&short(chat)).await;
        assert_eq!(answer.status(), 500, "{answer:?}");
    }
    let attempts = seen(&scene.prefill());
    println!("{attempts} attempts for {REQUESTS} requests");
    assert!(
        (REQUESTS + 1..=REQUESTS * 12 / 10 + 4).contains(&attempts),
        "{attempts}"
    );
    assert_eq!(seen(&scene.decode()), 0);
    assert_eq!(
        attempts_logged(&scene, "status=500", REQUESTS).await,
        attempts
    );
    scene.ends().await;
}

/// The sum of the attempts in the lines of `requests` with this status, whose prompts no worker computed. Those that failed
/// name the last worker that did.
async fn attempts_logged(scene: &Scene, status: &str, requests: usize) -> usize {
    let (lines, _) = eventually(LIMIT, "a line for each request", async || {
        let log = scene.cluster.replicas[0].log();
        let is_one = |line: &&str| line.contains("grapevine::access") && line.contains(status);
        let lines: Vec<_> = log.lines().filter(is_one).map(str::to_owned).collect();
        (lines.len() == requests)
            .then_some(lines)
            .ok_or_else(|| log.clone())
    })
    .await;
    let counted = lines.iter().map(|line| {
        let names_it = line.contains("failed_worker=\"");
        assert!(names_it || line.contains("status=4"), "{line}");
        let (_, count) = line.split_once("attempts=").expect("a count");
        let digits = count.split(' ').next().unwrap_or_default();
        digits.parse::<usize>().expect("a number")
    });
    counted.sum()
}
