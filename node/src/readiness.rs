//! Readiness: whether a request sent here would be served, and what is missing if not.
//!
//! One answer for all: both ports, the metrics, `GET /cluster`, and the report that goes to the other replicas.
//! A balancer acts on it, so it must neither promise too much nor flap:
//!
//! - One worker that answers, and whose models are known, is enough: a failing worker is the business of placement.
//! - Only what ends without clients' requests counts against a worker: probes, refused connections, stalls that a
//!   token probe ends. An open breaker closes by requests alone, which a replica that is not ready would not get.
//! - After a start the first look at all workers is awaited for a moment, so that the first requests find every
//!   model. Later a lack of workers must last for `health.unready_after`; readiness comes back at once.
//!
//! When all workers are dead, all replicas report it together, and a balancer is left with none. That is meant: it can
//! use another cluster, and rollouts stop. With `health.ready_without_workers` clients get the replicas' own 503
//! instead, which they know to repeat.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use grapevine_gossip::Agent;
use http::HeaderValue;
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::cluster::{Cluster, Fleet};
use crate::config::HealthConfig;
use crate::live::Live;
use crate::metrics::{Family, Gauge, ReasonLabels, metrics};
use crate::shutdown::Phase;
use crate::upstream::Worker;
use crate::upstream::health::Answers;

/// Seconds after which a replica that takes no traffic may be asked again, as `Retry-After` says it.
pub const AGAIN_AFTER_S: HeaderValue = HeaderValue::from_static("1");
/// How often workers are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the first look at all workers is awaited; one that does not answer is known by then.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(2);

/// Something without which a request would not be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// No peer's registry was taken yet, or the gossip task is down.
    Gossip,
    /// A seed answers, and no certificates fit; at a start alone.
    Certificates,
    /// What peers know of workers' caches was not taken over yet.
    Caches,
    /// It was asked to end.
    Draining,
    /// The cluster keeps another process under this replica's id.
    Twin,
    /// Memory is short, and new requests are refused.
    Memory,
    /// No worker is registered that answers clients.
    NoWorker,
    /// No worker may get a new request: all are draining, asleep or being warmed up.
    NoneInUse,
    /// None of them answers.
    NoWorkerReachable,
    /// Some answer, and no model that can be used is known of them.
    ModelsUnknown,
}

impl Lack {
    const ALL: [Self; 10] = [
        Self::Gossip,
        Self::Certificates,
        Self::Caches,
        Self::Draining,
        Self::Twin,
        Self::Memory,
        Self::NoWorker,
        Self::NoneInUse,
        Self::NoWorkerReachable,
        Self::ModelsUnknown,
    ];

    /// As a label, and in answers. That no worker takes requests is one reason, whatever is to be done about it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gossip => "gossip",
            Self::Certificates => "certificates",
            Self::Caches => "caches",
            Self::Draining => "draining",
            Self::Twin => "twin",
            Self::Memory => "memory",
            Self::NoWorker | Self::NoneInUse => "no_worker",
            Self::NoWorkerReachable => "no_worker_reachable",
            Self::ModelsUnknown => "models_unknown",
        }
    }

    /// For people; names nothing that only the admin port may show.
    pub fn message(self) -> &'static str {
        match self {
            Self::Gossip => "the state of the cluster was not taken over yet",
            Self::Certificates => {
                "a seed answers, and its certificate or this replica's is refused; see `grapevine status`"
            }
            Self::Caches => "what peers know of workers' caches was not taken over yet",
            Self::Draining => "this replica was told to end",
            Self::Twin => "another process runs under this replica's id; see `grapevine status`",
            Self::Memory => "this replica is short of memory",
            Self::NoWorker => {
                "there is no worker that answers clients; add one with `grapevine workers add`"
            }
            Self::NoneInUse => {
                "every worker drains or is being warmed up; `grapevine workers activate` ends a drain by hand, `grapevine \
                 workers list` shows the others"
            }
            Self::NoWorkerReachable => "no worker answers its health checks",
            Self::ModelsUnknown => {
                "workers are asked which models they serve, or name none that can be used"
            }
        }
    }
}

/// Something outside of this file that a replica may lack.
pub struct Condition {
    /// What it is.
    pub lack: Lack,
    /// Whether it is missing now; asked often.
    pub is_missing: Box<dyn Fn() -> bool + Send + Sync>,
}

