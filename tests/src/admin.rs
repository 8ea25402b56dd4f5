//! A replica's admin port, as far as tests read it.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::http1::{self, Connection};
use crate::wait::{LIMIT, eventually, so};

/// The admin port of one replica.
#[derive(Debug, Clone, Copy)]
pub struct Admin(pub SocketAddr);

/// `GET /ring`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Ring {
    /// Digest over all pools.
    pub digest: String,
    /// Registered workers.
    pub workers: usize,
    /// One ring a model.
    pub pools: Vec<Pool>,
}

/// One model's ring.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pool {
    /// The model.
    pub model: String,
    /// Digest of its ring.
    pub digest: String,
    /// Ids of its workers.
    pub workers: Vec<String>,
}

/// `GET /cluster`.
#[derive(Debug, Clone, Deserialize)]
pub struct View {
    /// Takes traffic.
    pub ready: bool,
    /// Reasons why it is not ready; earlier releases do not report them.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Live replicas with the same digest and settings.
    pub agreeing: usize,
    /// Live replicas, the asked one included.
    pub live: usize,
    /// Every known replica.
    pub replicas: Vec<Peer>,
}

impl View {
    /// It holds the cluster's view and is not leaving. Reasons that concern workers do not count here.
    pub fn is_in(&self) -> bool {
        let of_workers = ["no_worker", "no_worker_reachable", "models_unknown"];
        let mut missing = self.missing.iter();
        let is_waiting = !self.missing.is_empty();
        self.ready || is_waiting && missing.all(|lack| of_workers.contains(&lack.as_str()))
    }
}

/// One replica in another's view.
#[derive(Debug, Clone, Deserialize)]
pub struct Peer {
    /// Its name.
    pub id: String,
    /// Seen as alive.
    pub live: bool,
    /// It reports that it takes traffic.
    pub ready: bool,
    /// It reports that it is leaving; earlier releases do not.
    #[serde(default)]
    pub leaving: bool,
    /// Rises with each of its starts.
    pub generation: u64,
    /// Its release.
    pub version: String,
    /// Digest of its registry, as it reports it.
    pub registry: String,
}

/// One worker in `GET /workers`.
#[derive(Debug, Clone, Deserialize)]
pub struct Worker {
    /// Its id.
    pub id: String,
    /// Its models; empty while they are unknown.
    pub models: Vec<String>,
    /// `active`, `warming` or `draining`.
    pub state: String,
    /// Its share beside those of the others.
    pub weight: f64,
    /// Seconds since 1970 at which its process started; 0 while unknown.
    pub epoch: u64,
    /// `healthy`, `unhealthy` or `unknown`.
    pub health: String,
    /// `closed`, `open` or `half_open`.
    pub breaker: String,
    /// The replica's own verdict: `good`, `unreachable`, `unhealthy`, `stalled` or `ejected`.
    pub verdict: String,
    /// Share of the mean load that it may have, while it starts slowly.
    pub slow_start: Option<f64>,
    /// Seconds since its metrics were last read.
    pub metrics_age_s: Option<u64>,
    /// Requests in flight over the cluster, as placement counts them.
    pub in_flight: f64,
    /// Prompt tokens there that are to be computed, over the cluster; earlier releases do not report them.
    #[serde(default)]
    pub pending_prefill_tokens: f64,
    /// Tokens of context there, over the cluster; earlier releases do not report them.
    #[serde(default)]
    pub context_tokens: f64,
}

/// Answer of `POST /explain`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Explained {
    /// Where the request would go.
    pub worker: Option<String>,
    /// Where it would go without load and failures.
    pub home: Option<String>,
    /// Why.
    pub reason: String,
    /// Tokens of the prompt that are expected in that worker's cache.
    pub expected_tokens: u32,
    /// Ring digest of the replica.
    pub digest: String,
    /// Of a request that is divided: where its prompt would be computed.
    #[serde(default)]
    pub prefill: Option<Prefill>,
}

/// The worker that would compute a prompt for the one that answers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Prefill {
    /// The worker.
    pub worker: Option<String>,
    /// Why.
    pub reason: String,
}

impl Explained {
    /// The worker that computes the prompt, of a request that is divided, and the worker that answers.
    pub fn pair(&self) -> (Option<&str>, Option<&str>) {
        let prefill = self.prefill.as_ref().and_then(|leg| leg.worker.as_deref());
        (prefill, self.worker.as_deref())
    }
}

/// Answer to a change of the worker set.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Changed {
    /// The worker's id.
    pub id: String,
    /// Live peers that have the change.
    #[serde(default)]
    pub confirmed_by: usize,
    /// A peer has it; false as well where there was nothing to change.
    #[serde(default)]
    pub replicated: bool,
    /// `active`, `warming` or `draining`; none for a removed worker.
    pub state: Option<String>,
}

impl Admin {
    /// `GET /ring`.
    pub async fn ring(self) -> Ring {
        self.get("/ring").await
    }

    /// `GET /cluster`.
    pub async fn view(self) -> View {
        self.get("/cluster").await
    }

    /// `GET /workers`.
    pub async fn workers(self) -> Vec<Worker> {
        #[derive(Deserialize)]
        struct Workers {
            workers: Vec<Worker>,
        }
        self.get::<Workers>("/workers").await.workers
    }

    /// The worker with this id; panics if there is none.
    pub async fn worker(self, id: &str) -> Worker {
        let mut workers = self.workers().await.into_iter();
        let found = workers.find(|worker| worker.id == id);
        found.unwrap_or_else(|| panic!("no worker {id}"))
    }

