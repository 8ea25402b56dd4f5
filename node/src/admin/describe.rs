//! What `GET` shows: replicas, rings, workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use grapevine_gossip::PeerLink;
use grapevine_gossip::twin::Twin;
use grapevine_gossip::view::{ReplicaInfo, View};
use grapevine_gossip::worker::{Labels, WorkerId};
use grapevine_placement::Claim;
use serde::Serialize;
use tokio::time::Instant;

use super::Admin;
use super::about::ModelView;
use super::links::Unheard;
use super::page::{PAGE, Page};
use crate::api::cards::Card;
use crate::cluster::{Absent, Fleet, Liveness};
use crate::discovery::LostSource;
use crate::kv_events::EngineView;
use crate::page::history::minute::Minute;
use crate::page::history::{History, Spread};
use crate::readiness::Lack;
use crate::reload::RefusedReading;
use crate::upstream::Worker;
use crate::warmup::Progress;

/// `GET /cluster`.
#[derive(Debug, Serialize)]
pub(super) struct ClusterView {
    replica: String,
    ready: bool,
    /// What keeps it from being ready.
    missing: Vec<&'static str>,
    digest: String,
    settings: String,
    /// Live replicas with the same ring digest and settings as this one, itself included.
    agreeing: usize,
    live: usize,
    /// Share of the latest sampled requests on which a peer would have chosen the same worker.
    agreement: Option<f64>,
    agreement_samples: usize,
    registry: RegistryView,
    /// How it goes at this replica; null for its first seconds.
    minute: Option<MinuteView>,
    replicas: Vec<ReplicaView>,
    /// Live replicas that do not hear another one, the first 64 of such pairs.
    unheard: Vec<Unheard>,
    /// Replicas that died within the last hour without a word, and that nobody knows any more.
    lost: Vec<LostView>,
    /// Seeds at which this replica is not let in, while no other one lives for it ([`untold`]).
    silent_seeds: Vec<SilentSeed>,
    /// Sources of workers that this replica sees nothing of.
    lost_sources: Vec<LostSource>,
    /// Replica ids under which two processes run.
    twins: Vec<TwinView>,
    /// The latest reading of its configuration, where that was refused and the former one stays.
    refused_config: Option<RefusedConfigView>,
    /// The `[[model]]` sections of this replica: what may be asked for, whether a worker serves it or not.
    models: Vec<ModelView>,
}

/// The last minute, or what there was of it.
#[derive(Debug, Serialize)]
struct MinuteView {
    requests_per_s: f64,
    /// Requests that ended.
    requests: u64,
    /// Of these, and of those that had no endpoint yet, answered with "not now": 503 and the like, or 429 because a limit
    /// of this replica was reached. What a tenant has used up is not among them.
    refused: u64,
    /// Requests that ended by a fault of a worker or of this replica.
    failed: u64,
    /// Median time to the first token of a stream, evenly spread in its step of `first_token_seconds`; null where there
    /// was none.
    first_token_p50_ms: Option<f64>,
    /// The 99th percentile of the same.
    first_token_p99_ms: Option<f64>,
    /// At workers now, from all replicas.
    in_flight: f64,
    /// At this replica now.
    waiting: f64,
    /// Share of prompt tokens that came from workers' caches, 0 to 1; null where none was reported.
    hit_rate: Option<f64>,
}

impl From<Minute> for MinuteView {
    fn from(minute: Minute) -> Self {
        let ms =
            |of: fn(Spread) -> f32| minute.first_token.map(|spread| f64::from(of(spread)) * 1e3);
        Self {
            requests_per_s: minute.ended as f64 / f64::from(minute.over_s),
            requests: minute.ended,
            refused: minute.refused,
            failed: minute.failed,
            first_token_p50_ms: ms(|spread| spread.p50),
            first_token_p99_ms: ms(|spread| spread.p99),
            in_flight: minute.in_flight.into(),
            waiting: minute.waiting.into(),
            hit_rate: minute.hit_rate,
        }
    }
}

#[derive(Debug, Serialize)]
struct RefusedConfigView {
    /// Seconds since then.
    for_s: u64,
    /// The mistakes, one a line.
    why: String,
}

#[derive(Debug, Serialize)]
struct LostView {
    id: String,
    /// Seconds since it died.
    for_s: u64,
}

