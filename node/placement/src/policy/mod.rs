//! Policy: one decision. Key, ring, loads and standings in; worker and reason out.
//!
//! An enum chooses (`decide.rs`), one function per policy answers; all see the same fleet (`fleet.rs`) and yield the
//! same [`Decision`]. A retry or failover is the same decision without the workers that were tried.
//! No randomness: policies that draw get the draw.
//!
//! Invariants, each a test of that name: `equal_views_choose_equally`, `only_usable_workers_are_chosen`,
//! `bound_holds_while_requests_are_placed`, `idle_homes_keep_their_keys_at_any_weight`.

mod cache_aware;
mod consistent_hash;
mod decide;
mod decision;
mod divide;
mod explain;
mod fleet;
mod home;
mod least_kv;
mod least_request;
mod power_of_two;
mod prefix;
mod random;
mod roles;
mod round_robin;
mod settings;
mod sticky;
mod view;

use std::{fmt, str::FromStr};

pub use decide::decide;
pub use decision::{Candidate, Decision, NoWorker, Reason, Standing, Told};
pub use divide::Divide;
pub use explain::{Explanation, Row, Verdict, explain};
pub use roles::{DECODE_POLICY, RolePolicies};
pub use settings::{Bound, CacheAware, HashBound, PolicySettings, Price};
pub use view::View;

named! {
    /// How a worker is chosen. Cluster-wide. Names are vllm-router's where it has the policy.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Policy {
        /// Home by prefix, left only at a price: the default.
        #[default]
        Prefix = "prefix",
        /// Home by session, user or prefix; left only when it cannot be used.
        ConsistentHash = "consistent_hash",
        /// Longest known prefix, least known worker when none is long enough; vllm-router's rule.
        CacheAware = "cache_aware",
        /// Home by session; without a session, round robin.
        Sticky = "sticky",
        /// Fewest requests in flight for its weight.
        LeastRequest = "least_request",
        /// Least context in flight, with room in the cache and the least to transfer: for workers that decode.
        LeastKv = "least_kv",
        /// The less loaded of two drawn.
        PowerOfTwo = "power_of_two",
        /// Drawn by weight.
        Random = "random",
        /// One after the other, weights apart.
        RoundRobin = "round_robin",
    }
}

impl Policy {
    /// Whether it looks at whole caches, and not only at what they hold of a prompt
    /// ([`crate::PrefixIndex::fill_caches`]).
    pub const fn looks_at_caches(self) -> bool {
        matches!(self, Self::CacheAware | Self::LeastKv)
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
