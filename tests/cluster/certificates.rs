//! Certificates that are renewed, replaced and revoked by replacing files, under load (S13).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use grapevine_gossip::identity::{self, Term};
use grapevine_testbed::fake_worker::FakeWorker;
use grapevine_tests::admin::Admin;
use grapevine_tests::chat::{self, Ending, MODEL, streamed};
use grapevine_tests::cluster::{Cluster, Identity, Plan, Replica, ca};
use grapevine_tests::invariants;
use grapevine_tests::process;
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Replicas that each read their own copies of the authority's files.
struct Papers {
    cluster: Cluster,
    authority: PathBuf,
    /// Copies made so far.
    versions: usize,
}

impl Papers {
    /// An authority, its list of revocations in every replica's configuration, and no replica yet.
    async fn new(plan: Plan) -> Self {
        let cluster = plan.set("tls.refresh", "\"100ms\"").found().await;
        let authority = cluster.dir().join("ca");
        let config = cluster.dir().join("grapevine.toml");
        let shared = cluster.dir().join("crl.pem");
        let text = fs::read_to_string(&config).expect("a configuration");
        fs::write(&config, format!("gossip.revoked = {shared:?}\n{text}")).expect("written");
        let papers = Self {
            cluster,
            authority,
            versions: 0,
        };
        papers.spread_revocations();
        papers
    }

    async fn with(plan: Plan, names: &[&str]) -> Self {
        let mut papers = Self::new(plan).await;
        for name in names {
            ca(&["issue", name], &papers.authority).await;
            papers.join(name).await;
        }
        papers.cluster.settled().await;
        papers
    }

    async fn join(&mut self, name: &str) {
        self.deliver(name);
        let current = self.cluster.dir().join(name).join("current");
        let identity = Identity {
            ca: current.join("ca.pem"),
            cert: current.join("cert.pem"),
            key: current.join("key.pem"),
            cluster: "grapevine".to_owned(),
        };
        let seeds = self
            .cluster
            .running()
            .map(Replica::gossip_address)
            .collect();
        self.cluster.join_as(name, identity, seeds).await;
    }

    /// Gives a replica the files that the authority has for it now: all at once, as Kubernetes does.
    fn deliver(&mut self, name: &str) {
        let ca = self.authority.join("ca.pem");
        let cert = self.authority.join(format!("{name}.pem"));
        let key = self.authority.join(format!("{name}.key"));
        self.deliver_files(name, [&ca, &cert, &key]);
    }

    fn deliver_files(&mut self, name: &str, files: [&Path; 3]) {
        self.versions += 1;
        let home = self.cluster.dir().join(name);
        let version = home.join(self.versions.to_string());
        fs::create_dir_all(&version).expect("a directory");
        for (from, to) in files.into_iter().zip(["ca.pem", "cert.pem", "key.pem"]) {
            fs::copy(from, version.join(to)).expect("a copy");
        }
        let beside = home.join("next");
        symlink(&version, &beside).expect("a link");
        fs::rename(&beside, home.join("current")).expect("renamed");
    }

    /// Gives the list of revocations to all replicas.
    fn spread_revocations(&self) {
        self.spread_revocations_of(&self.authority);
    }

    fn spread_revocations_of(&self, authority: &Path) {
        let beside = self.cluster.dir().join("crl.pem.tmp");
        fs::copy(authority.join("crl.pem"), &beside).expect("a copy");
        fs::rename(&beside, self.cluster.dir().join("crl.pem")).expect("renamed");
    }

    /// Delivers the files, and waits until the replica has loaded them.
    async fn renew(&mut self, name: &str) {
        let admin = self.replica(name).admin();
        let before = reloads(admin, "loaded").await;
        self.deliver(name);
        reloaded(admin, "loaded", before + 1.0).await;
    }

    fn replica(&self, name: &str) -> &Replica {
        let mut replicas = self.cluster.replicas.iter();
        replicas
            .find(|replica| replica.name == name)
            .expect("it joined")
    }

    async fn logs(&self, name: &str, part: &str) {
        eventually(LIMIT, part, async || {
            let log = self.replica(name).log();
            log.contains(part).then_some(()).ok_or(log)
        })
        .await;
    }

