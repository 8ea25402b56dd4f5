//! Clusters of real processes on loopback: QUIC with mutual TLS, HTTP streams, real signals.
//!
//! `../README.md` says which row of the test matrix each file is for.

mod agreement;
mod certificates;
mod chaos;
mod convergence;
mod hearsay;
mod hot_prompt;
mod hot_share;
mod replica_kill;
mod restart_knowledge;
mod sampled_agreement;
mod seeds;
mod shutdown;
mod strangers;
mod tenants;
mod warmup;
mod worker_freeze;
mod worker_kill;
