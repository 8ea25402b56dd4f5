//! Warm-up of a joining worker: the hottest prefixes that will move to it are computed there before it gets requests.
//!
//! A worker that is added while running is registered as `warming`, with an end, by the replica that was asked. It is
//! known everywhere but in no ring, so rings change once, when it becomes active: when its warmer reports it done, or
//! by itself at that end. The replica that registered it warms it; nothing else has to be agreed upon.
//!
//! - `prompt.rs`: what is kept of a request, cut where its own part begins; pure.
//! - `store.rs`: the hot prompts that are kept, in memory only; pure, bounded.
//! - `plan.rs`: which of them will be looked for on the new worker; pure.
//! - `run.rs`: the warm-ups that are under way.
//!
//! Prompts are never logged and never leave the process, except to workers. Rules, each a test of that name:
//! `ordinary_requests_are_not_kept`, `memory_is_bounded`, `what_cooled_is_forgotten`.

mod metrics;
mod plan;
mod prompt;
mod run;
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use grapevine_gossip::Agent;
use grapevine_gossip::worker::{Role, State, WorkerId, WorkerSpec};
use grapevine_placement::{HotSet, Key, Link};
use parking_lot::Mutex;

pub use self::metrics::WarmupMetrics;
use self::prompt::{Asked, NotKept};
use self::store::Store;
use crate::api::Endpoint;
use crate::cluster::{Cluster, Pool};
use crate::config::{TimeoutConfig, WarmupConfig};
use crate::live::Live;
use crate::metrics::EventLabels;
use crate::shutdown::Phase;

/// Requests of the last minute, by half-life, that make a prefix worth keeping; in the units of a
/// [`HotSet`]. A conversation alone hardly gets there.
const WORTH_KEEPING: u64 = 8 * 16;
/// Largest body that is looked at, in bytes: reading one costs about a millisecond for each of these.
const BODY_BYTES_MAX: usize = 4 << 20;

/// Most new workers of one change that join with a warm-up; above it they are active at once, since so many new ones
/// change most homes anyway, and warming them all would take the workers that serve from clients.
pub const WARMED_TOGETHER_MAX: usize = 64;

/// What warm-ups are made of.
pub struct WarmUpParts {
    /// The registry, where a worker is warming or active.
    pub agent: Arc<Agent>,
    /// Fleet, heat, and what is known of caches.
    pub cluster: Arc<Cluster>,
    /// Where to count.
    pub metrics: WarmupMetrics,
    /// Limits.
    pub config: Live<WarmupConfig>,
    /// For connections to workers.
    pub timeouts: Live<TimeoutConfig>,
    /// Where this replica is between start and end.
    pub phase: Phase,
}

/// How far a warm-up of this replica is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// Prompts that were computed on it.
    pub warmed: usize,
    /// Prompts that it held already, by its KV events.
    pub held: usize,
    /// Prompts that it refused, or that failed.
    pub failed: usize,
    /// Prompts in all; 0 until that is known.
    pub of: usize,
}

impl Progress {
    /// One more prompt is done with: it was computed, or not, for whatever reason.
    fn count(&mut self, result: Result<(), &'static str>) {
        match result {
            Ok(()) => self.warmed += 1,
            Err(_) => self.failed += 1,
        }
    }
}

/// Hot prompts, and the warm-ups of this replica.
pub struct WarmUps {
    parts: WarmUpParts,
    store: Mutex<Store>,
    progress: Mutex<BTreeMap<WorkerId, Progress>>,
}

impl std::fmt::Debug for WarmUps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WarmUps").finish_non_exhaustive()
    }
}

impl WarmUps {
    /// Nothing kept, nothing under way. [`WarmUps::run`] does the rest.
    pub fn new(parts: WarmUpParts) -> Self {
        let config = parts.config.now();
        let store = Store::new(config.entries as usize, config.bytes.as_usize());
        Self {
            parts,
            store: Mutex::new(store),
            progress: Mutex::default(),
        }
    }

