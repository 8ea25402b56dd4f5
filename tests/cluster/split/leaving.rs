//! Clients that leave: both legs end, and blocks that nobody will fetch are freed or counted.

use std::num::NonZeroU32;
use std::time::Duration;

use grapevine_testbed::fake_worker::{
    Drip, Entry, FakeWorker, Fault, HoldState, KvFault, Leg, Role,
};
use grapevine_tests::chat::{Stream, distinct};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::Value;
use tokio::time::Instant;

use super::scene::{
    CHATS, Member, Scene, as_stream, halves, held_at, next, scene, seen, short, until,
};

/// What must hold on a quiet machine is 100 ms; this is for a busy one.
const SOON: Duration = Duration::from_secs(1);

fn one_chat() -> Value {
    short(distinct(1).swap_remove(0))
}

/// Sends a request and does not wait for its answer.
async fn send(scene: &Scene, body: &Value) -> Connection {
    let mut connection = Connection::open(scene.data(0)).await;
    let body = body.to_string();
    let bytes = http1::request("POST", CHATS, &[], body.as_bytes());
    connection.send(&bytes).await.expect("taken");
    connection
}

/// The only request at a worker, once it has come.
async fn arrives(worker: &FakeWorker) {
    until("the leg has come", async || worker.log().len() == 1).await;
}

