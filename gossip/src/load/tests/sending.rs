//! What a replica tells of its own load, and when.

use super::*;

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

/// Of a frame of changes it would take all other workers for idle.
#[test]
fn whoever_is_connected_gets_a_full_frame_first() {
    let mut node = Node::new(&["a", "b"]);
    node.add("a", requests(3));
    node.collect();
    node.repeat();
    node.plane.linked(&replica("new"));
    node.add("b", requests(1));
    let first = slots(node.pass(RISE_INTERVAL).collect());
    assert_eq!(first, Some((Coverage::Full, vec![(0, 3), (1, 1)])));
    let next = slots(node.pass(RISE_INTERVAL).collect());
    assert_eq!(next, Some((Coverage::Changes, vec![(1, 1)])), "once");
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
