//! The contents of certificates and revocation lists, for commands that show, renew and revoke them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Name;

use super::IdentityError;
use crate::replica::ReplicaId;

/// Serial number of a certificate: 1 to 20 bytes, unique under its authority (RFC 5280, 4.1.2.2).
/// Shown in hexadecimal, as `openssl x509 -serial` does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Serial(Vec<u8>);

impl Serial {
    /// Big-endian, without leading zeros.
    fn new(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Self(bytes[zeros..].to_vec())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Serial {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let digits = text.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        match bytes {
            Some(bytes)
                if is_hex && digits.len().is_multiple_of(2) && (2..=40).contains(&digits.len()) =>
            {
                Ok(Self::new(&bytes))
            }
            _ => Err(IdentityError::Serial),
        }
    }
}

/// The contents of one certificate. None of them are checked: [`super::Identity`] does that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// Common name: `<replica>.<cluster>` of a leaf.
    pub name: String,
    /// Its number.
    pub serial: Serial,
    /// Not accepted before.
    pub from: SystemTime,
    /// Not accepted after.
    pub until: SystemTime,
    /// Full name of its issuer; an authority's issuer is itself.
    pub issuer: String,
    /// Full name of its subject.
    pub subject: String,
    /// It may sign others.
    pub is_authority: bool,
}

impl Certificate {
    /// Reads one certificate.
    /// Errors: [`IdentityError::Pem`] names `what` if it is not X.509.
    pub(crate) fn read(what: &'static str, der: &[u8]) -> Result<Self, IdentityError> {
        let parsed = parse(what, der)?;
        let validity = parsed.validity();
        Ok(Self {
            name: common_name(parsed.subject()).unwrap_or_default(),
            serial: Serial::new(parsed.raw_serial()),
            from: moment(validity.not_before),
            until: moment(validity.not_after),
            issuer: parsed.issuer().to_string(),
            subject: parsed.subject().to_string(),
            is_authority: parsed.is_ca(),
        })
    }

    /// The cluster of an authority that [`super::create`] made.
    pub fn authority_of(&self) -> Option<&str> {
        self.name.strip_prefix(AUTHORITY_OF)
    }
}

/// All certificates of a PEM text, at least one, each with its own text.
/// Errors: [`IdentityError::Pem`] names `what` if there is none, or one is damaged.
pub fn certificates_in<'a>(
    what: &'static str,
    pem: &'a str,
) -> Result<Vec<(&'a str, Certificate)>, IdentityError> {
    let blocks = blocks(pem);
    let read = |block: &'a str| {
        let der = CertificateDer::from_pem_slice(block.as_bytes())
            .map_err(|error| unusable(what, &error.to_string()))?;
        Ok((block, Certificate::read(what, &der)?))
    };
    // A key in the same file is no certificate, and no damage either.
    let certificates = blocks
        .into_iter()
        .filter(|block| block.starts_with("-----BEGIN CERTIFICATE-----"));
    let found: Vec<_> = certificates.map(read).collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err(unusable(what, "it holds no certificate"));
    }
    Ok(found)
}

/// Revoked serial numbers and since when, of all lists of a PEM text together; `ca` is the bundle of the authorities.
/// Errors: [`IdentityError::Pem`] if there is no list or one is damaged, [`IdentityError::Lists`] if one is forged or
/// none is of these authorities.
pub fn revoked_in(ca: &str, pem: &str) -> Result<BTreeMap<Serial, SystemTime>, IdentityError> {
    let lists = lists(pem)?;
    check_lists(&lists, &super::certificates(CA, ca)?)?;
    let mut all = BTreeMap::new();
    for der in &lists {
        let list = parse_list(der)?;
        for revoked in list.iter_revoked_certificates() {
            all.insert(
                Serial::new(revoked.raw_serial()),
                moment(revoked.revocation_date),
            );
        }
    }
    Ok(all)
}

/// All lists of revocations of a PEM text, at least one.
pub(super) fn lists(
    pem: &str,
) -> Result<Vec<CertificateRevocationListDer<'static>>, IdentityError> {
    let found = CertificateRevocationListDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(LIST, &error.to_string()))?;
    if found.is_empty() {
        let problem = "it holds no list; `grapevine ca revoke` without a name writes one";
        return Err(unusable(LIST, problem));
    }
    Ok(found)
}

