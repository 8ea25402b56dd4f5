//! Laws of the prefix index.

use std::time::Duration;

use grapevine_placement::key::added_tokens;
use grapevine_placement::{
    Candidate, Key, PolicySettings, PrefixIndex, PrefixIndexSettings, Slot, Told, decide,
};
use proptest::prelude::*;

use crate::common::{chat, equal_ring, idle, numbers};

pub(crate) const NOW: Duration = Duration::from_secs(100);

pub(crate) fn conversation(number: u64, turns: usize) -> Key {
    let texts: Vec<String> = (0..turns)
        .map(|turn| format!("{number} {turn} {}", "t".repeat(3_000)))
        .collect();
    let messages: Vec<_> = texts.iter().map(|text| ("user", text.as_str())).collect();
    chat(&messages)
}

pub(crate) fn prefix_index(settings: PrefixIndexSettings) -> (PrefixIndex, Vec<Slot>) {
    let mut prefix_index = PrefixIndex::new(settings);
    let slots = ["a", "b", "c"]
        .map(|worker| prefix_index.slot(worker, 1))
        .to_vec();
    (prefix_index, slots)
}

pub(crate) fn held(
    prefix_index: &PrefixIndex,
    slots: &[Slot],
    key: &Key,
    now: Duration,
) -> Vec<u32> {
    let mut candidates: Vec<Candidate> = idle(slots.len());
    let slots = slots.iter().copied().collect();
    prefix_index.fill(key, &slots, now, &mut candidates);
    candidates
        .iter()
        .map(|candidate| candidate.held_tokens)
        .collect()
}

#[test]
fn how_often_a_prompt_comes_is_told_in_placements() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let often = conversation(0, 2);
    let ago = |prefix_index: &PrefixIndex| {
        let mut candidates: Vec<Candidate> = idle(slots.len());
        let slots = slots.iter().copied().collect();
        prefix_index.fill(&often, &slots, NOW, &mut candidates);
        candidates
            .iter()
            .map(|one| one.whole_ago)
            .collect::<Vec<_>>()
    };
    prefix_index.record(slots[1], often.marks(), NOW);
    assert_eq!(ago(&prefix_index), [None, Some(0), None]);
    for other in 1..=5 {
        prefix_index.record(slots[2], conversation(other, 2).marks(), NOW);
    }
    let marks: Vec<u64> = conversation(6, 2)
        .marks()
        .iter()
        .map(|mark| mark.hash)
        .collect();
    prefix_index.learn("a", 1, &marks, NOW);
    assert_eq!(ago(&prefix_index), [None, Some(6), None]);
    prefix_index.record(slots[1], often.marks(), NOW);
    assert_eq!(ago(&prefix_index), [None, Some(0), None]);
    // A part of it is not the prompt.
    let (_, but_last) = often.marks().split_last().expect("it has marks");
    prefix_index.record(slots[0], but_last, NOW);
    assert_eq!(ago(&prefix_index), [None, Some(1), None]);
}

/// A worker says that it holds a prompt, and nobody knows of a request that sent it: one may have, an hour ago.
#[test]
fn what_a_worker_says_itself_is_no_crowd() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let key = conversation(0, 2);
    let mut candidates: Vec<Candidate> = idle(slots.len());
    let all = key.prompt_tokens();
    candidates[1].told = Some(Told {
        held_tokens: all,
        until_tokens: all,
        ..Told::default()
    });
    // An earlier turn was sent there just now.
    let half = &key.marks()[..key.marks().len() / 2];
    prefix_index.record(slots[1], half, NOW);
    let slots = slots.iter().copied().collect();
    prefix_index.fill(&key, &slots, NOW, &mut candidates);
    assert_eq!(candidates[1].held_tokens, all);
    // 70 requests on the 3 workers, of which the others know 39: the home has as many as a crowd may have, and is kept.
    let ring = equal_ring(3);
    let settings = PolicySettings::default();
    for candidate in &mut candidates {
        candidate.load.requests = 13.0;
        candidate.surge_requests = 15.0;
    }
    candidates[1].surge_requests = 40.0;
    let worker = |candidates: &[Candidate]| {
        let decision = decide(&settings, &ring, &key, candidates, &[], 0);
        decision.expect("all are usable").worker
    };
    assert_eq!(worker(&candidates), 1);
    candidates[1].whole_ago = Some(0);
    assert_ne!(worker(&candidates), 1, "were it sent all the time");
}

