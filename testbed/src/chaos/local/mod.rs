//! A cluster of processes on this machine: replicas behind relays that can lose their gossip,
//! fake workers, a balancer in this process.
//!
//! Needs no special rights. It can cut gossip only; other cuts need containers.

mod clock;
mod disk;
mod life;
mod link;
mod shaper;
mod starve;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use hyper::Method;
use serde_json::json;
use tokio::sync::watch;

use super::fault::{Fault, Node, Reach};
use super::seat::{Seat, SeatState};
use crate::balancer::{self, Balancer, Check};
use crate::processes::{Process, log_file, make_authority, make_certificate};
use clock::Clock;
use disk::full_disk;
use grapevine_bench::client::{Client, Target};
use shaper::{Network, Shaper};
use starve::Starving;

/// Limit of one control request.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two checks of a replica by the balancer, and the limit of one: a busy machine must not look
/// like a dead replica.
const CHECK_EVERY: Duration = Duration::from_millis(200);
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// Replicas and workers at most.
pub(crate) const REPLICAS_MAX: usize = 9;
pub(crate) const WORKERS_MAX: usize = 64;

/// How a cluster is started.
#[derive(Debug, Clone)]
pub(crate) struct LocalPlan {
    pub(crate) replicas: usize,
    pub(crate) workers: usize,
    /// Further flags of each `fake-worker`.
    pub(crate) worker_flags: Vec<String>,
    /// Replicas wait for a worker's tokens for seconds at most.
    pub(crate) impatient: bool,
    /// Replicas write a line for each request.
    pub(crate) access_log: bool,
    /// The wall clocks of replicas can be moved.
    pub(crate) clocks: bool,
    /// Certificates and logs go here.
    pub(crate) dir: PathBuf,
}

struct Replica {
    /// `None`: stopped.
    process: Option<Process>,
    paused: bool,
    starving: Option<Starving>,
    /// Data, admin and gossip; 0 before the first start.
    ports: [u16; 3],
    shaper: Shaper,
    clock: Option<Clock>,
}

struct Worker {
    process: Option<Process>,
    paused: bool,
    /// 0 before the first start.
    port: u16,
}

/// Processes, their links, and the faults that they have.
pub(crate) struct LocalFleet {
    plan: LocalPlan,
    network: Arc<Network>,
    replicas: Vec<Replica>,
    workers: Vec<Worker>,
    /// Started with the first replica.
    balancer: Option<Balancer>,
    seats: watch::Sender<Vec<Seat>>,
}

impl LocalFleet {
    /// Starts everything, registers the workers at the first replica, and waits until all replicas
    /// hold the same ring.
    pub(crate) async fn start(plan: LocalPlan) -> anyhow::Result<Self> {
        ensure!(
            (1..=REPLICAS_MAX).contains(&plan.replicas)
                && (1..=WORKERS_MAX).contains(&plan.workers),
            "1 to {REPLICAS_MAX} replicas and 1 to {WORKERS_MAX} workers can be started here"
        );
        make_authority(&plan.dir).await?;
        let mut fleet = Self {
            balancer: None,
            plan: plan.clone(),
            network: Arc::default(),
            replicas: Vec::new(),
            workers: Vec::new(),
            seats: watch::Sender::default(),
        };
        fleet.scale(1).await?;
        for number in 1..=plan.workers {
            fleet.start_worker(number).await?;
            fleet.register(1, number, false).await?;
        }
        fleet.scale(plan.replicas).await?;
        fleet.agreed().await?;
        Ok(fleet)
    }

