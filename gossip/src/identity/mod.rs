//! Who a replica is: names, roots, certificate and key, and how a peer's claim is checked.
//!
//! A leaf carries two DNS names. `<replica>.<cluster>` is what a replica claims in its HELLO, checked
//! against the certificate it presented. `<cluster>` is what a seed is dialled by, since nobody knows
//! a seed's replica id before it answers.

mod ca;
mod tls;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::replica::ReplicaId;

pub use ca::{Authority, LEAF_DAYS, Leaf, cluster_of, create, issue};
pub(crate) use tls::{certificate_names, client_config, endpoint_keys, server_config};

/// What a replica proves about itself, checked as a whole when it is made.
///
/// Invariant: the certificate is valid now, signed by the roots, names this replica and this cluster,
/// and belongs to the key.
#[derive(Clone)]
pub struct Identity {
    cluster: Arc<str>,
    replica: ReplicaId,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
    expires: SystemTime,
}

/// The three PEM files of a replica: `--gossip-ca`, `--gossip-cert`, `--gossip-key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemFiles {
    /// Roots that sign every replica's certificate; several while one replaces the other.
    pub ca: PathBuf,
    /// This replica's certificate, leaf first.
    pub cert: PathBuf,
    /// Its private key, PKCS#8.
    pub key: PathBuf,
}

/// Why certificates cannot be made or used; each message says what to do.
#[allow(missing_docs, reason = "the messages name the fields")]
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A replica or cluster name is not one DNS label.
    #[error(
        "{what} `{name}` must be 1 to 63 of a-z, 0-9 and `-`, not starting or ending with `-`: it becomes a DNS name in the certificate"
    )]
    Name { what: &'static str, name: String },
    /// A file cannot be read.
    #[error(
        "cannot read {path}: {cause}; make certificates with `grapevine ca init` and `grapevine ca issue`"
    )]
    Read {
        path: PathBuf,
        cause: std::io::Error,
    },
    /// A file is not the PEM that was expected.
    #[error("{what} is not usable PEM: {problem}")]
    Pem { what: &'static str, problem: String },
    /// The certificate does not prove what the replica wants to claim.
    #[error(
        "certificate is not valid for replica `{replica}` of cluster `{cluster}`: {problem}; issue one with `grapevine ca issue`"
    )]
    Unproven {
        replica: String,
        cluster: String,
        problem: String,
    },
    /// Certificate and key do not belong together, or the library refuses them.
    #[error("certificate and key cannot be used together: {0}")]
    Mismatch(String),
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(String),
}

impl Identity {
    /// Reads the files and checks them as [`Identity::from_pem`] does.
    ///
    /// # Errors
    /// [`IdentityError::Read`] names the file; the rest as for [`Identity::from_pem`].
    pub fn load(cluster: &str, replica: &str, files: &PemFiles) -> Result<Self, IdentityError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|cause| IdentityError::Read {
                path: path.to_owned(),
                cause,
            })
        };
        Self::from_pem(
            cluster,
            replica,
            &read(&files.ca)?,
            &read(&files.cert)?,
            &read(&files.key)?,
        )
    }

    /// Makes an identity from PEM text and checks that it proves what it will claim.
    ///
    /// # Errors
    /// [`IdentityError::Name`], [`IdentityError::Pem`], [`IdentityError::Unproven`] (expired, foreign,
    /// other replica, other cluster) or [`IdentityError::Mismatch`].
    pub fn from_pem(
        cluster: &str,
        replica: &str,
        ca: &str,
        cert: &str,
        key: &str,
    ) -> Result<Self, IdentityError> {
        check_label("cluster id", cluster)?;
        let replica = replica_id(replica)?;
        let mut roots = RootCertStore::empty();
        for root in certificates("the CA file", ca)? {
            roots.add(root).map_err(|error| IdentityError::Pem {
                what: "the CA file",
                problem: error.to_string(),
            })?;
        }
        let chain = certificates("the certificate file", cert)?;
        let key =
            PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| IdentityError::Pem {
                what: "the key file",
                problem: error.to_string(),
            })?;
        let identity = Self {
            cluster: cluster.into(),
            replica,
            roots: Arc::new(roots),
            expires: expiry(&chain[0])?,
            chain,
            key: Arc::new(key),
        };
        identity.check()?;
        Ok(identity)
    }

    /// Replica id, unique in the cluster.
    pub fn replica(&self) -> &ReplicaId {
        &self.replica
    }

    /// Cluster id; replicas of other clusters are refused.
    pub fn cluster(&self) -> &Arc<str> {
        &self.cluster
    }

    /// When the certificate stops being accepted by the others.
    pub fn expires(&self) -> SystemTime {
        self.expires
    }

    /// The checks that a peer will make, made at home first, where the message reaches the operator.
    fn check(&self) -> Result<(), IdentityError> {
        let unproven = |problem: String| IdentityError::Unproven {
            replica: self.replica.to_string(),
            cluster: self.cluster.to_string(),
            problem,
        };
        let verifier =
            WebPkiServerVerifier::builder_with_provider(self.roots.clone(), tls::provider())
                .build()
                .map_err(|error| unproven(error.to_string()))?;
        for name in [
            replica_name(self.replica.as_str(), &self.cluster),
            self.cluster.to_string(),
        ] {
            let name = ServerName::try_from(name).expect("labels were checked");
            verifier
                .verify_server_cert(
                    &self.chain[0],
                    &self.chain[1..],
                    &name,
                    &[],
                    UnixTime::now(),
                )
                .map_err(|error| unproven(error.to_string()))?;
        }
        // Building both sides' configurations proves that the key belongs to the certificate.
        server_config(self)?;
        client_config(self)?;
        Ok(())
    }
}