    async fn sees(&self, name: &str, live: usize) -> Duration {
        let admin = self.replica(name).admin();
        let what = format!("{name} sees {live} live replicas");
        let look = async || {
            let view = admin.view().await;
            so(view.live == live, || format!("{view:?}"))
        };
        eventually(LIMIT, &what, look).await.1
    }
}

async fn reloads(admin: Admin, result: &str) -> f64 {
    let metrics = admin.metrics().await;
    let series = metrics.series("grapevine_tls_reloads_total");
    let ours = series
        .iter()
        .filter(|(labels, _)| labels.contains("gossip") && labels.contains(result));
    ours.map(|(_, value)| value).sum()
}

async fn reloaded(admin: Admin, result: &str, at_least: f64) {
    eventually(LIMIT, "files are read again", async || {
        let count = reloads(admin, result).await;
        so(count >= at_least, || format!("{count} {result}"))
    })
    .await;
}

async fn replaced(admin: Admin, reason: &str, at_least: f64) {
    eventually(LIMIT, "connections are replaced", async || {
        let count = admin.metrics().await.sum(REPLACED, reason);
        so(count >= at_least, || format!("{count} {reason}"))
    })
    .await;
}

/// Sends requests through some replicas, and checks which replicas they see as alive, until stopped.
struct Watched {
    stop: Arc<AtomicBool>,
    streams: JoinHandle<(usize, Vec<String>)>,
    fewest: Arc<AtomicUsize>,
    looks: JoinHandle<usize>,
}

impl Watched {
    fn start(replicas: &[&Replica]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ports: Vec<_> = replicas.iter().map(|replica| replica.data()).collect();
        let ended = Arc::clone(&stop);
        let streams = tokio::spawn(async move {
            let mut failures = Vec::new();
            let mut count = 0;
            while !ended.load(Ordering::Relaxed) || count < ENOUGH {
                let body = streamed(&format!("request {count}"), 3);
                let outcome = chat::stream(ports[count % ports.len()], &body).await;
                if outcome.ending != Ending::Done {
                    failures.push(format!("{count}: {outcome:?}"));
                }
                count += 1;
                sleep(Duration::from_millis(5)).await;
            }
            (count, failures)
        });
        let admins: Vec<_> = replicas.iter().map(|replica| replica.admin()).collect();
        let names: Vec<_> = replicas
            .iter()
            .map(|replica| replica.name.clone())
            .collect();
        let (ended, fewest) = (Arc::clone(&stop), Arc::new(AtomicUsize::new(usize::MAX)));
        let seen = Arc::clone(&fewest);
        let looks = tokio::spawn(async move {
            let mut looks = 0;
            while !ended.load(Ordering::Relaxed) || looks < ENOUGH {
                for admin in &admins {
                    // Counts watched replicas only: others may be shut out meanwhile.
                    let view = admin.view().await;
                    let live = view
                        .replicas
                        .iter()
                        .filter(|peer| peer.live && names.contains(&peer.id));
                    seen.fetch_min(live.count(), Ordering::Relaxed);
                    looks += 1;
                }
                sleep(Duration::from_millis(20)).await;
            }
            looks
        });
        Self {
            stop,
            streams,
            fewest,
            looks,
        }
    }

    /// No request failed, and the watched replicas always saw each other as alive.
    async fn was_quiet(self, replicas: usize) {
        self.stop.store(true, Ordering::Relaxed);
        let (count, failures) = self.streams.await.expect("no panic");
        let looks = self.looks.await.expect("no panic");
        println!(
            "{count} requests, {} failed; {looks} looks at views",
            failures.len()
        );
        assert!(failures.is_empty(), "{failures:#?}");
        assert_eq!(
            self.fewest.load(Ordering::Relaxed),
            replicas,
            "somebody was missed"
        );
    }
}

async fn workers() -> Vec<FakeWorker> {
    chat::workers(3, &chat::paced(Duration::from_millis(1))).await
}

/// Least number of requests and checks, also on a busy machine.
const ENOUGH: usize = 20;
const NAMES: [&str; 3] = ["r1", "r2", "r3"];
const REPLACED: &str = "grapevine_gossip_connections_replaced_total";

