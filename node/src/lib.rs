//! The Grapevine router: one replica of the cluster.
//!
//! A request: [`listener`] → [`proxy`] (reads with [`api`], places through [`cluster`], sends through
//! [`upstream`]). The cluster: gossip's view → [`cluster`] → a fleet that placement chooses from. [`app`]
//! builds it all; [`admin`] shows and changes it; [`cache`] answers again what it has answered before; [`trace`]
//! tells a collector about requests; [`config`] and [`cli`] are how people reach it.

pub mod admin;
pub mod admission;
pub mod agreement;
pub mod api;
pub mod app;
pub mod cache;
pub mod cli;
pub mod cluster;
pub mod config;
mod descriptors;
pub mod follow;
mod hops;
pub mod lag;
pub mod learner;
pub mod left_out;
pub mod listener;
pub mod logging;
pub mod memory;
pub mod metrics;
#[cfg(debug_assertions)]
pub mod provoke;
pub mod proxy;
pub mod quiet;
pub mod readiness;
pub mod reload;
pub mod series;
pub mod shutdown;
pub mod tenants;
pub mod tls;
pub mod trace;
pub mod upstream;
pub mod warmup;
