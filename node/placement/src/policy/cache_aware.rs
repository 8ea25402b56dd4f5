//! `cache_aware`: the rule of vllm-router's policy of that name, on evidence that replicas share.
//!
//! Longest match if it is long enough, else the worker of which least is known; the fewest requests in flight
//! while the fleet is out of balance. Its original keeps a tree of characters in each process, without a limit;
//! ours reads the bounded prefix index, so matches are as fine as marks. Ties go to the key's order, not to chance.

use super::{Reason, fleet::Fleet, least_request};

pub(super) fn choose(fleet: &Fleet<'_>) -> (usize, Reason) {
    let rule = fleet.settings.cache_aware;
    let requests = |index| fleet.candidate(index).load.requests;
    let least = fleet
        .usable_indices()
        .map(requests)
        .fold(f64::INFINITY, f64::min);
    let most = fleet.usable_indices().map(requests).fold(0.0, f64::max);
    if most - least > rule.imbalance_requests.get() && most > least * rule.imbalance_factor.get() {
        return least_request::choose(fleet);
    }
    let held = |index| fleet.candidate(index).held_tokens;
    let longest = fleet
        .usable_indices()
        .map(held)
        .max()
        .expect("somebody is usable");
    if f64::from(longest) > rule.match_share.get() * f64::from(fleet.key.prompt_tokens()) {
        let worker = fleet.first(|index| fleet.usable(index) && held(index) == longest);
        return (
            worker.expect("the longest is as long as itself"),
            Reason::LongestMatch,
        );
    }
    let known = |index| fleet.candidate(index).known_tokens;
    let smallest = fleet
        .usable_indices()
        .map(known)
        .min()
        .expect("somebody is usable");
    let worker = fleet.first(|index| fleet.usable(index) && known(index) == smallest);
    (
        worker.expect("the smallest is as small as itself"),
        Reason::SmallestTree,
    )
}
