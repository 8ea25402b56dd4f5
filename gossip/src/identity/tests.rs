//! Identities, revocation and terms, without a network.

use std::time::Duration;

use time::OffsetDateTime;

use super::*;

fn pair(cluster: &str, replica: &str) -> (Authority, Leaf) {
    let authority = create(cluster).expect("authority");
    let leaf = issue(&authority.cert_pem, &authority.key_pem, cluster, replica).expect("leaf");
    (authority, leaf)
}

#[test]
fn a_leaf_is_an_identity_for_ninety_days() {
    let (authority, leaf) = pair("demo", "r1");
    let identity = Identity::from_pem(
        "demo",
        "r1",
        &authority.cert_pem,
        &leaf.cert_pem,
        &leaf.key_pem,
    )
    .expect("identity");
    let left = identity
        .expires()
        .duration_since(SystemTime::now())
        .expect("future")
        .as_secs();
    assert!((89 * 86_400..=90 * 86_400).contains(&left), "{left}");
    assert!(!format!("{identity:?}").contains("key"));
}

#[test]
fn what_a_peer_would_refuse_is_refused_at_home() {
    let (authority, leaf) = pair("demo", "r1");
    let (other, stranger) = pair("demo", "r1");
    let make = |cluster, replica, ca: &str, cert: &str, key: &str| {
        Identity::from_pem(cluster, replica, ca, cert, key)
            .expect_err("refused")
            .to_string()
    };
    let ca = &authority.cert_pem;
    let others = make("demo", "r2", ca, &leaf.cert_pem, &leaf.key_pem);
    assert!(
        others.contains("for replica `r2`") && others.contains("it is that of replica `r1`"),
        "{others}"
    );
    let elsewhere = make("prod", "r1", ca, &leaf.cert_pem, &leaf.key_pem);
    assert!(
        elsewhere.contains("of cluster `prod`") && elsewhere.contains("it is for r1.demo, demo;"),
        "{elsewhere}"
    );
    assert!(
        make("demo", "r1", &other.cert_pem, &leaf.cert_pem, &leaf.key_pem)
            .contains("no authority in the CA file has signed")
    );
    assert!(make("demo", "r1", ca, &leaf.cert_pem, &stranger.key_pem).contains("together"));
    assert!(make("demo", "r1", ca, "no pem", &leaf.key_pem).contains("no certificate"));
    assert!(make("demo", "r1", ca, &leaf.cert_pem, "no pem").contains("key file"));
    assert!(make("De mo", "r1", ca, &leaf.cert_pem, &leaf.key_pem).contains("DNS"));
}

#[test]
fn a_missing_file_is_named_with_the_command_that_makes_it() {
    let missing = PathBuf::from("/nonexistent/ca.pem");
    let files = PemFiles {
        ca: missing.clone(),
        cert: missing.clone(),
        key: missing,
        revoked: None,
    };
    let error = Identity::load("demo", "r1", &files)
        .expect_err("missing")
        .to_string();
    assert!(
        error.contains("/nonexistent/ca.pem") && error.contains("grapevine ca init"),
        "{error}"
    );
}

#[test]
fn a_certificate_proves_its_own_names_only() {
    let (_, leaf) = pair("demo", "r1");
    let leaf = certificates("leaf", &leaf.cert_pem).expect("pem");
    let proves = |replica, cluster| certificate_names(&leaf[0], replica, cluster);
    assert!(proves("r1", "demo"));
    assert!(!proves("r2", "demo"));
    assert!(!proves("r1", "prod"));
    assert!(!proves("not a label", "demo"));
    let named = |cluster| replica_named(&leaf[0], cluster).map(|id| id.to_string());
    assert_eq!(named("demo").as_deref(), Some("r1"));
    for other in ["prod", "emo", "r1.demo", ""] {
        assert_eq!(named(other), None, "{other}");
    }
}

fn of(authority: &Authority, leaf: &Leaf) -> Result<Identity, IdentityError> {
    Identity::from_pem(
        "demo",
        "r1",
        &authority.cert_pem,
        &leaf.cert_pem,
        &leaf.key_pem,
    )
}

fn at(seconds_from_now: i64) -> UnixTime {
    let now = UnixTime::now().as_secs();
    let then = now.saturating_add_signed(seconds_from_now);
    UnixTime::since_unix_epoch(Duration::from_secs(then))
}

/// X03: a clock that is minutes behind accepts a certificate that was made just now; one that is
/// further behind reports it.
#[test]
fn clocks_may_be_minutes_behind_and_more_is_said() {
    let (authority, leaf) = pair("demo", "r1");
    let identity = of(&authority, &leaf).expect("identity");
    identity.check(at(-5 * 60)).expect("five minutes behind");
    identity.check(at(-9 * 60)).expect("nine minutes behind");
    let error = identity
        .check(at(-11 * 60))
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("set the clock") && error.contains("it begins on"),
        "{error}"
    );
    let error = identity
        .check(at(91 * 86_400))
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("it expired on") && error.contains("grapevine ca issue r1 --force"),
        "{error}"
    );
}