#[derive(Debug, Serialize)]
struct SilentSeed {
    /// As it is configured.
    seed: String,
    /// Seconds since it was heard, or was asked for the first time.
    for_s: u64,
    /// What it, or the way to it, says against a connection; null where nothing answers at all.
    why: Option<String>,
}

#[derive(Debug, Serialize)]
struct TwinView {
    id: String,
    /// Gossip address of the process that counts.
    kept: String,
    /// Gossip address of the other one, which is not ready until one of the two ends.
    cut_off: String,
}

#[derive(Debug, Serialize)]
struct RegistryView {
    crc: String,
    count: u32,
    stamp: String,
}

#[derive(Debug, Serialize)]
struct ReplicaView {
    id: String,
    live: bool,
    ready: bool,
    /// Told to end: it finishes what it has.
    leaving: bool,
    /// Why it troubles nobody that it is not alive: `joining` or `replaced`.
    absent: Option<&'static str>,
    generation: u64,
    /// None where it has no certificates, and does not gossip.
    gossip: Option<String>,
    data: String,
    admin: String,
    version: String,
    ring: String,
    settings: String,
    registry: String,
    /// Seconds for which it was seen as alive, ready and leaving as it is now; null before that is known.
    for_s: Option<u64>,
    /// Milliseconds since its latest report of load; null of this replica, and of one that was silent for a minute.
    heard_ms: Option<u64>,
    /// Milliseconds of a round trip on the connection from here; null while there is none.
    round_trip_ms: Option<f64>,
    /// Whole days that its certificate still holds, below 0 after its end; null where none was shown.
    certificate_days: Option<i64>,
}

/// `GET /events`.
#[derive(Debug, Serialize)]
pub(super) struct EventsView {
    replica: String,
    /// Oldest first.
    events: Vec<EventView>,
}

/// Something that happened.
#[derive(Debug, Serialize)]
struct EventView {
    /// Seconds since 1970.
    at_s: u64,
    /// Milliseconds since the start of this replica: names the event, with its text.
    noted_ms: u64,
    /// `fault`, `repair` or `change`.
    kind: &'static str,
    who: String,
    text: String,
}

/// `GET /ring`.
#[derive(Debug, Serialize)]
pub(super) struct RingsView {
    digest: String,
    pools: Vec<PoolView>,
    workers: usize,
    registry: RegistryView,
}

#[derive(Debug, Serialize)]
struct PoolView {
    model: String,
    /// `any`, or the part of a request that its workers are there for.
    role: &'static str,
    digest: String,
    /// More than half of its workers are unhealthy, and health is not believed.
    panic: bool,
    /// How many workers it has.
    count: usize,
    /// The first of them.
    workers: Vec<String>,
    /// The part of all prefixes that each of these is the home of, 0 to 1.
    shares: Vec<f64>,
    /// How they are chosen.
    policy: &'static str,
}

/// `GET /workers`.
#[derive(Debug, Serialize)]
pub(super) struct WorkersView {
    /// One page of them, in order of their ids.
    workers: Vec<WorkerView>,
    /// All of them.
    total: usize,
    /// `?after=` of the next page; null on the last one.
    next: Option<String>,
}

