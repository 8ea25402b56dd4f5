//! A worker that joins under traffic gets the prompts that will move to it before it gets requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use grapevine_testbed::fake_worker::{Config, Entry, FakeWorker, KvEventsConfig};
use grapevine_tests::admin::Worker;
use grapevine_tests::chat::{self, MODEL};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::invariants;
use grapevine_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// How long a state may take: a warm-up has half of it.
const LIMIT: Duration = Duration::from_secs(60);
const REPLICAS: usize = 3;
const WORKERS: usize = 3;
/// System prompts, each shared by many conversations; so few that each belongs to two of four workers. All
/// replicas know that by heat, so the new worker gets its share of them at once, whether it holds them or not.
const TENANTS: usize = 6;
const CLIENTS: usize = 6;
/// Tokens that clients ask for; a warm-up asks for one.
const TOKENS: u64 = 2;
/// Prefix of the request ids of warm-ups.
const WARM_UP: &str = "warm-up-";

fn chat_of(tenant: usize, turn: usize) -> Value {
    let system = format!("The rules of house {tenant}. ").repeat(40);
    // Long enough to have a home of its own among the workers of the tenant.
    let question = format!("Question {turn} of tenant {tenant}? ").repeat(25);
    json!({
        "model": MODEL,
        "messages": [{ "role": "system", "content": system }, { "role": "user", "content": question }],
        "max_tokens": TOKENS,
    })
}

/// Clients that send requests of one tenant after the other, through all replicas but those that are left
/// out.
struct Traffic {
    stop: Arc<AtomicBool>,
    clients: JoinSet<usize>,
}

impl Traffic {
    fn start(cluster: &Cluster, replicas: &[usize]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        /// Shared by all tests and clients: no request id is used twice.
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let data = cluster.replicas[replicas[client % replicas.len()]].data();
            let stop = Arc::clone(&stop);
            clients.spawn(async move {
                let mut sent = 0;
                while !stop.load(Ordering::Relaxed) {
                    let turn = TURN.fetch_add(1, Ordering::Relaxed);
                    let tenant = turn % TENANTS;
                    let body = chat_of(tenant, turn).to_string();
                    let id = format!("tenant-{tenant}-{turn}");
                    let headers = [("x-request-id", id.as_str())];
                    let path = "/v1/chat/completions";
                    let answer =
                        http1::exchange(data, "POST", path, &headers, body.as_bytes()).await;
                    assert_eq!(answer.head.status, 200, "{}", answer.text());
                    sent += 1;
                }
                sent
            });
        }
        Self { stop, clients }
    }

    /// Every request of every client got its answer.
    async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.join_all().await.into_iter().sum()
    }
}

/// Waits until a replica keeps the prompts of all tenants.
async fn all_are_hot(cluster: &Cluster, replica: usize) {
    let admin = cluster.replicas[replica].admin();
    eventually(LIMIT, "hot prompts", async || {
        let kept = admin.metrics().await.sum("grapevine_hot_prompts", "");
        match kept >= TENANTS as f64 {
            true => Ok(()),
            false => Err(format!("{kept} prompts")),
        }
    })
    .await;
}

async fn seen(cluster: &Cluster, replica: usize, id: &str) -> Option<Worker> {
    let workers = cluster.replicas[replica].admin().workers().await;
    workers.into_iter().find(|worker| worker.id == id)
}

/// Waits until all running replicas show the worker in this state.
async fn is_everywhere(cluster: &Cluster, id: &str, state: &str) -> Duration {
    let (_, took) = eventually(LIMIT, state, async || {
        for replica in cluster.running() {
            let workers = replica.admin().workers().await;
            let seen = workers.into_iter().find(|worker| worker.id == id);
            let seen = seen.map(|worker| worker.state);
            if seen.as_deref() != Some(state) {
                return Err(format!("{}: {seen:?}", replica.name));
            }
        }
        Ok(())
    })
    .await;
    took
}

