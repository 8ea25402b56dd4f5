//! One prefix at 40 % of all traffic through four replicas: no worker is overloaded.

use std::time::Duration;

use grapevine_tests::chat::{self, Ending, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::invariants;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

const REPLICAS: usize = 4;
/// A token to compute takes as long as on an accelerator. Where computing costs nothing, a queue costs nothing either,
/// and a prefix may stay with its home up to the outer bound: a third of all requests here.
const PREFILL_TOKENS_PER_S: f64 = 40_000.0;
const WORKERS: usize = 8;
const CLIENTS: usize = 96;
const REQUESTS: usize = 12;
/// Two of five requests share the prefix.
const SHARED_OF_FIVE: usize = 2;
/// The most of all requests in flight that the busiest worker may hold while the clients are busy: on average, and at
/// any moment. Evenly spread it would hold an eighth; a home that takes the prefix alone holds .475, two fifths and its
/// part of the rest. Moments differ by chance: the clients begin all at once, and an answer lasts for up to a second.
/// The tight bound on every sample is a figure, not a test: `testbed/bench/hot_prefix.py` measures it on a quiet
/// machine.
const MOST_ON_AVERAGE: f64 = 0.25;
const MOST_EVER: f64 = 0.4;

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_of_two_requests_in_five_is_spread_over_workers() {
    let mut config = chat::paced(Duration::from_millis(20));
    config.engine.prefill_tokens_per_s = PREFILL_TOKENS_PER_S;
    let workers = chat::workers(WORKERS, &config).await;
    let cluster = Plan::default().workers(&workers).start(REPLICAS).await;
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let data = cluster.replicas[client % REPLICAS].data();
        clients.spawn(async move {
            for number in 0..REQUESTS {
                let which = client * REQUESTS + number;
                let opening = if which % 5 < SHARED_OF_FIVE {
                    "the same long opening ".repeat(400)
                } else {
                    format!("opening number {which} ").repeat(400)
                };
                let body = streamed(
                    &format!("{opening}, question {which}"),
                    20 + which as u32 % 40,
                );
                let outcome = chat::stream(data, &body).await;
                assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
            }
        });
    }
    let mut samples: Vec<Vec<u64>> = Vec::new();
    let mut tick = interval(Duration::from_millis(500));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut all = std::pin::pin!(clients.join_all());
    loop {
        tokio::select! {
            _ = tick.tick() => samples.push(workers.iter().map(|w| w.stats().in_flight).collect()),
            _ = &mut all => break,
        }
    }
    // While clients start and finish there are few requests to spread.
    let busy: Vec<f64> = samples
        .iter()
        .filter(|sample| sample.iter().sum::<u64>() as usize >= CLIENTS / 2)
        .map(|sample| share_of_the_busiest(sample))
        .collect();
    println!("shares of the busiest worker: {busy:.2?}, in flight: {samples:?}");
    assert!(!busy.is_empty(), "the clients were never busy: {samples:?}");
    let average = busy.iter().sum::<f64>() / busy.len() as f64;
    assert!(
        average <= MOST_ON_AVERAGE && busy.iter().all(|&share| share <= MOST_EVER),
        "a worker was buried ({average:.2} on average): {samples:?}"
    );
    let hits: u64 = workers.iter().map(|w| w.stats().hit_tokens).sum();
    assert!(hits > 0, "the shared opening is never found in a cache");
    invariants::hold(&cluster, &workers, &[]).await;
}

/// Part of all requests in flight that the busiest worker holds, 0 to 1.
fn share_of_the_busiest(sample: &[u64]) -> f64 {
    let most = sample.iter().copied().max().unwrap_or(0);
    most as f64 / sample.iter().sum::<u64>() as f64
}
