//! The replicated view of a Grapevine cluster.

pub mod config;
mod error;
pub mod frame;
pub mod hlc;
pub mod identity;
pub mod load;
pub mod registry;
mod replica;
pub mod view;
pub mod wire;
pub mod worker;

pub use error::StartError;
pub use identity::{Identity, IdentityError};
pub use replica::{ReplicaId, ReplicaIdError};
