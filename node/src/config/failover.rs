//! Settings of mid-stream failover.

use super::table::section;
use super::types::ByteSize;

section! {
    /// Mid-stream failover: a stream whose worker fails goes on from another worker, as a continuation of what
    /// the client has read.
    ///
    /// The header `x-grapevine-failover: on` or `off` wins for one request, `failover` of a [[model]] for one
    /// model.
    [failover] FailoverConfig {
        /// Failover of all chat and completion streams that can be continued.
        ///
        /// It keeps each one's body and text in memory, and the second worker computes the prompt again.
        enabled: bool = false, flag "enable-failover" On, live now;
        /// Times that one stream may go on elsewhere, each time on a worker that it has not been on.
        max: u32 = 2, in 1..=16, live now;
        /// Bytes of the text that is kept of one stream; a longer one is not continued.
        text_bytes: ByteSize = ByteSize::kib(256), in ByteSize::kib(1)..=ByteSize::mib(16), live now;
    }
}
