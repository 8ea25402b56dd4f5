//! Laws of what replicas hear: late, in order, and in the end as it is; and of what they learn.

use super::super::tests::{SMALL, scenario, workload};
use super::super::{CacheSize, Contender, run};
use super::*;

const BLOCK: u32 = 512;

fn stored(blocks: &[u64]) -> Vec<Change> {
    let of = |&block| Change::Stored {
        owner: 0,
        parent: None,
        block,
    };
    blocks.iter().map(of).collect()
}

fn heard(extent: Extent, delay_us: u64, scenario: &Scenario) -> Heard {
    Heard::new(KvEvents { delay_us, extent }, scenario, BLOCK)
}

/// A prompt of these blocks, and 10 tokens more.
fn request(blocks: &[u64], answer: &[u64]) -> Request {
    let mut request = workload().requests[0].clone();
    request.in_tokens = blocks.len() as u32 * BLOCK + 10;
    request.blocks = blocks.to_vec();
    request.answer = answer.to_vec();
    let mut key = grapevine_placement::KeyBuilder::new(&Default::default(), "model", b"");
    key.text(vec![b'x'; request.in_tokens as usize * 4]);
    request.key = key.finish();
    request
}

/// What the first worker says to a replica, as (held, until).
fn told(
    heard: &mut Heard,
    now_us: u64,
    replica: usize,
    request: &Request,
    worker: usize,
) -> Option<(u32, u32)> {
    let mut candidates = vec![Candidate::default(); 4];
    heard.tell(now_us, replica, 0..4, request, &mut candidates);
    let told = candidates[worker].told;
    told.map(|told| (told.held_tokens, told.until_tokens))
}

#[test]
fn a_change_is_known_after_its_delay_and_not_before() {
    let mut heard = heard(Extent::Whole, 10_000, &scenario());
    let asked = request(&[1, 2, 3], &[]);
    let all = asked.in_tokens;
    heard.publish(0, 0, stored(&[1, 2, 3]));
    heard.publish(100_000, 0, vec![Change::Removed(2)]);
    for replica in 0..3 {
        let mut at = |now_us| told(&mut heard, now_us, replica, &asked, 0);
        assert_eq!(at(4_999), Some((0, all)));
        assert_eq!(at(15_000), Some((3 * BLOCK, all)));
        assert_eq!(at(104_999), Some((3 * BLOCK, all)));
        // A block behind a hole is of no use.
        assert_eq!(at(115_000), Some((BLOCK, all)));
    }
}

#[test]
fn replicas_hear_at_times_of_their_own_and_in_order() {
    let mut heard = heard(Extent::Whole, 10_000, &scenario());
    for number in 0..200_u64 {
        // Too late or too soon a removal would find nothing to remove.
        heard.publish(number * 1_000, 1, stored(&[7]));
        heard.publish(number * 1_000, 1, vec![Change::Removed(7)]);
    }
    let asked = request(&[7], &[]);
    let mut differ = 0;
    for now_us in (0..220_000).step_by(500) {
        let held = |heard: &mut Heard, replica| told(heard, now_us, replica, &asked, 1);
        let (one, other) = (held(&mut heard, 0), held(&mut heard, 1));
        differ += usize::from(one != other);
    }
    assert!(differ > 0, "each has a delay of its own");
    assert_eq!(
        told(&mut heard, 220_000, 0, &asked, 1).map(|told| told.0),
        Some(0)
    );
}

#[test]
fn of_unheard_workers_one_replica_knows_nothing() {
    let scenario = Scenario {
        unheard_workers: 1,
        ..scenario()
    };
    let mut heard = heard(Extent::Whole, 0, &scenario);
    let asked = request(&[1], &[]);
    for worker in 0..2 {
        heard.publish(0, worker, stored(&[1]));
    }
    let known = Some((BLOCK, asked.in_tokens));
    assert_eq!(told(&mut heard, 1, 0, &asked, 0), None);
    assert_eq!(told(&mut heard, 1, 0, &asked, 1), known);
    assert_eq!(told(&mut heard, 1, 1, &asked, 0), known);
}

