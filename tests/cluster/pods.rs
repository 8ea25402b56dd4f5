//! Pods as workers: three replicas that watch one API server, each by itself.

use std::time::Duration;

use grapevine_testbed::fake_kubernetes::{Config, FakeKubernetes, Fault, Network, Rule, When};
use grapevine_testbed::fake_worker::FakeWorker;
use grapevine_tests::chat::{self, Ending, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::http1;
use grapevine_tests::wait::eventually;
use reqwest::{Client, Method};
use serde_json::{Value, json};

/// A watch that fell silent is found after 35 s.
const LIMIT: Duration = Duration::from_secs(120);

/// Changes pods, as a kubelet and an operator do.
struct Pods {
    server: FakeKubernetes,
    client: Client,
}

impl Pods {
    async fn start() -> Self {
        // Another test may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = FakeKubernetes::start(Config::default())
            .await
            .expect("it starts");
        let authority = std::fs::read(server.authority()).expect("it was written");
        let authority = reqwest::Certificate::from_pem(&authority).expect("it is a certificate");
        let client = Client::builder()
            .tls_certs_only([authority])
            // One that is kept may be silenced.
            .pool_max_idle_per_host(0)
            .timeout(LIMIT)
            .build();
        Self {
            server,
            client: client.expect("a client can be made"),
        }
    }

    async fn ask(&self, method: Method, path: &str, kind: &str, body: Value) {
        let token = std::fs::read_to_string(self.server.token()).expect("it was written");
        let url = format!("{}/api/v1/namespaces/default/pods{path}", self.server.url());
        let request = self.client.request(method, url).bearer_auth(token);
        let request = request.header("content-type", kind).body(body.to_string());
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{path}: {answer:?}");
    }

    /// A pod in which this worker runs.
    async fn create(&self, name: &str, worker: &FakeWorker) {
        let port = worker.url().rsplit(':').next().expect("a port").to_owned();
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": "vllm" }, "annotations": { "grapevine/ports": port } },
            "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "vllm", "image": "vllm" }] },
        });
        self.ask(Method::POST, "", "application/json", pod).await;
        self.is_ready(name, true).await;
    }

    async fn is_ready(&self, name: &str, is_ready: bool) {
        let ready = if is_ready { "True" } else { "False" };
        let status = json!({ "status": {
            "phase": "Running", "podIP": "127.0.0.1", "conditions": [{ "type": "Ready", "status": ready }],
        }});
        let kind = "application/merge-patch+json";
        self.ask(Method::PATCH, &format!("/{name}/status"), kind, status)
            .await;
    }

    async fn delete(&self, name: &str) {
        let now = json!({ "gracePeriodSeconds": 0 });
        self.ask(Method::DELETE, &format!("/{name}"), "application/json", now)
            .await;
    }
}

/// Waits until every replica has the workers of just these pods.
async fn see_pods(cluster: &Cluster, expected: &[&str]) {
    eventually(LIMIT, &format!("{expected:?} everywhere"), async || {
        for replica in cluster.running() {
            let view: Value = http1::get(replica.admin().0, "/workers").await.json();
            let workers = view["workers"].as_array().expect("a list");
            // namespace/name:port
            let name = |worker: &Value| {
                let id = worker["id"].as_str()?.strip_prefix("default/")?;
                Some(id.split(':').next()?.to_owned())
            };
            let names: Vec<_> = workers.iter().filter_map(name).collect();
            if names != expected {
                return Err(format!("{}: {names:?}", replica.name));
            }
        }
        Ok(())
    })
    .await;
}

/// Waits until every replica has workers in these states, in order of their ids.
async fn see(cluster: &Cluster, expected: &[&str]) {
    eventually(LIMIT, &format!("{expected:?} everywhere"), async || {
        for replica in cluster.running() {
            let view: Value = http1::get(replica.admin().0, "/workers").await.json();
            let workers = view["workers"].as_array().expect("a list");
            let states: Vec<_> = workers
                .iter()
                .map(|worker| worker["state"].clone())
                .collect();
            if states != expected {
                return Err(format!("{}: {states:?}", replica.name));
            }
        }
        Ok(())
    })
    .await;
}

/// Waits until every replica can see its source, or cannot.
async fn source_is_up(cluster: &Cluster, is_up: bool) {
    eventually(LIMIT, &format!("source up: {is_up}"), async || {
        for replica in cluster.running() {
            let view: Value = http1::get(replica.admin().0, "/discovery").await.json();
            if view["sources"][0]["up"] != is_up {
                return Err(format!("{}: {view}", replica.name));
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_workers_of_every_replica_and_no_event_is_needed() {
    let workers = chat::workers(3, &chat::paced(Duration::from_millis(1))).await;
    let pods = Pods::start().await;
    for (name, worker) in ["vllm-0", "vllm-1", "vllm-2"].into_iter().zip(&workers) {
        pods.create(name, worker).await;
    }
    let kubeconfig = pods.server.kubeconfig().display().to_string();
    let plan = Plan::default()
        .set("kubernetes.enabled", "true")
        .set("kubernetes.selector", "[\"app=vllm\"]")
        .set("kubernetes.namespaces", "[\"default\"]")
        .set("kubernetes.kubeconfig", &format!("{kubeconfig:?}"))
        .set("discovery.hold", "\"3s\"");
    let cluster = plan.start(3).await;
    see(&cluster, &["active"; 3]).await;
    for replica in cluster.running() {
        let outcome = chat::stream(replica.data(), &streamed("hello", 2)).await;
        assert_eq!(outcome.ending, Ending::Done);
    }

    // Readiness stops use, and moves no key.
    let ring = cluster.replicas[0].admin().ring().await.digest;
    pods.is_ready("vllm-1", false).await;
    see(&cluster, &["active", "draining", "active"]).await;
    assert_eq!(cluster.replicas[2].admin().ring().await.digest, ring);
    pods.is_ready("vllm-1", true).await;
    see(&cluster, &["active"; 3]).await;
    assert_eq!(cluster.replicas[2].admin().ring().await.digest, ring);

    // A delete that no watch reports, with a history that nobody can ask for any more.
    pods.server.half_open();
    pods.delete("vllm-2").await;
    pods.server.compact();
    see_pods(&cluster, &["vllm-0", "vllm-1"]).await;
    let ring = cluster.replicas[0].admin().ring().await.digest;

    // Without the API server all stays as it is.
    pods.server.network(Network::Refusing);
    source_is_up(&cluster, false).await;
    see(&cluster, &["active"; 2]).await;
    assert_eq!(cluster.replicas[2].admin().ring().await.digest, ring);

    // It comes back, as real ones do with 503 at first, without the history of what changed meanwhile. The same for ten
    // minutes: testbed/bench/outage.py.
    for verb in ["list", "watch"] {
        let when = When {
            verb: Some(verb.to_owned()),
            ..When::default()
        };
        let rule = Rule {
            when,
            times: None,
            fault: Fault::Unavailable,
        };
        pods.server.add_rule(rule).expect("there is room");
    }
    pods.server.network(Network::Open);
    pods.delete("vllm-0").await;
    pods.create("vllm-3", &workers[2]).await;
    pods.server.compact();
    see_pods(&cluster, &["vllm-0", "vllm-1"]).await;
    pods.server.clear_rules();
    see_pods(&cluster, &["vllm-1", "vllm-3"]).await;
    source_is_up(&cluster, true).await;
}
