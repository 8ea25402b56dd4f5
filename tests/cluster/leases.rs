//! Workers that register themselves: any replica takes a renewal, and nothing depends on the first one.

use std::process::Stdio;
use std::time::Duration;

use grapevine_tests::binary::grapevine;
use grapevine_tests::cluster::{Cluster, Plan, Replica};
use grapevine_tests::http1;
use grapevine_tests::ports::free_address;
use grapevine_tests::process::{Signal, read};
use grapevine_tests::wait::{eventually, so};
use rustix::process::{Pid, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::{TcpListener, UdpSocket};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::worker_kill::start_worker;

/// The shortest that the settings allow.
const TTL: &str = "\"5s\"";
/// Lease, grace and looks together take 12 s.
const LIMIT: Duration = Duration::from_secs(60);
const SECRET: &str = "a-secret-of-the-whole-cluster";

fn plan() -> Plan {
    Plan::default()
        .set("leases.ttl", TTL)
        .set("leases.grace", TTL)
        .set("leases.secret", &format!("{SECRET:?}"))
}

fn admin_urls(cluster: &Cluster) -> String {
    let urls = cluster
        .replicas
        .iter()
        .map(|replica| format!("http://{}", replica.admin().0));
    urls.collect::<Vec<_>>().join(",")
}

/// What `grapevine register --show-credential` prints for this worker.
async fn credential(worker: &str) -> String {
    let secret = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(secret.path(), format!("{SECRET}\n")).expect("it can be written");
    let run = Command::new(grapevine())
        .args(["register", "--worker", worker, "--show-credential"])
        .arg("--secret-file")
        .arg(secret.path())
        .output()
        .await;
    let printed = run.expect("it runs").stdout;
    String::from_utf8(printed).expect("text").trim().to_owned()
}

/// A registration that is under way.
struct Registered {
    child: Child,
    log: std::path::PathBuf,
}

impl Registered {
    async fn start(dir: &TempDir, cluster: &Cluster, worker: &str, command: &[&str]) -> Self {
        let (to, credential) = (admin_urls(cluster), credential(worker).await);
        let mut words = vec![
            "register",
            "--worker",
            worker,
            "--to",
            &to,
            "--credential",
            &credential,
        ];
        if !command.is_empty() {
            words.push("--");
        }
        words.extend(command);
        Self::run(dir, &words)
    }

    fn run(dir: &TempDir, words: &[&str]) -> Self {
        let log = dir.path().join("register.log");
        let stderr = std::fs::File::create(&log).expect("a log file can be made");
        let mut run = Command::new(grapevine());
        run.args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .kill_on_drop(true);
        let child = run.spawn().expect("grapevine can be started");
        Self { child, log }
    }

    fn signal(&self, signal: Signal) {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        kill_process(pid.expect("it runs"), signal).expect("the process is there");
    }
}

/// State of a worker at every running replica; none where it is not known.
async fn states(cluster: &Cluster, worker: &str) -> Vec<Option<String>> {
    let mut states = Vec::new();
    for replica in cluster.running() {
        let path = format!(
            "/workers/{}",
            worker.replace(':', "%3A").replace('/', "%2F")
        );
        let answer = http1::exchange(replica.admin().0, "GET", &path, &[], b"").await;
        let known = answer.head.status == 200;
        states.push(known.then(|| {
            let worker: serde_json::Value = answer.json();
            worker["state"].as_str().expect("a state").to_owned()
        }));
    }
    states
}

async fn until(cluster: &Cluster, worker: &str, state: Option<&str>, log: &std::path::Path) {
    let what = format!("{state:?} everywhere");
    eventually(LIMIT, &what, async || {
        let states = states(cluster, worker).await;
        let is_so = states.iter().all(|seen| seen.as_deref() == state);
        so(is_so, || format!("{states:?}\n{}", read(log)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_registers_itself_and_leaves_by_itself() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let mut cluster = plan().start(3).await;
    let (_worker, url) = start_worker(&dir, "w", "0").await;
    let mut registered = Registered::start(&dir, &cluster, &url, &[]).await;
    until(&cluster, &url, Some("active"), &registered.log).await;

    // The replica that answered first ends, and the lease goes on at another one: for longer than it lasts.
    cluster.replicas[0].kill().await;
    let renewals = async || {
        let mut sum = 0.0;
        for replica in cluster.running() {
            let metrics = http1::exchange(replica.admin().0, "GET", "/metrics", &[], b"").await;
            let text = metrics.text();
            let renewed = text.lines().find_map(|line| {
                line.strip_prefix("grapevine_lease_renewals_total{result=\"renewed\"} ")
            });
            sum += renewed.and_then(|count| count.parse().ok()).unwrap_or(0.0);
        }
        sum
    };
    eventually(LIMIT, "renewals for two terms", async || {
        let (states, count) = (states(&cluster, &url).await, renewals().await);
        assert!(
            states
                .iter()
                .all(|state| state.as_deref() == Some("active")),
            "{states:?}"
        );
        so(count >= 13.0, || count.to_string())
    })
    .await;

    registered.signal(Signal::TERM);
    until(&cluster, &url, None, &registered.log).await;
    let status = registered.child.wait().await.expect("it can be waited for");
    assert!(status.success(), "{}", read(&registered.log));

    // Nothing is left to be renewed, so nothing is missed.
    eventually(
        LIMIT,
        "nobody renews for longer than a lease lasts",
        async || {
            let mut ages = Vec::new();
            for replica in cluster.running() {
                let answer =
                    http1::exchange(replica.admin().0, "GET", "/discovery", &[], b"").await;
                let source = answer.json::<serde_json::Value>()["sources"][0].clone();
                assert_ne!(source["up"], false, "{source}");
                // Of a replica that never heard a renewal there is none.
                ages.push(source["age_s"].as_u64());
            }
            so(ages.iter().max() >= Some(&Some(8)), || format!("{ages:?}"))
        },
    )
    .await;
}

/// Waits until a log has these words.
async fn says(log: impl Fn() -> String, words: &str) {
    eventually(LIMIT, words, async || {
        let log = log();
        log.contains(words).then_some(()).ok_or(log)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_register_one_worker_are_told() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let other = tempfile::tempdir().expect("a temporary directory can be made");
    let cluster = plan().start(1).await;
    let (_worker, url) = start_worker(&dir, "w", "0").await;
    let first = Registered::start(&dir, &cluster, &url, &[]).await;
    until(&cluster, &url, Some("active"), &first.log).await;
    let warning = "two processes renew the lease of one worker";
    assert!(!cluster.replicas[0].log().contains(warning));
    let second = Registered::start(&other, &cluster, &url, &[]).await;
    for one in [&first, &second] {
        says(|| read(&one.log), "another process registers http").await;
    }
    says(|| cluster.replicas[0].log(), warning).await;

    // One that waits for its worker says so at once.
    let nobody = free_address();
    let silent = tempfile::tempdir().expect("a temporary directory can be made");
    let (url, to) = (format!("http://{nobody}"), admin_urls(&cluster));
    let waiting = Registered::run(&silent, &["register", "--worker", &url, "--to", &to]);
    let words = format!("waiting until {url}/ answers /health and /v1/models: /health: ");
    says(|| read(&waiting.log), &words).await;
}

/// Its process goes on, and is told so, also where it has labels, which nobody keeps for it.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_removes_a_worker_that_registers_itself() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let cluster = plan().start(1).await;
    let (_worker, url) = start_worker(&dir, "w", "0").await;
    let (to, credential) = (admin_urls(&cluster), credential(&url).await);
    let words = ["register", "--worker", &url, "--to", &to];
    let words = [
        &words[..],
        &["--credential", &credential, "--label", "rack=7"],
    ]
    .concat();
    let one = Registered::run(&dir, &words);
    until(&cluster, &url, Some("active"), &one.log).await;
    let path = format!("/workers/{}", url.replace(':', "%3A").replace('/', "%2F"));
    let admin = cluster.replicas[0].admin().0;
    let removed = http1::exchange(admin, "DELETE", &path, &[], b"").await;
    assert_eq!(removed.head.status, 200, "{}", removed.text());
    says(|| read(&one.log), "an operator removed http").await;
    until(&cluster, &url, None, &one.log).await;
    let body = serde_json::json!({ "url": url }).to_string();
    let added = http1::exchange(admin, "POST", "/workers", &[], body.as_bytes()).await;
    assert_eq!(added.head.status, 201, "{}", added.text());
    until(&cluster, &url, Some("active"), &one.log).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_not_renewed_stops_use_first() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let cluster = plan().start(3).await;
    let (_one, kept) = start_worker(&dir, "kept", "0").await;
    let (_two, lost) = start_worker(&dir, "lost", "0").await;
    let other = tempfile::tempdir().expect("a temporary directory can be made");
    let keeps = Registered::start(&other, &cluster, &kept, &[]).await;
    let mut loses = Registered::start(&dir, &cluster, &lost, &[]).await;
    until(&cluster, &kept, Some("active"), &keeps.log).await;
    until(&cluster, &lost, Some("active"), &loses.log).await;

    loses.signal(Signal::STOP);
    until(&cluster, &lost, Some("draining"), &loses.log).await;
    until(&cluster, &lost, None, &loses.log).await;
    until(&cluster, &kept, Some("active"), &keeps.log).await;
    // It goes on, and says what happened meanwhile.
    loses.signal(Signal::CONT);
    until(&cluster, &lost, Some("active"), &loses.log).await;
    says(|| read(&loses.log), "s before it was renewed").await;

    loses.child.kill().await.expect("it is killed");
    until(&cluster, &lost, None, &loses.log).await;

    for replica in cluster.running() {
        let metrics = replica.admin().metrics().await;
        let is_up = metrics.sum("grapevine_discovery_up", "source=\"lease\"");
        assert_eq!(is_up, 1.0, "{}", replica.name);
    }
    // The last one is killed as well: then nobody hears anything, and nothing is concluded from that.
    drop(keeps);
    eventually(LIMIT, "every replica is deaf", async || {
        let mut up = Vec::new();
        for replica in cluster.running() {
            let answer = http1::exchange(replica.admin().0, "GET", "/discovery", &[], b"").await;
            let view: serde_json::Value = answer.json();
            // As an alarm sees it.
            let metrics = replica.admin().metrics().await;
            let is_up = metrics.sum("grapevine_discovery_up", "source=\"lease\"");
            up.push((view["sources"][0]["up"].clone(), is_up));
        }
        let is_deaf = up.iter().all(|up| *up == (json!(false), 0.0));
        so(is_deaf, || format!("{up:?}"))
    })
    .await;
    assert_eq!(
        states(&cluster, &kept).await,
        vec![Some("active".to_owned()); 3]
    );
}

/// Renewals that a replica took.
async fn renewals(replica: &Replica) -> f64 {
    let metrics = replica.admin().metrics().await;
    metrics.sum("grapevine_lease_renewals_total", "result=\"renewed\"")
}

/// The worker is there at all replicas until this one has taken so many more renewals.
async fn stays_for(cluster: &Cluster, worker: &str, replica: &Replica, more: f64) {
    let before = renewals(replica).await;
    eventually(LIMIT, "renewals for two terms and a grace", async || {
        let states = states(cluster, worker).await;
        let is_there = |state: &Option<String>| state.as_deref() == Some("active");
        assert!(states.iter().all(is_there), "{states:?}");
        let count = renewals(replica).await - before;
        so(count >= more, || count.to_string())
    })
    .await;
}

fn register(dir: &TempDir, worker: &str, to: &str, credential: &str) -> Registered {
    let words = ["register", "--worker", worker, "--to", to];
    Registered::run(dir, &[&words[..], &["--credential", credential]].concat())
}

/// Its gossip reaches nobody, and its admin port answers: the others would lose the worker with its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_renews_at_a_replica_that_is_alone_is_registered_at_others_too() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let mut cluster = plan().worker("http://127.0.0.1:1", &[]).start(1).await;
    let silent = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
    let seed = silent.local_addr().expect("bound").to_string();
    cluster.join("alone", vec![seed]).await;
    let [among_others, alone] = &cluster.replicas[..] else {
        panic!("not two");
    };
    eventually(LIMIT, "it has its view", async || {
        let view = alone.admin().view().await;
        so(view.is_in(), || format!("{view:?}"))
    })
    .await;
    let (_worker, url) = start_worker(&dir, "w", "0").await;
    let to = [alone, among_others].map(|replica| format!("http://{}", replica.admin().0));
    let mut one = register(&dir, &url, &to.join(","), &credential(&url).await);
    until(&cluster, &url, Some("active"), &one.log).await;
    stays_for(&cluster, &url, among_others, 18.0).await;
    assert!(renewals(alone).await >= 18.0, "it is renewed there, too");
    says(|| read(&one.log), "no other replica lives for").await;
    one.signal(Signal::TERM);
    until(&cluster, &url, None, &one.log).await;
    let status = one.child.wait().await.expect("it can be waited for");
    assert!(status.success(), "{}", read(&one.log));
}

/// It may renew where nobody else hears of it. When it is gone as well, its lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_good_worker_outlives_the_replica_at_which_it_renewed() {
    let [dir, other] =
        [(); 2].map(|()| tempfile::tempdir().expect("a temporary directory can be made"));
    let mut cluster = plan().start(2).await;
    let (mut worker, url) = start_worker(&dir, "w", "0").await;
    let (_kept, others) = start_worker(&other, "w", "0").await;
    let to = |at: usize| format!("http://{}", cluster.replicas[at].admin().0);
    let one = register(&dir, &url, &to(0), &credential(&url).await);
    let _keeps = register(&other, &others, &to(1), &credential(&others).await);
    until(&cluster, &url, Some("active"), &one.log).await;
    until(&cluster, &others, Some("active"), &one.log).await;
    cluster.replicas[0].kill().await;
    stays_for(&cluster, &url, &cluster.replicas[1], 24.0).await;
    worker.signal(Signal::KILL);
    worker.ended().await;
    until(&cluster, &url, None, &one.log).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrapped_command_lives_and_ends_with_its_registration() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let cluster = plan().start(3).await;
    let program = grapevine().display().to_string();
    for is_behind_a_shell in [false, true] {
        let port = free_address().port().to_string();
        let url = format!("http://127.0.0.1:{port}");
        let direct = [program.as_str(), "fake-worker", "--port", &port];
        let script = format!("{} & wait", direct.join(" "));
        let shell = ["sh", "-c", &script];
        let command: &[&str] = if is_behind_a_shell { &shell } else { &direct };
        let mut registered = Registered::start(&dir, &cluster, &url, command).await;
        until(&cluster, &url, Some("active"), &registered.log).await;
        registered.signal(Signal::TERM);
        let status = registered.child.wait().await.expect("it can be waited for");
        assert!(status.success(), "{}", read(&registered.log));
        until(&cluster, &url, None, &registered.log).await;
        let refused = tokio::net::TcpStream::connect(format!("127.0.0.1:{port}")).await;
        assert!(refused.is_err(), "{command:?} has ended");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_renewal_ends_no_worker() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let mut cluster = plan()
        .set("admin.token", "\"the-token-of-operators\"")
        .found()
        .await;
    cluster.join("r1", Vec::new()).await;
    let port = free_address().port().to_string();
    let url = format!("http://127.0.0.1:{port}");
    let file = dir.path().join("credential");
    let good = credential(&url).await;
    std::fs::write(&file, &good).expect("a file can be written");
    let program = grapevine().display().to_string();
    let file_name = file.display().to_string();
    let words = [
        "register",
        "--worker",
        &url,
        "--to",
        &admin_urls(&cluster),
        "--credential-file",
        &file_name,
        "--",
        &program,
        "fake-worker",
        "--port",
        &port,
    ];
    let mut registered = Registered::run(&dir, &words);
    let says = async |registered: &Registered, text: &str, count: usize| {
        eventually(LIMIT, text, async || {
            let log = read(&registered.log);
            (log.matches(text).count() >= count)
                .then_some(())
                .ok_or(log)
        })
        .await;
    };
    says(&registered, "registered as", 1).await;
    // Somebody writes it anew, and is not done yet.
    std::fs::write(&file, "gvw1_").expect("a file can be written");
    says(&registered, "refuses the credential", 1).await;
    std::fs::write(&file, &good).expect("a file can be written");
    says(&registered, "registered as", 2).await;
    let is_there = tokio::net::TcpStream::connect(format!("127.0.0.1:{port}")).await;
    assert!(is_there.is_ok(), "the command goes on");
    registered.signal(Signal::TERM);
    let status = registered.child.wait().await.expect("it can be waited for");
    assert!(status.success(), "{}", read(&registered.log));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_touches_its_own_worker_only() {
    let mut cluster = plan()
        .set("admin.token", "\"the-token-of-operators\"")
        .found()
        .await;
    cluster.join("r1", Vec::new()).await;
    let (own, others) = ("http://10.0.0.7:8000", "http://10.0.0.8:8000");
    let bearer = format!("Bearer {}", credential(own).await);
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
    ];
    let admin = cluster.replicas[0].admin().0;
    let path = |worker: &str| format!("/leases/{}", worker.replace(':', "%3A").replace('/', "%2F"));
    for (method, path, body, status) in [
        ("PUT", path(own), json!({ "url": own }), 200),
        ("PUT", path(own), json!({ "url": own }), 200),
        ("PUT", path(others), json!({ "url": others }), 401),
        ("PUT", path(own), json!({ "url": own, "id": others }), 400),
        (
            "PUT",
            path(own),
            json!({ "url": "http://169.254.169.254:80" }),
            400,
        ),
        ("DELETE", path(others), json!({}), 401),
        ("GET", "/workers".to_owned(), json!(null), 401),
        ("POST", "/workers".to_owned(), json!({ "url": others }), 401),
        ("DELETE", path(own), json!(null), 200),
        ("DELETE", path(own), json!(null), 200),
    ] {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = http1::exchange(admin, method, &path, &headers, body.as_bytes()).await;
        assert_eq!(
            answer.head.status,
            status,
            "{method} {path}: {}",
            answer.text()
        );
    }
}

/// Without a token and a secret anybody on loopback may register, but who shows something is told that it proves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_nothing_can_prove_is_refused() {
    let mut cluster = Plan::default().found().await;
    cluster.join("r1", Vec::new()).await;
    let admin = cluster.replicas[0].admin().0;
    let body = json!({ "url": "http://10.0.0.7:8000" }).to_string();
    let json = ("content-type", "application/json");
    let put = async |headers: &[(&str, &str)]| {
        let answer = http1::exchange(admin, "PUT", "/leases/x", headers, body.as_bytes()).await;
        answer.head.status
    };
    assert_eq!(put(&[json, ("authorization", "Bearer foo")]).await, 401);
    assert_eq!(put(&[json]).await, 200);
}

/// A worker that is not ready, as far as a registration beside it sees.
struct Starting(TcpListener);

impl Starting {
    async fn new() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        (Self(listener), url)
    }

    /// Waits until it has been asked once more.
    async fn is_asked(&self) {
        let asked = timeout(LIMIT, self.0.accept()).await;
        drop(
            asked
                .expect("the registration goes on")
                .expect("a connection"),
        );
    }
}

/// Words of a registration that nobody hears of.
fn words(worker: &str) -> [&str; 5] {
    ["register", "--worker", worker, "--to", "http://127.0.0.1:1"]
}

/// As behind `2>&1 | tee log`, when that has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrapped_command_outlives_the_reader_of_its_log() {
    let (worker, url) = Starting::new().await;
    let (reader, log) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut run = Command::new(grapevine());
    run.args(words(&url))
        .args(["--", "sh", "-c", "read line; exit 7"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true);
    let mut child = run.spawn().expect("grapevine can be started");
    // It reports what it waits for before it looks again.
    worker.is_asked().await;
    worker.is_asked().await;
    drop(child.stdin.take());
    let ended = timeout(LIMIT, child.wait()).await.expect("it ends");
    let ended = ended.expect("it can be waited for");
    assert_eq!(ended.code(), Some(7), "the command's own end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_terminal_ends_a_registration_unless_that_is_ignored() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (worker, url) = Starting::new().await;
    // What the test itself was started with must not matter.
    let start = |how: &str| {
        let mut run = Command::new("env");
        run.arg(how)
            .arg(grapevine())
            .args(words(&url))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let child = run.spawn().expect("env is there");
        let log = dir.path().join("none");
        Registered { child, log }
    };
    let mut registered = start("--default-signal=HUP");
    worker.is_asked().await;
    registered.signal(Signal::HUP);
    let ended = timeout(LIMIT, registered.child.wait()).await;
    let ended = ended.expect("it ends").expect("it can be waited for");
    assert_eq!(ended.code(), Some(0), "it ended by itself, in order");

    let mut registered = start("--ignore-signal=HUP");
    worker.is_asked().await;
    registered.signal(Signal::HUP);
    worker.is_asked().await;
    worker.is_asked().await;
    let ended = registered.child.try_wait().expect("it can be waited for");
    assert_eq!(ended, None, "nohup");
}

/// Nothing is drained and nothing taken out: the lease alone ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_the_configuration_stays_when_its_lease_ends() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (_worker, url) = start_worker(&dir, "w", "0").await;
    let cluster = plan().worker(&url, &[]).start(1).await;
    let mut one = Registered::start(&dir, &cluster, &url, &[]).await;
    says(|| read(&one.log), "registered as http").await;
    one.signal(Signal::TERM);
    let ended = timeout(LIMIT, one.child.wait()).await;
    let log = read(&one.log);
    assert!(
        ended.is_ok_and(|status| status.is_ok_and(|status| status.success())),
        "{log}"
    );
    for (words, is_said) in [
        ("the configuration says that http", true),
        ("the worker stays in the cluster: the configuration", true),
        ("gets nothing new", false),
        ("taken out of the cluster", false),
    ] {
        assert_eq!(log.contains(words), is_said, "{words}: {log}");
    }
    until(&cluster, &url, Some("active"), &one.log).await;
}
