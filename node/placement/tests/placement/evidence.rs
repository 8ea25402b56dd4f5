//! Laws of the sketch.

use std::time::Duration;

use grapevine_placement::key::added_tokens;
use grapevine_placement::{Candidate, Key, Sketch, SketchSettings, Slot};
use proptest::prelude::*;

use crate::common::{chat, idle, numbers};

const NOW: Duration = Duration::from_secs(100);

fn conversation(number: u64, turns: usize) -> Key {
    let texts: Vec<String> = (0..turns)
        .map(|turn| format!("{number} {turn} {}", "t".repeat(3_000)))
        .collect();
    let messages: Vec<_> = texts.iter().map(|text| ("user", text.as_str())).collect();
    chat(&messages)
}

fn sketch(settings: SketchSettings) -> (Sketch, Vec<Slot>) {
    let mut sketch = Sketch::new(settings);
    let slots = ["a", "b", "c"]
        .map(|worker| sketch.slot(worker, 1))
        .to_vec();
    (sketch, slots)
}

fn held(sketch: &Sketch, slots: &[Slot], key: &Key, now: Duration) -> Vec<u32> {
    let mut candidates: Vec<Candidate> = idle(slots.len());
    sketch.fill(key, slots, now, &mut candidates);
    candidates
        .iter()
        .map(|candidate| candidate.held_tokens)
        .collect()
}

#[test]
fn the_next_turn_finds_the_last_one() {
    let (mut sketch, slots) = sketch(SketchSettings::default());
    let first = conversation(1, 2);
    let told = sketch.record(slots[1], first.marks(), NOW).news;
    assert_eq!(
        told,
        first
            .marks()
            .iter()
            .map(|mark| mark.hash)
            .collect::<Vec<_>>()
    );
    let next = conversation(1, 3);
    assert_eq!(
        held(&sketch, &slots, &next, NOW),
        [0, first.prompt_tokens(), 0]
    );
    let news = sketch.record(slots[1], next.marks(), NOW).news;
    assert_eq!(
        news.len(),
        next.marks().len() - first.marks().len(),
        "only the new marks"
    );
    assert_eq!(held(&sketch, &slots, &conversation(2, 3), NOW), [0, 0, 0]);
}

#[test]
fn deeper_marks_stand_for_their_prefix() {
    let (mut sketch, slots) = sketch(SketchSettings::default());
    let key = conversation(1, 4);
    let deepest = key.marks().last().unwrap();
    sketch.learn("c", 1, &[deepest.hash], NOW);
    assert_eq!(held(&sketch, &slots, &key, NOW), [0, 0, deepest.tokens]);
}

#[test]
fn evidence_of_another_epoch_is_dropped() {
    let (mut sketch, slots) = sketch(SketchSettings::default());
    let key = conversation(1, 2);
    let marks: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
    sketch.learn("a", 2, &marks, NOW);
    assert_eq!(
        held(&sketch, &slots, &key, NOW)[0],
        key.prompt_tokens(),
        "the newer epoch is believed"
    );
    sketch.slot("a", 3);
    assert_eq!(
        held(&sketch, &slots, &key, NOW)[0],
        0,
        "a restart empties the cache"
    );
    sketch.learn("a", 2, &marks, NOW);
    sketch.learn("nobody", 1, &marks, NOW);
    assert_eq!(
        (
            held(&sketch, &slots, &key, NOW)[0],
            sketch.counters().refused
        ),
        (0, 2)
    );
    sketch.record(slots[1], key.marks(), NOW);
    sketch.forget("b");
    assert!(sketch.is_empty());
}

#[test]
fn old_evidence_is_not_believed() {
    let (mut sketch, slots) = sketch(SketchSettings::default());
    let key = conversation(1, 2);
    let age_max = SketchSettings::default().age_max;
    sketch.record(slots[0], key.marks(), NOW);
    assert_ne!(held(&sketch, &slots, &key, NOW + age_max)[0], 0);
    let later = NOW + age_max + Duration::from_secs(1);
    assert_eq!(held(&sketch, &slots, &key, later)[0], 0);
    sketch.expire(later);
    assert!(sketch.is_empty());
}

