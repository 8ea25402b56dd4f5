//! Health of one worker: from requests ([`Breaker`], [`Penalty`]), from probes ([`ProbeState`]), from other replicas
//! ([`Claim`]), and its gentle return ([`slow_start`]).
//!
//! It decides which workers to skip, never where they are: nothing here touches the ring. All of it is pure: `now` is
//! the time since any fixed start, and never runs backwards.

mod breaker;
mod claim;
mod duty;
mod penalty;
mod probe;
mod rate;
mod slow_start;

pub use breaker::{AttemptOutcome, Breaker, BreakerSettings, BreakerState, Permit};
pub use claim::{Claim, is_believable};
pub use duty::duty;
pub use penalty::Penalty;
pub use probe::{Health, ProbeSettings, ProbeState};
pub use slow_start::slow_start;