metrics! {
    /// Whether this replica takes traffic.
    pub ReadinessMetrics {
        ready: Gauge, "ready", "1 when this replica takes traffic";
        not_ready: Family<ReasonLabels, Gauge>,
            "not_ready", "1 while this is missing and this replica takes no traffic";
    }
}

/// What readiness is judged by.
pub struct ReadinessParts {
    /// Where this replica is between start and end.
    pub phase: Phase,
    /// The cluster with the workers.
    pub cluster: Arc<Cluster>,
    /// What else must hold.
    pub conditions: Vec<Condition>,
    /// How patient to be.
    pub config: Live<HealthConfig>,
    /// Where to count.
    pub metrics: ReadinessMetrics,
}

/// Whether this replica takes traffic.
pub struct Readiness {
    parts: ReadinessParts,
    /// What the latest look at the workers found.
    workers: ArcSwap<Option<Lack>>,
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing: Vec<_> = self.missing().collect();
        f.debug_tuple("Readiness").field(&missing).finish()
    }
}

impl Readiness {
    /// Not ready before [`Readiness::run`] has looked at the workers.
    pub fn new(parts: ReadinessParts) -> Self {
        let unseen =
            (!parts.config.look().ready_without_workers).then_some(Lack::NoWorkerReachable);
        Self {
            parts,
            workers: ArcSwap::from_pointee(unseen),
        }
    }

    /// What is missing now, the gravest first.
    pub fn missing(&self) -> impl Iterator<Item = Lack> {
        let phase = &self.parts.phase;
        let is_caught_up = phase.is_caught_up();
        let own = [
            (!is_caught_up).then_some(Lack::Gossip),
            phase.is_leaving().then_some(Lack::Draining),
        ];
        let conditions = self.parts.conditions.iter();
        let conditions = conditions
            .filter(|one| (one.is_missing)())
            .map(|one| one.lack);
        // Before that it is not known which workers there are.
        let workers = (**self.workers.load()).filter(|_| is_caught_up);
        own.into_iter().flatten().chain(conditions).chain(workers)
    }

    /// Whether balancers should send requests here.
    pub fn is_ready(&self) -> bool {
        self.missing().next().is_none()
    }

    /// The body of an answer, the same on both ports.
    pub fn body(&self) -> (bool, Vec<u8>) {
        #[derive(Serialize)]
        struct Body {
            status: &'static str,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            missing: Vec<Missing>,
        }
        #[derive(Serialize)]
        struct Missing {
            reason: &'static str,
            message: &'static str,
        }
        let missing: Vec<_> = self
            .missing()
            .map(|lack| Missing {
                reason: lack.as_str(),
                message: lack.message(),
            })
            .collect();
        let is_ready = missing.is_empty();
        let status = if is_ready { "ready" } else { "not ready" };
        let body = Body { status, missing };
        let body = serde_json::to_vec(&body).expect("texts always serialise");
        (is_ready, body)
    }

    /// Looks at the workers until the replica ends, and sends the result to the other replicas.
    pub async fn run(self: Arc<Self>, agent: Arc<Agent>) {
        let mut patience = Patience::new(self.parts.config.look().unready_after);
        let mut said = None;
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.parts.phase.closed() => return,
                _ = ticks.tick() => {}
            }
            let config = self.parts.config.now();
            patience.unready_after = config.unready_after;
            if config.ready_without_workers {
                self.workers.store(Arc::new(None));
            } else if self.parts.phase.is_caught_up() {
                let seen = Seen::of(&self.parts.cluster.fleet(), patience.awaits_all());
                self.workers
                    .store(Arc::new(patience.judge(seen, Instant::now())));
            }
            let missing: Vec<Lack> = self.missing().collect();
            if said.as_ref() != Some(&missing) {
                self.say(&missing, said.as_deref());
                agent.set_ready(missing.is_empty());
                said = Some(missing);
            }
        }
    }

    fn say(&self, missing: &[Lack], before: Option<&[Lack]>) {
        for lack in Lack::ALL {
            let reason = lack.as_str();
            let gauge = self
                .parts
                .metrics
                .not_ready
                .get_or_create(&ReasonLabels { reason })
                .clone();
            // Two of them may have one reason.
            let is_missing = missing.iter().any(|lack| lack.as_str() == reason);
            gauge.set(is_missing.into());
        }
        let reasons: Vec<_> = missing.iter().map(|lack| lack.as_str()).collect();
        let reasons = reasons.join(", ");
        match before {
            _ if missing.is_empty() => tracing::info!("ready"),
            // The part that ends it reports the end.
            _ if missing.contains(&Lack::Draining) => {}
            Some([]) => tracing::warn!(reasons, "no longer ready"),
            _ => tracing::info!(reasons, "not ready yet"),
        }
    }
}

