//! The leg that answers fails, at each moment. Before its first byte the client does not notice; what another decode
//! worker can still fetch is not computed again.

use std::time::Duration;

use grapevine_testbed::fake_worker::{Fault, How, Leg, Point, Role, StopMode};
use grapevine_tests::chat::{self, Ending};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use serde_json::Value;

use super::scene::{
    CHATS, Member, Scene, as_stream, halves, impatient, legs, next, scene, seen, unchecked, until,
};

const FAILOVER: (&str, &str) = ("x-grapevine-failover", "on");

/// One replica, two prefill and two decode workers, and a chat that the first decode worker would answer.
async fn with_chat(plan: Plan) -> (Scene, Value) {
    let scene = scene(plan, 1, &halves(2, 2)).await;
    let chat = scene.answers_at(scene.decode()[0]).await.swap_remove(0);
    (scene, chat)
}

/// The other decode worker answered.
async fn is_moved(scene: &Scene, chat: &Value) {
    let answer = scene.ask(chat).await.good();
    let other = scene.decode()[1].url();
    assert_eq!(answer.pair().1, Some(&*other), "{answer:?}");
    assert_eq!(legs(scene.decode()[1], Leg::Decode).len(), 1);
}

/// The prompt was computed twice, on one worker: the first one's blocks may hold another prompt, or be fetched.
fn is_computed_from_the_cache(scene: &Scene) {
    let computed = scene.prefill().into_iter();
    let computed: Vec<_> = computed
        .flat_map(|worker| legs(worker, Leg::Prefill))
        .collect();
    let [first, second] = &computed[..] else {
        panic!("not twice: {computed:?}");
    };
    assert_eq!(first.cached_tokens, 0);
    assert!(second.cached_tokens > 0, "on the same worker: {second:?}");
}

/// The first decode worker refuses connections from now on.
async fn refuses_connections(scene: &Scene) {
    let dead = scene.decode()[0];
    dead.terminate(StopMode::Exit);
    let refused = async || tokio::net::TcpStream::connect(dead.addr()).await.is_err();
    until("its port is closed", refused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_decode_worker_gets_the_blocks_of_one_that_refuses_connections() {
    let (scene, chat) = with_chat(unchecked()).await;
    refuses_connections(&scene).await;
    is_moved(&scene, &chat).await;
    assert_eq!(seen(&scene.prefill()), 1, "the prompt is computed once");
    scene.ends().await;
}

/// Its engine, that is full or paused, has told the prefill worker that it fetches nothing: they may hold another prompt.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_a_decode_worker_refused_go_to_no_other_one() {
    let (scene, chat) = with_chat(Plan::default()).await;
    next(scene.decode()[0], Fault::status(503));
    is_moved(&scene, &chat).await;
    is_computed_from_the_cache(&scene);
    // The fake engine does not release them.
    scene.ends_with(1).await;
}

/// An engine gives blocks that nobody fetched to other prompts after a while, and who fetches them then does not notice.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_are_too_old_are_computed_anew() {
    let plan = unchecked().set("transfer.fetch_within", "\"0s\"");
    let (scene, chat) = with_chat(plan).await;
    refuses_connections(&scene).await;
    is_moved(&scene, &chat).await;
    assert_eq!(seen(&scene.prefill()), 2, "the prompt is computed twice");
    // The blocks of the first time are left.
    scene.ends_with(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_that_dies_before_its_first_byte_costs_a_cached_prompt() {
    let (scene, chat) = with_chat(unchecked()).await;
    let exit = Fault {
        exit: true,
        ..Fault::default()
    };
    next(scene.decode()[0], exit);
    is_moved(&scene, &chat).await;
    is_computed_from_the_cache(&scene);
    // The engine could not know that the first blocks are for nobody.
    assert_eq!(
        scene
            .metric(0, "grapevine_prefill_blocks_left_total", "")
            .await,
        1.0
    );
    assert_eq!(
        scene.metric(0, "grapevine_prefill_blocks_held", "").await,
        1.0
    );
    scene.ends_with(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_that_hangs_is_left() {
    let (scene, chat) = with_chat(impatient()).await;
    next(scene.decode()[0], Fault::never_answer());
    // For plain answers a worker has longer: this one shows its first token, or does not.
    let outcome = chat::stream(scene.data(0), &as_stream(&chat, 5)).await;
    assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    let left = scene
        .metric(0, "grapevine_prefill_blocks_left_total", "")
        .await;
    assert_eq!(left, 1.0);
    scene.ends_with(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_that_answers_500_is_replaced() {
    let (scene, chat) = with_chat(Plan::default()).await;
    next(scene.decode()[0], Fault::status(500));
    scene.ask(&chat).await.good();
    let failures = "grapevine_transfer_failures_total";
    // It may as well have been the transfer.
    assert_eq!(scene.metric(0, failures, "").await, 1.0);
    scene.ends_with(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_decode_worker_refuses_is_shown_as_it_is() {
    let (scene, chat) = with_chat(Plan::default()).await;
    next(scene.decode()[0], Fault::status(422));
    let answer = scene.ask(&chat).await;
    assert_eq!(answer.status(), 422, "{answer:?}");
    assert_eq!((seen(&scene.prefill()), seen(&scene.decode())), (1, 1));
    let left = scene
        .metric(0, "grapevine_prefill_blocks_left_total", "")
        .await;
    assert_eq!(left, 1.0, "it has fetched nothing");
    scene.ends_with(1).await;
}

/// Two prefill and two slow decode workers; the answering one breaks off after three events.
async fn breaks_off() -> (Scene, Value) {
    let slow = |role| Member::new(role).step(Duration::from_millis(10));
    let members = [Role::Prefill, Role::Prefill, Role::Decode, Role::Decode].map(slow);
    let scene = scene(unchecked(), 1, &members).await;
    let chat = scene.answers_at(scene.decode()[0]).await.swap_remove(0);
    let cut = Fault::stop(Point::Event(3), How::Rst);
    next(scene.decode()[0], cut);
    (scene, as_stream(&chat, 20))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_that_dies_in_mid_stream_ends_it_with_an_error_event() {
    let (scene, chat) = breaks_off().await;
    let outcome = chat::stream(scene.data(0), &chat).await;
    assert!(
        matches!(outcome.ending, Ending::ErrorEvent(_)),
        "{outcome:?}"
    );
    assert!(outcome.had_begun());
    assert_eq!((seen(&scene.prefill()), seen(&scene.decode())), (1, 1));
    scene.ends().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_failover_a_stream_goes_on_from_another_decode_worker() {
    let (scene, chat) = breaks_off().await;
    let one = Member::new(Role::Both).start().await;
    let expected = chat::stream(one.addr(), &chat).await.text();
    let headers = [FAILOVER];
    let body = chat.to_string();
    let data = scene.data(0);
    let answer = http1::exchange(data, "POST", CHATS, &headers, body.as_bytes()).await;
    let text: String = answer
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter_map(|data| serde_json::from_str::<Value>(data).ok())
        .filter_map(|event| {
            event["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        })
        .collect();
    assert_eq!(text, expected, "{}", answer.text());
    assert!(answer.text().trim_end().ends_with("data: [DONE]"));
    let continued = scene
        .metric(0, "grapevine_failovers_total", "continued")
        .await;
    assert_eq!(continued, 1.0);
    scene.ends().await;
}
