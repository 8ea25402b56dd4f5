//! A whole cluster of processes on loopback: replicas with mutual TLS, fake workers, a balancer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use hyper::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::DemoPlan;
use crate::processes::{MODEL, Process, port_arguments, replica_arguments, worker_arguments};
use grapevine_bench::client::{Ask, Client, Target};

/// Limit of one control request.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for all replicas to hold the same ring of all workers.
const AGREE_TIMEOUT: Duration = Duration::from_secs(30);
/// Limit for counts of requests in flight to return to zero when the load has ended.
const QUIET_TIMEOUT: Duration = Duration::from_secs(10);

/// A router replica.
pub(super) struct Replica {
    process: Process,
    admin: Arc<Client>,
}

/// The fields of `GET /ring` that the demo reads.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Ring {
    pub(super) digest: String,
    pub(super) workers: usize,
}

/// The fields of `POST /explain` that the demo reads.
#[derive(Debug, Deserialize)]
pub(super) struct Explained {
    /// Where the request would go now.
    pub(super) worker: Option<String>,
    order: Vec<Candidate>,
}

#[derive(Debug, Deserialize)]
struct Candidate {
    in_flight: f64,
}

impl Explained {
    /// No worker has a request in flight, as far as this replica knows.
    fn is_quiet(&self) -> bool {
        self.order
            .iter()
            .all(|candidate| candidate.in_flight < 0.01)
    }
}

impl Replica {
    pub(super) fn name(&self) -> &str {
        self.process.name()
    }

    pub(super) async fn ring(&self) -> anyhow::Result<Ring> {
        self.admin.json("/ring", CONTROL_TIMEOUT).await
    }
}

async fn explain(admin: &Client, ask: &Ask) -> anyhow::Result<Explained> {
    let path = format!("/explain?path={}", ask.path);
    let text = admin
        .text(Method::POST, &path, ask.body.clone(), CONTROL_TIMEOUT)
        .await?;
    serde_json::from_str(&text).context("reply of /explain")
}

/// The running cluster.
pub(super) struct Cluster {
    pub(super) replicas: Vec<Replica>,
    pub(super) workers: Vec<Process>,
    balancer: Process,
}

impl Cluster {
    /// Starts everything, registers the workers through the first replica, and waits until all
    /// replicas hold the same ring.
    pub(super) async fn start(plan: &DemoPlan, policy: &str, dir: &Path) -> anyhow::Result<Self> {
        let logs = dir.join(policy);
        std::fs::create_dir_all(&logs).context("cannot make a directory for logs")?;
        let mut workers = Vec::new();
        for index in 1..=plan.workers {
            let name = format!("w{index}");
            let mut arguments = worker_arguments(plan.speed, &plan.worker_flags);
            arguments.extend(["--port", "0", "--exit-on-sigterm"].map(Into::into));
            workers.push(Process::start(&name, &arguments, &[], &logs).await?);
        }
        let mut replicas: Vec<Replica> = Vec::new();
        let mut seeds: Vec<String> = Vec::new();
        for index in 1..=plan.replicas {
            let name = format!("r{index}");
            let mut arguments = replica_arguments(&name, policy, &seeds, dir);
            arguments.extend(port_arguments([0; 3]));
            let process = Process::start(&name, &arguments, &[], &logs).await?;
            seeds.push(process.address("gossip")?);
            let admin: Target = format!("http://{}", process.address("admin")?).parse()?;
            replicas.push(Replica {
                process,
                admin: Arc::new(Client::one(admin)),
            });
        }
        let mut arguments: Vec<String> = [
            "balancer",
            "--port",
            "0",
            "--check-path",
            "/readiness",
            "--check-interval",
            "200ms",
        ]
        .map(Into::into)
        .into();
        for replica in &replicas {
            arguments.extend(["--backend".into(), replica.process.address("data")?]);
        }
        let balancer = Process::start("balancer", &arguments, &[], &logs).await?;
        let cluster = Self {
            replicas,
            workers,
            balancer,
        };
        cluster.register_workers().await?;
        cluster.agreed(plan.workers).await?;
        Ok(cluster)
    }

