//! The replicated view of a Grapevine cluster.
pub mod config;
mod error;
pub mod identity;

pub use error::StartError;
pub use identity::{Identity, IdentityError};
