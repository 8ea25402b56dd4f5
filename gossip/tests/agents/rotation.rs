//! Certificates, authorities and revocations replaced under running agents, on loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use crate::running::{LIMIT, Running, live};
use grapevine_gossip::config::Facts;
use grapevine_gossip::identity::{self, Authority, Identity, Leaf, Term};
use grapevine_gossip::{Agent, Metrics};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, ConnectionError, Endpoint};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// An agent of which it is noted how many others it saw.
struct Watched {
    running: Running,
    /// The fewest live replicas that it saw since it saw all of them.
    fewest: Arc<AtomicUsize>,
    watcher: Option<AbortHandle>,
}

impl Deref for Watched {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

impl Watched {
    async fn start(identity: Identity, seeds: &[String]) -> Self {
        Self {
            running: Running::start(identity, seeds).await,
            fewest: Arc::new(AtomicUsize::new(usize::MAX)),
            watcher: None,
        }
    }

    /// Notes from now on whether anybody is missed, be it for a moment.
    fn miss_nobody(&mut self) {
        let (mut views, fewest) = (self.agent.watch(), Arc::clone(&self.fewest));
        fewest.store(self.live(), Ordering::Relaxed);
        let watcher = tokio::spawn(async move {
            while views.changed().await.is_ok() {
                fewest.fetch_min(live(&views.borrow_and_update()), Ordering::Relaxed);
            }
        });
        self.watcher = Some(watcher.abort_handle());
    }

    fn fewest(&self) -> usize {
        self.fewest.load(Ordering::Relaxed)
    }

    fn take(&self, identity: Identity) {
        let is_news = self.agent.replace_identity(identity).expect("its own name");
        assert!(is_news, "{} had it already", self.name());
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}

fn leaf(authority: &Authority, replica: &str) -> Leaf {
    let issued = identity::issue(&authority.cert_pem, &authority.key_pem, "demo", replica);
    issued.expect("a leaf")
}

fn trusting(roots: &[&Authority], replica: &str, leaf: &Leaf) -> Identity {
    let ca: String = roots.iter().map(|root| root.cert_pem.as_str()).collect();
    Identity::from_pem("demo", replica, &ca, &leaf.cert_pem, &leaf.key_pem).expect("an identity")
}

fn list(authority: &Authority, revoked: &[&Leaf]) -> String {
    let entry = |leaf: &&Leaf| {
        let serial = identity::leaf_of(&leaf.cert_pem).expect("a leaf").serial;
        (serial, SystemTime::now())
    };
    let revoked: BTreeMap<_, _> = revoked.iter().map(entry).collect();
    identity::revocations(&authority.cert_pem, &authority.key_pem, &revoked, 1).expect("a list")
}

/// Agents with these certificates that all see each other.
async fn cluster(authority: &Authority, leaves: &[(&str, &Leaf)]) -> Vec<Watched> {
    let mut all: Vec<Watched> = Vec::new();
    for (name, leaf) in leaves {
        let seeds: Vec<_> = all.iter().map(|known| known.seed()).collect();
        all.push(Watched::start(trusting(&[authority], name, leaf), &seeds).await);
    }
    for replica in &mut all {
        replica.sees_live(leaves.len()).await;
    }
    for replica in &mut all {
        replica.miss_nobody();
    }
    all
}

const RENEWED: &str = "gossip_connections_replaced_total{reason=\"renewed\"}";
const REVOKED: &str = "gossip_connections_replaced_total{reason=\"revoked\"}";
const REFUSED: &str = "gossip_handshakes_total{reason=\"refused\"}";
const FOREIGN: &str = "gossip_handshakes_total{reason=\"foreign_certificate\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_is_replaced_and_nobody_is_missed() {
    let (old, new) = (
        identity::create("demo").expect("old"),
        identity::create("demo").expect("new"),
    );
    let names = ["a", "b", "c"];
    let former: Vec<Leaf> = names.iter().map(|name| leaf(&old, name)).collect();
    let pairs: Vec<_> = names.into_iter().zip(&former).collect();
    let all = cluster(&old, &pairs).await;

