//! From when a sender's bad claims about a worker count.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// One thing that a sender does, so long after the one before.
enum Step {
    /// It claims this of `a`, in this epoch, and that it found out just now.
    Says(Claim, u64),
    /// It claims nothing of any worker.
    SaysNothing,
    /// It starts again.
    Restarts,
    /// The registry has this epoch of `a` from now on.
    Registry(u64),
}

use Claim::{Ejected, Good, Stalled, Unreachable};
use Step::{Registry, Restarts, Says, SaysNothing};

/// The ages at which the claims of these steps are shown, in seconds, as they come.
fn ages(steps: &[(u32, Step)]) -> Vec<u64> {
    let (mut received, mut now) = (ReceivedStates::default(), start());
    received.follow(known_workers(&[("a", 5)]));
    let (mut generation, mut seq) = (1, 0);
    let mut ages = Vec::new();
    for (pause, step) in steps {
        now += SECOND * *pause;
        received.expire(now);
        let said = match step {
            Says(claim, epoch) => vec![HealthClaim {
                worker: worker("a"),
                epoch: *epoch,
                claim: *claim,
                age: Duration::ZERO,
            }],
            SaysNothing => Vec::new(),
            Restarts => {
                generation += 1;
                continue;
            }
            Registry(epoch) => {
                received.follow(known_workers(&[("a", *epoch)]));
                continue;
            }
        };
        seq += 1;
        let taken = received.part(&replica("x"), (generation, seq), said, now);
        assert_eq!(taken, Taken::Fresh);
        let shown = claims(&received.states(), "a", now);
        ages.extend(shown.iter().map(|(_, _, age)| age.as_secs()));
    }
    ages
}

/// Else each change would outdo every token that was delivered here since, and set free what waits for its first one.
#[test]
fn bad_claims_count_from_the_first_one_whatever_they_say() {
    let minute = FORGET_AFTER.as_secs() as u32;
    type Case<'a> = (&'a str, &'a [(u32, Step)], &'a [u64]);
    let table: [Case<'_>; 11] = [
        (
            "repeated",
            &[
                (0, Says(Ejected, 5)),
                (1, Says(Ejected, 5)),
                (1, Says(Ejected, 5)),
            ],
            &[0, 1, 2],
        ),
        (
            "in turns",
            &[
                (0, Says(Stalled, 5)),
                (1, Says(Ejected, 5)),
                (1, Says(Stalled, 5)),
            ],
            &[0, 1, 2],
        ),
        (
            "epochs that nobody has seen",
            &[
                (0, Says(Stalled, 6)),
                (1, Says(Stalled, 7)),
                (1, Says(Stalled, 8)),
            ],
            &[0, 1, 2],
        ),
        (
            "silence",
            &[(0, Says(Stalled, 5)), (4, Says(Stalled, 5))],
            &[0, 4],
        ),
        (
            "nothing between",
            &[
                (0, Says(Stalled, 5)),
                (1, SaysNothing),
                (1, Says(Stalled, 5)),
            ],
            &[0, 2],
        ),
        (
            "good news between, which is new each time",
            &[
                (0, Says(Stalled, 5)),
                (1, Says(Good, 5)),
                (1, Says(Unreachable, 5)),
                (1, Says(Good, 5)),
            ],
            &[0, 0, 2, 0],
        ),
        (
            "a start of its own between",
            &[(0, Says(Stalled, 5)), (1, Restarts), (0, Says(Stalled, 5))],
            &[0, 1],
        ),
        (
            "not for a minute",
            &[
                (0, Says(Stalled, 5)),
                (minute / 2, Says(Good, 5)),
                (minute / 2, Says(Stalled, 5)),
            ],
            &[0, 0, 0],
        ),
        (
            "silence for a minute",
            &[(0, Says(Stalled, 5)), (minute, Says(Stalled, 5))],
            &[0, 0],
        ),
        (
            "the worker restarted",
            &[
                (0, Says(Stalled, 5)),
                (9, Registry(6)),
                (1, Says(Stalled, 6)),
                (1, Says(Stalled, 6)),
            ],
            &[0, 0, 1],
        ),
        (
            "its restart was claimed before the registry had it",
            &[
                (0, Says(Stalled, 5)),
                (9, Says(Stalled, 6)),
                (1, Registry(6)),
                (0, Says(Stalled, 6)),
            ],
            &[0, 9, 0],
        ),
    ];
    for (what, steps, expected) in table {
        assert_eq!(ages(steps), expected, "{what}");
    }
}

/// It is what a worker has before any replica has seen when it started.
#[test]
fn a_first_epoch_is_no_restart() {
    let steps = [
        (0, Registry(0)),
        (0, Says(Stalled, 0)),
        (2, Registry(6)),
        (0, Says(Stalled, 6)),
    ];
    assert_eq!(ages(&steps), [0, 2]);
}

/// Of what is older than a claim may be, and of senders each with its own.
#[test]
fn spells_are_of_one_sender_and_end_at_the_greatest_age() {
    let (mut received, now) = (received(), start());
    let mut say = |from: &str, seq, age, now| {
        let said = vec![claim("a", Stalled, age)];
        received.part(&replica(from), (1, seq), said, now);
        let shown = claims(&received.states(), "a", now).into_iter();
        shown.map(|(_, _, age)| age).collect::<Vec<_>>()
    };
    assert_eq!(say("x", 1, AGE_MAX, now), [AGE_MAX]);
    assert_eq!(say("x", 2, MS, now + SECOND), [AGE_MAX]);
    assert_eq!(say("y", 1, MS, now + SECOND), [AGE_MAX, MS]);
}
