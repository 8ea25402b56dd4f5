//! Rules and board beside a real cluster: a real Prometheus scrapes it and runs every expression.
//!
//! The rules are those of `packaging/monitoring/rules.yml` with the waits before an alarm shortened to seconds. Grafana
//! is not run; its board's expressions are, with the variables filled in.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use grapevine_testbed::fake_worker::{FakeWorker, StopMode};
use grapevine_tests::binary::grapevine;
use grapevine_tests::chat::{self, MODEL, chat, streamed};
use grapevine_tests::cluster::{Cluster, Replica};
use grapevine_tests::http1;
use grapevine_tests::keys::{self, KeyFile};
use grapevine_tests::process::Signal;
use grapevine_tests::tls::Authority;
use grapevine_tests::wait::eventually;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

const MONITORING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/monitoring");
/// Alarms wait two seconds here, and evidence of a fault some more; on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);
/// What a busy machine does to a quiet cluster.
const OF_BUSY_MACHINES: [&str; 3] = ["StarvedProcessor", "Disagreement", "DisagreementCosts"];

/// A running Prometheus. It ends with this.
struct Prometheus {
    _child: Child,
    _folder: TempDir,
    address: SocketAddr,
}

/// The folder with `prometheus` and `promtool`.
fn tools() -> PathBuf {
    // <target>/<profile>/grapevine
    let target = grapevine().ancestors().nth(2).expect("two folders up");
    let folder = target.join("prometheus");
    let mut setup = std::process::Command::new(format!("{MONITORING}/prometheus.sh"));
    let status = setup.arg(&folder).status().expect("a shell runs");
    assert!(status.success(), "prometheus.sh reports what is missing");
    folder
}

