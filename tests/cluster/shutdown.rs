//! SIGTERM: not ready first, then nothing new, open streams to their end, exit code 0.

use std::time::Duration;

use grapevine_tests::chat::{self, Ending, Stream, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::invariants;
use grapevine_tests::process::Signal;
use grapevine_tests::wait::{LIMIT, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_told_to_end_finishes_its_streams() {
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(20))).await;
    let plan = Plan::default().set("timeouts.settle", "\"1s\"");
    let mut cluster = plan.workers(&workers).start(2).await;
    let [leaving, staying] = [&cluster.replicas[0], &cluster.replicas[1]];
    let (data, admin) = (leaving.data(), leaving.admin());

    // Two seconds of tokens: longer than settling, far shorter than the drain limit.
    let body = streamed("a long answer", 100);
    let mut open = Stream::open(data, &body).await.expect("it is accepted");
    open.read_events(2).await.expect("it has begun");
    leaving.process().signal(Signal::TERM);

    eventually(LIMIT, "not ready", async || match admin.is_ready().await {
        false => Ok(()),
        true => Err("ready".to_owned()),
    })
    .await;
    let settling = chat::chat("while it settles", 1);
    let answer = http1::post(data, "/v1/chat/completions", &settling).await;
    assert_eq!(answer.head.status, 200, "still served: {}", answer.text());
    assert_eq!(answer.head.header("connection"), Some("close"));
    let (_, took) = eventually(LIMIT, "the others know", async || {
        let view = staying.admin().view().await;
        let leaving = view.replicas.iter().find(|peer| peer.id == "r1");
        match leaving {
            Some(peer) if peer.live && peer.ready => Err(format!("{peer:?}")),
            _ => Ok(()),
        }
    })
    .await;
    println!("the other replica knew after {took:?}");
    eventually(
        LIMIT,
        "the port refuses",
        async || match Connection::try_open(data).await {
            Ok(_) => Err("it was accepted".to_owned()),
            Err(_) => Ok(()),
        },
    )
    .await;

    let outcome = open.finish().await;
    assert_eq!(outcome.ending, Ending::Done);
    assert_eq!(outcome.events.len(), 102, "role, 100 tokens, [DONE]");
    let status = cluster.replicas[0].ended().await;
    assert_eq!(status.code(), Some(0));
    let log = cluster.replicas[0].log();
    assert!(log.contains("every open request was finished"), "{log}");

    let rest = chat::stream(cluster.replicas[1].data(), &streamed("after it", 3)).await;
    assert_eq!(rest.ending, Ending::Done);
    invariants::hold(&cluster, &workers, &[]).await;
}
