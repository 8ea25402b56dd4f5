use super::*;
use AttemptOutcome::{Failure, Neutral, Success};
use BreakerState::{Closed, HalfOpen, Open};

/// The draw that neither lengthens nor shortens.
const MIDDLE: f64 = 0.5;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Opens after 3 failures within 60 s, tries after 10 s, closes after 2 successes.
fn breaker() -> Breaker {
    Breaker::new(BreakerSettings {
        failure_threshold: NonZeroU32::new(3).expect("not zero"),
        success_threshold: NonZeroU32::new(2).expect("not zero"),
        window: seconds(60),
        ..BreakerSettings::default()
    })
}

/// Runs one request at a time: (second, its outcome, state after it).
fn check(name: &str, table: &[(u64, AttemptOutcome, BreakerState)]) {
    let mut breaker = breaker();
    for &(second, outcome, state) in table {
        let permit = breaker
            .begin(seconds(second))
            .unwrap_or_else(|| panic!("{name}: no permit at {second} s"));
        breaker.record(permit, outcome, seconds(second), MIDDLE);
        assert_eq!(
            breaker.state(seconds(second)),
            state,
            "{name}: after {outcome:?} at {second} s"
        );
    }
}

#[test]
fn what_is_no_trial_leaves_the_trial_to_another() {
    let mut breaker = breaker();
    for _ in 0..3 {
        let permit = breaker.begin(seconds(0)).expect("closed");
        breaker.record(permit, Failure, seconds(0), MIDDLE);
    }
    assert_eq!(breaker.state(seconds(10)), HalfOpen);
    let passes = [breaker.pass(), breaker.pass()];
    let trial = breaker.begin(seconds(10)).expect("nobody has it");
    for permit in passes {
        breaker.record(permit, Neutral, seconds(10), MIDDLE);
        assert!(!breaker.allows(seconds(10)), "the trial goes on");
    }
    let fails = breaker.pass();
    breaker.record(fails, Failure, seconds(10), MIDDLE);
    assert_eq!(breaker.state(seconds(10)), HalfOpen, "it tried nothing");
    breaker.record(trial, Success, seconds(10), MIDDLE);
    assert!(breaker.allows(seconds(10)));
}

#[test]
fn failures_in_a_row_open_it_and_only_success_closes_it() {
    check(
        "opens",
        &[
            (0, Failure, Closed),
            (1, Failure, Closed),
            (2, Failure, Open),
        ],
    );
    check(
        "a success between",
        &[
            (0, Failure, Closed),
            (1, Failure, Closed),
            (2, Success, Closed),
            (3, Failure, Closed),
        ],
    );
    check(
        "neutral is no success",
        &[
            (0, Failure, Closed),
            (1, Failure, Closed),
            (2, Neutral, Closed),
            (3, Failure, Open),
        ],
    );
    check(
        "neutral is no failure",
        &[
            (0, Neutral, Closed),
            (1, Neutral, Closed),
            (2, Neutral, Closed),
            (3, Neutral, Closed),
        ],
    );
    let opened = [
        (0, Failure, Closed),
        (0, Failure, Closed),
        (0, Failure, Open),
    ];
    let then = |rest: &[_]| [&opened[..], rest].concat();
    check(
        "closes",
        &then(&[(10, Success, HalfOpen), (10, Success, Closed)]),
    );
    check(
        "neutral trial",
        &then(&[
            (10, Neutral, HalfOpen),
            (11, Neutral, HalfOpen),
            (12, Success, HalfOpen),
            (12, Success, Closed),
        ]),
    );
    check(
        "failed trial",
        &then(&[
            (10, Success, HalfOpen),
            (11, Failure, Open),
            // The second time it stays open for twice as long.
            (31, Success, HalfOpen),
            (31, Success, Closed),
        ]),
    );
}

#[test]
fn window_really_counts() {
    check(
        "slow failures",
        &[
            (0, Failure, Closed),
            (40, Failure, Closed),
            (80, Failure, Closed),
            (90, Failure, Open),
        ],
    );
}

#[test]
fn open_lets_nobody_through_until_the_timeout() {
    let mut breaker = opened_at_zero();
    assert!(breaker.begin(seconds(9)).is_none());
    assert_eq!(breaker.state(seconds(9)), Open);
    assert_eq!(breaker.state(seconds(10)), HalfOpen);
    assert!(breaker.begin(seconds(10)).is_some());
}