#[test]
fn a_prompt_is_known_as_far_as_a_whole_one_goes_and_its_answer() {
    let mut heard = heard(Extent::Learned, 1_000, &scenario());
    heard.publish(0, 0, stored(&[1, 2, 3, 4]));
    let (first, second) = (request(&[1, 2], &[3]), request(&[1, 2, 3, 4], &[]));
    assert_eq!(
        told(&mut heard, 5_000, 0, &second, 0),
        None,
        "nothing is learned yet"
    );
    heard.computed(5_000, 0, &first);
    assert_eq!(
        told(&mut heard, 5_999, 0, &second, 0),
        None,
        "its events are on their way"
    );
    let known = |blocks: u32| Some((blocks * BLOCK, blocks * BLOCK));
    assert_eq!(told(&mut heard, 6_000, 0, &second, 0), known(2));
    heard.answered(7_000, 0, &first);
    assert_eq!(told(&mut heard, 8_000, 0, &second, 0), known(3));
    assert_eq!(
        told(&mut heard, 8_000, 1, &second, 0),
        None,
        "another replica has not seen it"
    );
    // What comes behind a block that a worker does not hold is not there, either.
    let all = second.in_tokens;
    assert_eq!(told(&mut heard, 8_000, 0, &second, 1), Some((0, all)));
    heard.computed(8_000, 0, &second);
    assert_eq!(
        told(&mut heard, 9_000, 0, &second, 0),
        Some((4 * BLOCK, all))
    );
}

#[test]
fn inside_of_a_prompt_a_place_is_known_where_another_one_left_it() {
    let mut heard = heard(Extent::Learned, 0, &scenario());
    heard.publish(0, 0, stored(&[1, 2, 3, 4]));
    let third = request(&[1, 2, 30, 40], &[]);
    heard.computed(0, 0, &request(&[1, 2, 3, 4], &[]));
    assert_eq!(
        told(&mut heard, 1, 0, &third, 0),
        None,
        "nobody has parted here"
    );
    heard.computed(1, 0, &request(&[1, 2, 31, 41], &[]));
    assert_eq!(
        told(&mut heard, 2, 0, &third, 0),
        Some((2 * BLOCK, 2 * BLOCK))
    );
    // Not one block further back.
    assert_eq!(told(&mut heard, 2, 0, &request(&[1, 32], &[]), 0), None);
}

#[test]
fn what_is_shared_is_known_to_all_a_little_later() {
    let mut heard = heard(Extent::Shared, 1_000, &scenario());
    let (first, second) = (request(&[1, 2], &[]), request(&[1, 2, 3], &[]));
    heard.computed(0, 0, &first);
    let mut is_known = |now_us, replica| told(&mut heard, now_us, replica, &second, 0).is_some();
    assert!(is_known(1_000, 0) && !is_known(1_000, 1));
    assert!(is_known(1_000 + TELL_US, 1) && is_known(1_000 + TELL_US, 2));
}

#[test]
fn contenders_are_named_by_what_they_hear() {
    let of = |name| Contender::named(name).and_then(|contender| contender.kv_events);
    let events = |extent, delay_us| Some(KvEvents { delay_us, extent });
    assert_eq!(of("prefix+events@5ms"), events(Extent::Whole, 5_000));
    assert_eq!(of("no heat+learned@1s"), events(Extent::Learned, 1_000_000));
    assert_eq!(of("prefix+shared@0ms"), events(Extent::Shared, 0));
    for wrong in [
        "prefix+events",
        "prefix+news@5ms",
        "oracle+events@5ms",
        "prefix+events@5",
    ] {
        assert!(Contender::named(wrong).is_none(), "{wrong}");
    }
}

/// Small caches lose what evidence still promises: answers correct the prefix index. Events say it before.
#[test]
fn with_events_less_is_expected_that_is_gone() {
    let scenario = Scenario {
        cache: CacheSize {
            device_tokens: 40_000,
            ..SMALL
        },
        ..scenario()
    };
    let workload = workload();
    let of = |name| {
        let mut contender = Contender::named(name).expect("known");
        // Rows come every 50 ms, and a session's after two seconds.
        contender.prefix_index.told_after = Duration::ZERO;
        run(&workload, &contender, &scenario, false).expect("to its end")
    };
    let plain = of("prefix");
    assert!(plain.corrections > 0.0, "{plain:?}");
    for name in ["prefix+events@1ms", "prefix+shared@1ms"] {
        let events = of(name);
        assert!(
            events.corrections < plain.corrections / 2.0,
            "{name}: {events:?} {plain:?}"
        );
        assert!(
            events.hit_rate > plain.hit_rate - 0.01,
            "{name}: {events:?} {plain:?}"
        );
    }
}
