//! What TLS with clients and TLS with workers share: files, their reload, and what is counted of them.
//!
//! The data port's side is in `listener/tls.rs`, the workers' in `upstream/tls.rs`. TLS between replicas
//! belongs to gossip, with certificates of its own; only their files are watched here (`gossip.rs`).

mod gossip;
mod metrics;
mod pem;
mod reload;

pub use gossip::GossipFiles;
pub use metrics::TlsMetrics;
pub use pem::{
    FileError, KeyPair, Roots, read, read_certificates, read_key_pair, read_private_key,
    read_roots, read_secret, system_roots,
};
pub use reload::{Files, Reloader};

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};

/// How rustls says, among the causes of an error, that what came is no TLS: the other side speaks plain text.
pub(crate) const NO_TLS: &str = "InvalidContentType";

/// The one provider, given explicitly: with two in one binary rustls cannot choose a default.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
