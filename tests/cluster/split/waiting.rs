//! Requests that wait for a worker of one half.

use grapevine_testbed::fake_worker::{Canned, FakeWorker, Fault, Role, StopMode};
use grapevine_tests::chat::{MODEL, Stream, chat};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::exchange;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::scene::{CHATS, Member, Scene, as_stream, halves, next, scene, seen, unchecked, until};

const ONE: &str = "max_in_flight = 1";

/// Waits until so many requests wait for a worker of the first replica.
async fn waiting(scene: &Scene, count: f64) {
    let label = "queue=\"worker\"";
    scene
        .metric_is(0, "grapevine_queue_length", label, count)
        .await;
}

/// The first prefill worker has this request, of a client that waits until it is aborted.
async fn keeps_busy(scene: &Scene, chat: serde_json::Value) -> JoinHandle<()> {
    next(scene.prefill()[0], Fault::never_answer());
    let data = scene.data(0);
    let client = tokio::spawn(async move {
        let body = chat.to_string();
        exchange(data, "POST", CHATS, &[], body.as_bytes()).await;
    });
    until("the prefill worker is busy", async || {
        scene.prefill()[0].log().len() == 1
    })
    .await;
    client
}

/// A client's stream that goes on, for as long as it is held.
async fn holding(scene: &Scene, chat: &serde_json::Value) -> Stream {
    let stream = Stream::open(scene.data(0), &as_stream(chat, 100_000)).await;
    let mut stream = stream.expect("answered");
    stream.read_events(1).await.expect("it goes on");
    stream
}

/// The worker takes nothing new.
async fn drain(scene: &Scene, worker: &FakeWorker) {
    let (admin, url) = (scene.cluster.replicas[0].admin(), worker.url());
    admin.change(&url, &json!({ "state": "draining" })).await;
    until("it drains", async || {
        admin.worker(&url).await.state == "draining"
    })
    .await;
}

/// Its prompt is counted, and told to other replicas, when it is placed, and not each time that it looks.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_decode_worker_is_placed_once() {
    let members = [
        Member::new(Role::Prefill),
        Member::new(Role::Decode).line(ONE),
    ];
    let scene = scene(Plan::default(), 1, &members).await;
    scene.talks().await;
    let mut unseen = Scene::unseen();
    let mut chats = || unseen.next().expect("there are thousands");
    let holds = holding(&scene, &chats()).await;
    let placements = async || scene.metric(0, "grapevine_placements_total", "").await;
    assert_eq!(placements().await, 2.0);
    let second = chats();
    let waits = async {
        let answer = scene.ask(&second).await.good();
        assert!(answer.pair().0.is_some(), "{answer:?}");
    };
    let ends = async {
        waiting(&scene, 1.0).await;
        assert_eq!(placements().await, 2.0, "it has looked once at least");
        holds.leave(true);
    };
    tokio::join!(waits, ends);
    assert_eq!(placements().await, 4.0);
    scene.ends().await;
}

/// No pair can be had, and the worker of whole requests is merely full.
#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_pair_waits_for_a_worker_of_whole_requests() {
    let members = [
        Member::new(Role::Prefill),
        Member::new(Role::Decode),
        Member::new(Role::Both).line(ONE),
    ];
    let scene = scene(Plan::default(), 1, &members).await;
    scene.talks().await;
    drain(&scene, scene.prefill()[0]).await;
    let whole = scene.of(Role::Both)[0];
    let mut unseen = Scene::unseen();
    let mut chats = || unseen.next().expect("there are thousands");
    let holds = holding(&scene, &chats()).await;
    assert_eq!(seen(&[whole]), 1);
    let second = chats();
    let waits = async {
        let answer = scene.ask(&second).await.good();
        assert_eq!(answer.pair(), (None, Some(&*whole.url())), "{answer:?}");
    };
    let ends = async {
        waiting(&scene, 1.0).await;
        holds.leave(true);
    };
    tokio::join!(waits, ends);
    scene.ends().await;
}

