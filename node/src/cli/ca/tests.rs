//! The directory of `grapevine ca` through a cluster's life.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use grapevine_gossip::identity::{
    CA_DAYS, Identity, LEAF_DAYS, PemFiles, Term, certificates_in, create_for,
};

use super::issue::{init, issue};
use super::revoke::revoke;
use super::rotate::{begin, finish};
use super::show::{days_left, is_accepted, show, state};
use super::store::{Store, read};
use crate::cli::failure::Failure;

fn store(dir: &Path) -> Store {
    Store::new(dir.join("ca"), Some("demo".to_owned()))
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// A directory with an authority and certificates of these replicas.
fn with(replicas: &[&str]) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store(dir.path());
    init(&store, CA_DAYS, false).expect("an authority");
    if !replicas.is_empty() {
        issue(&store, &names(replicas), LEAF_DAYS, false).expect("certificates");
    }
    (dir, store)
}

/// What a replica with these files would say at its start.
fn load(store: &Store, replica: &str) -> Result<Identity, String> {
    let files = PemFiles {
        ca: store.ca(),
        cert: store.cert(replica),
        key: store.key(replica),
        revoked: Some(store.revoked()),
    };
    Identity::load("demo", replica, &files).map_err(|error| error.to_string())
}

/// What `show` says of a certificate.
fn said(store: &Store, replica: &str) -> String {
    let ca = read(&store.ca()).expect("an authority");
    let authorities = certificates_in("ca.pem", &ca).expect("certificates");
    let authorities: Vec<_> = authorities.into_iter().map(|(_, found)| found).collect();
    let leaf = store.leaf(replica).expect("readable").expect("there");
    let revoked = store.revocations().expect("a list");
    let state = state(&leaf, replica, &authorities, &revoked);
    let is_refused = ["REVOKED", "REFUSED", "EXPIRED"]
        .iter()
        .any(|word| state.starts_with(word));
    let is_accepted = is_accepted(&leaf, &authorities, &revoked);
    assert_eq!(is_accepted, !is_refused, "{state}");
    state
}

#[test]
fn a_name_that_nobody_may_have_is_a_mistake_of_the_command_line() {
    let (dir, store) = with(&[]);
    let issued = issue(&store, &names(&["R1"]), LEAF_DAYS, false);
    assert!(matches!(issued, Err(Failure::Usage(_))), "{issued:?}");
    let elsewhere = Store::new(dir.path().join("other"), Some("Bad Name".to_owned()));
    let made = init(&elsewhere, CA_DAYS, false);
    assert!(matches!(made, Err(Failure::Usage(_))), "{made:?}");
}

#[test]
fn an_issued_certificate_is_shown_as_valid() {
    let (dir, demo) = with(&["r1"]);
    show(&demo, &names(&["r1"]), false).expect("valid");
    show(&demo, &[], false).expect("listed");
    show(&demo, &[], true).expect("listed as JSON");
    let unnamed = Store::new(demo.dir.clone(), None);
    show(&unnamed, &names(&["r1"]), false).expect("the authority knows its cluster");
    let other = Store::new(demo.dir.clone(), Some("other".to_owned()));
    assert!(issue(&other, &names(&["r9"]), LEAF_DAYS, false).is_err());
    let mode = |path: &Path| {
        let meta = fs::metadata(path).expect("a file");
        meta.permissions().mode() & 0o777
    };
    for key in [demo.ca_key(), demo.key("r1"), demo.dir.join("issued.txt")] {
        assert_eq!(mode(&key), 0o600, "{}", key.display());
    }
    for open in [demo.ca(), demo.revoked(), demo.cert("r1")] {
        assert_eq!(mode(&open) & 0o444, 0o444, "{}", open.display());
    }
    assert!(show(&demo, &names(&["r2"]), false).is_err());
    assert_eq!(fs::read_dir(&demo.dir).expect("a directory").count(), 6);
    drop(dir);
}

#[test]
fn a_certificate_of_a_clock_that_is_ahead_is_not_accepted_yet() {
    let (_dir, store) = with(&["r1"]);
    let ca = read(&store.ca()).expect("an authority");
    let authorities = certificates_in("ca.pem", &ca).expect("certificates");
    let authorities: Vec<_> = authorities.into_iter().map(|(_, found)| found).collect();
    let mut leaf = store.leaf("r1").expect("readable").expect("there");
    leaf.from = SystemTime::now() + Duration::from_hours(24);
    let state = state(&leaf, "r1", &authorities, &BTreeMap::new());
    assert!(state.starts_with("NOT YET valid, from 20"), "{state}");
    assert!(!is_accepted(&leaf, &authorities, &BTreeMap::new()));
}

