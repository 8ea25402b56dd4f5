//! The replicated view of a Grapevine cluster: which replicas live, which workers there are, how
//! loaded they are. Leaderless; over QUIC with mutual TLS. `docs/gossip-protocol.md` describes it.
//!
//! | part | what | pure |
//! |---|---|---|
//! | [`Agent`] (`agent/`) | one handle for everything; the only part that others need | |
//! | [`plane`], `planes/`, `driver/` | what every plane is; the six of this crate; what drives them: transport, clock and locks | in part |
//! | `membership/` | chitchat, supervised: liveness and tiny facts; the judge of its bytes | |
//! | `transport/` | one UDP socket, connections, HELLO, seeds | |
//! | `peers/` | admitted peers, their strikes and rates | yes |
//! | [`identity`] | certificate authority, certificates, names | |
//! | [`registry`], [`worker`], [`hlc`] | the worker set: a map that merges without a leader | yes |
//! | [`load`] | load per worker across the cluster | yes |
//! | [`evidence`] | which worker took which prefix, and how hot it is | yes |
//! | [`peer_state`] | what replicas found out about workers, and have in hand for tenants | yes |
//! | [`dry_run`] | what another replica would decide | yes |
//! | [`view`] | what a replica knows at one moment | yes |
//! | [`frame`], [`wire`] | what travels on our own planes | yes |

#![warn(missing_docs)]

mod agent;
pub mod budget;
pub mod config;
mod driver;
pub mod dry_run;
mod error;
pub mod evidence;
mod facts;
pub mod frame;
pub mod hlc;
pub mod identity;
pub mod load;
#[cfg(test)]
mod made;
mod membership;
mod metrics;
pub mod peer_state;
mod peers;
pub mod plane;
mod planes;
mod recent_least;
pub mod registry;
#[cfg(test)]
mod releases;
mod replica;
mod transport;
pub mod twin;
mod unseen;
pub mod view;
pub mod wire;
pub mod worker;

pub use agent::{Ack, Agent, Declared, ExtraPlane, PeerLink, WorkerReport};
pub use driver::Hosted;
pub use error::StartError;
pub use identity::{Identity, IdentityError};
pub use metrics::Metrics;
pub use planes::{DryRunHandler, EvidenceSource};
pub use registry::ChangeError;
pub use replica::{ReplicaId, ReplicaIdError};
pub use transport::{Network, SystemNetwork};
pub use transport::{PathReport, SilentSeed};