#[test]
fn the_next_turn_finds_the_last_one() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let first = conversation(1, 2);
    let told = prefix_index.record(slots[1], first.marks(), NOW).news;
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
        held(&prefix_index, &slots, &next, NOW),
        [0, first.prompt_tokens(), 0]
    );
    let news = prefix_index.record(slots[1], next.marks(), NOW).news;
    assert_eq!(
        news.len(),
        next.marks().len() - first.marks().len(),
        "only the new marks"
    );
    assert_eq!(
        held(&prefix_index, &slots, &conversation(2, 3), NOW),
        [0, 0, 0]
    );
}

#[test]
fn deeper_marks_stand_for_their_prefix() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let key = conversation(1, 4);
    let deepest = key.marks().last().unwrap();
    prefix_index.learn("c", 1, &[deepest.hash], NOW);
    assert_eq!(
        held(&prefix_index, &slots, &key, NOW),
        [0, 0, deepest.tokens]
    );
}

/// The first epoch that becomes known of a worker is no restart, also where another replica said it before.
#[test]
fn what_was_known_before_its_epoch_is_kept() {
    let key = conversation(1, 2);
    let marks: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
    let tokens = key.prompt_tokens();
    let held = |index: &PrefixIndex, slot| held(index, &[slot], &key, NOW)[0];
    for is_told_by_another in [false, true] {
        let mut index = PrefixIndex::new(PrefixIndexSettings::default());
        let slot = index.slot("a", 0);
        let recorded = index.record(slot, key.marks(), NOW);
        if is_told_by_another {
            index.learn("a", 7, &marks[..1], NOW);
        }
        assert_eq!(index.slot("a", 7), slot);
        assert_eq!(held(&index, slot), tokens, "no restart");
        assert_eq!(index.slot("a", 0), slot);
        assert_eq!(held(&index, slot), tokens, "not known any more, either");
        // Sent there when the epoch was not known, and refused by the worker since.
        index.retract("a", 0, &recorded);
        index.take_back("a", 0, &marks);
        assert_eq!(held(&index, slot), 0);
        index.record(slot, key.marks(), NOW);
        index.slot("a", 8);
        assert_eq!(held(&index, slot), 0, "a restart");
    }
}

#[test]
fn evidence_of_another_epoch_is_dropped() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let key = conversation(1, 2);
    let marks: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
    // Each epoch that the registry says in turn empties the row, also one that is lower than the one before.
    for epoch in [4, 6, 5] {
        prefix_index.slot("a", epoch);
        let mut learn = |epoch| {
            prefix_index.learn("a", epoch, &marks, NOW);
            held(&prefix_index, &slots, &key, NOW)[0]
        };
        assert_eq!(learn(epoch + 1), 0, "a later one is not its own yet");
        assert_eq!(learn(epoch - 1), 0, "nor an earlier one");
        assert_eq!(learn(epoch), key.prompt_tokens());
    }
    let refused = prefix_index.counters().refused;
    prefix_index.learn("nobody", 1, &marks, NOW);
    assert_eq!((refused, prefix_index.counters().refused), (6, 7));
    prefix_index.forget("a");
    prefix_index.record(slots[1], key.marks(), NOW);
    prefix_index.forget("b");
    assert!(prefix_index.is_empty());
}

/// One replica that reports an epoch from nowhere would have wiped the row, and have had it refuse everything since.
#[test]
fn what_another_replica_says_moves_no_epoch() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let [own, told, false_one] = [1, 2, 3].map(|number| conversation(number, 2));
    let marks = |key: &Key| key.marks().iter().map(|mark| mark.hash).collect::<Vec<_>>();
    prefix_index.record(slots[0], own.marks(), NOW);
    prefix_index.learn("a", u64::MAX, &marks(&false_one), NOW);
    prefix_index.learn("a", 1, &marks(&told), NOW);
    let holds = |prefix_index: &PrefixIndex| {
        [&own, &told, &false_one].map(|key| held(prefix_index, &slots, key, NOW)[0] > 0)
    };
    assert_eq!(holds(&prefix_index), [true, true, false]);
    assert_eq!(prefix_index.slot("a", 2), slots[0]);
    assert_eq!(holds(&prefix_index), [false; 3], "a restart");
    // Sent there before anybody knew when it started, and heard after that.
    prefix_index.learn("a", 0, &marks(&told), NOW);
    assert_eq!(holds(&prefix_index), [false, true, false]);
    let (epoch, records) = prefix_index.snapshot("a", NOW).expect("it is known");
    assert_eq!((epoch, records), (2, vec![marks(&told)]));
}

