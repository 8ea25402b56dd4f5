//! What can be done to a cluster, wherever it runs.

use std::path::PathBuf;

use tokio::sync::watch;

use super::compose::ComposeFleet;
pub(crate) use super::fault::{Fault, Link, Node, Reach};
use super::local::LocalFleet;
use crate::client::Target;

/// Is a process there?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeatState {
    Running,
    Paused,
    Stopped,
}

/// One process of the cluster, as whoever watches it needs it. Addresses may change on a restart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seat {
    pub(crate) node: Node,
    /// As it calls itself: the replica's id, the worker's id.
    pub(crate) name: String,
    pub(crate) state: SeatState,
    /// Admin API, of a replica that is running.
    pub(crate) admin: Option<Target>,
    /// What the admin API asks for as `Authorization: Bearer`.
    pub(crate) token: Option<String>,
    /// `/metrics`, where it is not that of the admin API.
    pub(crate) metrics: Option<Target>,
    /// Data port of a replica, API of a worker.
    pub(crate) http: Option<Target>,
    /// On this machine.
    pub(crate) pid: Option<u32>,
}

/// A cluster that can be hurt. Numbers of replicas and workers count from 1.
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
    /// Does it, and returns when it is done: a started replica answers, a killed one is gone.
    ///
    /// # Errors
    /// When this kind of cluster cannot do it, with the reason.
    pub(crate) async fn apply(&mut self, fault: &Fault) -> anyhow::Result<()> {
        each!(self, fleet => fleet.apply(fault).await)
    }

    /// Where clients send requests: the balancer.
    pub(crate) fn front(&self) -> Target {
        each!(self, fleet => fleet.front())
    }

    /// All processes, replicas first; the receiver is told of each change.
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

    /// Takes worker `worker` off the registry at replica `via`; its process goes on.
    pub(crate) async fn remove_worker(&mut self, via: usize, worker: usize) -> anyhow::Result<()> {
        each!(self, fleet => fleet.remove_worker(via, worker).await)
    }

    /// Starts or terminates replicas until this many run: 1 to this number.
    pub(crate) async fn scale(&mut self, replicas: usize) -> anyhow::Result<()> {
        each!(self, fleet => fleet.scale(replicas).await)
    }

    /// Files with what each process wrote to its log so far.
    pub(crate) async fn logs(&self) -> anyhow::Result<Vec<(String, PathBuf)>> {
        each!(self, fleet => fleet.logs().await)
    }

    /// Undoes every fault and ends what this fleet started.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        each!(self, fleet => fleet.stop().await)
    }
}
