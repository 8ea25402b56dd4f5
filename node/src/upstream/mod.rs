//! Workers as this replica sees them: connections, in-flight counts, health.

pub mod address;
pub mod atomic_instant;
pub mod attempt;
pub mod connection;
pub mod connector;
pub mod duty;
pub mod engine_metrics;
pub mod failure;
pub mod head_count;
pub mod health;
pub mod health_metrics;
pub mod in_flight;
pub mod keys;
pub mod kv_engine;
mod metric_cache;
pub mod metrics;
pub mod pace;
pub mod patience;
pub mod pool;
pub mod probe;
pub mod probe_parts;
mod question;
pub mod tls;
mod token_probe;
mod transfer_facts;
mod vigil;
pub mod worker;
pub mod worker_facts;

pub use atomic_instant::AtomicInstant;
pub use connection::{AnswerBody, Broken, Connection, SendError};
pub use connector::{Connector, ConnectorParts};
pub use in_flight::InFlight;
pub use kv_engine::{KvEngine, KvState};
pub use metrics::UpstreamMetrics;
pub(crate) use question::read_within;
pub use worker::{About, Worker};
