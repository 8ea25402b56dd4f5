//! TLS and QUIC configurations of an identity, and the check of a peer's claimed name.
//!
//! TLS 1.3 only, no early data (it could be replayed), no resumed sessions: both sides present a
//! certificate each time. The provider is passed explicitly: with two in one binary rustls cannot
//! choose a default.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring as ring_provider};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;

use super::{Identity, IdentityError, replica_name};

/// Protocol name and major version; anything else that speaks QUIC is refused in the handshake.
pub(crate) const ALPN: &[u8] = b"grapevine/1";

/// Keys that must survive a restart, so that peers notice it at once.
///
/// A restarted endpoint answers packets of its old connections with a stateless reset only if it
/// recognises its own connection ids and derives the same reset tokens: with both keys 0.03 s until
/// a peer knows, with one or none the full idle timeout (measured).
pub(crate) struct EndpointKeys {
    /// Signs stateless reset tokens.
    pub(crate) reset: Arc<hmac::Key>,
    connection_ids: u64,
}

impl EndpointKeys {
    /// A generator whose ids are recognised after a restart.
    pub(crate) fn connection_ids(&self) -> HashedConnectionIdGenerator {
        HashedConnectionIdGenerator::from_key(self.connection_ids)
    }
}

/// Derives both keys from the private key of the certificate.
///
/// They stay for the life of the endpoint, also when the certificate is replaced: its connections go
/// on under them. After the next restart they come from the new key, so that peers notice that one
/// restart by the new HELLO or the idle timeout.
pub(crate) fn endpoint_keys(identity: &Identity) -> EndpointKeys {
    let root = hmac::Key::new(hmac::HMAC_SHA256, identity.key.secret_der());
    let reset = hmac::sign(&root, b"grapevine stateless reset");
    let ids = hmac::sign(&root, b"grapevine connection ids");
    let ids = ids
        .as_ref()
        .first_chunk()
        .expect("a SHA-256 tag has 32 bytes");
    EndpointKeys {
        reset: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, reset.as_ref())),
        connection_ids: u64::from_le_bytes(*ids),
    }
}

/// The listening side: demands a certificate signed by the roots.
pub(crate) fn server_config(identity: &Identity) -> Result<quinn::ServerConfig, IdentityError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(identity.roots.clone(), provider())
        .with_crls(identity.revoked.iter().cloned())
        .allow_unknown_revocation_status()
        .build()
        .map_err(|error| IdentityError::Mismatch(error.to_string()))?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(mismatch)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())
        .map_err(mismatch)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session shows no certificate: its peer would stay in after expiry or revocation.
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    let quic = QuicServerConfig::try_from(tls)
        .map_err(|error| IdentityError::Mismatch(error.to_string()))?;
    Ok(quinn::ServerConfig::with_crypto(Arc::new(quic)))
}

/// The dialling side: presents the same certificate.
pub(crate) fn client_config(identity: &Identity) -> Result<quinn::ClientConfig, IdentityError> {
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(mismatch)?
        .with_webpki_verifier(verifier(identity)?)
        .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
        .map_err(mismatch)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.resumption = Resumption::disabled();
    let quic = QuicClientConfig::try_from(tls)
        .map_err(|error| IdentityError::Mismatch(error.to_string()))?;
    Ok(quinn::ClientConfig::new(Arc::new(quic)))
}

/// Checks a peer's certificate against roots and lists of revocations. A root without a list revokes
/// nobody: a new authority has none until its first revocation.
pub(super) fn verifier(identity: &Identity) -> Result<Arc<WebPkiServerVerifier>, IdentityError> {
    WebPkiServerVerifier::builder_with_provider(identity.roots.clone(), provider())
        .with_crls(identity.revoked.iter().cloned())
        .allow_unknown_revocation_status()
        .build()
        .map_err(|error| IdentityError::Mismatch(error.to_string()))
}

/// True if the certificate names `replica` of `cluster`. The signature was checked in the handshake.
pub(crate) fn certificate_names(leaf: &CertificateDer<'_>, replica: &str, cluster: &str) -> bool {
    let Ok(name) = ServerName::try_from(replica_name(replica, cluster)) else {
        return false;
    };
    ParsedCertificate::try_from(leaf)
        .is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, &name).is_ok())
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring_provider::default_provider())
}

fn mismatch(error: rustls::Error) -> IdentityError {
    IdentityError::Mismatch(error.to_string())
}
