//! `consistent_hash`: session, user or prefix names the home; load is looked at only where a bound is set.
//!
//! With a bound this is consistent hashing with bounded loads: the first in order below a multiple of the mean.
//! Mirrokni, Thorup, Zadimoghaddam 2016, arXiv:1608.01350.

use super::{HashBound, Reason, fleet::Fleet};

pub(super) fn choose(fleet: &Fleet<'_>, holder: usize) -> (usize, Reason) {
    let load = |index: usize| fleet.candidate(index).load;
    let (factor, mean): (_, f64) = match fleet.settings.hash_bound {
        HashBound::Off => return (holder, fleet.why_not_home(holder)),
        HashBound::Requests(factor) => (factor.get(), fleet.mean_requests),
        HashBound::PrefillTokens(factor) => {
            let (count, tokens) = fleet.usable_indices().fold(
                (0.0, f64::from(fleet.key.prompt_tokens())),
                |(count, sum), index| (count + 1.0, sum + load(index).prefill_tokens),
            );
            (factor.get(), tokens / count)
        }
    };
    let below = |index: usize| {
        let taken = match fleet.settings.hash_bound {
            HashBound::PrefillTokens(_) => load(index).prefill_tokens,
            // With the one being placed, as the mean.
            HashBound::Off | HashBound::Requests(_) => load(index).requests + 1.0,
        };
        taken <= (factor * fleet.relative_weight(index) * mean).max(1.0)
    };
    let worker = fleet
        .order
        .first(|index| fleet.usable(index) && below(index));
    let worker = worker.unwrap_or(holder);
    match fleet.why_not_home(worker) {
        Reason::SpillPrice => (worker, Reason::SpillBound),
        reason => (worker, reason),
    }
}
