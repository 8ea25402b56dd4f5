//! One virtual replica: what it knows of contents and heat, and how it decides.

use std::rc::Rc;
use std::time::Duration;

use grapevine_placement::{
    Candidate, Decision, HeatCounter, HotSet, Key, Member, PolicySettings, PrefixIndex,
    PrefixIndexSettings, Recorded, Ring, Slot, View, decide,
};

/// A replica's state.
pub(super) struct Replica {
    pub(super) prefix_index: PrefixIndex,
    slots: Vec<Slot>,
    pub(super) heat: HeatCounter,
    pub(super) hot: Rc<HotSet>,
    pub(super) turns: u64,
}

impl Replica {
    pub(super) fn new(
        ring: &Ring,
        settings: &PolicySettings,
        prefix_index: PrefixIndexSettings,
        cache_tokens: u64,
    ) -> Self {
        let mut prefix_index = PrefixIndex::new(prefix_index);
        let slot = |member: &Member| {
            let slot = prefix_index.slot(&member.id, 1);
            // As a worker reports in its metrics (`vllm:cache_config_info`).
            prefix_index.set_capacity(slot, cache_tokens);
            slot
        };
        let slots = ring.members().iter().map(slot).collect();
        Self {
            prefix_index,
            slots,
            heat: HeatCounter::new(&settings.heat),
            hot: Rc::new(HotSet::EMPTY),
            turns: 0,
        }
    }

    /// Decides on these cluster-wide loads.
    pub(super) fn decide(
        &self,
        settings: &PolicySettings,
        ring: &Ring,
        key: &Key,
        now_us: u64,
        candidates: &mut [Candidate],
        draw: u64,
    ) -> Decision {
        self.prefix_index
            .fill(key, &self.slots, micros(now_us), candidates);
        let view = View {
            ring,
            hot: &self.hot,
        };
        decide(settings, view, key, candidates, &[], draw).expect("all workers are usable")
    }

    pub(super) fn record(&mut self, decision: &Decision, key: &Key, now_us: u64) -> Recorded {
        let slot = self.slots[decision.worker];
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