/// Waits until the worker is in every running replica's ring, which follows the view of the registry.
async fn joins_all_rings(cluster: &Cluster, id: &str) {
    eventually(LIMIT, "in all rings", async || {
        match in_rings(cluster, id).await {
            found if found.iter().all(|of| *of) => Ok(()),
            found => Err(format!("{found:?}")),
        }
    })
    .await;
}

/// Whether the worker is in the ring of each running replica.
async fn in_rings(cluster: &Cluster, id: &str) -> Vec<bool> {
    let mut found = Vec::new();
    for replica in cluster.running() {
        let ring = replica.admin().ring().await;
        let pool = ring.pools.iter().find(|pool| pool.model == MODEL);
        found.push(pool.is_some_and(|pool| pool.workers.iter().any(|of| of == id)));
    }
    found
}

fn is_warm_up(entry: &Entry) -> bool {
    let id = entry.request_id.as_deref();
    id.is_some_and(|id| id.starts_with(WARM_UP))
}

/// Cached tokens of the first request of each tenant at a worker.
fn first_of_each_tenant(worker: &FakeWorker) -> BTreeMap<String, u64> {
    let mut first = BTreeMap::new();
    for entry in worker.log().into_iter().filter(|entry| !is_warm_up(entry)) {
        let id = entry.request_id.unwrap_or_default();
        if let Some((tenant, _)) = id.rsplit_once('-') {
            first
                .entry(tenant.to_owned())
                .or_insert(entry.cached_tokens);
        }
    }
    first
}

async fn plan_and_workers(limit: &str) -> (Cluster, Vec<FakeWorker>) {
    plan_and_workers_of(limit, &chat::paced(Duration::from_millis(1))).await
}

async fn plan_and_workers_of(limit: &str, config: &Config) -> (Cluster, Vec<FakeWorker>) {
    let workers = chat::workers(WORKERS + 1, config).await;
    let plan = Plan::default().set("warmup.limit", limit);
    let cluster = plan.start(REPLICAS).await;
    // By names of our own, so that the rings are the same in every run. Without traffic nothing is to be warmed.
    for (number, worker) in workers[..WORKERS].iter().enumerate() {
        let admin = cluster.replicas[number % REPLICAS].admin();
        let id = format!("w{number}");
        let added = admin.add(&id, &worker.url(), &[MODEL]).await;
        assert_eq!(added.state.as_deref(), Some("active"));
        is_everywhere(&cluster, &id, "active").await;
    }
    (cluster, workers)
}