/// Refuses lists of which one names one of the authorities and is not signed by it, or of which none is of an authority
/// among `roots`.
///
/// TLS would find the former only when the first peer comes, and refuse every peer; and it would pass over the latter, so
/// that whoever was revoked is let in again. A list of another authority beside that of a root is let be: while one
/// authority replaces the other, files change one by one.
pub(super) fn check_lists(
    lists: &[CertificateRevocationListDer<'_>],
    roots: &[CertificateDer<'_>],
) -> Result<(), IdentityError> {
    let mut is_one_ours = false;
    for list in lists {
        is_one_ours |= is_signed(&parse_list(list)?, roots)?;
    }
    if is_one_ours {
        return Ok(());
    }
    Err(IdentityError::Lists(
        "no list in it is of an authority in the CA file; take the file that `grapevine ca` wrote beside that one",
    ))
}

/// The lists of `former` that authorities among `roots` signed of which `present` has no list.
pub(super) fn missing_lists(
    former: &[CertificateRevocationListDer<'static>],
    present: &[CertificateRevocationListDer<'_>],
    roots: &[CertificateDer<'_>],
) -> Result<Vec<CertificateRevocationListDer<'static>>, IdentityError> {
    let present: Vec<_> = present
        .iter()
        .map(|der| parse_list(der))
        .collect::<Result<_, _>>()?;
    let mut missing = Vec::new();
    for der in former {
        let list = parse_list(der)?;
        let is_of_same = |other: &CertificateRevocationList<'_>| {
            other.issuer().as_raw() == list.issuer().as_raw()
        };
        // One whose name another authority has now is nobody's any more.
        if !present.iter().any(is_of_same) && matches!(is_signed(&list, roots), Ok(true)) {
            missing.push(der.clone());
        }
    }
    Ok(missing)
}

/// Whether one of the authorities signed the list. One whose name it has must have done so.
fn is_signed(
    list: &CertificateRevocationList<'_>,
    roots: &[CertificateDer<'_>],
) -> Result<bool, IdentityError> {
    let mut is_claimed = false;
    for root in roots {
        let root = parse(CA, root)?;
        if root.subject().as_raw() == list.issuer().as_raw() {
            if list.verify_signature(root.public_key()).is_ok() {
                return Ok(true);
            }
            is_claimed = true;
        }
    }
    if is_claimed {
        return Err(IdentityError::Lists(
            "it is not signed by the authority that it names",
        ));
    }
    Ok(false)
}

/// The certificate in a bundle that a public key belongs to, as PEM.
pub(super) fn with_key<'a>(
    bundle: &'a str,
    public_key: &[u8],
) -> Result<Option<&'a str>, IdentityError> {
    for (block, _) in certificates_in(CA, bundle)? {
        let der = CertificateDer::from_pem_slice(block.as_bytes())
            .map_err(|error| unusable(CA, &error.to_string()))?;
        let parsed = parse(CA, &der)?;
        if *parsed.public_key().subject_public_key.data == *public_key {
            return Ok(Some(block));
        }
    }
    Ok(None)
}

/// The PEM blocks of a text, whatever stands between them.
fn blocks(pem: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = pem;
    while let Some(begin) = rest.find("-----BEGIN ") {
        let block = &rest[begin..];
        let Some(end) = block.find("-----END ") else {
            break;
        };
        let line = block[end..].find('\n').unwrap_or(block.len() - end);
        found.push(block[..end + line].trim_end());
        rest = &block[end + line..];
    }
    found
}

fn parse<'a>(what: &'static str, der: &'a [u8]) -> Result<X509Certificate<'a>, IdentityError> {
    let (_, parsed) = x509_parser::parse_x509_certificate(der)
        .map_err(|error| unusable(what, &error.to_string()))?;
    Ok(parsed)
}

fn parse_list(der: &[u8]) -> Result<CertificateRevocationList<'_>, IdentityError> {
    let (_, list) = CertificateRevocationList::from_der(der)
        .map_err(|error| unusable(LIST, &error.to_string()))?;
    Ok(list)
}

/// The replica of `cluster` that a leaf names, as `<replica>.<cluster>` among its DNS names; the first in the order of
/// the alphabet if it names several, so that it counts as one. `None` if it names none, or cannot be read.
///
/// The signature was checked in the handshake.
pub(crate) fn replica_named(leaf: &CertificateDer<'_>, cluster: &str) -> Option<ReplicaId> {
    let parsed = parse(LEAF, leaf).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let replica = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => name.strip_suffix(cluster)?.strip_suffix('.')?.parse().ok(),
        _ => None,
    };
    names.value.general_names.iter().filter_map(replica).min()
}

fn common_name(name: &X509Name<'_>) -> Option<String> {
    let first = name.iter_common_name().next()?;
    first.as_str().ok().map(str::to_owned)
}

fn moment(time: ASN1Time) -> SystemTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn unusable(what: &'static str, problem: &str) -> IdentityError {
    IdentityError::Pem {
        what,
        problem: problem.to_owned(),
    }
}

/// Common names of our authorities begin so.
pub(super) const AUTHORITY_OF: &str = "grapevine authority of ";
pub(super) const CA: &str = "the CA file";
const LEAF: &str = "a peer's certificate";
pub(super) const LIST: &str = "the file of revoked certificates";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_are_hexadecimal_without_leading_zeros() {
        let serial: Serial = "00ab01".parse().expect("hex");
        assert_eq!(serial.to_string(), "ab01");
        assert_eq!(serial, Serial::new(&[0, 0, 0xab, 1]));
        for bad in [
            "",
            "a",
            "xy",
            "+1",
            "00000000000000000000000000000000000000000000",
        ] {
            assert!(bad.parse::<Serial>().is_err(), "{bad}");
        }
    }

    #[test]
    fn blocks_are_found_among_comments() {
        let text = "# old\n-----BEGIN A-----\nx\n-----END A-----\n# new\n-----BEGIN B-----\ny\n-----END B-----";
        assert_eq!(
            blocks(text),
            [
                "-----BEGIN A-----\nx\n-----END A-----",
                "-----BEGIN B-----\ny\n-----END B-----"
            ]
        );
        assert!(blocks("-----BEGIN A-----\nhalf").is_empty());
    }
}
