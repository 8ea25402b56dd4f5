//! Knowledge of caches survives the restart of a replica, but not that of a worker.

use std::time::Duration;

use grapevine_testbed::fake_worker::FakeWorker;
use grapevine_tests::admin::{Explained, Worker};
use grapevine_tests::chat::{self, Ending, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const REPLICAS: usize = 3;
const WORKERS: usize = 4;
const CONVERSATIONS: usize = 120;

/// Turn `turn` of a conversation; all have one system prompt, so they share a home while nothing is hot.
fn turn(number: usize, turn: usize) -> Value {
    let mut messages = vec![
        json!({ "role": "system", "content": "You answer questions about rivers. ".repeat(40) }),
        json!({ "role": "user", "content": format!("Tell me of river {number}. ").repeat(60) }),
    ];
    for later in 0..turn {
        messages.push(json!({ "role": "assistant", "content": "It is long." }));
        messages.push(json!({ "role": "user", "content": format!("And what of bend {later}?") }));
    }
    json!({ "model": MODEL, "messages": messages, "max_tokens": 40, "stream": true })
}

/// A cluster whose conversations had their first turn all at once: more than a home may have, so many live
/// elsewhere.
async fn conversing(workers: &[FakeWorker]) -> Cluster {
    let cluster = Plan::default().workers(workers).start(REPLICAS).await;
    // A worker's first report of its start time makes earlier evidence void, so it must arrive before the
    // evidence.
    eventually(LIMIT, "the start of every worker is known", async || {
        for replica in cluster.running() {
            let known = replica.admin().workers().await;
            if let Some(unknown) = known.iter().find(|worker| worker.epoch == 0) {
                return Err(format!("{} does not know {}", replica.name, unknown.id));
            }
        }
        Ok(())
    })
    .await;
    let mut clients = JoinSet::new();
    for number in 0..CONVERSATIONS {
        let data = cluster.replicas[number % REPLICAS].data();
        clients.spawn(async move {
            let outcome = chat::stream(data, &turn(number, 0)).await;
            assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
        });
    }
    clients.join_all().await;
    cluster
}

/// Conversations whose next turn would go elsewhere than to its home.
fn away(answers: &[Explained]) -> impl Iterator<Item = &Explained> {
    answers.iter().filter(|answer| answer.worker != answer.home)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_replica_finds_conversations_away_from_home() {
    let workers = chat::workers(WORKERS, &chat::paced(Duration::from_millis(20))).await;
    let mut cluster = conversing(&workers).await;

    let next: Vec<Value> = (0..CONVERSATIONS).map(|number| turn(number, 1)).collect();
    let before = all_agree(&cluster, &next).await;
    let elsewhere = away(&before).count();
    println!("{elsewhere} of {CONVERSATIONS} conversations live away from their home");
    assert!(elsewhere >= CONVERSATIONS / 10, "too few: {elsewhere}");

    let gossip: Vec<String> = cluster.running().map(|r| r.gossip_address()).collect();
    for index in 0..REPLICAS {
        cluster.replicas[index].seeds = gossip.clone();
        assert!(cluster.replicas[index].terminate().await.success());
        cluster.replicas[index].start().await;
        let admin = cluster.replicas[index].admin();
        eventually(LIMIT, "ready", async || {
            so(admin.is_ready().await, || "not yet".to_owned())
        })
        .await;
        let at_once = admin.explain(&next).await;
        let same = at_once
            .iter()
            .zip(&before)
            .filter(|(a, b)| a.worker == b.worker)
            .count();
        println!(
            "{} right after ready: {same} of {CONVERSATIONS} as before",
            cluster.replicas[index].name
        );
        cluster.settled().await;
        let after = all_agree(&cluster, &next).await;
        let places = |answers: &[Explained]| -> Vec<Option<String>> {
            answers.iter().map(|answer| answer.worker.clone()).collect()
        };
        assert_eq!(
            places(&after),
            places(&before),
            "a restart moves no conversation"
        );
        eventually(LIMIT, "what is known is counted", async || {
            let entries = admin
                .metrics()
                .await
                .sum("grapevine_prefix_index_entries", "");
            so(entries > 0.0, || format!("{entries} entries"))
        })
        .await;
    }
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_worker_is_expected_to_hold_nothing() {
    let workers = chat::workers(WORKERS, &chat::paced(Duration::from_millis(20))).await;
    let cluster = conversing(&workers).await;
    let next: Vec<Value> = (0..CONVERSATIONS).map(|number| turn(number, 1)).collect();
    let before = all_agree(&cluster, &next).await;
    let lives_on = |url: &str, answers: &[Explained]| {
        let there = |answer: &&Explained| answer.worker.as_deref() == Some(url);
        away(answers).filter(there).count()
    };
    let victim = workers
        .iter()
        .max_by_key(|worker| lives_on(&worker.url(), &before))
        .expect("there are workers");
    let url = victim.url();
    let lived = lives_on(&url, &before);
    println!("{lived} of {CONVERSATIONS} conversations live on {url}, away from their home");
    assert!(lived > 0, "nothing to forget");
    let epoch_of = |workers: &[Worker]| {
        let found = workers.iter().find(|worker| worker.id == url);
        found.map_or(0, |worker| worker.epoch)
    };
    let first_epoch = epoch_of(&cluster.replicas[0].admin().workers().await);

    victim.restart();
    eventually(LIMIT, "nobody expects anything there", async || {
        for replica in cluster.running() {
            let epoch = epoch_of(&replica.admin().workers().await);
            let left = lives_on(&url, &replica.admin().explain(&next).await);
            if epoch <= first_epoch || left > 0 {
                return Err(format!("{}: epoch {epoch}, {left} left", replica.name));
            }
        }
        Ok(())
    })
    .await;
    let after = all_agree(&cluster, &next).await;
    // Conversations on the other workers stay there.
    for (old, new) in before.iter().zip(&after) {
        let stays = old.worker != old.home && old.worker.as_deref() != Some(&url);
        assert!(!stays || new.worker == old.worker, "{old:?} became {new:?}");
    }
    invariants::hold(&cluster, &workers, &[]).await;
}

/// Waits until all replicas give the same answers, and returns them.
async fn all_agree(cluster: &Cluster, chats: &[Value]) -> Vec<Explained> {
    // Evidence and heat travel in batches; the last of them may not have arrived yet.
    let (answers, _) = eventually(LIMIT, "replicas agree on every conversation", async || {
        let mut first: Option<Vec<Explained>> = None;
        for replica in cluster.running() {
            let answers = replica.admin().explain(chats).await;
            match &first {
                None => first = Some(answers),
                Some(first) => {
                    let other = first
                        .iter()
                        .zip(&answers)
                        .filter(|(a, b)| a.worker != b.worker);
                    let count = other.count();
                    if count > 0 {
                        return Err(format!("{} differs on {count}", replica.name));
                    }
                }
            }
        }
        first.ok_or_else(|| "nobody runs".to_owned())
    })
    .await;
    answers
}