    /// Waits until the replica's verdict on a worker is this one.
    pub async fn verdict(self, id: &str, verdict: &str) -> Duration {
        let (_, took) = eventually(LIMIT, verdict, async || {
            let worker = self.worker(id).await;
            let is_so = worker.verdict == verdict;
            so(is_so, || format!("{worker:?}"))
        })
        .await;
        took
    }

    /// Attempts that the replica has made at a worker, with any result.
    pub async fn attempts(self, id: &str) -> f64 {
        let metrics = self.metrics().await;
        metrics.sum("grapevine_attempts_total", &format!("worker=\"{id}\""))
    }

    /// Whether `GET /readyz` reports that it takes traffic.
    pub async fn is_ready(self) -> bool {
        http1::get(self.0, "/readyz").await.head.status == 200
    }

    /// Adds a worker; panics unless it was accepted.
    pub async fn add(self, id: &str, url: &str, models: &[&str]) -> Changed {
        self.add_by("/workers", id, url, models).await
    }

    /// Adds a worker that takes requests at once; panics unless it was accepted.
    pub async fn add_cold(self, id: &str, url: &str, models: &[&str]) -> Changed {
        self.add_by("/workers?warmup=false", id, url, models).await
    }

    /// Adds a worker described by a JSON object that takes requests at once; panics unless it was accepted.
    pub async fn add_described(self, worker: &Value) -> Changed {
        let response = http1::post(self.0, "/workers?warmup=false", worker).await;
        assert_eq!(response.head.status, 201, "{}", response.text());
        response.json()
    }

    /// Changes a worker; panics unless it was accepted.
    pub async fn change(self, id: &str, change: &Value) -> Changed {
        let path = worker_path(id);
        let body = change.to_string();
        let response = http1::exchange(self.0, "PATCH", &path, &[], body.as_bytes()).await;
        assert_eq!(response.head.status, 200, "{}", response.text());
        response.json()
    }

    async fn add_by(self, path: &str, id: &str, url: &str, models: &[&str]) -> Changed {
        let body = json!({ "id": id, "url": url, "models": models });
        let response = http1::post(self.0, path, &body).await;
        assert_eq!(response.head.status, 201, "{}", response.text());
        response.json()
    }

    /// Removes a worker; panics unless it was there.
    pub async fn remove(self, id: &str) -> Changed {
        let path = worker_path(id);
        let response = http1::exchange(self.0, "DELETE", &path, &[], b"").await;
        assert_eq!(response.head.status, 200, "{}", response.text());
        response.json()
    }

    /// Where chats would go in a quiet cluster, asked one after the other on one connection.
    pub async fn explain(self, chats: &[Value]) -> Vec<Explained> {
        let mut connection = Connection::open(self.0).await;
        let mut answers = Vec::with_capacity(chats.len());
        for chat in chats {
            let target = "/explain?path=/v1/chat/completions&load=ignore";
            let bytes = http1::request("POST", target, &[], chat.to_string().as_bytes());
            connection.send(&bytes).await.expect("the replica is there");
            let response = connection.response().await.expect("the replica is there");
            assert_eq!(response.head.status, 200, "{}", response.text());
            answers.push(response.json());
        }
        answers
    }

    /// `GET /metrics`.
    pub async fn metrics(self) -> Metrics {
        Metrics(http1::get(self.0, "/metrics").await.text())
    }

    async fn get<T: DeserializeOwned>(self, path: &str) -> T {
        http1::get(self.0, path).await.json()
    }
}

/// The path of a worker in the admin API.
pub fn worker_path(id: &str) -> String {
    format!("/workers/{}", id.replace(':', "%3A").replace('/', "%2F"))
}

/// Where every metric stands.
const DOCUMENTED: &str = include_str!("../../docs/metrics.md");

/// Metrics as text.
#[derive(Debug, Clone)]
pub struct Metrics(String);

impl Metrics {
    /// Every series of a metric: its labels as written, and its value. Panics if there is no such metric: neither shown here
    /// nor in the documents, which have those too of which nothing was counted yet.
    pub fn series(&self, name: &str) -> Vec<(&str, f64)> {
        let suffix = ["_total", "_count", "_sum"].into_iter();
        let base = suffix.fold(name, |name, suffix| name.trim_end_matches(suffix));
        let types = self.0.lines();
        let types = types.filter_map(|line| line.strip_prefix("# TYPE "));
        let mut types = types.filter_map(|rest| rest.split(' ').next());
        let known = types.any(|known| known == name || known == base)
            || [name, base]
                .map(|name| DOCUMENTED.contains(&format!("`{name}`")))
                .contains(&true);
        assert!(known, "no metric {name} in:\n{}", self.0);
        let lines = self.0.lines().filter_map(|line| line.strip_prefix(name));
        lines
            .filter_map(|rest| {
                let (labels, value) = rest.rsplit_once(' ')?;
                let whole_name = labels.is_empty() || labels.starts_with('{');
                whole_name.then(|| (labels, value.parse().expect("a value is a number")))
            })
            .collect()
    }

    /// Sum over the series whose labels contain `label`.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let series = self.series(name);
        let chosen = series.iter().filter(|(labels, _)| labels.contains(label));
        chosen.map(|(_, value)| value).sum()
    }

    /// The same; 0 where nothing was ever counted: a family without series is not shown.
    pub fn count(&self, name: &str, label: &str) -> f64 {
        let begins = |line: &str| line.starts_with(name);
        match self.0.lines().any(begins) {
            true => self.sum(name, label),
            false => 0.0,
        }
    }
}
