//! `ca rotate`: a new authority beside the old one, and the old one's end.

use std::fs;
use std::time::SystemTime;

use grapevine_gossip::identity::{self, Term};

use super::store::{Store, read, refused, unwritable, write};
use crate::cli::failure::Failure;
use crate::cli::show::print_line;

/// Makes a new authority; `ca.pem` holds it and the old one from now on.
pub(super) fn begin(store: &Store, days: u16) -> Result<(), Failure> {
    let (old, old_key) = (read(&store.ca())?, read(&store.ca_key())?);
    let cluster = store.cluster(&old)?;
    if store.old_key().exists() {
        return Err(Failure::Refused(format!(
            "a rotation is under way: {} is there; `grapevine ca rotate --finish` ends it",
            store.old_key().display()
        )));
    }
    let old = identity::authority_with_key(&old, &old_key).map_err(refused)?;
    let new = identity::create_for(&cluster, Term::days(days)).map_err(refused)?;
    let revoked = store.revocations()?;
    write(&store.old_key(), &old_key, 0o600)?;
    write(&store.ca(), &format!("{}{old}\n", new.cert_pem), 0o644)?;
    write(&store.ca_key(), &new.key_pem, 0o600)?;
    store.write_revocations(&revoked)?;
    let dir = store.dir.display();
    for line in [
        format!(
            "wrote {dir}/ca.pem with the new and the old authority, and {dir}/ca.key of the new one"
        ),
        "next:".to_owned(),
        format!(
            "  1. copy {dir}/ca.pem and {dir}/crl.pem to all replicas, and wait until each has read them (10 s, or SIGHUP)"
        ),
        format!(
            "  2. for each replica: `grapevine ca issue REPLICA --force --dir {dir}`, and copy its two files there"
        ),
        format!(
            "  3. `grapevine ca rotate --finish --dir {dir}`, and copy {dir}/ca.pem and {dir}/crl.pem to all replicas"
        ),
    ] {
        print_line(&line)?;
    }
    Ok(())
}

/// Drops the old authority.
pub(super) fn finish(store: &Store, force: bool) -> Result<(), Failure> {
    let (bundle, key) = (read(&store.ca())?, read(&store.ca_key())?);
    store.cluster(&bundle)?;
    let authorities = identity::certificates_in("ca.pem", &bundle).map_err(refused)?;
    if authorities.len() < 2 && !store.old_key().exists() {
        let what = "no rotation is under way: `grapevine ca rotate` begins one";
        return Err(Failure::Refused(what.to_owned()));
    }
    let new = identity::authority_with_key(&bundle, &key).map_err(refused)?;
    let left_behind = left_behind(store, new)?;
    if !left_behind.is_empty() && !force {
        let names = left_behind.join(" ");
        return Err(Failure::Refused(format!(
            "certificates of the old authority are still here: {names}; run `grapevine ca issue {names} \
             --force` and copy them to their replicas, or shut those out with --force"
        )));
    }
    let revoked = store.revocations()?;
    write(&store.ca(), &format!("{new}\n"), 0o644)?;
    match fs::remove_file(store.old_key()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(unwritable(&store.old_key(), &error));
        }
        _ => {}
    }
    store.write_revocations(&revoked)?;
    let dir = store.dir.display();
    print_line(&format!(
        "wrote {dir}/ca.pem with the new authority alone, and removed the old one's key; \
         copy {dir}/ca.pem and {dir}/crl.pem to all replicas"
    ))
}

/// Replicas whose certificate here is of another authority, and would be accepted until now.
fn left_behind(store: &Store, new: &str) -> Result<Vec<String>, Failure> {
    let new = identity::leaf_of(new).map_err(refused)?;
    let revoked = store.revocations()?;
    let now = SystemTime::now();
    let mut names = Vec::new();
    for replica in store.replicas()? {
        let Some(leaf) = store.leaf(&replica)? else {
            continue;
        };
        if leaf.issuer != new.subject && leaf.until > now && !revoked.contains_key(&leaf.serial) {
            names.push(replica);
        }
    }
    Ok(names)
}
