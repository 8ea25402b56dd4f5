//! The evidence plane: where prefixes are, as far as the ring alone does not determine it.
//!
//! Pure but for the channel to the listener; instants are arguments. A replica that placed a prefix
//! elsewhere than at its home reports it ([`Evidence`]), one whose attempt failed, or that learned that a worker holds
//! less than was believed, takes it back ([`Retraction`]), and each reports how often it saw which prefix
//! ([`HeatReport`]). What the link hashes mean is placement's business.
//!
//! - `pending.rs`: records that wait for the next batch.
//! - `log.rs`: numbered batches, kept for a while.
//! - `sequence.rs`: which batches of one sender are missing; `inbox.rs`: all senders.
//! - `early.rs`: records about workers that are not known yet.
//! - `listener_queue.rs`: the bounded channel to the one listener.
//! - `known_workers.rs`: which workers, in which epochs, evidence may be about.
//! - `snapshot.rs`: how much of all that is known a starting replica is told.
//!
//! How far each peer was sent them, and what becomes of messages: `planes/evidence/`.
//!
//! No replica forwards what others sent: every replica has a connection to every other.

mod early;
mod inbox;
mod kept;
mod known_workers;
mod listener_queue;
mod log;
mod pending;
mod sequence;
mod snapshot;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::replica::ReplicaId;
use crate::worker::WorkerId;

pub(crate) use inbox::{Inbox, Outcome, Pull};
pub(crate) use known_workers::KnownWorkers;
pub(crate) use listener_queue::ListenerQueue;
pub(crate) use log::Log;
pub(crate) use pending::{Pending, Recorded};
pub(crate) use snapshot::{SNAPSHOT_FRAMES_MAX, snapshot_pieces};

/// Greatest number of links in one [`Evidence`] or [`Retraction`].
pub const LINKS_MAX: usize = 256;
/// Greatest number of counts in one [`HeatReport`].
pub const HEAT_COUNTS_MAX: usize = 512;

/// A worker holds, or soon will hold, the key-value blocks of these prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The worker that holds them.
    pub worker: WorkerId,
    /// Restart counter of the worker at that time: a restarted worker holds nothing.
    pub epoch: u64,
    /// Hashes of prefixes, shortest first; 1 to [`LINKS_MAX`].
    pub links: Vec<u64>,
}

impl Evidence {
    fn wire_len(&self) -> usize {
        wire_len(self.worker.as_str().len(), self.links.len())
    }
}

/// A worker does not hold these prefixes, whatever was sent before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retraction {
    /// The worker that does not hold them.
    pub worker: WorkerId,
    /// Restart counter of the worker at that time.
    pub epoch: u64,
    /// Hashes of prefixes; 1 to [`LINKS_MAX`].
    pub links: Vec<u64>,
    /// How far it reaches.
    pub lack: Lack,
}

/// Why a worker does not hold something, and what else that says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It did not compute what it was sent. Nothing is said of anything else.
    NotComputed,
    /// It forgot it. What was used there before is gone, too: caches forget what was not used for longest.
    Forgotten,
}

/// How often one replica saw its most frequent prefixes: the whole report, not a difference.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct HeatReport {
    /// Rises with each report of a replica; the higher one counts.
    pub version: u64,
    /// Hash of a prefix and its decayed, quantised count; strictly rising by hash, at most
    /// [`HEAT_COUNTS_MAX`].
    pub counts: Vec<(u64, u32)>,
    /// Decayed, quantised count of all requests.
    pub total: u32,
}

impl HeatReport {
    /// True if it keeps to its limits.
    pub(crate) fn is_valid(&self) -> bool {
        self.counts.len() <= HEAT_COUNTS_MAX && self.counts.is_sorted_by(|a, b| a.0 < b.0)
    }
}

/// What other replicas sent, and what became of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvidenceEvent {
    /// A placement. Records of one sender may arrive out of order; twice only at the start, once in the
    /// snapshot and once as sent.
    Evidence {
        /// Its sender.
        from: ReplicaId,
        /// What was sent.
        evidence: Evidence,
    },
    /// A placement taken back.
    Retraction {
        /// Its sender.
        from: ReplicaId,
        /// What was sent.
        retraction: Retraction,
    },
    /// Some of what this replica sent was lost and cannot be had again.
    Lost {
        /// The sender of what is missing.
        from: ReplicaId,
    },
    /// A newer report in place of the sender's former one.
    Heat {
        /// Its sender.
        from: ReplicaId,
        /// What was sent.
        report: HeatReport,
    },
    /// The replica left, ended, or is silent: its heat counts no more. Its evidence stays true.
    Gone {
        /// The replica that is gone.
        from: ReplicaId,
    },
}

