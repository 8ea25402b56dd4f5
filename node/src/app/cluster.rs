//! Starts what follows gossip: the fleet, probes of its workers, comparisons with peers, warm-ups.

use std::num::NonZeroU32;
use std::sync::Arc;

use anyhow::Context;
use grapevine_gossip::Agent;
use grapevine_gossip::evidence::EvidenceEvent;
use grapevine_transfer::PairRules;
use tokio::sync::{mpsc, watch};

use super::base::Base;
use crate::cluster::agreement::{Samples, Survey, SurveyParts, Views};
use crate::cluster::{Cluster, Pairing, WorkerDefaults, refuse_replica};
use crate::config::Config;
use crate::follow::Follower;
use crate::kv_events::{Caches, KvFollower, KvParts, TakeOver};
use crate::lag::Lag;
use crate::learner::Learner;
use crate::upstream::Connector;
use crate::upstream::duty::Duty;
use crate::upstream::probe::Prober;
use crate::upstream::probe_parts::Learned;
use crate::upstream::probe_parts::ProbeParts;
use crate::warmup::{WarmUpParts, WarmUps};

/// Answers of workers to "what do you serve?" that wait for the registry.
const LEARNED_WAITING_MAX: usize = 1_024;

/// The cluster as this replica sees it.
pub(super) struct Followed {
    /// Fleet and placement.
    pub(super) cluster: Arc<Cluster>,
    /// Takes what workers say of themselves.
    pub(super) learned: mpsc::Sender<Learned>,
    /// What is known of workers' caches.
    pub(super) caches: Arc<Caches>,
    /// Whether what peers know of caches was taken over, or cannot be had.
    pub(super) handed_over: watch::Receiver<bool>,
    /// Warm-ups of workers that join.
    pub(super) warm_ups: Arc<WarmUps>,
}

/// What the tasks hear of.
pub(super) struct Heard {
    /// What peers send of caches.
    pub(super) evidence: mpsc::Receiver<EvidenceEvent>,
    /// Whether the registry has the labels of configured workers, or does not take them.
    pub(super) is_labelled: watch::Receiver<bool>,
}

/// Builds the cluster, and the tasks that keep it up to date.
/// Errors: a configured worker cannot be registered.
pub(super) fn start_cluster(
    base: Base<'_>,
    connector: &Arc<Connector>,
    heard: Heard,
    caches: Arc<Caches>,
) -> anyhow::Result<Followed> {
    let cluster = cluster(base, connector, &caches);
    answer_peers(base.agent, &cluster);
    let configured = base.config.worker.iter().map(|worker| worker.registered());
    let configured = configured.collect::<Result<Vec<_>, _>>()?;
    let view = base.agent.view();
    for (id, spec) in &configured {
        refuse_replica(&view, spec).with_context(|| format!("worker {id}"))?;
    }
    base.agent.configure_all(configured)?;

    let (learned, to_learn) = mpsc::channel(LEARNED_WAITING_MAX);
    let fingerprint = base.live(Config::fingerprint);
    let (agent, told) = (Arc::clone(base.agent), fingerprint.clone());
    base.changes.on(move |_| agent.set_settings(&told.look()));
    let paused = Arc::clone(&cluster);
    base.changes
        .on(move |config| paused.shorten_pauses(config.retry.worker_pause_max));
    let handed_over = take_over_caches(base, &caches);
    let follower = Follower {
        agent: Arc::clone(base.agent),
        cluster: Arc::clone(&cluster),
        prober: prober(base, learned.clone()),
        kv_events: kv_events(base, &caches, &handed_over),
        views: Views::new(
            base.agent.replica().clone(),
            fingerprint,
            base.metrics.cluster.clone(),
        ),
        is_labelled: heard.is_labelled,
        caught_up: base.shutdown.caught_up(),
        phase: base.phase(),
    };
    base.run("follow", follower.run(heard.evidence));
    let learner = Learner::new(Arc::clone(base.agent), Arc::clone(&cluster));
    base.run("learn", learner.run(to_learn, base.phase()));

    let warm_ups = Arc::new(WarmUps::new(WarmUpParts {
        agent: Arc::clone(base.agent),
        cluster: Arc::clone(&cluster),
        metrics: base.metrics.warmup.clone(),
        config: base.live(|config| config.warmup.clone()),
        timeouts: base.live(|config| config.timeouts.clone()),
        phase: base.phase(),
    }));
    base.run("warm_up", Arc::clone(&warm_ups).run());
    Ok(Followed {
        cluster,
        learned,
        caches,
        handed_over,
        warm_ups,
    })
}

