//! The peer state plane: what each replica found out about workers, and how much of each tenant it has
//! in hand; besides, which requests no worker is to get, and how fast workers answer.
//!
//! Pure; instants are arguments. Each replica has one peer state. Its parts, claims about workers,
//! use by tenants, quarantined requests, paces and whom it hears, travel apart, so that a count that changes
//! with each request does not carry hundreds of claims along. Each part is sent whole, in absolute values, and the latest one counts:
//! a lost frame is healed by the next, and nothing is added up.
//!
//! - `part.rs`: what differs between the parts.
//! - `received.rs`: the latest of every other replica, as long as it is renewed.
//! - `spells.rs`: for how long a sender has spoken ill of each worker.
//! - `snapshot.rs`: what is read of it.
//!
//! This replica's own peer state, which parts of it are due, and what becomes of messages: `planes/peer_state/`.
//!
//! What a claim means for routing is not decided here.

mod part;
mod received;
mod snapshot;
mod spells;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::replica::ReplicaId;
use crate::worker::WorkerId;

pub(crate) use part::PartEntry;
pub(crate) use received::{ReceivedStates, Taken};
pub use snapshot::{PeerStates, ReceivedState};

/// Greatest number of tenants in a peer state.
pub const TENANTS_MAX: usize = 1024;
/// Greatest number of claims in a peer state. A registry may hold four times as many workers, and one part
/// ([`PART_BYTES_MAX`]) some 2,000 claims about workers with long names: what does not fit is left out, good claims first,
/// then the oldest.
pub const CLAIMS_MAX: usize = 4096;
/// Greatest number of quarantined requests in a peer state.
pub const QUARANTINE_MAX: usize = 256;
/// Greatest number of paces in a peer state; the first ones count.
pub const PACES_MAX: usize = 2000;
/// Greatest number of sightings in a peer state; the last ones are left out.
pub const SIGHTINGS_MAX: usize = 3000;
/// Greatest number of replicas that a peer state lists as heard: those of the greatest cluster.
pub const HEARD_MAX: usize = 256;
/// A replica of which nothing came for this long is not heard: some twenty reports of load, and longer than it takes to
/// see that a replica is dead.
pub const UNHEARD_AFTER: Duration = Duration::from_secs(3);
/// Greatest length of one part in a frame, in bytes.
pub const PART_BYTES_MAX: usize = 64 * 1024;
/// Greatest age of a claim; older ones count as just so old.
pub const AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Greatest count of requests believed of one tenant on one replica.
pub const REQUESTS_MAX: u32 = 1_000_000;
/// Least time between two sendings: what changes meanwhile is gathered.
pub const PAUSE: Duration = Duration::from_millis(50);
/// A part that has not changed is sent again after this time.
pub const RENEW_AFTER: Duration = Duration::from_secs(1);
/// A part that was not renewed for this long counts no more.
pub const SILENT_AFTER: Duration = Duration::from_secs(3);
/// A silent sender, and what it claimed, is forgotten after this long; no frame of it is under way any more.
pub(crate) const FORGET_AFTER: Duration = Duration::from_secs(60);

/// What one replica publishes to all others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerState {
    /// What it found out about workers, at most one claim for each, [`CLAIMS_MAX`] in all. Of those
    /// that do not fit a frame good ones are left out first, then the oldest.
    pub health: Vec<HealthClaim>,
    /// What it has in hand for tenants, at most [`TENANTS_MAX`]; those with the least are left out.
    pub usage: Vec<TenantUse>,
    /// Requests that no worker is to get, at most [`QUARANTINE_MAX`]; the oldest are left out.
    pub quarantine: Vec<Quarantined>,
    /// How fast workers answer it, at most [`PACES_MAX`]; the last ones are left out.
    pub paces: Vec<Pace>,
    /// What it sees of sources of workers, at most [`SIGHTINGS_MAX`]; the last ones are left out.
    pub sightings: Vec<Sighting>,
    /// Which replicas it hears, at most [`HEARD_MAX`]; the last ones are left out.
    pub heard: Vec<Heard>,
}

/// A replica that the sender hears by itself, never by hearsay; one that is not among them is not heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The other replica.
    pub replica: ReplicaId,
    /// How long before the sending its latest report of load came, to the millisecond and up to [`AGE_MAX`].
    pub age: Duration,
}

impl Heard {
    /// Whether that is so long ago that it counts as not heard.
    pub fn is_silent(&self) -> bool {
        self.age >= UNHEARD_AFTER
    }
}

/// What one replica sees of a source of workers: that it sees it, or where that differs from the registry.
///
/// Nothing of a source means that the replica does not see it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sighting {
    /// Stable hash of the source's name.
    pub source: u64,
    /// Stable hash of the worker's id; 0 where it is about the source.
    pub worker: u64,
    /// What is seen; what the numbers mean is not known here.
    pub what: u8,
    /// A hash of the description that is seen, where `what` is about that.
    pub seen: u32,
}

/// How fast a worker answers one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Stable hash of the worker's id.
    pub worker: u64,
    /// Sums over its answers, finite; what they mean is not known here.
    pub sums: [f32; 6],
}

/// What a replica found out itself about one worker; never hearsay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthClaim {
    /// The worker that it is about.
    pub worker: WorkerId,
    /// Restart counter of the worker at that time: a restarted worker is another one.
    pub epoch: u64,
    /// What it found.
    pub claim: Claim,
    /// How long before the sending it found out, to the millisecond and up to [`AGE_MAX`].
    pub age: Duration,
}

/// What a replica may find out about a worker. Its number travels: a new one comes last, and costs a replica that does not
/// know it its entry only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// A probe passed, and nothing speaks against it.
    Good,
    /// It refused or dropped a connection.
    Unreachable,
    /// Probes failed.
    Unhealthy,
    /// Requests are with it, and no token comes.
    Stalled,
    /// Its answers were errors too often.
    Ejected,
}

impl Claim {
    /// Every claim.
    pub const ALL: [Self; 5] = [
        Self::Good,
        Self::Unreachable,
        Self::Unhealthy,
        Self::Stalled,
        Self::Ejected,
    ];

    /// Its name, as in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Unreachable => "unreachable",
            Self::Unhealthy => "unhealthy",
            Self::Stalled => "stalled",
            Self::Ejected => "ejected",
        }
    }
}

/// A request with which workers ended, identified by its body's length and a hash. Each receiver decides how long it
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Bytes of its body; none: the request with this hash may be sent again, if it was found earlier.
    pub length: u64,
    /// Of its path and body.
    pub hash: [u8; 16],
    /// How long before the sending it was found, to the millisecond and up to [`AGE_MAX`].
    pub age: Duration,
}

impl Quarantined {
    /// What identifies it; also the order on the wire.
    pub(crate) fn id(&self) -> (u64, [u8; 16]) {
        (self.length, self.hash)
    }
}

/// What a replica has in hand for one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantUse {
    /// Stable hash of the tenant's name.
    pub tenant: u64,
    /// Requests in flight, up to [`REQUESTS_MAX`] for one replica.
    pub in_flight: u32,
    /// Requests that wait to be admitted, up to [`REQUESTS_MAX`] for one replica.
    pub queued: u32,
}

impl TenantUse {
    /// The same within what is believable.
    fn clamped(self) -> Self {
        Self {
            tenant: self.tenant,
            in_flight: self.in_flight.min(REQUESTS_MAX),
            queued: self.queued.min(REQUESTS_MAX),
        }
    }

    /// Adds the counts of another replica, or of a tenant whose name has the same hash.
    fn add(&mut self, other: Self) {
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.queued = self.queued.saturating_add(other.queued);
    }
}
