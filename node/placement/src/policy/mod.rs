//! Policy: one decision. Key, ring, loads and standings in; worker and reason out.
//!
//! An enum chooses, one function per policy answers; all see the same [`Fleet`] and yield the same
//! [`Decision`]. A retry or failover is the same decision without the workers that were tried.
//! No randomness: policies that draw get the draw.
//!
//! Invariants, each a test of that name: `equal_views_choose_equally`, `tried_workers_are_never_chosen`,
//! `only_usable_workers_are_chosen`, `bound_holds_while_requests_are_placed`.

mod consistent_hash;
mod explain;
mod fleet;
mod least_request;
mod power_of_two;
mod prefix;
mod random;
mod round_robin;
mod sticky;

use std::{fmt, str::FromStr};

pub use explain::{Explanation, Row, Verdict, explain};
use fleet::Fleet;

use crate::{key::Key, load::Load, ring::Ring, settings::Ratio};

/// How a worker is chosen. Cluster-wide. Names are vllm-router's where it has the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Home by prefix, left only at a price: the default.
    #[default]
    Prefix,
    /// Home by session, user or prefix; left only when it cannot be used.
    ConsistentHash,
    /// Home by session; without a session, round robin.
    Sticky,
    /// Fewest requests in flight for its weight.
    LeastRequest,
    /// The less loaded of two drawn.
    PowerOfTwo,
    /// Drawn by weight.
    Random,
    /// One after the other, weights apart.
    RoundRobin,
}

impl Policy {
    /// All policies, in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::Prefix,
        Self::ConsistentHash,
        Self::Sticky,
        Self::LeastRequest,
        Self::PowerOfTwo,
        Self::Random,
        Self::RoundRobin,
    ];

    /// Name in configuration and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefix => "prefix",
            Self::ConsistentHash => "consistent_hash",
            Self::Sticky => "sticky",
            Self::LeastRequest => "least_request",
            Self::PowerOfTwo => "power_of_two",
            Self::Random => "random",
            Self::RoundRobin => "round_robin",
        }
    }

    /// The hash on the ring that this policy looks a key up by.
    fn hash(self, key: &Key) -> u64 {
        match self {
            Self::ConsistentHash => key.consistent(),
            _ => key.home(),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.as_str() == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// A name in configuration that is none of the policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(pub String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown policy `{}`: one of ", self.0)?;
        for (index, policy) in Policy::ALL.iter().enumerate() {
            write!(f, "{}{policy}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownPolicy {}

/// What a request costs on a worker, in policy `prefix`. Cluster-wide.
///
/// q, c, n: prefill tokens, context tokens and requests in flight on the worker, each divided by
/// weight / mean weight; L: prompt tokens; m: tokens expected in the worker's cache. The weight divides what
/// is in flight only: an idle cluster leaves every key at home, whatever the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Price {
    /// q + prefill * (L - m) + context * c; the smallest wins.
    Additive {
        /// Price of a token to be computed here, against one that waits. Default 4. With 1, conversations wander.
        prefill: Ratio,
        /// Price of a token held by running requests. Default 0.05.
        context: Ratio,
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
        prefill: Ratio::constant(4.0),
        context: Ratio::constant(0.05),
    };
    /// The multiplicative price with its defaults.
    pub const MULTIPLICATIVE: Self = Self::Multiplicative {
        prefill: Ratio::constant(3.0),
        overhead: Ratio::constant(256.0),
        patience: Ratio::constant(4.0),
        tolerance: Ratio::constant(1.25),
    };

    /// Name in configuration: `additive` or `multiplicative`.
    #[must_use]
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

/// Most requests in flight on a worker before new ones go elsewhere, in policy `prefix`. Cluster-wide.
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

/// How a worker is chosen for a key. Cluster-wide.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicySettings {
    /// Default [`Policy::Prefix`].
    pub policy: Policy,
    /// Default [`Price::ADDITIVE`].
    pub price: Price,
    /// Part of a key's stable tokens that its home is expected to hold. Default 0.75; above 1 counts as 1.
    ///
    /// Higher: homes are left later. Lower: load counts more.
    pub home_credit: Ratio,
    /// Default 1.5 times the fair share, 4 above the mean.
    pub bound: Bound,
    /// Whether more than half of the workers unhealthy means that health is wrong, and all are used. Default yes.
    pub panic: bool,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            price: Price::default(),
            home_credit: Ratio::constant(0.75),
            bound: Bound::default(),
            panic: true,
        }
    }
}

/// Whether a worker may take a request, before load is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Healthy or not yet probed.
    #[default]
    Usable,
    /// At its own limit of requests in flight.
    Full,
    /// Failing probes, or its breaker is open.
    Unhealthy,
    /// Leaves, or is not to be used yet: no new requests.
    Draining,
}

