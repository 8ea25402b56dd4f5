//! A real Prometheus with the rules of `packaging/monitoring/rules.yml`, whose waits are shortened to seconds.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use grapevine_tests::binary::grapevine;
use grapevine_tests::cluster::Cluster;
use grapevine_tests::http1;
use grapevine_tests::wait::{eventually, so};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::faults::{Fault, OF_BUSY_MACHINES};
use super::{LIMIT, MONITORING};

/// A running Prometheus. It ends with this.
pub(super) struct Prometheus {
    _child: Child,
    _folder: TempDir,
    address: SocketAddr,
    /// Since then it has seen all replicas, and no alarm.
    watches_since: Instant,
    /// Alarms that the faults so far explain.
    explained: Vec<&'static str>,
}

/// The folder with `prometheus` and `promtool`.
pub(super) fn tools() -> PathBuf {
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
    /// Scrapes these replicas twice a second. Returned once it has seen all of them.
    pub(super) async fn start(cluster: &Cluster) -> Self {
        Self::start_with(cluster, &[]).await
    }

    /// The same with features that are off by default.
    pub(super) async fn start_with(cluster: &Cluster, features: &[&str]) -> Self {
        let mut started = Self::spawn(cluster, features).await;
        eventually(LIMIT, "Prometheus is ready", async || {
            let answer = http1::get(started.address, "/-/ready").await;
            so(answer.head.status == 200, || answer.text())
        })
        .await;
        let replicas = cluster.running().count();
        let seen =
            format!("count(up == 1) == {replicas} unless on () ALERTS{{alertname=\"NoReplica\"}}");
        eventually(LIMIT, "all replicas are scraped", async || {
            let answer = started.query(&seen).await;
            so(!answer.is_empty(), || format!("{answer:?}"))
        })
        .await;
        started.watches_since = Instant::now();
        started
    }

    async fn spawn(cluster: &Cluster, features: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("rules.yml"), quick_rules()).expect("a file can be written");
        let targets: Vec<String> = cluster
            .running()
            .map(|replica| replica.admin().0.to_string())
            .collect();
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
            .arg(format!("--enable-feature={}", features.join(",")))
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
            watches_since: Instant::now(),
            explained: OF_BUSY_MACHINES.to_vec(),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        let answer = http1::get(self.address, path).await;
        assert_eq!(answer.head.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// The series that an expression gives now.
    pub(super) async fn query(&self, expression: &str) -> Vec<Value> {
        let answer = self.ask("query?query=", expression).await;
        match &answer["data"]["result"] {
            Value::Array(series) if answer["data"]["resultType"] == "vector" => series.clone(),
            other => vec![other.clone()],
        }
    }

    /// Series with the exemplars that it has of an expression.
    pub(super) async fn exemplars(&self, expression: &str) -> Vec<Value> {
        let answer = self
            .ask("query_exemplars?start=1&end=9999999999&query=", expression)
            .await;
        answer["data"].as_array().cloned().unwrap_or_default()
    }

    async fn ask(&self, path: &str, expression: &str) -> Value {
        let mut path = format!("/api/v1/{path}");
        for byte in expression.bytes() {
            let _ = write!(path, "%{byte:02X}");
        }
        let answer = self.get(&path).await;
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer
    }

    /// Alarms that fire now.
    pub(super) async fn alarms(&self) -> Vec<String> {
        self.names("count by (alertname) (ALERTS{alertstate=\"firing\"})")
            .await
    }

    /// Alarms that fired at any time since it saw all replicas.
    async fn fired(&self) -> Vec<String> {
        let seconds = self.watches_since.elapsed().as_secs().max(1);
        let ever = format!("max_over_time(ALERTS{{alertstate=\"firing\"}}[{seconds}s])");
        self.names(&format!("count by (alertname) ({ever})")).await
    }

    async fn names(&self, expression: &str) -> Vec<String> {
        let alarms = self.query(expression).await;
        let names = alarms.iter().map(|series| &series["metric"]["alertname"]);
        let mut names: Vec<String> = names
            .map(|name| name.as_str().expect("a name").to_owned())
            .collect();
        names.sort_unstable();
        names
    }

    /// Waits until all alarms of a fault fire, while `meanwhile` is done again and again; then no alarm has fired that
    /// neither this fault nor an earlier one explains.
    pub(super) async fn fires_while(&mut self, fault: &Fault, mut meanwhile: impl AsyncFnMut()) {
        self.explained
            .extend(fault.alarms.iter().chain(fault.beside));
        let (_, took) = eventually(LIMIT, fault.what, async || {
            meanwhile().await;
            let firing = self.alarms().await;
            let all = fault
                .alarms
                .iter()
                .all(|name| firing.iter().any(|f| f == name));
            so(all, || format!("{firing:?}"))
        })
        .await;
        let mut fired = self.fired().await;
        println!(
            "{}: {:?} after {took:.1?}; fired so far: {fired:?}",
            fault.what, fault.alarms
        );
        fired.retain(|name| !self.explained.contains(&name.as_str()));
        assert!(
            fired.is_empty(),
            "{}: nothing explains {fired:?}",
            fault.what
        );
    }

    /// The same with nothing to do.
    pub(super) async fn fires(&mut self, fault: &Fault) {
        self.fires_while(fault, async || ()).await;
    }
}
