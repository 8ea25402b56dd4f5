//! Collects the facts: asks admin ports, tries ports, reads files. No judgement here.

pub(super) mod cluster;
pub(super) mod config;
mod engines;
mod net;
