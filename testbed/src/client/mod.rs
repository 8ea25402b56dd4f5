//! HTTP client of `load`, `replay` and `demo`: keep-alive connections to one or more targets, and
//! one request measured from its first byte to its last.
//!
//! It deliberately does not retry, because faults of the system under test must show. The one exception is a
//! pooled connection that was closed before the request was written to it; such a request was never sent.

mod exchange;
mod pool;
mod sse;

pub use exchange::{Ask, Failure, Outcome, Usage};
pub use pool::{Client, Spread, Target};
