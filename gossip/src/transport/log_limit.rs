//! Warnings that name an address, at most one a minute for each address and kind.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Remembers what was logged lately. Everything is counted elsewhere, too, so a line that is left out loses nothing.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    said: Mutex<HashMap<(SocketAddr, &'static str), Instant>>,
}

impl LogLimit {
    /// True if a warning of this kind about this address is due now.
    pub(super) fn due(&self, address: SocketAddr, kind: &'static str) -> bool {
        let now = Instant::now();
        let mut said = self.said.lock();
        said.retain(|_, at| now.duration_since(*at) < QUIET);
        if said.len() == REMEMBERED || said.contains_key(&(address, kind)) {
            return false;
        }
        said.insert((address, kind), now);
        true
    }
}

const QUIET: Duration = Duration::from_secs(60);
/// A flood from invented addresses fills this and is silent for the rest of the minute.
const REMEMBERED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_warning_a_minute_for_each_address_and_kind() {
        let log_limit = LogLimit::default();
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert!(log_limit.due(address(1), "silent"));
        assert!(!log_limit.due(address(1), "silent"));
        assert!(log_limit.due(address(1), "foreign"));
        assert!(log_limit.due(address(2), "silent"));
        tokio::time::advance(QUIET).await;
        assert!(log_limit.due(address(1), "silent"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_bounded() {
        let log_limit = LogLimit::default();
        let said = (1..2000)
            .filter(|&port| log_limit.due(([127, 0, 0, 1], port).into(), "silent"))
            .count();
        assert_eq!(said, REMEMBERED);
    }
}
