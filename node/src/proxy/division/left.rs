//! Blocks on a prefill worker that no decode worker fetched: they take room there until the engine gives them up
//! (vLLM 0.32.0 with NIXL: its `kv_lease_duration`, 30 s by default; Mooncake and releases before: 480 s), so they count as
//! load until then, or until the engine's process is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{SplitMetrics, blame};
use crate::config::TransferConfig;
use crate::live::Live;
use crate::upstream::InFlight;

/// Most prompts whose blocks are counted at once; of further ones nothing is known.
const LEFT_MAX: usize = 4_096;
/// How often it is asked whether the process that holds them is still there.
const LOOK: Duration = Duration::from_secs(2);

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
            let until = Instant::now() + left.config.look().held_for;
            let epoch = || in_flight.worker().epoch.load(Ordering::Relaxed);
            let before = epoch();
            loop {
                let next = until.min(Instant::now() + LOOK);
                sleep_until(next).await;
                if next == until || epoch() != before || blame::is_gone(in_flight.worker()) {
                    break;
                }
            }
            drop(in_flight);
            left.count.fetch_sub(1, Ordering::Relaxed);
            left.metrics.held.dec();
        });
    }
}

#[cfg(test)]
mod tests {
    use grapevine_gossip::load::Load;
    use grapevine_placement::{ClusterSettings, KeyBuilder};
    use prometheus_client::registry::Registry;
    use tokio::time::advance;

    use super::*;
    use crate::alone::{Alone, worker};
    use crate::config::KvEventsConfig;
    use crate::upstream::Worker;

    const MODEL: &str = "m";

    /// A worker with a prompt that was left there; yields until that is counted.
    async fn left() -> (Alone, Arc<Worker>) {
        let house = Alone::new("r1", [worker(0, MODEL)], &KvEventsConfig::default(), 1);
        let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
        let key = KeyBuilder::new(&ClusterSettings::default().key, MODEL, b"").finish();
        let placed = house
            .cluster
            .place(&pool, &key, &[], &[])
            .expect("it is usable");
        let in_flight = InFlight::begin(&placed.worker, &placed.decision).expect("it is usable");
        let metrics = SplitMetrics::register(&mut Registry::default());
        LeftBlocks::new(TransferConfig::default().into(), metrics).leave(in_flight);
        tokio::task::yield_now().await;
        (house, placed.worker)
    }

    /// Whether this still holds the worker's load.
    async fn held_after(worker: &Arc<Worker>, time: Duration) -> bool {
        let before = Arc::strong_count(worker);
        advance(time).await;
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        Arc::strong_count(worker) == before
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_left_counts_until_it_is_given_up() {
        let (_house, worker) = left().await;
        let held_for = TransferConfig::default().held_for;
        let mut held = Duration::ZERO;
        while held + LOOK < held_for {
            assert!(held_after(&worker, LOOK).await, "after {held:?}");
            held += LOOK;
        }
        assert!(!held_after(&worker, LOOK).await);
    }

    /// Nobody had said anything for so long that its blocks were thought to be fetched.
    #[tokio::test(start_paused = true)]
    async fn what_counted_no_more_counts_again_once_it_is_left() {
        let house = Alone::new("r1", [worker(0, MODEL)], &KvEventsConfig::default(), 1);
        let pool = house.cluster.fleet().pool(MODEL).expect("it is served");
        let mut builder = KeyBuilder::new(&ClusterSettings::default().key, MODEL, b"");
        builder.text("word ".repeat(100));
        let placed = house.cluster.place(&pool, &builder.finish(), &[], &[]);
        let placed = placed.expect("it is usable");
        let load = || placed.worker.load.own();
        let mut in_flight = InFlight::begin(&placed.worker, &placed.decision).expect("so it is");
        in_flight.holds_prompt();
        let held = load();
        assert!(held.context_tokens > 0, "{held:?}");
        in_flight.holds_nothing();
        assert_eq!(load(), Load::default());
        let metrics = SplitMetrics::register(&mut Registry::default());
        let left = LeftBlocks::new(TransferConfig::default().into(), metrics);
        left.leave(in_flight);
        assert_eq!(load(), held);
        tokio::task::yield_now().await;
        advance(TransferConfig::default().held_for).await;
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        assert_eq!(load(), Load::default());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_left_goes_with_the_process() {
        let (_house, worker) = left().await;
        assert!(held_after(&worker, LOOK).await);
        worker.epoch.store(7, Ordering::Relaxed);
        assert!(!held_after(&worker, LOOK).await, "it was started anew");
        let (_house, worker) = left().await;
        worker.unreachable();
        assert!(!held_after(&worker, LOOK).await, "nobody listens there");
    }
}