#[test]
fn half_open_lets_one_trial_through_at_a_time() {
    let mut breaker = opened_at_zero();
    let trial = breaker.begin(seconds(10)).expect("the first trial");
    assert!(
        !breaker.allows(seconds(11)) && breaker.begin(seconds(11)).is_none(),
        "the trial still runs"
    );
    breaker.record(trial, Neutral, seconds(12), MIDDLE);
    assert!(breaker.allows(seconds(12)), "its end frees the place");
}

#[test]
fn a_long_trial_does_not_block_the_next_for_ever() {
    let mut breaker = opened_at_zero();
    let long = breaker.begin(seconds(10)).expect("the first trial");
    let next = breaker
        .begin(seconds(20))
        .expect("the first trial has run for a timeout");
    breaker.record(long, Success, seconds(21), MIDDLE);
    assert!(
        !breaker.allows(seconds(21)),
        "the end of the long one does not free the place of the next"
    );
    breaker.record(next, Success, seconds(22), MIDDLE);
    assert_eq!(breaker.state(seconds(22)), Closed, "both successes count");
}

#[test]
fn outcomes_of_an_earlier_era_change_nothing() {
    let mut breaker = breaker();
    let [old_success, old_failure] = [(); 2].map(|()| breaker.begin(seconds(0)).expect("closed"));
    for _ in 0..3 {
        let permit = breaker.begin(seconds(0)).expect("closed");
        breaker.record(permit, Failure, seconds(0), MIDDLE);
    }
    breaker.record(old_failure, Failure, seconds(9), MIDDLE);
    assert_eq!(
        breaker.state(seconds(10)),
        HalfOpen,
        "a stream that began before does not prolong the break"
    );
    breaker.record(old_success, Success, seconds(10), MIDDLE);
    let trial = breaker.begin(seconds(10)).expect("half open");
    breaker.record(trial, Success, seconds(10), MIDDLE);
    assert_eq!(
        breaker.state(seconds(10)),
        HalfOpen,
        "nor does it count as a trial"
    );
}

fn opened_at_zero() -> Breaker {
    let mut breaker = breaker();
    for _ in 0..3 {
        let permit = breaker.begin(seconds(0)).expect("closed");
        breaker.record(permit, Failure, seconds(0), MIDDLE);
    }
    breaker
}

/// Opens at once, and tells for how long.
fn shut_after_a_failure(breaker: &mut Breaker, now: Duration, draw: f64) -> Duration {
    for _ in 0..3 {
        let permit = breaker.begin(now).expect("closed");
        breaker.record(permit, Failure, now, draw);
    }
    assert_eq!(breaker.state(now), Open);
    breaker.shut_for(now)
}

fn succeed_twice(breaker: &mut Breaker, now: Duration) {
    for _ in 0..2 {
        let trial = breaker.begin(now).expect("half open");
        breaker.record(trial, Success, now, MIDDLE);
    }
    assert_eq!(breaker.state(now), Closed);
}

#[test]
fn ejections_grow_with_repeats_up_to_a_cap_and_are_forgotten_while_it_is_well() {
    let mut breaker = breaker();
    let mut now = seconds(0);
    for n in 1..=40 {
        let shut = shut_after_a_failure(&mut breaker, now, MIDDLE);
        assert_eq!(shut, seconds(10 * n).min(seconds(300)), "ejection {n}");
        now += shut;
        succeed_twice(&mut breaker, now);
    }
    assert_eq!(
        breaker.ejections(now),
        30,
        "more would only be forgotten later"
    );
    // Half of them for each window of 60 s.
    for (window, left) in [(1, 15), (2, 7), (4, 1), (5, 0)] {
        assert_eq!(breaker.ejections(now + seconds(60) * window), left);
    }
    now += seconds(60) * 4;
    assert_eq!(shut_after_a_failure(&mut breaker, now, MIDDLE), seconds(20));
}

#[test]
fn what_a_closed_breaker_has_forgotten_does_not_come_back_when_it_is_closed_again() {
    let mut breaker = breaker();
    let mut now = seconds(0);
    for _ in 0..4 {
        now += shut_after_a_failure(&mut breaker, now, MIDDLE);
        succeed_twice(&mut breaker, now);
    }
    assert_eq!(breaker.ejections(now), 4);
    for left in [2, 1, 0] {
        now += seconds(60);
        // Its worker started again.
        breaker.close(now);
        assert_eq!(breaker.ejections(now), left);
    }
    assert_eq!(shut_after_a_failure(&mut breaker, now, MIDDLE), seconds(10));
}

