//! Tables and invariants of decisions.

use grapevine_placement::{
    Candidate, Key, Load, NoWorker, Policy, PolicySettings, Price, Reason, Standing, Verdict,
    decide, explain,
};

use crate::common::{busy, chat, equal_ring, idle, members, numbers, ring_of, standing};
use crate::scene::{IDLE, scene, settings, turns};

/// Name, candidates by place, places that were tried, and what is expected.
type Row<Expected> = (&'static str, [Candidate; 4], &'static [usize], Expected);

/// A worker with tokens waiting for prefill.
pub(crate) fn queued(prefill_tokens: f64) -> Candidate {
    Candidate {
        load: Load {
            requests: 1.0,
            prefill_tokens,
            context_tokens: 0.0,
        },
        ..Candidate::default()
    }
}

/// A worker that holds running requests.
fn holding(context_tokens: f64) -> Candidate {
    Candidate {
        load: Load {
            requests: 1.0,
            prefill_tokens: 0.0,
            context_tokens,
        },
        ..Candidate::default()
    }
}

#[test]
fn prefix_leaves_home_only_at_its_price() {
    // 1,000 tokens of which nobody is known to hold any: leaving has to gain 1.5 tokens for each of the prompt.
    let scene = scene();
    let gone = standing(Standing::Unhealthy);
    let full = standing(Standing::Full);
    let leaving = standing(Standing::Draining);
    let table: [Row<(usize, Reason)>; 20] = [
        ("all idle", [IDLE; 4], &[], (0, Reason::Home)),
        (
            "queue below the price",
            [queued(1_499.0), IDLE, IDLE, IDLE],
            &[],
            (0, Reason::Home),
        ),
        (
            "queue at the price: a tie is the home's",
            [queued(1_500.0), IDLE, IDLE, IDLE],
            &[],
            (0, Reason::Home),
        ),
        (
            "queue above the price",
            [queued(1_501.0), IDLE, IDLE, IDLE],
            &[],
            (1, Reason::SpillPrice),
        ),
        (
            "spill to the cheapest",
            [queued(9e3), queued(1_502.0), queued(1.0), queued(1_502.0)],
            &[],
            (2, Reason::SpillPrice),
        ),
        (
            "held context is cheap",
            [holding(14_999.0), IDLE, IDLE, IDLE],
            &[],
            (0, Reason::Home),
        ),
        (
            "but not free",
            [holding(15_001.0), IDLE, IDLE, IDLE],
            &[],
            (1, Reason::SpillPrice),
        ),
        (
            "bound: 5 others, mean 1.5",
            [busy(5.0), IDLE, IDLE, IDLE],
            &[],
            (1, Reason::SpillBound),
        ),
        (
            "within the bound",
            [busy(4.0), IDLE, IDLE, IDLE],
            &[],
            (0, Reason::Home),
        ),
        (
            "home unhealthy",
            [gone, IDLE, IDLE, IDLE],
            &[],
            (1, Reason::Failover),
        ),
        (
            "home full",
            [full, IDLE, IDLE, IDLE],
            &[],
            (1, Reason::SpillFull),
        ),
        (
            "home draining",
            [leaving, IDLE, IDLE, IDLE],
            &[],
            (1, Reason::Drain),
        ),
        ("home tried", [IDLE; 4], &[0], (1, Reason::Failover)),
        ("two tried", [IDLE; 4], &[1, 0], (2, Reason::Failover)),
        (
            "under the bound but tried: over it",
            [busy(50.0), IDLE, busy(60.0), full],
            &[1],
            (0, Reason::Home),
        ),
        (
            "home and heir gone",
            [gone, gone, IDLE, IDLE],
            &[],
            (2, Reason::Failover),
        ),
        (
            "the heir is kept like a home",
            [gone, queued(1_500.0), IDLE, IDLE],
            &[],
            (1, Reason::Failover),
        ),
        (
            "and left at the same price",
            [gone, queued(1_501.0), IDLE, IDLE],
            &[],
            (2, Reason::Failover),
        ),
        (
            "heir of a crowded home",
            [busy(9.0), queued(1_500.0), IDLE, IDLE],
            &[],
            (1, Reason::SpillBound),
        ),
        (
            "heir after an attempt",
            [IDLE, queued(1_500.0), IDLE, IDLE],
            &[0],
            (1, Reason::Failover),
        ),
    ];
    for (name, candidates, tried, expected) in table {
        assert_eq!(
            scene.place(&settings(Policy::Prefix), candidates, tried),
            Ok(expected),
            "{name}"
        );
    }
}

