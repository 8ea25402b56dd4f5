//! The fake API server, judged by a client that is not ours: `kubectl`.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use grapevine_testbed::fake_kubernetes::{Config, FakeKubernetes, Grant};
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::environment::{program, run};

const RUN_WITHIN: Duration = Duration::from_secs(60);

/// `kubectl`, and a server for it.
struct Bench {
    server: FakeKubernetes,
    kubectl: PathBuf,
    /// Its home, for caches and manifests.
    home: TempDir,
}

impl Bench {
    async fn new() -> Self {
        Self {
            server: FakeKubernetes::start(Config::default())
                .await
                .expect("it starts"),
            kubectl: program("kubectl").await,
            home: TempDir::new().expect("a folder can be made"),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .args(args)
            .env_clear()
            .env("HOME", self.home.path())
            .env("KUBECONFIG", self.server.kubeconfig());
        command
    }

    async fn kubectl(&self, args: &[&str]) -> String {
        let what = format!("kubectl {}", args.join(" "));
        run(&mut self.command(args), RUN_WITHIN, &what).await
    }

    /// Runs it and returns what it says when it fails.
    async fn refused(&self, args: &[&str]) -> String {
        let output = self.command(args).stdin(Stdio::null()).output();
        let output = timeout(RUN_WITHIN, output).await.expect("it ends");
        let output = output.expect("kubectl can be run");
        assert!(!output.status.success(), "kubectl {args:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    async fn get(&self, args: &[&str]) -> Value {
        let args = [&["get", "pods", "-o", "json"], args].concat();
        let said = self.kubectl(&args).await;
        serde_json::from_str(&said).expect("kubectl prints JSON")
    }

    /// `create -f` of pods with these names and one label.
    async fn create(&self, names: &[&str]) {
        let pods: Vec<String> = names.iter().map(|name| pod(name).to_string()).collect();
        let file = self.home.path().join("pods.yaml");
        std::fs::write(&file, pods.join("\n---\n")).expect("a manifest can be written");
        let file = file.to_str().expect("a plain path");
        self.kubectl(&["create", "-f", file]).await;
    }

    fn watch(&self, args: &[&str]) -> Watching {
        let args = [
            &["get", "pods", "--watch", "--output-watch-events", "-o"],
            args,
        ]
        .concat();
        let mut child = self.command(&args);
        let child = child.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = child
            .kill_on_drop(true)
            .spawn()
            .expect("kubectl can be run");
        let stdout = child.stdout.take().expect("standard output is a pipe");
        Watching {
            _child: child,
            lines: BufReader::new(stdout).lines(),
        }
    }
}

/// A running `kubectl get --watch`.
struct Watching {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    async fn line(&mut self) -> String {
        let line = timeout(LIMIT, self.lines.next_line()).await;
        let line = line
            .expect("the watch shows something")
            .expect("it can be read");
        line.expect("the watch goes on")
    }
}

fn pod(name: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": { "name": name, "labels": { "app": "vllm" } },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "vllm", "image": "vllm" }] },
    })
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("a list");
    items
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_creates_changes_and_deletes_pods() {
    let bench = Bench::new().await;
    bench.create(&["a", "b"]).await;
    assert_eq!(
        names(&bench.get(&["-l", "app in (vllm)"]).await),
        ["a", "b"]
    );
    bench
        .kubectl(&["label", "pod", "b", "app=other", "--overwrite"])
        .await;
    assert_eq!(names(&bench.get(&["-l", "app=vllm"]).await), ["a"]);
    assert_eq!(
        names(&bench.get(&["--field-selector", "metadata.name=b"]).await),
        ["b"]
    );

    let ready = r#"{"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}"#;
    let patch = |kind, text| {
        [
            "patch",
            "pod",
            "a",
            "--subresource=status",
            kind,
            "--patch",
            text,
        ]
    };
    bench.kubectl(&patch("--type=strategic", ready)).await;
    let unready = r#"{"status":{"conditions":[{"type":"Ready","status":"False"}]}}"#;
    bench.kubectl(&patch("--type=merge", unready)).await;
    let moved = r#"[{"op":"replace","path":"/status/podIP","value":"10.0.0.2"}]"#;
    bench.kubectl(&patch("--type=json", moved)).await;
    let a: Value = serde_json::from_str(&bench.kubectl(&["get", "pod", "a", "-o", "json"]).await)
        .expect("kubectl prints JSON");
    assert_eq!(a["status"]["podIP"], "10.0.0.2");
    assert_eq!(a["status"]["phase"], "Running");
    assert_eq!(
        a["status"]["conditions"],
        json!([{ "type": "Ready", "status": "False" }])
    );

    // Waits until the pod is gone, by a watch of its own.
    bench
        .kubectl(&["delete", "pod", "a", "--timeout=20s"])
        .await;
    assert_eq!(names(&bench.get(&[]).await), ["b"]);
    let missing = bench.refused(&["get", "pod", "a"]).await;
    assert!(missing.contains(r#"pods "a" not found"#), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_sees_each_change_of_a_watched_pod() {
    let bench = Bench::new().await;
    bench.create(&["a"]).await;
    let mut watching = bench.watch(&[
        "jsonpath={.type} {.object.metadata.name}{\"\\n\"}",
        "-l",
        "app=vllm",
    ]);
    assert_eq!(watching.line().await, "ADDED a");
    eventually(LIMIT, "the watch is open", async || {
        let stats = bench.server.stats();
        so(stats.open_watches == 1, || format!("{stats:?}"))
    })
    .await;
    bench.kubectl(&["annotate", "pod", "a", "x=y"]).await;
    assert_eq!(watching.line().await, "MODIFIED a");
    bench.kubectl(&["label", "pod", "a", "app-"]).await;
    assert_eq!(watching.line().await, "DELETED a");
    bench.create(&["b"]).await;
    assert_eq!(watching.line().await, "ADDED b");
    bench.kubectl(&["delete", "pod", "b", "--wait=false"]).await;
    assert_eq!(watching.line().await, "MODIFIED b");
    assert_eq!(watching.line().await, "DELETED b");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_understands_pages_and_refusals() {
    let bench = Bench::new().await;
    bench.create(&["a", "b", "c", "d", "e"]).await;
    assert_eq!(
        names(&bench.get(&["--chunk-size=2"]).await),
        ["a", "b", "c", "d", "e"]
    );
    let pages = bench.server.stats().answers.get("list 200").copied();
    assert!(pages >= Some(3), "{pages:?}");

    let only_get = Grant {
        verbs: vec!["get".to_owned()],
        namespace: Some("default".to_owned()),
    };
    bench
        .server
        .grant(Some(vec![only_get]))
        .expect("few grants");
    let said = bench.refused(&["get", "pods"]).await;
    let expected = r#"pods is forbidden: User "system:serviceaccount:default:grapevine" cannot list resource "pods" in API group "" in the namespace "default""#;
    assert!(said.contains(expected), "{said}");
    bench.kubectl(&["get", "pod", "a"]).await;

    bench.server.rotate_token(false).expect("it rotates");
    let said = bench.refused(&["get", "pod", "a"]).await;
    assert!(
        said.contains("Unauthorized") || said.contains("logged in"),
        "{said}"
    );
}
