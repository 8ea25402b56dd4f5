//! Invariants of rings and orders.

use grapevine_placement::{
    HashAlgorithm, Member, Ring, RingError, RingSettings, Weight, total_digest,
};
use proptest::{prelude::*, sample::Index};

use crate::common::{equal_ring, members, numbers, ring_of};

/// Up to 24 members with distinct ids and any weights, in the order of generation.
fn some_members() -> impl Strategy<Value = Vec<Member>> {
    prop::collection::btree_map("[a-z]{1,8}", 1_u32..5_000, 1..24).prop_map(|map| {
        let member = |(id, weight)| Member {
            id,
            weight: Weight::from_thousandths(weight).unwrap(),
        };
        map.into_iter().map(member).collect()
    })
}

fn order_ids(ring: &Ring, key: u64) -> Vec<&str> {
    ring.order(key)
        .unwrap()
        .to_vec()
        .into_iter()
        .map(|index| ring.members()[index].id.as_str())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn order_is_a_permutation(members in some_members(), key in any::<u64>()) {
        let ring = ring_of(&members);
        let order = ring.order(key).unwrap();
        let mut listed = order.to_vec();
        prop_assert_eq!(listed[0], order.home());
        prop_assert_eq!(Some(order.home()), ring.successor(key));
        listed.sort_unstable();
        prop_assert_eq!(listed, (0..members.len()).collect::<Vec<_>>());
    }

    #[test]
    fn first_walks_the_order(members in some_members(), key in any::<u64>(), accepted in any::<u32>()) {
        let ring = ring_of(&members);
        let order = ring.order(key).unwrap();
        let accepts = |index: usize| accepted >> index & 1 == 1;
        prop_assert_eq!(order.first(accepts), order.to_vec().into_iter().find(|&index| accepts(index)));
    }

    #[test]
    fn input_order_is_irrelevant(members in some_members().prop_shuffle(), key in any::<u64>()) {
        let mut sorted = members.clone();
        sorted.sort_by(|a, b| a.id.cmp(&b.id));
        let (shuffled, ring) = (ring_of(&members), ring_of(&sorted));
        prop_assert_eq!(shuffled.members(), ring.members());
        prop_assert_eq!(shuffled.digest(), ring.digest());
        prop_assert_eq!(order_ids(&shuffled, key), order_ids(&ring, key));
    }

    #[test]
    fn removal_moves_only_its_keys(
        members in some_members(),
        gone in any::<Index>(),
        seed in any::<u64>(),
    ) {
        prop_assume!(members.len() > 1);
        let gone = gone.index(members.len());
        let mut rest = members.clone();
        let gone = rest.remove(gone).id;
        let (before, after) = (ring_of(&members), ring_of(&rest));
        for key in numbers(seed).take(200) {
            let mut order = order_ids(&before, key);
            if order[0] == gone {
                continue;
            }
            order.retain(|id| *id != gone);
            prop_assert_eq!(order, order_ids(&after, key), "all else keeps its place, behind the home, too");
        }
    }

    #[test]
    fn addition_moves_only_to_the_new(members in some_members(), weight in 1_u32..5_000, seed in any::<u64>()) {
        let new = Member { id: "NEW".to_owned(), weight: Weight::from_thousandths(weight).unwrap() };
        let (before, after) = (ring_of(&members), ring_of(&[members, vec![new]].concat()));
        for key in numbers(seed).take(200) {
            let home = order_ids(&after, key)[0];
            prop_assert!(home == "NEW" || home == order_ids(&before, key)[0]);
        }
    }

    #[test]
    fn weight_moves_keys_one_way_only(members in some_members(), seed in any::<u64>()) {
        let mut heavier = members.clone();
        heavier[0].weight = Weight::from_thousandths(members[0].weight.thousandths() * 2).unwrap();
        let (before, after) = (ring_of(&members), ring_of(&heavier));
        for key in numbers(seed).take(200) {
            let home = order_ids(&after, key)[0];
            prop_assert!(home == members[0].id || home == order_ids(&before, key)[0]);
        }
    }
}