/// They take no room in a cache, so that nothing would ever evict them.
#[test]
fn marks_that_no_key_has_are_refused() {
    let (mut prefix_index, _) = prefix_index(PrefixIndexSettings::default());
    let whole = conversation(1, 2).marks()[0].hash;
    for marks in [vec![0], vec![7 << 8], vec![whole, 7 << 8], vec![whole; 257]] {
        prefix_index.learn("a", 1, &marks, NOW);
        assert!(prefix_index.is_empty(), "{marks:?}");
    }
    assert_eq!(prefix_index.counters().refused, 4);
}

#[test]
fn another_process_holds_nothing_but_what_is_known_of_it() {
    let key = conversation(1, 2);
    // The epoch in which the row is, the one of the process that was replaced, and whether the row stays.
    for (row, former, stays) in [(1, 1, false), (6, 5, true), (6, 6, false)] {
        let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
        prefix_index.slot("b", row);
        prefix_index.record(slots[1], key.marks(), NOW);
        prefix_index.record(slots[2], key.marks(), NOW);
        prefix_index.replaced("b", former);
        let tokens = held(&prefix_index, &slots, &key, NOW);
        assert_eq!(
            (tokens[1] > 0, tokens[2] > 0),
            (stays, true),
            "{row} {former}"
        );
        assert_eq!(prefix_index.slot("b", row), slots[1], "pools go on with it");
    }
}

#[test]
fn the_size_of_a_cache_is_that_of_the_process_that_reported_it() {
    let restarts: [fn(&mut PrefixIndex); 2] = [
        |index| index.replaced("b", 1),
        |index| {
            index.slot("b", 2);
        },
    ];
    for restarts in restarts {
        let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
        prefix_index.slot("b", 1);
        let size = |prefix_index: &PrefixIndex| {
            let mut candidates: Vec<Candidate> = idle(slots.len());
            prefix_index.fill_caches(&slots.iter().copied().collect(), &mut candidates);
            candidates[1].kv_tokens
        };
        prefix_index.set_capacity(slots[1], 4_096);
        prefix_index.slot("b", 1);
        assert_eq!(size(&prefix_index), Some(4_096), "it is the same");
        restarts(&mut prefix_index);
        assert_eq!(size(&prefix_index), None);
        prefix_index.set_capacity(slots[1], 8_192);
        assert_eq!(size(&prefix_index), Some(8_192));
    }
}

#[test]
fn old_evidence_is_not_believed() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let key = conversation(1, 2);
    let age_max = PrefixIndexSettings::default().age_max;
    prefix_index.record(slots[0], key.marks(), NOW);
    assert_ne!(held(&prefix_index, &slots, &key, NOW + age_max)[0], 0);
    let later = NOW + age_max + Duration::from_secs(1);
    assert_eq!(held(&prefix_index, &slots, &key, later)[0], 0);
    prefix_index.expire(later);
    assert!(prefix_index.is_empty());
}

/// What a worker says of its cache goes before evidence of the same part, but not before what it may still be at.
#[test]
fn what_a_worker_says_goes_before_old_evidence() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let key = conversation(1, 4);
    let marks = key.marks();
    let (half, all) = (marks[marks.len() / 2].tokens, key.prompt_tokens());
    prefix_index.record(slots[0], marks, NOW);
    let held = |told: Option<(u32, u32)>, later: u64| {
        let mut candidates: Vec<Candidate> = idle(slots.len());
        candidates[0].told = told.map(|(held_tokens, until_tokens)| Told {
            held_tokens,
            until_tokens,
            ..Told::default()
        });
        prefix_index.fill(
            &key,
            &slots.iter().copied().collect(),
            NOW + Duration::from_secs(later),
            &mut candidates,
        );
        assert!(candidates[1..].iter().all(|other| other.held_tokens == 0));
        candidates[0].held_tokens
    };
    let last = marks.last().unwrap().tokens;
    assert_eq!(held(None, 3), last);
    // It may still be at it.
    assert_eq!(held(Some((0, all)), 2), last);
    // It has lost it.
    assert_eq!(held(Some((0, all)), 3), 0);
    assert_eq!(held(Some((160, all)), 3), 160);
    // It cannot say what became of the second half.
    assert_eq!(held(Some((0, half)), 3), last);
    // It holds more than anybody has sent there.
    assert_eq!(held(Some((all, all)), 0), all);
}

