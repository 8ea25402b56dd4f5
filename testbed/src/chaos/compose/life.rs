//! How containers start and end, and how their processor time and clocks are changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use tokio_util::task::AbortOnDropHandle;

use super::docker::{ContainerState, docker};
use super::seats::{end, service, target};
use super::{ADMIN_PORT, ComposeFleet, WORKER_PORT, control};
use crate::chaos::fault::Node;

/// Period of docker's CPU quota in microseconds, and the least quota.
const CPU_PERIOD: f64 = 100_000.0;
const CPU_QUOTA_MIN: f64 = 1_000.0;

impl ComposeFleet {
    /// Sends SIGTERM; the seat is updated when the container has ended.
    pub(super) async fn terminate(&mut self, node: Node) -> anyhow::Result<()> {
        let id = self.container(node)?.id.clone();
        docker(&["kill", "--signal", "TERM", &id]).await?;
        let seats = Arc::clone(&self.seats);
        let ended = tokio::spawn(async move {
            if docker(&["wait", &id]).await.is_ok() {
                seats.send_modify(|seats| {
                    seats
                        .iter_mut()
                        .filter(|seat| seat.node == node)
                        .for_each(end)
                });
            }
        });
        self.endings.insert(node, AbortOnDropHandle::new(ended));
        Ok(())
    }

    /// Starts a container and waits until it answers. A container of a profile is created first; one that is ending
    /// ends first.
    pub(super) async fn start(&mut self, node: Node) -> anyhow::Result<()> {
        let name = service(node);
        if let Some(ending) = self.endings.remove(&node) {
            // This wait has a limit of its own.
            ending.await.context("waiting does not panic")?;
        }
        self.refresh().await?;
        match self.nodes.get(&node).cloned() {
            None => self.docker.up(&name).await?,
            Some(container) if container.state == ContainerState::Stopped => {
                docker(&["start", &container.id]).await?;
            }
            Some(_) => return Ok(()),
        }
        self.refresh().await?;
        let (port, path) = match node {
            Node::Replica(_) => (ADMIN_PORT, "/healthz"),
            Node::Worker(_) => (WORKER_PORT, "/health"),
        };
        let address = self.container(node)?.address;
        let address =
            address.with_context(|| format!("{name} ended at once: docker-compose logs {name}"))?;
        control::answers(target(address, port), path)
            .await
            .with_context(|| format!("{name} does not answer: docker-compose logs {name}"))
    }

    pub(super) async fn starve(&self, node: Node, share: f64) -> anyhow::Result<()> {
        let quota = (share * CPU_PERIOD).max(CPU_QUOTA_MIN);
        self.limit_processor(node, &format!("{quota:.0}")).await
    }

    pub(super) async fn feed(&self, node: Node) -> anyhow::Result<()> {
        self.limit_processor(node, "-1").await
    }

    async fn limit_processor(&self, node: Node, quota: &str) -> anyhow::Result<()> {
        let id = &self.container(node)?.id;
        let period = format!("{CPU_PERIOD:.0}");
        let update = ["update", "--cpu-period", &period, "--cpu-quota", quota, id];
        docker(&update).await.map(drop)
    }

    /// Writes the file that libfaketime reads each second; monotonic time stays right.
    pub(super) async fn set_clock(&self, node: Node, ahead: i64) -> anyhow::Result<()> {
        let container = self.container(node)?;
        ensure!(
            container.has_faketime,
            "clocks need libfaketime in the image and its variable: apt-get install faketime, testbed/docker/build.sh \
             --binary FILE, GRAPEVINE_PRELOAD=/lib/libfaketime.so.1 docker-compose up -d"
        );
        let pid = container
            .pid
            .with_context(|| format!("{} does not run", service(node)))?;
        let file = clock_file(pid);
        std::fs::write(&file, format!("{ahead:+}\n"))
            .with_context(|| format!("cannot write {}; this needs root", file.display()))
    }
}

pub(super) fn clock_file(pid: u32) -> PathBuf {
    Path::new("/proc")
        .join(pid.to_string())
        .join("root/etc/faketimerc")
}
