//! Settings of KV events.

use std::time::Duration;

use grapevine_placement::Ratio;

use super::setting::secs;
use super::table::section;
use super::types::ByteSize;

section! {
    /// KV events: what workers say of their caches, heard by every replica.
    ///
    /// Workers publish with `--kv-events-config`. Policies that look at what caches hold believe that before anything else.
    [kv_events] KvEventsConfig {
        /// Hear the workers that publish.
        enabled: bool = true;
        /// Memory of the index of blocks at most; some 20 bytes a block that one worker has. Beyond it new blocks are
        /// not noted, and are counted.
        index_bytes: ByteSize = ByteSize::mib(256), in ByteSize::mib(1)..=ByteSize::mib(65_536);
        /// Blocks of texts of which it is remembered which blocks they became; 1,000 take some 60 kB. Beyond it the texts
        /// that were not used for longest are forgotten, and what is known of them is what was sent where.
        text_blocks: u32 = 500_000, in 1_000..=100_000_000;
        /// What a block in a worker's host memory is worth, against one on its GPU: it is copied there before it is used.
        host_worth: Ratio = ratio(0.8), in ratio(0.0)..=ratio(1.0),
            flag "kv-penalty-host" Text;
        /// The same of a block in storage.
        storage_worth: Ratio = ratio(0.3), in ratio(0.0)..=ratio(1.0), flag "kv-penalty-disk" Text;
        /// How long a worker may be silent before it is asked whether something was missed. Lower: a lost end of its
        /// messages is noticed sooner, for a connection to each silent worker.
        silence: Duration = secs(30), in secs(1)..=secs(600);
    }
}

fn ratio(value: f64) -> Ratio {
    Ratio::new(value).expect("a constant in range")
}
