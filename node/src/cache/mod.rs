//! Response cache: the answer to a request that has one right answer, given again without a worker. Off by default.
//!
//! - **What is kept**: whole answers (200, to the end mark of a stream) to deterministic requests; `rules` says
//!   which. A stream and a plain answer to the same prompt are two answers.
//! - **Which requests get them**: only one that is the same in everything that an answer may depend on, of the same
//!   tenant and with the same credentials (`key`).
//! - **Local**: each replica has its own. Behind a balancer an answer is computed once by each replica that is
//!   asked; answers are not gossiped.
//! - **No waiting for each other**: equal requests at the same time are all sent. A client would otherwise depend
//!   on another's patience, and vLLM shares the prefix between them anyway.
//! - **A new model under an old name** is noticed when `cache.ttl` has passed, not before.
//!
//! What is kept is a prompt's answer, in memory only: never in a log or a metric.

mod answer;
mod canonical;
mod key;
mod metrics;
mod recording;
mod rules;
mod shares;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use moka::notification::RemovalCause;
use moka::sync::Cache;

pub use answer::Answer;
pub use key::Asked;
pub use metrics::CacheMetrics;
pub use recording::Recording;
pub use rules::Bypass;

use crate::config::CacheConfig;
use crate::live::Live;
use crate::metrics::ReasonLabels;
use key::CacheKey;
use recording::Fate;
use rules::Wish;
use shares::Shares;

/// How often answers whose time is over are looked for while no request comes.
const SWEEP: Duration = Duration::from_secs(5);

/// What the cache has for a request.
#[derive(Debug)]
pub enum Found {
    /// Its answer.
    Hit(Arc<Answer>),
    /// Nothing; the answer may be taken down.
    Miss(Recording),
    /// The request goes past the cache. Its answer may be taken down if the client only wanted a fresh one.
    Bypass(Bypass, Option<Recording>),
}

impl Found {
    /// Stable word for headers and logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Hit(_) => "hit",
            Self::Miss(_) => "miss",
            Self::Bypass(..) => "bypass",
        }
    }
}

/// The answers that this replica keeps.
#[derive(Debug)]
pub struct ResponseCache {
    answers: Cache<CacheKey, Arc<Answer>>,
    shares: Arc<Shares>,
    /// Bytes of answers that are being taken down.
    recorded_bytes: AtomicU64,
    config: Live<CacheConfig>,
    metrics: CacheMetrics,
}

impl ResponseCache {
    /// An empty cache; none when it is switched off.
    pub fn new(settings: Live<CacheConfig>, metrics: &CacheMetrics) -> Option<Arc<Self>> {
        let config = settings.now();
        if !config.enabled {
            return None;
        }
        let shares = Arc::new(Shares::default());
        let left = {
            let (shares, metrics) = (Arc::clone(&shares), metrics.clone());
            move |_: Arc<CacheKey>, answer: Arc<Answer>, cause: RemovalCause| {
                let of_tenant = !answer.tenant.is_empty();
                let gave_way = of_tenant && !shares.give_back(&answer.tenant, answer.number);
                metrics.bytes.dec_by(answer.weight().into());
                metrics.entries.dec();
                let reason = match cause {
                    _ if gave_way => "tenant_share",
                    RemovalCause::Expired => "expired",
                    RemovalCause::Explicit | RemovalCause::Replaced => "replaced",
                    RemovalCause::Size => "size",
                };
                metrics
                    .evicted
                    .get_or_create(&ReasonLabels { reason })
                    .inc();
            }
        };
        let answers = Cache::builder()
            .max_capacity(config.bytes.0)
            .weigher(|_, answer: &Arc<Answer>| answer.weight())
            .time_to_live(config.ttl)
            .eviction_listener(left)
            .build();
        Some(Arc::new(Self {
            answers,
            shares,
            recorded_bytes: AtomicU64::new(0),
            config: settings,
            metrics: metrics.clone(),
        }))
    }

    /// Looks for the answer to a request. Costs one or two passes over a body that may have one, and a look at
    /// the path or at a few fields of any other.
    pub fn find(self: &Arc<Self>, asked: &Asked<'_>) -> Found {
        let found = self.look(asked);
        self.metrics.request(found.as_str());
        if let Found::Bypass(why, _) = &found {
            let reason = why.as_str();
            self.metrics
                .bypassed
                .get_or_create(&ReasonLabels { reason })
                .inc();
        }
        found
    }

    fn look(self: &Arc<Self>, asked: &Asked<'_>) -> Found {
        let wish = Wish::of(asked.headers);
        if !wish.keep {
            return Found::Bypass(Bypass::Client, None);
        }
        let key = match CacheKey::of(asked, self.config.look().request_bytes.as_usize()) {
            Ok(key) => key,
            Err(why) => return Found::Bypass(why, None),
        };
        let recording = || Recording::new(Arc::clone(self), key, asked.tenant.into());
        if !wish.look {
            return Found::Bypass(Bypass::Client, Some(recording()));
        }
        // The age is read here too: the table forgets by its own clock, and only now and then.
        let ttl = self.config.look().ttl;
        let age_max = wish.age_max.unwrap_or(ttl).min(ttl);
        match self.answers.get(&key) {
            Some(answer) if answer.age() <= age_max && answer.is_fresh() => Found::Hit(answer),
            _ => Found::Miss(recording()),
        }
    }

    /// There is a newer answer, whether it can be kept or not.
    fn outdate(&self, key: &CacheKey) {
        self.answers.invalidate(key);
    }

    fn insert(&self, key: CacheKey, mut answer: Answer) -> Fate {
        // First, since what it holds of its tenant's share is for the newer one.
        self.outdate(&key);
        if !answer.tenant.is_empty() {
            let config = self.config.look();
            let share = (config.bytes.0 as f64 * config.tenant_share) as u64;
            let booked = (self.shares).take(&answer.tenant, key, answer.weight(), share);
            let Some(booked) = booked else {
                return Fate::TenantFull;
            };
            answer.number = booked.number;
            booked.leaving.iter().for_each(|key| self.outdate(key));
        }
        self.metrics.bytes.inc_by(answer.weight().into());
        self.metrics.entries.inc();
        self.answers.insert(key, Arc::new(answer));
        Fate::Kept
    }

    /// Forgets what is over, also while no request comes. Runs until it is dropped.
    pub async fn sweep(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(SWEEP);
        loop {
            ticks.tick().await;
            self.answers.run_pending_tasks();
        }
    }
}