/// A cluster without workers, and the task that compares its decisions with those of peers.
fn cluster(base: Base<'_>, connector: &Arc<Connector>, caches: &Arc<Caches>) -> Arc<Cluster> {
    let config = base.config;
    let defaults = WorkerDefaults {
        idle_max: base.live(|config| config.timeouts.upstream_idle),
        breaker: base.live(|config| config.breaker.clone()),
        health: base.live(|config| config.health.clone()),
        connector: Arc::clone(connector),
        kv_connector: config.transfer.connector,
        pairing: Pairing {
            rules: PairRules {
                mixed_tensor_parallel: config.transfer.mixed_tensor_parallel,
            },
            across_zones: config.transfer.across_zones,
        },
        worker_series: config.metrics.worker_series as usize,
        metrics: base.metrics.of_upstream(),
    };
    let (samples, asked) = Samples::new();
    let cluster = Cluster::new(
        config.cluster_settings(),
        defaults,
        base.agent,
        Arc::clone(&samples),
        base.metrics.cluster.clone(),
        Arc::clone(caches),
    );
    if let Some(per_s) = NonZeroU32::new(config.gossip.agreement_samples) {
        let parts = SurveyParts {
            agent: Arc::clone(base.agent),
            samples,
            metrics: base.metrics.cluster.clone(),
            settings: config.cluster_settings().fingerprint(),
            per_s,
            phase: base.phase(),
        };
        base.run("survey", Survey::new(parts, asked).run());
    }
    Arc::new(cluster)
}

/// What peers ask for is in the cluster, as long as it lives.
fn answer_peers(agent: &Agent, cluster: &Arc<Cluster>) {
    let asked = Arc::downgrade(cluster);
    agent.answer_dry_runs(Arc::new(move |question, at| {
        asked.upgrade().and_then(|c| c.dry_run(question, at))
    }));
    let known = Arc::downgrade(cluster);
    agent.serve_evidence(Arc::new(move || {
        known.upgrade().map_or_else(Vec::new, |c| c.evidence())
    }));
}

/// Asks peers what they know of caches, where that is of use.
fn take_over_caches(base: Base<'_>, caches: &Arc<Caches>) -> watch::Receiver<bool> {
    let is_enabled = base.config.kv_events.enabled;
    let (done, handed_over) = watch::channel(!is_enabled);
    if is_enabled {
        let take_over = TakeOver {
            agent: Arc::clone(base.agent),
            caches: Arc::clone(caches),
            done,
        };
        base.run("take_over", take_over.run(base.phase()));
    }
    handed_over
}

/// Hears every worker that publishes, where that is on.
fn kv_events(
    base: Base<'_>,
    caches: &Arc<Caches>,
    handed_over: &watch::Receiver<bool>,
) -> Option<KvFollower> {
    let config = &base.config.kv_events;
    config.enabled.then(|| {
        KvFollower::new(KvParts {
            caches: Arc::clone(caches),
            silence: config.silence,
            standing: base.standing.clone(),
            handed_over: handed_over.clone(),
        })
    })
}

fn prober(base: Base<'_>, learned: mpsc::Sender<Learned>) -> Prober {
    let lag = Arc::new(Lag::default());
    let measuring = Arc::clone(&lag).measure(base.metrics.process.clone(), base.phase());
    base.run("timer_lag", measuring);
    let parts = ProbeParts {
        config: base.live(|config| config.health.clone()),
        learned,
        metrics: base.metrics.of_upstream(),
        duty: Duty(Arc::clone(base.agent)),
        lag,
        connector: base.config.transfer.connector,
        timeouts: base.live(|config| config.timeouts.clone()),
    };
    Prober::new(parts, base.standing.clone())
}
