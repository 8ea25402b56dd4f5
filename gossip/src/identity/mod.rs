//! The identity of a replica: names, roots, certificate and key, and how a peer's claim is checked.
//!
//! A leaf carries two DNS names. `<replica>.<cluster>` is what a replica claims in its HELLO, checked
//! against the certificate it presented. `<cluster>` is what a seed is dialled by, since nobody knows
//! a seed's replica id before it answers.

mod ca;
mod expiry;
mod term;
#[cfg(test)]
mod tests;
mod tls;
mod x509;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::{CertificateError, Error as TlsError};

use crate::replica::ReplicaId;

pub use ca::{
    Authority, CA_DAYS, LEAF_DAYS, Leaf, authority_with_key, cluster_of, create, create_for, issue,
    issue_for, leaf_of, revocations,
};
pub(crate) use expiry::{AUTHORITY, OWN, Reminders, Urgency};
pub(crate) use term::unix_s;
pub use term::{Term, date};
pub(crate) use tls::{certificate_names, client_config, endpoint_keys, server_config};
pub(crate) use x509::replica_named;
pub use x509::{Certificate, Serial, certificates_in, revoked_in};

/// What a replica proves about itself, checked as a whole when it is made.
///
/// Invariant: when it was made the certificate was valid, signed by the roots and not revoked; it names
/// this replica and this cluster, and belongs to the key.
#[derive(Clone)]
pub struct Identity {
    cluster: Arc<str>,
    replica: ReplicaId,
    authorities: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
    expires: SystemTime,
    authority_expires: SystemTime,
}

/// The PEM files of a replica: `--gossip-ca`, `--gossip-cert`, `--gossip-key`, `--gossip-revoked`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PemFiles {
    /// Roots that sign every replica's certificate; several while one replaces the other.
    pub ca: PathBuf,
    /// This replica's certificate, leaf first.
    pub cert: PathBuf,
    /// Its private key, PKCS#8.
    pub key: PathBuf,
    /// Lists of revoked certificates (CRL), one for each root at most. None: nothing is revoked.
    pub revoked: Option<PathBuf>,
}

/// What an open connection's certificate is worth under the roots and lists of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Accepted; perhaps expired since, which ends no open connection.
    Good,
    /// On a list of revocations.
    Revoked,
    /// No root signed it.
    Foreign,
}

/// Why certificates cannot be made or used; each message names what to do.
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
    /// Lists of revoked certificates that are none of the authorities that are trusted.
    #[error("the file of revoked certificates cannot be used: {0}")]
    Lists(&'static str),
    /// A text is no serial number of a certificate.
    #[error(
        "a serial number is 2 to 40 hexadecimal digits, an even number of them, as `grapevine ca show` has it"
    )]
    Serial,
    /// The certificate does not prove what the replica wants to claim.
    #[error(
        "certificate is not valid for replica `{replica}` of cluster `{cluster}`: {problem}; issue one with `grapevine ca issue {replica} --force`"
    )]
    Unproven {
        replica: String,
        cluster: String,
        problem: String,
    },
    /// No authority in the CA file signed the certificate.
    #[error(
        "no authority in the CA file has signed the certificate of replica `{replica}`: take the CA file of the one that did, or issue another certificate with `grapevine ca issue {replica} --force`"
    )]
    Foreign { replica: String },
    /// Certificate and key do not belong together, or the library refuses them.
    #[error("certificate and key cannot be used together: {0}")]
    Mismatch(String),
    /// A certificate cannot be made.
    #[error("cannot make a certificate: {0}")]
    Make(String),
}