    // 1. Both authorities are trusted.
    for (replica, (name, leaf)) in all.iter().zip(&pairs) {
        replica.take(trusting(&[&new, &old], name, leaf));
    }
    for replica in &all {
        replica.counts(RENEWED, 2).await;
    }
    // 2. Replica by replica: a certificate of the new one. Its peers follow by themselves, so that
    // in the end both connections of a pair rest on the new certificates.
    let leaves: Vec<Leaf> = names.iter().map(|name| leaf(&new, name)).collect();
    for (number, replica) in all.iter().enumerate() {
        let before: Vec<u64> = all.iter().map(|other| other.count(RENEWED)).collect();
        replica.take(trusting(&[&new, &old], names[number], &leaves[number]));
        for (other, before) in all.iter().zip(before) {
            let its_own = if other.name() == replica.name() { 2 } else { 1 };
            other.counts(RENEWED, before + its_own).await;
        }
    }
    // 3. The old one is dropped.
    for (number, replica) in all.iter().enumerate() {
        replica.take(trusting(&[&new], names[number], &leaves[number]));
    }
    for replica in &all {
        replica.counts(RENEWED, 2 + 2 + 2 + 2).await;
    }

    // A peer with a certificate of the old authority is refused, by both sides' rules.
    let late = leaf(&old, "d");
    let late = Watched::start(trusting(&[&new, &old], "d", &late), &[all[0].seed()]).await;
    all[0].counts(REFUSED, 1).await;
    assert_eq!(late.live(), 1);
    drop(late);
    let fresh = leaf(&new, "e");
    let fresh = Watched::start(trusting(&[&new], "e", &fresh), &[all[0].seed()]).await;
    fresh.sees_live(4).await;
    for replica in &all {
        assert_eq!(
            replica.count("gossip_connections_replaced_total{reason=\"foreign\"}"),
            0
        );
        assert_eq!(replica.fewest(), 3, "{} missed somebody", replica.name());
    }
}

/// The steps in the wrong order: a certificate of an authority that the others do not know yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_connections_serve_on_while_they_cannot_be_replaced() {
    let (old, new) = (
        identity::create("demo").expect("old"),
        identity::create("demo").expect("new"),
    );
    let (of_a, of_b) = (leaf(&old, "a"), leaf(&old, "b"));
    let all = cluster(&old, &[("a", &of_a), ("b", &of_b)]).await;
    let early = leaf(&new, "a");
    all[0].take(trusting(&[&new, &old], "a", &early));
    all[0]
        .counts(
            "gossip_handshakes_total{reason=\"own_certificate_refused\"}",
            1,
        )
        .await;
    all[1].counts(REFUSED, 1).await;
    assert_eq!(all[0].count(RENEWED), 0);
    // Longer than a connection of nobody would live.
    sleep(Duration::from_secs(6)).await;
    for replica in &all {
        assert_eq!(replica.fewest(), 2, "{}", replica.name());
    }
    // The bundle comes late: they go on as if it had come in time.
    all[1].take(trusting(&[&new, &old], "b", &of_b));
    for replica in &all {
        replica.counts(RENEWED, 1).await;
        assert_eq!(replica.fewest(), 2, "{}", replica.name());
    }
}

