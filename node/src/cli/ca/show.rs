//! `ca show`: what there is, and how long it is valid.

use std::collections::BTreeMap;
use std::time::SystemTime;

use grapevine_gossip::identity::{self, Certificate, Identity, PemFiles, Serial};

use super::store::{Store, read, refused};
use crate::cli::failure::Failure;
use crate::cli::show::print_line;

/// Checks the named ones as peers would; without a name, lists everything.
pub(super) fn show(store: &Store, replicas: &[String]) -> Result<(), Failure> {
    let ca = read(&store.ca())?;
    let cluster = store.cluster(&ca)?;
    if replicas.is_empty() {
        return list(store, &cluster, &ca);
    }
    replicas
        .iter()
        .try_for_each(|replica| check(store, &cluster, replica))
}

fn check(store: &Store, cluster: &str, replica: &str) -> Result<(), Failure> {
    let revoked = store.revoked();
    let files = PemFiles {
        ca: store.ca(),
        cert: store.cert(replica),
        key: store.key(replica),
        revoked: revoked.exists().then_some(revoked),
    };
    let identity = Identity::load(cluster, replica, &files).map_err(refused)?;
    print_line(&format!(
        "{}: replica {} of cluster {}, valid for {} more days",
        files.cert.display(),
        identity.replica(),
        identity.cluster(),
        days_left(identity.expires()),
    ))
}

fn list(store: &Store, cluster: &str, ca: &str) -> Result<(), Failure> {
    let signer = read(&store.ca_key()).ok();
    let signer = signer
        .map(|key| identity::authority_with_key(ca, &key).and_then(identity::leaf_of))
        .transpose()
        .map_err(refused)?;
    let authorities = identity::certificates_in("ca.pem", ca).map_err(refused)?;
    let authorities: Vec<Certificate> = authorities.into_iter().map(|(_, found)| found).collect();
    for authority in &authorities {
        let role = match &signer {
            Some(signer) if signer.subject == authority.subject => "",
            Some(_) => ", the old one until `grapevine ca rotate --finish`",
            None => ", its key is not here",
        };
        let time = time(authority, "grapevine ca rotate");
        print_line(&format!(
            "ca.pem: authority of cluster {cluster}, {time}{role}"
        ))?;
    }
    let revoked = store.revocations()?;
    for replica in store.replicas()? {
        let state = match store.leaf(&replica) {
            Ok(Some(leaf)) => state(&leaf, &replica, &authorities, &revoked),
            Ok(None) => continue,
            Err(error) => error.to_string(),
        };
        print_line(&format!("{replica}.pem: {state}"))?;
    }
    print_line(&format!("crl.pem: {} certificates revoked", revoked.len()))
}

/// What peers would say to a certificate, shortly.
pub(super) fn state(
    leaf: &Certificate,
    replica: &str,
    authorities: &[Certificate],
    revoked: &BTreeMap<Serial, SystemTime>,
) -> String {
    let renew = format!("grapevine ca issue {replica} --force");
    let position = authorities
        .iter()
        .position(|authority| authority.subject == leaf.issuer);
    let serial = &leaf.serial;
    match position {
        _ if revoked.contains_key(serial) => format!("REVOKED; serial {serial}; `{renew}`"),
        None => format!("REFUSED, of an authority that is not in ca.pem; `{renew}`"),
        Some(0) => format!("{}; serial {serial}", time(leaf, &renew)),
        Some(_) => format!("{}; of the old authority: `{renew}`", time(leaf, &renew)),
    }
}

fn time(certificate: &Certificate, renew: &str) -> String {
    let days = days_left(certificate.until);
    if certificate.until <= SystemTime::now() {
        format!("EXPIRED; `{renew}`")
    } else if days < SOON_DAYS {
        format!("expires SOON, {days} days left; `{renew}`")
    } else {
        format!("{days} days left")
    }
}

/// Whole days until then; 0 if it is over.
pub(super) fn days_left(until: SystemTime) -> u64 {
    let left = until.duration_since(SystemTime::now()).unwrap_or_default();
    left.as_secs() / (24 * 60 * 60)
}

/// From when on replicas warn, too.
const SOON_DAYS: u64 = 30;
