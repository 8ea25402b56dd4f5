//! Three replicas under load, and the checks on them after every lie.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use grapevine_gossip::wire::{self, Message};
use grapevine_gossip::worker::{Source, WorkerId};
use grapevine_testbed::fake_worker::FakeWorker;
use grapevine_tests::admin::Ring;
use grapevine_tests::chat::{self, Ending};
use grapevine_tests::cluster::{Cluster, Plan, Replica};
use grapevine_tests::http1;
use grapevine_tests::invariants::agreement;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::interval;

use super::rogue::{Line, Pem, Rogue};

pub(super) const WORKERS: usize = 4;
/// Prompts whose places are compared before and after each attack.
pub(super) const SAMPLE: usize = 100;
/// Requests of one measurement of shares, and how many run at once.
pub(super) const REQUESTS: usize = 480;
pub(super) const CLIENTS: usize = 24;
/// The registry as a peer reads it.
pub(super) struct Known {
    pub(super) workers_digest: u32,
    /// Sorted, each with its epoch.
    pub(super) workers: Vec<(WorkerId, u64)>,
}

pub(super) struct Scene {
    pub(super) cluster: Cluster,
    pub(super) workers: Vec<FakeWorker>,
    pub(super) ring: Ring,
    pub(super) places: Vec<String>,
}

impl Scene {
    pub(super) async fn new() -> Self {
        let workers = chat::workers(WORKERS, &chat::paced(Duration::from_millis(5))).await;
        let cluster = Plan::default().workers(&workers).start(3).await;
        let ring = cluster.replicas[0].admin().ring().await;
        let places = places(&cluster).await;
        Self {
            cluster,
            workers,
            ring,
            places,
        }
    }

    pub(super) fn victim(&self) -> &Replica {
        &self.cluster.replicas[0]
    }

    pub(super) async fn rogue(&self, name: &str) -> Rogue {
        let identity = self.cluster.issue(name).await;
        let read = |path| std::fs::read_to_string(path).expect("it was just made");
        let pem = Pem {
            ca: read(identity.ca),
            cert: read(identity.cert),
            key: read(identity.key),
        };
        Rogue::start("grapevine", name, &pem)
    }

    /// All replicas are alive and agree, rings are the same, and prompts go to the same workers as before.
    pub(super) async fn unharmed(&self, attack: &str) {
        self.cluster.settled().await;
        for replica in &self.cluster.replicas {
            assert_eq!(replica.admin().ring().await, self.ring, "{attack}");
        }
        eventually(LIMIT, "prompts are placed as before", async || {
            let now = places(&self.cluster).await;
            let moved = now.iter().zip(&self.places).filter(|(a, b)| a != b);
            match moved.count() {
                0 => Ok(()),
                moved => Err(format!("after {attack}: {moved} of {SAMPLE} moved")),
            }
        })
        .await;
    }

    /// Sends the same prompts through all three replicas; all must succeed. Returns the share of each worker.
    pub(super) async fn shares(&self) -> BTreeMap<String, f64> {
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let address = self.cluster.replicas[client % 3].data();
            let mine = chat::distinct(REQUESTS).into_iter().skip(client);
            let mine: Vec<Value> = mine.step_by(CLIENTS).collect();
            clients.spawn(async move {
                let mut served = Vec::new();
                for mut body in mine {
                    body["stream"] = true.into();
                    body["max_tokens"] = 12.into();
                    let outcome = chat::stream(address, &body).await;
                    assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
                    served.push(outcome.worker.expect("it has an answer"));
                }
                served
            });
        }
        let mut shares: BTreeMap<String, f64> = BTreeMap::new();
        for worker in clients.join_all().await.concat() {
            *shares.entry(worker).or_default() += 1.0 / REQUESTS as f64;
        }
        shares
    }
}

pub(super) async fn places(cluster: &Cluster) -> Vec<String> {
    // Prompts that no client sends: evidence may move those of clients.
    let sample = |number| chat::chat(&format!("place of sample {number}; ").repeat(60), 1);
    let chats: Vec<Value> = (0..SAMPLE).map(sample).collect();
    agreement(cluster, &chats).await.workers
}

pub(super) fn gossip_address(replica: &Replica) -> SocketAddr {
    replica.gossip_address().parse().expect("an address")
}

/// Refused messages by reason; the counter exists from the first one on.
pub(super) async fn refused(replica: &Replica, reason: &str) -> f64 {
    let text = http1::get(replica.admin().0, "/metrics").await.text();
    let mut lines = text.lines();
    let counter = format!("grapevine_gossip_refused_total{{reason=\"{reason}\"}} ");
    let value = lines.find_map(|line| line.strip_prefix(&counter));
    value.map_or(0.0, |value| value.parse().expect("a number"))
}

/// Reads the registry like a starting replica.
pub(super) async fn known(line: &mut Line) -> Known {
    let answer = line.ask(&Message::SnapshotRequest).await;
    let answer = answer.expect("answered");
    let received = wire::decode(&answer).expect("one whole frame");
    let Some(Message::Snapshot(snapshot)) = received.message else {
        panic!("no snapshot");
    };
    let mut workers: BTreeMap<WorkerId, u64> = BTreeMap::new();
    for entry in snapshot.entries {
        let epoch = workers.entry(entry.id).or_default();
        if entry.source == Source::Restart {
            *epoch = entry.stamp.bits();
        }
    }
    Known {
        workers_digest: snapshot.load.expect("in the last frame").workers_digest,
        workers: workers.into_iter().collect(),
    }
}

pub(super) fn changed(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> f64 {
    let of = |shares: &BTreeMap<String, f64>, worker| shares.get(worker).copied().unwrap_or(0.0);
    before
        .keys()
        .chain(after.keys())
        .map(|worker| (of(before, worker) - of(after, worker)).abs())
        .fold(0.0, f64::max)
}

/// Sends a message to all three replicas again and again, until dropped.
pub(super) async fn repeat(lines: &mut [Line], every: Duration, say: impl Fn() -> Message) {
    let mut tick = interval(every);
    loop {
        tick.tick().await;
        let message = say();
        for line in &mut *lines {
            assert!(
                line.say(&message).await,
                "within its limits, it is not cut off"
            );
        }
    }
}

pub(super) async fn lines(scene: &Scene, rogue: &Rogue) -> Vec<Line> {
    let mut lines = Vec::new();
    for replica in &scene.cluster.replicas {
        lines.push(rogue.dial(gossip_address(replica)).await);
    }
    lines
}
