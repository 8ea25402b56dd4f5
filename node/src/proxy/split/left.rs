//! Blocks on a prefill worker that no decode worker fetched: they take room there until the engine gives them up
//! (vLLM 0.32.0 with NIXL: its `kv_lease_duration`, 30 s by default; Mooncake and releases before: 480 s), so they count as
//! load until then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::SplitMetrics;
use crate::upstream::InFlight;

/// Most prompts whose blocks are counted at once; of further ones nothing is known.
const LEFT_MAX: usize = 4_096;

/// Prompts whose blocks were left on prefill workers.
#[derive(Debug)]
pub(in crate::proxy) struct LeftBlocks {
    held_for: Duration,
    count: AtomicUsize,
    metrics: SplitMetrics,
}

impl LeftBlocks {
    /// None yet; each counts for this long.
    pub(in crate::proxy) fn new(held_for: Duration, metrics: SplitMetrics) -> Arc<Self> {
        Arc::new(Self {
            held_for,
            count: AtomicUsize::new(0),
            metrics,
        })
    }

    /// Nobody will fetch what a prompt has there.
    pub(super) fn leave(self: &Arc<Self>, mut in_flight: InFlight) {
        self.metrics.left.inc();
        if self.count.fetch_add(1, Ordering::Relaxed) >= LEFT_MAX {
            self.count.fetch_sub(1, Ordering::Relaxed);
            self.metrics.left_uncounted.inc();
            return;
        }
        in_flight.only_holds();
        let left = Arc::clone(self);
        self.metrics.held.inc();
        tokio::spawn(async move {
            sleep(left.held_for).await;
            drop(in_flight);
            left.count.fetch_sub(1, Ordering::Relaxed);
            left.metrics.held.dec();
        });
    }
}
