//! What workers say of their caches, heard: each replica subscribes to every worker that publishes KV events.
//!
//! What events mean, their order and the index are in the crate `grapevine-kv-events`, purely; this is its rim.
//! `sources.rs` reads where a worker publishes, `follow.rs` keeps a task for each worker, `listener.rs` hears one engine of
//! it, over `connection.rs` and `replay.rs`; `caches.rs` is what is known, `contents.rs` what of it a decision asks, and `prediction.rs` compares that with answers.
//! `handover/` is how a replica that starts takes over what a peer knows, `top.rs` what people see of it.
//!
//! A worker says what it likes, so everything has a limit: connections, times, sizes, what waits, the index. What is
//! wrong is counted and costs at most what is known of that worker's cache.

mod caches;
mod connection;
mod contents;
mod follow;
mod handover;
mod listener;
mod metrics;
mod prediction;
mod replay;
mod sources;
#[cfg(test)]
mod tests;
mod top;

pub use caches::{Caches, Engine, EngineView};
pub use contents::name_of;
pub use follow::{KvFollower, KvParts};
pub use handover::{HandoverPlane, TakeOver};
pub use metrics::KvMetrics;
pub use prediction::Prediction;
pub use sources::Source;
pub use top::CacheView;
