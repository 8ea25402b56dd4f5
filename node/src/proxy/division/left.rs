//! Blocks on a prefill worker that no decode worker fetched: they take room there until the engine gives them up
//! (vLLM 0.32.0 with NIXL: its `kv_lease_duration`, 30 s by default; Mooncake and releases before: 480 s), so they count as
//! load until then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::sleep;

use super::SplitMetrics;
use crate::config::TransferConfig;
use crate::live::Live;
use crate::upstream::InFlight;

/// Most prompts whose blocks are counted at once; of further ones nothing is known.
const LEFT_MAX: usize = 4_096;

/// Prompts whose blocks were left on prefill workers.
#[derive(Debug)]
pub(in crate::proxy) struct LeftBlocks {
    config: Live<TransferConfig>,
    count: AtomicUsize,
    metrics: SplitMetrics,
}

impl LeftBlocks {
    /// None yet; each counts for `held_for`.
    pub(in crate::proxy) fn new(config: Live<TransferConfig>, metrics: SplitMetrics) -> Arc<Self> {
        Arc::new(Self {
            config,
            count: AtomicUsize::new(0),
            metrics,
        })
    }

    /// Nobody will fetch what a prompt has there.
    pub(in crate::proxy) fn leave(self: &Arc<Self>, mut in_flight: InFlight) {
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
            let held_for = left.config.look().held_for;
            sleep(held_for).await;
            drop(in_flight);
            left.count.fetch_sub(1, Ordering::Relaxed);
            left.metrics.held.dec();
        });
    }
}
