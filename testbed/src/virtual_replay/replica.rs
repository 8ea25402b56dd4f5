//! One virtual replica: what it knows of load, contents and heat, and how it decides.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use grapevine_placement::load::damp;
use grapevine_placement::{
    Candidate, Decision, HeatCounter, HotSet, Key, Load, Member, PolicySettings, Recorded, Ring,
    Sketch, SketchSettings, Slot, View, decide,
};

use super::contender::Shared;

/// A frame of a sender's own counts.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) sent_us: u64,
    pub(super) number: u64,
    pub(super) loads: Rc<[Load]>,
}

/// Frames kept of each sender: a receiver may miss all but the oldest of them.
const FRAMES_KEPT: usize = 64;

/// A replica's state.
pub(super) struct Replica {
    pub(super) own: Vec<Load>,
    /// Own counts changed since the last frame.
    pub(super) changed: bool,
    /// The frames it sent, oldest first.
    pub(super) frames: VecDeque<Frame>,
    pub(super) sketch: Sketch,
    slots: Vec<Slot>,
    pub(super) heat: HeatCounter,
    pub(super) hot: Rc<HotSet>,
    pub(super) turns: u64,
}

impl Replica {
    pub(super) fn new(
        ring: &Ring,
        settings: &PolicySettings,
        sketch: SketchSettings,
        cache_tokens: u64,
    ) -> Self {
        let mut sketch = Sketch::new(sketch);
        let slot = |member: &Member| {
            let slot = sketch.slot(&member.id, 1);
            // As a worker says in its metrics (`vllm:cache_config_info`).
            sketch.set_capacity(slot, cache_tokens);
            slot
        };
        let slots = ring.members().iter().map(slot).collect();
        Self {
            own: vec![Load::default(); ring.len()],
            changed: false,
            frames: VecDeque::new(),
            sketch,
            slots,
            heat: HeatCounter::new(&settings.heat),
            hot: Rc::new(HotSet::EMPTY),
            turns: 0,
        }
    }

    pub(super) fn send_frame(&mut self, now_us: u64) {
        let number = self.frames.back().map_or(0, |frame| frame.number + 1);
        if self.frames.len() == FRAMES_KEPT {
            self.frames.pop_front();
        }
        self.frames.push_back(Frame {
            sent_us: now_us,
            number,
            loads: self.own.as_slice().into(),
        });
        self.changed = false;
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
        self.sketch
            .fill(key, &self.slots, micros(now_us), candidates);
        let view = View {
            ring,
            hot: &self.hot,
        };
        decide(settings, view, key, candidates, &[], draw).expect("all workers are usable")
    }

    pub(super) fn record(&mut self, decision: &Decision, key: &Key, now_us: u64) -> Recorded {
        let slot = self.slots[decision.worker];
        self.sketch
            .record(slot, decision.marks(key), micros(now_us))
    }

    pub(super) fn correct(
        &mut self,
        worker: usize,
        recorded: &Recorded,
        expected: u32,
        cached: u32,
    ) -> Vec<u64> {
        self.sketch
            .correct(self.slots[worker], recorded, expected, cached)
    }
}

pub(super) fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Cluster-wide load as a replica sees it: its own counts, and each sender's newest frame that reached it.
pub(super) fn cluster_load(
    replicas: &[Replica],
    viewer: usize,
    now_us: u64,
    shared: Shared,
    period_us: u64,
    lost: impl Fn(usize, u64) -> bool,
    loads: &mut Vec<Load>,
) {
    loads.clear();
    loads.extend_from_slice(&replicas[viewer].own);
    if !shared.load {
        return;
    }
    for (sender, replica) in replicas
        .iter()
        .enumerate()
        .filter(|&(sender, _)| sender != viewer)
    {
        let arrived = |frame: &&Frame| {
            frame.sent_us + super::sim::TRANSIT_US <= now_us && !lost(sender, frame.number)
        };
        let Some(frame) = replica.frames.iter().rev().find(arrived) else {
            continue;
        };
        // A sender whose counts did not change is heard as often as one whose counts did.
        let newest = replica
            .frames
            .back()
            .is_some_and(|last| last.number == frame.number);
        let age_us = if newest && !replica.changed {
            (now_us - frame.sent_us).min(period_us)
        } else {
            now_us - frame.sent_us
        };
        let share = if shared.damped {
            damp(micros(age_us))
        } else {
            1.0
        };
        for (sum, load) in loads.iter_mut().zip(frame.loads.iter()) {
            *sum += load.scaled(share);
        }
    }
}
