//! Load frames between virtual replicas: the router's own load plane, on a network with delay and loss.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grapevine_gossip::ReplicaId;
use grapevine_gossip::load::{
    HEARTBEAT_INTERVAL, Load as Counts, LoadBoard, LoadCell, LoadFrame, LoadPlane, RISE_INTERVAL,
};
use grapevine_gossip::registry::Registry;
use grapevine_gossip::view::View;
use grapevine_gossip::worker::{RawWorker, Source, WorkerSpec};
use grapevine_placement::Load;
use grapevine_placement::load::{Picture, Seen, damp};

use super::contender::Shared;
use super::scenario::{Scenario, chance};

/// Shortest travel time of a frame.
const TRANSIT_US: u64 = 2_000;
/// Greatest random addition to that, drawn for each frame and receiver.
const JITTER_US: u64 = 4_000;
/// After so many ticks without a change a replica has nothing to send, and ticks stop until its counts
/// change.
const QUIET_TICKS: u32 = 16;
/// Replicas never restart here, so one generation is enough.
const GENERATION: u64 = 1;

const RISE_US: u64 = RISE_INTERVAL.as_micros() as u64;
const HEARTBEAT_US: u64 = HEARTBEAT_INTERVAL.as_micros() as u64;

struct Node {
    id: ReplicaId,
    board: Arc<LoadBoard>,
    plane: LoadPlane,
    cells: Vec<Arc<LoadCell>>,
    sent: u64,
    quiet: u32,
    /// Time of its next tick; ticks at other times are void.
    ticks_us: u64,
}

/// A frame for one receiver.
pub(super) struct Delivery {
    from: usize,
    to: usize,
    number: u64,
    frame: Rc<LoadFrame>,
}

/// All replicas' load planes.
pub(super) struct News {
    start: Instant,
    nodes: Vec<Node>,
    deliveries: Vec<Option<Delivery>>,
    free: Vec<usize>,
    shared: Shared,
    loss: f64,
    slow_us: u64,
    seed: u64,
    /// Bytes of frames that all replicas sent to all others, without frame heads and QUIC.
    pub(super) bytes: u64,
}

impl News {
    pub(super) fn new(scenario: &Scenario, shared: Shared, workers: &[String]) -> Self {
        let mut registry = Registry::new("r".parse().expect("an id"));
        for worker in workers {
            let spec = WorkerSpec::new(RawWorker::at(worker)).expect("a URL");
            let id = worker.parse().expect("an id");
            registry.put(id, Source::Admin, spec, 1).expect("room");
        }
        let view = View::new(&registry, Vec::new());
        let damping = if shared.damped { damp } else { |_| 1.0 };
        // Without any gossip the others count as dead.
        let exchanges = shared.load && scenario.loss < 1.0;
        let live = if exchanges {
            scenario.replicas as u32
        } else {
            1
        };
        let batch = Duration::from_micros(scenario.load_age_us);
        let start = tokio::time::Instant::now().into_std();
        let id = |index: usize| -> ReplicaId { format!("r{index}").parse().expect("an id") };
        let node = |index: usize| {
            let board = Arc::<LoadBoard>::default();
            let mut plane = LoadPlane::new(Arc::clone(&board), damping, batch);
            plane.follow(&view);
            plane.set_live(live);
            let others = (0..scenario.replicas).filter(|&other| other != index);
            let way = |other| TRANSIT_US + slow(scenario.slow_us, index, other);
            let ways: Vec<_> = others
                .map(|other| (id(other), Duration::from_micros(way(other))))
                .collect();
            plane.set_ways(&ways);
            let cell = |worker: &String| board.cell(&worker.parse().expect("an id"));
            Node {
                id: id(index),
                cells: workers.iter().map(cell).collect(),
                plane,
                board,
                sent: 0,
                quiet: 0,
                ticks_us: u64::MAX,
            }
        };
        Self {
            start,
            nodes: (0..scenario.replicas).map(node).collect(),
            deliveries: Vec::new(),
            free: Vec::new(),
            shared,
            loss: scenario.loss,
            slow_us: scenario.slow_us,
            seed: scenario.seed,
            bytes: 0,
        }
    }

    fn at(&self, now_us: u64) -> Instant {
        self.start + Duration::from_micros(now_us)
    }