    pub(crate) async fn apply(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match *fault {
            Fault::Kill(node) => self.kill(node).await?,
            Fault::Terminate(node) => self.terminate(node).await?,
            Fault::Start(Node::Replica(number)) => self.start_replica(number).await?,
            Fault::Start(Node::Worker(number)) => self.start_worker(number).await?,
            Fault::Pause(node) => self.pause(node, true)?,
            Fault::Resume(node) => self.pause(node, false)?,
            Fault::Cut {
                from,
                to,
                one_way,
                reach,
            } => {
                let (from, to) = (gossiping(from, reach)?, gossiping(to, reach)?);
                self.network.change(|links| links.cut(from, to, one_way));
            }
            Fault::Isolate { node, reach } => {
                let replica = gossiping(node, reach)?;
                self.network.change(|links| links.isolate(replica));
            }
            Fault::Impair { node, link } => {
                let replica = gossiping(node, Reach::Gossip)?;
                self.network.change(|links| links.impair(replica, link));
            }
            Fault::Heal => self.network.change(link::Links::heal),
            Fault::Freeze(worker) => self.control(worker, Method::POST, "freeze", "").await?,
            Fault::Thaw(worker) => self.control(worker, Method::POST, "unfreeze", "").await?,
            Fault::Slow { worker, delay } => {
                self.control(worker, Method::DELETE, "faults", "").await?;
                if !delay.is_zero() {
                    let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                    let rule = json!({ "fault": { "delay_ms": millis } }).to_string();
                    self.control(worker, Method::POST, "faults", &rule).await?;
                }
            }
            Fault::Clock { node, ahead } => {
                let clock = self.replica(node)?.clock.as_ref();
                let clock =
                    clock.context("this cluster was started with clocks that cannot move")?;
                clock.set(ahead)?;
            }
            Fault::FillDisk(node) => full_disk(self.process(node)?, true)?,
            Fault::FreeDisk(node) => full_disk(self.process(node)?, false)?,
            Fault::Starve { node, share } => {
                ensure!(share > 0.0 && share < 1.0, "a share is between 0 and 1");
                let pid = self.process(node)?.pid();
                self.replica(node)?.starving = Some(Starving::start(pid, share));
            }
            Fault::Feed(node) => self.replica(node)?.starving = None,
        }
        self.publish();
        Ok(())
    }

    pub(crate) fn front(&self) -> Target {
        let balancer = self.balancer.as_ref().expect("the first replica started");
        balancer.url().parse().expect("it is http://ip:port")
    }

    pub(crate) fn seats(&self) -> watch::Receiver<Vec<Seat>> {
        self.seats.subscribe()
    }

    pub(crate) fn name(&self, node: Node) -> String {
        match node {
            Node::Replica(number) => format!("r{number}"),
            Node::Worker(number) => format!("w{number}"),
        }
    }

    pub(crate) async fn add_worker(&mut self, via: usize, worker: usize) -> anyhow::Result<()> {
        if self
            .workers
            .get(worker - 1)
            .is_none_or(|w| w.process.is_none())
        {
            self.start_worker(worker).await?;
            self.publish();
        }
        self.register(via, worker, true).await
    }

    pub(crate) async fn remove_worker(&mut self, via: usize, worker: usize) -> anyhow::Result<()> {
        let path = format!("/workers/{}", self.name(Node::Worker(worker)));
        let admin = Client::one(self.admin(via)?);
        let removed = admin.text(Method::DELETE, &path, Bytes::new(), CONTROL_TIMEOUT);
        removed.await.map(drop)
    }

    pub(crate) async fn scale(&mut self, replicas: usize) -> anyhow::Result<()> {
        ensure!(
            (1..=REPLICAS_MAX).contains(&replicas),
            "1 to {REPLICAS_MAX} replicas can run here"
        );
        for number in 1..=replicas.max(self.replicas.len()) {
            let runs = self.replicas.get(number - 1).map(|r| r.process.is_some());
            if number > replicas && runs == Some(true) {
                self.terminate(Node::Replica(number)).await?;
            }
            if number <= replicas && runs.is_none() {
                let replica = Replica::new(number, &self.plan, Arc::clone(&self.network)).await?;
                self.replicas.push(replica);
                self.start_replica(number).await?;
                let data = self.replicas[number - 1].data()?;
                match &self.balancer {
                    Some(balancer) => balancer.add(data),
                    None => self.balancer = Some(balance(data).await?),
                }
            } else if number <= replicas && runs == Some(false) {
                self.start_replica(number).await?;
            }
            self.publish();
        }
        Ok(())
    }

    pub(crate) async fn logs(&self) -> anyhow::Result<Vec<(String, PathBuf)>> {
        let replicas = (1..=self.replicas.len()).map(Node::Replica);
        let workers = (1..=self.workers.len()).map(Node::Worker);
        let log = |node| {
            let name = self.name(node);
            let path = log_file(&self.plan.dir, &name);
            (name, path)
        };
        Ok(replicas.chain(workers).map(log).collect())
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        for replica in &mut self.replicas {
            replica.starving = None;
        }
        let replicas = self.replicas.into_iter().map(|replica| replica.process);
        let workers = self.workers.into_iter().map(|worker| worker.process);
        for process in replicas.chain(workers).flatten() {
            process.kill().await?;
        }
        let overflowed = self.network.overflowed();
        ensure!(
            overflowed == 0,
            "the relays dropped {overflowed} packets because their buffers were full, which no scenario asked for"
        );
        Ok(())
    }

