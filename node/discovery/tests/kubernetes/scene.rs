//! A fake API server, the source in front of it, and what the source reports.

use std::time::Duration;

use grapevine_discovery::kubernetes::{KubernetesSettings, run};
use grapevine_discovery::{Sight, Watcher, feed};
use grapevine_testbed::fake_kubernetes::{Config, FakeKubernetes, Fault, Rule, Stats, When};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// Far more than any wait needs.
const LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);
const STALE: Duration = Duration::from_secs(60);

pub(crate) struct Scene {
    pub(crate) server: FakeKubernetes,
    pub(crate) watcher: Watcher,
    kubelet: Client,
    /// Ends with the scene.
    source: JoinSet<()>,
}

/// Watches end after a second, so that tests need not wait for half a minute.
pub(crate) fn settings() -> KubernetesSettings {
    KubernetesSettings {
        selector: Some("app=vllm".to_owned()),
        namespaces: vec!["default".to_owned()],
        watch_for: Duration::from_secs(1),
        idle_margin: Duration::from_secs(1),
        answer_within: Duration::from_secs(2),
        retry_after: Duration::from_millis(20),
        retry_at_most: Duration::from_millis(200),
        ..KubernetesSettings::default()
    }
}

pub(crate) fn pod(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "app": "vllm" } },
        "spec": { "terminationGracePeriodSeconds": 60, "containers": [{ "name": "vllm", "image": "vllm" }] },
    })
}

/// A pod's status once it serves.
pub(crate) fn ready(ip: &str) -> Value {
    json!({ "status": {
        "phase": "Running", "podIP": ip, "conditions": [{ "type": "Ready", "status": "True" }],
    }})
}

pub(crate) fn rule(verb: &str, times: u32, fault: Fault) -> Rule {
    Rule {
        when: When {
            verb: Some(verb.to_owned()),
            ..When::default()
        },
        times: Some(times),
        fault,
    }
}

impl Scene {
    /// A server with these ready pods in `default`, and the source.
    pub(crate) async fn with(pods: &[&str]) -> Self {
        Self::of(Config::default(), settings(), pods, |_| {}).await
    }

    /// The same with other settings; `before` is done to the server before the source starts.
    pub(crate) async fn of(
        config: Config,
        settings: KubernetesSettings,
        pods: &[&str],
        before: impl FnOnce(&FakeKubernetes),
    ) -> Self {
        // Another test may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = FakeKubernetes::start(config).await.expect("it starts");
        let authority = std::fs::read(server.authority()).expect("it was written");
        let authority = reqwest::Certificate::from_pem(&authority).expect("it is a certificate");
        let tls = Client::builder().tls_certs_only([authority]);
        let kubelet = tls.build().expect("a client can be made");
        let (feed, watcher) = feed("kubernetes", STALE);
        let kubeconfig = Some(server.kubeconfig());
        let mut scene = Self {
            kubelet,
            watcher,
            source: JoinSet::new(),
            server,
        };
        for (index, name) in pods.iter().enumerate() {
            scene.create("default", pod(name)).await;
            let ip = format!("10.0.0.{}", index + 1);
            scene.status("default", name, ready(&ip)).await;
        }
        before(&scene.server);
        let settings = KubernetesSettings {
            kubeconfig,
            ..settings
        };
        scene.source.spawn(run(settings, feed));
        scene
    }

    async fn ask(&self, method: Method, path: &str, kind: &str, body: Value) -> Value {
        let token = std::fs::read_to_string(self.server.token()).expect("it was written");
        let url = format!("{}/api/v1/{path}", self.server.url());
        let request = self.kubelet.request(method, url).bearer_auth(token);
        let request = request.header("content-type", kind).body(body.to_string());
        let answer = timeout(LIMIT, request.send()).await.expect("an answer");
        let answer = answer.expect("an answer");
        let status = answer.status();
        let body: Value = answer.json().await.expect("JSON");
        assert!(status.is_success(), "{path}: {body}");
        body
    }

    pub(crate) async fn create(&self, namespace: &str, pod: Value) -> Value {
        let path = format!("namespaces/{namespace}/pods");
        self.ask(Method::POST, &path, "application/json", pod).await
    }

    /// Changes metadata or spec.
    pub(crate) async fn patch(&self, name: &str, patch: Value) {
        let path = format!("namespaces/default/pods/{name}");
        let kind = "application/merge-patch+json";
        self.ask(Method::PATCH, &path, kind, patch).await;
    }

    /// Writes a status, as a kubelet does.
    pub(crate) async fn status(&self, namespace: &str, name: &str, patch: Value) {
        let path = format!("namespaces/{namespace}/pods/{name}/status");
        let kind = "application/merge-patch+json";
        self.ask(Method::PATCH, &path, kind, patch).await;
    }

    /// Deletes a pod: told to end if `grace_s` is not 0, gone otherwise.
    pub(crate) async fn delete(&self, name: &str, grace_s: u64) {
        let path = format!("namespaces/default/pods/{name}?gracePeriodSeconds={grace_s}");
        let kind = "application/json";
        self.ask(Method::DELETE, &path, kind, json!({})).await;
    }

    /// Names of the workers, without uid and namespace; of those that take no new prompts with `-`.
    pub(crate) fn workers(&self) -> Vec<String> {
        let picture = self.watcher.sight().picture.unwrap_or_default();
        let workers = picture.iter().map(|(id, found)| {
            let name = id.as_str().split(['/', ':']).nth(1).unwrap_or_default();
            let port = found.spec().url().port();
            let mark = if found.is_ready() { "" } else { "-" };
            match port {
                8000 => format!("{name}{mark}"),
                other => format!("{name}:{other}{mark}"),
            }
        });
        let mut workers: Vec<String> = workers.collect();
        workers.sort();
        workers
    }

    /// Waits until the source sees these workers, and can act on that.
    pub(crate) async fn sees(&self, expected: &[&str]) {
        self.until("the workers are seen", |scene| {
            scene.workers() == expected && scene.watcher.fresh().is_some()
        })
        .await;
    }

    /// Waits until the source has failed, and returns why.
    pub(crate) async fn fails(&self) -> String {
        self.until("the source fails", |scene| {
            scene.watcher.sight().failure.is_some()
        })
        .await;
        let failure = self.watcher.sight().failure;
        failure.unwrap_or_default()
    }

    /// Waits until at least so many answers of a kind (`list 200`) were given.
    pub(crate) async fn answered(&self, kind: &str, count: u64) {
        self.until(kind, |scene| scene.answers(kind) >= count).await;
    }

    pub(crate) fn answers(&self, kind: &str) -> u64 {
        let answers = self.server.stats().answers;
        answers.get(kind).copied().unwrap_or_default()
    }

    /// Waits until this is so.
    pub(crate) async fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            let (sight, stats): (Sight, Stats) = (self.watcher.sight(), self.server.stats());
            assert!(
                begun.elapsed() < LIMIT,
                "not within {LIMIT:?}: {what}; {:?}; {sight:?}; {stats:?}",
                self.workers()
            );
            sleep(LOOK).await;
        }
    }
}
