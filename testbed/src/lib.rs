//! Fake vLLM worker, load generator, trace replay, L4 balancer and demo.
//!
//! Shares no code with the router: a fake that shares code shares bugs.

pub mod balancer;
pub mod cli;
pub mod client;
mod demo;
pub mod fake_worker;
pub mod load;
pub mod replay;
pub mod tally;
