//! Replicas in a simulated network: real QUIC, mutual TLS, chitchat and agents, virtual time.
//!
//! Each scenario is a test. `seeds.rs` runs random schedules and says how to run a failed one again.
//! Limits are simulated seconds, several times what is usual: the tests ask what holds, not how fast.

mod absence;
mod chance;
mod clocks;
mod clogs;
mod cluster;
mod crowd;
mod deaths;
mod flaps;
mod gossiped;
mod host;
mod invariants;
mod ledger;
mod network;
mod partitions;
mod plan;
mod probe;
mod scenarios;
mod schedules;
mod seeds;
mod weather;
