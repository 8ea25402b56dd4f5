//! `prefix`: the home keeps its keys until leaving it costs less than the prefill that must be repeated.
//!
//! Load alone never moves a request: the price of a token to be computed is several times that of one that
//! waits, because everybody behind it pays for the repeated prefill and for the second copy in a cache.
//! With a factor of 1 conversations wander and caches collapse (simulated: hit rate .66 instead of .86).
//! The bound on requests in flight is the safety net below the price: long decodes are cheap in tokens.

use super::{Price, Reason, fleet::Fleet};

pub(super) fn choose(fleet: &Fleet<'_>, holder: usize) -> (usize, Reason) {
    let eligible = (0..fleet.len()).filter(|&index| fleet.eligible(index));
    let least = eligible
        .map(|index| cost(fleet, index))
        .fold(f64::INFINITY, f64::min);
    let near = match fleet.settings.price {
        Price::Additive { tolerance, .. } => {
            least + tolerance.get() * f64::from(fleet.key.prompt_tokens())
        }
        Price::Multiplicative { tolerance, .. } => least * tolerance.get().max(1.0),
    };
    let cheap = |index| fleet.eligible(index) && cost(fleet, index) <= near;
    let worker = fleet.first(cheap).unwrap_or(holder);
    (worker, fleet.why_not_home(worker))
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