/// Share of the keys that `pick` gives each of `workers`.
fn shares(workers: usize, keys: usize, pick: impl Fn(u64) -> Option<usize>) -> Vec<f64> {
    let mut counts = vec![0.0; workers];
    let mut all = 0.0;
    for index in numbers(1).take(keys).filter_map(pick) {
        counts[index] += 1.0;
        all += 1.0;
    }
    counts.iter().map(|count| count / all).collect()
}

#[test]
fn exact_shares_are_those_that_prefixes_show() {
    let ring = Ring::build(&RingSettings::default(), members(&[500, 1_000, 3_000])).unwrap();
    let exact = ring.shares();
    assert!((exact.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{exact:?}");
    let drawn = shares(3, 200_000, |key| ring.successor(key));
    for (exact, drawn) in exact.iter().zip(&drawn) {
        assert!((exact - drawn).abs() < 0.01, "{exact} {drawn}");
    }
    let one = RingSettings {
        virtual_nodes: std::num::NonZeroU16::MIN,
        ..RingSettings::default()
    };
    let alone = Ring::build(&one, members(&[1_000])).unwrap();
    assert_eq!(alone.shares(), [1.0]);
    let empty = Ring::build(&one, members(&[])).unwrap();
    assert!(empty.shares().is_empty());
}

#[test]
fn share_follows_weight() {
    for hash in HashAlgorithm::ALL {
        let weights: Vec<u32> = (0..16)
            .map(|index| [500, 1_000, 2_000, 4_000][index % 4])
            .collect();
        let settings = RingSettings {
            hash,
            ..RingSettings::default()
        };
        let ring = Ring::build(&settings, members(&weights)).unwrap();
        let total: f64 = weights.iter().copied().map(f64::from).sum();
        let second = |key| Some(ring.order(key)?.to_vec()[1]);
        for (share, weight) in shares(16, 200_000, |key| ring.successor(key))
            .iter()
            .zip(&weights)
        {
            let ideal = f64::from(*weight) / total;
            assert!(
                (share / ideal - 1.0).abs() < 0.25,
                "{hash}, weight {weight}: {share:.4}, ideal {ideal:.4}"
            );
        }
        // Second places exclude the home, so only their rough order is the weights'.
        let seconds = shares(16, 50_000, second);
        assert!(
            seconds[0] < seconds[1] && seconds[1] < seconds[2] && seconds[2] < seconds[3],
            "{hash}: {seconds:?}"
        );
    }
}

#[test]
fn balance_is_what_the_design_counts_on() {
    let ring = equal_ring(240);
    let largest = shares(240, 500_000, |key| ring.successor(key))
        .into_iter()
        .fold(0.0, f64::max);
    assert!(
        largest * 240.0 < 1.3,
        "largest share {:.3} of the mean",
        largest * 240.0
    );
}

#[test]
fn heirs_of_a_dead_worker_are_spread_evenly() {
    for hash in HashAlgorithm::ALL {
        let settings = RingSettings {
            hash,
            ..RingSettings::default()
        };
        let ring = Ring::build(&settings, members(&[1_000; 16])).unwrap();
        // How many keys of each dead home go to each heir.
        let mut inherited = [[0.0; 16]; 16];
        for key in numbers(1).take(200_000) {
            let order = ring.order(key).unwrap();
            let heir = order.first(|index| index != order.home()).unwrap();
            inherited[order.home()][heir] += 1.0;
        }
        for (dead, heirs) in inherited.iter().enumerate() {
            let all: f64 = heirs.iter().sum();
            for (heir, keys) in heirs.iter().enumerate().filter(|(heir, _)| *heir != dead) {
                let of_even = keys / all * 15.0;
                assert!(
                    (0.8..1.2).contains(&of_even),
                    "{hash}: {heir} takes {of_even:.2} of its part of {dead}"
                );
            }
        }
    }
}

#[test]
fn large_rings_put_near_successors_first() {
    let ring = equal_ring(1_200);
    for key in numbers(3).take(50) {
        let order = ring.order(key).unwrap();
        let listed = order.to_vec();
        let mut sorted = listed.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1_200).collect::<Vec<_>>());
        for without in [0, 1, 5, 16, 17, 40] {
            let rest = &listed[without..];
            assert_eq!(
                order.first(|index| rest.contains(&index)),
                Some(rest[0]),
                "without the first {without}"
            );
        }
    }
    // The first places are the near ones: a removal elsewhere does not touch them.
    let smaller = ring_of(&ring.members()[..1_100]);
    let unchanged = numbers(4).take(200).filter(|&key| {
        let before = order_ids(&ring, key);
        let kept = before[..17].iter().all(|id| smaller.index_of(id).is_some());
        kept && before[..17] == order_ids(&smaller, key)[..17]
    });
    assert!(unchanged.count() > 20);
}