    async fn control(
        &self,
        worker: usize,
        method: Method,
        topic: &str,
        body: &str,
    ) -> anyhow::Result<()> {
        let url = format!("http://127.0.0.1:{}", self.worker(worker)?.port);
        let path = format!("/_control/{topic}");
        let client = Client::one(url.parse()?);
        let done = client.text(method, &path, body.to_owned(), CONTROL_TIMEOUT);
        done.await.map(drop)
    }

    fn publish(&self) {
        let state = |runs: bool, paused: bool| match (runs, paused) {
            (false, _) => SeatState::Stopped,
            (true, false) => SeatState::Running,
            (true, true) => SeatState::Paused,
        };
        let pid = |process: &Process| process.pid().as_raw_nonzero().get().cast_unsigned();
        let at = |port: u16| {
            Some(
                format!("http://127.0.0.1:{port}")
                    .parse()
                    .expect("it is one"),
            )
        };
        let replicas = self.replicas.iter().zip(1..).map(|(replica, number)| Seat {
            node: Node::Replica(number),
            name: self.name(Node::Replica(number)),
            state: state(replica.process.is_some(), replica.paused),
            admin: at(replica.ports[1]),
            token: None,
            metrics: None,
            http: at(replica.ports[0]),
            pid: replica.process.as_ref().map(pid),
        });
        let workers = self.workers.iter().zip(1..).map(|(worker, number)| Seat {
            node: Node::Worker(number),
            name: self.name(Node::Worker(number)),
            state: state(worker.process.is_some(), worker.paused),
            admin: None,
            token: None,
            metrics: None,
            http: at(worker.port),
            pid: worker.process.as_ref().map(pid),
        });
        self.seats.send_replace(replicas.chain(workers).collect());
    }

    fn replica(&mut self, node: Node) -> anyhow::Result<&mut Replica> {
        let Node::Replica(number) = node else {
            bail!("{node} is not a replica, and only replicas can have that");
        };
        let replica = number
            .checked_sub(1)
            .and_then(|at| self.replicas.get_mut(at));
        replica.with_context(|| format!("there is no {node}"))
    }

    fn worker(&self, number: usize) -> anyhow::Result<&Worker> {
        let worker = number.checked_sub(1).and_then(|at| self.workers.get(at));
        worker.with_context(|| format!("there is no worker {number}"))
    }

    fn admin(&self, replica: usize) -> anyhow::Result<Target> {
        let known = replica.checked_sub(1).and_then(|at| self.replicas.get(at));
        let known = known.with_context(|| format!("there is no replica {replica}"))?;
        format!("http://127.0.0.1:{}", known.ports[1]).parse()
    }

    fn process(&mut self, node: Node) -> anyhow::Result<&Process> {
        let process = match node {
            Node::Replica(_) => self.replica(node)?.process.as_ref(),
            Node::Worker(number) => self.worker(number)?.process.as_ref(),
        };
        process.with_context(|| format!("{node} does not run"))
    }

    /// The process of a node that is about to end.
    fn take(&mut self, node: Node) -> anyhow::Result<Process> {
        self.process(node)?;
        let process = match node {
            Node::Replica(_) => {
                let replica = self.replica(node)?;
                replica.starving = None;
                replica.process.take()
            }
            Node::Worker(number) => self.workers[number - 1].process.take(),
        };
        process.context("it was just seen")
    }
}

impl Replica {
    async fn new(number: usize, plan: &LocalPlan, network: Arc<Network>) -> anyhow::Result<Self> {
        let name = format!("r{number}");
        make_certificate(&name, &plan.dir).await?;
        let clock = plan
            .clocks
            .then(|| Clock::new(plan.dir.join(format!("{name}.clock"))));
        Ok(Self {
            process: None,
            paused: false,
            starving: None,
            ports: [0; 3],
            shaper: Shaper::start(number, network).await?,
            clock: clock.transpose()?,
        })
    }

    /// `host:port` of the data port.
    fn data(&self) -> anyhow::Result<String> {
        let process = self.process.as_ref().context("it was just started")?;
        process.address("data")
    }
}

async fn balance(backend: String) -> anyhow::Result<Balancer> {
    let check = Check {
        path: "/readiness".into(),
        interval: CHECK_EVERY,
        timeout: CHECK_TIMEOUT,
    };
    let config = balancer::Config {
        check: Some(check),
        ..balancer::Config::new(vec![backend])
    };
    Balancer::start(config).await
}

/// The number of a replica whose gossip is to be cut.
fn gossiping(node: Node, reach: Reach) -> anyhow::Result<usize> {
    match (node, reach) {
        (Node::Replica(number), Reach::Gossip) => Ok(number),
        _ => bail!(
            "between processes of one machine only the gossip of replicas can be cut; use --compose"
        ),
    }
}