/// Waits until a worker got requests of so many tenants.
async fn tenants_come(worker: &FakeWorker, count: usize) {
    eventually(LIMIT, "requests at the new worker", async || {
        let tenants = first_of_each_tenant(worker).len();
        match tenants >= count {
            true => Ok(()),
            false => Err(format!("{tenants} tenants")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_there_before_their_requests() {
    let (cluster, workers) = plan_and_workers("\"30s\"").await;
    let new = &workers[WORKERS];
    let traffic = Traffic::start(&cluster, &[0, 1, 2]);
    all_are_hot(&cluster, 0).await;
    let before = cluster.replicas[1].admin().ring().await.digest;
    let added = cluster.replicas[0]
        .admin()
        .add("new", &new.url(), &[MODEL])
        .await;
    assert_eq!(added.state.as_deref(), Some("warming"));
    let took = is_everywhere(&cluster, "new", "active").await;
    joins_all_rings(&cluster, "new").await;
    assert_ne!(cluster.replicas[1].admin().ring().await.digest, before);
    tenants_come(new, 2).await;
    let sent = traffic.end().await;

    let log = new.log();
    let warm_ups: Vec<&Entry> = log.iter().filter(|entry| is_warm_up(entry)).collect();
    let warmed = cluster.replicas[0].admin().metrics().await;
    let warmed = warmed.sum("grapevine_warm_up_prompts_total", "warmed");
    let first = first_of_each_tenant(new);
    println!(
        "joined under load: {} prompts warmed in {took:?}; first requests of {} tenants found {:?} cached tokens; {sent} requests, none lost",
        warm_ups.len(),
        first.len(),
        first.values().collect::<Vec<_>>(),
    );
    assert!(!warm_ups.is_empty());
    assert_eq!(warmed, warm_ups.len() as f64);
    assert!(warm_ups.iter().all(|entry| entry.tokens == 1));
    let last_warm = warm_ups.iter().map(|entry| entry.seq).max();
    let first_asked = log.iter().find(|entry| !is_warm_up(entry));
    assert!(last_warm < first_asked.map(|entry| entry.seq));
    let cold: Vec<_> = first.iter().filter(|(_, cached)| **cached == 0).collect();
    assert!(cold.is_empty(), "cold: {cold:?}");
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_file_that_is_read_again_is_warmed_too() {
    let (cluster, workers) = plan_and_workers("\"30s\"").await;
    let new = &workers[WORKERS];
    let traffic = Traffic::start(&cluster, &[0, 1, 2]);
    all_are_hot(&cluster, 0).await;
    let file = std::fs::read_to_string(cluster.config()).expect("it is there");
    let url = new.url();
    let more =
        format!("{file}\n[[worker]]\nid = \"new\"\nurl = \"{url}\"\nmodels = [\"{MODEL}\"]\n");
    std::fs::write(cluster.config(), more).expect("a file can be written");
    let admin = format!("http://{}", cluster.replicas[0].admin().0);
    let reload = ["config", "reload", "--json", "--admin", &admin];
    let read_again = async || {
        let told = grapevine_tests::process::run(&reload).await;
        assert_eq!(told.code, Some(0), "{}", told.text);
        serde_json::from_str::<Value>(&told.text).expect("JSON")
    };
    assert_eq!(read_again().await["put"], 1);
    is_everywhere(&cluster, "new", "active").await;
    joins_all_rings(&cluster, "new").await;
    tenants_come(new, 2).await;
    let warm_ups = new.log().iter().filter(|entry| is_warm_up(entry)).count();
    let first = first_of_each_tenant(new);
    let cold = first.values().filter(|cached| **cached == 0).count();
    // On a busy machine one comes whose prompt belongs to others: there are too many requests at those.
    assert!(
        warm_ups > 0 && cold <= TENANTS - warm_ups,
        "{warm_ups} warmed: {first:?}"
    );
    // That it was warmed is no other description.
    let again = read_again().await;
    assert_eq!((&again["put"], &again["differs"]), (&json!(0), &json!([])));
    traffic.end().await;
    invariants::hold(&cluster, &workers, &[]).await;
}

/// A worker that was removed and comes back with its cache says so by its KV events: it is not made to compute again.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_worker_holds_is_not_sent_again() {
    let publishing = Config {
        kv_events: Some(KvEventsConfig::default()),
        ..chat::paced(Duration::from_millis(1))
    };
    let (cluster, workers) = plan_and_workers_of("\"30s\"", &publishing).await;
    let new = &workers[WORKERS];
    let admin = cluster.replicas[0].admin();
    let traffic = Traffic::start(&cluster, &[0, 1, 2]);
    all_are_hot(&cluster, 0).await;
    admin.add("new", &new.url(), &[MODEL]).await;
    is_everywhere(&cluster, "new", "active").await;
    tenants_come(new, 2).await;
    admin.remove("new").await;
    eventually(LIMIT, "it is gone", async || {
        match seen(&cluster, 0, "new").await {
            None => Ok(()),
            Some(worker) => Err(format!("{worker:?}")),
        }
    })
    .await;
    let warm_ups = new.log().iter().filter(|entry| is_warm_up(entry)).count();
    assert!(warm_ups > 0);
    let added = admin.add("again", &new.url(), &[MODEL]).await;
    assert_eq!(added.state.as_deref(), Some("warming"));
    is_everywhere(&cluster, "again", "active").await;
    let metrics = admin.metrics().await;
    let held = metrics.sum("grapevine_warm_up_prompts_total", "held");
    let sent = new.log().iter().filter(|entry| is_warm_up(entry)).count() - warm_ups;
    println!("{warm_ups} prompts warmed at first, then {held} held and {sent} sent");
    assert!(
        held > 0.0 && (sent as f64) < held,
        "{held} held, {sent} sent"
    );
    traffic.end().await;
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_it_they_are_not() {
    let (cluster, workers) = plan_and_workers("\"8s\"").await;
    let new = &workers[WORKERS];
    let traffic = Traffic::start(&cluster, &[0, 1, 2]);
    all_are_hot(&cluster, 0).await;
    let admin = cluster.replicas[0].admin();
    let added = admin.add_cold("new", &new.url(), &[MODEL]).await;
    assert_eq!(added.state.as_deref(), Some("active"));
    tenants_come(new, 2).await;
    let sent = traffic.end().await;
    let first = first_of_each_tenant(new);
    println!(
        "joined cold: first requests of {} tenants found {:?} cached tokens; {sent} requests",
        first.len(),
        first.values().collect::<Vec<_>>(),
    );
    assert!(!new.log().iter().any(is_warm_up));
    assert!(first.values().all(|cached| *cached == 0), "{first:?}");
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_everywhere_though_its_replica_is_killed() {
    let (mut cluster, workers) = plan_and_workers("\"15s\"").await;
    let new = &workers[WORKERS];
    let traffic = Traffic::start(&cluster, &[0, 1, 2]);
    all_are_hot(&cluster, 0).await;
    traffic.end().await;
    let traffic = Traffic::start(&cluster, &[1, 2]);
    // It answers its probes, and never a prompt.
    new.freeze(true);
    cluster.replicas[0]
        .admin()
        .add("new", &new.url(), &[MODEL])
        .await;
    is_everywhere(&cluster, "new", "warming").await;
    assert_eq!(in_rings(&cluster, "new").await, [false; REPLICAS]);
    cluster.replicas[0].kill().await;
    new.freeze(false);
    let took = is_everywhere(&cluster, "new", "active").await;
    joins_all_rings(&cluster, "new").await;
    let sent = traffic.end().await;
    println!("its replica killed: active on the others after {took:?}; {sent} requests, none lost");
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_said_of_the_worker_ends_it() {
    let (cluster, workers) = plan_and_workers("\"8s\"").await;
    let new = &workers[WORKERS];
    let traffic = Traffic::start(&cluster, &[0, 1, 2]);
    all_are_hot(&cluster, 0).await;
    let (admin, other) = (cluster.replicas[0].admin(), cluster.replicas[1].admin());
    let ended = async |result: &str, count: f64| {
        eventually(LIMIT, result, async || {
            let metrics = admin.metrics().await;
            let ends = metrics.sum("grapevine_warm_ups_total", result);
            match ends == count {
                true => Ok(()),
                false => Err(format!("{:?}", metrics.series("grapevine_warm_ups_total"))),
            }
        })
        .await;
    };
    new.freeze(true);
    admin.add("removed", &new.url(), &[MODEL]).await;
    is_everywhere(&cluster, "removed", "warming").await;
    // Whoever says the same again changes nothing.
    for again in [admin, other] {
        let added = again.add("removed", &new.url(), &[MODEL]).await;
        assert_eq!(added.state.as_deref(), Some("warming"));
    }
    is_everywhere(&cluster, "removed", "warming").await;
    ended("cancelled", 0.0).await;
    other.remove("removed").await;
    ended("cancelled", 1.0).await;
    assert!(seen(&cluster, 0, "removed").await.is_none());

    // Nothing listens there: the worker becomes active at the end of its time, and no sooner.
    let nowhere = chat::worker(chat::paced(Duration::ZERO)).await;
    let url = nowhere.url();
    nowhere.kill().await;
    admin.add("unreachable", &url, &[MODEL]).await;
    is_everywhere(&cluster, "unreachable", "warming").await;
    is_everywhere(&cluster, "unreachable", "active").await;
    ended("out_of_time", 1.0).await;
    traffic.end().await;
    other.remove("unreachable").await;
    new.freeze(false);
    invariants::hold(&cluster, &workers, &[]).await;
}
