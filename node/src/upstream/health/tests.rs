//! Verdicts in virtual time.

use super::*;

fn health_with(change: impl FnOnce(&mut BreakerConfig, &mut HealthConfig)) -> Health {
    let (mut breaker, mut health) = (BreakerConfig::default(), HealthConfig::default());
    // Draws would make the times of these tests uncertain.
    breaker.jitter = 0.0;
    change(&mut breaker, &mut health);
    Health::new("w".into(), breaker.into(), health.into())
}

fn health() -> Health {
    health_with(|_, _| ())
}

const REQUEST: Load = Load {
    requests: 1.0,
    prefill_tokens: 100.0,
    context_tokens: 100.0,
};

impl Health {
    fn fail(&self) {
        let permit = self.begin(false).expect("it may have a request");
        self.end(permit, AttemptOutcome::Failure, REQUEST);
    }

    fn succeed(&self) {
        let permit = self.begin(false).expect("it may have a request");
        self.end(permit, AttemptOutcome::Success, REQUEST);
    }

    fn verdict(&self) -> Claim {
        self.report().verdict
    }
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_refused_connection_counts_until_a_probe_passes() {
    let health = health();
    assert!(health.is_usable());
    health.unreachable();
    assert!(!health.is_usable());
    assert_eq!(health.verdict(), Claim::Unreachable);
    assert!(!health.probed(Probe::Bad, ""));
    assert!(!health.is_usable());
    assert!(health.probed(Probe::Good, ""));
    assert!(health.is_usable());
    let changes: Vec<u64> = health.changes().map(|(_, count)| count).collect();
    assert_eq!(changes, [1, 1, 0, 0, 0], "each change counts once");
}

#[tokio::test(start_paused = true)]
async fn failures_open_the_breaker_and_a_trial_passes_later() {
    let config = BreakerConfig::default();
    let health = health();
    for _ in 0..config.failure_threshold.get() {
        health.fail();
    }
    assert!(health.look().is_resting);
    assert_eq!(health.verdict(), Claim::Ejected);
    assert!(!health.is_usable() && health.begin(false).is_none());
    pass(config.open_for).await;
    let trial = health.begin(false).expect("one trial");
    assert!(health.begin(false).is_none() && !health.is_usable());
    health.end(trial, AttemptOutcome::Success, REQUEST);
    assert!(health.is_usable());
}

#[tokio::test(start_paused = true)]
async fn disabled_breakers_never_open() {
    let health = health_with(|breaker, _| breaker.enabled = false);
    for _ in 0..1000 {
        health.fail();
    }
    assert!(health.is_usable());
}

#[tokio::test(start_paused = true)]
async fn only_a_token_restores_a_stalled_worker() {
    let health = health();
    pass(SECOND).await;
    let asked = Instant::now();
    pass(SECOND * 60).await;
    assert!(health.stalled(asked));
    assert_eq!(health.verdict(), Claim::Stalled);
    for _ in 0..100 {
        health.probed(Probe::Good, "");
    }
    pass(SECOND * 3600).await;
    assert!(!health.is_usable() && health.begin(false).is_none());
    assert!(health.awaits_token());
    health.delivered();
    assert!(health.is_usable() && !health.awaits_token());
    assert_eq!(health.look(), Look::CLEAR, "its cache is as warm as before");
}

#[tokio::test(start_paused = true)]
async fn one_late_request_among_others_is_no_stall() {
    let health = health();
    let asked = Instant::now();
    pass(SECOND * 30).await;
    health.delivered();
    pass(SECOND * 30).await;
    assert!(!health.stalled(asked));
    assert!(health.is_usable());
    assert!(
        health.stalled(asked + SECOND * 31),
        "nobody got a token since"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stall_counts_once_and_again_when_it_comes_back() {
    let health = health();
    let stall = async || {
        let permits: Vec<_> = (0..20)
            .map(|_| health.begin(false).expect("it may have requests"))
            .collect();
        pass(SECOND).await;
        let asked = Instant::now();
        pass(SECOND * 10).await;
        for permit in permits {
            assert!(health.stalled(asked));
            health.end(permit, AttemptOutcome::Failure, REQUEST);
        }
        assert_eq!(health.verdict(), Claim::Stalled);
        health.delivered();
    };
    for _ in 1..BreakerConfig::default().failure_threshold.get() {
        stall().await;
        assert!(health.is_usable(), "a token is enough");
    }
    stall().await;
    assert_eq!(health.verdict(), Claim::Ejected);
}

#[tokio::test(start_paused = true)]
async fn without_a_token_probe_clients_try_at_growing_intervals() {
    for told_later in [false, true] {
        let health = health_with(|_, health| health.token_probe = told_later);
        pass(SECOND).await;
        let asked = Instant::now();
        pass(SECOND * 60).await;
        assert!(health.stalled(asked));
        if told_later {
            health.try_with_clients();
        }
        assert!(!health.awaits_token());
        for wait in [10, 20, 30] {
            pass(SECOND * (wait - 1)).await;
            assert!(!health.is_usable(), "{wait} s have not passed");
            pass(SECOND).await;
            let trial = health.begin(false).expect("one trial");
            let asked = Instant::now();
            assert!(health.begin(false).is_none(), "one at a time");
            pass(SECOND * 60).await;
            assert!(health.stalled(asked));
            health.end(trial, AttemptOutcome::Failure, REQUEST);
        }
        // The end of a request from before tells nothing new.
        let shut_for = health.report().shut_for;
        assert!(health.stalled(asked));
        assert_eq!(health.report().shut_for, shut_for);
        health.delivered();
        assert!(health.is_usable());
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_worker_is_well_after_a_token_however_it_came_back_into_use() {
    for starts_anew in [true, false] {
        let health = health_with(|_, health| health.token_probe = false);
        pass(SECOND).await;
        let asked = Instant::now();
        pass(SECOND * 60).await;
        assert!(health.stalled(asked));
        if starts_anew {
            health.restarted();
            assert_eq!(health.verdict(), Claim::Good, "it was another process");
        } else {
            // Answers that end well without a token that was seen.
            pass(BreakerConfig::default().open_for).await;
            for _ in 0..BreakerConfig::default().success_threshold.get() {
                health.succeed();
            }
            assert_eq!(health.verdict(), Claim::Stalled);
        }
        // Nothing but the verdict is left of it, and that is looked at.
        pass(HealthConfig::default().slow_start).await;
        assert_eq!(health.look(), Look::CLEAR);
        health.delivered();
        assert_eq!(health.verdict(), Claim::Good, "anew: {starts_anew}");
        assert!(health.glance.is_clear(), "decisions need no lock any more");
    }
}

/// None of its clients waits for as long as its limit is.
#[tokio::test(start_paused = true)]
async fn a_worker_that_clients_give_up_again_and_again_is_stalled() {
    const SILENCE: Duration = Duration::from_secs(60);
    const WAITS: Duration = Duration::from_secs(6);
    let give_up = async |health: &Health| {
        let asked = Instant::now();
        pass(WAITS).await;
        health.left(asked, SILENCE, SILENCE / 4);
    };
    let health = health();
    pass(SECOND).await;
    health.delivered();
    for number in 1..10 {
        pass(WAITS * number).await;
        give_up(&health).await;
        assert_eq!(health.verdict(), Claim::Good, "{number}");
    }
    // A look whether it lives has been wanted, and finds that it does.
    health.sign_wanted().await;
    health.delivered();
    for number in 1..=10 {
        assert_eq!(health.verdict(), Claim::Good, "{number} after a token");
        give_up(&health).await;
    }
    assert_eq!(health.verdict(), Claim::Stalled);
    health.delivered();
    assert_eq!(health.verdict(), Claim::Good);
}

#[tokio::test(start_paused = true)]
async fn what_proves_nothing_is_no_trial() {
    let health = health();
    for _ in 0..BreakerConfig::default().failure_threshold.get() {
        health.fail();
    }
    assert!(health.begin_unjudged(false).is_none(), "it is shut");
    assert!(
        health.begin_unjudged(true).is_some(),
        "health is not believed"
    );
    pass(BreakerConfig::default().open_for).await;
    let several = [(); 3].map(|()| health.begin_unjudged(false));
    assert!(several.iter().all(Option::is_some));
    let trial = health.begin(false).expect("nobody has it");
    assert!(health.begin(false).is_none());
    health.end(trial, AttemptOutcome::Success, REQUEST);
}

#[tokio::test(start_paused = true)]
async fn failures_weigh_for_a_while() {
    let health = health();
    health.fail();
    assert_eq!(health.look().penalty, REQUEST);
    assert!(health.is_usable());
    pass(SECOND * 60).await;
    assert_eq!(health.look(), Look::CLEAR);
    assert!(health.glance.is_clear(), "decisions need no lock any more");
}

#[tokio::test(start_paused = true)]
async fn a_restart_and_the_end_of_an_ejection_are_slow() {
    let config = HealthConfig::default();
    let health = health();
    health.restarted();
    assert_eq!(health.look().slow_start, Some(0.0));
    pass(config.slow_start / 2).await;
    assert_eq!(health.look().slow_start, Some(0.25));
    pass(config.slow_start / 2).await;
    assert_eq!(health.look(), Look::CLEAR);
    let breaker = BreakerConfig::default();
    for _ in 0..breaker.failure_threshold.get() {
        health.fail();
    }
    pass(breaker.open_for).await;
    for _ in 0..breaker.success_threshold.get() {
        assert_eq!(health.look().slow_start, None);
        health.succeed();
    }
    assert_eq!(health.look().slow_start, Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn a_new_process_is_not_ejected_for_the_former_one_unless_it_ends_again() {
    let health = health();
    let ends = || {
        for _ in 0..BreakerConfig::default().failure_threshold.get() {
            health.fail();
        }
        assert_eq!(health.verdict(), Claim::Ejected);
        health.restarted();
    };
    ends();
    let look = health.look();
    assert!(look.is_usable);
    assert_eq!(
        (look.penalty, look.slow_start),
        (Load::default(), Some(0.0))
    );
    ends();
    assert!(!health.is_usable(), "it ends again and again");
}

#[tokio::test(start_paused = true)]
async fn others_are_believed_until_better_is_seen() {
    type See = fn(&Health);
    let token: See = Health::delivered;
    let probe: See = |health| {
        health.probed(Probe::Good, "");
    };
    // Claim, what is seen here then, and whether that refutes it.
    let table = [
        (Claim::Unreachable, probe, true),
        (Claim::Unhealthy, probe, true),
        (Claim::Stalled, probe, false),
        (Claim::Ejected, probe, false),
        (Claim::Unreachable, token, true),
        (Claim::Unhealthy, token, true),
        (Claim::Stalled, token, true),
        (Claim::Ejected, token, true),
    ];
    for (claim, see, refuted) in table {
        let health = health();
        pass(SECOND * 10).await;
        see(&health);
        pass(SECOND).await;
        // The claim is older than what was seen here, or younger.
        health.heard([(claim, SECOND * 5), (Claim::Good, SECOND)]);
        assert_eq!(health.look().is_doubted, !refuted, "{claim:?}, seen before");
        health.heard([(claim, Duration::ZERO)]);
        assert!(health.look().is_doubted && health.is_usable(), "{claim:?}");
        assert_eq!(health.report().doubt, Some(claim));
        pass(SECOND).await;
        see(&health);
        assert_eq!(health.look().is_doubted, !refuted, "{claim:?}, seen later");
        health.heard([]);
        assert_eq!(health.look(), Look::CLEAR, "{claim:?}, withdrawn");
    }
}

#[tokio::test(start_paused = true)]
async fn claims_are_what_was_seen_here() {
    let health = health();
    assert_eq!(health.claim(), None);
    health.heard([(Claim::Stalled, Duration::ZERO)]);
    assert_eq!(health.claim(), None, "hearsay is not passed on");
    assert_eq!(health.good_sign_age(), None);
    health.heard([(Claim::Good, SECOND * 3), (Claim::Good, SECOND * 2)]);
    pass(SECOND).await;
    assert_eq!(health.claim(), None);
    health.probed(Probe::Good, "");
    pass(SECOND).await;
    assert_eq!(health.claim(), Some((Claim::Good, SECOND)));
    assert_eq!(health.good_sign_age(), Some(SECOND));
    health.unreachable();
    pass(SECOND).await;
    assert_eq!(health.claim(), Some((Claim::Unreachable, SECOND)));
}

#[tokio::test(start_paused = true)]
async fn an_ejection_is_claimed_until_it_may_be_tried() {
    let health = health();
    let config = BreakerConfig::default();
    for _ in 0..config.failure_threshold.get() {
        health.fail();
    }
    assert_eq!(health.claim(), Some((Claim::Ejected, Duration::ZERO)));
    pass(config.open_for - SECOND).await;
    let age = config.open_for - SECOND;
    assert_eq!(health.claim(), Some((Claim::Ejected, age)));
    pass(SECOND).await;
    assert_eq!(health.verdict(), Claim::Ejected);
    assert_eq!(health.claim(), None, "whoever has a request tries");
    health.fail();
    assert_eq!(health.claim().map(|(claim, _)| claim), Some(Claim::Ejected));
}

#[tokio::test(start_paused = true)]
async fn requests_are_sent_although_health_speaks_against_it_if_it_is_not_believed() {
    let health = health();
    for _ in 0..BreakerConfig::default().failure_threshold.get() {
        health.fail();
    }
    assert!(health.begin(false).is_none());
    let permit = health
        .begin(true)
        .expect("more than half are like this one");
    health.end(permit, AttemptOutcome::Success, REQUEST);
}

#[tokio::test(start_paused = true)]
async fn failed_checks_free_what_waits_unless_tokens_come() {
    let health = health();
    pass(SECOND).await;
    let told = std::cell::Cell::new(false);
    let listens = async {
        health.gives_up().await;
        told.set(true);
    };
    let checks = async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
            assert!(health.given_up_since().is_none() && !told.get());
            health.probed(Probe::Bad, "");
            pass(SECOND).await;
        }
    };
    tokio::join!(listens, checks);
    let at = health.given_up_since().expect("a verdict");
    assert_eq!(at, Instant::now() - SECOND);
    health.probed(Probe::Bad, "");
    assert_eq!(health.given_up_since(), Some(at), "the same verdict");
    health.goes_on(Instant::now());
    assert!(!health.is_usable(), "its checks fail");
    assert_eq!(health.given_up_since(), None, "its engine works");
}

#[tokio::test(start_paused = true)]
async fn one_broken_connection_frees_nobody_before_a_check_fails_too() {
    let health = health();
    pass(SECOND).await;
    health.unreachable();
    assert_eq!(health.given_up_since(), None);
    health.probed(Probe::Bad, "");
    assert_eq!(health.given_up_since(), Some(Instant::now()));
    health.probed(Probe::Good, "");
    assert_eq!(health.given_up_since(), None);
}

#[tokio::test(start_paused = true)]
async fn counters_that_move_are_life_but_restore_nobody() {
    let health = health();
    let asked = Instant::now();
    pass(SECOND * 50).await;
    health.moved(Instant::now());
    pass(SECOND * 10).await;
    assert!(!health.stalled(asked), "its engine works for somebody");
    pass(SECOND * 60).await;
    assert!(health.stalled(Instant::now() - SECOND * 60));
    assert!(health.given_up_since().is_some());
    pass(SECOND).await;
    health.moved(Instant::now());
    assert_eq!(health.given_up_since(), None);
    assert_eq!(health.verdict(), Claim::Stalled, "only a token proves it");
}

#[tokio::test(start_paused = true)]
async fn the_word_of_others_frees_what_waits_where_something_here_agrees() {
    // Claim, whether a check failed here, and whether requests are freed.
    let table = [
        (Claim::Stalled, false, true),
        (Claim::Unhealthy, false, false),
        (Claim::Unhealthy, true, true),
        (Claim::Unreachable, true, true),
        (Claim::Ejected, true, false),
        (Claim::Good, true, false),
    ];
    for (claim, failed, freed) in table {
        let health = health();
        pass(SECOND * 10).await;
        if failed {
            health.probed(Probe::Bad, "");
        }
        pass(SECOND).await;
        health.heard([(claim, Duration::from_millis(100))]);
        let expected = freed.then(Instant::now);
        assert_eq!(health.given_up_since(), expected, "{claim:?}, {failed}");
        pass(SECOND).await;
        health.heard([(claim, Duration::from_millis(1_150))]);
        assert_eq!(health.given_up_since(), expected, "{claim:?}, heard again");
        health.delivered();
        assert_eq!(health.given_up_since(), None, "{claim:?}, refuted");
    }
}

#[tokio::test(start_paused = true)]
async fn no_claim_hides_an_older_one_of_another_kind() {
    let health = health();
    pass(SECOND * 10).await;
    let both = |claim, seconds| {
        [
            (Claim::Stalled, SECOND * (seconds + 4)),
            (claim, SECOND * seconds),
        ]
    };
    health.heard(both(Claim::Ejected, 1));
    let freed = Some(Instant::now());
    assert_eq!(health.given_up_since(), freed, "a stall counts by itself");
    assert_eq!(health.report().doubt, Some(Claim::Ejected));
    pass(SECOND).await;
    health.heard(both(Claim::Ejected, 2));
    assert_eq!(health.given_up_since(), freed, "heard again");
    health.heard(both(Claim::Unhealthy, 2));
    health.probed(Probe::Good, "");
    assert_eq!(
        health.report().doubt,
        Some(Claim::Stalled),
        "a good probe refutes the other one"
    );
    pass(SECOND).await;
    health.delivered();
    assert_eq!(
        (health.report().doubt, health.given_up_since()),
        (None, None)
    );
}

/// One replica that changes its mind all the time would else have all requests without a first token leave, again and again.
#[tokio::test(start_paused = true)]
async fn claims_that_change_come_and_go_free_what_waits_once() {
    let health = health();
    pass(SECOND * 10).await;
    health.heard([(Claim::Stalled, Duration::ZERO)]);
    let first = Some(Instant::now());
    assert_eq!(health.given_up_since(), first);
    let ago = |seconds| Duration::from_secs(seconds);
    type Case<'a> = (&'a str, &'a [(Claim, Duration)], Option<Instant>);
    let table: [Case<'_>; 7] = [
        ("another claim", &[(Claim::Ejected, ago(1))], None),
        ("the first one again", &[(Claim::Stalled, ago(2))], first),
        ("withdrawn", &[], None),
        ("and made again", &[(Claim::Stalled, ago(4))], first),
        ("good news", &[(Claim::Good, ago(0))], None),
        ("and made again", &[(Claim::Stalled, ago(6))], first),
        (
            "an older one of another",
            &[(Claim::Stalled, ago(9))],
            first,
        ),
    ];
    for (what, claims, expected) in table {
        pass(SECOND).await;
        health.heard(claims.iter().copied());
        assert_eq!(health.given_up_since(), expected, "{what}");
    }
    pass(SECOND).await;
    health.heard([(Claim::Stalled, ago(3))]);
    assert_eq!(
        health.given_up_since(),
        Some(Instant::now()),
        "found out later"
    );
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_answers_nothing_at_all_is_as_good_as_unreachable() {
    use Probe::{Bad, Unanswered};
    // Probes, whether a token came during them, whether it counts as unreachable.
    let table = [
        (vec![Unanswered; 3], false, true),
        (vec![Unanswered; 2], false, false),
        (vec![Unanswered; 3], true, false),
        (vec![Bad; 3], false, false),
        (vec![Unanswered, Bad, Unanswered], false, false),
    ];
    for (probes, token, expected) in table {
        let health = health();
        for probed in &probes {
            pass(SECOND).await;
            health.probed(*probed, "");
        }
        if token {
            health.goes_on(Instant::now());
            pass(SECOND).await;
        }
        let look = health.look();
        assert_eq!(look.is_unreachable, expected, "{probes:?}, token: {token}");
        health.probed(Probe::Good, "");
        assert!(!health.look().is_unreachable, "{probes:?}");
    }
}