/// What a look at the workers finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    lack: Option<Lack>,
    /// Every worker was asked how it is, and those that answer what they serve; false if no caller wants to know.
    all_asked: bool,
}

impl Seen {
    fn of(fleet: &Fleet, asks_for_all: bool) -> Self {
        let answers = |worker: &Worker| worker.health.answers() == Answers::Yes;
        // While no worker of whole requests can be used, those that decode have them.
        let served = fleet.pools().iter().any(|pool| {
            let mut members = pool.answering().filter(|member| !member.is_out());
            members.any(|member| answers(&member.worker))
        });
        let whole = fleet.whole();
        let in_use = || whole.members().iter().filter(|member| !member.is_out());
        // Nobody's requests find them alone, but most prompts of their models wait for them.
        let of_prompts = fleet.prefill_only().members().iter();
        let of_prompts = of_prompts.filter(|member| !member.is_out());
        let lack = if served {
            None
        } else if whole.members().is_empty() && fleet.joining().is_empty() {
            Some(Lack::NoWorker)
        } else if in_use().next().is_none() {
            Some(Lack::NoneInUse)
        } else if in_use().any(|member| answers(&member.worker)) {
            Some(Lack::ModelsUnknown)
        } else {
            Some(Lack::NoWorkerReachable)
        };
        let is_asked = |worker: &Worker| match worker.health.answers() {
            Answers::Yes => !worker.models.load().is_empty(),
            Answers::Unknown => worker.refuses_since.get().is_some(),
            Answers::No => true,
        };
        Self {
            lack,
            all_asked: asks_for_all
                && lack.is_none()
                && in_use()
                    .chain(of_prompts)
                    .all(|member| is_asked(&member.worker)),
        }
    }
}

/// Keeps a short lack from being news, and the first request from coming too early. Pure: `now` is an argument.
#[derive(Debug)]
struct Patience {
    unready_after: Duration,
    was_served: bool,
    /// When there was a worker for the first requests.
    first_served: Option<Instant>,
    lacking_since: Option<Instant>,
}

impl Patience {
    fn new(unready_after: Duration) -> Self {
        Self {
            unready_after,
            was_served: false,
            first_served: None,
            lacking_since: None,
        }
    }

    /// Whether the first look at all workers is still awaited.
    fn awaits_all(&self) -> bool {
        !self.was_served
    }

    fn judge(&mut self, seen: Seen, now: Instant) -> Option<Lack> {
        let Some(lack) = seen.lack else {
            self.lacking_since = None;
            let first = *self.first_served.get_or_insert(now);
            self.was_served |= seen.all_asked || now - first >= FIRST_LOOK_WITHIN;
            return (!self.was_served).then_some(Lack::ModelsUnknown);
        };
        let since = *self.lacking_since.get_or_insert(now);
        if self.was_served && now - since < self.unready_after {
            return None;
        }
        self.was_served = false;
        Some(lack)
    }
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::worker::{Role, State};

    use super::*;
    use crate::alone::{Alone, worker_with};
    use crate::config::KvEventsConfig;
    use crate::upstream::health::Probe;

    const AFTER: Duration = Duration::from_secs(3);
    const LACK: Option<Lack> = Some(Lack::NoWorkerReachable);

    fn seen(lack: Option<Lack>, all_asked: bool) -> Seen {
        Seen { lack, all_asked }
    }