impl fmt::Debug for Identity {
    /// Names only: a key must not reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("cluster", &self.cluster)
            .field("replica", &self.replica.as_str())
            .finish_non_exhaustive()
    }
}

/// The DNS name that proves a replica id.
pub(crate) fn replica_name(replica: &str, cluster: &str) -> String {
    format!("{replica}.{cluster}")
}

/// Checks a replica id; the certificate carries it as one label of a DNS name.
pub(crate) fn replica_id(name: &str) -> Result<ReplicaId, IdentityError> {
    check_label("replica id", name)?;
    name.parse().map_err(|_| IdentityError::Name {
        what: "replica id",
        name: name.escape_debug().to_string(),
    })
}

/// Refuses what cannot be one label of a DNS name in a certificate.
pub(crate) fn check_label(what: &'static str, name: &str) -> Result<(), IdentityError> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if fits {
        Ok(())
    } else {
        Err(IdentityError::Name {
            what,
            name: name.escape_debug().to_string(),
        })
    }
}

fn certificates(
    what: &'static str,
    pem: &str,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let found = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| IdentityError::Pem {
            what,
            problem: error.to_string(),
        })?;
    if found.is_empty() {
        return Err(IdentityError::Pem {
            what,
            problem: "it holds no certificate".into(),
        });
    }
    Ok(found)
}

fn expiry(leaf: &CertificateDer<'_>) -> Result<SystemTime, IdentityError> {
    let (_, parsed) =
        x509_parser::parse_x509_certificate(leaf).map_err(|error| IdentityError::Pem {
            what: "the certificate file",
            problem: error.to_string(),
        })?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
    Ok(UNIX_EPOCH + Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(cluster: &str, replica: &str) -> (Authority, Leaf) {
        let authority = create(cluster).expect("authority");
        let leaf = issue(&authority.cert_pem, &authority.key_pem, cluster, replica).expect("leaf");
        (authority, leaf)
    }

    #[test]
    fn a_leaf_is_an_identity_for_ninety_days() {
        let (authority, leaf) = pair("demo", "r1");
        let identity = Identity::from_pem(
            "demo",
            "r1",
            &authority.cert_pem,
            &leaf.cert_pem,
            &leaf.key_pem,
        )
        .expect("identity");
        let left = identity
            .expires()
            .duration_since(SystemTime::now())
            .expect("future")
            .as_secs();
        assert!((89 * 86_400..=90 * 86_400).contains(&left), "{left}");
        assert!(!format!("{identity:?}").contains("key"));
    }

    #[test]
    fn what_a_peer_would_refuse_is_refused_at_home() {
        let (authority, leaf) = pair("demo", "r1");
        let (other, stranger) = pair("demo", "r1");
        let make = |cluster, replica, ca: &str, cert: &str, key: &str| {
            Identity::from_pem(cluster, replica, ca, cert, key)
                .expect_err("refused")
                .to_string()
        };
        let ca = &authority.cert_pem;
        assert!(make("demo", "r2", ca, &leaf.cert_pem, &leaf.key_pem).contains("r2"));
        assert!(make("prod", "r1", ca, &leaf.cert_pem, &leaf.key_pem).contains("prod"));
        assert!(
            make("demo", "r1", &other.cert_pem, &leaf.cert_pem, &leaf.key_pem)
                .contains("invalid peer certificate")
        );
        assert!(make("demo", "r1", ca, &leaf.cert_pem, &stranger.key_pem).contains("together"));
        assert!(make("demo", "r1", ca, "no pem", &leaf.key_pem).contains("no certificate"));
        assert!(make("demo", "r1", ca, &leaf.cert_pem, "no pem").contains("key file"));
        assert!(make("De mo", "r1", ca, &leaf.cert_pem, &leaf.key_pem).contains("DNS"));
    }

    #[test]
    fn a_missing_file_is_named_with_the_command_that_makes_it() {
        let missing = PathBuf::from("/nonexistent/ca.pem");
        let files = PemFiles {
            ca: missing.clone(),
            cert: missing.clone(),
            key: missing,
        };
        let error = Identity::load("demo", "r1", &files)
            .expect_err("missing")
            .to_string();
        assert!(
            error.contains("/nonexistent/ca.pem") && error.contains("grapevine ca init"),
            "{error}"
        );
    }

    #[test]
    fn a_certificate_proves_its_own_names_only() {
        let (_, leaf) = pair("demo", "r1");
        let leaf = certificates("leaf", &leaf.cert_pem).expect("pem");
        let proves = |replica, cluster| certificate_names(&leaf[0], replica, cluster);
        assert!(proves("r1", "demo"));
        assert!(!proves("r2", "demo"));
        assert!(!proves("r1", "prod"));
        assert!(!proves("not a label", "demo"));
    }
}
