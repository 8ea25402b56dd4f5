//! `ca show`: what there is, and how long it is valid.

use std::collections::BTreeMap;
use std::time::SystemTime;

use grapevine_gossip::identity::{self, Certificate, Identity, PemFiles, Serial};

use serde_json::json;

use super::store::{Store, read, refused};
use crate::cli::failure::Failure;
use crate::cli::show::{print_json, print_line};

/// Checks the named ones as peers would; without a name, lists everything.
pub(super) fn show(store: &Store, replicas: &[String], is_json: bool) -> Result<(), Failure> {
    let ca = read(&store.ca())?;
    let cluster = store.cluster(&ca)?;
    if replicas.is_empty() {
        return list(store, &cluster, &ca, is_json);
    }
    let checked = replicas
        .iter()
        .map(|replica| Ok((replica, check(store, &cluster, replica)?)));
    let checked: Vec<_> = checked.collect::<Result<_, Failure>>()?;
    if is_json {
        let shown = checked.iter().map(|(replica, identity)| {
            json!({"replica": replica, "days_left": days_left(identity.expires()), "accepted": true})
        });
        let shown: Vec<_> = shown.collect();
        return print_json(&json!({"cluster": cluster, "replicas": shown}));
    }
    for (replica, identity) in checked {
        print_line(&format!(
            "{}: replica {} of cluster {}, valid for {} more days",
            store.cert(replica).display(),
            identity.replica(),
            identity.cluster(),
            days_left(identity.expires()),
        ))?;
    }
    Ok(())
}

fn check(store: &Store, cluster: &str, replica: &str) -> Result<Identity, Failure> {
    let revoked = store.revoked();
    let files = PemFiles {
        ca: store.ca(),
        cert: store.cert(replica),
        key: store.key(replica),
        revoked: revoked.exists().then_some(revoked),
    };
    Identity::load(cluster, replica, &files).map_err(refused)
}

fn list(store: &Store, cluster: &str, ca: &str, is_json: bool) -> Result<(), Failure> {
    let signer = read(&store.ca_key()).ok();
    let signer = signer
        .map(|key| identity::authority_with_key(ca, &key).and_then(identity::leaf_of))
        .transpose()
        .map_err(refused)?;
    let authorities = identity::certificates_in("ca.pem", ca).map_err(refused)?;
    let authorities: Vec<Certificate> = authorities.into_iter().map(|(_, found)| found).collect();
    let role = |authority: &Certificate| match &signer {
        Some(signer) if signer.subject == authority.subject => "",
        Some(_) => ", the old one until `grapevine ca rotate --finish`",
        None => ", its key is not here",
    };
    let revoked = store.revocations()?;
    let mut replicas = Vec::new();
    for replica in store.replicas()? {
        match store.leaf(&replica) {
            Ok(Some(leaf)) => {
                let state = state(&leaf, &replica, &authorities, &revoked);
                replicas.push((replica, state, Some(leaf)));
            }
            Ok(None) => {}
            Err(error) => replicas.push((replica, error.to_string(), None)),
        }
    }
    if is_json {
        let shown_authorities = authorities.iter().map(|authority| {
            let signs = signer
                .as_ref()
                .map(|signer| signer.subject == authority.subject);
            json!({"days_left": days_left(authority.until), "signs": signs})
        });
        let shown_replicas = replicas.iter().map(|(replica, state, leaf)| {
            let leaf = leaf.as_ref();
            json!({
                "replica": replica,
                "state": state,
                "accepted": leaf.is_some_and(|leaf| is_accepted(leaf, &authorities, &revoked)),
                "days_left": leaf.map(|leaf| days_left(leaf.until)),
                "serial": leaf.map(|leaf| leaf.serial.to_string()),
            })
        });
        return print_json(&json!({
            "cluster": cluster,
            "authorities": shown_authorities.collect::<Vec<_>>(),
            "replicas": shown_replicas.collect::<Vec<_>>(),
            "revoked": revoked.len(),
        }));
    }
    for authority in &authorities {
        let (time, role) = (time(authority, "grapevine ca rotate"), role(authority));
        print_line(&format!(
            "ca.pem: authority of cluster {cluster}, {time}{role}"
        ))?;
    }
    for (replica, state, _) in &replicas {
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

/// Whether peers would take it now.
pub(super) fn is_accepted(
    leaf: &Certificate,
    authorities: &[Certificate],
    revoked: &BTreeMap<Serial, SystemTime>,
) -> bool {
    let mut issuers = authorities.iter().map(|authority| &authority.subject);
    let is_known = issuers.any(|subject| *subject == leaf.issuer);
    let is_its_time = (leaf.from..leaf.until).contains(&SystemTime::now());
    is_known && !revoked.contains_key(&leaf.serial) && is_its_time
}

fn time(certificate: &Certificate, renew: &str) -> String {
    let days = days_left(certificate.until);
    let now = SystemTime::now();
    if certificate.until <= now {
        format!("EXPIRED; `{renew}`")
    } else if certificate.from > now {
        // Signed by a clock that is ahead of this one.
        let from = humantime::format_rfc3339_seconds(certificate.from);
        format!("NOT YET valid, from {from} on; `{renew}`")
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