    #[test]
    fn a_short_lack_is_no_news_and_a_long_one_is() {
        let mut patience = Patience::new(AFTER);
        let begun = Instant::now();
        let mut judge =
            |lack, ms| patience.judge(seen(lack, true), begun + Duration::from_millis(ms));
        assert_eq!(judge(LACK, 0), LACK, "at the start nothing is waited for");
        assert_eq!(judge(None, 100), None);
        assert_eq!(judge(LACK, 200), None);
        assert_eq!(judge(LACK, 3_100), None);
        assert_eq!(judge(None, 3_150), None, "it came back in time");
        assert_eq!(judge(LACK, 3_200), None, "and the time begins anew");
        assert_eq!(judge(LACK, 6_199), None);
        assert_eq!(judge(LACK, 6_200), LACK);
        assert_eq!(judge(None, 6_300), None, "at once");
    }

    #[test]
    fn the_first_look_at_all_workers_is_awaited_for_a_moment() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut patience = Patience::new(AFTER);
        let early = Some(Lack::ModelsUnknown);
        assert_eq!(patience.judge(seen(None, false), at(0)), early);
        assert_eq!(patience.judge(seen(None, true), at(100)), None);
        assert_eq!(
            patience.judge(seen(None, false), at(200)),
            None,
            "one that is added later is not awaited"
        );

        let mut patience = Patience::new(AFTER);
        assert_eq!(patience.judge(seen(None, false), at(0)), early);
        assert_eq!(patience.judge(seen(None, false), at(1_999)), early);
        assert_eq!(patience.judge(seen(None, false), at(2_000)), None);
    }

    /// What is seen of a worker of whole requests, a prefill and a decode worker of one model. `drained`: the first one
    /// takes nothing new; `answering`: those whose probes pass; `unseen`: nothing is known of it yet.
    fn seen_of(drained: bool, answering: &[&str], unseen: &str) -> Seen {
        let of =
            |id, role, state| worker_with(id, "m", |raw| (raw.role, raw.state) = (role, state));
        let state = match drained {
            true => State::Draining,
            false => State::Active,
        };
        let workers = [
            of("d", Role::Decode, State::Active),
            of("p", Role::Prefill, State::Active),
            of("w", Role::Any, state),
        ];
        let house = Alone::new("r1", workers, &KvEventsConfig::default(), 3);
        let fleet = house.cluster.fleet();
        let is_seen = |worker: &&Arc<Worker>| worker.id.as_str() != unseen;
        for worker in fleet.workers().filter(is_seen) {
            let probe = match answering.contains(&worker.id.as_str()) {
                true => Probe::Good,
                false => Probe::Refused,
            };
            for _ in 0..3 {
                worker.health.probed(probe, "");
            }
        }
        Seen::of(&fleet, true)
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_is_served_by_pairs_while_its_whole_workers_are_not_in_use() {
        for (drained, answering, expected) in [
            (false, &["d", "p", "w"][..], None),
            (true, &["d", "p", "w"], None),
            (false, &["d", "p"], None),
            (false, &["w"], None),
            (false, &["p"], LACK),
            (true, &["p", "w"], LACK),
        ] {
            let found = seen_of(drained, answering, "").lack;
            assert_eq!(found, expected, "drained {drained}, {answering:?} answer");
        }
    }

    /// The reason is one, and what is to be done is not.
    #[tokio::test(start_paused = true)]
    async fn that_no_worker_is_there_and_that_all_are_drained_are_told_apart() {
        let of = |role, state| worker_with("w", "m", |raw| (raw.role, raw.state) = (role, state));
        let cases = [
            (vec![], Lack::NoWorker, "workers add"),
            (
                vec![of(Role::Prefill, State::Active)],
                Lack::NoWorker,
                "workers add",
            ),
            (
                vec![of(Role::Any, State::Draining)],
                Lack::NoneInUse,
                "workers activate",
            ),
        ];
        for (workers, expected, advice) in cases {
            let house = Alone::new("r1", workers, &KvEventsConfig::default(), 3);
            let found = Seen::of(&house.cluster.fleet(), true)
                .lack
                .expect("no worker");
            assert_eq!((found, found.as_str()), (expected, "no_worker"));
            assert!(found.message().contains(advice), "{}", found.message());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_look_is_at_prefill_workers_too() {
        let all = ["d", "p", "w"];
        for (unseen, expected) in [("", true), ("w", false), ("p", false)] {
            let seen = seen_of(false, &all, unseen);
            assert_eq!((seen.lack, seen.all_asked), (None, expected), "{unseen}");
        }
    }
}
