//! What it takes to bring a request to a worker: also once more, and also after its answer has begun.

use std::io;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::budget::Budget;
use super::deaths::Deaths;
use super::division::LeftBlocks;
use super::metrics::ProxyMetrics;
use crate::admission::Admission;
use crate::cluster::Cluster;
use crate::cluster::quarantine::Quarantine;
use crate::config::{FailoverConfig, LimitConfig, RetryConfig, TimeoutConfig, TransferConfig};
use crate::live::Live;
use crate::log_limit::LogLimit;
use crate::seats::Seats;
use crate::upstream::Worker;
use crate::upstream::probe_parts::Learned;

/// Shared by all requests, and by the streams that move.
#[derive(Debug)]
pub(super) struct Dispatch {
    /// Fleet and placement.
    pub(super) cluster: Arc<Cluster>,
    /// For requests that wait until a worker has room.
    pub(super) admission: Arc<Admission>,
    /// Time limits.
    pub(super) timeouts: Live<TimeoutConfig>,
    /// Retries.
    pub(super) retry: Live<RetryConfig>,
    /// What all retries together may cost.
    pub(super) budget: Arc<Budget>,
    /// Workers that ended a moment ago.
    pub(super) deaths: Deaths,
    /// Requests that no worker gets.
    pub(super) quarantine: Arc<Quarantine>,
    /// How requests are divided.
    pub(super) transfer: Live<TransferConfig>,
    /// Takes what answers teach of workers.
    pub(super) learned: mpsc::Sender<Learned>,
    /// Blocks that were left on prefill workers.
    pub(super) left: Arc<LeftBlocks>,
    /// How far a stream may move.
    pub(super) failover: Live<FailoverConfig>,
    /// Sizes and counts; of streams, the bytes that are held while an event is incomplete.
    pub(super) limits: Live<LimitConfig>,
    /// Where to count.
    pub(super) metrics: Arc<ProxyMetrics>,
    /// Connections of clients, of which idle ones leave when open files run out.
    pub(super) seats: Arc<Seats>,
    /// Of connections to workers for which this replica has no socket.
    pub(super) no_socket: LogLimit,
    /// Of answers that are pages for people.
    pub(super) web_pages: LogLimit,
}

impl Dispatch {
    /// Most bytes of a stream that are held while an event is incomplete.
    pub(super) fn event_bytes(&self) -> usize {
        self.limits.look().event_line_bytes.as_usize()
    }

    /// Counts and tells that an answer with a status of success is a page for people; the client gets it as it is.
    pub(super) fn got_web_page(&self, worker: &Worker) {
        self.metrics.refusals.worker_failed();
        if self.web_pages.allows_line() {
            tracing::warn!(
                worker = &*worker.label,
                "a worker answers a request with a web page: is a proxy before it that wants a log-in, or no engine at its \
                 address?"
            );
        }
    }

    /// Closes what is idle, towards workers and clients, where open files or memory have run out; false: something else has,
    /// or nothing was idle.
    pub(super) fn relieve(&self, why: &io::Error) -> bool {
        if why.kind() == io::ErrorKind::AddrNotAvailable {
            return false;
        }
        let cleared = {
            let fleet = self.cluster.fleet();
            let resting = fleet.workers().filter(|worker| worker.idle.resting() > 0);
            resting.map(|worker| worker.idle.clear()).count()
        };
        self.seats.relieve() || cleared > 0
    }

    /// Counts and tells that this replica has no socket for a connection to a worker.
    pub(super) fn without_socket(&self, worker: &Worker, why: &io::Error) {
        self.metrics.refusals.limit_reached("sockets");
        if self.no_socket.allows_line() {
            tracing::warn!(
                worker = &*worker.label,
                %why,
                "this replica has no socket for a connection to a worker; raise the limit of open files (ulimit -n), or \
                 of ports (net.ipv4.ip_local_port_range)"
            );
        }
    }
}
