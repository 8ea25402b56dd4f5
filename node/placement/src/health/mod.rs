//! Health of one worker, from requests ([`Breaker`]) and from probes ([`ProbeState`]).
//!
//! Whom to skip, never who is where: nothing here touches the ring. Both are pure: `now` is the time since
//! any fixed start, and never runs backwards.

mod breaker;
mod probe;

pub use breaker::{Breaker, BreakerSettings, BreakerState, Outcome, Permit};
pub use probe::{Health, ProbeSettings, ProbeState};