/// One worker.
#[derive(Debug, Serialize)]
pub(super) struct WorkerView {
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
    pub(super) in_flight_at: Option<BTreeMap<String, Option<u32>>>,
    /// Models that the registry says it serves, and that it did not list when this replica asked it last.
    unlisted_models: Vec<String>,
    /// Seconds by which its clock is ahead of this replica's, by the `Date` of its latest answer to a check; null where
    /// it sends none.
    clock_ahead_s: Option<i64>,
    /// Answers at this replica whose usage said how much of the prompt was cached, since the worker came.
    usage_with_details: u64,
    /// Answers at this replica whose usage did not.
    usage_without_details: u64,
    /// Share of its prompt tokens that came from its cache within ten minutes, 0 to 1; null where none was reported.
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
pub(super) struct WarmUpView {
    /// The replica that warms it.
    by: String,
    /// Milliseconds until it becomes active at the latest.
    left_ms: u64,
    /// How far it is; the warming replica alone knows.
    #[serde(flatten)]
    progress: Option<Progress>,
}

impl From<&RefusedReading> for RefusedConfigView {
    fn from(refused: &RefusedReading) -> Self {
        Self {
            for_s: refused.at.elapsed().as_secs(),
            why: refused.why.clone(),
        }
    }
}

impl From<Twin> for TwinView {
    fn from(twin: Twin) -> Self {
        Self {
            id: twin.replica.to_string(),
            kept: twin.kept.to_string(),
            cut_off: twin.cut_off.to_string(),
        }
    }
}

impl ReplicaView {
    fn of(replica: &ReplicaInfo, liveness: &Liveness, view: &View, link: PeerLink) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            for_s: liveness.lasts(replica).map(|lasts| lasts.as_secs()),
            absent: liveness.absent(replica, view).map(Absent::as_str),
            heard_ms: link.heard.map(ms),
            round_trip_ms: link.round_trip.map(|time| time.as_secs_f64() * 1e3),
            certificate_days: link.certificate_ends.map(days_until),
            id: replica.id.to_string(),
            live: replica.live,
            ready: replica.ready,
            leaving: replica.leaving,
            generation: replica.generation,
            gossip: (replica.gossip_addr.port() != 0).then(|| replica.gossip_addr.to_string()),
            data: replica.http.clone(),
            admin: replica.admin.clone(),
            version: replica.version.clone(),
            ring: replica.ring.clone(),
            settings: replica.settings.clone(),
            registry: replica.registry.clone(),
        }
    }
}

/// Whole days until then, below 0 after it.
fn days_until(end: SystemTime) -> i64 {
    const DAY_S: u64 = 24 * 60 * 60;
    let days = |time: Duration| i64::try_from(time.as_secs() / DAY_S).unwrap_or(i64::MAX);
    match end.duration_since(SystemTime::now()) {
        Ok(left) => days(left),
        Err(over) => -1 - days(over.duration()),
    }
}

/// Of silent seeds those that say more than the list of the other replicas, of which each is alive or not. Seeds are
/// mostly of them: of dead ones nobody answers, and a seed that answers and refuses shows that they are not dead.
fn untold(
    others: impl Iterator<Item = bool>,
    silent: impl Iterator<Item = SilentSeed>,
) -> Vec<SilentSeed> {
    let lives: Vec<bool> = others.collect();
    let is_untold = |seed: &SilentSeed| match lives.is_empty() {
        true => true,
        false => !lives.contains(&true) && seed.why.is_some(),
    };
    silent.filter(is_untold).collect()
}

impl Admin {
    fn registry(&self) -> RegistryView {
        let digest = self.agent.view().registry();
        RegistryView {
            crc: format!("{:08x}", digest.crc),
            count: digest.count,
            stamp: format!("{:016x}", digest.stamp.bits()),
        }
    }

    pub(super) fn describe_cluster(&self) -> ClusterView {
        let view = self.agent.view();
        let digest = self.cluster.fleet().digest().to_string();
        let settings = self.settings.now();
        let live: Vec<_> = view.replicas().iter().filter(|r| r.live).collect();
        let agreeing = live
            .iter()
            .filter(|r| r.ring == digest && r.settings == *settings)
            .count();
        let compared = self.cluster.samples().agreement();
        let missing: Vec<_> = self.readiness.missing().map(Lack::as_str).collect();
        ClusterView {
            replica: self.replica.clone(),
            ready: missing.is_empty(),
            missing,
            digest,
            settings: settings.to_string(),
            agreeing,
            live: live.len(),
            agreement: compared.map(|(ratio, _)| ratio),
            agreement_samples: compared.map_or(0, |(_, count)| count),
            registry: self.registry(),
            minute: self
                .recorder
                .show(|history, _| history.minute().map(MinuteView::from)),
            replicas: self.describe_replicas(&view),
            unheard: self.describe_unheard(&view),
            lost: self.describe_lost(),
            silent_seeds: self.describe_silent_seeds(&view),
            lost_sources: self.board.lost(),
            twins: self.agent.twins().into_iter().map(TwinView::from).collect(),
            refused_config: self
                .refused_config
                .load()
                .as_deref()
                .map(RefusedConfigView::from),
            models: self.configured.now().models.clone(),
        }
    }

