//! `least_kv`: for workers that decode what others computed: little context in flight, room, and little to transfer.
//!
//! A worker that decodes computes no prompt. Every step reads the keys and values of all context there, so the time
//! between tokens grows with the context in flight and a little with each request; and what the worker does not hold
//! of the prompt has to be transferred first. All of it is counted in tokens of context.
//!
//! Differences below what this request itself adds move nothing: the next request would find the opposite, and half of
//! them are over before other replicas learn of them. Among workers so near to each other the one that holds most of
//! the prompt is taken, and of equals the first in the key's order, so a conversation stays where it decoded before.
//!
//! The bound on requests in flight holds as in `prefix`; a worker whose cache has no room is passed over (`fleet.rs`).

use super::{Reason, fleet::Fleet};

/// Tokens of context that a request costs for itself: what a step spends on any sequence, in tokens whose keys and
/// values it could read meanwhile (20 us and 48 ns on the modelled engine of the testbed: 417).
const REQUEST_TOKENS: f64 = 512.0;
/// Most tokens of a prompt that count for tolerance: what replicas do not know of each other does not grow with it.
const TOLERANCE_TOKENS: u32 = 4_096;
/// Holding so many tokens more is no reason to leave the order: they are transferred within a few milliseconds.
const FEW_TOKENS: u32 = 512;

pub(super) fn choose(fleet: &Fleet<'_>, holder: usize) -> (usize, Reason) {
    let pricing = Costs::of(fleet);
    // Who is not eligible costs more than any other; each worker is looked at once, for there may be hundreds.
    let costs: Vec<f64> = (0..fleet.len())
        .map(|index| match fleet.eligible(index) {
            true => pricing.cost(index),
            false => f64::INFINITY,
        })
        .collect();
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    if least.is_infinite() {
        return (holder, fleet.why_not_home(holder));
    }
    let own = fleet.key.prompt_tokens().min(TOLERANCE_TOKENS);
    let near = least + f64::from(own) + REQUEST_TOKENS;
    let is_near = |index: usize| costs[index] <= near;
    let missing = (0..fleet.len())
        .filter(|&index| is_near(index))
        .map(|index| fleet.missing_tokens(index));
    let few = missing.min().unwrap_or(0).saturating_add(FEW_TOKENS);
    let worker = fleet.first(|index| is_near(index) && fleet.missing_tokens(index) <= few);
    let worker = worker.unwrap_or(holder);
    (worker, fleet.why_not_home(worker))
}

/// What a request costs on each worker of a fleet.
pub(super) struct Costs<'a> {
    fleet: &'a Fleet<'a>,
    /// Mean size of the caches that are known, in tokens; 0 if none is.
    mean_kv: f64,
}

impl<'a> Costs<'a> {
    pub(super) fn of(fleet: &'a Fleet<'a>) -> Self {
        let known = (0..fleet.len())
            .filter(|&index| fleet.in_service(index))
            .filter_map(|index| fleet.candidate(index).kv_tokens);
        let (count, sum) = known.fold((0.0, 0.0), |(count, sum), tokens| {
            (count + 1.0, sum + tokens as f64)
        });
        Self {
            fleet,
            mean_kv: if count > 0.0 { sum / count } else { 0.0 },
        }
    }

    /// Tokens of context in flight here and on their way, those that this request would have transferred included;
    /// comparable only within one decision.
    pub(super) fn cost(&self, index: usize) -> f64 {
        let load = self.fleet.candidate(index).load;
        let in_flight = load.context_tokens + load.prefill_tokens + REQUEST_TOKENS * load.requests;
        in_flight * self.scarcity(index) + f64::from(self.fleet.missing_tokens(index))
    }

    /// How much a token in flight weighs here against one on an ordinary worker: by the worker's weight, its speed, or
    /// by its cache, whichever is scarcer. An idle cluster leaves every key at home, whatever the weights.
    fn scarcity(&self, index: usize) -> f64 {
        let by_weight = 1.0 / self.fleet.relative_weight(index);
        let kv_tokens = self.fleet.candidate(index).kv_tokens;
        let by_cache = kv_tokens.map_or(0.0, |tokens| self.mean_kv / (tokens.max(1) as f64));
        by_weight.max(by_cache)
    }
}
