//! A simulated cluster: hosts that each run an agent, and the faults of the test.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use grapevine_gossip::config::{Facts, GossipConfig};
use grapevine_gossip::evidence::EvidenceEvent;
use grapevine_gossip::identity::{self, Identity};
use grapevine_gossip::peer_state::PeerStates;
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{RawWorker, Source, WorkerId, WorkerSpec};
use grapevine_gossip::{Ack, Agent, Metrics, Network, ReplicaId};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use turmoil::Sim;

use crate::host::{self, Plug, Process, WallClock};
use crate::invariants::{Watchman, in_short};
use crate::network::{LinkFaults, SimNetwork};
use crate::rng;

/// Gossip port of every host.
pub(crate) const PORT: u16 = 30_002;
const TICK: Duration = Duration::from_millis(5);

type Job = Box<dyn FnOnce(Agent) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// The handles of a running agent for the test.
#[derive(Clone)]
struct Handle {
    agent: Agent,
    views: watch::Receiver<Arc<View>>,
    ready: watch::Receiver<bool>,
    jobs: mpsc::Sender<Job>,
    metrics: Arc<Registry>,
}

type Table = Arc<Mutex<BTreeMap<usize, Handle>>>;

/// What a replica received on the evidence plane since its start.
#[derive(Debug, Clone, Default)]
pub(crate) struct Received {
    /// First links of the records, by sender.
    pub(crate) links: BTreeMap<ReplicaId, BTreeSet<u64>>,
    /// Senders of which some records are known to be lost.
    pub(crate) lost: BTreeSet<ReplicaId>,
}

/// A host: the state that outlives its processes, and the process that runs now.
struct Host {
    config: GossipConfig,
    identity: Identity,
    seed: u64,
    clock: Arc<WallClock>,
    plug: Plug,
    process: Option<Process>,
    received: Arc<Mutex<Received>>,
    configured: Vec<WorkerSpec>,
}

/// Replicas `r0`, `r1`, ... in one simulated network.
pub(crate) struct Cluster {
    sim: Sim<'static>,
    tick: Duration,
    /// Virtual milliseconds, for the wall clocks.
    elapsed_ms: Arc<AtomicU64>,
    names: Arc<BTreeMap<String, IpAddr>>,
    hosts: Vec<Host>,
    table: Table,
    seed: u64,
    link_faults: LinkFaults,
    watchman: Watchman,
}

impl Cluster {
    /// `size` replicas; each asks `seeds` first.
    pub(crate) fn start(size: usize, seed: u64, seeds: &[&str]) -> Self {
        Self::start_configured(size, seed, seeds, TICK, &[])
    }

    /// The same with workers in every replica's configuration file, in steps of `tick`: longer steps cost
    /// less and delay packets more.
    pub(crate) fn start_configured(
        size: usize,
        seed: u64,
        seeds: &[&str],
        tick: Duration,
        configured: &[WorkerSpec],
    ) -> Self {
        let seeds = |_| seeds.iter().map(|seed| (*seed).to_owned()).collect();
        Self::start_with(size, seed, tick, configured, seeds)
    }

    /// `size` replicas; each has only the one before it as a seed.
    pub(crate) fn chain(size: usize, seed: u64) -> Self {
        Self::start_with(size, seed, TICK, &[], |at| {
            at.checked_sub(1).map(name).into_iter().collect()
        })
    }

