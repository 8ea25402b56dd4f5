//! Workers as this replica sees them: connections, in-flight counts, health.

pub mod connection;
pub mod engine;
pub mod health;
pub mod in_flight;
pub mod pool;
pub mod probe;
pub mod worker;

pub use connection::Connection;
pub use in_flight::InFlight;
pub use worker::Worker;
