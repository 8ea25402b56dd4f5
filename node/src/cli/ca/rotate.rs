//! `ca rotate`: a new authority beside the old one, and the old one's end.

use std::time::SystemTime;

use grapevine_gossip::identity::{self, Term};

use super::files::{File, write_all};
use super::store::{Store, read, refused};
use crate::cli::failure::Failure;
use crate::cli::show::print_line;

/// Makes a new authority; `ca.pem` holds it and the old one from now on.
pub(super) fn begin(store: &Store, days: u16) -> Result<(), Failure> {
    let _locked = store.locked()?;
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
    let bundle = format!("{}{old}\n", new.cert_pem);
    let list = store.list_of(&bundle, &[&new.key_pem, &old_key], &revoked)?;
    write_all(vec![
        File::new(store.old_key(), old_key, 0o600),
        File::new(store.ca(), bundle, 0o644),
        File::new(store.ca_key(), new.key_pem, 0o600),
        list,
    ])?;
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
    let _locked = store.locked()?;
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
    let bundle = format!("{new}\n");
    let list = store.list_of(&bundle, &[&key], &revoked)?;
    write_all(vec![File::new(store.ca(), bundle, 0o644), list])?;
    store.remove_old_key()?;
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