#[test]
fn marks_in_use_are_told_again() {
    let (mut sketch, slots) = sketch(SketchSettings::default());
    let key = conversation(1, 2);
    sketch.record(slots[0], key.marks(), NOW);
    assert!(sketch.record(slots[0], key.marks(), NOW).news.is_empty());
    let later = NOW + SketchSettings::default().age_max / 2;
    assert_eq!(
        sketch.record(slots[0], key.marks(), later).news.len(),
        key.marks().len()
    );
}

#[test]
fn corrections_forget_as_far_everywhere() {
    let (mut sketch, slots) = sketch(SketchSettings::default());
    let (old, key) = (conversation(1, 3), conversation(2, 3));
    sketch.record(slots[0], old.marks(), NOW);
    sketch.record(slots[0], key.marks(), NOW);
    let young = conversation(3, 3);
    sketch.record(slots[0], young.marks(), NOW);
    let again = sketch.record(slots[0], key.marks(), NOW);
    let expected = key.prompt_tokens();
    assert!(
        sketch
            .correct(slots[0], &again, expected, expected - 100)
            .is_empty(),
        "near enough"
    );
    let gone = sketch.correct(slots[0], &again, expected, 0);
    let tokens = |key: &Key| held(&sketch, &slots, key, NOW)[0];
    // The chain was computed anew; what was used before it must be gone, too; what was used after it may be there.
    assert_eq!(
        [tokens(&old), tokens(&key), tokens(&young)],
        [0, expected, young.prompt_tokens()]
    );
    // A part of them tells another replica, where the same was used in the same order, how far to forget.
    assert!(gone.len() < old.marks().len());
    let (mut other, others) = self::sketch(SketchSettings::default());
    for key in [&old, &key, &young] {
        let marks: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
        other.learn("a", 1, &marks, NOW);
    }
    other.unlearn("a", 1, &gone);
    let left = [&old, &key, &young].map(|key| held(&other, &others, key, NOW)[0]);
    assert_eq!(left, [0, expected, young.prompt_tokens()]);
    sketch.unlearn(
        "a",
        1,
        &young
            .marks()
            .iter()
            .map(|mark| mark.hash)
            .collect::<Vec<_>>(),
    );
    assert_eq!(held(&sketch, &slots, &young, NOW)[0], 0);
}

#[test]
fn snapshots_restore_what_is_known_and_its_order() {
    let (mut full, slots) = sketch(SketchSettings::default());
    for number in 0..40 {
        full.record(slots[0], conversation(number, 8).marks(), NOW);
    }
    let (epoch, records) = full.snapshot("a").unwrap();
    let (mut copy, copied) = sketch(SketchSettings::default());
    records
        .iter()
        .for_each(|marks| copy.learn("a", epoch, marks, NOW));
    assert_eq!(copy.len(), full.len());
    // With a smaller cache the copy forgets the same ones first.
    for (sketch, slot) in [(&mut full, slots[0]), (&mut copy, copied[0])] {
        sketch.set_capacity(slot, 40_000);
        sketch.record(slot, conversation(99, 1).marks(), NOW);
    }
    for number in 0..40 {
        let key = conversation(number, 8);
        assert_eq!(
            held(&full, &slots, &key, NOW),
            held(&copy, &copied, &key, NOW),
            "{number}"
        );
    }
}

#[test]
fn memory_is_bounded() {
    let settings = SketchSettings {
        entries_max: 500,
        cache_tokens: u64::MAX,
        ..SketchSettings::default()
    };
    let (mut sketch, slots) = sketch(settings);
    for (number, slot) in numbers(1).take(300).zip(slots.iter().cycle()) {
        sketch.record(*slot, conversation(number, 3).marks(), NOW);
        assert!(sketch.len() <= 500);
    }
    assert!(sketch.counters().crowded_out > 0);
    sketch.set_capacity(slots[0], 5_000);
    sketch.record(slots[0], conversation(0, 1).marks(), NOW);
    let mut candidates = idle(3);
    sketch.fill(&conversation(0, 1), &slots, NOW, &mut candidates);
    assert!(candidates[0].known_tokens <= 5_000 && sketch.counters().evicted > 0);
}

/// The sketch without its lists: (worker, mark), the least recently used first.
#[derive(Default)]
struct Plain(Vec<(usize, u64)>);

