//! The actions on a cluster, wherever it runs.

use std::path::PathBuf;

use tokio::sync::watch;

use super::compose::ComposeFleet;
use super::fault::{Fault, Node};
use super::local::LocalFleet;
use super::seat::Seat;
use grapevine_bench::client::Target;

/// A cluster into which faults can be injected. Numbers of replicas and workers count from 1.
pub(crate) enum Fleet {
    Local(Box<LocalFleet>),
    Compose(Box<ComposeFleet>),
}

macro_rules! each {
    ($fleet:expr, $inner:ident => $body:expr) => {
        match $fleet {
            Fleet::Local($inner) => $body,
            Fleet::Compose($inner) => $body,
        }
    };
}

impl Fleet {
    /// Injects the fault, and returns when it is in effect: a started replica answers, a killed one is gone.
    /// Errors: when this kind of cluster cannot have this fault, with the reason.
    pub(crate) async fn apply(&mut self, fault: &Fault) -> anyhow::Result<()> {
        each!(self, fleet => fleet.apply(fault).await)
    }

    /// Where clients send requests: the balancer.
    pub(crate) fn front(&self) -> Target {
        each!(self, fleet => fleet.front())
    }

    /// All processes, replicas first; the receiver sees each change.
    pub(crate) fn seats(&self) -> watch::Receiver<Vec<Seat>> {
        each!(self, fleet => fleet.seats())
    }

    /// The name under which the cluster knows a node: `x-grapevine-replica`, the worker's id.
    pub(crate) fn name(&self, node: Node) -> String {
        each!(self, fleet => fleet.name(node))
    }

    /// Starts worker `worker` if it is not there, and registers it at replica `via`.
    pub(crate) async fn add_worker(&mut self, via: usize, worker: usize) -> anyhow::Result<()> {
        each!(self, fleet => fleet.add_worker(via, worker).await)
    }

    /// Removes worker `worker` from the registry at replica `via`; its process runs on.
    pub(crate) async fn remove_worker(&mut self, via: usize, worker: usize) -> anyhow::Result<()> {
        each!(self, fleet => fleet.remove_worker(via, worker).await)
    }

    /// Starts or terminates replicas until those numbered 1 to `replicas` run.
    pub(crate) async fn scale(&mut self, replicas: usize) -> anyhow::Result<()> {
        each!(self, fleet => fleet.scale(replicas).await)
    }

    /// The log file of each process.
    pub(crate) async fn logs(&self) -> anyhow::Result<Vec<(String, PathBuf)>> {
        each!(self, fleet => fleet.logs().await)
    }

    /// Repairs every fault and ends what this fleet started.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        each!(self, fleet => fleet.stop().await)
    }
}
