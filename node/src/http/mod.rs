//! What belongs to HTTP itself, whichever part reads or writes it: headers and which side may see them, ids,
//! handshakes, event streams, bodies for workers, and the client at the other end of a connection.
//!
//! The ground floor: nothing here knows a proxy, a worker or a cluster.

pub mod client_body;
pub mod client_io;
pub mod counts;
pub mod credentials;
pub mod forwarded;
pub mod handshake;
pub mod head_size;
pub mod headers;
pub mod hops;
pub mod host;
pub mod progress;
pub mod request_id;
pub mod sse;
pub mod syntax;
pub mod tail;
pub mod worker_body;
