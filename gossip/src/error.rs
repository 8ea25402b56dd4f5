//! Why an agent does not start; every message names what to do.

use std::io;
use std::net::SocketAddr;

use crate::identity::IdentityError;

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
        "cannot bind UDP {address} for gossip: {cause}; choose another --gossip-host or --gossip-port"
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
