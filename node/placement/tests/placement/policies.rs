//! What each policy but `prefix` and those of the cache decides.

use grapevine_placement::{KeyBuilder, KeySettings, Policy, Reason, Standing, decide};

use crate::common::{busy, equal_ring, idle, members, numbers, prompt, ring_of, standing};
use crate::scene::{IDLE, Scene, scene, settings};

#[test]
fn consistent_hash_and_sticky_stay_whatever_the_load() {
    let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
    builder.session("s");
    let key = builder.finish();
    let ring = equal_ring(4);
    let order = ring.order(key.home()).unwrap().to_vec();
    let scene = Scene { ring, key, order };
    let crowded = [busy(1e3), IDLE, IDLE, IDLE];
    let table = [
        (Policy::ConsistentHash, Reason::Home),
        (Policy::Sticky, Reason::Sticky),
    ];
    for (policy, at_home) in table {
        let settings = settings(policy);
        assert_eq!(
            scene.place(&settings, crowded, &[]),
            Ok((0, at_home)),
            "{policy}"
        );
        assert_eq!(
            scene.place(&settings, crowded, &[0]),
            Ok((1, Reason::Failover)),
            "{policy}"
        );
        let full = [standing(Standing::Full), IDLE, IDLE, IDLE];
        assert_eq!(
            scene.place(&settings, full, &[]),
            Ok((1, Reason::SpillFull)),
            "{policy}"
        );
    }
}

#[test]
fn consistent_hash_follows_the_user() {
    let ring = equal_ring(64);
    let home = |user: &str, text: &str| {
        let mut builder = KeyBuilder::new(&KeySettings::default(), "m", b"");
        builder.user(user);
        builder.text(text);
        decide(
            &settings(Policy::ConsistentHash),
            &ring,
            &builder.finish(),
            &idle(64),
            &[],
            0,
        )
        .unwrap()
        .worker
    };
    assert_eq!(home("ann", "one"), home("ann", "two"));
    assert_ne!(home("ann", "one"), home("bob", "one"));
}

#[test]
fn round_robin_takes_usable_workers_in_turn() {
    let (ring, key) = (equal_ring(4), prompt(b"no session"));
    let mut candidates = idle(4);
    candidates[1].standing = Standing::Draining;
    for policy in [Policy::RoundRobin, Policy::Sticky] {
        let turn = |draw| decide(&settings(policy), &ring, &key, &candidates, &[], draw).unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4].map(|draw| turn(draw).worker),
            [0, 2, 3, 0, 2],
            "{policy}"
        );
        assert_eq!(turn(0).reason, Reason::RoundRobin, "{policy}");
    }
}

#[test]
fn least_request_counts_per_weight_and_ties_by_order() {
    let scene = scene();
    let settings = settings(Policy::LeastRequest);
    assert_eq!(
        scene.place(&settings, [busy(2.0), busy(2.0), busy(1.0), busy(3.0)], &[]),
        Ok((2, Reason::LeastRequest))
    );
    assert_eq!(
        scene.place(&settings, [busy(1.0), IDLE, IDLE, busy(3.0)], &[]),
        Ok((1, Reason::LeastRequest))
    );
    assert_eq!(
        scene.place(&settings, [IDLE; 4], &[]),
        Ok((0, Reason::LeastRequest))
    );

    // Weight 3 with 4 in flight is emptier than weight 1 with 1: 5/3 against 2/1.
    let ring = ring_of(&members(&[1_000, 3_000]));
    let decision = decide(
        &settings,
        &ring,
        &scene.key,
        &[busy(1.0), busy(4.0)],
        &[],
        0,
    )
    .unwrap();
    assert_eq!(decision.worker, 1);
}

#[test]
fn random_draws_by_weight() {
    let (ring, key, count) = (ring_of(&members(&[1_000, 3_000])), prompt(b"a"), 10_000);
    let draw = |draw| {
        decide(&settings(Policy::Random), &ring, &key, &idle(2), &[], draw)
            .unwrap()
            .worker
    };
    let heavy = numbers(5)
        .take(count)
        .filter(|&number| draw(number) == 1)
        .count();
    assert!(
        (7_300..7_700).contains(&heavy),
        "{heavy} of {count}, three quarters expected"
    );
}

#[test]
fn power_of_two_avoids_the_most_loaded() {
    let (ring, key) = (equal_ring(8), prompt(b"a"));
    let mut candidates = idle(8);
    candidates[3] = busy(9.0);
    let taken: Vec<_> = numbers(6)
        .take(2_000)
        .map(|draw| {
            decide(
                &settings(Policy::PowerOfTwo),
                &ring,
                &key,
                &candidates,
                &[],
                draw,
            )
            .unwrap()
            .worker
        })
        .collect();
    for worker in 0..8 {
        assert_eq!(taken.contains(&worker), worker != 3, "worker {worker}");
    }
    candidates.fill(standing(Standing::Draining));
    candidates[3] = busy(9.0);
    let only = decide(
        &settings(Policy::PowerOfTwo),
        &ring,
        &key,
        &candidates,
        &[],
        77,
    )
    .unwrap();
    assert_eq!(only.worker, 3, "the only usable one");
}
