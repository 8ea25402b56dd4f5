//! `prefix`: the home keeps its keys until leaving it costs less than the prefill that must be repeated.
//!
//! Load alone never moves a request: the price of a token to be computed is several times that of one that
//! waits, because everybody behind it pays for the repeated prefill and for the second copy in a cache.
//! With a factor of 1 conversations wander and caches collapse (simulated: hit rate .66 instead of .86).
//! The bound on requests in flight is the safety net below the price: long decodes are cheap in tokens. It is
//! passed, up to a second one, only where more would be computed elsewhere than the crowd costs: else whole
//! conversations and documents move for a request too many.
//!
//! A prompt of which nothing is known can go anywhere. Only the first few in its order are compared, so that
//! replicas whose counts are old do not all run to the same idle worker.

use super::{Price, Reason, fleet::Fleet};

/// Most workers that [`super::PolicySettings::choices`] compares.
const CHOICES_MAX: usize = 8;

pub(super) fn choose(fleet: &Fleet<'_>, holder: usize) -> (usize, Reason) {
    let mut few = [holder; CHOICES_MAX];
    let few = if fleet.known {
        &[]
    } else {
        fleet.first_few(&mut few, fleet.settings.choices.into())
    };
    // The few are eligible, and in order.
    let least = if few.is_empty() {
        least(
            fleet,
            |index| fleet.eligible(index),
            |index| cost(fleet, index),
        )
    } else {
        let costs = few.iter().map(|&index| cost(fleet, index));
        costs.fold(f64::INFINITY, f64::min)
    };
    let tolerance = fleet
        .settings
        .price
        .tolerance(least, fleet.key.prompt_tokens());
    // Above the bound only for more than tolerance would forgive, and than every whole request above it costs.
    let crowd = |index| {
        let above = fleet.excess(index).ceil().max(1.0);
        cost(fleet, index) + fleet.settings.crowd_price.get() * above
    };
    let crowded = |index| {
        !fleet.eligible(index) && fleet.crowdable(index) && crowd(index) + tolerance < least
    };
    let cheapest = if fleet.crowds {
        self::least(fleet, crowded, crowd)
    } else {
        f64::INFINITY
    };
    let is_near = |index: usize| cost(fleet, index) <= least + tolerance;
    let worker = if cheapest.is_finite() {
        fleet.first(|index| crowded(index) && crowd(index) <= cheapest)
    } else if few.is_empty() {
        fleet.first(|index| fleet.eligible(index) && is_near(index))
    } else {
        few.iter().copied().find(|&index| is_near(index))
    };
    let worker = worker.unwrap_or(holder);
    (worker, fleet.why_not_home(worker))
}

fn least(fleet: &Fleet<'_>, accepts: impl Fn(usize) -> bool, cost: impl Fn(usize) -> f64) -> f64 {
    (0..fleet.len())
        .filter(|&index| accepts(index))
        .map(cost)
        .fold(f64::INFINITY, f64::min)
}

/// What the request would cost on this worker, in tokens; comparable only within one decision.
pub(super) fn cost(fleet: &Fleet<'_>, index: usize) -> f64 {
    let load = fleet
        .candidate(index)
        .load
        .scaled(1.0 / fleet.relative_weight(index));
    let missing = f64::from(fleet.key.prompt_tokens() - fleet.expected_tokens(index));
    match fleet.settings.price {
        Price::Additive {
            prefill, context, ..
        } => load.prefill_tokens + prefill.get() * missing + context.get() * load.context_tokens,
        Price::Multiplicative {
            prefill,
            overhead,
            patience,
            ..
        } => {
            (load.prefill_tokens + prefill.get() * missing + overhead.get())
                * (load.requests + patience.get())
        }
    }
}
