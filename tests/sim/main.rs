//! Replicas in a simulated network: real QUIC, mutual TLS, chitchat and agents, virtual time.
//!
//! Each scenario is a test. `seeds.rs` runs random schedules and prints how to run a failed one again.
//! `SIM_LOSS_SECONDS=600`, `SIM_STORM=50`, `SIM_OVERSIZE=64`, `SIM_GROWTH=64` and `SIM_CLOGS=100` run whole rows
//! of the fault table, of which a small form runs by default; the largest need an optimised build. Limits are
//! simulated seconds, several times the usual ones: the tests check that states are reached, not how fast.

mod absence;
mod clocks;
mod clogs;
mod cluster;
mod crash_loop;
mod flaps;
mod gossiped;
mod host;
mod invariants;
mod ledger;
mod loss;
mod network;
mod partitions;
mod pauses;
mod plan;
mod probe;
mod rng;
mod scale;
mod scenarios;
mod schedules;
mod seeds;
mod socket;