#[test]
fn no_leaf_outlives_its_authority() {
    let authority = create_for("demo", Term::days(30)).expect("authority");
    let leaf = issue(&authority.cert_pem, &authority.key_pem, "demo", "r1").expect("leaf");
    let identity = of(&authority, &leaf).expect("identity");
    assert_eq!(identity.expires(), identity.authority_expires());
    let found = leaf_of(&leaf.cert_pem).expect("facts");
    assert_eq!(
        (found.name.as_str(), found.is_authority),
        ("r1.demo", false)
    );
    assert_eq!(found.until, identity.expires());
}

#[test]
fn a_bundle_of_two_authorities_signs_with_the_key_at_hand() {
    let (old, new) = (create("demo").expect("old"), create("demo").expect("new"));
    let bundle = format!("{}{}", new.cert_pem, old.cert_pem);
    assert_eq!(cluster_of(&bundle).expect("a cluster"), "demo");
    for authority in [&old, &new] {
        let leaf = issue(&bundle, &authority.key_pem, "demo", "r1").expect("leaf");
        of(authority, &leaf).expect("signed by the one with this key");
        let both = Authority {
            cert_pem: bundle.clone(),
            key_pem: String::new(),
        };
        let identity = of(&both, &leaf).expect("trusted beside the other");
        let signer = leaf_of(&authority.cert_pem).expect("facts");
        assert_eq!(identity.authority_expires(), signer.until);
    }
    let stranger = create("demo").expect("stranger");
    let error = issue(&bundle, &stranger.key_pem, "demo", "r1")
        .err()
        .expect("refused");
    assert!(error.to_string().contains("no authority"), "{error}");
}

fn list(authority: &Authority, leaves: &[&Leaf]) -> String {
    let serial = |leaf: &&Leaf| leaf_of(&leaf.cert_pem).expect("facts").serial;
    let since = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let revoked = leaves.iter().map(|leaf| (serial(leaf), since)).collect();
    revocations(&authority.cert_pem, &authority.key_pem, &revoked, 7).expect("a list")
}

#[test]
fn a_revoked_certificate_proves_nothing_any_more() {
    let (authority, leaf) = pair("demo", "r1");
    let other = issue(&authority.cert_pem, &authority.key_pem, "demo", "r1").expect("leaf");
    let crl = list(&authority, &[&other]);
    let revoked = revoked_in(&authority.cert_pem, &crl).expect("a list");
    assert_eq!(
        revoked.keys().collect::<Vec<_>>(),
        [&leaf_of(&other.cert_pem).expect("facts").serial]
    );

    let identity = of(&authority, &leaf).expect("identity");
    let chain = |leaf: &Leaf| certificates("leaf", &leaf.cert_pem).expect("pem");
    assert_eq!(
        identity.judge(&chain(&other)),
        Standing::Good,
        "no list yet"
    );
    let warned = identity.clone().revoking(&crl).expect("not about itself");
    assert!(!warned.is_same(&identity));
    assert_eq!(warned.judge(&chain(&leaf)), Standing::Good);
    assert_eq!(warned.judge(&chain(&other)), Standing::Revoked);
    assert_eq!(
        warned.judge(&chain(&pair("demo", "r1").1)),
        Standing::Foreign
    );
    assert_eq!(warned.judge(&[]), Standing::Foreign);

    let error = of(&authority, &other).and_then(|identity| identity.revoking(&crl));
    let error = error.expect_err("its own").to_string();
    assert!(error.contains("it was revoked"), "{error}");
    let nobody = list(&authority, &[]);
    let none = revoked_in(&authority.cert_pem, &nobody).expect("a list");
    assert!(none.is_empty());
    identity.revoking(&nobody).expect("a list of nobody");
}

/// Expiry ends no open connection, so that a cluster does not fall apart within one minute.
#[test]
fn an_open_connection_outlives_its_certificate() {
    let authority = create("demo").expect("authority");
    let now = SystemTime::now();
    let term = Term {
        from: now - Duration::from_secs(7200),
        until: now - Duration::from_secs(3600),
    };
    let past =
        issue_for(&authority.cert_pem, &authority.key_pem, "demo", "r2", term).expect("leaf");
    let leaf = issue(&authority.cert_pem, &authority.key_pem, "demo", "r1").expect("leaf");
    let identity = of(&authority, &leaf).expect("identity");
    let chain = certificates("leaf", &past.cert_pem).expect("pem");
    assert_eq!(identity.judge(&chain), Standing::Good);
    let warned = identity
        .revoking(&list(&authority, &[&past]))
        .expect("a list");
    assert_eq!(warned.judge(&chain), Standing::Revoked, "expired or not");
}