    fn start_with(
        size: usize,
        seed: u64,
        tick: Duration,
        configured: &[WorkerSpec],
        seeds: impl Fn(usize) -> Vec<String>,
    ) -> Self {
        rng::start(seed);
        host::count_panics();
        let mut sim = turmoil::Builder::new()
            .tick_duration(tick)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(5))
            .udp_capacity(4096)
            .rng_seed(seed)
            .build();
        let authority = identity::create("sim").expect("authority");
        let link_faults = LinkFaults::default();
        let elapsed_ms = Arc::new(AtomicU64::new(0));
        let mut names = BTreeMap::new();
        let mut hosts = Vec::new();
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
            let seeds = seeds(at);
            for host in std::iter::once(&name).chain(&seeds) {
                if !host.ends_with(".invalid") {
                    names.insert(host.clone(), sim.lookup(host.as_str()));
                }
            }
            let config = GossipConfig {
                advertise: Some(format!("{name}:{PORT}")),
                seeds: seeds.iter().map(|seed| format!("{seed}:{PORT}")).collect(),
                ..GossipConfig::new(([0, 0, 0, 0], PORT).into(), Facts::default())
            };
            let seed = rng::next();
            let network = SimNetwork {
                host: name.clone(),
                link_faults: link_faults.clone(),
            };
            let plug = Plug::default();
            let relayed = plug.clone();
            sim.host(name, move || {
                host::relay(network.clone(), PORT, relayed.clone())
            });
            hosts.push(Host {
                config,
                identity,
                seed,
                clock: Arc::new(WallClock::new(elapsed_ms.clone())),
                plug,
                process: None,
                received: Arc::default(),
                configured: configured.to_vec(),
            });
        }
        let mut cluster = Self {
            sim,
            tick,
            elapsed_ms,
            names: Arc::new(names),
            hosts,
            table: Table::default(),
            seed,
            link_faults,
            watchman: Watchman::new(seed),
        };
        (0..size).for_each(|at| cluster.spawn(at));
        cluster
    }

    /// Starts the process of a host.
    fn spawn(&mut self, at: usize) {
        let table = self.table.clone();
        let host = &mut self.hosts[at];
        let (config, identity) = (host.config.clone(), host.identity.clone());
        let configured = host.configured.clone();
        host.received = Arc::default();
        let received = host.received.clone();
        // Each process draws other numbers.
        host.seed = host.seed.wrapping_add(1);
        host.process = Some(Process::spawn(
            &host.plug,
            self.names.clone(),
            host.seed,
            host.clock.clone(),
            move |network| run(network, config, identity, configured, received, table, at),
        ));
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
        self.hosts.len()
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The impairments of all links.
    pub(crate) fn link_faults(&self) -> &LinkFaults {
        &self.link_faults
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

    /// Forgets what all replicas received on the evidence plane.
    pub(crate) fn clear_received(&self) {
        for host in &self.hosts {
            *lock(&host.received) = Received::default();
        }
    }

    /// The value of a metric of `at` without labels.
    pub(crate) fn gauge(&self, at: usize, name: &str) -> u64 {
        let lines = self.counted(at, &format!("{name} "));
        let value = lines
            .first()
            .and_then(|line| line.rsplit(' ').next()?.parse().ok());
        value.unwrap_or(0)
    }

    /// The others' peer states as `at` has them.
    pub(crate) fn peer_states(&self, at: usize) -> Arc<PeerStates> {
        lock(&self.table)[&at].agent.peer_states()
    }

    /// Lines of the metrics of `at` that begin with this text and are not zero. Panics if none begins so: counters are
    /// there before they count.
    pub(crate) fn counted(&self, at: usize, beginning: &str) -> Vec<String> {
        let mut text = String::new();
        let metrics = lock(&self.table)[&at].metrics.clone();
        prometheus_client::encoding::text::encode(&mut text, &metrics).expect("encodes");
        let mut lines: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with(beginning))
            .map(str::to_owned)
            .collect();
        assert!(!lines.is_empty(), "no metric begins with {beginning}");
        lines.retain(|line| !line.ends_with(" 0"));
        lines
    }

    /// Number of replicas that `at` sees as alive, itself included.
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

    /// Waits until every running replica is ready and sees all running ones as alive.
    pub(crate) fn until_joined(&mut self, limit: Duration) -> Duration {
        let count = self.running().len().max(1);
        let all = self.size();
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
        for host in &mut self.hosts {
            if let Some(process) = &mut host.process {
                process.tick(self.tick);
            }
        }
        assert_eq!(host::panics(), 0, "a task of a replica panicked");
        self.sim.step().expect("no relay fails");
        let elapsed = u64::try_from(self.sim.elapsed().as_millis()).expect("below an age");
        self.elapsed_ms.store(elapsed, Ordering::Relaxed);
        let views = lock(&self.table)
            .iter()
            .map(|(at, handle)| (*at, handle.views.borrow().clone()))
            .collect();
        self.watchman.check(self.sim.elapsed(), &views);
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

    /// Kills a replica; it sends nothing more.
    pub(crate) fn kill(&mut self, at: usize) {
        lock(&self.table).remove(&at);
        self.hosts[at].process = None;
        self.sim.crash(name(at));
    }

    /// Starts a killed replica again, with an empty memory. Its host's clock has run on.
    pub(crate) fn restart(&mut self, at: usize) {
        self.watchman.restarted(at);
        self.spawn(at);
        self.sim.bounce(name(at));
    }

    /// Stops a replica as SIGSTOP does; see `host.rs`. Calls on it do not return meanwhile.
    pub(crate) fn pause(&mut self, at: usize) {
        if let Some(process) = &mut self.hosts[at].process {
            process.freeze();
        }
    }

    /// Lets a paused replica go on: its clocks have run on.
    pub(crate) fn resume(&mut self, at: usize) {
        if let Some(process) = &mut self.hosts[at].process {
            process.thaw();
        }
    }

    /// Sets how far the wall clock of a host is ahead of the others', or behind if negative. It stays
    /// so when the replica restarts.
    pub(crate) fn skew(&mut self, at: usize, skew_ms: i64) {
        self.hosts[at].clock.skew(skew_ms);
    }

    /// Virtual time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.sim.elapsed()
    }

    /// What a replica received on the evidence plane since its start.
    pub(crate) fn received(&self, at: usize) -> Received {
        lock(&self.hosts[at].received).clone()
    }

    /// Cuts every link between the two sides.
    pub(crate) fn cut(&mut self, here: &[usize], there: &[usize]) {
        self.each_pair(here, there, |sim, a, b| sim.partition(a, b));
    }

    /// Cuts one direction.
    pub(crate) fn cut_oneway(&mut self, from: usize, to: usize) {
        self.sim.partition_oneway(name(from), name(to));
    }

    /// Holds the packets between two replicas until links are healed.
    pub(crate) fn hold(&mut self, a: usize, b: usize) {
        self.sim.hold(name(a), name(b));
    }

    /// Repairs every link, and releases held packets.
    pub(crate) fn heal(&mut self) {
        let all: Vec<usize> = (0..self.size()).collect();
        self.each_pair(&all, &all, |sim, a, b| {
            sim.release(a.clone(), b.clone());
            sim.repair(a, b);
        });
    }

    /// Loses this share of all packets from now on.
    pub(crate) fn lose(&mut self, share: f64) {
        self.sim.set_fail_rate(share);
        let all: Vec<usize> = (0..self.size()).collect();
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
    pub(crate) fn describe(&self) -> String {
        let line = |at: usize| {
            let (ready, view) = (self.is_ready(at), self.view(at));
            let counted = [
                "gossip_dropped",
                "gossip_refused",
                "gossip_peer_state_parts",
                "gossip_handshakes",
            ]
            .map(|beginning| self.counted(at, beginning).join(" "));
            let counted = counted.join(" ");
            format!("r{at} ready={ready} {}\n  {counted}\n", in_short(&view))
        };
        self.running().into_iter().map(line).collect()
    }

    /// Hash of all views over time.
    pub(crate) fn trace(&self) -> u64 {
        self.watchman.trace()
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

/// The process of a replica: starts the agent, hands its handles to the test, and does the jobs that it gets.
async fn run(
    network: Arc<dyn Network>,
    config: GossipConfig,
    identity: Identity,
    configured: Vec<WorkerSpec>,
    received: Arc<Mutex<Received>>,
    table: Table,
    at: usize,
) {
    let mut metrics = Registry::default();
    let handles = Metrics::register(&mut metrics);
    let agent = Agent::start_on(network, config, identity, |_| 1.0, handles)
        .await
        .expect("it starts");
    for spec in configured {
        let id = spec.default_id();
        agent.configure(id, spec).expect("room for a worker");
    }
    let (jobs, mut queue) = mpsc::channel::<Job>(16);
    let handle = Handle {
        agent: agent.clone(),
        views: agent.watch(),
        ready: agent.ready(),
        jobs,
        metrics: Arc::new(metrics),
    };
    lock(&table).insert(at, handle);
    let mut said = agent.evidence();
    loop {
        tokio::select! {
            biased;
            Some(heard) = said.recv() => lock(&received).take(heard),
            Some(job) = queue.recv() => {
                tokio::spawn(job(agent.clone()));
            }
            else => return,
        }
    }
}

impl Received {
    fn take(&mut self, heard: EvidenceEvent) {
        match heard {
            EvidenceEvent::Evidence { from, evidence } => {
                self.links.entry(from).or_default().extend(evidence.links);
            }
            EvidenceEvent::Lost { from } => {
                self.lost.insert(from);
            }
            EvidenceEvent::Retraction { .. }
            | EvidenceEvent::Heat { .. }
            | EvidenceEvent::Gone { .. } => {}
        }
    }
}

fn name(at: usize) -> String {
    format!("r{at}")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