#[tokio::test(flavor = "multi_thread")]
async fn the_authority_and_all_certificates_are_replaced_under_load() {
    let workers = workers().await;
    let mut papers = Papers::with(Plan::default().workers(&workers), &NAMES).await;
    let dir = papers.authority.clone();
    // One more certificate of the old authority, for the end.
    ca(&["issue", "late"], &dir).await;
    let all: Vec<_> = papers.cluster.running().collect();
    let watched = Watched::start(&all);

    ca(&["rotate"], &dir).await;
    for name in NAMES {
        papers.renew(name).await;
    }
    for name in NAMES {
        replaced(papers.replica(name).admin(), "renewed", 2.0).await;
    }
    // Not before every replica has a certificate of the new one.
    let path = dir.to_str().expect("temporary paths are UTF-8");
    let early = process::run(&["ca", "rotate", "--finish", "--dir", path]).await;
    assert_eq!(early.code, Some(1), "{}", early.text);
    assert!(early.text.contains("late r1 r2 r3"), "{}", early.text);
    for name in NAMES {
        ca(&["issue", name, "--force"], &dir).await;
        papers.renew(name).await;
        replaced(papers.replica(name).admin(), "renewed", 4.0).await;
    }
    ca(&["rotate", "--finish", "--force"], &dir).await;
    papers.spread_revocations();
    for name in NAMES {
        let admin = papers.replica(name).admin();
        let before = admin.metrics().await.sum(REPLACED, "renewed");
        papers.renew(name).await;
        replaced(admin, "renewed", before + 2.0).await;
    }

    // The replica that kept its old certificate trusts the new authority, and is not trusted.
    let both = dir.join("both.pem");
    let old_root = papers.cluster.dir().join("r1").join("1").join("ca.pem");
    let roots =
        [dir.join("ca.pem"), old_root].map(|path| fs::read_to_string(path).expect("a root"));
    fs::write(&both, roots.concat()).expect("written");
    papers.deliver_files(
        "late",
        [&both, &dir.join("late.pem"), &dir.join("late.key")],
    );
    let current = papers.cluster.dir().join("late").join("current");
    let identity = Identity {
        ca: current.join("ca.pem"),
        cert: current.join("cert.pem"),
        key: current.join("key.pem"),
        cluster: "grapevine".to_owned(),
    };
    let seeds = vec![papers.replica("r1").gossip_address()];
    papers.cluster.join_as("late", identity, seeds).await;
    papers.logs("late", "it refuses our certificate").await;
    papers
        .logs(
            "r1",
            "refused a connection; a certificate of this cluster's authority is needed",
        )
        .await;
    assert_eq!(papers.replica("late").admin().view().await.live, 1);
    watched.was_quiet(3).await;
    papers.cluster.replicas[3].kill().await;
    papers.cluster.settled().await;
    for name in NAMES {
        let replica = papers.replica(name);
        let metrics = replica.admin().metrics().await;
        assert_eq!(metrics.sum(REPLACED, "foreign"), 0.0);
        assert_eq!(metrics.sum(REPLACED, "revoked"), 0.0);
        assert_eq!(reloads(replica.admin(), "failed").await, 0.0, "{name}");
        assert_eq!(
            metrics.sum("grapevine_gossip_restarts_total", ""),
            0.0,
            "{name}"
        );
    }
    invariants::hold(&papers.cluster, &workers, &[]).await;
}