impl Standing {
    /// Name in the admin API and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::Full => "full",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
        }
    }
}

/// A worker as the decision sees it now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Cluster-wide load, already damped by age ([`crate::load::damp`]).
    pub load: Load,
    /// Whether it may be used.
    pub standing: Standing,
}

/// Why a worker was chosen. Labels of a metric: stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The home of the key.
    Home,
    /// Home of an explicit session, policy `sticky`.
    Sticky,
    /// The home is usable, another worker is cheaper.
    SpillPrice,
    /// The home is at the bound on requests in flight.
    SpillBound,
    /// The home is at its own limit.
    SpillFull,
    /// The home is unhealthy or was tried.
    Failover,
    /// The home is draining.
    Drain,
    /// Policy `least_request`.
    LeastRequest,
    /// Policy `power_of_two`.
    PowerOfTwo,
    /// Policy `random`.
    Random,
    /// Policy `round_robin`, or `sticky` without a session.
    RoundRobin,
}

impl Reason {
    /// Label in metrics, headers and the admin API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Sticky => "sticky",
            Self::SpillPrice => "spill_price",
            Self::SpillBound => "spill_bound",
            Self::SpillFull => "spill_full",
            Self::Failover => "failover",
            Self::Drain => "drain",
            Self::LeastRequest => "least_request",
            Self::PowerOfTwo => "power_of_two",
            Self::Random => "random",
            Self::RoundRobin => "round_robin",
        }
    }
}

/// The worker for a request, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Index of the worker among the ring's members.
    pub worker: usize,
    /// Index of the key's home.
    pub home: usize,
    /// Why this worker.
    pub reason: Reason,
    /// Tokens of the prompt expected in this worker's cache.
    pub expected_tokens: u32,
    /// Estimated tokens of the prompt.
    pub prompt_tokens: u32,
}

impl Decision {
    /// Tokens this worker is expected to compute: what [`Load::prefill_tokens`] grows by until the first byte.
    #[must_use]
    pub fn prefill_tokens(&self) -> u32 {
        self.prompt_tokens - self.expected_tokens
    }
}

/// Why no worker can take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWorker {
    /// The pool has no workers.
    Empty,
    /// All that could be used were tried.
    Tried,
    /// All that are left are at their own limit: back-pressure, not failure.
    Full,
    /// All that are left are unhealthy.
    Unhealthy,
    /// All are draining.
    Draining,
}

impl NoWorker {
    /// Label in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Tried => "tried",
            Self::Full => "full",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
        }
    }
}

impl fmt::Display for NoWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "no worker serves this model",
            Self::Tried => "every usable worker was tried",
            Self::Full => "every worker is at its limit of requests in flight",
            Self::Unhealthy => "no worker is healthy",
            Self::Draining => "every worker is draining",
        })
    }
}

impl std::error::Error for NoWorker {}

/// Chooses the worker for one attempt of a request. Does not allocate.
///
/// `candidates` follow [`Ring::members`]; `tried` are the indices of earlier attempts of this request. `draw` serves
/// the policies that draw: 64 random bits, or for `round_robin` and `sticky` a counter of requests.
///
/// # Errors
/// Nobody is left that may take the request; never because of the bound.
///
/// # Panics
/// If there is not one candidate per member: both come from one snapshot.
pub fn decide(
    settings: &PolicySettings,
    ring: &Ring,
    key: &Key,
    candidates: &[Candidate],
    tried: &[usize],
    draw: u64,
) -> Result<Decision, NoWorker> {
    Fleet::new(settings, ring, key, candidates, tried)?.decide(draw)
}
