//! A simulated cluster: hosts that each run an agent, and the hand that breaks them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grapevine_gossip::config::{Facts, GossipConfig};
use grapevine_gossip::identity::{self, Identity};
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{RawWorker, Source, WorkerId, WorkerSpec};
use grapevine_gossip::{Ack, Agent, Metrics};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use turmoil::Sim;

use crate::chance;
use crate::invariants::Watchman;
use crate::network::SimNetwork;

/// Gossip port of every host.
const PORT: u16 = 30_002;
const TICK: Duration = Duration::from_millis(5);

type Job = Box<dyn FnOnce(Agent) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// What the outside holds of a running agent: nothing that keeps its socket open.
#[derive(Clone)]
struct Handle {
    views: watch::Receiver<Arc<View>>,
    ready: watch::Receiver<bool>,
    jobs: mpsc::Sender<Job>,
    metrics: Arc<Registry>,
}

type Table = Arc<Mutex<BTreeMap<usize, Handle>>>;

/// Replicas `r0`, `r1`, ... in one simulated network.
pub(crate) struct Cluster {
    sim: Sim<'static>,
    table: Table,
    seed: u64,
    size: usize,
    watchman: Watchman,
}

impl Cluster {
    /// `size` replicas; each asks `seeds` first.
    pub(crate) fn start(size: usize, seed: u64, seeds: &[&str]) -> Self {
        Self::start_with(size, seed, |_| {
            seeds.iter().map(|seed| (*seed).to_owned()).collect()
        })
    }

    /// `size` replicas, each of which knows only the one before.
    pub(crate) fn chain(size: usize, seed: u64) -> Self {
        Self::start_with(size, seed, |at| {
            at.checked_sub(1).map(name).into_iter().collect()
        })
    }

