//! What can go wrong at this crate's boundary; every message says what to do.

use std::io;
use std::net::SocketAddr;

use crate::identity::IdentityError;
use crate::registry::RegistryError;

/// Why an agent did not start.
#[allow(missing_docs, reason = "the messages name the fields")]
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is out of range; nothing was started.
    #[error("{field}: {problem}")]
    Config {
        field: &'static str,
        problem: String,
    },
    /// The certificate, its key or the roots cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The UDP address cannot be bound.
    #[error(
        "cannot bind UDP {address} for gossip: {cause}; choose another gossip-host or gossip-port"
    )]
    Bind {
        address: SocketAddr,
        cause: io::Error,
    },
    /// The advertised name does not resolve on this machine.
    #[error(
        "gossip-advertise `{name}` does not resolve: {cause}; write an address or a name that this machine knows"
    )]
    Advertise { name: String, cause: io::Error },
}

/// Why a change of the worker set was not made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ChangeError(#[from] RegistryError);

impl ChangeError {
    /// True if the same change may succeed later; false if it names a worker that does not exist, a time in the
    /// future, or more labels than a worker may have.
    pub fn is_temporary(&self) -> bool {
        !matches!(
            self.0,
            RegistryError::UnknownWorker(_) | RegistryError::Epoch(_) | RegistryError::Labels(..)
        )
    }
}
