//! `prefix`: the home keeps its keys until leaving it costs less than the prefill that must be repeated.
//!
//! Load alone never moves a request: the price of a token to be computed is several times that of one that
//! waits, because every request behind it pays for the repeated prefill and for the second copy in a cache.
//! With a factor of 1 conversations wander and caches collapse (simulated: hit rate .66 instead of .86).
//! The bound on requests in flight is the safety net below the price: long decodes are cheap in tokens. It is
//! passed, up to a second one, only where more would be computed elsewhere than the crowd costs: else whole
//! conversations and documents move for a request too many.
//!
//! All of it is in milliseconds, by the rate that each worker was seen to have ([`crate::rate`]): where a queue costs
//! nothing, neither load nor the bound moves anything, and the order alone decides, as with a plain hash.
//!
//! A prompt of which nothing is known can go anywhere. Only the first few in its order are compared, so that
//! replicas whose counts are old do not all choose the same idle worker.

use super::{Price, Reason, fleet::Fleet};

/// A few milliseconds more to wait never move a request: half of them are over before other replicas learn of them.
const FEW_MS: f64 = 5.0;
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
        .tolerance(least, fleet.rate, fleet.key.prompt_tokens());
    // Above the bound only for more than tolerance would forgive, and than every whole request above it costs.
    let crowd = |index| {
        let above = fleet.excess(index).ceil().max(1.0);
        let price = fleet.settings.crowd_price.get() * above * fleet.crowd_rate(index);
        cost(fleet, index) + price + tolerance
    };
    let crowdable = |index| !fleet.eligible(index) && fleet.crowdable(index);
    let cheapest = if fleet.crowds {
        self::least(fleet, crowdable, crowd)
    } else {
        f64::INFINITY
    };
    let (lowest, near) = if cheapest < least {
        (cheapest, FEW_MS)
    } else {
        (least, tolerance.max(FEW_MS))
    };
    let worker = fleet.first(|index| {
        if fleet.eligible(index) {
            let is_compared = few.is_empty() || few.contains(&index);
            is_compared && cost(fleet, index) <= lowest + near
        } else {
            fleet.crowds && crowdable(index) && crowd(index) <= lowest + FEW_MS
        }
    });
    let worker = worker.unwrap_or(holder);
    (worker, fleet.why_not_home(worker))
}

fn least(fleet: &Fleet<'_>, accepts: impl Fn(usize) -> bool, cost: impl Fn(usize) -> f64) -> f64 {
    (0..fleet.len())
        .filter(|&index| accepts(index))
        .map(cost)
        .fold(f64::INFINITY, f64::min)
}

/// What the request would cost on this worker, in milliseconds of computing; comparable only within one decision.
pub(super) fn cost(fleet: &Fleet<'_>, index: usize) -> f64 {
    let load = fleet.shared_load(index);
    let missing = f64::from(fleet.missing_tokens(index));
    let tokens = match fleet.settings.price {
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
    };
    tokens * fleet.rate_of(index)
}
