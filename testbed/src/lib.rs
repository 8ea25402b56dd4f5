//! Fake vLLM worker, load generator, trace replay, L4 balancer and demo.
//!
//! Shares no code with the router: a fake that shares code shares bugs.

pub mod cli;
pub mod fake_worker;