#[test]
fn multiplicative_price_prefers_the_order_among_near_equals() {
    // Idle: (3 * 1,000 + 256) * 4 = 13,024; with one request and q queued (q + 3,256) * 5.
    let scene = scene();
    let price = PolicySettings {
        price: Price::MULTIPLICATIVE,
        ..PolicySettings::default()
    };
    let behind = |prefill_tokens| {
        let mut candidate = queued(prefill_tokens);
        candidate.load.requests = 0.0;
        candidate
    };
    let table: [(&str, [Candidate; 4], (usize, Reason)); 4] = [
        ("all idle", [IDLE; 4], (0, Reason::Home)),
        (
            "below 1.25 of the others",
            [behind(813.0), IDLE, IDLE, IDLE],
            (0, Reason::Home),
        ),
        (
            "above it",
            [behind(815.0), IDLE, IDLE, IDLE],
            (1, Reason::SpillPrice),
        ),
        (
            "near equals by order, not by cost",
            [queued(9e3), holding(0.0), IDLE, IDLE],
            (1, Reason::SpillPrice),
        ),
    ];
    for (name, candidates, expected) in table {
        assert_eq!(scene.place(&price, candidates, &[]), Ok(expected), "{name}");
    }
}

#[test]
fn nobody_left_says_why() {
    let scene = scene();
    let [full, gone, leaving] =
        [Standing::Full, Standing::Unhealthy, Standing::Draining].map(standing);
    let calm = PolicySettings {
        panic: false,
        ..PolicySettings::default()
    };
    let asleep = standing(Standing::Asleep);
    let table: [Row<NoWorker>; 9] = [
        ("all tried", [IDLE; 4], &[0, 1, 2, 3], NoWorker::Tried),
        (
            "the rest full",
            [full, IDLE, full, gone],
            &[1],
            NoWorker::Full,
        ),
        (
            "room comes, but where it was tried",
            [full, IDLE, full, gone],
            &[0, 1, 2],
            NoWorker::Tried,
        ),
        (
            "one may have it, and is unhealthy",
            [full, gone, full, full],
            &[0, 2, 3],
            NoWorker::Tried,
        ),
        (
            "all unhealthy, no panic rule",
            [gone; 4],
            &[],
            NoWorker::Unhealthy,
        ),
        (
            "the rest unhealthy",
            [IDLE, gone, leaving, leaving],
            &[0],
            NoWorker::Tried,
        ),
        ("all draining", [leaving; 4], &[], NoWorker::Draining),
        (
            "the rest asleep",
            [asleep, leaving, asleep, leaving],
            &[],
            NoWorker::Asleep,
        ),
        (
            "one unhealthy, the rest asleep",
            [asleep, gone, asleep, asleep],
            &[],
            NoWorker::Unhealthy,
        ),
    ];
    for (name, candidates, tried, expected) in table {
        for policy in Policy::ALL {
            let settings = PolicySettings { policy, ..calm };
            assert_eq!(
                scene.place(&settings, candidates, tried),
                Err(expected),
                "{name}, {policy}"
            );
        }
    }
    let nobody = decide(&calm, &equal_ring(0), &scene.key, &[], &[], 0);
    assert_eq!(nobody, Err(NoWorker::Empty));
}

#[test]
fn more_than_half_unhealthy_means_health_is_wrong() {
    let scene = scene();
    let gone = standing(Standing::Unhealthy);
    let check = |name: &str, panic: bool, candidates: [Candidate; 4], tried: &[usize], expected| {
        let settings = PolicySettings {
            panic,
            ..PolicySettings::default()
        };
        assert_eq!(
            scene.place(&settings, candidates, tried),
            expected,
            "{name}"
        );
    };
    check(
        "half",
        true,
        [gone, gone, IDLE, IDLE],
        &[],
        Ok((2, Reason::Failover)),
    );
    check(
        "more than half",
        true,
        [gone, gone, gone, IDLE],
        &[],
        Ok((0, Reason::Home)),
    );
    check(
        "the next is used, too",
        true,
        [gone, gone, gone, IDLE],
        &[0],
        Ok((1, Reason::Failover)),
    );
    check(
        "switched off",
        false,
        [gone, gone, gone, IDLE],
        &[],
        Ok((3, Reason::Failover)),
    );
    let leaving = standing(Standing::Draining);
    check(
        "draining stays out",
        true,
        [leaving, gone, gone, gone],
        &[],
        Ok((1, Reason::Drain)),
    );
}

#[test]
fn idle_homes_keep_their_keys_at_any_weight() {
    let ring = ring_of(&members(&[100, 1_000, 10_000]));
    for price in [Price::ADDITIVE, Price::MULTIPLICATIVE] {
        let settings = PolicySettings {
            price,
            ..PolicySettings::default()
        };
        for number in numbers(7).take(300) {
            let key = chat(&[("user", &format!("{number} {}", "q".repeat(400)))]);
            let decision = decide(&settings, &ring, &key, &idle(3), &[], 0).unwrap();
            assert_eq!(
                (decision.worker, decision.reason),
                (decision.home, Reason::Home)
            );
        }
    }
}

