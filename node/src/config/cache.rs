//! Settings of the response cache.

use std::time::Duration;

use super::setting::{HOUR, secs};
use super::table::section;
use super::types::ByteSize;

section! {
    /// Response cache: answers of deterministic requests, given again without a worker. Off by default.
    ///
    /// Only embeddings, rerank, score, and chats and completions with `temperature` 0 (or `top_k` 1) and one choice.
    /// Local: each replica keeps its own answers, in memory only.
    [cache] CacheConfig {
        /// Keeps answers and gives them again. Off: nothing is looked at.
        enabled: bool = false, flag "response-cache" On;
        /// Memory of all kept answers. As much again may be taken by answers that are on their way.
        bytes: ByteSize = ByteSize::mib(256), in ByteSize::mib(1)..=ByteSize::mib(65_536), flag "response-cache-bytes" Text;
        /// Longest answer that is kept, head and pieces included.
        entry_bytes: ByteSize = ByteSize::mib(1), in ByteSize::kib(1)..=ByteSize::mib(64), live now;
        /// Longest request whose answer is looked for. Higher: longer prompts hit; each costs a hash of its length.
        request_bytes: ByteSize = ByteSize::mib(1), in ByteSize::kib(1)..=ByteSize::mib(1024), live now;
        /// How long an answer is given again.
        ///
        /// Also how long a replaced model is still quoted, when the new one has the same name.
        ttl: Duration = secs(600), in secs(1)..=HOUR * 24, flag "response-cache-ttl-secs" Secs;
        /// Share of `bytes` that one tenant may hold. Requests without a tenant are not bound.
        tenant_share: f64 = 0.5, in 0.01..=1.0, live now;
    }
}
