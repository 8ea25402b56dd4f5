//! A cluster of containers: `docker-compose.yml`, with faults injected from the machine that runs it.
//!
//! Needs root, because packet filters are set in the containers' network namespaces. Needs Linux, because
//! containers are reached at their own addresses, which change when they start again. It attaches to a running
//! testbed, and leaves it as `docker-compose up` made it, with the containers that ran. [`ComposeFleet::stop`] looks at the state of the containers, not at a list
//! of faults, so a run also repairs what an earlier, killed run has left.

mod control;
mod docker;
mod life;
mod links;
mod restore;
mod seats;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::fault::{Fault, Link, Node, Reach};
use super::seat::Seat;
pub(crate) use docker::Testbed;
use docker::{Container, ContainerState, Docker, docker, filter};
use grapevine_bench::client::Target;
use links::BadLink;
use seats::{node, seat, service, target};

/// Ports inside of the network, as in `docker-compose.yml`.
const FRONT_PORT: u16 = 30080;
const DATA_PORT: u16 = 30000;
const ADMIN_PORT: u16 = 30001;
const WORKER_PORT: u16 = 8000;
const TOKEN: &str = "testbed-0123456789";
const BALANCER: &str = "balancer";
/// Replicas and workers that the file defines, profiles included.
const REPLICAS_MAX: usize = 6;
const WORKERS_MAX: usize = 8;
/// The first ones, which start without a profile. These workers are in the replicas' configuration.
const REPLICAS_CONFIGURED: usize = 3;
pub(crate) const WORKERS_CONFIGURED: usize = 4;
/// The containers of one compose project, and the faults that they have.
pub(crate) struct ComposeFleet {
    docker: Docker,
    nodes: BTreeMap<Node, Container>,
    front: Target,
    /// The one network of the project, and the nodes that ran at first.
    network: String,
    began_with: BTreeSet<Node>,
    links: Vec<BadLink>,
    /// Namespaces that may have rules of ours, by process.
    filtered: BTreeSet<u32>,
    seats: Arc<watch::Sender<Vec<Seat>>>,
    /// Tasks that wait until terminated containers are gone.
    endings: BTreeMap<Node, AbortOnDropHandle<()>>,
    logs: TempDir,
    began: SystemTime,
}

impl ComposeFleet {
    /// Attaches to a running testbed and repairs what an earlier run may have left.
    /// Errors: when no such testbed runs, or docker does not answer.
    pub(crate) async fn attach(testbed: &Testbed) -> anyhow::Result<Self> {
        let none = "no testbed runs in this compose project; `testbed/docker/build.sh && docker-compose up -d` starts \
                    one, and --project and --file name another";
        let docker = Docker::of(testbed, BALANCER).await?.context(none)?;
        let containers = docker.containers().await?;
        let balancer = containers.iter().find(|one| one.service == BALANCER);
        let (network, front) = balancer
            .and_then(|balancer| Some((balancer.networks.first()?, balancer.address?)))
            .context(none)?;
        let mut fleet = Self {
            network: network.clone(),
            front: target(front, FRONT_PORT),
            nodes: BTreeMap::new(),
            began_with: BTreeSet::new(),
            links: Vec::new(),
            filtered: BTreeSet::new(),
            seats: Arc::new(watch::Sender::new(Vec::new())),
            endings: BTreeMap::new(),
            logs: tempfile::tempdir().context("no directory for logs")?,
            began: SystemTime::now(),
            docker,
        };
        fleet.refresh().await?;
        // Services without a profile belong to every testbed; a killed run may have left some stopped.
        let always = (1..=REPLICAS_CONFIGURED).map(Node::Replica);
        let always = always.chain((1..=WORKERS_CONFIGURED).map(Node::Worker));
        fleet.began_with = fleet.running().chain(always).collect();
        fleet
            .restore()
            .await
            .context("the testbed cannot be put in order")?;
        Ok(fleet)
    }