    /// Looks at a request that a worker took. Nearly free: a copy is made only of a prompt whose prefix is warm and
    /// not kept yet.
    pub fn offer(&self, endpoint: Endpoint, pool: &Pool, key: &Key, body: &Bytes) {
        if !self.parts.config.look().enabled
            || !matches!(endpoint, Endpoint::Chat | Endpoint::Completions)
        {
            return;
        }
        let hot = self.parts.cluster.cache_view().hot();
        let Some(depth) = deepest_worth_keeping(&hot, key) else {
            return;
        };
        if body.len() > BODY_BYTES_MAX
            || !self.store.lock().wants(depth.hash, hot.count(depth.hash))
        {
            return;
        }
        let asked = Asked {
            endpoint,
            model: pool.label(),
            body,
            key,
            settings: &self.parts.cluster.settings().key,
        };
        let event = match prompt::cut(
            &asked,
            depth,
            self.parts.config.look().entry_bytes.as_usize(),
        ) {
            Ok(prompt) => self.store.lock().keep(prompt, &hot),
            Err(why) => {
                self.store.lock().refuse(depth.hash);
                match why {
                    NotKept::TooLarge => "too_large",
                    NotKept::Unreadable => "unreadable",
                }
            }
        };
        let labels = EventLabels { event };
        let events = &self.parts.metrics.prompt_events;
        events.get_or_create(&labels).inc();
    }

    /// The state in which a new worker joins: warming if this replica has prompts for it, else active at once, as does
    /// one that takes one half of a request: a prompt alone warms neither. Also one that joins through a replica that
    /// leaves: its warm-up might not end, and until its time is over nobody would use it.
    /// A worker that is in use already stays in its state.
    pub fn joining_state(&self, id: &WorkerId, spec: &WorkerSpec) -> State {
        let is_new = self.parts.agent.view().worker(id).is_none();
        let is_needed = !self.parts.cluster.fleet().is_empty();
        let is_whole = spec.role() == Role::Any;
        if spec.state() != State::Active || !is_new || !is_needed || !is_whole {
            return spec.state();
        }
        let is_warmed = self.parts.config.look().enabled && !self.parts.phase.is_leaving();
        if !is_warmed || !self.store.lock().has_any_of(spec.models()) {
            return State::Active;
        }
        let limit = u64::try_from(self.parts.config.look().limit.as_millis()).unwrap_or(u64::MAX);
        State::Warming {
            until_ms: self.parts.agent.hybrid_ms().saturating_add(limit),
        }
    }

    /// Workers as they join: the new ones in [`Self::joining_state`], if there are few of them.
    pub fn joining(&self, put: Vec<(WorkerId, WorkerSpec)>) -> Vec<(WorkerId, WorkerSpec)> {
        if put.len() > WARMED_TOGETHER_MAX {
            return put;
        }
        let join = |(id, spec): (WorkerId, WorkerSpec)| {
            let mut raw = spec.to_raw();
            raw.state = self.joining_state(&id, &spec);
            (id, WorkerSpec::new(raw).unwrap_or(spec))
        };
        put.into_iter().map(join).collect()
    }

    /// How far this replica is with warming a worker; `None` if it does not.
    pub fn progress(&self, id: &WorkerId) -> Option<Progress> {
        self.progress.lock().get(id).copied()
    }

    /// Forgets what cooled, and updates the gauges of what is kept.
    fn tick(&self) {
        let hot = self.parts.cluster.cache_view().hot();
        let mut store = self.store.lock();
        let cooled = match self.parts.config.look().enabled {
            true => store.forget_cooled(&hot),
            // Nothing of a prompt is kept once it is switched off.
            false => store.forget_all(),
        };
        let (entries, bytes) = (store.len(), store.bytes());
        drop(store);
        let metrics = &self.parts.metrics;
        let event = "cooled";
        let events = metrics.prompt_events.get_or_create(&EventLabels { event });
        events.inc_by(cooled as u64);
        metrics.prompts_kept.set(entries as i64);
        metrics.prompts_kept_bytes.set(bytes as i64);
    }
}

