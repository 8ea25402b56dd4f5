//! Load of both halves counts apart, and every replica sees it.

use std::time::Duration;

use grapevine_testbed::fake_worker::{FakeWorker, Fault, Role};
use grapevine_tests::admin::Worker;
use grapevine_tests::chat::{Stream, distinct};
use grapevine_tests::cluster::Plan;
use grapevine_tests::wait::{LIMIT, eventually};

use super::scene::{Member, Scene, as_stream, halves, legs, next, scene, short};

/// Waits until another replica sees a worker like this.
async fn sees(scene: &Scene, worker: &FakeWorker, what: &str, is_so: impl Fn(&Worker) -> bool) {
    let other = scene.cluster.replicas[1].admin();
    eventually(LIMIT, what, async || {
        let seen = other.worker(&worker.url()).await;
        is_so(&seen)
            .then_some(())
            .ok_or_else(|| format!("{seen:?}"))
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
        assert!(legs(decode, grapevine_testbed::fake_worker::Leg::Decode).is_empty());
    };
    tokio::join!(client, other);
    for worker in [prefill, decode] {
        sees(&scene, worker, "all is over", is_idle).await;
    }
    scene.ends().await;
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
            (sum == (number + 1) as f64)
                .then_some(())
                .ok_or_else(|| format!("{sum}"))
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
