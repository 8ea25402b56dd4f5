//! Settings of KV events.

use std::time::Duration;

use super::setting::secs;
use super::table::section;
use super::types::ByteSize;

section! {
    /// KV events: what workers say of their caches, heard by every replica.
    ///
    /// Workers publish with `--kv-events-config`. Nothing is decided by them yet: what is known is shown by
    /// `GET /workers/{id}` and in the metrics.
    [kv_events] KvEventsConfig {
        /// Hear the workers that publish.
        enabled: bool = true;
        /// Memory of the index of blocks at most; some 20 bytes a block that one worker has. Beyond it new blocks are
        /// not noted, and are counted.
        index_bytes: ByteSize = ByteSize::mib(256), in ByteSize::mib(1)..=ByteSize::mib(65_536);
        /// How long a worker may be silent before it is asked whether something was missed. Lower: a lost end of its
        /// messages is noticed sooner, for a connection to each silent worker.
        silence: Duration = secs(30), in secs(1)..=secs(600);
    }
}