#[test]
fn digest_tells_rings_apart() {
    let digest = |settings: RingSettings, weights: &[u32]| {
        Ring::build(&settings, members(weights)).unwrap().digest()
    };
    let settings = RingSettings::default();
    let rings = [
        digest(settings, &[]),
        digest(settings, &[1_000]),
        digest(settings, &[1_001]),
        digest(settings, &[1_000, 1_000]),
        digest(
            RingSettings {
                seed: 1,
                ..settings
            },
            &[1_000],
        ),
        digest(
            RingSettings {
                hash: HashAlgorithm::City,
                ..settings
            },
            &[1_000],
        ),
        digest(
            RingSettings {
                virtual_nodes: 255.try_into().unwrap(),
                ..settings
            },
            &[1_000],
        ),
    ];
    for (index, digest) in rings.iter().enumerate() {
        assert!(!rings[..index].contains(digest), "ring {index}");
    }
}

#[test]
fn total_digest_covers_all_and_ignores_order() {
    let [a, b] = [equal_ring(2).digest(), equal_ring(3).digest()];
    let total = total_digest(&[("x", a), ("y", b)], &["u1", "u2"], b"settings");
    assert_eq!(
        total,
        total_digest(&[("y", b), ("x", a)], &["u2", "u1"], b"settings")
    );
    let others = [
        total_digest(&[("x", b), ("y", a)], &["u1", "u2"], b"settings"),
        total_digest(&[("x", a)], &["u1", "u2"], b"settings"),
        total_digest(&[("x", a), ("y", b)], &["u1", "u3"], b"settings"),
        total_digest(&[("x", a), ("y", b)], &["u1u2"], b"settings"),
        total_digest(&[("x", a), ("y", b)], &["u1", "u2"], b"setting"),
    ];
    assert!(!others.contains(&total));
}

#[test]
fn impossible_rings_are_refused() {
    let settings = RingSettings::default();
    let twice = [members(&[1_000, 1_000]), members(&[2_000])].concat();
    assert_eq!(
        Ring::build(&settings, twice).err(),
        Some(RingError::DuplicateId("w000".to_owned()))
    );
    let heavy = Ring::build(&settings, members(&[100_000; 200])).err();
    assert_eq!(
        heavy,
        Some(RingError::TooManyPoints {
            points: 200 * 25_600
        })
    );
    assert!(Ring::build(&settings, []).unwrap().order(1).is_none());
}

/// Whatever came and went, taking over the points of those that stay changes nothing.
#[test]
fn a_rebuilt_ring_is_the_built_one() {
    let settings = RingSettings::default();
    let member = |number: u64, weight: u32| Member {
        id: format!("w{number}"),
        weight: Weight::from_thousandths(weight).expect("in range"),
    };
    let mut members: Vec<Member> = Vec::new();
    let mut ring = Ring::build(&settings, members.clone()).expect("empty");
    let mut random = 7_u64;
    for step in 0..60 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let at = (random >> 33) as usize % (members.len() + 1);
        match random >> 60 {
            0..=9 => members.insert(at, member(random >> 40, 1_000)),
            10..=11 => members.extend((0..5).map(|n| member((random >> 12) + n, 2_000))),
            12..=13 if at < members.len() => {
                members[at].weight = Weight::from_thousandths(500).expect("in range")
            }
            _ if at < members.len() => drop(members.remove(at)),
            _ => {}
        }
        let built = Ring::build(&settings, members.clone()).expect("distinct ids");
        ring = ring.rebuild(members.clone()).expect("distinct ids");
        assert_eq!(format!("{ring:?}"), format!("{built:?}"), "step {step}");
    }
    assert!(ring.len() > 10, "{} members", ring.len());
}
