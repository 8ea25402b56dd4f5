//! `ca init` and `ca issue`.

use std::fs;

use grapevine_gossip::identity::{self, Term};

use super::show::days_left;
use super::store::{Issued, Store, is_reserved, read, refused, unwritable, vacant, write};
use crate::cli::failure::Failure;
use crate::cli::show::print_line;

pub(super) fn init(store: &Store, days: u16, force: bool) -> Result<(), Failure> {
    let made = identity::create_for(store.new_cluster(), Term::days(days)).map_err(refused)?;
    fs::create_dir_all(&store.dir).map_err(|error| unwritable(&store.dir, &error))?;
    let (cert, key, revoked) = (store.ca(), store.ca_key(), store.revoked());
    vacant(&[&cert, &key, &store.old_key(), &revoked], force)?;
    match fs::remove_file(store.old_key()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(unwritable(&store.old_key(), &error));
        }
        _ => {}
    }
    write(&key, &made.key_pem, 0o600)?;
    write(&cert, &made.cert_pem, 0o644)?;
    store.write_revocations(&std::collections::BTreeMap::new())?;
    print_line(&format!(
        "wrote {}, {} and {}",
        cert.display(),
        key.display(),
        revoked.display()
    ))
}

pub(super) fn issue(
    store: &Store,
    replicas: &[String],
    days: u16,
    force: bool,
) -> Result<(), Failure> {
    if let Some(name) = replicas.iter().find(|name| is_reserved(name)) {
        let what = format!("a replica cannot be called {name}: its files would be the authority's");
        return Err(Failure::Usage(what));
    }
    let ca = read(&store.ca())?;
    let ca_key = read(&store.ca_key())?;
    let cluster = store.cluster(&ca)?;
    for replica in replicas {
        let leaf = identity::issue_for(&ca, &ca_key, &cluster, replica, Term::days(days));
        let leaf = leaf.map_err(refused)?;
        let (cert, key) = (store.cert(replica), store.key(replica));
        vacant(&[&cert, &key], force)?;
        let facts = identity::leaf_of(&leaf.cert_pem).map_err(refused)?;
        // First, so that whatever gets out can be revoked.
        store.remember(Issued {
            serial: facts.serial.clone(),
            replica: replica.clone(),
            until: facts.until,
        })?;
        write(&key, &leaf.key_pem, 0o600)?;
        write(&cert, &leaf.cert_pem, 0o644)?;
        let left = days_left(facts.until) + 1;
        let shorter = if left < u64::from(days) {
            ": the authority ends then, see `grapevine ca rotate`"
        } else {
            ""
        };
        print_line(&format!(
            "wrote {} and {}, valid for {left} days{shorter}",
            cert.display(),
            key.display()
        ))?;
    }
    Ok(())
}
