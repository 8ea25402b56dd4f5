//! The cluster's own certificate authority: made once, then one leaf for each replica.
//!
//! Ed25519 throughout: short certificates of constant size, and signing needs no random numbers, so
//! that simulated runs repeat.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519,
};
use time::{Duration, OffsetDateTime};

use super::{IdentityError, check_label, replica_name};

/// A certificate authority; whoever holds `key_pem` can admit replicas.
pub struct Authority {
    /// PEM for every replica's `--gossip-ca`.
    pub cert_pem: String,
    /// PEM of the signing key; replicas do not need it.
    pub key_pem: String,
}

/// What one replica needs beside the authority's certificate.
pub struct Leaf {
    /// PEM for `--gossip-cert`.
    pub cert_pem: String,
    /// PEM for `--gossip-key`.
    pub key_pem: String,
}

/// Makes the authority of one cluster, valid for ten years.
///
/// # Errors
/// [`IdentityError::Name`] if `cluster` is not a DNS label.
pub fn create(cluster: &str) -> Result<Authority, IdentityError> {
    check_label("cluster id", cluster)?;
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(unmade)?;
    let mut params = valid_for(CA_DAYS);
    params.distinguished_name = named(&format!("{AUTHORITY_OF}{cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(params, &key).map_err(unmade)?;
    Ok(Authority {
        cert_pem: authority.pem(),
        key_pem: key.serialize_pem(),
    })
}

/// The cluster that an authority was made for.
///
/// # Errors
/// [`IdentityError::Pem`] if the certificate is none that [`create`] made.
pub fn cluster_of(ca_cert_pem: &str) -> Result<String, IdentityError> {
    let unusable = |problem: &str| IdentityError::Pem {
        what: "the authority's certificate",
        problem: problem.to_owned(),
    };
    let (_, pem) = x509_parser::pem::parse_x509_pem(ca_cert_pem.as_bytes())
        .map_err(|error| unusable(&error.to_string()))?;
    let certificate = pem
        .parse_x509()
        .map_err(|error| unusable(&error.to_string()))?;
    let mut names = certificate.subject().iter_common_name();
    names
        .next()
        .and_then(|name| name.as_str().ok())
        .and_then(|name| name.strip_prefix(AUTHORITY_OF))
        .map(str::to_owned)
        .ok_or_else(|| {
            unusable("it does not say for which cluster; make one with `grapevine ca init`")
        })
}

/// Signs a certificate for one replica: [`LEAF_DAYS`] days, dated back 10 minutes so that a replica
/// whose clock is a little behind accepts it at once.
///
/// # Errors
/// [`IdentityError::Name`] or [`IdentityError::Pem`] if an argument is unusable.
pub fn issue(
    ca_cert_pem: &str,
    ca_key_pem: &str,
    cluster: &str,
    replica: &str,
) -> Result<Leaf, IdentityError> {
    check_label("cluster id", cluster)?;
    check_label("replica id", replica)?;
    let pem = |what| {
        move |error: rcgen::Error| IdentityError::Pem {
            what,
            problem: error.to_string(),
        }
    };
    let ca_key = KeyPair::from_pem(ca_key_pem).map_err(pem("the authority's key"))?;
    let authority = Issuer::from_ca_cert_pem(ca_cert_pem, ca_key)
        .map_err(pem("the authority's certificate"))?;

    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(unmade)?;
    let mut params = valid_for(LEAF_DAYS);
    let names = [replica_name(replica, cluster), cluster.to_owned()];
    params.subject_alt_names = CertificateParams::new(names)
        .map_err(unmade)?
        .subject_alt_names;
    params.distinguished_name = named(&replica_name(replica, cluster));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Each replica dials and is dialled.
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    let leaf = params.signed_by(&key, &authority).map_err(unmade)?;
    Ok(Leaf {
        cert_pem: leaf.pem(),
        key_pem: key.serialize_pem(),
    })
}

fn valid_for(days: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let now = OffsetDateTime::now_utc();
    params.not_before = now - BACKDATED;
    params.not_after = now + Duration::days(days);
    params
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn unmade(error: rcgen::Error) -> IdentityError {
    IdentityError::Make(error.to_string())
}

const AUTHORITY_OF: &str = "grapevine authority of ";
/// Days that a replica's certificate is valid.
pub const LEAF_DAYS: i64 = 90;
const CA_DAYS: i64 = 3650;
const BACKDATED: Duration = Duration::minutes(10);
