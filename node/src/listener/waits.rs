//! How long a connection of HTTP/1.1 may be waited for.

use std::time::Duration;

/// How long a connection may wait for what.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// From the first byte of a request to the end of its head.
    pub header: Duration,
    /// Between two requests.
    pub keep_alive: Duration,
}
