//! `kill -9` of a replica under load: its own streams end, nothing else changes.

use std::time::Duration;

use grapevine_tests::chat::{self, Ending, Stream, distinct, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::invariants::{self, agreement};
use tokio::task::JoinSet;

const STREAMS: usize = 64;
const TOKENS: u32 = 60;
const STEP: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn only_the_streams_of_the_killed_replica_fail() {
    let workers = chat::workers(4, &chat::paced(STEP)).await;
    let mut cluster = Plan::default().workers(&workers).start(3).await;
    let prompts = distinct(300);
    let before = agreement(&cluster, &prompts).await;

    let mut streams = JoinSet::new();
    for number in 0..STREAMS {
        let data = cluster.replicas[number % 3].data();
        streams.spawn(async move {
            let body = streamed(&format!("stream {number}"), TOKENS);
            let mut stream = Stream::open(data, &body).await.expect("it is accepted");
            stream.read_events(2).await.expect("it has begun");
            (number, stream)
        });
    }
    let streams = streams.join_all().await;
    cluster.replicas[0].kill().await;
    let mut ends = JoinSet::new();
    for (number, stream) in streams {
        ends.spawn(async move { (number, stream.finish().await) });
    }
    // New requests go on through the survivors at once.
    for number in 0..2 * STREAMS {
        let data = cluster.replicas[1 + number % 2].data();
        ends.spawn(async move {
            let body = streamed(&format!("later {number}"), 5);
            (1 + number % 2, chat::stream(data, &body).await)
        });
    }

    let (mut cut, mut done) = (0, 0);
    for (number, outcome) in ends.join_all().await {
        if number % 3 == 0 {
            assert_eq!(outcome.ending, Ending::Cut, "stream {number}");
            cut += 1;
        } else {
            assert_eq!(
                outcome.ending,
                Ending::Done,
                "stream {number} of a survivor"
            );
            done += 1;
        }
    }
    println!(
        "killed 1 of 3 replicas under {STREAMS} streams: {cut} of its own cut, {done} others whole, 0 errors"
    );

    let after = agreement(&cluster, &prompts).await;
    assert_eq!(after.agreed, prompts.len());
    assert_eq!(after.workers, before.workers, "same prompt, same worker");

    cluster.replicas[0].seeds = vec![cluster.replicas[2].gossip_address()];
    cluster.replicas[0].start().await;
    cluster.settled().await;
    let back = agreement(&cluster, &prompts).await;
    assert_eq!(back.workers, before.workers, "also with the replica back");
    invariants::hold(&cluster, &workers, &[]).await;
}