/// Waits until a worker has seen its client leave.
async fn is_left(worker: &FakeWorker, since: Instant) -> Entry {
    let (entry, _) = eventually(LIMIT, "the worker sees that its client left", async || {
        let entry = worker.log().into_iter().next().expect("it came");
        entry
            .client_gone_us
            .map(|_| entry.clone())
            .ok_or_else(|| format!("{entry:?}"))
    })
    .await;
    let took = since.elapsed();
    println!("the worker saw it {took:?} after the client had left");
    assert!(took < SOON, "{took:?}");
    entry
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_its_prompt_is_computed() {
    let scene = scene(Plan::default(), 1, &halves(1, 1)).await;
    let prefill = scene.prefill()[0];
    for body in [one_chat(), as_stream(&one_chat(), 5)] {
        prefill.reset();
        next(prefill, Fault::delay_ms(10_000));
        let connection = send(&scene, &body).await;
        arrives(prefill).await;
        drop(connection);
        is_left(prefill, Instant::now()).await;
    }
    assert_eq!(seen(&scene.decode()), 0, "nobody waits for its answer");
    scene.ends().await;
}

/// Its decode worker was chosen, and not asked: that it has the prompt would have it compute the next one alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_the_second_leg_has_nobody_expect_its_prompt_there() {
    let plan = Plan::default().set("transfer.short_prompt_tokens", "60");
    let scene = scene(plan, 1, &halves(1, 1)).await;
    let prefill = scene.prefill()[0];
    next(prefill, Fault::delay_ms(10_000));
    let connection = send(&scene, &one_chat()).await;
    arrives(prefill).await;
    drop(connection);
    is_left(prefill, Instant::now()).await;
    let again = scene.ask(&one_chat()).await.good();
    assert_eq!(again.pair().0, Some(&*prefill.url()), "{again:?}");
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_between_the_legs() {
    let scene = scene(Plan::default(), 1, &halves(1, 1)).await;
    let prefill = scene.prefill()[0];
    let slowly = Drip {
        bytes: NonZeroU32::new(20).expect("not zero"),
        every_ms: 50,
    };
    next(
        prefill,
        Fault {
            drip: Some(slowly),
            ..Fault::default()
        },
    );
    let connection = send(&scene, &one_chat()).await;
    until("the answer begins", async || {
        prefill
            .log()
            .first()
            .is_some_and(|entry| entry.first_byte_us.is_some())
    })
    .await;
    drop(connection);
    is_left(prefill, Instant::now()).await;
    assert_eq!(seen(&scene.decode()), 0);
    assert_eq!(
        held_at(prefill),
        1,
        "the engine was told of nobody who leaves"
    );
    scene.ends_with(1).await;
}

/// So many prompts count as load of their prefill worker, until their time is over.
async fn left_and_forgotten(scene: &Scene, count: f64) {
    let left = "grapevine_prefill_blocks_left_total";
    scene.metric_is(0, left, "", count).await;
    let admin = scene.cluster.replicas[0].admin();
    let url = scene.prefill()[0].url();
    let tokens = async || admin.worker(&url).await.context_tokens;
    assert!(tokens().await > 100.0, "they take room there");
    assert_eq!(
        scene.metric(0, "grapevine_prefill_blocks_held", "").await,
        count
    );
    scene
        .metric_is(0, "grapevine_prefill_blocks_held", "", 0.0)
        .await;
    until("the room is free", async || tokens().await == 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_blocks_are_on_their_way() {
    let scene = scene(Plan::default(), 1, &halves(1, 1)).await;
    next(scene.decode()[0], Fault::kv(KvFault::SlowMs(10_000)));
    let connection = send(&scene, &as_stream(&one_chat(), 5)).await;
    // Before, the engine knows nothing of the blocks, and they stay until their time is over.
    until("the engine has the leg", async || {
        let log = scene.decode()[0].log();
        log.first()
            .is_some_and(|entry| entry.leg == Some(Leg::Decode))
    })
    .await;
    drop(connection);
    is_left(scene.decode()[0], Instant::now()).await;
    scene.ends().await;
    let states: Vec<HoldState> = scene.prefill()[0].holds().iter().map(|h| h.state).collect();
    assert_eq!(
        states,
        [HoldState::Released],
        "the decode worker gives them back"
    );
    let left = scene
        .metric(0, "grapevine_prefill_blocks_left_total", "")
        .await;
    assert_eq!(left, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_it_is_answered() {
    let members = [
        Member::new(Role::Prefill),
        Member::new(Role::Decode).step(Duration::from_millis(20)),
    ];
    let scene = scene(Plan::default(), 1, &members).await;
    for by_reset in [false, true] {
        scene.decode()[0].reset();
        let body = as_stream(&one_chat(), 1_000);
        let mut stream = Stream::open(scene.data(0), &body).await.expect("answered");
        stream.read_events(3).await.expect("it goes on");
        stream.leave(by_reset);
        let entry = is_left(scene.decode()[0], Instant::now()).await;
        assert!(entry.tokens < 200, "{entry:?}");
    }
    let holds = scene.prefill()[0].holds();
    assert!(
        holds.iter().all(|hold| hold.state == HoldState::Read),
        "{holds:?}"
    );
    scene.ends().await;
}

/// Where both legs begin together, the decode worker was told of the blocks all along.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_a_plain_answer_of_two_legs_at_once() {
    let member = |role| Member::at_once(role).step(Duration::from_millis(20));
    let members = [Role::Prefill, Role::Decode].map(member);
    let scene = scene(Plan::default(), 1, &members).await;
    scene.talks().await;
    let mut body = one_chat();
    body["max_tokens"] = 1_000.into();
    let client = send(&scene, &body).await;
    arrives(scene.decode()[0]).await;
    let computed = "grapevine_prefill_leg_seconds_count";
    scene.metric_is(0, computed, "", 1.0).await;
    drop(client);
    is_left(scene.decode()[0], Instant::now()).await;
    let held = scene.metric(0, "grapevine_prefill_blocks_held", "").await;
    assert_eq!(held, 0.0);
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_nobody_fetched_count_as_load_for_a_time() {
    let plan = Plan::default().set("transfer.held_for", "\"1s\"");
    let scene = scene(plan, 1, &halves(1, 1)).await;
    next(scene.decode()[0], Fault::status(422));
    assert_eq!(scene.ask(&one_chat()).await.status(), 422);
    left_and_forgotten(&scene, 1.0).await;
    scene.ends_with(1).await;
}