    /// Changes a replica's own counts on a worker. Returns the time of its next tick, if that changed.
    pub(super) fn change(
        &mut self,
        now_us: u64,
        replica: usize,
        worker: usize,
        how: impl FnOnce(&LoadCell),
    ) -> Option<u64> {
        how(&self.nodes[replica].cells[worker]);
        self.wake(now_us, replica)
    }

    fn wake(&mut self, now_us: u64, replica: usize) -> Option<u64> {
        if self.nodes.len() == 1 || !self.shared.load {
            return None;
        }
        // Replicas tick at instants of their own.
        let phase = RISE_US * replica as u64 / self.nodes.len() as u64;
        let next = (now_us + RISE_US - phase) / RISE_US * RISE_US + phase;
        let next = if next <= now_us { next + RISE_US } else { next };
        let node = &mut self.nodes[replica];
        node.quiet = 0;
        let is_sooner = next < node.ticks_us || node.ticks_us <= now_us;
        is_sooner.then(|| {
            node.ticks_us = next;
            next
        })
    }

    /// Runs a replica's tick. Returns the frames that it sent, with their arrival times, and the next tick.
    pub(super) fn tick(&mut self, now_us: u64, replica: usize) -> (Vec<(u64, usize)>, Option<u64>) {
        let now = self.at(now_us);
        let node = &mut self.nodes[replica];
        if node.ticks_us != now_us {
            return (Vec::new(), None);
        }
        node.plane.aggregate(now);
        let frame = node.plane.collect(now);
        node.quiet += 1;
        let rest = if node.quiet > QUIET_TICKS {
            HEARTBEAT_US
        } else {
            RISE_US
        };
        node.ticks_us = now_us + rest;
        let next = Some(node.ticks_us);
        let Some(frame) = frame else {
            return (Vec::new(), next);
        };
        node.sent += 1;
        let (number, frame) = (node.sent, Rc::new(frame));
        let mut arrivals = Vec::new();
        for to in (0..self.nodes.len()).filter(|&to| to != replica) {
            self.bytes += frame.wire_len() as u64;
            if chance(self.seed, replica, to, number) < self.loss {
                continue;
            }
            let late = chance(self.seed ^ 2, replica, to, number) * JITTER_US as f64;
            let way = TRANSIT_US + late as u64 + slow(self.slow_us, replica, to);
            let delivery = Delivery {
                from: replica,
                to,
                number,
                frame: Rc::clone(&frame),
            };
            let place = self.free.pop().unwrap_or_else(|| {
                self.deliveries.push(None);
                self.deliveries.len() - 1
            });
            self.deliveries[place] = Some(delivery);
            arrivals.push((now_us + way, place));
        }
        (arrivals, next)
    }

    /// Delivers a frame.
    pub(super) fn deliver(&mut self, now_us: u64, place: usize) {
        let delivery = self.deliveries[place].take().expect("it was sent");
        self.free.push(place);
        let now = self.at(now_us);
        let from = self.nodes[delivery.from].id.clone();
        let plane = &mut self.nodes[delivery.to].plane;
        plane.apply(&from, GENERATION, delivery.number, &delivery.frame, now);
    }

    /// The cluster's load as a replica sees it now.
    pub(super) fn see(&mut self, now_us: u64, viewer: usize, seen: &mut Vec<Seen>) {
        let now = self.at(now_us);
        let Self { nodes, shared, .. } = self;
        let node = &mut nodes[viewer];
        node.plane.settle(now);
        let picture = Picture::new(node.board.live(), node.board.reporting());
        seen.clear();
        seen.extend(node.cells.iter().map(|cell| {
            let own = counts(cell.own());
            let known = if shared.common {
                counts(cell.known())
            } else {
                own
            };
            let others = cell.others();
            let reported = others.reported_requests;
            let others = Load {
                requests: others.requests,
                prefill_tokens: others.prefill_tokens,
                context_tokens: others.context_tokens,
            };
            picture.see(own, known, others, reported)
        }));
    }
}

fn counts(load: Counts) -> Load {
    Load {
        requests: load.requests.into(),
        prefill_tokens: load.prefill_tokens as f64,
        context_tokens: load.context_tokens as f64,
    }
}

/// The first replica may lie far from all others.
fn slow(slow_us: u64, one: usize, other: usize) -> u64 {
    if one == 0 || other == 0 { slow_us } else { 0 }
}
