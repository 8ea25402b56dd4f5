//! Workers as this replica sees them: connections, in-flight counts, health.

pub mod allow;
pub mod connection;
pub mod duty;
pub mod engine;
pub mod facts;
pub mod head_count;
pub mod health;
pub mod in_flight;
pub mod keys;
pub mod metrics;
pub mod moment;
pub mod pool;
pub mod probe;
pub mod reach;
mod revive;
pub mod tls;
mod vigil;
pub mod worker;

pub use connection::{AnswerBody, Broken, Connection, SendError};
pub use in_flight::InFlight;
pub use moment::Moment;
pub use reach::{Reach, ReachParts};
pub use worker::Worker;
