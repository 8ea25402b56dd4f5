//! `ca init` and `ca issue`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::SystemTime;

use grapevine_gossip::identity::{self, Term};

use super::files::{File, unwritable, write_all};
use super::show::days_left;
use super::store::{Issued, Store, is_reserved, read, refused, vacant};
use crate::cli::failure::Failure;
use crate::cli::show::print_line;

pub(super) fn init(store: &Store, days: u16, force: bool) -> Result<(), Failure> {
    let made = identity::create_for(store.new_cluster(), Term::days(days)).map_err(refused)?;
    fs::create_dir_all(&store.dir).map_err(|error| unwritable(&store.dir, &error))?;
    let _locked = store.locked()?;
    let (cert, key, revoked) = (store.ca(), store.ca_key(), store.revoked());
    vacant(&[&cert, &key, &store.old_key(), &revoked], force)?;
    let nobody = store.list_of(&made.cert_pem, &[&made.key_pem], &BTreeMap::new())?;
    write_all(vec![
        File::new(key.clone(), made.key_pem, 0o600),
        File::new(cert.clone(), made.cert_pem, 0o644),
        nobody,
    ])?;
    store.remove_old_key()?;
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
    let _locked = store.locked()?;
    let ca = read(&store.ca())?;
    let ca_key = read(&store.ca_key())?;
    let cluster = store.cluster(&ca)?;
    not_ended(store, &ca, &ca_key)?;
    let (mut issued, mut files, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    for replica in replicas.iter().collect::<BTreeSet<_>>() {
        let leaf = identity::issue_for(&ca, &ca_key, &cluster, replica, Term::days(days));
        let leaf = leaf.map_err(refused)?;
        let (cert, key) = (store.cert(replica), store.key(replica));
        vacant(&[&cert, &key], force)?;
        let facts = identity::leaf_of(&leaf.cert_pem).map_err(refused)?;
        let left = days_left(facts.until) + 1;
        let shorter = if left < u64::from(days) {
            ": the authority ends then, see `grapevine ca rotate`"
        } else {
            ""
        };
        lines.push(format!(
            "wrote {} and {}, valid for {left} days{shorter}",
            cert.display(),
            key.display()
        ));
        issued.push(Issued {
            serial: facts.serial.clone(),
            replica: replica.clone(),
            until: facts.until,
        });
        files.push(File::new(key, leaf.key_pem, 0o600));
        files.push(File::new(cert, leaf.cert_pem, 0o644));
    }
    // First, so that whatever gets out can be revoked.
    files.insert(0, store.ledger_with(issued)?);
    write_all(files)?;
    lines.iter().try_for_each(|line| print_line(line))
}

/// Refuses to sign where the authority has ended: nobody would accept what it signs.
fn not_ended(store: &Store, ca: &str, ca_key: &str) -> Result<(), Failure> {
    let signer = identity::authority_with_key(ca, ca_key).and_then(identity::leaf_of);
    let until = signer.map_err(refused)?.until;
    if until > SystemTime::now() {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "the authority in {} ended on {}, and so does all that it signs: `grapevine ca rotate` makes the next one",
        store.dir.display(),
        identity::date(until)
    )))
}
