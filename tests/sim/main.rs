//! Replicas in a simulated network: real QUIC, mutual TLS, chitchat and agents, virtual time.
//!
//! Each scenario is a test. `schedules.rs` draws faults at random and prints its seed when something
//! does not hold; `SIM_SEED=<seed> cargo test -p grapevine-tests --test sim random` runs that one again,
//! `SIM_SCHEDULES=500` runs more of them.
//! Limits are simulated seconds, several times what is usual: the tests ask what holds, not how fast.

mod chance;
mod cluster;
mod host;
mod invariants;
mod network;
mod scenarios;
mod schedules;
