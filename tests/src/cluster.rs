//! Replicas that form a cluster: real processes, real certificates, ports chosen by the kernel.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use grapevine_gossip::load::RISE_INTERVAL;
use grapevine_testbed::fake_worker::FakeWorker;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::admin::Admin;
use crate::gate::Gate;
use crate::process::{self, Process, Program, Signal};
use crate::wait::{LIMIT, eventually, so};

/// A look, a batch, and the time that a frame is held and under way on one machine.
const NEWS: Duration = Duration::from_millis(50);

/// How a cluster is started.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Dotted key of the configuration file and its value, as TOML.
    settings: BTreeMap<&'static str, String>,
    /// URL, models, and further lines of the section.
    workers: Vec<(String, Vec<String>, String)>,
    /// The program of its replicas.
    program: Program,
}

impl Default for Plan {
    fn default() -> Self {
        let quick = [
            ("timeouts.settle", "\"100ms\""),
            ("timeouts.drain", "\"20s\""),
            ("health.interval", "\"100ms\""),
        ];
        Self {
            settings: quick.map(|(key, value)| (key, value.to_owned())).into(),
            workers: Vec::new(),
            program: Program::default(),
        }
    }
}

impl Plan {
    /// Sets the program of every replica.
    #[must_use]
    pub fn program(mut self, program: Program) -> Self {
        self.program = program;
        self
    }

    /// Sets one key, such as `limits.body_bytes`, to a TOML value.
    #[must_use]
    pub fn set(mut self, key: &'static str, value: &str) -> Self {
        self.settings.insert(key, value.to_owned());
        self
    }

    /// Sets one key that is not set yet.
    #[must_use]
    pub fn set_if_absent(mut self, key: &'static str, value: &str) -> Self {
        self.settings.entry(key).or_insert_with(|| value.to_owned());
        self
    }

    /// Puts a worker with these models into every replica's configuration.
    #[must_use]
    pub fn worker(self, url: &str, models: &[&str]) -> Self {
        self.worker_with(url, models, "")
    }

    /// The same with further lines of its section, as TOML.
    #[must_use]
    pub fn worker_with(mut self, url: &str, models: &[&str], lines: &str) -> Self {
        let models = models.iter().map(|&model| model.to_owned()).collect();
        self.workers
            .push((url.to_owned(), models, lines.to_owned()));
        self
    }

    /// Puts fake workers with their default model into every replica's configuration.
    #[must_use]
    pub fn workers<'a>(self, workers: impl IntoIterator<Item = &'a FakeWorker>) -> Self {
        workers.into_iter().fold(self, |plan, worker| {
            plan.worker(&worker.url(), &[crate::chat::MODEL])
        })
    }

    /// Workers in the configuration.
    pub fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// Starts a cluster and waits until every replica is ready and sees all the others.
    pub async fn start(self, replicas: usize) -> Cluster {
        let mut cluster = self.found().await;
        for number in 1..=replicas {
            let seeds = cluster
                .replicas
                .iter()
                .map(Replica::gossip_address)
                .collect();
            cluster.join(&format!("r{number}"), seeds).await;
        }
        cluster.settled().await;
        cluster
    }

    /// Makes the authority and the configuration, and starts nothing yet.
    pub async fn found(self) -> Cluster {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let config = dir.path().join("grapevine.toml");
        std::fs::write(&config, self.toml()).expect("a file can be written");
        let cluster = Cluster {
            replicas: Vec::new(),
            authority: dir.path().join("ca"),
            program: self.program,
            dir,
        };
        ca(&["init"], &cluster.authority).await;
        cluster
    }

    /// The configuration file.
    pub fn toml(&self) -> String {
        let settings = self.settings.iter();
        let settings = settings.map(|(key, value)| format!("{key} = {value}\n"));
        let workers = self.workers.iter().map(|(url, models, lines)| {
            format!("[[worker]]\nurl = {url:?}\nmodels = {models:?}\n{lines}")
        });
        settings.chain(workers).collect()
    }
}

/// Runs `grapevine ca`, which must succeed.
pub async fn ca(args: &[&str], dir: &Path) {
    let dir = dir.to_str().expect("temporary paths are UTF-8");
    let done = process::run(&[&["ca"], args, &["--dir", dir]].concat()).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
}

