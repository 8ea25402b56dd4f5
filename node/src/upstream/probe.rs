//! Active health checks: one task per worker, each probe with a deadline.
//!
//! Control path, so reqwest. A worker whose models nobody knows is asked for them as well; the answer goes
//! to the registry once, and a later difference is reported, never taken over silently: a pool that changed
//! with what one replica happened to hear would differ between replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::Worker;
use crate::cluster::Fleet;
use crate::config::HealthConfig;

/// Largest answer to `/v1/models` that is read, in bytes.
const MODELS_BYTES_MAX: u64 = 256 * 1024;
/// Every so many probes a worker is asked again what it serves.
const MODELS_RECHECK_PROBES: u64 = 60;

/// What a worker says it serves.
#[derive(Debug)]
pub struct Learned {
    /// Who was asked.
    pub worker: Arc<Worker>,
    /// Its models.
    pub models: Vec<String>,
}

/// How to ask.
#[derive(Debug)]
pub struct ProbeParts {
    /// Client with the probe's deadline built in.
    pub client: reqwest::Client,
    /// Interval and path.
    pub config: HealthConfig,
    /// Key for workers that want one.
    pub authorization: Option<http::HeaderValue>,
    /// Where models go that the registry does not know.
    pub learned: mpsc::Sender<Learned>,
}

/// Keeps one probing task per worker of the fleet; dropping it ends them.
#[derive(Debug)]
pub struct Prober {
    parts: Arc<ProbeParts>,
    tasks: BTreeMap<Arc<str>, (Arc<Worker>, AbortOnDropHandle<()>)>,
    tracker: TaskTracker,
}

impl Prober {
    /// A prober without workers.
    pub fn new(parts: ProbeParts, tracker: TaskTracker) -> Self {
        Self {
            parts: Arc::new(parts),
            tasks: BTreeMap::new(),
            tracker,
        }
    }

    /// Starts probing new workers and stops probing those that left.
    pub fn follow(&mut self, fleet: &Fleet) {
        let mut kept = BTreeMap::new();
        for worker in fleet.workers() {
            let task = match self.tasks.remove(&worker.label) {
                Some((known, task)) if Arc::ptr_eq(&known, worker) => task,
                _ => {
                    let probing = probe_for_ever(Arc::clone(worker), Arc::clone(&self.parts));
                    AbortOnDropHandle::new(self.tracker.spawn(probing))
                }
            };
            kept.insert(Arc::clone(&worker.label), (Arc::clone(worker), task));
        }
        self.tasks = kept;
    }
}

async fn probe_for_ever(worker: Arc<Worker>, parts: Arc<ProbeParts>) {
    let mut ticks = interval(parts.config.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for probe in 0_u64.. {
        ticks.tick().await;
        let good = is_healthy(&worker, &parts).await;
        if worker.health.probed(good) {
            let health = worker.health.probes().as_str();
            tracing::info!(worker = &*worker.label, health, "worker health changed");
        }
        let known = worker.models.load();
        if good && (known.is_empty() || probe % MODELS_RECHECK_PROBES == MODELS_RECHECK_PROBES - 1)
        {
            ask_models(&worker, &known, &parts).await;
        }
        worker.idle.sweep(Instant::now());
    }
}

fn get(url: String, parts: &ProbeParts) -> reqwest::RequestBuilder {
    let request = parts.client.get(url);
    match &parts.authorization {
        Some(key) => request.header(http::header::AUTHORIZATION, key.clone()),
        None => request,
    }
}

async fn is_healthy(worker: &Worker, parts: &ProbeParts) -> bool {
    let url = worker.address.url(&parts.config.path);
    match get(url, parts).send().await {
        Ok(response) => response.status().is_success(),
        Err(error) => {
            tracing::debug!(worker = &*worker.label, %error, "probe failed");
            false
        }
    }
}

async fn ask_models(worker: &Arc<Worker>, known: &[String], parts: &ProbeParts) {
    match models_of(worker, parts).await {
        Ok(models) if models.is_empty() => {
            tracing::warn!(worker = &*worker.label, "worker lists no models");
        }
        Ok(models) if known.is_empty() => {
            let learned = Learned {
                worker: Arc::clone(worker),
                models,
            };
            // A full queue means that many are being learned; the next probe asks again.
            let _ = parts.learned.try_send(learned);
        }
        Ok(models) => {
            let missing: Vec<_> = known.iter().filter(|m| !models.contains(m)).collect();
            if !missing.is_empty() {
                tracing::warn!(
                    worker = &*worker.label,
                    ?missing,
                    "worker no longer lists models that the registry says it serves; update or remove it"
                );
            }
        }
        Err(error) => {
            tracing::debug!(worker = &*worker.label, %error, "worker did not list its models");
        }
    }
}

async fn models_of(worker: &Worker, parts: &ProbeParts) -> anyhow::Result<Vec<String>> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        id: String,
    }
    let response = get(worker.address.url("/v1/models"), parts)
        .send()
        .await?
        .error_for_status()?;
    let length = response.content_length().unwrap_or(0);
    anyhow::ensure!(length <= MODELS_BYTES_MAX, "answer of {length} bytes");
    let list: List = serde_json::from_slice(&response.bytes().await?)?;
    Ok(list.data.into_iter().map(|item| item.id).collect())
}
