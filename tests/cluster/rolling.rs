//! R01: every replica is restarted, one after the other, behind a balancer under load: clients do not notice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use grapevine_bench::client::{Client, Outcome};
use grapevine_bench::load::Prompts;
use grapevine_bench::tally::Tally;
use grapevine_testbed::balancer::{Balancer, Check, Config};
use grapevine_tests::admin::Admin;
use grapevine_tests::chat::{self, MODEL};
use grapevine_tests::cluster::{Cluster, Plan, Replica};
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Streams at once, and how long each lasts: longer than a replica settles, shorter than it drains.
const CLIENTS: usize = 12;
const TOKENS: u32 = 100;
const STEP: Duration = Duration::from_millis(20);
/// How often the balancer asks, and how long a leaving replica still serves so that the balancer notices.
const ASKED_EACH: Duration = Duration::from_millis(100);
const SETTLE: &str = "\"2s\"";
/// A load that is not stopped ends by itself.
const LOAD_MAX: Duration = Duration::from_secs(240);
const REQUEST_MAX: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_fails_no_request_and_cuts_no_stream() {
    let workers = chat::workers(4, &chat::paced(STEP)).await;
    let plan = Plan::default().set("timeouts.settle", SETTLE);
    let mut cluster = plan.workers(&workers).start(3).await;
    let balancer = balancer(&cluster).await;
    let load = Load::start(&balancer);
    load.answers(4 * CLIENTS as u64).await;
    load.phase("before");
    load.answers(4 * CLIENTS as u64).await;
    load.phase("during");
    for index in 0..3 {
        restart(&mut cluster, index, |_| {}).await;
    }
    load.phase("after");
    load.answers(4 * CLIENTS as u64).await;
    let (requests, rates) = load.succeeded().await;
    println!(
        "rolling restart of 3 replicas under {CLIENTS} streams of {:?}: {requests} requests, 0 failed; share of cached \
         prompt tokens {rates:.3?}",
        STEP * TOKENS
    );
    invariants::hold(&cluster, &workers, &[]).await;
}

/// Sends SIGTERM, waits for the end, and starts the replica anew; it must know what the others know before it
/// reports ready.
pub(crate) async fn restart(
    cluster: &mut Cluster,
    index: usize,
    change: impl FnOnce(&mut Replica),
) {
    let others = cluster.others(index);
    let replica = &mut cluster.replicas[index];
    let status = replica.terminate().await;
    assert_eq!(status.code(), Some(0), "{}", replica.name);
    replica.seeds = others;
    change(replica);
    replica.start().await;
    let replica = &cluster.replicas[index];
    let admin = replica.admin();
    eventually(LIMIT, "ready again", async || {
        let ready = admin.is_ready().await;
        so(ready, || "not ready".to_owned())
    })
    .await;
    let metrics = admin.metrics().await;
    let taken = metrics.sum(
        "grapevine_gossip_evidence_records_total",
        "fate=\"snapshot\"",
    );
    // After 2 s without any peer a replica becomes ready alone, as intended; on a starved machine a handshake
    // takes longer.
    let was_alone = replica.last_log().contains("no connection: no answer in");
    println!("{} took {taken} records of evidence", replica.name);
    assert!(
        taken > 0.0 || was_alone,
        "{} is ready without evidence",
        replica.name
    );
    assert_eq!(
        metrics.sum("grapevine_workers", ""),
        4.0,
        "{}",
        replica.name
    );
    cluster.settled().await;
    let elsewhere = cluster.replicas[(index + 1) % 3].admin();
    let sees = async |admin: Admin| -> f64 {
        let workers = admin.workers().await;
        workers.iter().map(|worker| worker.in_flight).sum()
    };
    println!(
        "r{} is back: it sees {:.1} requests in flight, its neighbour {:.1}",
        index + 1,
        sees(admin).await,
        sees(elsewhere).await,
    );
}

/// A balancer in front of all replicas, which asks each whether it wants requests.
pub(crate) async fn balancer(cluster: &Cluster) -> Balancer {
    let backends = cluster.replicas.iter().map(|r| r.data().to_string());
    let config = Config {
        check: Some(Check {
            path: "/readiness".to_owned(),
            interval: ASKED_EACH,
            timeout: Duration::from_secs(2),
        }),
        ..Config::new(backends.collect())
    };
    let started = Balancer::start(config).await;
    started.expect("a balancer can be started")
}

/// What the clients have seen so far.
#[derive(Default)]
struct Seen {
    tally: Tally,
    phase: &'static str,
    /// Prompt tokens of each phase, and how many of them were cached.
    tokens: BTreeMap<&'static str, (u64, u64)>,
}

/// Clients that request one stream after the other until they are stopped.
pub(crate) struct Load {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(balancer: &Balancer) -> Self {
        let target = balancer.url().parse().expect("a URL");
        let client = Arc::new(Client::one(target));
        let seen = Arc::<Mutex<Seen>>::default();
        let stop = Arc::<AtomicBool>::default();
        let next = Arc::<AtomicU64>::default();
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (client, seen) = (Arc::clone(&client), Arc::clone(&seen));
            let (stop, next) = (Arc::clone(&stop), Arc::clone(&next));
            clients.spawn(async move {
                let began = Instant::now();
                while !stop.load(Ordering::Relaxed) && began.elapsed() < LOAD_MAX {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let outcome = client.exchange(&prompts().ask(number), REQUEST_MAX).await;
                    note(&mut lock(&seen), &outcome);
                }
            });
        }
        Self {
            seen,
            stop,
            clients,
        }
    }

    /// Answers from now on are counted under this name.
    pub(crate) fn phase(&self, name: &'static str) {
        lock(&self.seen).phase = name;
    }

    /// Waits until so many more requests were answered.
    pub(crate) async fn answers(&self, more: u64) {
        let so_far = || lock(&self.seen).tally.requests();
        let wanted = so_far() + more;
        eventually(LIMIT, "answers", async || {
            let so_far = so_far();
            so(so_far >= wanted, || format!("{so_far} of {wanted}"))
        })
        .await;
    }

    /// Stops the clients and waits for open streams to end; every request must have been answered. Returns the
    /// number of requests, and the share of cached prompt tokens in each phase.
    pub(crate) async fn succeeded(self) -> (u64, BTreeMap<&'static str, f64>) {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.join_all().await;
        let seen = lock(&self.seen);
        let summary = seen.tally.summary(Duration::from_secs(1));
        assert_eq!(
            summary.succeeded, summary.requests,
            "requests failed: {:?}",
            summary.failures
        );
        let rate = |(phase, (prompt, cached)): (&&'static str, &(u64, u64))| {
            (*phase, *cached as f64 / (*prompt).max(1) as f64)
        };
        (summary.requests, seen.tokens.iter().map(rate).collect())
    }
}

fn note(seen: &mut Seen, outcome: &Outcome) {
    seen.tally.add(outcome, Duration::ZERO);
    if let Some(usage) = outcome.usage {
        let (prompt, cached) = seen.tokens.entry(seen.phase).or_default();
        *prompt += usage.prompt;
        *cached += usage.cached.unwrap_or(0);
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().expect("nobody panics with it")
}

fn prompts() -> Prompts {
    Prompts {
        groups: 16,
        shared_bytes: 4_000,
        max_tokens: TOKENS,
        model: Some(MODEL.to_owned()),
        ..Prompts::default()
    }
}
