//! Explain: the decision with its work shown, for the admin API.

use super::{
    Candidate, Decision, NoWorker, Policy, PolicySettings, Standing, Told, View, decide,
    fleet::Fleet, least_kv, least_request, prefix,
};
use crate::{key::Key, load::Load};

/// A decision, and how every worker fared in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// What [`super::decide`] answers to the same arguments.
    pub decision: Result<Decision, NoWorker>,
    /// Whether the health of more than half of the workers is bad, and not believed.
    pub panic: bool,
    /// All workers, in the key's order.
    pub rows: Vec<Row>,
}

/// One worker in an explanation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Index among the ring's members.
    pub index: usize,
    /// What the policy compares, smaller is better: milliseconds for `prefix` ([`super::Price`] times the worker's
    /// rate), tokens for `least_kv`, requests in flight for weight for `least_request` and `power_of_two`; none for policies that do not
    /// compare.
    pub cost: Option<f64>,
    /// Expected milliseconds to the first token: what has to be computed before it, at the worker's rate.
    pub first_token_ms: f64,
    /// The load that was looked at.
    pub load: Load,
    /// Most requests in flight by the bound, policies `prefix` and `least_kv`.
    pub limit: Option<f64>,
    /// Tokens of the prompt expected in this worker's cache.
    pub expected_tokens: u32,
    /// What it says of the prompt itself.
    pub told: Option<Told>,
    /// Chosen, could have been, or why not.
    pub verdict: Verdict,
}

named! {
    /// How a worker fared.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Verdict {
        /// This worker takes the request.
        Chosen = "chosen",
        /// It could have: another was preferred.
        Eligible = "eligible",
        /// At the bound on requests in flight.
        OverBound = "over_bound",
        /// Its cache has no room for the prompt, policy `least_kv`.
        NoRoom = "no_room",
        /// An earlier attempt failed here.
        Tried = "tried",
        /// At its own limit.
        Full = "full",
        /// Failing probes, its breaker is open, it delivers no tokens, or it refuses connections.
        Unhealthy = "unhealthy",
        /// Another replica says so.
        Doubted = "doubted",
        /// It starts slowly and has all that it may have for now.
        SlowStart = "slow_start",
        /// Leaves.
        Draining = "draining",
        /// Its engine sleeps.
        Asleep = "asleep",
    }
}

/// The same decision as [`super::decide`], with a row for each worker. Allocates; not for the request path.
///
/// # Panics
/// As [`super::decide`].
pub fn explain<'a>(
    settings: &'a PolicySettings,
    view: impl Into<View<'a>>,
    key: &'a Key,
    candidates: &'a [Candidate],
    tried: &'a [usize],
    draw: u64,
) -> Explanation {
    let fleet = match Fleet::new(settings, view.into(), key, candidates, tried) {
        Ok(fleet) => fleet,
        Err(none) => {
            return Explanation {
                decision: Err(none),
                panic: false,
                rows: Vec::new(),
            };
        }
    };
    let decision = decide::choose(&fleet, draw);
    let chosen = decision.ok().map(|decision| decision.worker);
    let cost = cost(&fleet);
    let rows = fleet
        .ranked()
        .into_iter()
        .map(|index| row(&fleet, index, cost(index), chosen))
        .collect();
    Explanation {
        decision,
        panic: fleet.panic,
        rows,
    }
}

/// What the policy compares of a worker. What it needs of all of them is found out once.
fn cost<'f>(fleet: &'f Fleet<'_>) -> Box<dyn Fn(usize) -> Option<f64> + 'f> {
    match fleet.settings.policy {
        Policy::Prefix => Box::new(|index| Some(prefix::cost(fleet, index))),
        Policy::LeastKv => {
            let costs = least_kv::Costs::of(fleet);
            Box::new(move |index| Some(costs.cost(index)))
        }
        Policy::LeastRequest | Policy::PowerOfTwo => {
            Box::new(|index| Some(least_request::crowd(fleet, index)))
        }
        Policy::ConsistentHash
        | Policy::CacheAware
        | Policy::Sticky
        | Policy::Random
        | Policy::RoundRobin => Box::new(|_| None),
    }
}

fn row(fleet: &Fleet<'_>, index: usize, cost: Option<f64>, chosen: Option<usize>) -> Row {
    Row {
        index,
        cost,
        first_token_ms: fleet.first_token_ms(index),
        load: fleet.candidate(index).load,
        limit: matches!(fleet.settings.policy, Policy::Prefix | Policy::LeastKv)
            .then(|| fleet.limit(index)),
        expected_tokens: fleet.expected_tokens(index),
        told: fleet.candidate(index).told,
        verdict: match fleet.candidate(index).standing {
            _ if chosen == Some(index) => Verdict::Chosen,
            _ if fleet.tried(index) => Verdict::Tried,
            Standing::Full => Verdict::Full,
            Standing::Draining => Verdict::Draining,
            Standing::Asleep => Verdict::Asleep,
            standing if standing.is_bad() && !fleet.stands(standing) => Verdict::Unhealthy,
            standing if standing.is_bad() && fleet.candidate(index).at_cap => Verdict::Full,
            _ if fleet.is_spared(index) => Verdict::SlowStart,
            _ if fleet.eligible(index) => Verdict::Eligible,
            _ if fleet.usable(index) && fleet.is_cramped(index) => Verdict::NoRoom,
            _ if fleet.usable(index) => Verdict::OverBound,
            _ => Verdict::Doubted,
        },
    }
}