/// Some prefill workers have no partner that can be used; others, which hand over to other ones, are merely full.
#[tokio::test(flavor = "multi_thread")]
async fn a_pair_that_is_full_is_waited_for_whatever_others_lack() {
    let within = |zone: &str, role| Member::new(role).line(&format!("zone = \"{zone}\""));
    let members = [
        within("a", Role::Prefill).line(ONE),
        within("a", Role::Decode),
        within("b", Role::Prefill),
        within("b", Role::Decode),
    ];
    let plan = Plan::default().set("transfer.across_zones", "false");
    let scene = scene(plan, 1, &members).await;
    scene.talks().await;
    drain(&scene, scene.decode()[1]).await;
    let [prefill, decode] = [scene.prefill()[0].url(), scene.decode()[0].url()];
    let mut unseen = Scene::unseen();
    let mut chats = || unseen.next().expect("there are thousands");
    let (slow, second) = (chats(), chats());
    let slow = keeps_busy(&scene, slow).await;
    let waits = async {
        let answer = scene.ask(&second).await.good();
        assert_eq!(answer.pair(), (Some(&*prefill), Some(&*decode)));
    };
    let ends = async {
        waiting(&scene, 1.0).await;
        slow.abort();
    };
    tokio::join!(waits, ends);
    // Of the one whose client left.
    scene.ends_with(1).await;
}

/// A prompt that is not worth a transfer does not wait for a prefill worker behind one that is.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_prompt_waits_for_no_prefill_worker() {
    let plan = Plan::default().set("transfer.short_prompt_tokens", "60");
    let members = [
        vec![Member::new(Role::Prefill).line(ONE)],
        vec![Member::new(Role::Decode); 2],
    ];
    let scene = scene(plan, 1, &members.concat()).await;
    scene.talks().await;
    let mut unseen = Scene::unseen();
    let mut chats = || unseen.next().expect("there are thousands");
    let (slow, long) = (chats(), chats());
    let slow = keeps_busy(&scene, slow).await;
    let waits = async {
        scene.ask(&long).await.good();
    };
    let short = async {
        waiting(&scene, 1.0).await;
        let answer = scene.ask(&chat("Hello", 3)).await.good();
        assert_eq!(answer.pair().0, None, "{answer:?}");
        waiting(&scene, 1.0).await;
        slow.abort();
    };
    tokio::join!(waits, short);
    // Of the one whose client left.
    scene.ends_with(1).await;
}

/// A pair that can no longer be is not waited for, and its request is told what one would be that came then.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_half_whose_last_worker_is_removed() {
    let plan = Plan::default().set("admission.queue_timeout", "\"600s\"");
    let members = [
        Member::new(Role::Prefill).line(ONE),
        Member::new(Role::Decode),
    ];
    let scene = scene(plan, 1, &members).await;
    scene.talks().await;
    let mut unseen = Scene::unseen();
    let mut chats = || unseen.next().expect("there are thousands");
    let (slow, waits) = (chats(), chats());
    let slow = keeps_busy(&scene, slow).await;
    let waits = async {
        let answer = scene.ask(&waits).await;
        assert_eq!(answer.status(), 503, "{answer:?}");
        let why = answer.response.text();
        assert!(why.contains("no prefill worker of this model"), "{why}");
    };
    let removed = async {
        waiting(&scene, 1.0).await;
        let admin = scene.cluster.replicas[0].admin();
        admin.remove(&scene.prefill()[0].url()).await;
        waiting(&scene, 0.0).await;
        slow.abort();
    };
    tokio::join!(waits, removed);
}

