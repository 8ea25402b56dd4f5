//! Golden vectors, invariants and decision tables of placement, against its public surface alone.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
mod decisions;
mod evidence;
mod golden;
mod heat;
mod keys;
mod rings;
