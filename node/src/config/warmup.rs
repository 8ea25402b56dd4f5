//! Settings of the warm-up of joining workers.

use std::time::Duration;

use super::setting::{ms, secs};
use super::table::section;
use super::types::ByteSize;

section! {
    /// Warm-up: a worker that joins gets the hottest prefixes that will move to it before it gets requests.
    ///
    /// Local: the replica through which a worker is added decides, and warms it.
    [warmup] WarmupConfig {
        /// Warm-ups of workers that are added while running.
        ///
        /// Off: they are active at once, and no prompt is kept in memory. `?warmup=false` does so for one worker.
        enabled: bool = true, flag "disable-warm-up" Off, live now;
        /// When a joining worker becomes active at the latest, on every replica, whatever became of its warm-up.
        ///
        /// Longer: more prefixes are there when traffic moves. Shorter: its capacity is used sooner.
        limit: Duration = secs(30), in ms(100)..=secs(600), flag "warm-up-limit-secs" Secs, live now;
        /// Prompts that are computed on it at a time. Higher: sooner done, until its prefill is the limit.
        concurrency: u32 = 2, in 1..=64, live now;
        /// Most prompts that are sent to it, the hottest first.
        prompts: u32 = 64, in 1..=1_024, live now;
        /// Hot prompts that this replica keeps, in memory only. Higher: more that can be warmed; each costs its bytes.
        entries: u32 = 256, in 1..=4_096;
        /// Bytes of one kept prompt; a longer one is not kept, and its worker computes it when it is asked for.
        entry_bytes: ByteSize = ByteSize::kib(256), in ByteSize::kib(1)..=ByteSize::mib(16), live now;
        /// Bytes of all kept prompts.
        bytes: ByteSize = ByteSize::mib(32), in ByteSize::kib(64)..=ByteSize::mib(4096);
    }
}
