//! What a decision weighs: price, credit, bound.

use super::Policy;
use crate::{heat::HeatSettings, ratio::Ratio};

/// Tokens of a prompt that count for tolerance: what replicas do not know of each other does not grow with this prompt.
const TOLERANCE_TOKENS: u32 = 4_096;

/// What a request costs on a worker, in policy `prefix`. Cluster-wide.
///
/// q, c, n: prefill tokens, context tokens and requests in flight on the worker, each divided by
/// weight / mean weight; L: prompt tokens; m: tokens expected in the worker's cache. The weight divides what
/// is in flight only: an idle cluster leaves every key at home, whatever the weights. Tokens are compared in
/// milliseconds, by the worker's [`Rate`](crate::rate::Rate); and what is within 5 ms of the smallest is near it
/// always.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Price {
    /// q + prefill * (L - m) + context * c; first in order among those within
    /// tolerance * min(L, 4,096) of the smallest.
    Additive {
        /// Price of a token to be computed here, against one that waits. Default 6. With 1, conversations wander.
        prefill: Ratio,
        /// Price of a token held by running requests. Default 0.1. Lower: long sessions crowd workers and caches.
        context: Ratio,
        /// Part of the prompt, of its first 4,096 tokens, that a worker may cost more than the cheapest and still be
        /// taken for its place in the order. Default 1.5. Higher: replicas with slightly different counts agree more
        /// often, queues are less even.
        tolerance: Ratio,
    },
    /// (q + prefill * (L - m) + overhead) * (n + patience); first in order among those near the smallest.
    Multiplicative {
        /// Price of a token to be computed here, against one that waits. Default 3.
        prefill: Ratio,
        /// Tokens that any request costs. Default 256.
        overhead: Ratio,
        /// Requests that any worker is taken to have. Default 4.
        patience: Ratio,
        /// How far above the smallest is near: factor, 1 or more (less counts as 1). Default 1.25.
        tolerance: Ratio,
    },
}

impl Price {
    /// The additive price with its defaults.
    pub const ADDITIVE: Self = Self::Additive {
        prefill: Ratio::constant(6.0),
        context: Ratio::constant(0.1),
        tolerance: Ratio::constant(1.5),
    };
    /// The multiplicative price with its defaults.
    pub const MULTIPLICATIVE: Self = Self::Multiplicative {
        prefill: Ratio::constant(3.0),
        overhead: Ratio::constant(256.0),
        patience: Ratio::constant(4.0),
        tolerance: Ratio::constant(1.25),
    };

    /// How much more than the smallest cost is still near it, in milliseconds; `rate`: those of a token.
    pub(super) fn tolerance(&self, least: f64, rate: f64, prompt_tokens: u32) -> f64 {
        match *self {
            Self::Additive { tolerance, .. } => {
                tolerance.get() * f64::from(prompt_tokens.min(TOLERANCE_TOKENS)) * rate
            }
            Self::Multiplicative { tolerance, .. } => least * (tolerance.get() - 1.0).max(0.0),
        }
    }

    /// Name in configuration: `additive` or `multiplicative`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Additive { .. } => "additive",
            Self::Multiplicative { .. } => "multiplicative",
        }
    }
}

impl Default for Price {
    fn default() -> Self {
        Self::ADDITIVE
    }
}

/// Most requests in flight on a worker before those that lose little by it go elsewhere, in policy `prefix`.
/// Cluster-wide.
///
/// Counted over the whole cluster and with the request that is being placed:
/// max(factor * weight / mean weight * mean, mean + slack). Never a reason to refuse a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Multiple of the worker's fair share. Default 1.5.
    pub factor: Ratio,
    /// Requests above the mean that are always allowed. Default 4: small counts are noise.
    pub slack: Ratio,
}

impl Default for Bound {
    fn default() -> Self {
        Self {
            factor: Ratio::constant(1.5),
            slack: Ratio::constant(4.0),
        }
    }
}

/// Bound of policy `consistent_hash`: how far above the mean a home may be before the next in order is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum HashBound {
    /// Load is not looked at: the default, as in vllm-router.
    #[default]
    Off,
    /// This multiple of the mean of requests in flight, 1 or more. Usual: 1.25.
    Requests(Ratio),
    /// This multiple of the mean of tokens that wait for prefill.
    PrefillTokens(Ratio),
}

impl HashBound {
    /// Name in configuration: `off`, `requests` or `prefill_tokens`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Requests(_) => "requests",
            Self::PrefillTokens(_) => "prefill_tokens",
        }
    }

    /// The multiple; 0 without a bound.
    pub const fn factor(self) -> Ratio {
        match self {
            Self::Off => Ratio::constant(0.0),
            Self::Requests(factor) | Self::PrefillTokens(factor) => factor,
        }
    }
}

/// Thresholds of policy `cache_aware`, with vllm-router's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheAware {
    /// Part of the prompt that must match. Default 0.3. Higher: more even, fewer hits.
    pub match_share: Ratio,
    /// Requests between the most and the least loaded worker that, together with the factor, mean imbalance.
    /// Default 64. Lower: load decides earlier.
    pub imbalance_requests: Ratio,
    /// The most loaded worker over the least loaded one. Default 1.5.
    pub imbalance_factor: Ratio,
}

impl Default for CacheAware {
    fn default() -> Self {
        Self {
            match_share: Ratio::constant(0.3),
            imbalance_requests: Ratio::constant(64.0),
            imbalance_factor: Ratio::constant(1.5),
        }
    }
}

/// How a worker is chosen for a key. Cluster-wide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicySettings {
    /// Default [`Policy::Prefix`].
    pub policy: Policy,
    /// Default [`Price::ADDITIVE`].
    pub price: Price,
    /// Default 1.5 times the fair share, 4 above the mean.
    pub bound: Bound,
    /// Tokens that each request above the bound costs, at the worker's rate. Default 8,192.
    ///
    /// Higher: crowds are left earlier. Lower: requests that would compute much elsewhere stay longer.
    pub crowd_price: Ratio,
    /// Times the bound that no worker may pass, whatever is lost. Default 2; below 1 counts as 1.
    pub outer_bound: Ratio,
    /// Workers that are compared for a prompt of which nothing is known: the first so many in its order. Default 4;
    /// 0: all; above 8 counts as 8.
    ///
    /// Higher: queues are more even while counts are fresh. Lower: replicas agree more often, and fewer of them run
    /// to the same idle worker.
    pub choices: u8,
    /// Which prefixes are shared by several workers, policy `prefix`.
    pub heat: HeatSettings,
    /// Bound of policy `consistent_hash`. Default off.
    pub hash_bound: HashBound,
    /// Thresholds of policy `cache_aware`.
    pub cache_aware: CacheAware,
    /// Whether bad health of more than half of the workers, without those that drain, means that it is wrong, and all are
    /// used: those that refuse connections last, those with an open breaker only to spare others that are well. Default
    /// yes.
    pub panic: bool,
}

impl PolicySettings {
    /// Whether health is not believed in a pool of so many workers, without those that drain: with more than half of
    /// them unhealthy, the few others would be crushed, and the view of them is likelier wrong than they are.
    pub const fn panics(&self, unhealthy: usize, workers: usize) -> bool {
        self.panic && unhealthy * 2 > workers
    }
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            price: Price::default(),
            bound: Bound::default(),
            crowd_price: Ratio::constant(8_192.0),
            outer_bound: Ratio::constant(2.0),
            choices: 4,
            heat: HeatSettings::default(),
            hash_bound: HashBound::default(),
            cache_aware: CacheAware::default(),
            panic: true,
        }
    }
}
