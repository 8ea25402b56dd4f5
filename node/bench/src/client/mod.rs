//! HTTP client: keep-alive connections to one or more targets, and one request measured from its first byte to its
//! last.
//!
//! It deliberately does not retry, because faults of the system under test must show. The one exception is a
//! pooled connection that was closed before the request was written to it; such a request was never sent.

mod event;
mod exchange;
mod pool;
mod shown;
mod socket;
mod sse;
mod target;
mod tls;

pub use event::Usage;
pub(crate) use exchange::ERROR_EVENT;
pub use exchange::{Ask, Complaint, Failure, Outcome};
pub use pool::{Client, Spread, Unreached};
pub(crate) use shown::{MESSAGE_CHARS_MAX, clean};
pub use target::Target;
pub use tls::{TlsError, tls};
