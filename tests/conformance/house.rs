//! One replica and its fake workers.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Canned, Config, Entry, FakeWorker, Fault, Rule};
use grapevine_tests::chat;
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::invariants;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde_json::Value;

/// A replica and its workers.
pub(crate) struct House {
    pub(crate) cluster: Cluster,
    pub(crate) workers: Vec<FakeWorker>,
}

/// A worker that answers at once.
pub(crate) fn quick() -> Config {
    chat::paced(Duration::from_millis(1))
}

/// Waits until the first replica's log has a line with this text: lines are written in the background.
pub(crate) async fn until_log_says(cluster: &Cluster, text: &str) {
    eventually(LIMIT, "the log says it", async || {
        let log = cluster.replicas[0].log();
        log.contains(text).then_some(()).ok_or(log)
    })
    .await;
}

impl House {
    /// Starts `count` quick workers and a replica that knows them.
    pub(crate) async fn new(count: usize) -> Self {
        Self::of(Plan::default(), vec![quick(); count]).await
    }

    /// Starts workers of these configurations and a replica with this plan.
    pub(crate) async fn of(mut plan: Plan, configs: Vec<Config>) -> Self {
        let mut workers = Vec::with_capacity(configs.len());
        for config in configs {
            let models: Vec<String> = config.models.clone();
            let models: Vec<&str> = models.iter().map(String::as_str).collect();
            let worker = chat::worker(config).await;
            plan = plan.worker(&worker.url(), &models);
            workers.push(worker);
        }
        Self::with(plan, workers).await
    }

    /// Starts a replica with this plan, which has these workers and perhaps others.
    pub(crate) async fn with(plan: Plan, workers: Vec<FakeWorker>) -> Self {
        let configured = plan.worker_count();
        let mut cluster = plan.found().await;
        let admin = cluster.join("r1", Vec::new()).await.admin();
        // A replica serves before it is ready: alone it first looks for others for a while.
        eventually(LIMIT, "the replica knows its workers", async || {
            let known = admin.ring().await.workers;
            so(known == configured, || format!("{known} workers"))
        })
        .await;
        Self { cluster, workers }
    }

    /// Its first worker replies to the next request with this.
    pub(crate) fn reply_next(&self, reply: Canned) {
        let fault = Fault {
            reply: Some(reply),
            ..Fault::default()
        };
        self.workers[0]
            .add_rule(Rule::next(1, fault))
            .expect("room for a rule");
    }

    /// Waits until the replica takes traffic, and its view, which follows by gossip's way, has it as ready.
    pub(crate) async fn until_ready(&self) {
        let admin = self.cluster.replicas[0].admin();
        eventually(LIMIT, "the replica is ready", async || {
            let is_ready = admin.is_ready().await;
            let replicas = admin.view().await.replicas;
            let is_seen = replicas.iter().any(|replica| replica.ready);
            so(is_ready && is_seen, || format!("{replicas:?}"))
        })
        .await;
    }

    /// The data port.
    pub(crate) fn data(&self) -> SocketAddr {
        self.cluster.replicas[0].data()
    }

    /// The index of the worker that gets this chat without other load, once all workers are healthy.
    pub(crate) async fn home(&self, chat: &Value) -> usize {
        let admin = self.cluster.replicas[0].admin();
        eventually(LIMIT, "all workers of the house are healthy", async || {
            let known = admin.workers().await;
            let mut ours = self.workers.iter().map(FakeWorker::url);
            let healthy = ours.all(|url| {
                let mut known = known.iter();
                known.any(|worker| worker.id == url && worker.health == "healthy")
            });
            so(healthy, || format!("{known:?}"))
        })
        .await;
        let explained = admin.explain(std::slice::from_ref(chat)).await;
        let url = explained[0].worker.as_ref().expect("somebody is healthy");
        let home = self.workers.iter().position(|worker| worker.url() == *url);
        home.expect("workers are named by their URL")
    }

    /// Log entries of the workers for requests with this text in `x-request-id`.
    pub(crate) fn seen(&self, request_id: &str) -> Vec<Entry> {
        let entries = self.workers.iter().flat_map(FakeWorker::log);
        entries
            .filter(|entry| entry.request_id.as_deref() == Some(request_id))
            .collect()
    }

    /// Waits until the replica's log has a line with this text: lines are written in the background.
    pub(crate) async fn until_log_says(&self, text: &str) {
        until_log_says(&self.cluster, text).await;
    }

    /// Ends a test: checks the invariants of every test of a cluster.
    pub(crate) async fn close(self) {
        invariants::hold(&self.cluster, &self.workers, &[]).await;
    }
}
