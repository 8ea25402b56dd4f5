//! One replica's findings about a worker spare the others: they lose no requests to it, and not all probe it.

use std::time::Duration;

use grapevine_testbed::fake_worker::FakeWorker;
use grapevine_tests::chat::{self, Ending};
use grapevine_tests::cluster::{Cluster, Plan, Replica};
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::Value;
use tokio::time::Instant;

const WORKERS: usize = 4;
/// Requests through each replica that knows of the stall only by gossip.
const REQUESTS: usize = 8;

/// Attempts of a replica at a worker, with any result.
async fn attempts(replica: &Replica, worker: &FakeWorker) -> f64 {
    let metrics = replica.admin().metrics().await;
    let label = format!("worker=\"{}\"", worker.url());
    metrics.sum("grapevine_attempts_total", &label)
}

/// Claims of other replicas that a replica accepts.
async fn believed(replica: &Replica, claim: &str) -> f64 {
    let metrics = replica.admin().metrics().await;
    let series = metrics.series("grapevine_health_claims");
    let wanted = [format!("claim=\"{claim}\""), "believed=\"yes\"".to_owned()];
    let chosen = series
        .iter()
        .filter(|(labels, _)| wanted.iter().all(|label| labels.contains(label)));
    chosen.map(|(_, value)| value).sum()
}

/// New prompts that all replicas would send to this worker.
async fn at_home(cluster: &Cluster, worker: &FakeWorker) -> Vec<Value> {
    let mut chats = chat::distinct(250);
    let explained = cluster.replicas[0].admin().explain(&chats).await;
    let mut homes = explained
        .iter()
        .map(|e| e.worker.as_deref() == Some(&*worker.url()));
    chats.retain(|_| homes.next() == Some(true));
    for chat in &mut chats {
        chat["stream"] = true.into();
        chat["max_tokens"] = 5.into();
    }
    chats
}

/// Where a replica would send a prompt now.
async fn goes_to(replica: &Replica, chat: &Value) -> Option<String> {
    let explained = replica.admin().explain(std::slice::from_ref(chat)).await;
    explained.into_iter().next().and_then(|e| e.worker)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stalls_for_one_replica_is_passed_over_by_all() {
    let workers = chat::workers(WORKERS, &chat::paced(Duration::from_millis(2))).await;
    let plan = Plan::default()
        .set("timeouts.first_token", "\"2s\"")
        .set("timeouts.first_token_per_1k", "\"0s\"");
    let cluster = plan.workers(&workers).start(3).await;
    let victim = &workers[0];
    let mut prompts = at_home(&cluster, victim).await;
    assert!(
        prompts.len() > 2 * REQUESTS + 2,
        "{} prompts",
        prompts.len()
    );
    let (last, first) = (prompts.pop(), prompts.pop());
    let (last, first) = last.zip(first).expect("there are more");
    let (payer, hearers) = cluster.replicas.split_first().expect("three");

    // Its engine stands still; connections and probes still work.
    victim.freeze(true);
    let outcome = chat::stream(payer.data(), &first).await;
    assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    assert_ne!(outcome.worker, Some(victim.url()), "it was moved");
    assert_eq!(attempts(payer, victim).await, 1.0, "and had been there");
    let paid = Instant::now();
    for hearer in hearers {
        eventually(LIMIT, "the claim is heard", async || {
            let claims = believed(hearer, "stalled").await;
            let worker = goes_to(hearer, &last).await;
            if claims >= 1.0 && worker.as_ref().is_some_and(|w| *w != victim.url()) {
                Ok(())
            } else {
                Err(format!("{}: {claims} claims, {worker:?}", hearer.name))
            }
        })
        .await;
    }
    println!("heard by all {:?} after it was paid for", paid.elapsed());
    for (number, prompt) in prompts.iter().take(2 * REQUESTS).enumerate() {
        let outcome = chat::stream(hearers[number % 2].data(), prompt).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
    for hearer in hearers {
        let seen = attempts(hearer, victim).await;
        assert_eq!(
            seen, 0.0,
            "{} went there although it had heard",
            hearer.name
        );
        let listed = hearer.admin().workers().await;
        let listed = listed.into_iter().find(|w| w.id == victim.url());
        let listed = listed.expect("it stays registered");
        assert_eq!(listed.health, "healthy", "by its probes");
    }

    victim.freeze(false);
    for replica in &cluster.replicas {
        let (_, took) = eventually(LIMIT, "it is used again", async || {
            match goes_to(replica, &last).await {
                Some(worker) if worker == victim.url() => Ok(()),
                worker => Err(format!("{}: {worker:?}", replica.name)),
            }
        })
        .await;
        println!(
            "{}: used again {took:?} after the look before",
            replica.name
        );
    }
    let outcome = chat::stream(hearers[0].data(), &last).await;
    assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    assert_eq!(outcome.worker, Some(victim.url()));
    invariants::hold(&cluster, &workers, &[]).await;
}

/// Health checks that each replica has made, in order.
async fn probes(cluster: &Cluster) -> Vec<f64> {
    let mut probes = Vec::new();
    for replica in cluster.running() {
        let metrics = replica.admin().metrics().await;
        probes.push(metrics.sum("grapevine_probes_total", "good"));
    }
    probes
}

/// Waits until some replica has made so many more, and returns how many each has made.
async fn more_probes(cluster: &Cluster, more: f64) -> Vec<f64> {
    let before = probes(cluster).await;
    let (made, _) = eventually(LIMIT, "probes go on", async || {
        let now = probes(cluster).await;
        let made: Vec<f64> = now
            .iter()
            .zip(&before)
            .map(|(now, was)| now - was)
            .collect();
        if made.iter().any(|made| *made >= more) {
            Ok(made)
        } else {
            Err(format!("{made:?}"))
        }
    })
    .await;
    made
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_are_shared_by_two_replicas_and_taken_over() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(2))).await;
    let mut cluster = Plan::default().workers(&workers).start(3).await;
    // A replica that gets the others' results late probes by itself meanwhile, so this may take more than one
    // try.
    let ((made, idle), took) =
        eventually(LIMIT, "one of three leaves it to the others", async || {
            let made = more_probes(&cluster, 12.0).await;
            match made.iter().position(|made| *made <= 1.0) {
                Some(idle) => Ok((made, idle)),
                None => Err(format!("all of them probe: {made:?}")),
            }
        })
        .await;
    println!("probes made meanwhile, by replica: {made:?}, {took:?} after the start");
    let busy = made.iter().filter(|made| **made > 1.0).count();
    assert_eq!(busy, 2, "{made:?}");

    // Both replicas that had the duty are gone; the third takes it over, because it gets no more reports.
    for (at, replica) in cluster.replicas.iter_mut().enumerate() {
        if at != idle {
            replica.kill().await;
        }
    }
    more_probes(&cluster, 8.0).await;
    invariants::hold(&cluster, &workers, &[]).await;
}
