//! Agents among each other: with real sockets and certificates on loopback, and on a simulated network.
//!
//! `running` has the agents on loopback, `simulated` those in virtual time. All are one program, so that their tests, which
//! wait most of the time, run beside each other. What hostile peers do is in `../hostile`: those tests measure the memory of
//! their process, which is why they have one of their own.

mod dry_run;
mod evidence;
mod evidence_peers;
mod evidence_sim;
mod key_types;
mod listening;
mod loopback;
mod network;
mod new_kind;
mod panics;
mod peer_state;
mod peer_state_sim;
mod rotation;
mod running;
mod simulated;
mod starting_sim;
mod twins;
mod two_ways;
mod warming_sim;