/// The rules, whose alarms fire after two seconds instead of minutes.
fn quick_rules() -> String {
    let rules = std::fs::read_to_string(format!("{MONITORING}/rules.yml")).expect("the rules");
    let lines = rules.lines().map(|line| match line.split_once("for: ") {
        Some((before, _)) if before.trim().is_empty() => format!("{before}for: 2s\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

impl Prometheus {
    /// Scrapes these targets twice a second.
    async fn start(targets: &[SocketAddr]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("rules.yml"), quick_rules()).expect("a file can be written");
        let targets: Vec<String> = targets.iter().map(SocketAddr::to_string).collect();
        let config = json!({
            "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms" },
            "rule_files": ["rules.yml"],
            "scrape_configs": [{ "job_name": "grapevine", "static_configs": [{ "targets": targets }] }],
        });
        // JSON is YAML.
        std::fs::write(at("prometheus.yml"), config.to_string()).expect("a file can be written");
        let argument = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut child = Command::new(tools().join("prometheus"))
            .arg(argument("config.file", &at("prometheus.yml")))
            .arg(argument("storage.tsdb.path", &at("data")))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("prometheus can be started");
        let stderr = child.stderr.take().expect("standard error is a pipe");
        let mut lines = BufReader::new(stderr).lines();
        let mut said = String::new();
        let address = loop {
            let line = lines.next_line().await.expect("its log can be read");
            let line = line.unwrap_or_else(|| panic!("prometheus ended: {said}"));
            if let Some((_, address)) = line.split_once("msg=\"Listening on\" address=") {
                break address.trim().parse().expect("an address");
            }
            let _ = writeln!(said, "{line}");
        };
        // Read on, so that it can write.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self {
            _child: child,
            _folder: folder,
            address,
        }
    }

    async fn get(&self, path: &str) -> Value {
        let answer = http1::get(self.address, path).await;
        assert_eq!(answer.head.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// The series that an expression gives now.
    async fn query(&self, expression: &str) -> Vec<Value> {
        let mut path = "/api/v1/query?query=".to_owned();
        for byte in expression.bytes() {
            let _ = write!(path, "%{byte:02X}");
        }
        let answer = self.get(&path).await;
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        match &answer["data"]["result"] {
            Value::Array(series) if answer["data"]["resultType"] == "vector" => series.clone(),
            other => vec![other.clone()],
        }
    }

    /// Alarms that fire now.
    async fn alarms(&self) -> Vec<String> {
        let alarms = self
            .query("count by (alertname) (ALERTS{alertstate=\"firing\"})")
            .await;
        let names = alarms.iter().map(|series| &series["metric"]["alertname"]);
        let mut names: Vec<String> = names
            .map(|name| name.as_str().expect("a name").to_owned())
            .collect();
        names.sort_unstable();
        names
    }

    /// Waits until all of these fire.
    async fn fires(&self, expected: &[&str]) {
        let what = format!("alarms: {expected:?}");
        let (_, took) = eventually(LIMIT, &what, async || {
            let firing = self.alarms().await;
            let all = expected.iter().all(|name| firing.iter().any(|f| f == name));
            all.then_some(()).ok_or_else(|| format!("{firing:?}"))
        })
        .await;
        println!("{expected:?} fire after {took:.1?}");
    }
}

/// A cluster in which everything that the board shows is counted: keys, a source of workers, certificates for clients'
/// workers.
struct Scene {
    cluster: Cluster,
    workers: Vec<FakeWorker>,
    keys: KeyFile,
    key: String,
    prometheus: Prometheus,
}

impl Scene {
    async fn start() -> Self {
        let mut keys = KeyFile::new();
        let key = keys.add("shop", "max_requests = 500").await;
        let workers = chat::workers(4, &chat::paced(Duration::from_millis(2))).await;
        let folder = keys.path().parent().expect("a folder").to_owned();
        let pair = Authority::new().issue(&folder, "replica", &["localhost"]);
        let targets: Vec<String> = workers
            .iter()
            .map(|worker| worker.url().replace("http://", ""))
            .collect();
        let found = json!([{ "targets": targets, "labels": { "model": MODEL } }]).to_string();
        keys::write(&folder.join("workers.json"), &found);
        let plan = keys
            .plan()
            .set(
                "files.paths",
                &format!("[{:?}]", folder.join("workers.json")),
            )
            .set("files.every", "\"1s\"")
            .set("workers.client_cert", &format!("{:?}", pair.cert))
            .set("workers.client_key", &format!("{:?}", pair.key));
        let cluster = plan.start(3).await;
        let admins: Vec<_> = cluster.replicas.iter().map(|r| r.admin().0).collect();
        Self {
            prometheus: Prometheus::start(&admins).await,
            cluster,
            workers,
            keys,
            key,
        }
    }

    /// Some chats at each running replica: streams with and without usage, and plain ones.
    async fn traffic(&self) {
        let running: Vec<&Replica> = self.cluster.running().collect();
        for number in 0..12 {
            let mut body = match number % 3 {
                0 => chat(&format!("a question that comes again {}", number % 2), 3),
                _ => streamed(&format!("a question that comes again {}", number % 2), 3),
            };
            if number % 3 == 1 {
                body["stream_options"] = json!({ "include_usage": true });
            }
            let bearer = format!("Bearer {}", self.key);
            let headers = [("authorization", bearer.as_str())];
            let to = running[number % running.len()].data();
            let body = body.to_string();
            http1::exchange(
                to,
                "POST",
                "/v1/chat/completions",
                &headers,
                body.as_bytes(),
            )
            .await;
        }
    }
}

/// Every expression of the board that is not empty by intention while nothing is wrong, by its place, with the
/// variables filled in.
fn board() -> Vec<(String, String)> {
    let program = Path::new(MONITORING).join("board.py");
    let run = |argument: &str| {
        let mut python = std::process::Command::new("python3");
        python
            .arg(&program)
            .arg(argument)
            .output()
            .expect("python3 runs")
    };
    let checked = run("--check");
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    let lines = String::from_utf8(run("--expressions").stdout).expect("text");
    let rows = lines.lines().map(|line| {
        let row: Value = serde_json::from_str(line).expect("a JSON line");
        let text = |field: &str| row[field].as_str().expect("text").to_owned();
        let filled = text("expression")
            .replace("$__rate_interval", "30s")
            .replace("$job", "grapevine")
            .replace("$instance", ".*")
            .replace("$model", ".*");
        let place = format!("{}: {}", text("row"), text("panel"));
        (row["quiet"] == true, place, filled)
    });
    let shown: Vec<_> = rows.filter(|(quiet, ..)| !quiet).collect();
    assert!(shown.len() > 80, "{} expressions", shown.len());
    shown
        .into_iter()
        .map(|(_, place, filled)| (place, filled))
        .collect()
}

/// What the rules look at: their selectors, which must have series, though the alarms have none.
fn selectors_of_rules() -> Vec<(String, String)> {
    let rules = std::fs::read_to_string(format!("{MONITORING}/rules.yml")).expect("the rules");
    let mut selectors = Vec::new();
    let mut alarm = "";
    for line in rules.lines() {
        alarm = line.trim().strip_prefix("- alert: ").unwrap_or(alarm);
        if ["labels: ", "annotations: ", "#"]
            .iter()
            .any(|other| line.trim().starts_with(other))
        {
            continue;
        }
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        for prefix in ["grapevine_", "process_"] {
            for (at, _) in line.match_indices(prefix) {
                let rest = &line[at..];
                let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                let labels = rest[end..]
                    .strip_prefix('{')
                    .and_then(|rest| rest.split_once('}'));
                let labels = labels.map_or(String::new(), |(labels, _)| format!("{{{labels}}}"));
                selectors.push((alarm.to_owned(), format!("{}{labels}", &rest[..end])));
            }
        }
    }
    selectors
}

/// `promtool check metrics` has nothing to say about text format 0.0.4.
async fn passes_promtool(admin: SocketAddr) {
    let text = http1::get(admin, "/metrics").await.text();
    let mut child = Command::new(tools().join("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool can be started");
    let mut stdin = child.stdin.take().expect("a pipe");
    let written = stdin.write_all(text.as_bytes()).await;
    written.expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().await.expect("promtool ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && said.is_empty(),
        "{}",
        String::from_utf8_lossy(&said)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_expression_has_an_answer_and_alarms_fire_when_they_should() {
    let mut scene = Scene::start().await;
    let (board, selectors) = (board(), selectors_of_rules());
    let expressions: Vec<_> = board.iter().chain(&selectors).collect();
    eventually(LIMIT, "every expression has an answer", async || {
        scene.traffic().await;
        let mut empty = Vec::new();
        for (place, expression) in &expressions {
            if scene.prometheus.query(expression).await.is_empty() {
                empty.push(format!("{place}: {expression}"));
            }
        }
        let said = || format!("empty are\n{}", empty.join("\n"));
        empty.is_empty().then_some(()).ok_or_else(said)
    })
    .await;
    println!("{} expressions have answers", expressions.len());
    passes_promtool(scene.cluster.replicas[0].admin().0).await;

    // Every rule was evaluated since, and none fires.
    let rules = scene.prometheus.get("/api/v1/rules").await;
    let rules = rules["data"]["groups"][0]["rules"].as_array().cloned();
    let rules = rules.expect("a group of rules");
    assert!(
        rules.len() >= 30 && rules.iter().all(|rule| rule["health"] == "ok"),
        "{rules:?}"
    );
    let mut firing = scene.prometheus.alarms().await;
    firing.retain(|name| !OF_BUSY_MACHINES.contains(&name.as_str()));
    assert!(firing.is_empty(), "in a quiet cluster: {firing:?}");

    faults_of_operators(&scene).await;
    faults_of_workers(&scene).await;
    for index in [1, 2] {
        scene.cluster.replicas[index].kill().await;
    }
    scene
        .prometheus
        .fires(&["ReplicaMissing", "Isolated"])
        .await;
}

/// A wrong page, a configuration, a file of workers and one of keys that cannot be read.
async fn faults_of_operators(scene: &Scene) {
    let replica = &scene.cluster.replicas[0];
    let headers = [("sec-fetch-site", "cross-site")];
    let answer = http1::exchange(replica.admin().0, "GET", "/workers", &headers, b"").await;
    assert_eq!(answer.head.status, 403, "{}", answer.text());
    std::fs::write(scene.cluster.config(), "no = [").expect("a file can be written");
    replica.process().signal(Signal::HUP);
    let found = scene.keys.path().with_file_name("workers.json");
    keys::write(&found, "no JSON");
    scene
        .prometheus
        .fires(&["AdminRefused", "ReloadFailed", "SourceUnseen"])
        .await;
}

/// Most workers end, then all of them.
async fn faults_of_workers(scene: &Scene) {
    for worker in &scene.workers[..3] {
        worker.terminate(StopMode::Exit);
    }
    scene.prometheus.fires(&["WorkerDown", "WorkersBad"]).await;
    scene.workers[3].terminate(StopMode::Exit);
    scene.prometheus.fires(&["NotReady"]).await;
}