    pub(crate) async fn apply(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match *fault {
            Fault::Kill(node) => {
                docker(&["kill", &self.container(node)?.id]).await?;
            }
            Fault::Terminate(node) => return self.terminate(node).await,
            Fault::Start(node) => return self.start(node).await,
            Fault::Pause(node) => {
                docker(&["pause", &self.container(node)?.id]).await?;
            }
            Fault::Resume(node) => {
                docker(&["unpause", &self.container(node)?.id]).await?;
            }
            Fault::Cut {
                from,
                to,
                one_way,
                reach,
            } => {
                let link = BadLink::Cut {
                    from,
                    to,
                    one_way,
                    reach,
                };
                return self.spoil(link).await;
            }
            Fault::Isolate { node, reach } => match reach {
                Reach::Gossip => return self.spoil(BadLink::Mute { node }).await,
                Reach::All => {
                    let id = &self.container(node)?.id;
                    docker(&["network", "disconnect", &self.network, id]).await?;
                }
            },
            Fault::Impair { node, link } => {
                let share = only_loss(&link)?;
                return self.spoil(BadLink::Loss { node, share }).await;
            }
            Fault::Heal => {
                self.links.clear();
                self.reconnect().await?;
            }
            Fault::Freeze(worker) => return control::freeze(&self.worker(worker)?, true).await,
            Fault::Thaw(worker) => return control::freeze(&self.worker(worker)?, false).await,
            Fault::Slow { worker, delay } => {
                return control::slow_down(&self.worker(worker)?, delay).await;
            }
            Fault::Clock { node, ahead } => return self.set_clock(node, ahead).await,
            Fault::FillDisk(_) | Fault::FreeDisk(_) => bail!(
                "docker writes the log of a container itself, so a replica there never sees a full disk; \
                 run this with processes, without --compose"
            ),
            Fault::Starve { node, share } => {
                self.starve(node, share).await?;
            }
            Fault::Feed(node) => self.feed(node).await?,
        }
        self.refresh().await
    }

    pub(crate) fn front(&self) -> Target {
        self.front.clone()
    }

    pub(crate) fn seats(&self) -> watch::Receiver<Vec<Seat>> {
        self.seats.subscribe()
    }

    pub(crate) fn name(&self, node: Node) -> String {
        service(node)
    }

    /// Starts the worker's container if it is not there, and registers it at replica `via`.
    pub(crate) async fn add_worker(&mut self, via: usize, worker: usize) -> anyhow::Result<()> {
        ensure!(
            (1..=WORKERS_MAX).contains(&worker),
            "docker-compose.yml has worker-1 to worker-{WORKERS_MAX}"
        );
        self.start(Node::Worker(worker)).await?;
        control::register(
            &self.admin(via)?,
            &service(Node::Worker(worker)),
            WORKER_PORT,
        )
        .await
    }

    pub(crate) async fn remove_worker(&mut self, via: usize, worker: usize) -> anyhow::Result<()> {
        control::unregister(&self.admin(via)?, &service(Node::Worker(worker))).await
    }

    /// Starts or terminates replicas until 1 to `replicas` run; waits for those that drain.
    pub(crate) async fn scale(&mut self, replicas: usize) -> anyhow::Result<()> {
        ensure!(
            (1..=REPLICAS_MAX).contains(&replicas),
            "docker-compose.yml has router-1 to router-{REPLICAS_MAX}"
        );
        for number in 1..=REPLICAS_MAX {
            let node = Node::Replica(number);
            let runs = self.running().any(|running| running == node);
            if number <= replicas && !runs {
                self.start(node).await?;
            } else if number > replicas && runs {
                docker(&["stop", &self.container(node)?.id]).await?;
            }
        }
        self.refresh().await
    }