    /// The balancer's address: where clients go.
    pub(super) fn front(&self) -> anyhow::Result<Target> {
        format!("http://{}", self.balancer.address("http")?).parse()
    }

    pub(super) fn worker_targets(&self) -> anyhow::Result<Vec<Target>> {
        let target = |worker: &Process| format!("http://{}", worker.address("http")?).parse();
        self.workers.iter().map(target).collect()
    }

    /// The replicas' admin addresses.
    pub(super) fn admin_targets(&self) -> anyhow::Result<Vec<Target>> {
        let target =
            |replica: &Replica| format!("http://{}", replica.process.address("admin")?).parse();
        self.replicas.iter().map(target).collect()
    }

    /// All rings, in the order of the replicas.
    pub(super) async fn rings(&self) -> anyhow::Result<Vec<Ring>> {
        let mut rings = Vec::new();
        for replica in &self.replicas {
            rings.push(replica.ring().await?);
        }
        Ok(rings)
    }

    /// Where each replica would send this request now; all are asked at the same time.
    pub(super) async fn explain(&self, ask: &Ask) -> anyhow::Result<Vec<Explained>> {
        let mut answers = Vec::new();
        for replica in &self.replicas {
            let (admin, ask) = (Arc::clone(&replica.admin), ask.clone());
            let answer = tokio::spawn(async move { explain(&admin, &ask).await });
            answers.push(AbortOnDropHandle::new(answer));
        }
        let mut explained = Vec::new();
        for answer in answers {
            explained.push(answer.await.context("asking does not panic")??);
        }
        Ok(explained)
    }

    /// Waits until no replica counts anything in flight on any worker.
    pub(super) async fn quiet(&self, ask: &Ask) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let wrong = match self.explain(ask).await {
                Ok(explained) if explained.iter().all(Explained::is_quiet) => return Ok(()),
                Ok(_) => anyhow!("requests are in flight"),
                // As in `agreed`.
                Err(error) => error,
            };
            if start.elapsed() >= QUIET_TIMEOUT {
                return Err(wrong.context("in-flight counts do not return to zero"));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills the last replica as `kill -9` does; returns its name.
    pub(super) async fn kill_replica(&mut self) -> anyhow::Result<String> {
        let victim = self.replicas.pop().context("no replica is left")?;
        let name = victim.name().to_owned();
        victim.process.kill().await?;
        Ok(name)
    }

    /// Kills the last worker as `kill -9` does; returns its name.
    pub(super) async fn kill_worker(&mut self) -> anyhow::Result<String> {
        let victim = self.workers.pop().context("no worker is left")?;
        let name = victim.name().to_owned();
        victim.kill().await?;
        Ok(name)
    }

    /// Ends all processes.
    pub(super) async fn stop(self) -> anyhow::Result<()> {
        self.balancer.kill().await?;
        for replica in self.replicas {
            replica.process.kill().await?;
        }
        for worker in self.workers {
            worker.kill().await?;
        }
        Ok(())
    }

    async fn register_workers(&self) -> anyhow::Result<()> {
        let admin = &self.replicas.first().context("there is no replica")?.admin;
        for worker in &self.workers {
            let url = format!("http://{}", worker.address("http")?);
            let body = json!({ "id": worker.name(), "url": url, "models": [MODEL] }).to_string();
            admin
                .text(Method::POST, "/workers", body, CONTROL_TIMEOUT)
                .await?;
        }
        Ok(())
    }

    async fn agreed(&self, workers: usize) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let wrong = match self.rings().await {
                Ok(rings) => {
                    let first = &rings[0];
                    if first.workers == workers && rings.iter().all(|ring| ring == first) {
                        return Ok(());
                    }
                    anyhow!("{rings:?}")
                }
                // On a busy machine an answer may come too late; the next one may not.
                Err(error) => error,
            };
            if start.elapsed() >= AGREE_TIMEOUT {
                return Err(wrong.context("the replicas do not agree"));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}
