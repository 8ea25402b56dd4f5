//! Load of a worker as all replicas can know it.

use super::frame::Load;

/// Damped sums of what the other replicas have on one worker. Not whole numbers, since old counts
/// weigh less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OthersLoad {
    /// Requests in flight.
    pub requests: f64,
    /// Prompt tokens still to be computed.
    pub prefill_tokens: f64,
    /// Tokens of context held.
    pub context_tokens: f64,
    /// Requests in flight as they were reported, however old that is by now: for a worker's own limit, which is not to be
    /// passed because news is late.
    pub reported_requests: f64,
}

/// What all replicas can know of the load of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Common {
    /// Of this replica's own, as [`super::LoadCell::known`].
    pub known: Load,
    /// As [`super::LoadCell::others`].
    pub others: OthersLoad,
}
