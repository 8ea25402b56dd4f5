//! Policies of the pools that take halves of requests.

use super::Policy;

/// How the worker for the second half is chosen where nothing else is said: by load, for its blocks come from elsewhere.
pub const DECODE_POLICY: Policy = Policy::LeastKv;

/// Policies of prefill and of decode workers, where they differ from what holds without a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolePolicies {
    /// Of workers that prefill only; none: as for workers of whole requests.
    pub prefill: Option<Policy>,
    /// Of workers that decode only; none: [`DECODE_POLICY`].
    pub decode: Option<Policy>,
}

impl RolePolicies {
    /// Whether nothing is said of either.
    pub(crate) fn is_unset(self) -> bool {
        self == Self::default()
    }
}
