//! What holds for any load and any network.

use proptest::prelude::*;

use super::*;

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
                let past = receiver.board.past(moment).expect("it is remembered");
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
