//! Active health checks: one task per worker, each probe with a deadline.
//!
//! Control path, so reqwest. A worker whose models nobody knows is asked for them as well; the answer goes
//! to the registry once, and a later difference is reported, never taken over silently: a pool that changed
//! with what one replica happened to hear would differ between replicas.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::Worker;
use super::engine::EngineFacts;
use crate::cluster::Fleet;
use crate::config::HealthConfig;

/// Largest answer to `/v1/models` that is read, in bytes.
const MODELS_BYTES_MAX: u64 = 256 * 1024;
/// Largest answer to `/metrics` that is read, in bytes.
const METRICS_BYTES_MAX: usize = 1 << 20;
/// Every so many probes a worker is asked again what it serves, and how large its cache is.
const RECHECK_PROBES: u64 = 60;

/// What a worker says of itself that the registry does not know yet.
#[derive(Debug)]
pub struct Learned {
    /// Who was asked.
    pub worker: Arc<Worker>,
    /// What it said.
    pub fact: Fact,
}

/// Something that a worker says of itself.
#[derive(Debug)]
pub enum Fact {
    /// The models that it serves.
    Models(Vec<String>),
    /// Seconds since 1970 at which it started: later than the registry knows, so its cache is empty.
    Started(u64),
}

/// How to ask.
#[derive(Debug)]
pub struct ProbeParts {
    /// Interval and path.
    pub config: HealthConfig,
    /// Where facts go that the registry does not know.
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
        let checked = check(&worker, &parts).await;
        let good = checked.is_ok();
        let changed = worker.health.probed(good);
        let health = worker.health.probes().as_str();
        match checked {
            Err(why) if changed => {
                tracing::info!(
                    worker = &*worker.label,
                    health,
                    why,
                    "worker health changed"
                );
            }
            Err(why) => tracing::debug!(worker = &*worker.label, why, "probe failed"),
            Ok(()) if changed => {
                tracing::info!(worker = &*worker.label, health, "worker health changed");
            }
            Ok(()) => {}
        }
        let known = worker.models.load();
        let recheck = probe % RECHECK_PROBES == RECHECK_PROBES - 1;
        if good && (probe == 0 || changed || recheck) {
            ask_engine(&worker, &parts).await;
        }
        if good && (known.is_empty() || recheck) {
            ask_models(&worker, &known, &parts).await;
        }
        worker.idle.sweep(Instant::now());
    }
}

async fn get(worker: &Worker, path: &str) -> anyhow::Result<reqwest::Response> {
    let request = worker.reach.get(&worker.address, path).await?;
    Ok(request.send().await?)
}

/// Ok for a 2xx, else what a person should know.
async fn check(worker: &Worker, parts: &ProbeParts) -> Result<(), String> {
    match get(worker, &parts.config.path).await {
        Ok(response) if response.status().is_success() => Ok(()),
        Ok(response) => Err(format!("it answered {}", response.status())),
        // With its causes: what TLS or the rule of `workers.allow` says is the last of them.
        Err(error) => Err(format!("{error:#}")),
    }
}

fn learn(worker: &Arc<Worker>, fact: Fact, parts: &ProbeParts) {
    let worker = Arc::clone(worker);
    // A full queue means that many are being learned; a later probe asks again.
    let _ = parts.learned.try_send(Learned { worker, fact });
}

/// Learns the size of the worker's cache, and whether it restarted; a worker without such metrics keeps the configured size.
async fn ask_engine(worker: &Arc<Worker>, parts: &ProbeParts) {
    match engine_of(worker).await {
        Ok(facts) => {
            let tokens = facts.cache_tokens.unwrap_or(0);
            worker.cache_tokens.store(tokens, Ordering::Relaxed);
            let known = worker.epoch.load(Ordering::Relaxed);
            if let Some(started) = facts.started.filter(|started| *started > known) {
                learn(worker, Fact::Started(started), parts);
            }
        }
        Err(error) => {
            tracing::debug!(worker = &*worker.label, %error, "worker did not give its metrics");
        }
    }
}

async fn engine_of(worker: &Worker) -> anyhow::Result<EngineFacts> {
    let mut response = get(worker, "/metrics").await?.error_for_status()?;
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        anyhow::ensure!(
            text.len() + chunk.len() <= METRICS_BYTES_MAX,
            "more than {METRICS_BYTES_MAX} bytes"
        );
        text.extend_from_slice(&chunk);
    }
    let text = String::from_utf8_lossy(&text);
    Ok(EngineFacts::parse(&text, worker.address.rank()))
}

async fn ask_models(worker: &Arc<Worker>, known: &[String], parts: &ProbeParts) {
    match models_of(worker).await {
        Ok(models) if models.is_empty() => {
            tracing::warn!(worker = &*worker.label, "worker lists no models");
        }
        Ok(models) if known.is_empty() => {
            learn(worker, Fact::Models(models), parts);
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

async fn models_of(worker: &Worker) -> anyhow::Result<Vec<String>> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        id: String,
    }
    let response = get(worker, "/v1/models").await?.error_for_status()?;
    let length = response.content_length().unwrap_or(0);
    anyhow::ensure!(length <= MODELS_BYTES_MAX, "answer of {length} bytes");
    let list: List = serde_json::from_slice(&response.bytes().await?)?;
    Ok(list.data.into_iter().map(|item| item.id).collect())
}
