//! The cluster's own certificate authority: one leaf for each replica, and the list of those revoked.
//!
//! Ed25519 throughout: short certificates of constant size, and signing needs no random numbers, so
//! that simulated runs repeat.
//!
//! An authority is replaced by a second one beside it: replicas trust both for a while. The two
//! differ in their full names, since a leaf and a list of revocations find their authority by name.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, PublicKeyData as _, RevokedCertParams, SerialNumber,
};
use time::OffsetDateTime;

use super::term::{BACKDATED, Term};
use super::x509::{AUTHORITY_OF, CA, Certificate, Serial, certificates_in, with_key};
use super::{IdentityError, check_label, replica_name};

/// A certificate authority. Every holder of `key_pem` can admit replicas.
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

/// Writes the term into what a certificate is made from.
fn apply(term: Term, params: &mut CertificateParams) {
    params.not_before = OffsetDateTime::from(term.from);
    params.not_after = OffsetDateTime::from(term.until);
}

/// Makes an authority for a cluster, valid for ten years.
/// Errors: [`IdentityError::Name`] if `cluster` is not a DNS label.
pub fn create(cluster: &str) -> Result<Authority, IdentityError> {
    create_for(cluster, Term::days(CA_DAYS))
}

/// [`create`] for another time.
/// Errors: as [`create`].
pub fn create_for(cluster: &str, term: Term) -> Result<Authority, IdentityError> {
    check_label("cluster id", cluster)?;
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(unmade)?;
    let mut params = CertificateParams::default();
    apply(term, &mut params);
    params.distinguished_name = named(&format!("{AUTHORITY_OF}{cluster}"));
    // Any two authorities of one cluster must have different names; keys differ.
    let id = key.der_bytes().iter().take(8);
    let id: String = id.map(|byte| format!("{byte:02x}")).collect();
    params
        .distinguished_name
        .push(DnType::OrganizationalUnitName, id);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(params, &key).map_err(unmade)?;
    Ok(Authority {
        cert_pem: authority.pem(),
        key_pem: key.serialize_pem(),
    })
}

/// The cluster that an authority was made for; of a bundle, the first one's.
/// Errors: [`IdentityError::Pem`] if the certificate is none that [`create`] made.
pub fn cluster_of(ca_cert_pem: &str) -> Result<String, IdentityError> {
    let all = certificates_in(CA, ca_cert_pem)?;
    let cluster = all[0].1.authority_of();
    cluster
        .map(str::to_owned)
        .ok_or_else(|| IdentityError::Pem {
            what: CA,
            problem: "it does not say for which cluster; make one with `grapevine ca init`"
                .to_owned(),
        })
}

/// The one of a bundle's authorities whose key this is, as PEM.
/// Errors: [`IdentityError::Pem`] if there is none, or an argument is unusable.
pub fn authority_with_key<'a>(bundle: &'a str, key_pem: &str) -> Result<&'a str, IdentityError> {
    let key = key(key_pem)?;
    with_key(bundle, key.der_bytes())?.ok_or_else(|| IdentityError::Pem {
        what: "the authority's key",
        problem: "it belongs to no authority in the CA file".to_owned(),
    })
}

/// Signs a certificate for one replica, for [`LEAF_DAYS`] days.
/// Errors: as [`issue_for`].
pub fn issue(
    ca_cert_pem: &str,
    ca_key_pem: &str,
    cluster: &str,
    replica: &str,
) -> Result<Leaf, IdentityError> {
    issue_for(
        ca_cert_pem,
        ca_key_pem,
        cluster,
        replica,
        Term::days(LEAF_DAYS),
    )
}

/// Signs a certificate for one replica with a new key. Of several authorities in `ca_cert_pem` the
/// one signs whose key is given. No leaf outlives its authority: the term ends with it at the latest.
/// Errors: [`IdentityError::Name`] or [`IdentityError::Pem`] if an argument is unusable.
pub fn issue_for(
    ca_cert_pem: &str,
    ca_key_pem: &str,
    cluster: &str,
    replica: &str,
    term: Term,
) -> Result<Leaf, IdentityError> {
    check_label("cluster id", cluster)?;
    check_label("replica id", replica)?;
    let cert = authority_with_key(ca_cert_pem, ca_key_pem)?;
    let (_, authority) = &certificates_in(CA, cert)?[0];
    let term = Term {
        until: term.until.min(authority.until),
        ..term
    };
    let issuer = issuer(cert, ca_key_pem)?;

    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(unmade)?;
    let mut params = CertificateParams::default();
    apply(term, &mut params);
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
    let leaf = params.signed_by(&key, &issuer).map_err(unmade)?;
    Ok(Leaf {
        cert_pem: leaf.pem(),
        key_pem: key.serialize_pem(),
    })
}

/// Signs the list of revoked certificates (a CRL of RFC 5280) of one authority of a bundle.
///
/// `number` must rise from list to list; Unix seconds do. The list ends with its authority, so that
/// nobody has to renew one that did not change. That of an authority that has ended lasts a day more: no format has lists
/// that end before they begin, and whoever still has that authority in the bundle needs its list.
/// Errors: [`IdentityError::Pem`] if an argument is unusable.
pub fn revocations(
    ca_cert_pem: &str,
    ca_key_pem: &str,
    revoked: &BTreeMap<Serial, SystemTime>,
    number: u64,
) -> Result<String, IdentityError> {
    let cert = authority_with_key(ca_cert_pem, ca_key_pem)?;
    let (_, authority) = &certificates_in(CA, cert)?[0];
    let entry = |(serial, since): (&Serial, &SystemTime)| RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial.bytes()),
        revocation_time: OffsetDateTime::from(*since),
        reason_code: None,
        invalidity_date: None,
    };
    let now = SystemTime::now();
    let list = CertificateRevocationListParams {
        this_update: OffsetDateTime::from(now - BACKDATED),
        next_update: OffsetDateTime::from(authority.until.max(now + A_DAY)),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(entry).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let signed = list.signed_by(&issuer(cert, ca_key_pem)?).map_err(unmade)?;
    signed.pem().map_err(unmade)
}

/// The certificate of a leaf's own PEM text.
/// Errors: [`IdentityError::Pem`] if there is none.
pub fn leaf_of(cert_pem: &str) -> Result<Certificate, IdentityError> {
    let mut all = certificates_in("the certificate file", cert_pem)?;
    Ok(all.swap_remove(0).1)
}

fn issuer(cert_pem: &str, key_pem: &str) -> Result<Issuer<'static, KeyPair>, IdentityError> {
    Issuer::from_ca_cert_pem(cert_pem, key(key_pem)?).map_err(|error| IdentityError::Pem {
        what: "the authority's certificate",
        problem: error.to_string(),
    })
}

fn key(key_pem: &str) -> Result<KeyPair, IdentityError> {
    KeyPair::from_pem(key_pem).map_err(|error| IdentityError::Pem {
        what: "the authority's key",
        problem: error.to_string(),
    })
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn unmade(error: rcgen::Error) -> IdentityError {
    IdentityError::Make(error.to_string())
}

const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Days that a replica's certificate is valid.
pub const LEAF_DAYS: u16 = 90;
/// Days that an authority is valid.
pub const CA_DAYS: u16 = 3650;
