//! Golden vectors, invariants and decision tables of placement, against its public surface alone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bounds;
mod common;
mod decision_laws;
mod decisions;
mod evidence;
mod golden;
mod health;
mod heat;
mod keys;
mod least_kv;
mod parts;
mod policies;
mod reference;
mod rings;
mod scene;
mod shared_evidence;
