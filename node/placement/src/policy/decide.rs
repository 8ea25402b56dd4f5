//! Decide: from the policy in the settings to its function.
//!
//! The one file that knows all policies. They know the fleet and, where one is built on another, each other.

use super::{
    Candidate, Decision, NoWorker, Policy, PolicySettings, View, cache_aware, consistent_hash,
    fleet::Fleet, least_kv, least_request, power_of_two, prefix, random, round_robin, sticky,
};
use crate::key::Key;

/// Chooses the worker for one attempt of a request. O(marks of the key + workers).
///
/// `view` is the ring and the hot set, or a ring alone. `candidates` follow [`crate::Ring::members`]; `tried` are the
/// indices of earlier attempts of this request. `draw` serves the policies that draw: 64 random bits, or for
/// `round_robin` and `sticky` a counter of requests.
/// Errors: no worker is left that may take the request; never because of the bound.
///
/// # Panics
/// If there is not one candidate per member: both come from one snapshot.
pub fn decide<'a>(
    settings: &'a PolicySettings,
    view: impl Into<View<'a>>,
    key: &'a Key,
    candidates: &'a [Candidate],
    tried: &'a [usize],
    draw: u64,
) -> Result<Decision, NoWorker> {
    let fleet = Fleet::new(settings, view.into(), key, candidates, tried)?;
    choose(&fleet, draw)
}

/// The decision of the fleet's policy.
pub(super) fn choose(fleet: &Fleet<'_>, draw: u64) -> Result<Decision, NoWorker> {
    let holder = fleet.holder()?;
    let (worker, reason) = match fleet.settings.policy {
        Policy::Prefix => prefix::choose(fleet, holder),
        Policy::ConsistentHash => consistent_hash::choose(fleet, holder),
        Policy::CacheAware => cache_aware::choose(fleet),
        Policy::Sticky => sticky::choose(fleet, holder, draw),
        Policy::LeastRequest => least_request::choose(fleet),
        Policy::LeastKv => least_kv::choose(fleet, holder),
        Policy::PowerOfTwo => power_of_two::choose(fleet, draw),
        Policy::Random => random::choose(fleet, draw),
        Policy::RoundRobin => round_robin::choose(fleet, draw),
    };
    Ok(fleet.decision(worker, reason))
}