impl Identity {
    /// Reads the files and checks them as [`Identity::from_pem`] does.
    /// Errors: [`IdentityError::Read`] names the file; the rest as for [`Identity::from_pem`].
    pub fn load(cluster: &str, replica: &str, files: &PemFiles) -> Result<Self, IdentityError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|cause| IdentityError::Read {
                path: path.to_owned(),
                cause,
            })
        };
        let revoked = files.revoked.as_deref().map(read).transpose()?;
        Self::assemble(
            cluster,
            replica,
            &read(&files.ca)?,
            &read(&files.cert)?,
            &read(&files.key)?,
            revoked.as_deref(),
        )
    }

    /// Makes an identity from PEM text and checks that it proves what it will claim. `ca` may hold
    /// several roots; the first certificate of `cert` is the leaf.
    /// Errors: [`IdentityError::Name`], [`IdentityError::Pem`], [`IdentityError::Foreign`], [`IdentityError::Unproven`]
    /// (expired, other replica, other cluster) or [`IdentityError::Mismatch`].
    pub fn from_pem(
        cluster: &str,
        replica: &str,
        ca: &str,
        cert: &str,
        key: &str,
    ) -> Result<Self, IdentityError> {
        Self::assemble(cluster, replica, ca, cert, key, None)
    }

    /// The same with lists of revoked certificates (PEM), those of all roots in one text.
    /// Errors: [`IdentityError::Pem`] if a list is damaged, [`IdentityError::Lists`] if one is forged or none is of a
    /// root; [`IdentityError::Unproven`] if this replica's own certificate is on one.
    pub fn revoking(mut self, lists: &str) -> Result<Self, IdentityError> {
        self.revoked = x509::lists(lists)?;
        x509::check_lists(&self.revoked, &self.authorities)?;
        self.check(UnixTime::now())?;
        Ok(self)
    }

    /// The same identity with the lists that a former one had of authorities that it still trusts and has no list of, and
    /// how many those are. While one authority replaces the other, files change one by one, and nobody who was revoked is
    /// let in by that.
    /// Errors: [`IdentityError::Unproven`] if this replica's own certificate is on one of them.
    pub(crate) fn with_lists_of(mut self, former: &Self) -> Result<(Self, usize), IdentityError> {
        let kept = x509::missing_lists(&former.revoked, &self.revoked, &self.authorities)?;
        let count = kept.len();
        if count > 0 {
            self.revoked.extend(kept);
            self.check(UnixTime::now())?;
        }
        Ok((self, count))
    }

    fn assemble(
        cluster: &str,
        replica: &str,
        ca: &str,
        cert: &str,
        key: &str,
        revoked: Option<&str>,
    ) -> Result<Self, IdentityError> {
        check_label("cluster id", cluster)?;
        let replica = replica_id(replica)?;
        let authorities = certificates(x509::CA, ca)?;
        let mut roots = RootCertStore::empty();
        for root in &authorities {
            roots
                .add(root.clone())
                .map_err(|error| IdentityError::Pem {
                    what: x509::CA,
                    problem: error.to_string(),
                })?;
        }
        let chain = certificates(CERT, cert)?;
        let leaf = Certificate::read(CERT, &chain[0])?;
        let key =
            PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| IdentityError::Pem {
                what: "the key file",
                problem: error.to_string(),
            })?;
        let identity = Self {
            cluster: cluster.into(),
            replica,
            authority_expires: signer_expires(&leaf, &authorities)?,
            authorities,
            roots: Arc::new(roots),
            revoked: Vec::new(),
            expires: leaf.until,
            chain,
            key: Arc::new(key),
        };
        // Before the lists: where the authority is another one, they are not to be blamed for that.
        identity.check(UnixTime::now())?;
        match revoked {
            Some(lists) => identity.revoking(lists),
            None => Ok(identity),
        }
    }

    /// Replica id, unique in the cluster.
    pub fn replica(&self) -> &ReplicaId {
        &self.replica
    }

    /// The certificates of the authorities that are trusted, in DER: first the one that signed this replica's certificate,
    /// which everybody trusts who accepts this replica, then the others in the order of their file.
    pub fn authorities(&self) -> impl Iterator<Item = &[u8]> {
        let leaf = Certificate::read(CERT, &self.chain[0]);
        let issuer = leaf.map_or_else(|_| String::new(), |leaf| leaf.issuer);
        let is_signer = |authority: &[u8]| {
            let authority = Certificate::read(x509::CA, authority);
            authority.is_ok_and(|authority| authority.subject == issuer)
        };
        let mut all: Vec<&[u8]> = self.authorities.iter().map(|der| &**der).collect();
        all.sort_by_key(|authority| !is_signer(authority));
        all.into_iter()
    }

    /// Cluster id; replicas of other clusters are refused.
    pub fn cluster(&self) -> &Arc<str> {
        &self.cluster
    }

    /// When the certificate stops being accepted by the others.
    pub fn expires(&self) -> SystemTime {
        self.expires
    }

    /// When the authority that signed the certificate ends; no leaf of it outlives it.
    pub fn authority_expires(&self) -> SystemTime {
        self.authority_expires
    }

    /// Whether the other one presents the same certificate and trusts the same roots and lists.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.chain == other.chain
            && self.authorities == other.authorities
            && self.revoked == other.revoked
    }

    /// What the certificate of an open connection is worth now. Its time is left out: the handshake
    /// looked at it, and nobody should lose all peers in the minute in which certificates end.
    pub(crate) fn judge(&self, chain: &[CertificateDer<'_>]) -> Standing {
        let Some((leaf, rest)) = chain.split_first() else {
            return Standing::Foreign;
        };
        let Ok(facts) = Certificate::read(CERT, leaf) else {
            return Standing::Foreign;
        };
        let within = SystemTime::now().max(facts.from).min(facts.until);
        let within =
            UnixTime::since_unix_epoch(within.duration_since(UNIX_EPOCH).unwrap_or_default());
        let Ok(name) = ServerName::try_from(self.cluster.to_string()) else {
            return Standing::Foreign;
        };
        let verified = tls::verifier(self)
            .map(|verifier| verifier.verify_server_cert(leaf, rest, &name, &[], within));
        match verified {
            Ok(Ok(_)) => Standing::Good,
            Ok(Err(TlsError::InvalidCertificate(CertificateError::Revoked))) => Standing::Revoked,
            _ => Standing::Foreign,
        }
    }

    /// The checks that a peer will make, made at home first, where the message reaches the operator.
    fn check(&self, now: UnixTime) -> Result<(), IdentityError> {
        let unproven = |problem: String| IdentityError::Unproven {
            replica: self.replica.to_string(),
            cluster: self.cluster.to_string(),
            problem,
        };
        let verifier = tls::verifier(self)?;
        // Most likely the files of another replica, which the library tells as a list of names.
        let leaf = &self.chain[0];
        if let Some(other) = replica_named(leaf, &self.cluster)
            && !certificate_names(leaf, self.replica.as_str(), &self.cluster)
        {
            let problem =
                format!("it is that of replica `{other}`, by which name this one may start");
            return Err(unproven(problem));
        }
        for name in [
            replica_name(self.replica.as_str(), &self.cluster),
            self.cluster.to_string(),
        ] {
            let name = ServerName::try_from(name).expect("labels were checked");
            verifier
                .verify_server_cert(&self.chain[0], &self.chain[1..], &name, &[], now)
                .map_err(|error| match is_of_stranger(&error) {
                    true => IdentityError::Foreign {
                        replica: self.replica.to_string(),
                    },
                    false => unproven(explain(&error)),
                })?;
        }
        // Building both sides' configurations proves that the key belongs to the certificate.
        server_config(self)?;
        client_config(self)?;
        Ok(())
    }
}