#[test]
fn memory_is_bounded() {
    let settings = PrefixIndexSettings {
        entries_max: 500,
        cache_tokens: u64::MAX,
        ..PrefixIndexSettings::default()
    };
    let (mut prefix_index, slots) = prefix_index(settings);
    for (number, slot) in numbers(1).take(300).zip(slots.iter().cycle()) {
        prefix_index.record(*slot, conversation(number, 3).marks(), NOW);
        assert!(prefix_index.len() <= 500);
    }
    assert!(prefix_index.counters().crowded_out > 0);
    prefix_index.set_capacity(slots[0], 5_000);
    prefix_index.record(slots[0], conversation(0, 1).marks(), NOW);
    let mut candidates = idle(3);
    prefix_index.fill_caches(&slots.iter().copied().collect(), &mut candidates);
    assert!(candidates[0].known_tokens <= 5_000 && prefix_index.counters().evicted > 0);
}

/// As many marks, of 16 tokens each, from this one on.
pub(crate) fn marks_from(first: u64, count: u64) -> Vec<u64> {
    (first..first + count).map(|mark| mark << 8 | 1).collect()
}

/// The prefix index without its lists: (worker, mark), the least recently used first.
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

    fn the_fullest_pays(&mut self, workers: usize) {
        let entries = |worker| self.0.iter().filter(|&&(other, _)| other == worker).count();
        // The last of the greatest.
        let fullest = (0..workers).max_by_key(|&worker| entries(worker));
        let oldest = self
            .0
            .iter()
            .position(|&(worker, _)| Some(worker) == fullest);
        self.0.remove(oldest.expect("it has entries"));
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
    fn the_index_follows_a_plain_model(
        steps in prop::collection::vec((0_usize..3, 0_u64..6, 1_usize..5, any::<bool>()), 1..40)
    ) {
        let capacity = 6_000;
        let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings { cache_tokens: capacity, ..PrefixIndexSettings::default() });
        let mut plain = Plain::default();
        for (worker, number, turns, own) in steps {
            let key = conversation(number, turns);
            let marks: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
            if own {
                prefix_index.record(slots[worker], key.marks(), NOW);
            } else {
                prefix_index.learn(["a", "b", "c"][worker], 1, &marks, NOW);
            }
            plain.touch(worker, &marks, capacity);
            prop_assert_eq!(prefix_index.len(), plain.0.len());
            let deepest = |worker| {
                let mut known = key.marks().iter().filter(|mark| plain.0.contains(&(worker, mark.hash)));
                known.next_back().map_or(0, |mark| mark.tokens)
            };
            prop_assert_eq!(held(&prefix_index, &slots, &key, NOW), [deepest(0), deepest(1), deepest(2)]);
        }
    }
}

proptest! {
    /// Replicas that chose otherwise would know other prefixes from then on.
    #[test]
    fn the_fullest_pays_and_of_equals_the_last(
        steps in prop::collection::vec((0_usize..9, 0_u64..12, 0_u8..20), 1..200)
    ) {
        let entries_max = 30;
        let workers = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let mut index = PrefixIndex::new(PrefixIndexSettings { entries_max, ..PrefixIndexSettings::default() });
        for worker in workers {
            index.slot(worker, 1);
        }
        let mut plain = Plain::default();
        for (worker, mark, event) in steps {
            let mark = mark << 8 | 1;
            if event == 0 {
                // Its slot, and so its place among equals, is that of the one who comes next.
                index.forget(workers[worker]);
                index.slot(workers[worker], 1);
                plain.0.retain(|&(other, _)| other != worker);
            }
            if plain.0.len() == entries_max as usize && !plain.0.contains(&(worker, mark)) {
                plain.the_fullest_pays(workers.len());
            }
            index.learn(workers[worker], 1, &[mark], NOW);
            plain.touch(worker, &[mark], u64::MAX);
            for (number, worker) in workers.into_iter().enumerate() {
                let (_, records) = index.snapshot(worker, NOW).expect("it has a slot");
                let own = plain.0.iter().filter(|&&(other, _)| other == number);
                let own: Vec<Vec<u64>> = own.map(|&(_, mark)| vec![mark]).collect();
                prop_assert_eq!(records, own, "worker {}", worker);
            }
        }
    }
}
