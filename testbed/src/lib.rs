//! Fake vLLM worker, fake Kubernetes API server, trace replay, L4 balancer, demo and chaos; their load is
//! [`grapevine_bench`]'s.
//!
//! Shares no code with the router, because a fake that shares code shares bugs; [`virtual_replay`] alone runs
//! the real placement code.

pub mod balancer;
mod chaos;
pub mod cli;
mod demo;
mod engine;
pub mod fake_kubernetes;
pub mod fake_worker;
mod processes;
pub mod replay;
pub mod virtual_replay;