/// Replicas of one authority. Dropping it ends them; a failing test shows their logs.
pub struct Cluster {
    /// In order of joining; killed ones keep their place.
    pub replicas: Vec<Replica>,
    authority: PathBuf,
    program: Program,
    dir: TempDir,
}

impl Cluster {
    /// Starts one more replica with certificates of this cluster's authority; it need not be ready yet.
    pub async fn join(&mut self, name: &str, seeds: Vec<String>) -> &mut Replica {
        let identity = self.issue(name).await;
        self.join_as(name, identity, seeds).await
    }

    /// Makes certificates of this cluster's authority.
    pub async fn issue(&self, name: &str) -> Identity {
        ca(&["issue", name], &self.authority).await;
        Identity {
            ca: self.authority.join("ca.pem"),
            cert: self.authority.join(format!("{name}.pem")),
            key: self.authority.join(format!("{name}.key")),
            cluster: "grapevine".to_owned(),
        }
    }

    /// The same with any certificates.
    pub async fn join_as(
        &mut self,
        name: &str,
        identity: Identity,
        seeds: Vec<String>,
    ) -> &mut Replica {
        let mut replica = self.replica(name, identity, seeds);
        replica.start().await;
        self.replicas.push(replica);
        self.replicas.last_mut().expect("one was added just now")
    }

    fn replica(&self, name: &str, identity: Identity, seeds: Vec<String>) -> Replica {
        Replica {
            name: name.to_owned(),
            seeds,
            advertised: None,
            program: self.program.clone(),
            identity,
            dir: self.dir.path().to_owned(),
            process: None,
            addresses: None,
            logs: Vec::new(),
        }
    }

    /// The same as [`Cluster::join`], for a replica that others reach through a gate alone.
    pub async fn join_behind(&mut self, name: &str, gate: &Gate, seeds: Vec<String>) {
        let identity = self.issue(name).await;
        let mut replica = self.replica(name, identity, seeds);
        replica.advertised = Some(gate.address());
        replica.start().await;
        let addresses = replica.addresses.expect("it is started");
        gate.found(addresses.gossip);
        self.replicas.push(replica);
    }

    /// Sets the program of replicas that join from now on.
    pub fn set_program(&mut self, program: Program) {
        self.program = program;
    }

    /// The configuration file that all replicas read at their start.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("grapevine.toml")
    }

    /// Seeds of a replica that joins again: all others that run.
    pub fn others(&self, index: usize) -> Vec<String> {
        let others = self.replicas.iter().enumerate();
        let running = others.filter(|(at, other)| *at != index && other.process.is_some());
        running.map(|(_, other)| other.gossip_address()).collect()
    }

    /// A directory for files of this cluster.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Replicas that run.
    pub fn running(&self) -> impl Iterator<Item = &Replica> + Clone {
        let running = |replica: &&Replica| replica.process.is_some();
        self.replicas.iter().filter(running)
    }

    /// Waits until every running replica holds the cluster's view and all of them agree on everything.
    pub async fn settled(&self) {
        let count = self.running().count();
        eventually(LIMIT, "replicas are in and agree", async || {
            for replica in self.running() {
                let view = replica.admin().view().await;
                if !view.is_in() || view.live != count || view.agreeing != count {
                    return Err(format!("{} sees {view:?}", replica.name));
                }
            }
            Ok(())
        })
        .await;
    }

    /// Sends one of the requests that follow each other, and waits until it counts no more: on a busy machine it can last
    /// long enough to be told, and its end counts after it. One that ended before it could be told never counts.
    pub async fn one_by_one<T>(&self, request: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let answer = request.await;
        // It is given back a moment after its last byte was sent.
        if begun.elapsed() >= RISE_INTERVAL / 2 {
            self.rests().await;
        }
        answer
    }

    /// Waits until no running replica counted any load for as long as news of the last of it takes.
    async fn rests(&self) {
        let mut since = None;
        eventually(LIMIT, "no load counts", async || {
            for replica in self.running() {
                for worker in replica.admin().workers().await {
                    let load =
                        worker.in_flight + worker.pending_prefill_tokens + worker.context_tokens;
                    if load > 0.0 {
                        since = None;
                        return Err(format!("{} counts {load} at {}", replica.name, worker.id));
                    }
                }
            }
            let rested = since.get_or_insert_with(Instant::now).elapsed();
            so(rested >= NEWS, || format!("rests for {rested:?}"))
        })
        .await;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for replica in &self.replicas {
            eprintln!("---- log of {}\n{}", replica.name, tail(&replica.log()));
        }
    }
}