    /// The log of each container since this fleet attached.
    pub(crate) async fn logs(&self) -> anyhow::Result<Vec<(String, PathBuf)>> {
        let since = humantime::format_rfc3339_millis(self.began).to_string();
        let mut files = Vec::new();
        for (node, container) in &self.nodes {
            let name = service(*node);
            let file = self.logs.path().join(format!("{name}.log"));
            let text = docker::logs(&container.id, &since).await?;
            std::fs::write(&file, text)
                .with_context(|| format!("cannot write {}", file.display()))?;
            files.push((name, file));
        }
        Ok(files)
    }

    /// Repairs every fault: what ran at first runs again, nothing else does, and the registry holds the
    /// workers of the configuration.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.restore().await
    }

    async fn spoil(&mut self, link: BadLink) -> anyhow::Result<()> {
        self.links.push(link);
        self.refresh().await
    }

    /// Inspects all containers, sets their packet filters according to the bad links, and publishes the
    /// seats.
    async fn refresh(&mut self) -> anyhow::Result<()> {
        let containers = self.docker.containers().await?;
        let known = containers.into_iter();
        self.nodes = known
            .filter_map(|one| Some((node(&one.service)?, one)))
            .collect();
        let addresses: BTreeMap<Node, Ipv4Addr> = self
            .nodes
            .iter()
            .filter_map(|(node, container)| Some((*node, container.address?)))
            .collect();
        let rules = links::rules(&self.links, &addresses);
        let mut filtered = BTreeSet::new();
        for (node, container) in &self.nodes {
            let Some(pid) = container.pid else { continue };
            let rules = rules.get(node).map(Vec::as_slice).unwrap_or_default();
            if !rules.is_empty() {
                filtered.insert(pid);
            } else if !self.filtered.contains(&pid) {
                continue;
            }
            let done = filter(pid, rules).await;
            // The filter of a container that has ended is gone with it.
            if Path::new("/proc").join(pid.to_string()).exists() {
                done?;
            }
        }
        self.filtered = filtered;
        let seats = self
            .nodes
            .iter()
            .map(|(node, container)| seat(*node, container));
        self.seats.send_replace(seats.collect());
        Ok(())
    }

    fn running(&self) -> impl Iterator<Item = Node> {
        let runs = |one: &Container| one.state != ContainerState::Stopped;
        let running = self.nodes.iter().filter(move |(_, one)| runs(one));
        running.map(|(node, _)| *node)
    }

    fn container(&self, node: Node) -> anyhow::Result<&Container> {
        let name = service(node);
        let found = self.nodes.get(&node);
        found.with_context(|| {
            format!("there is no container of {name}: docker-compose up -d {name}")
        })
    }

    fn worker(&self, worker: usize) -> anyhow::Result<Target> {
        let node = Node::Worker(worker);
        let address = self.container(node)?.address;
        let address = address.with_context(|| format!("{} has no address", service(node)))?;
        Ok(target(address, WORKER_PORT))
    }

    fn admin(&self, replica: usize) -> anyhow::Result<Target> {
        let node = Node::Replica(replica);
        let address = self.container(node)?.address;
        let address = address.with_context(|| format!("{} has no address", service(node)))?;
        Ok(target(address, ADMIN_PORT))
    }
}

/// The loss of a bad link, when it has no other fault.
fn only_loss(link: &Link) -> anyhow::Result<f64> {
    let Link {
        loss,
        delay,
        jitter,
        reorder,
        duplicate,
    } = *link;
    ensure!(
        delay.is_zero() && jitter.is_zero() && reorder == 0.0 && duplicate == 0.0,
        "a packet filter can lose packets, not delay, reorder or repeat them; run this with processes, without \
         --compose"
    );
    Ok(loss)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_a_packet_filter_cannot_do_is_refused() {
        let loss = 0.2;
        let lossy = Link {
            loss,
            ..Link::default()
        };
        assert_eq!(only_loss(&lossy).expect("loss alone"), loss);
        let late = Link {
            delay: Duration::from_millis(1),
            ..lossy
        };
        let refused = only_loss(&late).expect_err("a delay");
        assert!(
            refused.to_string().contains("without --compose"),
            "{refused}"
        );
    }
}
