//! What counts of what others told, and from when.

use super::*;

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
            context_tokens: 7000.0,
            reported_requests: 3.0,
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

/// For two seconds others would avoid workers for load that nobody has.
#[test]
fn the_load_of_who_left_ends_at_once_and_stays_so_until_it_comes_again() {
    let (mut a, x) = (Node::new(&["w"]), replica("x"));
    let [three, one] = [3, 1].map(|load| a.frame(Coverage::Full, &[(0, load)]));
    a.hear("x", 8, &three);
    assert_eq!((a.others("w"), a.board.reporting()), (3.0, 2));
    a.plane.left(&x, a.now);
    let others = a.board.cell(&id("w")).others().requests;
    assert_eq!((others, a.board.reporting()), (0.0, 1));
    assert!(a.plane.requests_at(&id("w"), a.now).is_empty());
    assert_eq!(a.plane.heard(a.now).count(), 0);
    // Datagrams overtake each other.
    assert_eq!(a.hear("x", 9, &three), Applied::Stale);
    assert_eq!(a.others("w"), 0.0);
    // Cut off, it proves itself again, as the process that it was.
    a.plane.linked(&x);
    assert_eq!(a.hear("x", 7, &three), Applied::Stale, "late");
    assert_eq!(a.hear("x", 10, &one), Applied::Fresh);
    assert_eq!((a.others("w"), a.board.reporting()), (1.0, 2));
    // Restarted, it is a new one, whatever the old one is.
    a.plane.left(&x, a.now);
    let applied = a.plane.apply(&x, 2, 0, &three, a.now);
    assert_eq!((applied, a.others("w")), (Applied::Fresh, 3.0));
    assert_eq!(a.hear("x", 11, &one), Applied::Stale);
}

#[test]
fn old_words_weigh_less() {
    let mut node = Node::damped(&["a"], |age| if age < TICK { 1.0 } else { 0.25 });
    node.hear("s", 1, &node.frame(Coverage::Full, &[(0, 8)]));
    assert_eq!(node.others("a"), 8.0);
    assert_eq!(node.pass(TICK).others("a"), 2.0);
    let reported = || node.board.cell(&id("a")).others().reported_requests;
    assert_eq!(reported(), 8.0, "for a limit they weigh as much");
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

/// It would be taken for a broken link, although its frames come each round.
#[test]
fn a_replica_with_other_workers_is_heard_and_its_load_grows_old() {
    let mut node = Node::new(&["a"]);
    let other = LoadFrame {
        workers_digest: 1,
        ..node.frame(Coverage::Full, &[(7, 9)])
    };
    let heard = |node: &Node| -> Vec<Duration> {
        let heard = node.plane.heard(node.now);
        heard.map(|(_, ago)| ago).collect()
    };
    let counts = |node: &mut Node| (node.others("a"), node.board.reporting());
    // Before the first that can be read.
    assert_eq!(node.hear("s", 1, &other), Applied::OtherWorkers);
    assert_eq!(heard(&node), [Duration::ZERO]);
    assert_eq!(counts(&mut node), (0.0, 1));
    node.hear("s", 2, &node.frame(Coverage::Full, &[(0, 5)]));
    assert_eq!(counts(&mut node), (5.0, 2));
    // For longer than a silent one is remembered.
    let ticks = SENDER_FORGET_AFTER.as_millis() / TICK.as_millis() + 1;
    for seq in 3..3 + ticks as u64 {
        node.pass(TICK);
        assert_eq!(node.hear("s", seq, &other), Applied::OtherWorkers);
        let age = TICK * (seq as u32 - 2);
        let expected = match age < SENDER_SILENT_AFTER {
            true => (5.0, 2),
            false => (0.0, 1),
        };
        assert_eq!(counts(&mut node), expected, "{age:?}");
        assert_eq!(heard(&node), [Duration::ZERO], "{age:?}");
    }
    // Changes alone say nothing of the rest.
    let changes = node.frame(Coverage::Changes, &[(0, 2)]);
    assert_eq!(node.hear("s", 9_000, &changes), Applied::Fresh);
    assert_eq!(counts(&mut node), (2.0, 2));
    node.pass(TICK);
    assert_eq!(heard(&node), [TICK], "it is silent");
}

/// What the former process had is gone with it, and late frames of that one stay late.
#[test]
fn a_restarted_replica_with_other_workers_has_no_load() {
    let mut node = Node::new(&["a"]);
    let (five, s) = (node.frame(Coverage::Full, &[(0, 5)]), replica("s"));
    let other = LoadFrame {
        workers_digest: 1,
        ..node.frame(Coverage::Full, &[])
    };
    node.hear("s", 1, &five);
    node.plane.left(&s, node.now);
    assert_eq!(node.plane.heard(node.now).count(), 0);
    let applied = node.plane.apply(&s, 2, 5, &other, node.now);
    assert_eq!((applied, node.others("a")), (Applied::OtherWorkers, 0.0));
    assert_eq!(node.plane.heard(node.now).count(), 1);
    assert_eq!(node.hear("s", 2, &five), Applied::Stale);
    let applied = node.plane.apply(&s, 2, 6, &five, node.now);
    assert_eq!((applied, node.others("a")), (Applied::Fresh, 5.0));
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
        let past = node.board.past(first + ms * MS).expect("it is remembered");
        let now = node.board.cell(&id("a")).common();
        past.of(&id("a")).unwrap_or(now).others.requests
    };
    let expected = [(9, 2.0), (10, 5.0), (19, 5.0), (20, 7.0), (25, 7.0)];
    for (ms, requests) in expected {
        assert_eq!(counted(ms), requests, "after {ms} ms");
    }
}