/// The last lines of a log: enough to see what happened, few enough to read.
fn tail(log: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// Certificate files and the cluster to which they belong.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Certificate of the authority.
    pub ca: PathBuf,
    /// Certificate of the replica.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The cluster's id.
    pub cluster: String,
}

/// The addresses of a replica.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Addresses {
    data: SocketAddr,
    admin: SocketAddr,
    gossip: SocketAddr,
    /// Earlier releases hear none.
    #[serde(default)]
    pings: Option<SocketAddr>,
}

/// One replica, running or not.
pub struct Replica {
    /// Its name.
    pub name: String,
    /// Gossip addresses of its seeds at its next start.
    pub seeds: Vec<String>,
    /// Where others reach its gossip socket, if not at its own address.
    advertised: Option<SocketAddr>,
    /// Its program at its next start.
    pub program: Program,
    identity: Identity,
    dir: PathBuf,
    process: Option<Process>,
    /// The addresses of its first start; later starts use them again.
    addresses: Option<Addresses>,
    /// One file for each start.
    logs: Vec<PathBuf>,
}

impl Replica {
    /// Starts the process; later starts use the ports of the first one.
    pub async fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        // Another process may have run under this name.
        let logs = (0..).map(|start| self.dir.join(format!("{}.{start}.log", self.name)));
        let mut unused = logs.skip(self.logs.len()).filter(|log| !log.exists());
        let log = unused.next().expect("there is always another number");
        self.logs.push(log.clone());
        let (process, addresses) = Process::start_as(&self.program, &self.args(), &log).await;
        self.process = Some(process);
        self.addresses = Some(addresses);
    }

    fn args(&self) -> Vec<String> {
        let port = |of: fn(&Addresses) -> SocketAddr| {
            let known = self.addresses.as_ref();
            known
                .map_or(0, |addresses| of(addresses).port())
                .to_string()
        };
        let path = |path: &Path| path.display().to_string();
        let mut args = vec!["serve".to_owned(), "--disable-prometheus".to_owned()];
        let mut flag = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        flag("config", path(&self.dir.join("grapevine.toml")));
        flag("replica-id", self.name.clone());
        flag("cluster-id", self.identity.cluster.clone());
        flag("port", port(|addresses| addresses.data));
        flag("admin-port", port(|addresses| addresses.admin));
        flag("gossip-port", port(|addresses| addresses.gossip));
        flag("gossip-ca", path(&self.identity.ca));
        flag("gossip-cert", path(&self.identity.cert));
        flag("gossip-key", path(&self.identity.key));
        for seed in &self.seeds {
            flag("seed", seed.clone());
        }
        if let Some(address) = self.advertised {
            flag("gossip-advertise", address.to_string());
        }
        args
    }

    /// The data port.
    pub fn data(&self) -> SocketAddr {
        self.addresses().data
    }

    /// The admin port.
    pub fn admin(&self) -> Admin {
        Admin(self.addresses().admin)
    }

    /// Where it hears pings, if its configuration says so.
    pub fn pings(&self) -> SocketAddr {
        self.addresses().pings.expect("it hears pings")
    }

    /// The gossip port, as a seed.
    pub fn gossip_address(&self) -> String {
        self.addresses().gossip.to_string()
    }

    fn addresses(&self) -> Addresses {
        self.addresses.expect("a replica listens once it is made")
    }

    /// The running process.
    pub fn process(&self) -> &Process {
        let process = self.process.as_ref();
        process.unwrap_or_else(|| panic!("{} does not run", self.name))
    }

    /// `kill -9`, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.end(Signal::KILL).await;
    }

    /// SIGTERM, and waits until it has ended by itself.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.end(Signal::TERM).await
    }

    async fn end(&mut self, signal: Signal) -> ExitStatus {
        self.process().signal(signal);
        self.ended().await
    }

    /// Waits for the end of a replica that was told to end.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("it runs");
        process.ended().await
    }

    /// The log of the last start.
    pub fn last_log(&self) -> String {
        self.logs
            .last()
            .map(|log| process::read(log))
            .unwrap_or_default()
    }

    /// The logs of all starts.
    pub fn log(&self) -> String {
        self.logs.iter().map(|log| process::read(log)).collect()
    }
}
