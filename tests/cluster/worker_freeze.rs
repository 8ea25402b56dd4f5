//! SIGSTOP of a worker under streams: the kernel still accepts connections for it, and nothing answers.

use grapevine_tests::chat::{self, EXPLAIN, Ending, MODEL, Stream, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::process::{Process, Signal};
use grapevine_tests::wait::{LIMIT, eventually, so};
use grapevine_tests::{http1, invariants};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::worker_kill::start_worker;

/// Three worker processes, which the plan's cluster has.
async fn three_workers(dir: &TempDir, mut plan: Plan) -> (Plan, Vec<(Process, String)>) {
    let mut workers = Vec::new();
    for number in 0..3 {
        let (process, url) = start_worker(dir, &format!("w{number}"), "0").await;
        plan = plan.worker(&url, &[MODEL]);
        workers.push((process, url));
    }
    (plan, workers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_is_left_and_used_again_once_it_goes_on() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let plan = Plan::default()
        .set("timeouts.first_token", "\"1s\"")
        .set("timeouts.first_token_per_1k", "\"0s\"")
        .set("timeouts.inter_token", "\"1s\"")
        .set("health.timeout", "\"500ms\"");
    let (plan, workers) = three_workers(&dir, plan).await;
    let cluster = plan.start(2).await;
    let (data, admin) = (cluster.replicas[0].data(), cluster.replicas[0].admin());
    let (victim, url) = &workers[0];
    admin.verdict(url, "good").await;

    // A stream that has begun on it, and a prompt whose home it is.
    let mut number = 0;
    let mut begun = loop {
        number += 1;
        let body = streamed(&format!("long answer {number}"), 2_000);
        let mut stream = Stream::open(data, &body).await.expect("a head");
        stream.read_events(2).await.expect("it has begun");
        if stream.head().header("x-grapevine-worker") == Some(url) {
            break stream;
        }
        stream.leave(true);
    };
    let at_home = loop {
        number += 1;
        let body = streamed(&format!("question {number}"), 3);
        let explained = admin.explain(std::slice::from_ref(&body)).await;
        if explained[0].worker.as_ref() == Some(url) {
            break body;
        }
    };
    begun.read_events(4).await.expect("it goes on");
    victim.signal(Signal::STOP);
    let stopped = Instant::now();
    let (cut, moved) = tokio::join!(begun.finish(), chat::stream(data, &at_home));
    assert!(matches!(cut.ending, Ending::ErrorEvent(_)), "{cut:?}");
    assert_eq!(moved.ending, Ending::Done, "{moved:?}");
    assert_ne!(moved.worker.as_ref(), Some(url));
    let after = |outcome: &chat::Outcome| outcome.ended.saturating_duration_since(stopped);
    println!(
        "limits of 1 s: the stream was cut {:?} after SIGSTOP, the request that waited was answered after {:?}",
        after(&cut),
        after(&moved),
    );

    let verdict = admin.worker(url).await.verdict;
    assert!(
        ["stalled", "unhealthy"].contains(&verdict.as_str()),
        "{verdict}"
    );
    let before = admin.attempts(url).await;
    for number in 0..40 {
        let outcome = chat::stream(data, &streamed(&format!("later {number}"), 1)).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
    let attempts = admin.attempts(url).await - before;
    assert!(attempts == 0.0, "{attempts} more requests were sent to it");
    admin.verdict(url, "unhealthy").await;

    victim.signal(Signal::CONT);
    let continued = Instant::now();
    eventually(LIMIT, "its prompts are its own again", async || {
        let outcome = chat::stream(data, &at_home).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
        so(outcome.worker.as_ref() == Some(url), || {
            format!("{outcome:?}")
        })
    })
    .await;
    println!("in use again {:?} after SIGCONT", continued.elapsed());
    for replica in cluster.running() {
        replica.admin().verdict(url, "good").await;
    }
    invariants::hold(&cluster, &[], &[]).await;
}

/// More than half of the workers are unhealthy, so health is not believed (panic); but a worker that answers
/// nothing at all gets no request. The first token may take a minute here, so a request that was sent to a frozen
/// worker would show.
#[tokio::test(flavor = "multi_thread")]
async fn two_of_three_frozen_workers_get_nothing_while_one_answers() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let plan = Plan::default().set("health.timeout", "\"500ms\"");
    let (plan, workers) = three_workers(&dir, plan).await;
    let cluster = plan.start(2).await;
    for (_, url) in &workers {
        for replica in cluster.running() {
            replica.admin().verdict(url, "good").await;
        }
    }
    for replica in cluster.running() {
        let outcome = chat::stream(replica.data(), &streamed("a first one", 1)).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
    let (well, frozen) = workers.split_first().expect("there are three");
    for (process, _) in frozen {
        process.signal(Signal::STOP);
    }
    let mut before = Vec::new();
    for replica in cluster.running() {
        for (_, url) in frozen {
            replica.admin().verdict(url, "unhealthy").await;
            before.push(replica.admin().attempts(url).await);
        }
    }
    for number in 0..40 {
        let data = cluster.replicas[number % 2].data();
        let outcome = chat::stream(data, &streamed(&format!("prompt {number}"), 1)).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
        assert_eq!(outcome.worker.as_ref(), Some(&well.1), "{outcome:?}");
    }
    let mut after = Vec::new();
    for replica in cluster.running() {
        for (_, url) in frozen {
            after.push(replica.admin().attempts(url).await);
        }
    }
    assert_eq!(before, after, "frozen workers were asked");

    for (process, url) in frozen {
        process.signal(Signal::CONT);
        for replica in cluster.running() {
            replica.admin().verdict(url, "good").await;
        }
    }
    invariants::hold(&cluster, &[], &[]).await;
}

/// Nobody else has the response, and nothing is computed that could be lost.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_a_response_of_a_frozen_worker_is_told_so() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let plan = Plan::default().set("health.timeout", "\"500ms\"");
    let (plan, workers) = three_workers(&dir, plan).await;
    let cluster = plan.start(1).await;
    let (data, admin) = (cluster.replicas[0].data(), cluster.replicas[0].admin());
    for (_, url) in &workers {
        admin.verdict(url, "good").await;
    }
    let path = "/v1/responses";
    let body = json!({ "model": MODEL, "input": "hello", "max_output_tokens": 1 });
    let body = body.to_string();
    let made = http1::exchange(data, "POST", path, &[EXPLAIN], body.as_bytes()).await;
    let holder = made.head.header("x-grapevine-worker").expect("explained");
    let id = made.json::<Value>()["id"].as_str().map(str::to_owned);
    let path = format!("{path}/{}", id.expect("an id"));
    let held = workers.iter().find(|(_, url)| url == holder);
    let (process, url) = held.expect("one of them");
    process.signal(Signal::STOP);
    let (before, _) = tokio::join!(http1::get(data, &path), admin.verdict(url, "unhealthy"));
    for told in [before, http1::get(data, &path).await] {
        assert_eq!(told.head.status, 503, "{}", told.text());
        let error: Value = told.json();
        assert_eq!(error["error"]["code"], "no_worker_available", "{error}");
    }
    process.signal(Signal::CONT);
    admin.verdict(url, "good").await;
    assert_eq!(http1::get(data, &path).await.head.status, 200);
    invariants::hold(&cluster, &[], &[]).await;
}
