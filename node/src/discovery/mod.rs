//! Workers that are found: sources are watched, and what the replicas agree on goes into the registry.
//!
//! What follows from a picture is decided in the crate `grapevine-discovery`, purely; this is its rim. `follow.rs` runs
//! the rule for one source, `board.rs` holds what each source shows now, for peers and operators, `sightings.rs`
//! translates statements for the way to the other replicas. Workers that register themselves are in `leases`: there
//! no replica sees all of them, so the one that a worker renews its lease at answers for it; `processes.rs` notices two
//! processes that renew one lease. `pings` hears those that do so
//! by ZeroMQ.

mod board;
mod credential;
mod follow;
mod leases;
mod metrics;
mod pings;
mod processes;
mod sightings;
mod unwatched;

pub use board::{Board, LostSource, SourceView};
pub use credential::Credentials;
pub use follow::{Follow, FollowParts};
pub use leases::{LeaseError, LeaseParts, Leases, SOURCE as LEASE_SOURCE};
pub use metrics::DiscoveryMetrics;
pub use pings::{
    LeaseRegistrar, NotRegistered, PingMetrics, Pings, Register, SOURCE as PING_SOURCE,
};
pub use processes::{NAME_BYTES_MAX as PROCESS_BYTES_MAX, Renewer};
pub use unwatched::name_unwatched;