#[test]
fn lists_that_cannot_be_used_are_refused() {
    let (authority, leaf) = pair("demo", "r1");
    let identity = of(&authority, &leaf).expect("identity");
    let refused = |lists: &str| {
        let refused = identity.clone().revoking(lists);
        refused.expect_err("refused").to_string()
    };
    assert!(refused("").contains("grapevine ca revoke"));
    assert!(refused(&leaf.cert_pem).contains("no list"));
    // A list that names our authority and is signed by somebody else.
    let (stranger, _) = pair("demo", "r1");
    let forged = forge(&authority, &stranger, &leaf);
    assert!(
        refused(&forged).contains("not signed by"),
        "{}",
        refused(&forged)
    );
    // That of an authority which is not trusted, in place of ours: whoever was revoked would be in again.
    let foreign = list(&stranger, &[&leaf]);
    let error = refused(&foreign);
    assert!(
        error.contains("no list in it is of an authority"),
        "{error}"
    );
    for forged in [&foreign, &forged] {
        revoked_in(&authority.cert_pem, forged).expect_err("refused");
    }
    // Beside ours it concerns nobody, as that of an authority which is not trusted any more.
    let both = format!("{foreign}{}", list(&authority, &[]));
    let warned = identity.clone().revoking(&both).expect("two lists");
    let chain = certificates("leaf", &leaf.cert_pem).expect("pem");
    assert_eq!(warned.judge(&chain), Standing::Good);
}

/// Its list would be blamed for what is wrong with the authority.
#[test]
fn another_authority_is_told_before_its_lists() {
    let (authority, leaf) = pair("demo", "r1");
    let (stranger, _) = pair("demo", "r1");
    let lists = list(&authority, &[]);
    for revoked in [None, Some(lists.as_str())] {
        let ca = &stranger.cert_pem;
        let of = Identity::assemble("demo", "r1", ca, &leaf.cert_pem, &leaf.key_pem, revoked);
        let error = of.expect_err("another authority");
        assert!(matches!(error, IdentityError::Foreign { .. }), "{error}");
    }
    let foreign = list(&stranger, &[]);
    let refused = of(&authority, &leaf).and_then(|identity| identity.revoking(&foreign));
    let refused = refused.expect_err("another list").to_string();
    assert!(!refused.contains("PEM"), "{refused}");
}

/// As when the files of the end of a rotation are copied one by one.
#[test]
fn a_list_that_is_missing_stays_as_long_as_its_authority_is_trusted() {
    let (old, new) = (create("demo").expect("old"), create("demo").expect("new"));
    let bundle = Authority {
        cert_pem: format!("{}{}", new.cert_pem, old.cert_pem),
        key_pem: String::new(),
    };
    let by = |authority: &Authority| {
        issue(&authority.cert_pem, &authority.key_pem, "demo", "r1").expect("leaf")
    };
    let (stolen, own) = (by(&old), by(&new));
    let stolen_chain = certificates("leaf", &stolen.cert_pem).expect("pem");
    let (of_old, of_new) = (list(&old, &[&stolen]), list(&new, &[]));
    let with = |roots: &Authority, lists: &str| {
        let identity = of(roots, &own).expect("identity");
        identity.revoking(lists).expect("lists")
    };
    let former = with(&bundle, &format!("{of_new}{of_old}"));
    assert_eq!(former.judge(&stolen_chain), Standing::Revoked);

    let (kept, count) = with(&bundle, &of_new).with_lists_of(&former).expect("good");
    assert_eq!((kept.judge(&stolen_chain), count), (Standing::Revoked, 1));
    assert!(kept.is_same(&former), "read again it is no news");
    let (after, count) = with(&new, &of_new).with_lists_of(&former).expect("good");
    assert_eq!((after.judge(&stolen_chain), count), (Standing::Foreign, 0));
    // A later list of the same authority counts alone.
    let lifted = with(&bundle, &format!("{of_new}{}", list(&old, &[])));
    let (lifted, count) = lifted.with_lists_of(&former).expect("good");
    assert_eq!((lifted.judge(&stolen_chain), count), (Standing::Good, 0));
    // The own certificate may be on the former list.
    let back = of(&bundle, &stolen).expect("identity");
    let error = back.with_lists_of(&former).expect_err("refused");
    assert!(error.to_string().contains("it was revoked"), "{error}");
}

/// A list under the name of `named`, signed by `signer`.
fn forge(named: &Authority, signer: &Authority, leaf: &Leaf) -> String {
    let der = |pem: &str| certificates("ca", pem).expect("pem").swap_remove(0);
    let key = rcgen::KeyPair::from_pem(&signer.key_pem).expect("a key");
    let issuer = rcgen::Issuer::from_ca_cert_der(&der(&named.cert_pem), key).expect("an issuer");
    let now = OffsetDateTime::now_utc();
    let list = rcgen::CertificateRevocationListParams {
        this_update: now,
        next_update: now + Duration::from_secs(60),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs: vec![rcgen::RevokedCertParams {
            serial_number: rcgen::SerialNumber::from_slice(
                leaf_of(&leaf.cert_pem).expect("facts").serial.bytes(),
            ),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    list.signed_by(&issuer)
        .and_then(|list| list.pem())
        .expect("signed")
}
