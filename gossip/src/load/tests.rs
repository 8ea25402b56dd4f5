//! The load plane from frame to board.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::registry::Registry;
use crate::replica::ReplicaId;
use crate::view::View;
use crate::worker::{RawWorker, Source, WorkerId, WorkerSpec};

const TICK: Duration = Duration::from_millis(20);
const MS: Duration = Duration::from_millis(1);

fn replica(name: &str) -> ReplicaId {
    name.parse().expect("valid")
}

fn id(name: &str) -> WorkerId {
    name.parse().expect("valid")
}

fn view(names: &[&str]) -> View {
    let mut registry = Registry::new(replica("r"));
    for name in names {
        let spec = WorkerSpec::new(RawWorker::at("http://w:8000")).expect("valid");
        registry
            .put(id(name), Source::Admin, spec, 1)
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
            now: tokio::time::Instant::now().into_std(),
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

#[test]
fn changes_go_out_once_and_everything_each_second() {
    let mut node = Node::new(&["a", "b", "c"]);
    node.add("b", requests(2));
    assert_eq!(slots(node.collect()), Some((Coverage::Full, vec![(1, 2)])));
    for _ in 0..plane::REPEATS {
        let again = slots(node.pass(TICK).collect());
        assert_eq!(again, Some((Coverage::Changes, vec![(1, 2)])));
    }
    node.pass(TICK);
    assert_eq!(slots(node.collect()), None, "nothing changed");
    node.add("a", requests(1));
    let c = node.board.cell(&id("c"));
    c.add(requests(1));
    c.subtract(requests(1));
    node.pass(TICK);
    assert_eq!(
        slots(node.collect()),
        Some((Coverage::Changes, vec![(0, 1)]))
    );
    node.repeat();
    node.pass(HEARTBEAT_INTERVAL);
    assert_eq!(slots(node.collect()), Some((Coverage::Changes, vec![])));
    node.pass(FULL_INTERVAL);
    assert_eq!(
        slots(node.collect()),
        Some((Coverage::Full, vec![(0, 1), (1, 2)]))
    );
}

#[test]
fn heartbeats_are_rare_while_nothing_is_in_flight() {
    // Of the first slot alone, everything would be shorter than a change.
    let mut node = Node::new(&["a", "b"]);
    assert_eq!(slots(node.collect()), Some((Coverage::Full, vec![])));
    node.pass(HEARTBEAT_INTERVAL);
    assert_eq!(slots(node.collect()), None);
    node.pass(IDLE_HEARTBEAT_INTERVAL - HEARTBEAT_INTERVAL);
    assert_eq!(slots(node.collect()), Some((Coverage::Changes, vec![])));
    assert!(
        4 * IDLE_HEARTBEAT_INTERVAL < SENDER_SILENT_AFTER,
        "a few may be lost"
    );
    node.add("b", requests(1));
    node.pass(TICK);
    assert_eq!(
        slots(node.collect()),
        Some((Coverage::Changes, vec![(1, 1)]))
    );
    node.repeat();
    node.pass(HEARTBEAT_INTERVAL);
    assert_eq!(slots(node.collect()), Some((Coverage::Changes, vec![])));
}

/// Each frame goes to everybody: twice the replicas must not mean twice the frames as well.
#[test]
fn changes_wait_longer_in_a_large_cluster() {
    let frames_in_a_second = |replicas: u32| {
        let mut node = Node::new(&["a"]);
        node.plane.set_live(replicas);
        let ticks = 0..200;
        let sent = ticks.filter(|_| {
            node.add("a", requests(1));
            let frame = node.collect();
            node.pass(RISE_INTERVAL);
            frame.is_some()
        });
        sent.count()
    };
    assert_eq!(frames_in_a_second(1), 200);
    assert_eq!(frames_in_a_second(3), 200);
    assert_eq!(frames_in_a_second(8), 100);
    assert_eq!(frames_in_a_second(16), 50);
    assert_eq!(frames_in_a_second(32), 25);
    assert_eq!(frames_in_a_second(64), 20);
    assert_eq!(frames_in_a_second(256), 20);
}

#[test]
fn rises_go_at_once_and_falls_wait_for_the_batch() {
    let mut node = Node::new(&["a", "b", "c"]);
    node.add("b", requests(5));
    node.add("c", requests(5));
    node.collect();
    node.repeat();
    node.add("a", requests(1));
    node.board.cell(&id("b")).subtract(requests(1));
    let rise = slots(node.pass(RISE_INTERVAL).collect());
    let both = Some((Coverage::Changes, vec![(0, 1), (1, 4)]));
    assert_eq!(rise, both, "the fall goes with it");
    for _ in 0..2 {
        let again = slots(node.pass(RISE_INTERVAL).collect());
        assert_eq!(again, both, "one of them may be lost");
    }
    node.board.cell(&id("b")).subtract(requests(1));
    for _ in 0..3 {
        assert_eq!(slots(node.pass(RISE_INTERVAL).collect()), None);
    }
    let fall = slots(node.pass(TICK - 3 * RISE_INTERVAL).collect());
    let both = Some((Coverage::Changes, vec![(0, 1), (1, 3)]));
    assert_eq!(fall, both, "and the rise for the last time");
    let again = slots(node.pass(RISE_INTERVAL).collect());
    assert_eq!(again, Some((Coverage::Changes, vec![(1, 3)])));
}

#[test]
fn what_does_not_last_is_never_told() {
    let mut node = Node::new(&["a", "b"]);
    node.collect();
    let cell = node.board.cell(&id("b"));
    for _ in 0..10 {
        cell.add(requests(3));
        cell.subtract(requests(3));
        // The next has come by the time of the tick, and is gone by the next.
        cell.add(requests(1));
        assert_eq!(slots(node.pass(RISE_INTERVAL).collect()), None);
        cell.subtract(requests(1));
    }
    cell.add(requests(2));
    assert_eq!(slots(node.pass(RISE_INTERVAL).collect()), None);
    let told = slots(node.pass(RISE_INTERVAL).collect());
    assert_eq!(told, Some((Coverage::Changes, vec![(1, 2)])));
}

#[test]
fn own_load_is_known_once_the_others_can_have_it() {
    let mut node = Node::new(&["a", "b"]);
    node.plane.set_ways(&[(replica("s"), 3 * MS)]);
    node.add("b", requests(2));
    let hold_us = node
        .collect()
        .and_then(|frame| frame.moment)
        .expect("sent")
        .hold_us;
    let due = node.now + Duration::from_micros(hold_us.into());
    assert_eq!(node.plane.settle(due - MS), Some(due));
    assert_eq!(node.known("b"), 0);
    assert_eq!(node.plane.settle(due), None);
    assert_eq!(node.known("b"), 2);
    // Slots move while something is on its way: it is sent again, whole.
    node.add("b", requests(1));
    node.pass(TICK).collect();
    node.plane.follow(&view(&["b", "c"]));
    assert_eq!(node.known("b"), 3);
    assert_eq!(slots(node.collect()), Some((Coverage::Full, vec![(0, 3)])));
}

#[test]
fn many_changes_go_out_as_the_shorter_full_frame() {
    let names: Vec<String> = (0..100).map(|n| format!("w{n:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut node = Node::new(&names);
    node.collect();
    names.iter().for_each(|name| node.add(name, requests(1)));
    let frame = node.pass(TICK).collect().expect("changes");
    assert_eq!(frame.coverage, Coverage::Full);
}

#[test]
fn what_one_replica_has_the_other_sees() {
    let (mut sender, mut receiver) = (Node::new(&["a", "b"]), Node::new(&["a", "b"]));
    let load = Load {
        requests: 3,
        prefill_tokens: 500,
        context_tokens: 7000,
    };
    sender.add("b", load);
    let frame = sender.collect().expect("first");
    assert_eq!(receiver.hear("s", 1, &frame), Applied::Fresh);
    receiver.plane.aggregate(receiver.now);
    let others = receiver.board.cell(&id("b")).others();
    assert_eq!(
        others,
        OthersLoad {
            requests: 3.0,
            prefill_tokens: 500.0,
            context_tokens: 7000.0
        }
    );
    assert_eq!(receiver.board.cell(&id("b")).own(), Load::default());
    assert_eq!(receiver.board.reporting(), 2);
}

#[test]
fn changes_leave_other_slots_alone_and_full_frames_clear_them() {
    let mut node = Node::new(&["a", "b"]);
    node.hear("s", 1, &node.frame(Coverage::Full, &[(0, 5), (1, 5)]));
    node.hear("s", 2, &node.frame(Coverage::Changes, &[(1, 6)]));
    assert_eq!((node.others("a"), node.others("b")), (5.0, 6.0));
    node.hear("s", 3, &node.frame(Coverage::Full, &[(1, 1)]));
    assert_eq!((node.others("a"), node.others("b")), (0.0, 1.0));
}

#[test]
fn a_new_generation_starts_from_nothing() {
    let mut node = Node::new(&["a", "b"]);
    node.hear("s", 9, &node.frame(Coverage::Full, &[(0, 5)]));
    let restarted = node.frame(Coverage::Changes, &[(1, 1)]);
    assert_eq!(
        node.plane.apply(&replica("s"), 2, 1, &restarted, node.now),
        Applied::Fresh
    );
    assert_eq!((node.others("a"), node.others("b")), (0.0, 1.0));
    // What the process before it sent is still on its way.
    assert_eq!(
        node.hear("s", 10, &node.frame(Coverage::Full, &[(0, 5)])),
        Applied::Stale
    );
}

#[test]
fn silent_senders_count_no_more() {
    let mut node = Node::new(&["a"]);
    node.hear("s", 1, &node.frame(Coverage::Full, &[(0, 5)]));
    node.pass(SENDER_SILENT_AFTER - TICK);
    assert_eq!((node.others("a"), node.board.reporting()), (5.0, 2));
    node.pass(TICK);
    assert_eq!((node.others("a"), node.board.reporting()), (0.0, 1));
    // It is back, but what it did not list is from before the silence.
    node.hear("s", 2, &node.frame(Coverage::Changes, &[]));
    assert_eq!((node.others("a"), node.board.reporting()), (0.0, 2));
    // A late copy of an old frame is refused as long as one can be on its way.
    node.pass(SENDER_FORGET_AFTER - TICK).others("a");
    assert_eq!(
        node.hear("s", 1, &node.frame(Coverage::Full, &[(0, 5)])),
        Applied::Stale
    );
}

#[test]
fn old_words_weigh_less() {
    let mut node = Node::damped(&["a"], |age| if age < TICK { 1.0 } else { 0.25 });
    node.hear("s", 1, &node.frame(Coverage::Full, &[(0, 8)]));
    assert_eq!(node.others("a"), 8.0);
    assert_eq!(node.pass(TICK).others("a"), 2.0);
    // A rule that is out of range does not amplify.
    let mut wild = Node::damped(&["a"], |_| 7.0);
    wild.hear("s", 1, &wild.frame(Coverage::Full, &[(0, 8)]));
    assert_eq!(wild.others("a"), 8.0);
}

#[test]
fn poisoned_loads_are_clamped_to_what_is_believed_of_anybody() {
    let mut node = Node::new(&["a"]);
    let mut frame = node.frame(Coverage::Full, &[(0, u32::MAX)]);
    frame.slots[0].load.prefill_tokens = u64::MAX;
    frame.slots[0].load.context_tokens = 1 << 63;
    node.hear("s", 1, &frame);
    node.plane.aggregate(node.now);
    let others = node.board.cell(&id("a")).others();
    assert_eq!(others.requests, 64.0);
    assert_eq!(others.prefill_tokens, 65_536.0);
    assert_eq!(others.context_tokens, 64.0 * 8192.0);
    assert_eq!(node.plane.cut(), 1);
    // Beside honest senders it counts for eight of them.
    node.hear("t", 1, &node.frame(Coverage::Full, &[(0, 10)]));
    assert_eq!(node.others("a"), 10.0 + 8.0 * 10.0 + 64.0);
}

#[test]
fn frames_about_other_workers_or_out_of_shape_change_nothing() {
    let mut node = Node::new(&["a", "b"]);
    node.hear("s", 1, &node.frame(Coverage::Full, &[(0, 5)]));
    let other = LoadFrame {
        workers_digest: 1,
        ..node.frame(Coverage::Full, &[])
    };
    assert_eq!(node.hear("s", 2, &other), Applied::OtherWorkers);
    assert_eq!(
        node.hear("s", 3, &node.frame(Coverage::Full, &[(2, 1)])),
        Applied::Malformed
    );
    let falling = node.frame(Coverage::Changes, &[(1, 1), (0, 1)]);
    assert_eq!(node.hear("s", 4, &falling), Applied::Malformed);
    assert_eq!((node.others("a"), node.others("b")), (5.0, 0.0));
}

#[test]
fn values_follow_their_workers_into_a_new_list() {
    let mut node = Node::new(&["b", "c"]);
    node.add("c", requests(1));
    node.collect();
    node.hear("s", 1, &node.frame(Coverage::Full, &[(0, 5), (1, 6)]));
    node.plane.follow(&view(&["a", "c"]));
    assert_eq!((node.others("a"), node.others("c")), (0.0, 6.0));
    // The others need the whole picture in the new slots at once.
    assert_eq!(slots(node.collect()), Some((Coverage::Full, vec![(1, 1)])));
    // The cell of a removed worker is gone: nobody held it.
    node.plane.follow(&view(&["a", "b", "c"]));
    assert_eq!(node.others("b"), 0.0);
}

#[test]
fn senders_are_bounded() {
    let mut node = Node::new(&["a"]);
    let frame = node.frame(Coverage::Full, &[(0, 1)]);
    for n in 0..SENDERS_MAX {
        assert_eq!(node.hear(&format!("s{n}"), 1, &frame), Applied::Fresh);
    }
    assert_eq!(node.hear("one-more", 1, &frame), Applied::TooManySenders);
    node.pass(SENDER_FORGET_AFTER).others("a");
    assert_eq!(node.hear("one-more", 1, &frame), Applied::Fresh);
}

#[test]
fn live_counts_this_replica_at_least() {
    let node = Node::new(&["a"]);
    assert_eq!((node.board.live(), node.board.reporting()), (1, 1));
    node.plane.set_live(0);
    assert_eq!(node.board.live(), 1);
    node.plane.set_live(3);
    assert_eq!(node.board.live(), 3);
}

proptest! {
    /// However frames are reordered and repeated, once the last one came the values are those of
    /// the latest full frame and the changes received since.
    #[test]
    fn reordered_duplicated_and_old_frames_change_nothing(
        values in prop::collection::vec(0..64u32, 2..12),
        arrivals in prop::collection::vec((any::<prop::sample::Index>(), 1..3u64), 1..40),
    ) {
        let mut node = Node::new(&["a"]);
        let mut latest = (0, 0);
        let mut expected = 0;
        for (which, generation) in arrivals {
            let seq = which.index(values.len());
            let frame = node.frame(Coverage::Full, &[(0, values[seq])]);
            let applied = node.plane.apply(&replica("s"), generation, seq as u64, &frame, node.now);
            let is_new = (generation, seq) > latest;
            prop_assert_eq!(applied == Applied::Fresh, is_new);
            if is_new {
                latest = (generation, seq);
                expected = values[seq];
            }
            prop_assert_eq!(node.others("a"), f64::from(expected));
        }
    }

    /// What a replica takes for known by the others is what they count, at every moment in between.
    #[test]
    fn known_is_what_the_others_count(steps in prop::collection::vec((0..3usize, 0..20u32, 0..4u32), 1..60)) {
        let names = ["a", "b", "c"];
        let (mut sender, mut receiver) = (Node::new(&names), Node::new(&names));
        for (seq, (worker, n, ticks)) in (1..).zip(steps) {
            let cell = sender.board.cell(&id(names[worker]));
            cell.add(requests(n));
            for tick in 0..ticks {
                receiver.pass(RISE_INTERVAL);
                if let Some(frame) = sender.pass(RISE_INTERVAL).collect() {
                    receiver.hear("s", seq * 10 + u64::from(tick), &frame);
                }
            }
            cell.subtract(requests(cell.own().requests / 2));
            for name in names {
                let others = receiver.board.cell(&id(name)).others().requests;
                prop_assert_eq!(others, f64::from(sender.known(name)));
            }
        }
    }

    /// The same while frames take up to 4 ms longer than the shortest way, and one of them is lost between two that
    /// arrive. Asked later about a moment by the sender's clock, the receiver says what it counted then.
    #[test]
    fn known_is_what_the_others_count_although_frames_are_late_and_lost(
        // So few that all of it is believed.
        steps in prop::collection::vec((0..3usize, 1..20u32, 0..12u32), 1..30),
        fates in prop::collection::vec((1..=4u32, 0..3u32), 40),
    ) {
        let names = ["a", "b", "c"];
        let (mut sender, mut receiver) = (Node::new(&names), Node::new(&names));
        sender.plane.set_ways(&[(replica("r"), MS)]);
        receiver.plane.set_ways(&[(replica("s"), MS)]);
        let zero = sender.collect().expect("the first");
        sender.pass(MS);
        receiver.pass(MS).hear("s", 1, &zero);
        let (mut on_the_way, mut seq, mut lost) = (Vec::new(), 1, 0);
        let mut looks: Vec<(Instant, Vec<u32>)> = Vec::new();
        let mut fates = fates.into_iter().cycle();
        let mut steps = steps.into_iter().peekable();
        let mut change_at = 1;
        // Long enough for the last of it to count.
        let mut rest = 60;
        for at in 2.. {
            if steps.peek().is_none() {
                rest -= 1;
            }
            if rest == 0 {
                break;
            }
            receiver.pass(MS);
            sender.pass(MS);
            if at >= change_at && let Some((worker, n, wait)) = steps.next() {
                let cell = sender.board.cell(&id(names[worker]));
                cell.subtract(requests(cell.own().requests / 2));
                cell.add(requests(n));
                change_at = at + wait;
            }
            if at % 5 == 0 && let Some(frame) = sender.collect() {
                seq += 1;
                let (way, fate) = fates.next().expect("a cycle");
                // The next repeats it 5 ms later, and is in time if it arrives.
                let is_lost = fate == 0 && lost == 0;
                lost = u32::from(is_lost);
                if !is_lost {
                    on_the_way.push((at + way, seq, frame));
                }
            }
            sender.plane.settle(sender.now);
            on_the_way.retain(|(arrives, seq, frame)| {
                if *arrives == at {
                    receiver.hear("s", *seq, frame);
                }
                *arrives > at
            });
            receiver.plane.settle(receiver.now);
            for name in names {
                let others = receiver.board.cell(&id(name)).others().requests;
                prop_assert_eq!(others, f64::from(sender.known(name)), "{} after {} ms", name, at);
            }
            looks.push((sender.now, names.map(|name| sender.known(name)).to_vec()));
            for later in [0, 1, 7, 30] {
                let Some((moment, known)) = looks.iter().rev().nth(later) else {
                    continue;
                };
                let moment = sender.board.clock_us(*moment);
                let moment = receiver.board.moment_of(&replica("s"), moment).expect("its clock is known");
                let past = receiver.board.past(moment);
                for (name, known) in names.into_iter().zip(known) {
                    let now = receiver.board.cell(&id(name)).common();
                    let then = past.of(&id(name)).unwrap_or(now).others.requests;
                    prop_assert_eq!(then, f64::from(*known), "{} {} ms before {} ms", name, later, at);
                }
            }
        }
        for name in names {
            prop_assert_eq!(sender.known(name), sender.board.cell(&id(name)).own().requests);
        }
    }

    /// With lost frames, the receiver is right again after the next full frame.
    #[test]
    fn a_full_frame_repairs_losses(steps in prop::collection::vec((0..3usize, 0..50u32, any::<bool>()), 1..60)) {
        let names = ["a", "b", "c"];
        let (mut sender, mut receiver) = (Node::new(&names), Node::new(&names));
        let mut seq = 0;
        for (worker, n, arrives) in steps {
            let cell = sender.board.cell(&id(names[worker]));
            cell.subtract(cell.own());
            cell.add(requests(n));
            seq += 1;
            receiver.pass(TICK);
            if let Some(frame) = sender.pass(TICK).collect() && arrives {
                receiver.hear("s", seq, &frame);
            }
        }
        let frame = sender.pass(FULL_INTERVAL).collect().expect("due");
        receiver.pass(FULL_INTERVAL).hear("s", seq + 1, &frame);
        for name in names {
            let own = sender.board.cell(&id(name)).own().requests;
            prop_assert_eq!(receiver.others(name), f64::from(own));
        }
    }
}

/// Timers end late. Whoever looks first takes over what is due, in the order in which it counts.
#[test]
fn what_is_due_counts_from_its_own_moment_whenever_it_is_taken_over() {
    let mut node = Node::new(&["a"]);
    let first = node.now;
    let hear = |node: &mut Node, from: &str, seq, n, hold_ms: u32| {
        let frame = LoadFrame {
            moment: Some(Moment {
                sent_us: 1_000_000 + seq,
                hold_us: hold_ms * 1_000,
            }),
            ..node.frame(Coverage::Full, &[(0, n)])
        };
        assert_eq!(node.hear(from, seq, &frame), Applied::Fresh);
    };
    // The first frame of each counts at once.
    hear(&mut node, "s", 1, 1, 0);
    hear(&mut node, "t", 1, 1, 0);
    assert!(!node.board.is_due(node.now + Duration::from_secs(9)));
    hear(&mut node, "s", 2, 3, 20);
    hear(&mut node, "t", 2, 4, 10);
    assert!(!node.board.is_due(first + 9 * MS));
    assert!(node.board.is_due(first + 10 * MS));

    node.pass(25 * MS).plane.settle(first + 25 * MS);
    assert!(!node.board.is_due(node.now));
    let counted = |ms| {
        let past = node.board.past(first + ms * MS);
        let now = node.board.cell(&id("a")).common();
        past.of(&id("a")).unwrap_or(now).others.requests
    };
    let expected = [(9, 2.0), (10, 5.0), (19, 5.0), (20, 7.0), (25, 7.0)];
    for (ms, requests) in expected {
        assert_eq!(counted(ms), requests, "after {ms} ms");
    }
}

/// A newcomer asks for a snapshot, and frames of changes may come before it: they say nothing of all other workers.
#[test]
fn a_snapshot_that_changes_overtook_fills_in_the_rest() {
    let mut node = Node::new(&["a", "b", "c"]);
    let snapshot = node.frame(Coverage::Full, &[(0, 1), (1, 2)]);
    let mut change = node.frame(Coverage::Changes, &[(1, 5)]);
    change.moment = Some(Moment {
        sent_us: 9,
        hold_us: 0,
    });
    assert_eq!(node.hear("s", 7, &change), Applied::Fresh);
    assert_eq!(["a", "b", "c"].map(|w| node.others(w)), [0.0, 5.0, 0.0]);
    assert_eq!(node.hear("s", 6, &snapshot), Applied::Fresh);
    assert_eq!(["a", "b", "c"].map(|w| node.others(w)), [1.0, 5.0, 0.0]);
    // Once: another one that is late says nothing new.
    let old = node.frame(Coverage::Full, &[(2, 9)]);
    assert_eq!(node.hear("s", 5, &old), Applied::Stale);
    assert_eq!(node.others("c"), 0.0);
}

/// What a liar has held is bounded, and no broken list of it counts.
#[test]
fn what_is_held_is_bounded_and_sound() {
    let mut node = Node::new(&["a", "b"]);
    let frame = |sent_us, slot, earlier: usize| LoadFrame {
        moment: Some(Moment {
            sent_us,
            hold_us: u32::MAX,
        }),
        earlier: vec![
            Earlier {
                before_us: 1,
                slots: vec![SlotLoad {
                    slot,
                    load: requests(1),
                }],
            };
            earlier
        ],
        ..node.frame(Coverage::Changes, &[(0, sent_us as u32 % 10)])
    };
    let frames: Vec<_> = (0..200).map(|at| frame(at, 1, 0)).collect();
    let (beyond, too_many) = (frame(500, 2, 1), frame(500, 1, EARLIER_MAX + 1));
    let full = node.frame(Coverage::Full, &[]);
    node.hear("s", 1, &full);
    for (seq, frame) in (2..).zip(&frames) {
        assert_eq!(node.hear("s", seq, frame), Applied::Fresh);
        assert_eq!(node.hear("s", seq, frame), Applied::Stale, "it is held");
    }
    let held = node.plane.held(&replica("s"));
    assert!((1..100).contains(&held), "{held}");
    assert_eq!(node.hear("s", 300, &beyond), Applied::Malformed);
    assert_eq!(node.hear("s", 301, &too_many), Applied::Malformed);
    // Another list of workers: positions in the former one mean nothing in it.
    node.plane.follow(&view(&["a", "b", "c"]));
    assert_eq!(node.plane.held(&replica("s")), 0);
    assert_eq!(node.others("a"), 9.0);
}

/// A replica that was paused decides before its own tasks have looked again: by its own counts then.
#[test]
fn sums_of_a_paused_replica_are_stale() {
    let mut node = Node::new(&["a"]);
    node.pass(SENDER_SILENT_AFTER * 9);
    assert!(!node.board.is_stale(node.now), "there are no others");
    node.hear("s", 1, &node.frame(Coverage::Full, &[(0, 5)]));
    node.plane.aggregate(node.now);
    node.pass(SENDER_SILENT_AFTER);
    assert!(!node.board.is_stale(node.now));
    node.pass(TICK);
    assert!(node.board.is_stale(node.now));
    node.plane.aggregate(node.now);
    assert!(!node.board.is_stale(node.now));
}
