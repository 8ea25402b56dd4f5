//! Harness of the whole-system tests: clusters of real `grapevine` processes on loopback.
//!
//! Everything is real: the binary, its certificates, its sockets. Only the workers are fakes, in this process
//! or as processes of their own. The kernel chooses ports, every wait has a limit and a condition, and each
//! process ends with the value that started it. Helpers panic with what they saw: they are the assertions of
//! the tests.
//!
//! - [`binary`], [`process`]: the program, and one running instance of it
//! - [`cluster`]: replicas with mutual TLS; start, kill, stop, restart on the same ports
//! - [`admin`]: answers of a replica's admin port, typed
//! - [`http1`], [`chat`]: clients, down to the byte where a test needs it
//! - [`ports`]: addresses at which nobody listens
//! - [`collector`]: receives traces
//! - [`recorder`]: a worker that records what reaches it, down to the byte
//! - [`invariants`]: invariants at the end of every test, one file each

pub mod admin;
pub mod binary;
pub mod chat;
pub mod cluster;
pub mod collector;
#[cfg(test)]
mod documents;
pub mod gate;
pub mod http1;
pub mod invariants;
pub mod keys;
pub mod ports;
pub mod process;
pub mod recorder;
pub mod tls;
pub mod wait;
