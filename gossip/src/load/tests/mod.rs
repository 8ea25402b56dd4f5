//! The load plane from frame to board, without a network.

mod properties;
mod receiving;
mod sending;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::made::{registry, replica, spec_with, start, worker as id};
use crate::view::View;
use crate::worker::Source;

const TICK: Duration = Duration::from_millis(20);
const MS: Duration = Duration::from_millis(1);

fn view(names: &[&str]) -> View {
    let mut registry = registry("r");
    for name in names {
        registry
            .put(id(name), Source::Admin, spec_with(|_| ()), 1)
            .expect("room");
    }
    View::new(&registry, Vec::new())
}

fn requests(requests: u32) -> Load {
    Load {
        requests,
        ..Load::default()
    }
}

/// One replica's board and plane, at a time that only the test moves.
struct Node {
    board: Arc<LoadBoard>,
    plane: LoadPlane,
    now: Instant,
}

impl Node {
    fn new(workers: &[&str]) -> Self {
        Self::damped(workers, |_| 1.0)
    }

    fn damped(workers: &[&str], damping: fn(Duration) -> f64) -> Self {
        let board = Arc::<LoadBoard>::default();
        let mut plane = LoadPlane::new(Arc::clone(&board), damping, TICK);
        plane.follow(&view(workers));
        Self {
            board,
            plane,
            now: start(),
        }
    }

    fn pass(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    /// Load that has lasted.
    fn add(&self, worker: &str, load: Load) {
        let cell = self.board.cell(&id(worker));
        cell.add(load);
        cell.take_lasting();
    }

    fn known(&self, worker: &str) -> u32 {
        self.board.cell(&id(worker)).known().requests
    }

    fn collect(&mut self) -> Option<LoadFrame> {
        self.plane.collect(self.now)
    }

    /// Until what was sent was repeated as often as it is.
    fn repeat(&mut self) {
        for _ in 0..plane::REPEATS {
            self.pass(TICK).collect();
        }
    }

    /// Takes a frame of replica `from`, generation 1.
    fn hear(&mut self, from: &str, seq: u64, frame: &LoadFrame) -> Applied {
        self.plane.apply(&replica(from), 1, seq, frame, self.now)
    }

    fn others(&mut self, worker: &str) -> f64 {
        self.plane.aggregate(self.now);
        self.board.cell(&id(worker)).others().requests
    }

    fn frame(&self, coverage: Coverage, slots: &[(u32, u32)]) -> LoadFrame {
        let slots = slots.iter().map(|&(slot, n)| SlotLoad {
            slot,
            load: requests(n),
        });
        LoadFrame {
            coverage,
            slots: slots.collect(),
            ..self.plane.snapshot()
        }
    }
}

/// What a frame says, with what it repeats.
fn slots(frame: Option<LoadFrame>) -> Option<(Coverage, Vec<(u32, u32)>)> {
    let frame = frame?;
    let pair = |slot: &SlotLoad| (slot.slot, slot.load.requests);
    let earlier = frame.earlier.iter().flat_map(|earlier| &earlier.slots);
    let said: BTreeMap<u32, u32> = earlier.chain(&frame.slots).map(pair).collect();
    Some((frame.coverage, said.into_iter().collect()))
}