/// The sooner a frame comes, the more it tells of its sender's clock, and a question may come right behind it.
#[test]
fn what_came_after_a_moment_did_not_count_there_whatever_the_frames_before_said_of_the_clock() {
    let mut node = Node::new(&["a"]);
    let hear = |node: &mut Node, seq, coverage, sent_ms: u64, n| {
        let frame = LoadFrame {
            moment: Some(Moment {
                sent_us: sent_ms * 1_000,
                hold_us: 8_000,
            }),
            ..node.frame(coverage, &[(0, n)])
        };
        assert_eq!(node.hear("s", seq, &frame), Applied::Fresh);
    };
    // Of a busy machine: 40 ms late. The next is not.
    hear(&mut node, 1, Coverage::Full, 100, 0);
    node.pass(60 * MS);
    hear(&mut node, 2, Coverage::Changes, 200, 3);
    node.pass(8 * MS);
    node.plane.settle(node.now);
    assert_eq!(node.board.cell(&id("a")).common().others.requests, 3.0);
    let moment = node.board.moment_of(&replica("s"), 199_000);
    let past = node.board.past(moment.expect("its clock is known"));
    let then = past.expect("it is remembered").of(&id("a"));
    assert_eq!(then.map(|common| common.others.requests), Some(0.0));
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

/// It was read before the changes were sent, and written after them.
#[test]
fn a_snapshot_that_changes_overtook_before_it_was_written_is_older_all_the_same() {
    let mut node = Node::new(&["a", "b", "c"]);
    let snapshot = node.frame(Coverage::Full, &[(0, 1), (1, 2)]);
    let mut change = node.frame(Coverage::Changes, &[(1, 5)]);
    change.moment = Some(Moment {
        sent_us: 9,
        hold_us: 0,
    });
    assert_eq!(node.hear("s", 6, &change), Applied::Fresh);
    assert_eq!(node.hear("s", 7, &snapshot), Applied::Fresh);
    assert_eq!(["a", "b", "c"].map(|w| node.others(w)), [1.0, 5.0, 0.0]);
    assert_eq!(node.hear("s", 7, &snapshot), Applied::Stale, "once");
    // From then on it has a base, and a whole frame counts as such.
    let full = node.frame(Coverage::Full, &[(2, 9)]);
    assert_eq!(node.hear("s", 8, &full), Applied::Fresh);
    assert_eq!(["a", "b", "c"].map(|w| node.others(w)), [0.0, 0.0, 9.0]);
    // A release without moments sends no frame with one: by its number, the later one counts.
    change.moment = None;
    assert_eq!(node.hear("old", 6, &change), Applied::Fresh);
    assert_eq!(node.hear("old", 7, &snapshot), Applied::Fresh);
    assert_eq!(["a", "b"].map(|w| node.others(w)), [1.0, 2.0]);
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
