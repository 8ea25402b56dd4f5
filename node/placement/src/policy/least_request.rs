//! `least_request`: fewest requests in flight over the cluster, for the worker's weight.

use super::{Reason, fleet::Fleet};

pub(super) fn choose(fleet: &Fleet<'_>) -> (usize, Reason) {
    let least = fleet
        .usable_indices()
        .map(|index| crowd(fleet, index))
        .reduce(f64::min)
        .expect("somebody is usable");
    let worker = fleet
        .first(|index| fleet.usable(index) && crowd(fleet, index) <= least)
        .expect("the least loaded is as loaded as itself");
    (worker, Reason::LeastRequest)
}

/// Requests in flight with this one, for the weight. With this one: else weights would not matter when idle.
pub(super) fn crowd(fleet: &Fleet<'_>, index: usize) -> f64 {
    (fleet.candidate(index).load.requests + 1.0) / fleet.relative_weight(index)
}
