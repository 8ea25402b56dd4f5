//! The Grapevine router: one replica of the cluster.
//!
//! A request: [`listener`] → [`proxy`] (reads with [`api`] and [`http`], places through [`cluster`], sends through
//! [`upstream`]). The cluster: gossip's view → [`cluster`] → a fleet that placement chooses from. [`app`]
//! builds it all; [`admin`] shows and changes it; [`cache`] answers again what it has answered before; [`trace`]
//! sends spans of requests to a collector; [`config`] and [`cli`] are how people reach it.

pub mod admin;
pub mod admission;
pub mod all_metrics;
pub mod alone;
pub mod api;
pub mod app;
pub mod cache;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod descriptors;
pub mod discovery;
#[cfg(debug_assertions)]
pub mod fault_injection;
pub mod follow;
pub mod http;
pub mod keep_alive;
pub mod kv_events;
pub mod lag;
pub mod lanes;
pub mod learner;
pub mod left_out;
pub mod listener;
pub mod live;
pub mod log_limit;
pub mod logging;
pub mod machine;
pub mod media_type;
pub mod memory;
pub mod metrics;
pub mod otlp;
pub mod page;
pub mod proxy;
pub mod pulse;
pub mod readiness;
pub mod reload;
pub mod seats;
pub mod service_manager;
pub mod shown;
pub mod shutdown;
pub mod standing;
pub mod tenants;
pub mod tls;
pub mod trace;
pub mod upstream;
pub mod warmup;