#[test]
fn nothing_is_overwritten_without_force() {
    let (_dir, store) = with(&["r1"]);
    let keys = || [store.ca_key(), store.key("r1")].map(|path| read(&path).expect("a key"));
    let before = keys();
    fs::remove_file(store.ca()).expect("removed");
    let error = init(&store, CA_DAYS, false)
        .expect_err("the key is still there")
        .to_string();
    assert!(
        error.ends_with("ca.key is there already; --force replaces it"),
        "{error}"
    );
    init(&store, CA_DAYS, true).expect("replaced");
    let error = issue(&store, &names(&["r1"]), LEAF_DAYS, false)
        .expect_err("there")
        .to_string();
    assert!(
        error.ends_with("r1.pem is there already; --force replaces it"),
        "{error}"
    );
    assert_eq!(keys()[1], before[1]);
    issue(&store, &names(&["r1"]), LEAF_DAYS, true).expect("renewed");
    let after = keys();
    assert!(after[0] != before[0] && after[1] != before[1]);
    load(&store, "r1").expect("good");
}

#[test]
fn of_several_certificates_all_are_issued_or_none() {
    let (_dir, store) = with(&["r1"]);
    let contents = || {
        let files = fs::read_dir(&store.dir).expect("a directory");
        let paths = files.map(|file| file.expect("a file").path());
        let mut all: Vec<_> = paths.map(|path| (fs::read(&path).ok(), path)).collect();
        all.sort();
        all
    };
    // Nothing can be written in its place.
    fs::create_dir(store.cert("r3")).expect("made");
    let before = contents();
    let try_to = |replicas: &[&str], force| {
        let error = issue(&store, &names(replicas), LEAF_DAYS, force).expect_err("refused");
        assert_eq!(contents(), before, "{error}");
        error.to_string()
    };
    let error = try_to(&["r1", "r2", "r3"], true);
    assert!(error.contains("cannot write"), "{error}");
    let error = try_to(&["r2", "r1"], false);
    assert!(error.ends_with("is there already; --force replaces it"));
    fs::remove_dir(store.cert("r3")).expect("removed");
    issue(&store, &names(&["r1", "r2", "r3"]), LEAF_DAYS, true).expect("issued");
    for replica in ["r1", "r2", "r3"] {
        load(&store, replica).expect("good");
    }
}

#[test]
fn names_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store(dir.path());
    let try_to = |name: &str| issue(&store, &names(&[name]), LEAF_DAYS, false);
    let error = try_to("r1").expect_err("no authority").to_string();
    assert!(error.contains("run `grapevine ca init` first"), "{error}");
    init(&store, CA_DAYS, false).expect("an authority");
    for name in ["R 1", "../r1", "ca", "crl", "ca.old"] {
        assert!(try_to(name).is_err(), "{name}");
    }
}

#[test]
fn days_are_those_asked_for_and_at_most_the_authoritys() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = store(dir.path());
    init(&store, 60, false).expect("an authority");
    let days = |days: u16| {
        issue(&store, &names(&["r1"]), days, true).expect("issued");
        let identity = load(&store, "r1").expect("good");
        days_left(identity.expires()) + 1
    };
    assert_eq!(days(40), 40);
    assert_eq!(days(90), 60);
    assert_eq!(days(7), 7);
    assert!(
        said(&store, "r1").contains("expires SOON, 6 days left; `grapevine ca issue r1 --force`")
    );
}

#[test]
fn a_rotation_has_an_overlap_and_an_end() {
    let (_dir, store) = with(&["r1", "r2"]);
    let error = finish(&store, false).expect_err("not begun").to_string();
    assert!(
        error.contains("`grapevine ca rotate` begins one"),
        "{error}"
    );
    begin(&store, CA_DAYS).expect("begun");
    let error = begin(&store, CA_DAYS).expect_err("under way").to_string();
    assert!(error.contains("rotate --finish"), "{error}");

    // Both authorities are trusted.
    load(&store, "r1").expect("of the old one");
    assert!(said(&store, "r1").contains("of the old authority"));
    issue(&store, &names(&["r1"]), LEAF_DAYS, true).expect("by the new one");
    load(&store, "r1").expect("of the new one");
    assert!(said(&store, "r1").ends_with(|last: char| last.is_ascii_hexdigit()));
    show(&store, &[], false).expect("listed");

    // Nobody is left behind by mistake.
    let error = finish(&store, false).expect_err("r2 is left").to_string();
    assert!(error.contains("still here: r2;"), "{error}");
    load(&store, "r2").expect("nothing was changed");
    let old = (
        read(&store.cert("r2")).expect("a file"),
        read(&store.key("r2")).expect("a file"),
    );
    issue(&store, &names(&["r2"]), LEAF_DAYS, true).expect("by the new one");
    finish(&store, false).expect("finished");
    assert!(!store.old_key().exists());
    for replica in ["r1", "r2"] {
        load(&store, replica).expect("of the new one");
    }
    fs::write(store.cert("r2"), old.0).expect("written");
    fs::write(store.key("r2"), old.1).expect("written");
    let error = load(&store, "r2").expect_err("of the old one");
    assert!(
        error.contains("no authority in the CA file has signed"),
        "{error}"
    );
    assert!(said(&store, "r2").contains("not in ca.pem"));
    begin(&store, CA_DAYS).expect("another one");
    finish(&store, true).expect("whoever is left");
}