/// Also one whose first attempt has failed between its workers.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_after_a_failed_transfer_sees_the_workers_of_now() {
    let members = [
        Member::new(Role::Prefill),
        Member::new(Role::Prefill).line(ONE),
        Member::new(Role::Decode),
    ];
    let scene = scene(unchecked(), 1, &members).await;
    scene.talks().await;
    let [first, full] = [0, 1].map(|at| scene.prefill()[at]);
    let chats = scene.prompts_at(first).await;
    let others = scene.prompts_at(full).await;
    scene.ask(&chats[0]).await.good();
    // The decode worker has fetched from another one since: its failure is laid on the first prefill worker.
    scene.ask(&others[0]).await.good();
    next(full, Fault::never_answer());
    let (data, slow) = (scene.data(0), others[1].to_string());
    let slow = tokio::spawn(async move {
        exchange(data, "POST", CHATS, &[], slow.as_bytes()).await;
    });
    until("it is full", async || full.log().len() == 2).await;
    next(scene.decode()[0], Fault::status(500));
    let added = Member::new(Role::Prefill).start().await;
    let waits = async {
        let answer = scene.ask(&chats[1]).await.good();
        assert_eq!(answer.pair().0, Some(&*added.url()), "{answer:?}");
    };
    let changes = async {
        waiting(&scene, 1.0).await;
        drain(&scene, full).await;
        let url = added.url();
        let added = json!({
            "id": url, "url": url, "models": [MODEL], "role": "prefill", "kv_connector": "nixl",
        });
        let admin = scene.cluster.replicas[0].admin();
        admin.add_described(&added).await;
        waiting(&scene, 0.0).await;
    };
    tokio::join!(waits, changes);
    slow.abort();
}

/// Prefill workers that ask to be left alone are not waited for: clients are told their time.
#[tokio::test(flavor = "multi_thread")]
async fn the_pause_of_prefill_workers_is_told() {
    let plan = Plan::default().set("admission.queue_timeout", "\"20s\"");
    let scene = scene(plan, 1, &halves(1, 1)).await;
    scene.talks().await;
    let reply = Canned {
        status: 503,
        headers: vec![("retry-after".to_owned(), "600".to_owned())],
        body: None,
        repeat: 1,
        gzip: false,
    };
    let full = Fault {
        reply: Some(reply),
        ..Fault::default()
    };
    next(scene.prefill()[0], full);
    let chats: Vec<_> = Scene::unseen().take(2).collect();
    for chat in &chats {
        let answer = scene.ask(chat).await;
        assert_eq!(answer.status(), 503, "{answer:?}");
        let after = answer.response.head.header("retry-after");
        let after: u64 = after.and_then(|after| after.parse().ok()).expect("seconds");
        // At most `retry.worker_pause_max`.
        assert!((250..=600).contains(&after), "{answer:?}");
    }
    assert_eq!(scene.prefill()[0].log().len(), 1, "it was left alone");
    scene.ends().await;
}

/// What is computed waits for a decode worker that is full for a moment, and is not computed again.
#[tokio::test(flavor = "multi_thread")]
async fn a_computed_prompt_waits_for_a_decode_worker() {
    let members = [
        Member::new(Role::Prefill),
        Member::new(Role::Decode).line(ONE),
        Member::new(Role::Decode).line(ONE),
    ];
    let scene = scene(unchecked(), 1, &members).await;
    scene.talks().await;
    let [dead, full] = [0, 1].map(|at| scene.decode()[at]);
    let chat = scene.answers_at(dead).await.swap_remove(0);
    let long = scene.answers_at(full).await.swap_remove(0);
    let holds = holding(&scene, &long).await;
    dead.terminate(StopMode::Exit);
    let refused = async || TcpStream::connect(dead.addr()).await.is_err();
    until("its port is closed", refused).await;
    let waits = async {
        let answer = scene.ask(&chat).await.good();
        assert_eq!(answer.pair().1, Some(&*full.url()), "{answer:?}");
    };
    let ends = async {
        waiting(&scene, 1.0).await;
        holds.leave(true);
    };
    tokio::join!(waits, ends);
    assert_eq!(seen(&scene.prefill()), 2, "each prompt is computed once");
    scene.ends().await;
}