/// Leaving costs 1,500 tokens; a queue is felt divided by weight / mean weight, here 1/2 and 3/2.
#[test]
fn queues_are_felt_by_weight() {
    let ring = ring_of(&members(&[1_000, 3_000]));
    for (home, price) in [(0, 750.0), (1, 2_250.0)] {
        let at_home =
            |number: &u64| ring.successor(conversation(*number).marks()[0].hash) == Some(home);
        let key = conversation(numbers(8).find(at_home).unwrap());
        let leaves = |queue| {
            let mut candidates = idle(2);
            candidates[home] = queued(queue);
            decide(&PolicySettings::default(), &ring, &key, &candidates, &[], 0)
                .unwrap()
                .worker
                != home
        };
        assert!(
            !leaves(price - 1.0) && leaves(price + 1.0),
            "home {home}, queue {price}"
        );
    }
}

/// Key of a conversation of 1,000 tokens.
fn conversation(number: u64) -> Key {
    turns(&format!("{number:<4000}"))
}

#[test]
fn what_is_known_is_expected_and_nothing_else() {
    let scene = scene();
    let known = |tokens| Candidate {
        held_tokens: tokens,
        ..IDLE
    };
    let table: [Row<(usize, u32)>; 4] = [
        ("nothing known", [IDLE; 4], &[], (0, 0)),
        (
            "known elsewhere",
            [IDLE, IDLE, known(600), IDLE],
            &[],
            (2, 600),
        ),
        (
            "known at two: the first",
            [IDLE, known(600), known(600), IDLE],
            &[],
            (1, 600),
        ),
        (
            "for less than the tolerance the first stays",
            [known(500), known(740), IDLE, IDLE],
            &[],
            (0, 500),
        ),
    ];
    for (name, candidates, tried, (worker, tokens)) in table {
        let decision = scene.decide(&settings(Policy::Prefix), candidates, tried);
        let decision = decision.expect("all are well");
        assert_eq!(decision.worker, scene.order[worker], "{name}");
        assert_eq!(decision.expected_tokens, tokens, "{name}");
        assert_eq!(decision.known, tokens > 0, "{name}");
        assert_eq!(decision.prefill_tokens(), 1_000 - tokens, "{name}");
    }
}

/// One prompt from 120 clients over 4 workers: what the acceptance test does with processes.
#[test]
fn bound_holds_while_requests_are_placed() {
    for weights in [[1_000; 4], [1_000, 1_000, 2_000, 4_000]] {
        let ring = ring_of(&members(&weights));
        let key = chat(&[("user", &"q".repeat(40_000))]);
        let mut candidates = idle(4);
        let mut home = 0;
        for placed in 1..=120_u32 {
            let decision =
                decide(&PolicySettings::default(), &ring, &key, &candidates, &[], 0).unwrap();
            candidates[decision.worker].surge_requests += 1.0;
            candidates[decision.worker].load.requests += 1.0;
            home = decision.home;
            let mean = f64::from(placed) / 4.0;
            let mean_weight = f64::from(weights.iter().sum::<u32>()) / 4.0;
            let taken = candidates[decision.worker].load.requests;
            let bound =
                (1.5 * f64::from(weights[decision.worker]) / mean_weight * mean).max(mean + 4.0);
            assert!(
                taken <= bound,
                "{taken} in flight after {placed}, bound {bound}"
            );
        }
        assert!(
            candidates[home].load.requests >= 34.0,
            "the home stays as full as it may be"
        );
    }
}

#[test]
fn explain_shows_the_decision_and_its_reasons() {
    let scene = scene();
    let mut candidates = idle(4);
    candidates[scene.order[0]] = busy(9.0);
    candidates[scene.order[1]] = standing(Standing::Draining);
    // It stands in for the home, and costs 1,510 + 6 * 1,000 against 6 * 1,000 elsewhere and a tolerance of 1,500.
    candidates[scene.order[2]] = queued(1_510.0);
    let settings = PolicySettings::default();
    let explanation = explain(&settings, &scene.ring, &scene.key, &candidates, &[], 0);
    assert_eq!(
        explanation.decision,
        decide(&settings, &scene.ring, &scene.key, &candidates, &[], 0)
    );
    assert_eq!(
        explanation
            .rows
            .iter()
            .map(|row| row.index)
            .collect::<Vec<_>>(),
        scene.order
    );
    let verdicts: Vec<_> = explanation.rows.iter().map(|row| row.verdict).collect();
    assert_eq!(
        verdicts,
        [
            Verdict::OverBound,
            Verdict::Draining,
            Verdict::Eligible,
            Verdict::Chosen
        ]
    );
    // Nobody has learned a rate: 24 µs a token.
    assert_eq!(explanation.rows[2].cost, Some(7_510.0 * 0.024));
    // 9 + 1 in flight and the one being placed, over three workers.
    assert_eq!(explanation.rows[0].limit, Some(11.0 / 3.0 + 4.0));
    let empty = explain(&settings, &equal_ring(0), &scene.key, &[], &[], 0);
    assert_eq!(
        (empty.decision, empty.rows),
        (Err(NoWorker::Empty), Vec::new())
    );
}

#[test]
fn names_read_back() {
    for policy in Policy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    let refused = "manual".parse::<Policy>().unwrap_err().to_string();
    assert!(
        refused.contains("manual") && refused.contains("prefix, consistent_hash"),
        "{refused}"
    );
}