/// An authority that ended yesterday, and its key.
fn ended() -> (String, String) {
    let day = Duration::from_secs(24 * 60 * 60);
    let now = SystemTime::now();
    let term = Term {
        from: now - 30 * day,
        until: now - day,
    };
    let made = create_for("demo", term).expect("an authority");
    (made.cert_pem, made.key_pem)
}

/// What the guide says to run where nothing connects any more works then.
#[test]
fn an_authority_that_has_ended_is_replaced() {
    let (_dir, store) = with(&["r1"]);
    let (cert, key) = ended();
    fs::write(store.ca(), cert).expect("written");
    fs::write(store.ca_key(), key).expect("written");
    fs::remove_file(store.revoked()).expect("removed");
    let error = issue(&store, &names(&["r1"]), LEAF_DAYS, true).expect_err("nobody would take it");
    assert!(
        error.to_string().contains("`grapevine ca rotate`"),
        "{error}"
    );
    revoke(&store, &names(&["r1"]), Vec::new(), false).expect("revoked");
    assert_eq!(store.revocations().expect("a list").len(), 1);
    begin(&store, CA_DAYS).expect("begun");
    let revoked = store.revocations().expect("a list");
    assert_eq!(revoked.len(), 1, "carried over");
    issue(&store, &names(&["r1"]), LEAF_DAYS, true).expect("by the new one");
    load(&store, "r1").expect("good");
    finish(&store, false).expect("finished");
    load(&store, "r1").expect("good");
}

/// A stolen key of the new authority can be shut out, although nobody has ended the rotation.
#[test]
fn whoever_is_revoked_while_the_old_authority_has_ended_stays_out() {
    let (_dir, store) = with(&["r1"]);
    begin(&store, CA_DAYS).expect("begun");
    issue(&store, &names(&["r1"]), LEAF_DAYS, true).expect("by the new one");
    let bundle = read(&store.ca()).expect("a bundle");
    let new = certificates_in("ca.pem", &bundle).expect("two")[0].0;
    let (cert, key) = ended();
    fs::write(store.ca(), format!("{new}\n{cert}")).expect("written");
    fs::write(store.old_key(), key).expect("written");
    load(&store, "r1").expect("good");
    revoke(&store, &names(&["r1"]), Vec::new(), false).expect("revoked");
    let error = load(&store, "r1").expect_err("revoked");
    assert!(error.contains("it was revoked"), "{error}");
    finish(&store, true).expect("finished");
    let error = load(&store, "r1").expect_err("revoked");
    assert!(error.contains("it was revoked"), "{error}");
}

#[test]
fn everything_issued_to_a_replica_is_revoked_and_what_comes_later_is_not() {
    let (_dir, store) = with(&["r1", "r2"]);
    let first = (
        read(&store.cert("r2")).expect("a file"),
        read(&store.key("r2")).expect("a file"),
    );
    issue(&store, &names(&["r2"]), LEAF_DAYS, true).expect("renewed");
    revoke(&store, &names(&["r2"]), Vec::new(), false).expect("revoked");
    assert_eq!(
        store.revocations().expect("a list").len(),
        2,
        "the first one too"
    );
    assert!(
        load(&store, "r2")
            .expect_err("revoked")
            .contains("it was revoked")
    );
    assert!(said(&store, "r2").starts_with("REVOKED"));
    load(&store, "r1").expect("another replica");

    issue(&store, &names(&["r2"]), LEAF_DAYS, true).expect("back");
    load(&store, "r2").expect("a later one");
    let back = (
        read(&store.cert("r2")).expect("a file"),
        read(&store.key("r2")).expect("a file"),
    );
    fs::write(store.cert("r2"), first.0).expect("written");
    fs::write(store.key("r2"), first.1).expect("written");
    assert!(
        load(&store, "r2")
            .expect_err("revoked")
            .contains("it was revoked")
    );

    // During a rotation the list is signed by both authorities.
    fs::write(store.cert("r2"), back.0).expect("written");
    fs::write(store.key("r2"), back.1).expect("written");
    begin(&store, CA_DAYS).expect("begun");
    load(&store, "r2").expect("not revoked");
    issue(&store, &names(&["r1"]), LEAF_DAYS, true).expect("by the new one");
    revoke(&store, &names(&["r1", "r2"]), Vec::new(), false).expect("revoked");
    for replica in ["r1", "r2"] {
        assert!(
            load(&store, replica)
                .expect_err("revoked")
                .contains("it was revoked")
        );
    }
    finish(&store, false).expect("r2 is revoked, so it does not count");
    assert!(
        load(&store, "r1")
            .expect_err("revoked")
            .contains("it was revoked")
    );
}

