//! One virtual replica: what it knows of load, contents and heat, and how it decides.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use grapevine_placement::load::{AGE_MAX, damp, own_scale};
use grapevine_placement::{
    Candidate, Decision, HeatCounter, HotSet, Key, Load, Member, PolicySettings, Recorded, Ring,
    Sketch, SketchSettings, Slot, View, decide,
};

use super::contender::Shared;
use super::sim::{Scenario, TRANSIT_US};

/// A frame of a sender's own counts.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) sent_us: u64,
    pub(super) number: u64,
    pub(super) loads: Rc<[Load]>,
}

/// A sender without changes is heard this often.
const HEARTBEAT_US: u64 = 100_000;
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
        self.sketch.place(slot, decision, key, micros(now_us))
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

/// Cluster-wide load as a replica sees it: its own counts, and each sender's newest frame that reached it, damped
/// by the time since the sender was last heard. Own counts stand for those who are not heard, as in the node.
pub(super) fn cluster_load(
    replicas: &[Replica],
    viewer: usize,
    now_us: u64,
    shared: Shared,
    scenario: &Scenario,
    lost: impl Fn(usize, u64) -> bool,
    loads: &mut Vec<Load>,
) {
    loads.clear();
    loads.resize(replicas[viewer].own.len(), Load::default());
    let mut heard = 1;
    let senders = (0..replicas.len()).filter(|&sender| sender != viewer && shared.load);
    for sender in senders {
        let frames = &replicas[sender].frames;
        // Frames repeat at least as heartbeats, so whoever is heard at all is heard this often.
        let longest_us = scenario.load_age_us.max(HEARTBEAT_US) + TRANSIT_US;
        let mut missed = false;
        let mut found = None;
        for frame in frames.iter().rev() {
            if frame.sent_us + TRANSIT_US > now_us {
                continue;
            }
            if !lost(sender, frame.number) {
                found = Some(frame);
                break;
            }
            missed = true;
        }
        let Some(frame) = found else {
            // Nothing to tell so far is heard as well as nothing in flight.
            heard += u32::from(!missed);
            continue;
        };
        let age_us = now_us - frame.sent_us;
        let age = micros(if missed {
            age_us
        } else {
            age_us.min(longest_us)
        });
        if age >= AGE_MAX {
            continue;
        }
        heard += 1;
        let share = if shared.damped { damp(age) } else { 1.0 };
        for (sum, load) in loads.iter_mut().zip(frame.loads.iter()) {
            *sum += load.scaled(share);
        }
    }
    // Without any gossip the others count as dead after two seconds.
    let knows_others = shared.load && scenario.loss < 1.0;
    let live = if knows_others {
        replicas.len() as u32
    } else {
        heard
    };
    let scale = own_scale(live, heard);
    for (sum, own) in loads.iter_mut().zip(&replicas[viewer].own) {
        *sum += own.scaled(scale);
    }
}
