//! Settings of sessions over WebSocket.

use std::time::Duration;

use super::setting::{HOUR, secs};
use super::table::section;
use super::types::ByteSize;

section! {
    /// WebSocket sessions: `/v1/realtime`, relayed to a worker as they are.
    [realtime] RealtimeConfig {
        /// Sessions at all; off: 501.
        enabled: bool = true, flag "disable-realtime" Off, live now;
        /// Sessions at once; above it 503. Each counts among `limits.requests` to its end as well.
        ///
        /// A session takes two connections and 32 KiB for as long as it lives.
        sessions: u32 = 1_024, in 1..=1_000_000;
        /// How long a session may be silent in both directions; then it is closed.
        idle: Duration = secs(600), in secs(1)..=HOUR * 24, live now;
        /// Bytes of one session in one direction; then it is closed.
        session_bytes: ByteSize = ByteSize::mib(1024), in ByteSize::kib(64)..=ByteSize::mib(1 << 20), live now;
    }
}
