//! `ca revoke`: the list of certificates that are accepted no more.
//!
//! A list of serial numbers signed by the authority (CRL, RFC 5280): TLS checks it in the handshake on
//! both sides, any X.509 tool reads it, it cannot be forged on its way, and a replica may come back
//! under the same name with a new certificate.

use std::collections::BTreeSet;
use std::time::SystemTime;

use grapevine_gossip::identity::Serial;

use super::store::{Store, read};
use crate::cli::failure::Failure;
use crate::cli::show::print_line;

pub(super) fn revoke(
    store: &Store,
    replicas: &[String],
    serials: Vec<Serial>,
    former: bool,
) -> Result<(), Failure> {
    let _locked = store.locked()?;
    store.cluster(&read(&store.ca())?)?;
    let mut all: BTreeSet<Serial> = serials.into_iter().collect();
    for replica in replicas {
        let found = of_replica(store, replica, former)?;
        if found.is_empty() && !former {
            return Err(Failure::Refused(format!(
                "nothing was issued to {replica} in {}: name its certificate with --serial, as \
                 `openssl x509 -noout -serial` shows it",
                store.dir.display()
            )));
        }
        all.extend(found);
    }
    let mut revoked = store.revocations()?;
    let before = revoked.len();
    let now = SystemTime::now();
    for serial in all {
        revoked.entry(serial).or_insert(now);
    }
    store.write_revocations(&revoked)?;
    if !replicas.is_empty() && !store.has_list() {
        let known = match former {
            true => "no former certificate is known there",
            false => "of each replica only the certificate that lies there is revoked",
        };
        eprintln!(
            "warning: {} has no issued.txt: {known}. Copy the list to it and repeat this, or name former certificates \
             with --serial",
            store.dir.display()
        );
    }
    let path = store.revoked();
    print_line(&format!(
        "wrote {}: {} certificates revoked, {} of them now; copy it to all replicas",
        path.display(),
        revoked.len(),
        revoked.len() - before
    ))
}

/// Everything issued to a replica, with or without its newest certificate.
fn of_replica(store: &Store, replica: &str, former: bool) -> Result<BTreeSet<Serial>, Failure> {
    let issued = store.issued()?.into_iter();
    let issued = issued.filter(|issued| issued.replica == replica);
    let mut all: Vec<Serial> = issued.map(|issued| issued.serial).collect();
    let here = store.leaf(replica)?.map(|leaf| leaf.serial);
    if former {
        // Its files may have been moved to its machine: what was issued last is in use there.
        let newest = here.or_else(|| all.last().cloned());
        all.retain(|serial| Some(serial) != newest.as_ref());
    } else {
        all.extend(here);
    }
    Ok(all.into_iter().collect())
}