impl Plain {
    fn touch(&mut self, worker: usize, marks: &[u64], capacity: u64) {
        for &mark in marks.iter().rev() {
            self.0.retain(|&entry| entry != (worker, mark));
            self.0.push((worker, mark));
        }
        while self.tokens(worker) > capacity {
            let oldest = self
                .0
                .iter()
                .position(|&(other, _)| other == worker)
                .unwrap();
            self.0.remove(oldest);
        }
    }

    fn tokens(&self, worker: usize) -> u64 {
        let own = self.0.iter().filter(|&&(other, _)| other == worker);
        own.map(|&(_, mark)| u64::from(added_tokens(mark))).sum()
    }
}

proptest! {
    // A case hashes up to a megabyte of text.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn sketch_follows_a_plain_model(
        steps in prop::collection::vec((0_usize..3, 0_u64..6, 1_usize..5, any::<bool>()), 1..40)
    ) {
        let capacity = 6_000;
        let (mut sketch, slots) = sketch(SketchSettings { cache_tokens: capacity, ..SketchSettings::default() });
        let mut plain = Plain::default();
        for (worker, number, turns, own) in steps {
            let key = conversation(number, turns);
            let marks: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
            if own {
                sketch.record(slots[worker], key.marks(), NOW);
            } else {
                sketch.learn(["a", "b", "c"][worker], 1, &marks, NOW);
            }
            plain.touch(worker, &marks, capacity);
            prop_assert_eq!(sketch.len(), plain.0.len());
            let deepest = |worker| {
                let mut known = key.marks().iter().filter(|mark| plain.0.contains(&(worker, mark.hash)));
                known.next_back().map_or(0, |mark| mark.tokens)
            };
            prop_assert_eq!(held(&sketch, &slots, &key, NOW), [deepest(0), deepest(1), deepest(2)]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whoever places, and whoever's answers correct: once all was told, all replicas expect the same.
    #[test]
    fn sketches_stay_equal(
        steps in prop::collection::vec((0_usize..2, 0_usize..3, 0_u64..5, 1_usize..6, prop::bool::weighted(0.1)), 1..60)
    ) {
        let settings = SketchSettings { cache_tokens: 6_000, ..SketchSettings::default() };
        let (one, slots) = sketch(settings);
        let mut both = [one.clone(), one];
        for (second, (who, worker, number, turns, is_wrong)) in (1..).zip(steps) {
            let (key, now) = (conversation(number, turns), NOW + Duration::from_secs(second));
            let id = ["a", "b", "c"][worker];
            let recorded = both[who].record(slots[worker], key.marks(), now);
            both[1 - who].learn(id, 1, &recorded.told(), now);
            if is_wrong {
                let gone = both[who].correct(slots[worker], &recorded, key.prompt_tokens(), 0);
                both[1 - who].unlearn(id, 1, &gone);
            }
            prop_assert_eq!(both[0].len(), both[1].len());
            for number in 0..5 {
                let key = conversation(number, 5);
                let [here, there] = both.each_ref().map(|sketch| held(sketch, &slots, &key, now));
                prop_assert_eq!(here, there, "conversation {}", number);
            }
        }
    }
}

#[test]
fn what_is_in_use_is_renewed_at_the_others() {
    let (mut here, slots) = sketch(SketchSettings::default());
    let (mut there, others) = sketch(SketchSettings::default());
    for sketch in [&mut here, &mut there] {
        sketch.set_capacity(slots[0], 6_000);
    }
    let shared = conversation(0, 2);
    let tell = |here: &mut Sketch, there: &mut Sketch, key: &Key, second: u64| {
        let now = NOW + Duration::from_secs(second);
        let told = here.record(slots[0], key.marks(), now).told();
        there.learn("a", 1, &told, now);
        told.len()
    };
    let all = tell(&mut here, &mut there, &shared, 0);
    assert_eq!(
        tell(&mut here, &mut there, &shared, 0),
        0,
        "within the second"
    );
    for number in 1..6 {
        let _ = tell(&mut here, &mut there, &conversation(number, 2), 2 * number);
        assert_eq!(
            tell(&mut here, &mut there, &shared, 2 * number + 1),
            1,
            "of {all}"
        );
    }
    let later = NOW + Duration::from_secs(20);
    assert_eq!(
        held(&there, &others, &shared, later),
        [shared.prompt_tokens(), 0, 0]
    );
}
