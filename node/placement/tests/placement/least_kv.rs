//! Policy `least_kv`: tables, and laws on random loads and caches.

use grapevine_placement::*;
use proptest::prelude::*;

use crate::common::{busy, equal_ring, members, prompt, ring_of, standing};
use crate::scene::IDLE;

fn settings() -> PolicySettings {
    PolicySettings {
        policy: Policy::LeastKv,
        ..PolicySettings::default()
    }
}

/// A key of 1,000 tokens, and the order of four equal workers for it.
fn scene() -> (Ring, Key, Vec<usize>) {
    let (ring, key) = (equal_ring(4), prompt("q".repeat(4_000).as_bytes()));
    let order = ring.order(key.marks()[0].hash).unwrap().to_vec();
    (ring, key, order)
}

/// The place in the order of the worker that is chosen, candidates given by their places.
fn place(by_place: [Candidate; 4], tried: &[usize]) -> Result<(usize, Reason), NoWorker> {
    let (ring, key, order) = scene();
    let mut candidates = by_place;
    for (place, candidate) in by_place.into_iter().enumerate() {
        candidates[order[place]] = candidate;
    }
    let tried: Vec<_> = tried.iter().map(|&place| order[place]).collect();
    let chosen = decide(&settings(), &ring, &key, &candidates, &tried, 0)?;
    let place = order.iter().position(|&index| index == chosen.worker);
    Ok((place.unwrap(), chosen.reason))
}

/// Requests past their prefill, with so much context in all.
fn holding(requests: f64, context_tokens: f64) -> Candidate {
    let mut candidate = busy(requests);
    candidate.load.context_tokens = context_tokens;
    candidate
}

/// An idle worker that knows so much of the prompt.
fn knows(held_tokens: u32) -> Candidate {
    Candidate {
        held_tokens,
        ..IDLE
    }
}

fn with_cache(kv_tokens: u64, candidate: Candidate) -> Candidate {
    Candidate {
        kv_tokens: Some(kv_tokens),
        ..candidate
    }
}

#[test]
fn decode_goes_by_context_in_flight_room_and_what_is_held() {
    // The request adds 1,000 tokens and 512 for itself: differences of up to 1,512 are none.
    let gone = standing(Standing::Unhealthy);
    let full = standing(Standing::Full);
    let table = [
        ("all idle", [IDLE; 4], (0, Reason::Home)),
        (
            "what this request itself adds is no difference",
            [holding(1.0, 1_000.0), IDLE, IDLE, IDLE],
            (0, Reason::Home),
        ),
        (
            "more is one",
            [holding(1.0, 1_001.0), IDLE, IDLE, IDLE],
            (1, Reason::SpillPrice),
        ),
        (
            "requests cost more than their tokens",
            [holding(3.0, 0.0), IDLE, IDLE, IDLE],
            (1, Reason::SpillPrice),
        ),
        (
            "tokens on their way count as well",
            [
                Candidate {
                    load: Load {
                        prefill_tokens: 2_000.0,
                        ..Load::default()
                    },
                    ..IDLE
                },
                IDLE,
                IDLE,
                IDLE,
            ],
            (1, Reason::SpillPrice),
        ),
        (
            "while nothing is loaded, decode where most is held",
            [IDLE, IDLE, knows(1_000), IDLE],
            (2, Reason::Evidence),
        ),
        (
            "what is transferred at once is no reason to leave",
            [IDLE, IDLE, knows(512), IDLE],
            (0, Reason::Home),
        ),
        (
            "what is held pays for load of its size",
            [
                IDLE,
                Candidate {
                    held_tokens: 1_000,
                    ..holding(1.0, 2_000.0)
                },
                IDLE,
                IDLE,
            ],
            (1, Reason::Evidence),
        ),
        (
            "and not for more",
            [
                IDLE,
                Candidate {
                    held_tokens: 1_000,
                    ..holding(1.0, 2_001.0)
                },
                IDLE,
                IDLE,
            ],
            (0, Reason::Home),
        ),
        ("health", [gone, IDLE, IDLE, IDLE], (1, Reason::Failover)),
        ("a limit", [full, IDLE, IDLE, IDLE], (1, Reason::SpillFull)),
    ];
    for (what, by_place, expected) in table {
        assert_eq!(place(by_place, &[]), Ok(expected), "{what}");
    }
    assert_eq!(place([IDLE; 4], &[0, 1]), Ok((2, Reason::Failover)));
    assert_eq!(place([full; 4], &[]), Err(NoWorker::Full));
}

#[test]
fn a_worker_without_room_is_passed_over_while_another_has_room() {
    // 1,000 tokens fit beside 8,000 into nine tenths of 10,000.
    let cramped = with_cache(10_000, holding(1.0, 8_001.0));
    let fits = with_cache(10_000, holding(1.0, 8_000.0));
    let unknown = holding(1.0, 8_000.0);
    let table = [
        ("none needed", [fits; 4], (0, Reason::Home)),
        (
            "no room",
            [cramped, fits, fits, fits],
            (1, Reason::SpillRoom),
        ),
        (
            "unknown sizes have room",
            [cramped, unknown, unknown, unknown],
            (1, Reason::SpillRoom),
        ),
        ("nobody has any", [cramped; 4], (0, Reason::Home)),
    ];
    for (what, by_place, expected) in table {
        assert_eq!(place(by_place, &[]), Ok(expected), "{what}");
    }
    let (ring, key, order) = scene();
    let mut candidates = [fits; 4];
    candidates[order[0]] = cramped;
    let explained = explain(&settings(), &ring, &key, &candidates, &[], 0);
    assert_eq!(explained.rows[0].verdict, Verdict::NoRoom);
}

