//! TLS to endpoints: which authorities are believed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::{ClientConfig, RootCertStore};

/// Why there are no authorities to believe.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or is not PEM.
    #[error("cannot read certificates from {0}: {1}")]
    File(PathBuf, pem::Error),
    /// A certificate in the file is not one of an authority.
    #[error("a certificate in {0} cannot be used: {1}")]
    Certificate(PathBuf, rustls::Error),
    /// Nothing is in the file, or the system has no list.
    #[error("no certificates of authorities in {0}; give one by --ca")]
    None(String),
}

/// Settings of encrypted connections: the authorities of a PEM file, or the system's. Blocks for some milliseconds.
/// Errors: the file cannot be used, or the system has no authorities.
pub fn tls(ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    let place = match ca {
        Some(path) => {
            let unreadable = |error| TlsError::File(path.to_owned(), error);
            for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
                let added = roots.add(certificate.map_err(unreadable)?);
                added.map_err(|error| TlsError::Certificate(path.to_owned(), error))?;
            }
            path.display().to_string()
        }
        None => {
            // Systems hold certificates that nobody can use; the others count.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            "the system's list".to_owned()
        }
    };
    if roots.is_empty() {
        return Err(TlsError::None(place));
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks both versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
