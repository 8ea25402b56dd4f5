//! The Grapevine router: one replica of the cluster.

pub mod config;
