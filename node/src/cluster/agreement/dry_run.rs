//! Decisions without a request behind them: for peers that compare, and samples of our own.

use std::sync::Arc;

use grapevine_gossip::dry_run::{DryRun, DryRunAnswer};
use grapevine_placement::{Candidate, Key, Policy, View, decide, explain};
use tokio::time::Instant;

use super::compare::{Sample, decode_key, encode_key};
use crate::cluster::Cluster;
use crate::cluster::load_at::LoadAt;
use crate::cluster::place::CANDIDATES;
use crate::cluster::pool::Pool;

impl Cluster {
    /// What this replica would have decided about a peer's request by the load of a moment up to a quarter of a second ago,
    /// or of now; `None` for a moment longer ago, a pool that it does not have, a key that no replica of this release
    /// sends, or a policy that draws.
    pub fn dry_run(
        &self,
        question: DryRun,
        at: Option<std::time::Instant>,
    ) -> Option<DryRunAnswer> {
        let fleet = self.fleet();
        let pool = fleet.pool_named(&question.pool)?;
        if draws(pool.policy.policy) {
            return None;
        }
        let key = decode_key(question.key).ok()?;
        let hot = self.cache_view.hot();
        let view = View {
            ring: &pool.ring,
            hot: &hot,
        };
        let decision = CANDIDATES.with_borrow_mut(|candidates| {
            self.agent.settle_load(Instant::now());
            let past = match at {
                Some(at) => Some(self.board.past(at)?),
                None => None,
            };
            let load = past.as_ref().map_or(LoadAt::Now, LoadAt::Then);
            self.candidates(&pool, &key, candidates, load);
            Some(decide(&pool.policy, view, &key, candidates, &[], 0))
        })?;
        let id = |index: usize| pool.members[index].worker.id.clone();
        let decided = decision.as_ref().ok();
        Some(DryRunAnswer {
            worker: decided.map(|decision| id(decision.worker)),
            reason: match &decision {
                Ok(decision) => decision.reason.as_str().to_owned(),
                Err(none) => none.as_str().to_owned(),
            },
            ring: pool.digest().0,
            settings: self.settings.fingerprint().0,
            heat: hot.digest().0,
            home: decided.map(|decision| id(decision.home)),
            expected_tokens: decided.map_or(0, |decision| decision.expected_tokens),
        })
    }

    /// What peers are asked about a request: hashes, no text.
    pub fn question(&self, pool: &Pool, key: &Key) -> DryRun {
        DryRun {
            pool: pool.name().to_owned(),
            key: encode_key(key),
            at_us: Some(self.clock_us()),
        }
    }

    /// Now, as questions name moments.
    fn clock_us(&self) -> u64 {
        self.board.clock_us(Instant::now().into_std())
    }

    /// The decision with its work shown, if this request shall be compared with a peer's.
    pub(in crate::cluster) fn sample(
        &self,
        pool: &Arc<Pool>,
        view: View<'_>,
        key: &Key,
        candidates: &[Candidate],
    ) -> Option<Sample> {
        (!draws(pool.policy.policy) && self.samples.wants()).then(|| Sample {
            pool: Arc::clone(pool),
            key: encode_key(key),
            explanation: explain(&pool.policy, view, key, candidates, &[], 0),
            heat: view.hot.digest(),
            at_us: self.clock_us(),
        })
    }
}

/// Policies whose decisions are not meant to agree.
fn draws(policy: Policy) -> bool {
    match policy {
        Policy::Random | Policy::PowerOfTwo | Policy::RoundRobin | Policy::Sticky => true,
        Policy::Prefix
        | Policy::ConsistentHash
        | Policy::CacheAware
        | Policy::LeastRequest
        | Policy::LeastKv => false,
    }
}
