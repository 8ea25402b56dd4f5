//! All replicas send the same prompt to the same worker, after any change of the cluster.

use std::time::Duration;

use grapevine_tests::chat::{self, MODEL, distinct};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::invariants::{self, agreement};
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::Value;

const PROMPTS: usize = 2_000;
const REPLICAS: usize = 3;
const WORKERS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn same_prompt_same_worker_through_all_changes() {
    let workers = chat::workers(WORKERS + 1, &chat::paced(Duration::from_millis(1))).await;
    let (added, configured) = workers.split_last().expect("nine were started");
    let mut cluster = Plan::default().workers(configured).start(REPLICAS).await;
    let prompts = distinct(PROMPTS);

    let first = all_agree(&cluster, &prompts, "at the start").await;
    for worker in configured {
        assert!(first.contains(&worker.url()), "{} has no key", worker.url());
    }

    let through = cluster.replicas[0].admin();
    let change = through.add(&added.url(), &added.url(), &[MODEL]).await;
    assert!(change.replicated && change.confirmed_by >= 1, "{change:?}");
    workers_are(&cluster, WORKERS + 1).await;
    let second = all_agree(&cluster, &prompts, "after adding a worker").await;
    let moved = moved(&first, &second);
    assert!(!moved.is_empty(), "the new worker must have keys");
    for (_, to) in &moved {
        assert_eq!(**to, added.url(), "only the new worker may gain keys");
    }

    let removed = configured[0].url();
    let change = cluster.replicas[1].admin().remove(&removed).await;
    assert!(change.replicated, "{change:?}");
    workers_are(&cluster, WORKERS).await;
    let third = all_agree(&cluster, &prompts, "after removing a worker").await;
    for (from, _) in self::moved(&second, &third) {
        assert_eq!(*from, removed, "only the removed worker may lose keys");
    }

    // Every configuration file still names the removed worker and none names the added one.
    let gossip: Vec<String> = cluster
        .replicas
        .iter()
        .map(|r| r.gossip_address())
        .collect();
    for index in 0..REPLICAS {
        // A replica's own address among its seeds does no harm.
        cluster.replicas[index].seeds = gossip.clone();
        assert!(cluster.replicas[index].terminate().await.success());
        cluster.replicas[index].start().await;
        cluster.settled().await;
        workers_are(&cluster, WORKERS).await;
    }
    let fourth = all_agree(&cluster, &prompts, "after restarting each replica").await;
    assert_eq!(fourth, third, "a restart moves nothing");
    for replica in cluster.running() {
        let ids = replica.admin().workers().await;
        assert!(
            ids.iter().all(|worker| worker.id != removed),
            "it came back"
        );
    }
    invariants::hold(&cluster, &workers, &[]).await;
}

/// Asserts that all replicas agree on every prompt, and returns the worker of each.
async fn all_agree(cluster: &Cluster, prompts: &[Value], when: &str) -> Vec<String> {
    let found = agreement(cluster, prompts).await;
    println!(
        "{when}: {} of {} prompts agree",
        found.agreed,
        prompts.len()
    );
    assert_eq!(found.agreed, prompts.len(), "{when}");
    assert_eq!(found.digests.len(), 1, "{when}: {:?}", found.digests);
    found.workers
}

fn moved<'a>(before: &'a [String], after: &'a [String]) -> Vec<(&'a String, &'a String)> {
    let pairs = before.iter().zip(after);
    pairs.filter(|(from, to)| from != to).collect()
}

async fn workers_are(cluster: &Cluster, count: usize) {
    eventually(LIMIT, "the same workers everywhere", async || {
        for replica in cluster.running() {
            let ring = replica.admin().ring().await;
            if ring.workers != count || ring.pools[0].workers.len() != count {
                return Err(format!("{}: {ring:?}", replica.name));
            }
        }
        Ok(())
    })
    .await;
    cluster.settled().await;
}