    pub(super) fn describe_events(&self) -> EventsView {
        let events = self.recorder.show(|history, now| {
            let events = history.marks.iter().map(|mark| EventView {
                at_s: now.unix_s(mark.at),
                noted_ms: u64::try_from(mark.at.as_millis()).unwrap_or(u64::MAX),
                kind: mark.kind.as_str(),
                who: mark.who(),
                text: mark.text.clone(),
            });
            events.collect()
        });
        EventsView {
            replica: self.agent.replica().to_string(),
            events,
        }
    }

    fn describe_lost(&self) -> Vec<LostView> {
        let lost = self.cluster.liveness().lost().into_iter();
        let lost = lost.map(|(id, dead_for)| LostView {
            id: id.to_string(),
            for_s: dead_for.as_secs(),
        });
        lost.collect()
    }

    fn describe_silent_seeds(&self, view: &View) -> Vec<SilentSeed> {
        let own = self.agent.replica();
        let others = view.replicas().iter().filter(|replica| replica.id != *own);
        let silent = self.agent.silent_seeds().into_iter();
        let silent = silent.map(|silent| SilentSeed {
            seed: silent.seed,
            for_s: silent.lasts.as_secs(),
            why: silent.why,
        });
        untold(others.map(|replica| replica.live), silent)
    }

    fn describe_replicas(&self, view: &View) -> Vec<ReplicaView> {
        let links = self.agent.links();
        let replicas = view.replicas().iter().map(|replica| {
            let mut link = links.get(&replica.id).copied().unwrap_or_default();
            if replica.id == *self.agent.replica() {
                link.certificate_ends = self.agent.certificate_ends();
            }
            ReplicaView::of(replica, self.cluster.liveness(), view, link)
        });
        replicas.collect()
    }

    pub(super) fn describe_rings(&self) -> RingsView {
        let fleet = self.cluster.fleet();
        let pools = fleet.all_pools().map(|pool| PoolView {
            model: pool.model().to_owned(),
            role: pool.role().as_str(),
            digest: pool.digest().to_string(),
            panic: pool.panics(),
            count: pool.members().len(),
            workers: pool
                .members()
                .iter()
                .take(PAGE)
                .map(|member| member.worker.id.to_string())
                .collect(),
            shares: pool.shares().into_iter().take(PAGE).collect(),
            policy: pool.policy().policy.as_str(),
        });
        RingsView {
            digest: fleet.digest().to_string(),
            pools: pools.collect(),
            workers: fleet.workers().count(),
            registry: self.registry(),
        }
    }

    pub(super) fn describe_workers(&self, page: &Page) -> WorkersView {
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

    pub(super) fn describe_worker(&self, worker: &Worker) -> Option<WorkerView> {
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
            unlisted_models: unlisted(spec.models(), &worker.cards.load()),
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
}

impl Admin {
    fn hit_rate(&self, worker: &WorkerId) -> Option<f64> {
        let of = |history: &History| history.workers.hit_rate(worker.as_str(), HIT_RATE_OVER);
        self.recorder.show(|history, _| of(history))
    }
}

/// Models that a worker should serve and does not list; nothing is known of one that lists none.
fn unlisted(models: &[String], listed: &[Card]) -> Vec<String> {
    let is_listed = |model: &&String| listed.iter().any(|card| card.id() == model.as_str());
    let unlisted = models.iter().filter(|model| !is_listed(model));
    match listed.is_empty() {
        true => Vec::new(),
        false => unlisted.cloned().collect(),
    }
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
    use super::*;

    #[test]
    fn a_seed_that_refuses_is_told_beside_dead_replicas_and_a_silent_one_is_not() {
        let seeds = || {
            [None, Some("it refuses our certificate")].map(|why| SilentSeed {
                seed: why.unwrap_or("silent").to_owned(),
                for_s: 1,
                why: why.map(str::to_owned),
            })
        };
        let told = |others: &[bool]| untold(others.iter().copied(), seeds().into_iter());
        assert_eq!(told(&[]).len(), 2, "it knows of nobody else");
        let [refuses] = &told(&[false, false])[..] else {
            panic!("not one");
        };
        assert!(refuses.why.is_some());
        assert!(told(&[false, true]).is_empty(), "it is with another one");
    }
}