#[test]
fn the_newest_one_can_be_spared() {
    let (_dir, store) = with(&["r1"]);
    revoke(&store, &names(&["r1"]), Vec::new(), true).expect("nothing to revoke");
    assert!(store.revocations().expect("a list").is_empty());
    issue(&store, &names(&["r1"]), LEAF_DAYS, true).expect("renewed");
    revoke(&store, &names(&["r1"]), Vec::new(), true).expect("the former one");
    assert_eq!(store.revocations().expect("a list").len(), 1);
    load(&store, "r1").expect("spared");
}

#[test]
fn the_newest_one_is_spared_where_its_files_were_moved_away() {
    let (_dir, store) = with(&["r1", "r2"]);
    issue(&store, &names(&["r1"]), LEAF_DAYS, true).expect("renewed");
    let newest = store.leaf("r1").expect("readable").expect("there").serial;
    for file in [store.cert("r1"), store.key("r1")] {
        fs::remove_file(file).expect("moved to its machine");
    }
    revoke(&store, &names(&["r1"]), Vec::new(), true).expect("the former one");
    let revoked = store.revocations().expect("a list");
    assert_eq!((revoked.len(), revoked.contains_key(&newest)), (1, false));
    revoke(&store, &names(&["r1"]), Vec::new(), false).expect("all of them");
    let revoked = store.revocations().expect("a list");
    assert_eq!((revoked.len(), revoked.contains_key(&newest)), (2, true));
}

#[test]
fn revocation_by_serial_and_without_a_name() {
    let (_dir, store) = with(&["r1"]);
    let serial = store.leaf("r1").expect("readable").expect("there").serial;
    let error = revoke(&store, &names(&["r7"]), Vec::new(), false)
        .expect_err("unknown")
        .to_string();
    assert!(error.contains("--serial"), "{error}");
    fs::remove_file(store.revoked()).expect("removed");
    revoke(&store, &[], Vec::new(), false).expect("an empty list");
    load(&store, "r1").expect("good");
    revoke(&store, &[], vec![serial.clone()], false).expect("revoked");
    assert!(load(&store, "r1").is_err());
    let since = store.revocations().expect("a list")[&serial];
    assert!(since <= SystemTime::now());
    // A damaged list is never taken for an empty one.
    fs::write(store.revoked(), "damaged").expect("written");
    assert!(revoke(&store, &[], Vec::new(), false).is_err());
    assert_eq!(read(&store.revoked()).expect("a file"), "damaged");
}

#[test]
fn the_list_of_another_authority_is_not_taken_for_ours() {
    let (_dir, ours) = with(&["r1"]);
    let (_other, others) = with(&["r1"]);
    revoke(&ours, &names(&["r1"]), Vec::new(), false).expect("revoked");
    fs::copy(others.revoked(), ours.revoked()).expect("copied");
    let is_refused = |error: String| {
        assert!(
            error.contains("no list in it is of an authority"),
            "{error}"
        );
    };
    is_refused(load(&ours, "r1").expect_err("refused"));
    is_refused(show(&ours, &[], false).expect_err("refused").to_string());
    // Writing it anew would let r1 in again.
    let again = revoke(&ours, &names(&["r1"]), Vec::new(), false);
    is_refused(again.expect_err("refused").to_string());
}

#[test]
fn what_is_issued_at_once_is_all_in_the_list() {
    let (_dir, store) = with(&[]);
    let replicas: Vec<String> = (1..=8).map(|number| format!("r{number}")).collect();
    std::thread::scope(|scope| {
        let issuing = replicas.iter().map(|replica| {
            let store = &store;
            scope.spawn(move || issue(store, std::slice::from_ref(replica), LEAF_DAYS, false))
        });
        for issued in issuing.collect::<Vec<_>>() {
            issued.join().expect("no panic").expect("a certificate");
        }
    });
    let issued = store.issued().expect("a list");
    let mut listed: Vec<String> = issued.into_iter().map(|one| one.replica).collect();
    listed.sort();
    assert_eq!(listed, replicas);
}
