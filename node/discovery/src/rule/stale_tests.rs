//! What becomes of workers that one replica still sees, without knowing that its picture is old.

use std::time::Duration;

use super::tests::{HOLD, Replicas, id, of};

const SECOND: Duration = Duration::from_secs(1);

/// Three replicas of which the last one goes on to see a worker that the others had removed.
fn stale() -> Replicas {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.see(0, of(&[1]));
    replicas.see(1, of(&[1]));
    replicas.run(605 * SECOND);
    assert_eq!(replicas.registered(), [id(1)]);
    replicas
}

/// A day later, or sooner where many were removed, the registry has no word of it.
#[test]
fn what_the_registry_forgot_to_have_removed_is_not_new() {
    let mut replicas = stale();
    for _ in 0..3 {
        replicas.forget_removals();
        replicas.run(3600 * SECOND);
        assert_eq!((replicas.registered(), replicas.removes), (vec![id(1)], 1));
    }
    // Also to one that could not see for a while.
    replicas.see(2, None);
    replicas.run(60 * SECOND);
    replicas.see(2, of(&[1, 2]));
    replicas.run(3600 * SECOND);
    assert_eq!((replicas.registered(), replicas.removes), (vec![id(1)], 1));
    // It appears anew, where it was seen last: the file was mended, and names it again.
    replicas.see(2, of(&[1]));
    replicas.run(SECOND);
    replicas.see(2, of(&[1, 2]));
    replicas.run(2 * SECOND);
    assert_eq!(replicas.registered(), [id(1), id(2)]);
}

/// Else an alarm would end although nobody mended the list.
#[test]
fn a_worker_is_contested_until_all_see_the_same() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    replicas.see(0, of(&[1]));
    replicas.see(1, of(&[1]));
    replicas.run(60 * SECOND);
    assert_eq!(replicas.contested(), [1, 1, 0], "it is registered");
    replicas.run(545 * SECOND);
    assert_eq!(replicas.registered(), [id(1)]);
    for _ in 0..2 {
        replicas.run(3600 * SECOND);
        assert_eq!(replicas.contested(), [0, 0, 1], "it was removed");
        replicas.forget_removals();
    }
    // The list is mended.
    replicas.see(2, of(&[1]));
    replicas.run(SECOND);
    assert_eq!(replicas.contested(), [0, 0, 0]);
}

/// What most see comes back after the hold, as it does while the registry knows of the removal.
#[test]
fn what_most_still_see_returns_though_its_removal_is_forgotten() {
    let mut replicas = Replicas::that_see(3, &[1, 2]);
    // Somebody wrote it, from before a partition for example.
    replicas.entries.insert(id(2), None);
    replicas.run(SECOND);
    replicas.forget_removals();
    replicas.run(HOLD - 3 * SECOND);
    assert_eq!(replicas.registered(), [id(1)]);
    replicas.run(4 * SECOND);
    assert_eq!(replicas.registered(), [id(1), id(2)]);
}

/// Here one of two would bring it back for good: to take it out again they would have to agree.
#[test]
fn who_was_blind_at_the_removal_and_reads_an_old_list_brings_nothing_back() {
    for forgets in [false, true] {
        let mut replicas = Replicas::that_see(2, &[1, 2]);
        replicas.see(0, of(&[1]));
        replicas.see(1, None);
        replicas.run(2 * HOLD);
        assert_eq!(replicas.registered(), [id(1)]);
        if forgets {
            replicas.forget_removals();
        }
        replicas.see(1, of(&[1, 2]));
        replicas.run(3600 * SECOND);
        let what = (replicas.registered(), replicas.removes);
        assert_eq!(what, (vec![id(1)], 1), "forgotten: {forgets}");
    }
}
