//! Fake vLLM worker, fake Kubernetes API server, load generator, trace replay, L4 balancer and demo.
//!
//! Shares no code with the router, because a fake that shares code shares bugs; [`virtual_replay`] alone runs
//! the real placement code.

pub mod balancer;
mod bars;
mod chaos;
pub mod cli;
pub mod client;
mod demo;
mod engine;
pub mod fake_kubernetes;
pub mod fake_worker;
pub mod load;
mod processes;
pub mod replay;
pub mod tally;
pub mod virtual_replay;