    fn start_with(size: usize, seed: u64, seeds: impl Fn(usize) -> Vec<String>) -> Self {
        chance::start(seed);
        let mut sim = turmoil::Builder::new()
            .tick_duration(TICK)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(5))
            .udp_capacity(4096)
            .rng_seed(seed)
            .build();
        let authority = identity::create("sim").expect("authority");
        let table = Table::default();
        for at in 0..size {
            let name = name(at);
            let leaf = identity::issue(&authority.cert_pem, &authority.key_pem, "sim", &name)
                .expect("leaf");
            let identity = Identity::from_pem(
                "sim",
                &name,
                &authority.cert_pem,
                &leaf.cert_pem,
                &leaf.key_pem,
            )
            .expect("identity");
            let config = GossipConfig {
                advertise: Some(format!("{name}:{PORT}")),
                seeds: seeds(at)
                    .iter()
                    .map(|seed| format!("{seed}:{PORT}"))
                    .collect(),
                ..GossipConfig::new(([0, 0, 0, 0], PORT).into(), Facts::default())
            };
            let network = Arc::new(SimNetwork {
                seed: chance::next(),
            });
            let table = table.clone();
            sim.host(name, move || {
                let (config, identity, network, table) = (
                    config.clone(),
                    identity.clone(),
                    network.clone(),
                    table.clone(),
                );
                async move {
                    let mut metrics = Registry::default();
                    let handles = Metrics::register(&mut metrics);
                    let agent =
                        Agent::start_on(network, config, identity, |_| 1.0, handles).await?;
                    let (jobs, mut queue) = mpsc::channel::<Job>(16);
                    let handle = Handle {
                        views: agent.watch(),
                        ready: agent.ready(),
                        jobs,
                        metrics: Arc::new(metrics),
                    };
                    lock(&table).insert(at, handle);
                    while let Some(job) = queue.recv().await {
                        job(agent.clone()).await;
                    }
                    Ok(())
                }
            });
        }
        Self {
            sim,
            table,
            seed,
            size,
            watchman: Watchman::new(seed),
        }
    }

    /// A host that takes every packet and never answers.
    pub(crate) fn add_mute(&mut self, name: &str) {
        self.sim.host(name, || async {
            let socket = turmoil::net::UdpSocket::bind(("0.0.0.0", PORT)).await?;
            let mut buffer = [0; 2048];
            loop {
                socket.recv_from(&mut buffer).await?;
            }
        });
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Indices of the replicas that run.
    pub(crate) fn running(&self) -> Vec<usize> {
        lock(&self.table).keys().copied().collect()
    }

    pub(crate) fn view(&self, at: usize) -> Arc<View> {
        lock(&self.table)[&at].views.borrow().clone()
    }

    pub(crate) fn is_ready(&self, at: usize) -> bool {
        lock(&self.table)
            .get(&at)
            .is_some_and(|handle| *handle.ready.borrow())
    }

    /// Lines of the metrics of `at` that begin so and are not zero.
    pub(crate) fn counted(&self, at: usize, beginning: &str) -> Vec<String> {
        let mut text = String::new();
        let metrics = lock(&self.table)[&at].metrics.clone();
        prometheus_client::encoding::text::encode(&mut text, &metrics).expect("encodes");
        let lines = text
            .lines()
            .filter(|line| line.starts_with(beginning) && !line.ends_with(" 0"));
        lines.map(str::to_owned).collect()
    }

    /// How many replicas `at` holds for alive, itself included.
    pub(crate) fn live(&self, at: usize) -> usize {
        self.view(at)
            .replicas()
            .iter()
            .filter(|replica| replica.live)
            .count()
    }

    /// Lets simulated time pass; every step is watched.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.sim.elapsed() + time;
        while self.sim.elapsed() < end {
            self.step();
        }
    }

    /// Lets time pass until `wanted` holds; returns how long that took.
    pub(crate) fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&Self) -> bool,
    ) -> Duration {
        let start = self.sim.elapsed();
        while !wanted(self) {
            let taken = self.sim.elapsed() - start;
            assert!(
                taken < limit,
                "seed {}: not within {limit:?}: {what}\n{}",
                self.seed,
                self.describe()
            );
            self.step();
        }
        let taken = self.sim.elapsed() - start;
        println!("seed {}: {what} after {taken:?}", self.seed);
        taken
    }

    /// Waits until every running replica is ready and holds all running ones for alive.
    pub(crate) fn until_joined(&mut self, limit: Duration) -> Duration {
        let count = self.running().len().max(1);
        let all = self.size;
        self.until("all joined", limit, |cluster| {
            let running = cluster.running();
            let expected = if count == 1 { all } else { running.len() };
            running.len() == expected
                && running
                    .iter()
                    .all(|&at| cluster.is_ready(at) && cluster.live(at) == expected)
        })
    }

    fn step(&mut self) {
        self.sim.step().expect("no host fails");
        let views = lock(&self.table)
            .iter()
            .map(|(at, handle)| (*at, handle.views.borrow().clone()))
            .collect();
        self.watchman.check(&views);
    }

    /// Runs a call on one replica; time passes until it returns.
    pub(crate) fn call<T, F, Fut>(&mut self, at: usize, call: F) -> T
    where
        T: Send + 'static,
        F: FnOnce(Agent) -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
    {
        let result = Arc::new(Mutex::new(None));
        let returned = result.clone();
        let job: Job = Box::new(move |agent| {
            let call = call(agent);
            Box::pin(async move {
                let value = call.await;
                *lock(&returned) = Some(value);
            })
        });
        let jobs = lock(&self.table)[&at].jobs.clone();
        jobs.try_send(job)
            .unwrap_or_else(|_| panic!("r{at} takes no jobs"));
        for _ in 0..5000 {
            if let Some(value) = lock(&result).take() {
                return value;
            }
            self.step();
        }
        panic!("seed {}: a call on r{at} did not return in 10 s", self.seed);
    }

    /// Adds a worker through one replica.
    pub(crate) fn add_worker(&mut self, at: usize, number: u16) -> (WorkerId, Ack) {
        let spec =
            WorkerSpec::new(RawWorker::at(format!("http://10.0.0.1:{number}"))).expect("spec");
        let id = spec.default_id();
        let added = id.clone();
        let ack = self.call(at, move |agent| async move {
            agent.put_worker(added, Source::Admin, spec).await
        });
        let ack = ack.expect("room for a worker");
        self.watchman.added(&id);
        (id, ack)
    }

    /// Removes a worker through one replica, which must know it.
    pub(crate) fn remove_worker(&mut self, at: usize, id: &WorkerId) -> Ack {
        let gone = id.clone();
        let ack = self.call(at, move |agent| async move {
            agent.remove_worker(&gone, Source::Admin).await
        });
        ack.expect("the worker is known")
    }

    /// Ends a replica without a goodbye.
    pub(crate) fn kill(&mut self, at: usize) {
        lock(&self.table).remove(&at);
        self.sim.crash(name(at));
    }

    /// Starts a killed replica again, with an empty memory.
    pub(crate) fn restart(&mut self, at: usize) {
        self.watchman.restarted(at);
        self.sim.bounce(name(at));
    }

    /// Cuts every link between the two sides.
    pub(crate) fn cut(&mut self, here: &[usize], there: &[usize]) {
        self.each_pair(here, there, |sim, a, b| sim.partition(a, b));
    }

    /// Cuts one direction.
    pub(crate) fn cut_oneway(&mut self, from: usize, to: usize) {
        self.sim.partition_oneway(name(from), name(to));
    }

    /// Repairs every link.
    pub(crate) fn heal(&mut self) {
        let all: Vec<usize> = (0..self.size).collect();
        self.each_pair(&all, &all, |sim, a, b| sim.repair(a, b));
    }

    /// Loses this share of all packets from now on.
    pub(crate) fn lose(&mut self, share: f64) {
        self.sim.set_fail_rate(share);
        let all: Vec<usize> = (0..self.size).collect();
        self.each_pair(&all, &all, |sim, a, b| sim.set_link_fail_rate(a, b, share));
    }

    fn each_pair(
        &mut self,
        here: &[usize],
        there: &[usize],
        change: impl Fn(&mut Sim<'static>, String, String),
    ) {
        for &a in here {
            for &b in there.iter().filter(|&&b| b != a) {
                change(&mut self.sim, name(a), name(b));
            }
        }
    }

    /// All views in short, for a failed wait.
    fn describe(&self) -> String {
        let line = |at: usize| {
            let view = self.view(at);
            let replicas = view.replicas().iter();
            let seen: Vec<_> = replicas
                .map(|seen| {
                    format!(
                        "{}{}@{}",
                        seen.id,
                        if seen.live { "" } else { " dead" },
                        seen.generation % 100_000
                    )
                })
                .collect();
            let workers: Vec<_> = view
                .workers()
                .iter()
                .map(|worker| worker.id.as_str())
                .collect();
            format!(
                "r{at} ready={} {} {seen:?} {workers:?}\n",
                self.is_ready(at),
                view.registry()
            )
        };
        self.running().into_iter().map(line).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "failed with seed {}; SIM_SEED={} runs a random schedule again",
                self.seed, self.seed
            );
        }
    }
}

fn name(at: usize) -> String {
    format!("r{at}")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
