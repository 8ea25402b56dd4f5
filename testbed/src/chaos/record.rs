//! The record of one run of a scenario: everything that a report shows, and the JSON from which a report can
//! be made again.
//!
//! Times are milliseconds since the run began ([`Origin`]), so that samples, windows and marks share one
//! axis.

use grapevine_placement::named;
use serde::{Deserialize, Serialize};

pub(crate) use grapevine_bench::charts::{Mark, MarkKind};
use grapevine_bench::tally::Summary;
pub(crate) use grapevine_bench::windows::{Origin, Window};

/// Failed requests that a record keeps; `totals` counts all.
pub(crate) const FAILURES_MAX: usize = 200;

/// One run of one scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The scenario's name on the command line.
    pub(crate) scenario: String,
    /// One line for people on what the scenario does.
    pub(crate) title: String,
    pub(crate) place: Place,
    /// Seed of the schedule and the prompts, if anything was drawn at random.
    pub(crate) seed: Option<u64>,
    /// RFC 3339.
    pub(crate) began: String,
    /// Length of the run.
    pub(crate) duration_ms: u64,
    pub(crate) promises: Vec<Promise>,
    /// By time.
    pub(crate) marks: Vec<Mark>,
    /// By time.
    pub(crate) samples: Vec<Sample>,
    /// By time, without gaps.
    pub(crate) windows: Vec<Window>,
    /// The first [`FAILURES_MAX`].
    pub(crate) failures: Vec<FailedRequest>,
    pub(crate) totals: Summary,
    /// Requests that were due but not sent, because too many were in flight.
    pub(crate) shed: u64,
    /// Notes for the reader: limits reached, values left out.
    pub(crate) notes: Vec<String>,
}

impl Record {
    /// Every promise held, and there was at least one.
    pub(crate) fn held(&self) -> bool {
        !self.promises.is_empty() && self.promises.iter().all(|promise| promise.held)
    }
}

named! {
    /// Where the cluster ran.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(crate) enum Place {
        /// Processes of this machine.
        Processes = "local processes",
        /// Containers of the compose testbed.
        Compose = "compose testbed",
    }
}

/// A promise, whether it held, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promise {
    pub(crate) text: String,
    pub(crate) held: bool,
    /// The figures behind the verdict.
    pub(crate) seen: String,
}

/// What the replicas reported at one instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) at_ms: u64,
    pub(crate) replicas: Vec<ReplicaSample>,
    /// Would each replica, with its own view of the load now, send a request to the same worker? `None`: not
    /// asked this time. 0 prompts: asked, and fewer than two replicas answered.
    pub(crate) agreement: Option<Agreement>,
    /// The same without regard to load, so that membership and memory alone decide.
    pub(crate) agreement_idle: Option<Agreement>,
}

impl Sample {
    /// Ring digests of the replicas that answered, without repeats.
    pub(crate) fn rings(&self) -> Vec<&str> {
        self.distinct(|seen| &seen.ring)
    }

    /// Registry digests of the replicas that answered, without repeats.
    pub(crate) fn registries(&self) -> Vec<&str> {
        self.distinct(|seen| &seen.registry)
    }

    fn distinct(&self, part: fn(&Seen) -> &String) -> Vec<&str> {
        let seen = self.replicas.iter().filter_map(|one| one.seen.as_ref());
        let mut parts: Vec<&str> = seen.map(|seen| part(seen).as_str()).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }
}

/// One replica at one instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReplicaSample {
    pub(crate) name: String,
    pub(crate) state: ReplicaState,
    /// What it reported; present when `state` is `Up`.
    pub(crate) seen: Option<Seen>,
    /// Process id on this machine, if known. Another id means that the replica was restarted.
    pub(crate) pid: Option<u32>,
    /// Resident memory.
    pub(crate) rss_bytes: Option<u64>,
    pub(crate) open_files: Option<u64>,
    /// CPU time of the process since it began, user and system.
    pub(crate) cpu_s: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReplicaState {
    /// It answered.
    Up,
    /// It should run, and did not answer in time: paused, starved, starting or dead.
    Silent,
    /// The scenario has stopped it.
    Stopped,
}

/// What a replica reports through its admin API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) ready: bool,
    /// Digest of all rings.
    pub(crate) ring: String,
    /// crc32 of the worker registry, in hexadecimal.
    pub(crate) registry: String,
    /// Workers in its rings.
    pub(crate) workers: u64,
    /// Other replicas that it sees as alive.
    pub(crate) live_peers: u64,
    /// It sees no other replica as alive.
    pub(crate) isolated: bool,
    /// Requests in progress on it.
    pub(crate) in_flight: u64,
}

/// Number of prompts that all answering replicas would send to the same worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Agreement {
    /// Prompts asked about.
    pub(crate) asked: usize,
    /// Of these, prompts for which all named the same worker.
    pub(crate) equal: usize,
}

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedRequest {
    /// When it was sent, or should have been.
    pub(crate) sent_ms: u64,
    pub(crate) failed_ms: u64,
    /// A part of the answer had reached the client.
    pub(crate) begun: bool,
    /// The replica that had it; `None` when no head arrived.
    pub(crate) replica: Option<String>,
    pub(crate) worker: Option<String>,
    /// As [`grapevine_bench::client::Failure`] names it: `cut`, `status_503`.
    pub(crate) kind: String,
}