/// The last mark of a prompt down to which all marks are worth keeping.
fn deepest_worth_keeping(hot: &HotSet, key: &Key) -> Option<Link> {
    let is_worth = |mark: &&Link| hot.count(mark.hash) >= WORTH_KEEPING;
    key.marks().iter().take_while(is_worth).last().copied()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use grapevine_placement::{HeatReport, KeyBuilder, KeySettings};
    use prometheus_client::registry::Registry;
    use tokio::sync::mpsc;

    use super::prompt::HotPrompt;
    use super::*;
    use crate::alone::{Alone, worker, worker_with};
    use crate::config::KvEventsConfig;
    use crate::shutdown::{Shutdown, ShutdownLimits, Signal};

    fn key(texts: &[&str]) -> Key {
        let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
        for text in texts {
            builder.begin_message("user");
            builder.text(text);
            builder.end_message();
        }
        builder.finish()
    }

    /// With one prompt, for workers of model `m`.
    fn warm_ups(shutdown: &Shutdown) -> WarmUps {
        let Alone { cluster, agent, .. } =
            Alone::new("r1", [worker(0, "m")], &KvEventsConfig::default(), 1);
        let warm_ups = WarmUps::new(WarmUpParts {
            agent,
            cluster: Arc::new(cluster),
            metrics: WarmupMetrics::register(&mut Registry::default()),
            config: WarmupConfig::default().into(),
            timeouts: TimeoutConfig::default().into(),
            phase: shutdown.phase(),
        });
        let key = key(&[&"system ".repeat(400)]);
        let prompt = HotPrompt {
            mark: key.marks()[0].hash,
            model: "m".into(),
            endpoint: Endpoint::Completions,
            body: Bytes::new(),
            key,
        };
        warm_ups.store.lock().keep(prompt, &HotSet::EMPTY);
        warm_ups
    }

    fn joins(warm_ups: &WarmUps, role: Role) -> State {
        let (id, spec) = worker_with("new", "m", |raw| raw.role = role);
        warm_ups.joining_state(&id, &spec)
    }

    /// There is no ring in which it could be looked for, and a prompt that it computed alone would warm nobody.
    #[test]
    fn who_takes_one_half_of_a_request_does_not_join_as_warming() {
        let warm_ups = warm_ups(&Shutdown::new());
        assert!(matches!(joins(&warm_ups, Role::Any), State::Warming { .. }));
        assert_eq!(joins(&warm_ups, Role::Prefill), State::Active);
        assert_eq!(joins(&warm_ups, Role::Decode), State::Active);
    }

    /// Nobody else would warm the workers that it had written as warming, and no ring would have them.
    #[tokio::test(start_paused = true)]
    async fn a_replica_that_leaves_warms_on_and_has_nobody_join_as_warming() {
        let shutdown = Shutdown::new();
        let phase = shutdown.phase();
        let warm_ups = Arc::new(warm_ups(&shutdown));
        let run = tokio::spawn(Arc::clone(&warm_ups).run());
        assert!(matches!(joins(&warm_ups, Role::Any), State::Warming { .. }));
        let limits = ShutdownLimits {
            settle: Duration::from_secs(5),
            drain: Duration::from_secs(60),
        };
        let (signal, signals) = mpsc::channel(1);
        signal.send(Signal::Terminate).await.expect("received");
        let leaving = async {
            phase.leaving().await;
            tokio::time::sleep(limits.settle / 2).await;
            assert!(!run.is_finished());
            assert_eq!(joins(&warm_ups, Role::Any), State::Active);
        };
        tokio::join!(shutdown.run(limits, signals, async {}), leaving);
        run.await.expect("it ends with the replica");
    }

    #[test]
    fn ordinary_requests_are_not_kept() {
        let shared = "system ".repeat(400);
        let key = key(&[&shared, &"own ".repeat(1_000)]);
        let told = |count: u32, marks: usize| {
            let mut counts: Vec<(u64, u32)> = key.marks()[..marks]
                .iter()
                .map(|mark| (mark.hash, count))
                .collect();
            counts.sort_unstable();
            HotSet::sum([&HeatReport {
                version: 1,
                counts,
                total: 16 * 1_000,
            }])
        };
        assert_eq!(deepest_worth_keeping(&HotSet::EMPTY, &key), None);
        assert_eq!(deepest_worth_keeping(&told(16 * 7, 4), &key), None);
        let found = deepest_worth_keeping(&told(16 * 8, 4), &key);
        assert_eq!(found, Some(key.marks()[3]));
    }
}