#[test]
fn the_bound_holds_where_tolerance_would_forgive() {
    // 4,000 tokens and 512 forgive eight requests; the bound is four above the mean of (6 + n + 1) / 4.
    let (ring, key) = (equal_ring(4), prompt("q".repeat(16_000).as_bytes()));
    let home = ring.order(key.marks()[0].hash).unwrap().home();
    let at = |requests: f64| {
        let mut candidates = [busy(2.0); 4];
        candidates[home] = busy(requests);
        let chosen = decide(&settings(), &ring, &key, &candidates, &[], 0).unwrap();
        (chosen.worker == home, chosen.reason)
    };
    assert_eq!(at(6.0), (true, Reason::Home));
    assert_eq!(at(7.0), (false, Reason::SpillBound));
}

#[test]
fn weight_or_cache_decides_whichever_is_scarcer() {
    // Weights 1 and 3: means of 2, so shares of 1/2 and 3/2.
    let ring = ring_of(&members(&[1_000, 3_000]));
    let key = prompt("q".repeat(400).as_bytes());
    let at = |candidates: [Candidate; 2]| {
        decide(&settings(), &ring, &key, &candidates, &[], 0)
            .unwrap()
            .worker
    };
    let equal = [holding(4.0, 20_000.0); 2];
    assert_eq!(at(equal), 1, "by weight");
    let small = [with_cache(190_000, equal[0]), with_cache(25_000, equal[1])];
    assert_eq!(at(small), 0, "by cache");
}

#[test]
fn the_index_tells_how_large_a_cache_is() {
    let mut index = PrefixIndex::new(PrefixIndexSettings::default());
    let slots = [index.slot("a", 1), index.slot("b", 1)];
    index.set_capacity(slots[0], 262_144);
    let mut candidates = [IDLE; 2];
    index.fill_caches(&slots.into_iter().collect(), &mut candidates);
    let sizes = candidates.map(|candidate| candidate.kv_tokens);
    assert_eq!(sizes, [Some(262_144), None], "a guess is not a size");
}

fn some_candidate() -> impl Strategy<Value = Candidate> {
    let kv_tokens = prop::option::of(10_000_u64..1_000_000);
    (0.0..60.0, 0.0..3e5, 0_u32..1_200, kv_tokens).prop_map(
        |(requests, context_tokens, held_tokens, kv_tokens)| Candidate {
            held_tokens,
            kv_tokens,
            ..holding(requests, context_tokens)
        },
    )
}

proptest! {
    #[test]
    fn decode_is_near_the_least_and_holds_most_of_those(
        candidates in prop::collection::vec(some_candidate(), 1..12),
    ) {
        let (ring, key) = (equal_ring(candidates.len()), prompt("q".repeat(4_000).as_bytes()));
        let explained = explain(&settings(), &ring, &key, &candidates, &[], 0);
        let cost = |row: &Row| row.cost.unwrap();
        let chosen = explained.rows.iter().find(|row| row.verdict == Verdict::Chosen).unwrap();
        let open: Vec<_> = explained.rows.iter().filter(|row| row.verdict == Verdict::Eligible).collect();
        let near = open.iter().map(|row| cost(row)).fold(cost(chosen), f64::min) + 1_512.0;
        prop_assert!(cost(chosen) <= near);
        for row in open {
            if cost(row) <= near {
                prop_assert!(row.expected_tokens <= chosen.expected_tokens + 512, "{row:?}");
            }
        }
        // Room is asked for as long as somebody has it.
        let has_room = |index: usize| {
            let Candidate { load, kv_tokens, .. } = candidates[index];
            kv_tokens.is_none_or(|tokens| load.context_tokens + 1_000.0 <= 0.9 * tokens as f64)
        };
        let passed = explained.rows.iter().filter(|row| row.verdict == Verdict::NoRoom);
        for row in passed {
            prop_assert!(!has_room(row.index) && has_room(chosen.index));
        }
    }

    #[test]
    fn equal_decode_workers_keep_a_conversation(
        held in 513_u32..1_000, holder in 0_usize..8, noise in prop::collection::vec(0.0..900.0, 8),
    ) {
        // Load that is less than the request itself adds moves it nowhere.
        let (ring, key) = (equal_ring(8), prompt("q".repeat(4_000).as_bytes()));
        let mut candidates: Vec<_> = noise.into_iter().map(|tokens| holding(1.0, tokens)).collect();
        candidates[holder].held_tokens = held;
        let chosen = decide(&settings(), &ring, &key, &candidates, &[], 0).unwrap();
        prop_assert_eq!(chosen.worker, holder);
    }
}
