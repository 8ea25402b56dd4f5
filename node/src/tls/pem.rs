//! Files with certificates, keys and secrets, and what is said of those that cannot be used.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use grapevine_gossip::identity::Term;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::time::ASN1Time;

use crate::config::Secret;

/// Why a file cannot be used. Each message names the file; none repeats what is in it.
#[allow(missing_docs, reason = "the messages name the fields")]
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// It does not hold what it should.
    #[error("{path}: {problem}")]
    Content { path: PathBuf, problem: String },
    /// Certificate and key do not belong together, or the library refuses them.
    #[error("certificate {cert} and key {key} cannot be used together: {problem}")]
    Pair {
        cert: PathBuf,
        key: PathBuf,
        problem: String,
    },
    /// The system knows no authorities.
    #[error(
        "https workers need authorities to verify their certificates by, and this system has none{problem}: \
         set workers.ca, install the package ca-certificates, or set the variable SSL_CERT_FILE"
    )]
    NoSystemRoots { problem: String },
    /// The certificates between replicas do not prove what they should.
    #[error(transparent)]
    Identity(#[from] grapevine_gossip::IdentityError),
}

/// Authorities that sign the other side's certificates.
pub type Roots = Arc<RootCertStore>;

/// A certificate and its key; their user checks that they belong together.
pub struct KeyPair {
    /// Leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
    /// From when until when the leaf is accepted.
    pub term: Term,
}

/// Reads authorities from a PEM file.
/// Errors: it cannot be read, or holds none.
pub fn read_roots(path: &Path) -> Result<Roots, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|error| content(path, error.to_string()))?;
    }
    Ok(Arc::new(roots))
}

/// Reads the system's authorities. Takes some milliseconds.
/// Errors: there are none.
pub fn system_roots() -> Result<Roots, FileError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some systems carry a few that the library does not take; the others are good.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let problem = found.errors.first();
        let problem = problem.map_or_else(String::new, |error| format!(" ({error})"));
        return Err(FileError::NoSystemRoots { problem });
    }
    Ok(Arc::new(roots))
}

/// Reads a certificate chain and its key from PEM files.
/// Errors: one of them cannot be read, or holds something else.
pub fn read_key_pair(cert: &Path, key: &Path) -> Result<KeyPair, FileError> {
    let chain = read_certificates(cert)?;
    Ok(KeyPair {
        key: read_private_key(key)?,
        term: term(cert, &chain[0])?,
        chain,
    })
}

/// Reads a private key from a PEM file.
/// Errors: it cannot be read, or holds none.
pub fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    // The message must not repeat bytes of what may be a damaged key.
    PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|_| content(path, "it holds no private key in PEM".to_owned()))
}

/// Reads a secret of one line.
/// Errors: it cannot be read, or holds something else.
pub fn read_secret(path: &Path) -> Result<Secret, FileError> {
    let bytes = read(path)?;
    let text = std::str::from_utf8(&bytes).ok().map(str::trim);
    text.and_then(Secret::new).ok_or_else(|| {
        let problem = "expected one line of 1 to 512 visible ASCII characters";
        content(path, problem.to_owned())
    })
}

/// Reads a file as it is.
/// Errors: it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    std::fs::read(path).map_err(|cause| FileError::Read {
        path: path.to_owned(),
        cause,
    })
}

fn content(path: &Path, problem: String) -> FileError {
    FileError::Content {
        path: path.to_owned(),
        problem,
    }
}

/// Reads certificates, one or more, from a PEM file.
/// Errors: it cannot be read, or holds none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let text = read(path)?;
    let found = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| content(path, format!("not usable PEM: {error}")))?;
    if found.is_empty() {
        return Err(content(path, "it holds no certificate in PEM".to_owned()));
    }
    Ok(found)
}

fn term(path: &Path, leaf: &CertificateDer<'_>) -> Result<Term, FileError> {
    let (_, parsed) = x509_parser::parse_x509_certificate(leaf)
        .map_err(|error| content(path, error.to_string()))?;
    let moment = |time: ASN1Time| {
        let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
        UNIX_EPOCH + Duration::from_secs(seconds)
    };
    let validity = parsed.validity();
    Ok(Term {
        from: moment(validity.not_before),
        until: moment(validity.not_after),
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_cannot_be_used_is_named_and_not_repeated() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let cert = file("cert.pem", &made.cert.pem());
        let key = file("key.pem", &made.signing_key.serialize_pem());
        let pair = read_key_pair(&cert, &key).expect("a pair");
        assert_eq!(pair.term.amiss(SystemTime::now()), None);
        assert_eq!(read_roots(&cert).expect("roots").len(), 1);

        let damaged = file(
            "bad.pem",
            "-----BEGIN PRIVATE KEY-----\nhush!\n-----END PRIVATE KEY-----\n",
        );
        let said = [
            read_key_pair(&dir.path().join("none.pem"), &key).err(),
            read_key_pair(&key, &key).err(),
            read_key_pair(&cert, &cert).err(),
            read_key_pair(&cert, &damaged).err(),
            read_roots(&key).err(),
        ];
        let names = ["none.pem", "key.pem", "cert.pem", "bad.pem", "key.pem"];
        for (error, name) in said.into_iter().zip(names) {
            let error = error.expect("refused").to_string();
            assert!(error.contains(name) && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn secrets_are_one_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            read_secret(&path).map(|secret| secret.reveal().to_owned())
        };
        assert_eq!(read("hush\n").expect("a secret"), "hush");
        for bad in ["", "\n", "hush hush", "hush\nhush", "h\u{fc}sh"] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(
                error.contains("key: expected") && !error.contains("sh\n"),
                "{error}"
            );
        }
    }
}
