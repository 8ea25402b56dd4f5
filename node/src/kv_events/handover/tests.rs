//! What one replica tells, as another one takes it.

use super::super::tests::Scene;
use super::taking::Taking;
use super::telling;
use grapevine_kv_events::handover::{Question, read};

/// All that a replica knows, told to another one.
fn hand_over(from: &Scene, to: &Scene) {
    let mut taking = Taking::default();
    let mut question = Some(Question::Engines(None));
    while let Some(asked) = question {
        let frames = match asked {
            Question::Engines(after) => telling::engines(from.caches(), after.as_ref()),
            Question::Texts(after) => telling::texts(from.caches(), after),
        };
        let pieces = frames.iter().flat_map(|frame| read(frame).expect("pieces"));
        question = taking.take(to.caches(), pieces.collect());
    }
}

#[test]
fn engines_that_the_peer_does_not_hear_any_more_make_no_kinds_one() {
    let peer = Scene::of(3);
    let engines = peer.begin();
    engines.iter().for_each(|engine| engine.begin(true));
    // What the first and the last one taught before a gap.
    peer.tell(&engines[0], 1, None, &[1, 2, 3]);
    peer.tell(&engines[2], 2, None, &[11, 12, 13]);
    for (engine, block) in engines.iter().zip([100, 200, 300]) {
        peer.lose(engine);
        peer.tell(engine, block, None, &[block]);
    }
    let replica = Scene::of(3);
    hand_over(&peer, &replica);
    assert!(replica.knows(1) && replica.knows(2));
    let engines = replica.begin();
    replica.tell(&engines[0], 3, Some(3), &[4]);
    replica.tell(&engines[1], 4, Some(3), &[5]);
    replica.tell(&engines[2], 5, Some(13), &[14]);
    assert!(replica.are_alike(&engines[0], &engines[1]));
    assert!(!replica.are_alike(&engines[0], &engines[2]));
    // So that the odd one is found.
    replica.contradict([&engines[0], &engines[2]]);
    assert_eq!([0, 1, 2].map(|of| replica.is_odd(of)), [false, false, true]);
}
