//! One virtual replica: what it knows of contents and heat, and how it decides.

use std::rc::Rc;
use std::time::Duration;

use grapevine_placement::{
    Candidate, Decision, HeatCounter, HotSet, Key, PolicySettings, PrefixIndex,
    PrefixIndexSettings, Recorded, Slot, Slots, View, decide,
};

use super::pools::{Pool, Pools};

/// A replica's state.
pub(super) struct Replica {
    pub(super) prefix_index: PrefixIndex,
    slots: Vec<Slot>,
    /// The same of each pool.
    by_pool: [Slots; 3],
    pub(super) heat: HeatCounter,
    pub(super) hot: Rc<HotSet>,
    pub(super) turns: u64,
}

impl Replica {
    pub(super) fn new(
        pools: &Pools,
        settings: &PolicySettings,
        prefix_index: PrefixIndexSettings,
        cache_tokens: u64,
    ) -> Self {
        let mut prefix_index = PrefixIndex::new(prefix_index);
        let slot = |worker: &String| {
            let slot = prefix_index.slot(worker, 1);
            // As a worker reports in its metrics (`vllm:cache_config_info`).
            prefix_index.set_capacity(slot, cache_tokens);
            slot
        };
        let slots: Vec<Slot> = pools.names().iter().map(slot).collect();
        let of_pool = |pool: &Pool| slots[pool.places()].iter().copied().collect();
        Self {
            prefix_index,
            by_pool: pools.all().map(of_pool),
            slots,
            heat: HeatCounter::new(&settings.heat),
            hot: Rc::new(HotSet::EMPTY),
            turns: 0,
        }
    }

    /// Decides among a pool's workers on these cluster-wide loads.
    pub(super) fn decide(
        &self,
        pool: &Pool,
        key: &Key,
        now_us: u64,
        candidates: &mut [Candidate],
        draw: u64,
    ) -> Decision {
        let slots = &self.by_pool[pool.number];
        self.prefix_index
            .fill(key, slots, micros(now_us), candidates);
        if pool.settings.policy.looks_at_caches() {
            self.prefix_index.fill_caches(slots, candidates);
        }
        let view = View {
            ring: &pool.ring,
            hot: &self.hot,
        };
        decide(&pool.settings, view, key, candidates, &[], draw).expect("all workers are usable")
    }

    /// Remembers what a worker, by its place among all, will hold.
    pub(super) fn record(
        &mut self,
        worker: usize,
        decision: &Decision,
        key: &Key,
        now_us: u64,
    ) -> Recorded {
        let slot = self.slots[worker];
        self.prefix_index
            .record(slot, decision.marks(key), micros(now_us))
    }

    pub(super) fn correct(
        &mut self,
        worker: usize,
        recorded: &Recorded,
        expected: u32,
        cached: u32,
    ) -> Vec<u64> {
        self.prefix_index
            .correct(self.slots[worker], recorded, expected, cached)
    }
}

pub(super) fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}
