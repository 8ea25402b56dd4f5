//! The evidence plane: what the ring alone does not tell about where prefixes are.
//!
//! Pure but for the channel to the listener; instants are arguments. A replica that placed a prefix
//! elsewhere than at its home says so ([`Evidence`]), one that learned that a worker holds less than
//! was believed takes it back ([`Retraction`]), and each says how often it saw which prefix
//! ([`HeatReport`]). What the link hashes mean is placement's business.
//!
//! - `told.rs`: what this replica has to say, until the next batch.
//! - `log.rs`: numbered batches, kept for a while; `outbox.rs`: how far each peer was sent them.
//! - `sequence.rs`: which batches of one sender are missing; `inbox.rs`: all senders.
//! - `ear.rs`: the bounded channel to the one listener.
//! - `roster.rs`: which workers, in which epochs, evidence may be about.
//! - `budget.rs`: bytes a second.
//!
//! Nobody forwards what others said: every replica has a connection to every other.

mod ear;
mod told;

use crate::replica::ReplicaId;
use crate::worker::WorkerId;

pub(crate) use ear::Ear;
pub(crate) use told::{Tell, Told};

/// Greatest number of links in one [`Evidence`] or [`Retraction`].
pub const LINKS_MAX: usize = 256;
/// Greatest number of counts in one [`HeatReport`].
pub const HEAT_COUNTS_MAX: usize = 512;

/// A worker holds, or soon will hold, the key-value blocks of these prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Who holds them.
    pub worker: WorkerId,
    /// Restart counter of the worker at that time: a restarted worker holds nothing.
    pub epoch: u64,
    /// Hashes of prefixes, shortest first; 1 to [`LINKS_MAX`].
    pub links: Vec<u64>,
}

/// A worker does not hold these prefixes, whatever was said before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retraction {
    /// Who does not hold them.
    pub worker: WorkerId,
    /// Restart counter of the worker at that time.
    pub epoch: u64,
    /// Hashes of prefixes; 1 to [`LINKS_MAX`].
    pub links: Vec<u64>,
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

/// What other replicas said, and what became of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A placement. Records of one sender may arrive out of order, never twice.
    Evidence {
        /// Who said it.
        from: ReplicaId,
        /// What it said.
        evidence: Evidence,
    },
    /// A placement taken back.
    Retraction {
        /// Who said it.
        from: ReplicaId,
        /// What it said.
        retraction: Retraction,
    },
    /// Some of what this replica said was lost and cannot be had again.
    Lost {
        /// Whose words are missing.
        from: ReplicaId,
    },
    /// A newer report in place of the sender's former one.
    Heat {
        /// Who said it.
        from: ReplicaId,
        /// What it said.
        report: HeatReport,
    },
    /// The replica left, ended, or is not heard: its heat counts no more. Its evidence stays true.
    Gone {
        /// Who is gone.
        from: ReplicaId,
    },
}

impl Heard {
    /// Whom it is from, or about.
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

/// One thing said about a worker.
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
            Self::Evidence(said) => (&said.worker, said.epoch),
            Self::Retraction(said) => (&said.worker, said.epoch),
        }
    }

    pub(crate) fn links(&self) -> &[u64] {
        match self {
            Self::Evidence(said) => &said.links,
            Self::Retraction(said) => &said.links,
        }
    }

    /// True if it keeps to its limits.
    pub(crate) fn is_valid(&self) -> bool {
        (1..=LINKS_MAX).contains(&self.links().len())
    }

    pub(crate) fn heard_from(self, from: ReplicaId) -> Heard {
        match self {
            Self::Evidence(evidence) => Heard::Evidence { from, evidence },
            Self::Retraction(retraction) => Heard::Retraction { from, retraction },
        }
    }

    /// About as many bytes as it takes in a frame: a bound, not a sum.
    pub(crate) fn wire_len(&self) -> usize {
        const FIXED: usize = 16;
        FIXED + self.about().0.as_str().len() + size_of::<u64>() * self.links().len()
    }
}
