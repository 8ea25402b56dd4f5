//! Load of both halves counts apart, and every replica sees it.

use std::time::Duration;

use grapevine_testbed::fake_worker::{FakeWorker, Fault, Leg, Role};
use grapevine_tests::admin::Worker;
use grapevine_tests::chat::{Stream, distinct};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually, so};

use serde_json::Value;

use super::scene::{CHATS, Member, Scene, as_stream, halves, legs, next, scene, short};

/// Waits until another replica sees a worker like this.
async fn sees(scene: &Scene, worker: &FakeWorker, what: &str, is_so: impl Fn(&Worker) -> bool) {
    let other = scene.cluster.replicas[1].admin();
    eventually(LIMIT, what, async || {
        let seen = other.worker(&worker.url()).await;
        so(is_so(&seen), || format!("{seen:?}"))
    })
    .await;
}

fn is_idle(worker: &Worker) -> bool {
    worker.in_flight == 0.0 && worker.context_tokens == 0.0 && worker.pending_prefill_tokens == 0.0
}

#[tokio::test(flavor = "multi_thread")]
async fn both_halves_count_apart_on_every_replica() {
    let members = [
        Member::new(Role::Prefill),
        Member::new(Role::Decode).step(Duration::from_millis(20)),
    ];
    let scene = scene(Plan::default(), 2, &members).await;
    let (prefill, decode) = (scene.prefill()[0], scene.decode()[0]);
    next(prefill, Fault::delay_ms(3_000));
    let body = as_stream(&distinct(1)[0], 1_000);
    let client = async {
        let mut stream = Stream::open(scene.data(0), &body).await.expect("answered");
        stream.read_events(3).await.expect("it goes on");
        sees(&scene, prefill, "prefill is done", is_idle).await;
        sees(&scene, decode, "decode goes on", |worker| {
            worker.in_flight == 1.0 && worker.context_tokens > 100.0
        })
        .await;
        stream.leave(true);
    };
    let other = async {
        sees(&scene, prefill, "a prompt is computed", |worker| {
            worker.in_flight == 1.0 && worker.pending_prefill_tokens > 100.0
        })
        .await;
        sees(
            &scene,
            decode,
            "room is taken before the blocks come",
            |worker| worker.context_tokens > 100.0 && worker.pending_prefill_tokens == 0.0,
        )
        .await;
        assert!(legs(decode, Leg::Decode).is_empty());
    };
    tokio::join!(client, other);
    for worker in [prefill, decode] {
        sees(&scene, worker, "all is over", is_idle).await;
    }
    scene.ends().await;
}

/// A plain answer says nothing before it is whole, long after the blocks of its prompt were fetched.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_worker_is_idle_while_a_plain_answer_goes_on() {
    for member in [Member::new, Member::at_once] {
        let members = [
            member(Role::Prefill),
            member(Role::Decode).step(Duration::from_millis(20)),
        ];
        let scene = scene(Plan::default(), 2, &members).await;
        scene.talks().await;
        let (prefill, decode) = (scene.prefill()[0], scene.decode()[0]);
        let mut body = distinct(1).swap_remove(0);
        body["max_tokens"] = 100_000.into();
        let (data, body) = (scene.data(0), body.to_string());
        let client = tokio::spawn(async move {
            http1::exchange(data, "POST", CHATS, &[], body.as_bytes()).await;
        });
        sees(&scene, prefill, "its blocks count", |worker| {
            worker.context_tokens > 100.0
        })
        .await;
        sees(&scene, prefill, "they were fetched", is_idle).await;
        assert_eq!(legs(prefill, Leg::Prefill).len(), 1);
        sees(&scene, decode, "decode goes on", |worker| {
            worker.in_flight == 1.0 && worker.context_tokens > 100.0
        })
        .await;
        client.abort();
        sees(&scene, decode, "all is over", is_idle).await;
        scene.ends().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_through_all_replicas_spread_over_decode_workers() {
    const STREAMS: usize = 12;
    let mut members = halves(1, 3);
    for member in &mut members {
        member.config.engine.step_base = Duration::from_millis(20);
    }
    let scene = scene(Plan::default(), 3, &members).await;
    // All of one prompt: its home alone would have them all.
    let body = as_stream(&short(distinct(1).swap_remove(0)), 1_000);
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        let mut stream = Stream::open(scene.data(number % 3), &body)
            .await
            .expect("answered");
        stream.read_events(2).await.expect("it goes on");
        streams.push(stream);
        let sum = async || -> f64 {
            let admin = scene.cluster.replicas[(number + 1) % 3].admin();
            let workers = admin.workers().await;
            workers.iter().map(|worker| worker.in_flight).sum()
        };
        // The next replica has heard of it.
        eventually(LIMIT, "load travels", async || {
            let sum = sum().await;
            so(sum == (number + 1) as f64, || format!("{sum}"))
        })
        .await;
    }
    let counts: Vec<u64> = scene.decode().iter().map(|w| w.stats().in_flight).collect();
    println!("{STREAMS} streams of one prompt over three decode workers: {counts:?}");
    assert_eq!(counts.iter().sum::<u64>(), STREAMS as u64);
    assert!(
        counts.iter().all(|count| (2..=6).contains(count)),
        "{counts:?}"
    );
    drop(streams);
    scene.ends().await;
}

/// Beside pairs, workers of whole requests take what would wait too long for a prefill worker, on any replica.
#[tokio::test(flavor = "multi_thread")]
async fn whole_workers_take_what_would_wait_for_prefill() {
    let members = [halves(1, 1), vec![Member::new(Role::Both)]].concat();
    let plan = Plan::default().set("transfer.wait_for_pair", "\"1ms\"");
    let scene = scene(plan, 2, &members).await;
    let (prefill, whole) = (scene.prefill()[0], scene.of(Role::Both)[0].url());
    let [slow, meanwhile, later]: [Value; 3] = distinct(3)
        .into_iter()
        .map(short)
        .collect::<Vec<_>>()
        .try_into()
        .expect("three");
    next(prefill, Fault::delay_ms(3_000));
    let first = async {
        let answer = scene.ask_at(0, CHATS, &slow).await.good();
        assert!(
            answer.pair().0.is_some(),
            "nothing was under way: {answer:?}"
        );
    };
    let second = async {
        sees(&scene, prefill, "a prompt is computed", |worker| {
            worker.pending_prefill_tokens > 100.0
        })
        .await;
        let answer = scene.ask_at(1, CHATS, &meanwhile).await.good();
        assert_eq!(answer.pair(), (None, Some(&*whole)));
        let admin = scene.cluster.replicas[1].admin();
        let quiet = admin.explain(std::slice::from_ref(&later)).await;
        assert!(
            quiet[0].pair().0.is_some(),
            "as if nothing were loaded: {quiet:?}"
        );
    };
    tokio::join!(first, second);
    sees(&scene, prefill, "all is over", is_idle).await;
    let answer = scene.ask_at(1, CHATS, &later).await.good();
    assert!(answer.pair().0.is_some(), "{answer:?}");
    assert_eq!(
        scene
            .metric(
                1,
                "grapevine_split_requests_total",
                "reason=\"whole_sooner\""
            )
            .await,
        1.0
    );
    scene.ends().await;
}
