//! The Grapevine router: one replica of the cluster.

pub mod cli;
pub mod config;
pub mod logging;
pub mod shutdown;
