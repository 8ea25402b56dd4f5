//! `GET /workers`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use grapevine_gossip::registry::Worker as Registered;
use grapevine_gossip::worker::{Labels, WorkerId};
use grapevine_placement::Claim;
use serde::Serialize;
use tokio::time::Instant;

use crate::admin::Admin;
use crate::admin::page::Page;
use crate::api::cards::Card;
use crate::cluster::Fleet;
use crate::kv_events::EngineView;
use crate::page::history::History;
use crate::upstream::Worker;
use crate::warmup::Progress;

/// `GET /workers`.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct WorkersView {
    /// One page of them, in order of their ids.
    workers: Vec<WorkerView>,
    /// All of them.
    total: usize,
    /// `?after=` of the next page; null on the last one.
    next: Option<String>,
}

/// One worker.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct WorkerView {
    id: String,
    url: String,
    models: Vec<String>,
    weight: f64,
    /// Which half of a request it takes; `any`: the whole.
    role: &'static str,
    /// What is known of it beyond that.
    labels: BTreeMap<String, String>,
    /// Number of data-parallel ranks, if declared.
    dp_size: Option<u32>,
    state: &'static str,
    /// How its engine sleeps, `weights_offloaded` or `discard_all`, as it says; null of one that is awake.
    asleep: Option<String>,
    /// An administrator drained it, beside what its sources say.
    drained: bool,
    /// Who says that it is there: `admin`, `config`, or sources of `GET /discovery`.
    sources: Vec<String>,
    /// Seconds since 1970 at which its process started, as it reports; 0 while that is not known.
    epoch: u64,
    max_in_flight: Option<u32>,
    zone: Option<String>,
    /// What probes and connections say.
    health: &'static str,
    breaker: &'static str,
    /// What this replica found out by itself, all in all.
    verdict: &'static str,
    verdict_for_s: u64,
    /// How its latest check failed: `refused`, `no_address`, `no_connection`, `no_answer`, `bad_answer`; null after a
    /// good one.
    failed_check: Option<&'static str>,
    /// The same in words; of one whose checks are good, what is amiss with what it says of its models.
    why: Option<String>,
    /// The status with which it refused the key of this replica last, 401 or 403; null where it takes it.
    key_refused: Option<u16>,
    /// Takes requests and delivers no token.
    stalled: bool,
    /// Times that its breaker opened, as far as it remembers.
    ejections: u32,
    /// Milliseconds until the breaker lets a trial pass; 0 unless it is open.
    ejected_for_ms: u64,
    /// What another replica says against it, where nothing here speaks for it.
    doubted: Option<&'static str>,
    /// Share of the mean load that it may have, while it starts slowly.
    slow_start: Option<f64>,
    /// Seconds for which it wants to be left alone, by its latest `Retry-After`.
    paused_s: Option<u64>,
    /// Seconds since it last answered with its metrics.
    metrics_age_s: Option<u64>,
    in_flight: f64,
    in_flight_here: u32,
    /// By live replica, as each reports; null of one that sent nothing for 2 s. Of a single worker only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::admin) in_flight_at: Option<BTreeMap<String, Option<u32>>>,
    /// Models that were declared for it, and that it did not list when this replica asked it last. Of one whose models are
    /// learned there is none: another replica may have learned newer ones.
    unlisted_models: Vec<String>,
    /// Seconds by which its clock is ahead of this replica's, by the `Date` of its latest answer to a check; null where
    /// it sends none.
    clock_ahead_s: Option<i64>,
    /// Answers at this replica whose usage said how much of the prompt was cached, since the worker came.
    usage_with_details: u64,
    /// Answers at this replica whose usage did not.
    usage_without_details: u64,
    /// Share of the prompt tokens that it looked up in its cache, within ten minutes, 0 to 1; null where there were none, and
    /// where it does not tell.
    hit_rate: Option<f64>,
    pending_prefill_tokens: f64,
    context_tokens: f64,
    idle_connections: usize,
    /// What is known of the caches of its engines, where it publishes KV events.
    kv_caches: Vec<EngineView>,
    /// While it is warming.
    warm_up: Option<WarmUpView>,
}

/// A warm-up that is under way.
#[derive(Debug, Serialize)]
pub(in crate::admin) struct WarmUpView {
    /// The replica that warms it.
    by: String,
    /// Milliseconds until it becomes active at the latest.
    left_ms: u64,
    /// How far it is; the warming replica alone knows.
    #[serde(flatten)]
    progress: Option<Progress>,
}

impl Admin {
    pub(in crate::admin) fn describe_workers(&self, page: &Page) -> WorkersView {
        let fleet: &Fleet = &self.cluster.fleet();
        let mut all: Vec<&Arc<Worker>> = fleet.workers().collect();
        all.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let (workers, last) = page.cut(&all, |worker| worker.id.as_str());
        let next = last.map(|worker| worker.id.to_string());
        let workers = workers.iter();
        WorkersView {
            workers: workers
                .filter_map(|worker| self.describe_worker(worker))
                .collect(),
            total: all.len(),
            next,
        }
    }

