//! Who is right is the same for all who heard the same, in whatever order.

use std::collections::BTreeSet;

use grapevine_kv_events::likeness::Likeness;
use proptest::prelude::*;

/// What was heard of two engines.
#[derive(Clone, Copy, Debug)]
enum Heard {
    Share(u32, u32),
    Contradict(u32, u32),
}

fn likeness(engines: u32, heard: &[Heard]) -> Likeness {
    let mut likeness = Likeness::default();
    (0..engines).for_each(|engine| likeness.add(engine, &format!("w{engine}")));
    for heard in heard {
        match *heard {
            Heard::Share(one, other) => likeness.share(one, other),
            Heard::Contradict(one, other) => likeness.contradict(one, other),
        };
    }
    likeness
}

fn contradict(one: u32, other: u32) -> [Heard; 4] {
    [Heard::Contradict(one, other); 4]
}

#[test]
fn most_engines_are_right_and_of_equal_kinds_the_one_of_the_least_name() {
    let odd = |heard: &[Heard]| likeness(4, heard).odd().into_iter().collect::<Vec<_>>();
    assert_eq!(odd(&contradict(0, 1)[..3]), []);
    assert_eq!(odd(&contradict(0, 1)), [1]);
    // The first that spoke has nobody on its side.
    let shares = [Heard::Share(1, 2)];
    assert_eq!(odd(&[&contradict(0, 1)[..], &shares].concat()), [0]);
    // What is apart stays so when others join it.
    assert_eq!(odd(&[&shares[..], &contradict(2, 0)].concat()), [0]);
    let both = [
        &contradict(1, 0)[..],
        &contradict(2, 3),
        &shares,
        &[Heard::Share(0, 3)],
    ]
    .concat();
    assert_eq!(odd(&both), [1, 2], "two and two");
    // A block in common proves more than texts speak against.
    let alike = [&contradict(0, 1)[..], &[Heard::Share(0, 1)]].concat();
    assert_eq!(odd(&alike), []);
}

#[test]
fn those_that_are_gone_count_no_more_but_what_they_shared_holds() {
    let heard = [
        &contradict(0, 1)[..],
        &[Heard::Share(1, 2), Heard::Share(1, 3)],
    ]
    .concat();
    let mut likeness = likeness(4, &heard);
    assert_eq!(likeness.odd(), BTreeSet::from([0]));
    likeness.remove(1);
    assert_eq!(likeness.kind(2), likeness.kind(3));
    assert_eq!(likeness.odd(), BTreeSet::from([0]));
    likeness.remove(2);
    assert_eq!(likeness.odd(), BTreeSet::from([3]));
    likeness.remove(0);
    assert_eq!(likeness.odd(), BTreeSet::new());
}

#[test]
fn engines_that_come_and_go_are_forgotten_in_the_end() {
    let mut likeness = likeness(3, &[&contradict(0, 1)[..], &[Heard::Share(1, 2)]].concat());
    for engine in 3..200_000 {
        likeness.add(engine, "w3");
        likeness.share(engine, 1);
        likeness.remove(engine);
    }
    assert!(likeness.remembered() <= 1 << 16);
    assert_eq!(likeness.kind(1), likeness.kind(2));
    assert_eq!(likeness.odd(), BTreeSet::from([0]));
}

#[test]
fn an_odd_engine_that_was_restarted_often_is_still_found() {
    let mut likeness = likeness(2, &[Heard::Share(0, 1)]);
    for engine in 2..10_000 {
        likeness.add(engine, "w2");
        for _ in 0..4 {
            likeness.contradict(engine, 0);
        }
        assert_eq!(likeness.odd(), BTreeSet::from([engine]));
        likeness.remove(engine);
    }
    assert!(likeness.apart().count() <= 4_096);
}

proptest! {
    #[test]
    fn the_order_does_not_matter(
        kinds in prop::collection::vec(0..3_u32, 2..8),
        pairs in prop::collection::vec((0..8_u32, 0..8_u32), 0..60),
        order in Just((0..240_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let engines = kinds.len() as u32;
        let heard: Vec<_> = pairs
            .iter()
            .map(|(one, other)| (one % engines, other % engines))
            .flat_map(|(one, other)| {
                let is_alike = kinds[one as usize] == kinds[other as usize];
                match is_alike {
                    true => [Heard::Share(one, other); 4],
                    false => contradict(one, other),
                }
            })
            .collect();
        let shuffled: Vec<_> = order.iter().filter_map(|at| heard.get(*at).copied()).collect();
        let odd = likeness(engines, &heard).odd();
        prop_assert_eq!(likeness(engines, &shuffled).odd(), odd);
    }
}