/// One process goes through the rotation, and the other one begins after it.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_rotation_a_replica_is_no_worker_of_its_cluster() {
    let workers = workers().await;
    let names = ["r1", "r2"];
    let mut papers = Papers::with(Plan::default().workers(&workers), &names).await;
    let dir = papers.authority.clone();
    ca(&["rotate"], &dir).await;
    for name in names {
        papers.renew(name).await;
    }
    for name in names {
        ca(&["issue", name, "--force"], &dir).await;
        papers.renew(name).await;
    }
    ca(&["rotate", "--finish"], &dir).await;
    papers.spread_revocations();
    for name in names {
        papers.renew(name).await;
    }
    papers.cluster.replicas[1].terminate().await;
    papers.cluster.replicas[1].start().await;
    papers.cluster.settled().await;
    // An address of its data port that is not known to be one.
    let url = format!("http://localhost:{}", papers.replica("r2").data().port());
    let admin = papers.replica("r1").admin();
    admin.add_cold("replica", &url, &[MODEL]).await;
    for name in names {
        let admin = papers.replica(name).admin();
        admin.verdict("replica", "unhealthy").await;
    }
    admin.remove("replica").await;
    papers.cluster.settled().await;
    invariants::hold(&papers.cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_replica_is_shut_out_and_comes_back_with_a_new_certificate() {
    let workers = workers().await;
    let mut papers = Papers::with(Plan::default().workers(&workers), &NAMES).await;
    let dir = papers.authority.clone();
    let watched = Watched::start(&[papers.replica("r1"), papers.replica("r2")]);
    ca(&["revoke", "r3"], &dir).await;
    papers.spread_revocations();
    let took = [papers.sees("r1", 2).await, papers.sees("r2", 2).await];
    println!("shut out {took:?} after the list was in place (looked at every 100 ms)");
    papers
        .logs(
            "r1",
            "cut off a replica: its certificate is accepted no more",
        )
        .await;
    papers.logs("r3", "it was revoked").await;
    papers.sees("r3", 1).await;

    // A damaged list and a damaged certificate: nothing changes, and the log reports it.
    fs::write(papers.cluster.dir().join("crl.pem"), "damaged").expect("written");
    for name in ["r1", "r2"] {
        reloaded(papers.replica(name).admin(), "failed", 1.0).await;
        papers
            .logs(
                name,
                "certificates or keys cannot be used; the old ones stay",
            )
            .await;
    }
    // That of another authority, which would let r3 in again.
    let others = tempfile::tempdir().expect("a directory");
    ca(&["init"], others.path()).await;
    papers.spread_revocations_of(others.path());
    for name in ["r1", "r2"] {
        reloaded(papers.replica(name).admin(), "failed", 2.0).await;
        assert_eq!(papers.replica(name).admin().view().await.live, 2, "{name}");
    }
    let junk = papers.cluster.dir().join("junk.pem");
    fs::write(&junk, "junk").expect("written");
    papers.deliver_files("r1", [&junk, &junk, &junk]);
    reloaded(papers.replica("r1").admin(), "failed", 3.0).await;
    assert_eq!(papers.replica("r1").admin().view().await.live, 2);
    papers.spread_revocations();
    papers.renew("r1").await;

    ca(&["issue", "r3", "--force"], &dir).await;
    papers.renew("r3").await;
    for name in NAMES {
        papers.sees(name, 3).await;
    }
    watched.was_quiet(2).await;
    papers.cluster.settled().await;
    let provoked = [
        "cut off a replica: its certificate is accepted no more",
        "certificates or keys cannot be used; the old ones stay",
    ];
    invariants::hold(&papers.cluster, &workers, &provoked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_end_are_announced_and_ended_ones_are_refused_with_what_to_run() {
    let workers = workers().await;
    let mut papers = Papers::new(Plan::default().workers(&workers)).await;
    let dir = papers.authority.clone();
    ca(&["issue", "r1", "--days", "6"], &dir).await;
    ca(&["issue", "r2"], &dir).await;
    papers.join("r1").await;
    papers.join("r2").await;
    papers.cluster.settled().await;
    papers
        .logs(
            "r1",
            "the certificate of this replica ends soon; run `grapevine ca issue r1 --force`",
        )
        .await;
    let metrics = papers.replica("r1").admin().metrics().await;
    let ends = metrics.sum("grapevine_gossip_certificate_expiry_seconds", "");
    let now = SystemTime::UNIX_EPOCH
        .elapsed()
        .expect("after 1970")
        .as_secs_f64();
    assert!((4.9..6.1).contains(&((ends - now) / 86_400.0)), "{ends}");
    let authority_ends = metrics.sum("grapevine_gossip_authority_expiry_seconds", "");
    assert!(authority_ends > ends);

    // A certificate that expires while the replica runs.
    issue_until(&dir, "r1", SystemTime::now() + Duration::from_secs(6));
    papers.renew("r1").await;
    papers
        .logs("r1", "the certificate of this replica has expired")
        .await;
    // Only the right to begin connections ends with it.
    papers.cluster.settled().await;
    ca(&["issue", "r1", "--force"], &dir).await;
    papers.renew("r1").await;
    papers.cluster.settled().await;

    // A certificate that has expired, and one that is not valid yet: no replica starts with either.
    issue_until(&dir, "r3", SystemTime::now() - Duration::from_secs(60));
    for part in ["it expired on", "grapevine ca issue r3 --force"] {
        let refused = refused(&dir, "r3").await;
        assert!(refused.contains(part), "{refused}");
    }
    let later = SystemTime::now() + Duration::from_secs(3600);
    issue_between(&dir, "r3", later, later + Duration::from_secs(3600));
    let refused = refused(&dir, "r3").await;
    assert!(refused.contains("set the clock"), "{refused}");
    let provoked = ["the certificate of this replica"];
    invariants::hold(&papers.cluster, &workers, &provoked).await;
}

fn issue_until(dir: &Path, name: &str, until: SystemTime) {
    issue_between(dir, name, until - Duration::from_secs(3600), until);
}

fn issue_between(dir: &Path, name: &str, from: SystemTime, until: SystemTime) {
    let read = |file: &str| fs::read_to_string(dir.join(file)).expect("a file");
    let term = Term { from, until };
    let leaf = identity::issue_for(&read("ca.pem"), &read("ca.key"), "grapevine", name, term);
    let leaf = leaf.expect("a leaf");
    fs::write(dir.join(format!("{name}.pem")), leaf.cert_pem).expect("written");
    fs::write(dir.join(format!("{name}.key")), leaf.key_pem).expect("written");
}

/// The error of `serve` when it refuses to start.
async fn refused(dir: &Path, name: &str) -> String {
    let file = |name: &str| dir.join(name).display().to_string();
    let (ca, cert, key) = (
        file("ca.pem"),
        file(&format!("{name}.pem")),
        file(&format!("{name}.key")),
    );
    let ports = [
        "--port",
        "0",
        "--admin-port",
        "0",
        "--gossip-port",
        "0",
        "--disable-prometheus",
    ];
    let papers = [
        "--gossip-ca",
        &ca,
        "--gossip-cert",
        &cert,
        "--gossip-key",
        &key,
    ];
    let done =
        process::run(&[&["serve", "--replica-id", name], &ports[..], &papers[..]].concat()).await;
    assert_eq!(done.code.map(|code| code != 0), Some(true), "{}", done.text);
    done.text
}

/// As a rollout brings them that is about to end the last replica which knows the workers.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_starts_with_certificates_that_do_not_fit_is_not_ready_until_they_do() {
    let workers = workers().await;
    let mut papers = Papers::with(Plan::default().workers(&workers), &NAMES[..2]).await;
    let dir = papers.authority.clone();
    let others = tempfile::tempdir().expect("a directory");
    ca(&["init"], others.path()).await;
    ca(&["issue", "r3"], others.path()).await;
    papers.authority = others.path().to_owned();
    // A replica does not start with a list that none of its authorities signed; those that run keep the former one.
    papers.spread_revocations();
    papers.join("r3").await;
    let admin = papers.replica("r3").admin();
    eventually(LIMIT, "nothing else is missing", async || {
        let missing = admin.view().await.missing;
        so(missing == ["certificates"], || format!("{missing:?}"))
    })
    .await;
    papers.logs("r3", "no connection: it").await;
    assert!(!admin.is_ready().await);
    for name in &NAMES[..2] {
        let view = papers.replica(name).admin().view().await;
        assert!(view.ready && view.live == 2, "{name}: {view:?}");
    }
    papers.authority = dir;
    papers.spread_revocations();
    ca(&["issue", "r3"], &papers.authority).await;
    papers.renew("r3").await;
    for name in NAMES {
        papers.sees(name, 3).await;
    }
    papers.cluster.settled().await;
    assert!(admin.is_ready().await);
}