/// Whether no authority that is trusted has signed a certificate. Its signature is bad where one that was made anew has the
/// name of the former one.
fn is_of_stranger(error: &TlsError) -> bool {
    use CertificateError::{BadSignature, UnknownIssuer};
    matches!(
        error,
        TlsError::InvalidCertificate(BadSignature | UnknownIssuer)
    )
}

/// What an operator can do something with; the library speaks of seconds since 1970.
fn explain(error: &TlsError) -> String {
    match error {
        TlsError::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            term::expired(not_after.as_secs())
        }
        TlsError::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before }) => {
            term::begins(not_before.as_secs(), time.as_secs())
        }
        TlsError::InvalidCertificate(CertificateError::Revoked) => "it was revoked".to_owned(),
        TlsError::InvalidCertificate(CertificateError::NotValidForNameContext {
            presented,
            ..
        }) => format!(
            "it is for {}; either the replica's id and cluster.id have to be those",
            presented
                .iter()
                .map(|name| plain(name))
                .collect::<Vec<_>>()
                .join(", ")
        ),
        error => error.to_string(),
    }
}

/// A name of a certificate as people write it; the library writes `DnsName("r1.demo")`.
fn plain(name: &str) -> &str {
    let inner = name.strip_prefix("DnsName(\"");
    let inner = inner.and_then(|inner| inner.strip_suffix("\")"));
    inner.unwrap_or(name)
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

/// The end of the authority that signed the leaf; the earliest end if none did, which is refused later.
fn signer_expires(
    leaf: &Certificate,
    authorities: &[CertificateDer<'_>],
) -> Result<SystemTime, IdentityError> {
    let read = |der: &CertificateDer<'_>| Certificate::read(x509::CA, der);
    let all: Vec<_> = authorities.iter().map(read).collect::<Result<_, _>>()?;
    let signer = all.iter().find(|root| root.subject == leaf.issuer);
    let ends = signer.map_or_else(
        || all.iter().map(|root| root.until).min(),
        |root| Some(root.until),
    );
    Ok(ends.expect("a CA file holds at least one certificate"))
}

const CERT: &str = "the certificate file";