/// A worker whose process starts again more often than that is well for a whole window all the same.
#[test]
fn a_breaker_that_is_closed_again_and_again_forgets_as_soon() {
    let mut breaker = breaker();
    let mut now = shut_after_a_failure(&mut breaker, seconds(0), MIDDLE);
    succeed_twice(&mut breaker, now);
    for _ in 0..3 {
        assert_eq!(breaker.ejections(now), 1);
        now += seconds(20);
        breaker.close(now);
    }
    assert_eq!(breaker.ejections(now), 0);
}

#[test]
fn a_failed_trial_is_an_ejection_too() {
    let mut breaker = opened_at_zero();
    let trial = breaker.begin(seconds(10)).expect("half open");
    breaker.record(trial, Failure, seconds(10), MIDDLE);
    assert_eq!(breaker.shut_for(seconds(10)), seconds(20));
}

#[test]
fn a_draw_spreads_the_ejection() {
    for (draw, expected) in [(0.0, 8), (0.5, 10), (1.0, 12)] {
        let shut = shut_after_a_failure(&mut breaker(), seconds(0), draw);
        assert_eq!(shut, seconds(expected), "draw {draw}");
    }
    let mut settings = BreakerSettings::default();
    settings.timeout_max = settings.timeout;
    settings.failure_threshold = NonZeroU32::MIN;
    let mut capped = Breaker::new(settings);
    capped.open(seconds(0), 1.0);
    assert_eq!(
        capped.shut_for(seconds(0)),
        settings.timeout_max,
        "never above the cap"
    );
}

#[test]
fn a_low_rate_of_success_opens_it() {
    // Two of five are good, and never more than two in a row bad; and the same over more time than the rate looks at.
    for (every_ms, opens) in [(100, true), (2_000, false)] {
        let mut breaker = breaker();
        let mut opened = None;
        for number in 0..100_u64 {
            let now = Duration::from_millis(number * every_ms);
            let is_good = matches!(number % 5, 2 | 4);
            let outcome = if is_good { Success } else { Failure };
            let Some(permit) = breaker.begin(now) else {
                break;
            };
            breaker.record(permit, outcome, now, MIDDLE);
            if breaker.state(now) == Open {
                opened = Some(number + 1);
                break;
            }
        }
        assert_eq!(opened.is_some(), opens, "every {every_ms} ms");
        assert!(
            opened.is_none_or(|outcomes| outcomes >= 20),
            "fewer say nothing: {opened:?}"
        );
    }
}

#[test]
fn neutral_outcomes_do_not_count_for_the_rate() {
    let mut breaker = breaker();
    let mut end = |outcome| {
        let permit = breaker.begin(seconds(1)).expect("closed");
        breaker.record(permit, outcome, seconds(1), MIDDLE);
    };
    for _ in 0..1_000 {
        end(Neutral);
    }
    for _ in 0..12 {
        end(Success);
        end(Failure);
    }
    end(Neutral);
    assert_eq!(breaker.state(seconds(1)), Closed, "half of 24 are good");
}

#[test]
fn who_is_sent_although_it_is_open_may_close_it_and_not_prolong_it() {
    let mut breaker = opened_at_zero();
    let before = breaker.shut_for(seconds(1));
    let permit = breaker.begin_anyway(seconds(1));
    breaker.record(permit, Failure, seconds(1), MIDDLE);
    assert_eq!(breaker.shut_for(seconds(1)), before);
    for _ in 0..2 {
        let permit = breaker.begin_anyway(seconds(2));
        breaker.record(permit, Success, seconds(2), MIDDLE);
    }
    assert_eq!(breaker.state(seconds(2)), Closed);
}

#[test]
fn other_settings_keep_what_was_counted() {
    let [strict, lax] = [2, 5].map(|failures| BreakerSettings {
        failure_threshold: NonZeroU32::new(failures).expect("not zero"),
        success_rate: 0.0,
        ..BreakerSettings::default()
    });
    let mut breaker = Breaker::new(lax);
    let at = Duration::from_secs(1);
    let fail = |breaker: &mut Breaker| {
        let permit = breaker.begin(at).expect("closed");
        breaker.record(permit, Failure, at, 0.5);
        breaker.state(at)
    };
    for _ in 0..3 {
        assert_eq!(fail(&mut breaker), Closed);
    }
    breaker.change(strict);
    assert_eq!(breaker.state(at), Closed);
    assert_eq!(fail(&mut breaker), Open);
    breaker.change(lax);
    assert_eq!(breaker.state(at), Open);
}
