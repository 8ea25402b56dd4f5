//! The processes of a cluster, as an observer needs them.

use super::fault::Node;
use grapevine_bench::client::Target;

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeatState {
    Running,
    Paused,
    Stopped,
}

/// One process of the cluster, as an observer needs it. Addresses may change on a restart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seat {
    pub(crate) node: Node,
    /// Its own name: the replica's id or the worker's id.
    pub(crate) name: String,
    pub(crate) state: SeatState,
    /// Admin API of a running replica.
    pub(crate) admin: Option<Target>,
    /// Token that the admin API asks for in `Authorization: Bearer`.
    pub(crate) token: Option<String>,
    /// `/metrics`, if it is not on the admin port.
    pub(crate) metrics: Option<Target>,
    /// Data port of a replica, API of a worker.
    pub(crate) http: Option<Target>,
    /// Process id on this machine.
    pub(crate) pid: Option<u32>,
}
