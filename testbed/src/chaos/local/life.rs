//! How replicas and workers are started, ended and paused.

use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use hyper::Method;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::clock::Clock;
use super::{CONTROL_TIMEOUT, LocalFleet, WORKERS_MAX, Worker};
use crate::chaos::fault::Node;
use crate::processes::{MODEL, Process, port_arguments, replica_arguments, worker_arguments};
use grapevine_bench::client::Client;

/// Limit for a started replica to be ready, and for all to hold the same ring of all workers.
const READY_TIMEOUT: Duration = Duration::from_secs(40);
/// Limit for a terminated process to end: settle, drain, and a margin.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two looks while waiting.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Settings of all replicas, by which a restart takes seconds.
const SETTINGS: [(&str, &str); 4] = [
    ("GRAPEVINE_TIMEOUTS__SETTLE", "2s"),
    ("GRAPEVINE_TIMEOUTS__DRAIN", "40s"),
    ("GRAPEVINE_HEALTH__INTERVAL", "500ms"),
    ("GRAPEVINE_HEALTH__TIMEOUT", "1s"),
];
/// Settings where workers are paused: replicas notice it within seconds, not minutes.
const IMPATIENT: [(&str, &str); 4] = [
    ("GRAPEVINE_TIMEOUTS__FIRST_TOKEN", "5s"),
    ("GRAPEVINE_TIMEOUTS__FIRST_TOKEN_PER_1K", "1s"),
    ("GRAPEVINE_TIMEOUTS__INTER_TOKEN", "5s"),
    ("GRAPEVINE_HEALTH__TOKEN_TIMEOUT", "3s"),
];

impl LocalFleet {
    pub(super) async fn start_replica(&mut self, number: usize) -> anyhow::Result<()> {
        let name = self.name(Node::Replica(number));
        let replica = self.replica(Node::Replica(number))?;
        ensure!(replica.process.is_none(), "{name} runs");
        let (ports, relay) = (replica.ports, replica.shaper.address());
        let impatient = IMPATIENT.iter().filter(|_| self.plan.impatient);
        let mut environment: Vec<(String, String)> = SETTINGS
            .iter()
            .chain(impatient)
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let access_log = self.plan.access_log.to_string();
        environment.push(("GRAPEVINE_LOG__ACCESS".to_owned(), access_log));
        let replica = self.replica(Node::Replica(number))?;
        environment.extend(replica.clock.iter().flat_map(Clock::environment));
        let others = self.replicas.iter().enumerate();
        let seeds: Vec<String> = others
            .filter(|(index, _)| index + 1 != number)
            .map(|(_, other)| other.shaper.address().to_string())
            .collect();
        let mut arguments = replica_arguments(&name, "prefix", &seeds, &self.plan.dir);
        arguments.extend(port_arguments(ports));
        arguments.extend(["--gossip-advertise".into(), relay.to_string()]);
        let process = Process::start(&name, &arguments, &environment, &self.plan.dir).await?;
        let replica = &mut self.replicas[number - 1];
        for (port, what) in replica.ports.iter_mut().zip(["data", "admin", "gossip"]) {
            let address: std::net::SocketAddr = process.address(what)?.parse()?;
            *port = address.port();
        }
        replica
            .shaper
            .found(([127, 0, 0, 1], replica.ports[2]).into());
        replica.process = Some(process);
        replica.paused = false;
        self.publish();
        self.ready(number).await
    }

    pub(super) async fn start_worker(&mut self, number: usize) -> anyhow::Result<()> {
        let name = self.name(Node::Worker(number));
        ensure!(
            (1..=self.workers.len() + 1).contains(&number) && number <= WORKERS_MAX,
            "{name} is not the next worker, or one too many"
        );
        let known = self.workers.get(number - 1);
        ensure!(
            known.is_none_or(|worker| worker.process.is_none()),
            "{name} runs"
        );
        let port = known.map_or(0, |worker| worker.port).to_string();
        let mut arguments = worker_arguments(1.0, &self.plan.worker_flags);
        arguments.extend(["--port", &port, "--shutdown-timeout", "5"].map(Into::into));
        let process = Process::start(&name, &arguments, &[], &self.plan.dir).await?;
        let address: std::net::SocketAddr = process.address("http")?.parse()?;
        let worker = Worker {
            process: Some(process),
            paused: false,
            port: address.port(),
        };
        match self.workers.get_mut(number - 1) {
            Some(known) => *known = worker,
            None => self.workers.push(worker),
        }
        self.publish();
        Ok(())
    }

    pub(super) async fn register(
        &self,
        via: usize,
        worker: usize,
        warm_up: bool,
    ) -> anyhow::Result<()> {
        let port = self.worker(worker)?.port;
        let name = self.name(Node::Worker(worker));
        let url = format!("http://127.0.0.1:{port}");
        let body = json!({ "id": name, "url": url, "models": [MODEL] }).to_string();
        let path = format!("/workers?warmup={warm_up}");
        let admin = Client::one(self.admin(via)?);
        let added = admin.text(Method::POST, &path, body, CONTROL_TIMEOUT);
        added.await.map(drop)
    }

    pub(super) async fn kill(&mut self, node: Node) -> anyhow::Result<()> {
        let process = self.take(node)?;
        self.publish();
        process.kill().await
    }

    pub(super) async fn terminate(&mut self, node: Node) -> anyhow::Result<()> {
        let mut process = self.take(node)?;
        self.publish();
        process.signal(Signal::TERM)?;
        process.ended(END_TIMEOUT).await
    }

    pub(super) fn pause(&mut self, node: Node, pause: bool) -> anyhow::Result<()> {
        let signal = if pause { Signal::STOP } else { Signal::CONT };
        self.process(node)?.signal(signal)?;
        match node {
            Node::Replica(_) => self.replica(node)?.paused = pause,
            Node::Worker(number) => self.workers[number - 1].paused = pause,
        }
        Ok(())
    }

    /// Waits until a replica wants traffic.
    async fn ready(&self, number: usize) -> anyhow::Result<()> {
        let admin = Client::one(self.admin(number)?);
        let start = Instant::now();
        loop {
            let ready = admin.text(Method::GET, "/readyz", Bytes::new(), CONTROL_TIMEOUT);
            let Err(error) = ready.await else {
                return Ok(());
            };
            // The first replica runs before any worker is registered, so it has none yet.
            if self.workers.is_empty() && format!("{error:#}").contains("\"no_worker\"") {
                return Ok(());
            }
            if start.elapsed() > READY_TIMEOUT {
                return Err(error.context(format!("r{number} is not ready")));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until all replicas hold the same ring of all workers.
    pub(super) async fn agreed(&self) -> anyhow::Result<()> {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Ring {
            digest: String,
            workers: usize,
        }
        let start = Instant::now();
        loop {
            let mut rings: Vec<Ring> = Vec::new();
            for number in 1..=self.replicas.len() {
                let admin = Client::one(self.admin(number)?);
                rings.push(admin.json("/ring", CONTROL_TIMEOUT).await?);
            }
            let all_known = rings[0].workers == self.workers.len();
            if all_known && rings.iter().all(|ring| *ring == rings[0]) {
                return Ok(());
            }
            ensure!(
                start.elapsed() < READY_TIMEOUT,
                "the replicas do not agree: {rings:?}"
            );
            sleep(LOOK_EVERY).await;
        }
    }
}
