//! Replicas in a simulated network: real QUIC, mutual TLS, chitchat and agents, virtual time.
//!
//! Each scenario is a test. `seeds.rs` runs random schedules and says how to run a failed one again.
//! `SIM_LOSS_SECONDS=600`, `SIM_STORM=50`, `SIM_OVERSIZE=64`, `SIM_GROWTH=64` and `SIM_CLOGS=100` run whole rows
//! of the fault table whose small form runs every day; the largest need an optimised build.
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
mod pauses;
mod plan;
mod probe;
mod scenarios;
mod schedules;
mod seeds;
mod socket;
mod weather;
