//! The replicated view of a Grapevine cluster: which replicas live, which workers there are, how
//! loaded they are. Leaderless; over QUIC with mutual TLS. `README.md` describes the protocol.
//!
//! | part | what | pure |
//! |---|---|---|
//! | [`Agent`] (`agent/`) | one handle for everything; the only part that others need | |
//! | `membership` | chitchat, supervised: liveness and tiny facts | |
//! | `transport/` | one UDP socket, connections, HELLO, seeds | |
//! | `firewall/` | judges every message before chitchat sees it | yes |
//! | [`identity`] | certificate authority, certificates, names | |
//! | [`registry`], [`worker`], [`hlc`] | the worker set: a map that merges without a leader | yes |
//! | [`load`] | load per worker across the cluster | yes |
//! | [`evidence`] | which worker took which prefix, and how hot it is | yes |
//! | [`bulletin`] | what replicas found out about workers, and have in hand for tenants | yes |
//! | [`dry_run`] | what another replica would decide | yes |
//! | [`view`] | what a replica knows at one moment | yes |
//! | [`frame`], [`wire`] | what travels on our own planes | yes |

#![warn(missing_docs)]

mod agent;
pub mod bulletin;
pub mod config;
pub mod dry_run;
mod error;
pub mod evidence;
mod firewall;
pub mod frame;
pub mod hlc;
pub mod identity;
pub mod load;
mod membership;
mod metrics;
pub mod registry;
#[cfg(test)]
mod releases;
mod replica;
mod transport;
pub mod twin;
pub mod view;
pub mod wire;
pub mod worker;

pub use agent::{Ack, Agent, DryRunHandler, EvidenceSource, Said};
pub use error::{ChangeError, StartError};
pub use identity::{Identity, IdentityError};
pub use metrics::Metrics;
pub use replica::{ReplicaId, ReplicaIdError};
pub use transport::{Network, SystemNetwork};
