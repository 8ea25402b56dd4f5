//! The replicated view of a Grapevine cluster.

mod agent;
pub mod config;
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
mod replica;
mod transport;
pub mod view;
pub mod wire;
pub mod worker;

pub use agent::{Ack, Agent, EvidenceSource};
pub use error::{ChangeError, StartError};
pub use identity::{Identity, IdentityError};
pub use metrics::Metrics;
pub use replica::{ReplicaId, ReplicaIdError};
pub use transport::{Network, SystemNetwork};