/// A replica that got no certificate of the new authority in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_left_behind_is_cut_off_until_it_follows() {
    let (old, new) = (
        identity::create("demo").expect("old"),
        identity::create("demo").expect("new"),
    );
    let (of_a, of_b) = (leaf(&old, "a"), leaf(&old, "b"));
    let all = cluster(&old, &[("a", &of_a), ("b", &of_b)]).await;
    let next = leaf(&new, "a");
    all[1].take(trusting(&[&new, &old], "b", &of_b));
    all[0].take(trusting(&[&new, &old], "a", &next));
    for replica in &all {
        replica.counts(RENEWED, 1).await;
    }
    all[0].take(trusting(&[&new], "a", &next));
    all[0].sees_live(1).await;
    assert!(all[0].count("gossip_connections_replaced_total{reason=\"foreign\"}") >= 1);
    all[1].take(trusting(&[&new], "b", &leaf(&new, "b")));
    for replica in &all {
        replica.sees_live(2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_revoked_is_cut_off_and_comes_back_with_another_certificate() {
    let authority = identity::create("demo").expect("an authority");
    let (of_a, of_b, stolen) = (
        leaf(&authority, "a"),
        leaf(&authority, "b"),
        leaf(&authority, "c"),
    );
    let all = cluster(&authority, &[("a", &of_a), ("b", &of_b), ("c", &stolen)]).await;
    let crl = list(&authority, &[&stolen]);
    let warned = |name, leaf| {
        trusting(&[&authority], name, leaf)
            .revoking(&crl)
            .expect("a list")
    };

    let begun = Instant::now();
    all[0].take(warned("a", &of_a));
    assert!(all[0].count(REVOKED) >= 1, "at once");
    all[0].sees_live(2).await;
    println!(
        "gone from the view {:?} after the list was taken",
        begun.elapsed()
    );
    // Although b knows nothing yet, and names c to a.
    all[0].counts(REFUSED, 1).await;
    all[2]
        .counts(
            "gossip_handshakes_total{reason=\"own_certificate_refused\"}",
            1,
        )
        .await;
    assert_eq!(all[0].live(), 2);
    all[1].take(warned("b", &of_b));
    all[1].sees_live(2).await;
    all[2].sees_live(1).await;
    // The two others have never missed each other.
    assert_eq!((all[0].fewest(), all[1].fewest()), (2, 2));
    assert!(
        all[0]
            .agent
            .replace_identity(warned("a", &of_a))
            .is_ok_and(|is_news| !is_news)
    );

    // Back under the same name, without a restart anywhere.
    let reissued = leaf(&authority, "c");
    all[2].take(warned("c", &reissued));
    for replica in &all {
        replica.sees_live(3).await;
    }
}

/// The list of the new authority alone is copied before the file of authorities that has no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_one_of_two_authorities_lifts_nothing_of_the_other() {
    let (old, new) = (
        identity::create("demo").expect("old"),
        identity::create("demo").expect("new"),
    );
    let (of_a, stolen) = (leaf(&new, "a"), leaf(&old, "c"));
    let with = |lists: &str| {
        let identity = trusting(&[&new, &old], "a", &of_a);
        identity.revoking(lists).expect("lists")
    };
    let (of_new, of_old) = (list(&new, &[]), list(&old, &[&stolen]));
    let replica = Watched::start(with(&format!("{of_new}{of_old}")), &[]).await;
    let is_news = replica.agent.replace_identity(with(&of_new));
    assert!(is_news.is_ok_and(|is_news| !is_news));
    let refused = Watched::start(trusting(&[&new, &old], "c", &stolen), &[replica.seed()]).await;
    replica.counts(REFUSED, 1).await;
    assert_eq!(refused.live(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_replicas_identity_changes_nothing() {
    let authority = identity::create("demo").expect("an authority");
    let (of_a, of_b) = (leaf(&authority, "a"), leaf(&authority, "b"));
    let all = cluster(&authority, &[("a", &of_a), ("b", &of_b)]).await;
    let error = all[0]
        .agent
        .replace_identity(trusting(&[&authority], "b", &of_b));
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("by a restart only"), "{error}");
    let solo = Agent::solo("demo", "a", &Facts::default(), Metrics::default()).expect("starts");
    assert!(
        solo.replace_identity(trusting(&[&authority], "a", &of_a))
            .is_err()
    );
    let joiner = leaf(&authority, "c");
    let joiner = Watched::start(trusting(&[&authority], "c", &joiner), &[all[0].seed()]).await;
    joiner.sees_live(3).await;
    assert_eq!(all[0].count(RENEWED), 0);
}

/// Open connections outlive a certificate; new ones are refused, until there is another certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_certificate_ends_no_connection_and_begins_none() {
    let authority = identity::create("demo").expect("an authority");
    let ends = SystemTime::now() + Duration::from_secs(12);
    let term = Term {
        until: ends,
        ..Term::days(1)
    };
    let short = |name| {
        let issued =
            identity::issue_for(&authority.cert_pem, &authority.key_pem, "demo", name, term);
        issued.expect("a leaf")
    };
    let (of_a, of_b, of_c) = (leaf(&authority, "a"), short("b"), short("c"));
    let all = cluster(&authority, &[("a", &of_a), ("b", &of_b)]).await;
    let late = trusting(&[&authority], "c", &of_c);
    let left = ends.duration_since(SystemTime::now()).unwrap_or_default();
    sleep(left + Duration::from_secs(2)).await;
    let late = Watched::start(late, &[all[0].seed()]).await;
    all[0].counts(REFUSED, 1).await;
    assert_eq!(late.live(), 1);
    assert_eq!((all[0].fewest(), all[1].fewest()), (2, 2));
    // Renewed in place, without a restart; b's too, which can begin no connection to c otherwise.
    late.take(trusting(&[&authority], "c", &leaf(&authority, "c")));
    late.sees_live(2).await;
    all[1].take(trusting(&[&authority], "b", &leaf(&authority, "b")));
    late.sees_live(3).await;
}

/// S04: a session of before the revocation gets nobody in, since there are none: no tickets, no early
/// data, a certificate each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_never_resumed() {
    let authority = identity::create("demo").expect("an authority");
    let (of_a, stolen) = (leaf(&authority, "a"), leaf(&authority, "z"));
    let a = Watched::start(trusting(&[&authority], "a", &of_a), &[]).await;
    let address = a.address();
    let thief = thief(&authority, &stolen);
    let first = connect(&thief, address).await.expect("a good certificate");
    // Tickets would have come by now: the other side ends the connection, for want of a HELLO.
    timeout(LIMIT, first.closed()).await.expect("it ends");
    let again = thief.connect(address, "a.demo").expect("dials");
    assert!(
        again.into_0rtt().is_err(),
        "early data, with a session of before"
    );

    let crl = list(&authority, &[&stolen]);
    a.take(
        trusting(&[&authority], "a", &of_a)
            .revoking(&crl)
            .expect("a list"),
    );
    // The refusal of a client's certificate comes after its own side is content.
    let error = match connect(&thief, address).await {
        Ok(connection) => timeout(LIMIT, connection.closed()).await.expect("it ends"),
        Err(error) => error,
    };
    let ConnectionError::ConnectionClosed(closed) = &error else {
        panic!("{error}");
    };
    assert_eq!(
        u64::from(closed.error_code),
        0x100 + 44,
        "certificate_revoked: {error}"
    );
    assert_eq!(a.count(FOREIGN), 0);
}

async fn connect(from: &Endpoint, to: SocketAddr) -> Result<Connection, ConnectionError> {
    let connecting = from.connect(to, "a.demo").expect("dials");
    timeout(LIMIT, connecting).await.expect("in time")
}

/// A client that keeps sessions and sends early data whenever it is allowed to.
fn thief(authority: &Authority, leaf: &Leaf) -> Endpoint {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).expect("pem");
    let mut roots = RootCertStore::empty();
    roots.add(der(&authority.cert_pem)).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_bytes()).expect("a key");
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![der(&leaf.cert_pem)], key)
        .expect("a pair");
    tls.alpn_protocols = vec![b"grapevine/1".to_vec()];
    tls.enable_early_data = true;
    let quic = QuicClientConfig::try_from(tls).expect("a configuration");
    let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("an endpoint");
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(quic)));
    endpoint
}