impl EvidenceEvent {
    /// The replica that it is from, or about.
    pub fn from(&self) -> &ReplicaId {
        match self {
            Self::Evidence { from, .. }
            | Self::Retraction { from, .. }
            | Self::Lost { from }
            | Self::Heat { from, .. }
            | Self::Gone { from } => from,
        }
    }
}

/// One claim about a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The worker holds something.
    Evidence(Evidence),
    /// The worker does not hold something.
    Retraction(Retraction),
}

impl Record {
    /// The worker that it is about, and in which epoch.
    pub(crate) fn about(&self) -> (&WorkerId, u64) {
        match self {
            Self::Evidence(claim) => (&claim.worker, claim.epoch),
            Self::Retraction(claim) => (&claim.worker, claim.epoch),
        }
    }

    pub(crate) fn links(&self) -> &[u64] {
        match self {
            Self::Evidence(claim) => &claim.links,
            Self::Retraction(claim) => &claim.links,
        }
    }

    /// True if it keeps to its limits.
    pub(crate) fn is_valid(&self) -> bool {
        (1..=LINKS_MAX).contains(&self.links().len())
    }

    pub(crate) fn received_from(self, from: ReplicaId) -> EvidenceEvent {
        match self {
            Self::Evidence(evidence) => EvidenceEvent::Evidence { from, evidence },
            Self::Retraction(retraction) => EvidenceEvent::Retraction { from, retraction },
        }
    }

    pub(crate) fn wire_len(&self) -> usize {
        wire_len(self.about().0.as_str().len(), self.links().len())
    }
}

/// Records of one sender under one number of its own count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Rises by one with each batch of a generation; below 2^48.
    pub number: u64,
    /// The records; at most [`BATCH_RECORDS_MAX`]. Empty if all of it is outdated by now.
    pub records: Vec<Record>,
}

/// Where a sender stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The oldest batch that it keeps, or `next`.
    pub first: u64,
    /// Everything below was sent.
    pub next: u64,
}

/// Batch numbers from `start` up to, without, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The first one.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
}

/// How much of one sender's batches is in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The sender.
    pub replica: ReplicaId,
    /// Its generation.
    pub generation: u64,
    /// All of its batches below are in it.
    pub next: u64,
}

/// One frame of the evidence that a starting replica takes from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceSnapshot {
    /// What the answering replica believes.
    pub evidence: Vec<Evidence>,
    /// What that includes, in the last frame.
    pub heads: Vec<Head>,
    /// Whether this is the last frame.
    pub last: bool,
}

/// Cuts into pieces that fit one frame each; none if there is nothing.
fn pieces<T>(all: Vec<T>, wire_len: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut pieces: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for one in all {
        let len = wire_len(&one);
        match pieces.last_mut() {
            Some(piece) if piece.len() < BATCH_RECORDS_MAX && bytes + len <= BATCH_BYTES_MAX => {
                bytes += len;
                piece.push(one);
            }
            _ => {
                bytes = len;
                pieces.push(vec![one]);
            }
        }
    }
    pieces
}

/// About as many bytes as a record takes in a frame, by those of its worker's id and its number of links: a bound, not a sum.
const fn wire_len(id_bytes: usize, links: usize) -> usize {
    const FIXED: usize = 16;
    FIXED + id_bytes + links * size_of::<u64>()
}

/// Greatest number of records in one frame.
pub const BATCH_RECORDS_MAX: usize = 512;
/// Greatest length of the records of one frame in bytes.
const BATCH_BYTES_MAX: usize = 64 * 1024;
/// Greatest number of heads in a snapshot: one for each replica of a cluster.
pub const HEADS_MAX: usize = 256;
/// Batches that a sender keeps, and that a receiver misses at once: 40 s of one each 20 ms.
const LOG_BATCHES_MAX: usize = 2048;
/// Batches asked for at once.
pub const PULL_BATCHES_MAX: usize = 48;
/// How long missing batches are asked for.
const GAP_PATIENCE: Duration = Duration::from_secs(10);
