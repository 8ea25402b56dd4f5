//! What becomes of workers while some replicas are not heard. Of a cut each side is looked at by itself.

use std::time::Duration;

use grapevine_gossip::worker::State;

use super::tests::{HOLD, Replicas, Unheard, id, of};

const ALL: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8];
const SECOND: Duration = Duration::from_secs(1);

/// Three replicas of which these are not heard any more; the sources of the others lose the last four workers with them.
fn without(unheard: &[(usize, Unheard)]) -> Replicas {
    let mut replicas = Replicas::that_see(3, ALL);
    replicas.unheard = unheard.iter().copied().collect();
    replicas.all_see(&of(&ALL[..4]));
    replicas
}

/// Whichever side is larger: where the two meet again, every worker is as it was.
#[test]
fn neither_side_of_a_cut_takes_out_what_the_other_may_see() {
    for lost in [&[0][..], &[1, 2]] {
        let lost: Vec<_> = lost.iter().map(|&at| (at, Unheard::Lost)).collect();
        let mut replicas = without(&lost);
        for after in [5, 60, 500] {
            replicas.run(after * SECOND);
            for number in 1..=8 {
                let state = replicas.state(number);
                assert_eq!(state, Some(State::Active), "w{number}, without {lost:?}");
            }
            // Gossip forgets the dead after a minute.
            let forgotten = lost.iter().map(|&(at, _)| (at, Unheard::Forgotten));
            if after == 60 {
                replicas.unheard = forgotten.collect();
            }
        }
        // They are back, and do not see them either.
        replicas.unheard.clear();
        replicas.run(5 * SECOND);
        assert_eq!(replicas.state(5), Some(State::Draining));
        replicas.run(HOLD);
        assert_eq!(replicas.registered().len(), 4);
    }
}

/// Ten minutes after it was heard last, and the hold.
#[test]
fn a_replica_that_died_for_good_does_not_keep_gone_workers_for_ever() {
    let mut replicas = Replicas::that_see(3, ALL);
    replicas.unheard = [(1, Unheard::Lost), (2, Unheard::Lost)].into();
    replicas.run(300 * SECOND);
    replicas.all_see(&of(&ALL[..4]));
    replicas.run(295 * SECOND);
    assert_eq!(replicas.state(5), Some(State::Active));
    replicas.run(10 * SECOND);
    assert_eq!(replicas.state(5), Some(State::Draining));
    assert_eq!(replicas.removes, 0);
    replicas.run(HOLD);
    assert_eq!(replicas.registered(), [1, 2, 3, 4].map(id));
    // From then on the one that is left decides as before.
    replicas.all_see(&of(&ALL[..3]));
    replicas.run(SECOND);
    assert_eq!(replicas.state(4), Some(State::Draining));
}

#[test]
fn a_replica_that_left_keeps_nothing() {
    for how in [Unheard::Leaving, Unheard::Left] {
        let mut replicas = without(&[(0, how), (1, how)]);
        replicas.run(SECOND);
        assert_eq!(replicas.state(5), Some(State::Draining), "{how:?}");
        replicas.run(HOLD);
        assert_eq!(replicas.registered().len(), 4, "{how:?}");
    }
}

/// Statements end a moment before gossip sees that somebody is dead, or after.
#[test]
fn one_that_has_just_fallen_silent_may_be_cut_off() {
    let mut replicas = Replicas::that_see(3, ALL);
    // Alive, and without a statement.
    replicas.see(1, None);
    replicas.see(2, None);
    replicas.run(SECOND / 2);
    replicas.see(0, of(&ALL[..4]));
    replicas.run(SECOND);
    assert_eq!(replicas.state(5), Some(State::Active));
    replicas.unheard = [(1, Unheard::Lost), (2, Unheard::Lost)].into();
    replicas.run(60 * SECOND);
    assert_eq!(replicas.state(5), Some(State::Active));
    // Alive after all: their sources are broken.
    replicas.unheard.clear();
    replicas.run(SECOND);
    assert_eq!(replicas.state(5), Some(State::Draining));
}
