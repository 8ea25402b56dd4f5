//! Repairs a testbed, whatever faults it has and whoever caused them.

use std::collections::BTreeSet;

use anyhow::Context;

use super::docker::{Container, ContainerState, docker, filter};
use super::life::clock_file;
use super::seats::{service, target};
use super::{ADMIN_PORT, ComposeFleet, WORKER_PORT, WORKERS_CONFIGURED, control};
use crate::chaos::fault::Node;

impl ComposeFleet {
    /// Repairs all links, pauses and CPU limits, runs the containers that ran at first and no others, and leaves
    /// the workers of the configuration in the registry. A step that fails does not stop the others; the first
    /// error is returned.
    pub(super) async fn restore(&mut self) -> anyhow::Result<()> {
        let mut first = Ok(());
        let mut note = |done: anyhow::Result<()>| {
            if let Err(error) = done {
                tracing::warn!("repairing the testbed: {error:#}");
                if first.is_ok() {
                    first = Err(error);
                }
            }
        };
        self.links.clear();
        note(self.refresh().await);
        for container in self.nodes.values() {
            note(mend(container).await);
        }
        note(self.reconnect().await);
        note(self.refresh().await);
        let running: BTreeSet<Node> = self.running().collect();
        let missing = self.began_with.difference(&running).copied();
        for node in missing.collect::<Vec<_>>() {
            note(self.start(node).await);
        }
        let extra = self
            .nodes
            .keys()
            .filter(|node| !self.began_with.contains(node));
        for node in extra.copied().collect::<Vec<_>>() {
            note(self.discard(node).await);
        }
        note(self.refresh().await);
        for (node, container) in &self.nodes {
            if let (Node::Worker(_), Some(address)) = (node, container.address) {
                let worker = target(address, WORKER_PORT);
                note(control::freeze(&worker, false).await);
                note(control::slow_down(&worker, std::time::Duration::ZERO).await);
            }
        }
        note(self.restore_registry().await);
        first
    }

    /// Connects each container that was taken off the network, under its name.
    pub(super) async fn reconnect(&self) -> anyhow::Result<()> {
        for (node, container) in &self.nodes {
            if !container.networks.contains(&self.network) {
                let name = service(*node);
                let connect = [
                    "network",
                    "connect",
                    "--alias",
                    &name,
                    &self.network,
                    &container.id,
                ];
                docker(&connect).await?;
            }
        }
        Ok(())
    }

    /// Ends and removes a container that this fleet made.
    async fn discard(&self, node: Node) -> anyhow::Result<()> {
        let id = &self.container(node)?.id;
        docker(&["stop", id]).await?;
        docker(&["rm", id]).await.map(drop)
    }

    /// Removes workers that were added and adds those that were removed, through any replica: gossip carries
    /// it to the others.
    async fn restore_registry(&self) -> anyhow::Result<()> {
        let replica = self.nodes.iter().find_map(|(node, container)| match node {
            Node::Replica(_) => container.address,
            Node::Worker(_) => None,
        });
        let Some(address) = replica else {
            return Ok(());
        };
        let admin = target(address, ADMIN_PORT);
        let configured: Vec<String> = (1..=WORKERS_CONFIGURED)
            .map(|number| service(Node::Worker(number)))
            .collect();
        let registered = control::registered(&admin).await?;
        for id in registered.iter().filter(|id| !configured.contains(id)) {
            control::unregister(&admin, id).await?;
        }
        for id in configured.iter().filter(|id| !registered.contains(id)) {
            control::register(&admin, id, WORKER_PORT).await?;
        }
        Ok(())
    }
}

/// Removes every fault from a running container.
async fn mend(container: &Container) -> anyhow::Result<()> {
    if container.state == ContainerState::Paused {
        docker(&["unpause", &container.id]).await?;
    }
    if container.is_starved {
        docker(&["update", "--cpu-quota", "-1", &container.id]).await?;
    }
    let Some(pid) = container.pid else {
        return Ok(());
    };
    filter(pid, &[]).await?;
    let clock = clock_file(pid);
    if clock.exists() {
        std::fs::write(&clock, "+0\n")
            .with_context(|| format!("cannot write {}", clock.display()))?;
    }
    Ok(())
}