    fn sources_of(&self, worker: &WorkerId) -> Vec<String> {
        let sources = self.agent.sources_of(worker);
        sources.iter().map(ToString::to_string).collect()
    }

    pub(in crate::admin) fn describe_worker(&self, worker: &Worker) -> Option<WorkerView> {
        let view = self.agent.view();
        let registered = view.worker(&worker.id)?;
        let spec = &registered.spec;
        let warming = registered.warming.as_ref();
        let load = self.cluster.load_of(worker);
        let report = worker.health.report();
        Some(WorkerView {
            id: worker.id.to_string(),
            url: spec.url().to_string(),
            models: spec.models().to_vec(),
            weight: f64::from(spec.weight_milli()) / 1000.0,
            role: spec.role().as_str(),
            labels: owned(&registered.labels),
            dp_size: spec.dp_size(),
            state: spec.state().as_str(),
            asleep: worker.asleep(),
            drained: registered.is_drained,
            sources: self.sources_of(&worker.id),
            epoch: spec.epoch(),
            max_in_flight: spec.max_in_flight(),
            zone: spec.zone().map(str::to_owned),
            health: report.probes.as_str(),
            breaker: report.breaker.as_str(),
            verdict: report.verdict.as_str(),
            verdict_for_s: report.since.as_secs(),
            failed_check: report.failed.as_ref().map(|(how, _)| how.as_str()),
            why: report
                .failed
                .map(|(_, why)| why.into())
                .or_else(|| worker.models_amiss()),
            key_refused: worker.refuses_key_with(),
            stalled: report.verdict == Claim::Stalled,
            ejections: report.ejections,
            ejected_for_ms: u64::try_from(report.shut_for.as_millis()).unwrap_or(u64::MAX),
            doubted: report.doubt.map(Claim::as_str),
            slow_start: report.slow_start,
            paused_s: worker.pause().map(|left| left.as_secs_f64().ceil() as u64),
            metrics_age_s: worker.scraped_ago(Instant::now()).map(|age| age.as_secs()),
            in_flight: load.exact_requests,
            in_flight_here: worker.load.own().requests,
            in_flight_at: None,
            unlisted_models: unlisted(registered, &worker.cards.load()),
            clock_ahead_s: worker.clock.ahead_s(),
            usage_with_details: worker.series.usages.detailed.load(Ordering::Relaxed),
            usage_without_details: worker.series.usages.plain.load(Ordering::Relaxed),
            hit_rate: self.hit_rate(&worker.id),
            pending_prefill_tokens: load.common.prefill_tokens,
            context_tokens: load.common.context_tokens,
            idle_connections: worker.idle.resting(),
            kv_caches: self.caches.describe(&worker.label),
            warm_up: warming.map(|warming| WarmUpView {
                by: warming.by.to_string(),
                left_ms: warming.until_ms.saturating_sub(self.agent.hybrid_ms()),
                progress: self.warm_ups.progress(&worker.id),
            }),
        })
    }

    fn hit_rate(&self, worker: &WorkerId) -> Option<f64> {
        let of = |history: &History| history.workers.hit_rate(worker.as_str(), HIT_RATE_OVER);
        self.recorder.show(|history, _| of(history))
    }
}

/// Models that were declared for a worker and that it does not list; nothing is known of one that lists none. What was
/// learned may be newer than the list: another replica may have asked later.
fn unlisted(registered: &Registered, listed: &[Card]) -> Vec<String> {
    if registered.models_are_learned || listed.is_empty() {
        return Vec::new();
    }
    let is_listed = |model: &&String| listed.iter().any(|card| card.id() == model.as_str());
    let models = registered.spec.models().iter();
    models.filter(|model| !is_listed(model)).cloned().collect()
}

/// The hit rate of a worker is that of this time.
const HIT_RATE_OVER: Duration = Duration::from_secs(600);

fn owned(labels: &Labels) -> BTreeMap<String, String> {
    let labels = labels.iter();
    labels
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use grapevine_gossip::worker::{RawWorker, WorkerSpec};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_learned_is_not_missed_in_an_older_list() {
        let of = |models: &[&str], models_are_learned| {
            let raw = RawWorker {
                models: models.iter().map(|&model| model.to_owned()).collect(),
                ..RawWorker::at("http://w:8000")
            };
            Registered {
                id: "w".parse().expect("an id"),
                spec: Arc::new(WorkerSpec::new(raw).expect("valid")),
                warming: None,
                labels: Arc::default(),
                is_drained: false,
                models_are_learned,
            }
        };
        let listed = Card::of(json!({ "id": "old" })).expect("a card");
        let unlisted =
            |registered: &Registered| unlisted(registered, std::slice::from_ref(&listed));
        assert_eq!(unlisted(&of(&["old", "new"], false)), ["new"]);
        assert!(unlisted(&of(&["new"], true)).is_empty());
        assert!(super::unlisted(&of(&["new"], false), &[]).is_empty());
    }
}
