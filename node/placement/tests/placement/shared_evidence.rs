//! What replicas tell each other of caches: once all was told, they expect the same, and forget and take back the same.

use std::time::Duration;

use grapevine_placement::{Key, PrefixIndex, PrefixIndexSettings, Recorded};
use proptest::prelude::*;

use crate::evidence::{NOW, conversation, held, marks_from, prefix_index};

#[test]
fn marks_in_use_are_sent_again() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let key = conversation(1, 2);
    prefix_index.record(slots[0], key.marks(), NOW);
    assert!(
        prefix_index
            .record(slots[0], key.marks(), NOW)
            .news
            .is_empty()
    );
    let later = NOW + PrefixIndexSettings::default().age_max / 2;
    assert_eq!(
        prefix_index.record(slots[0], key.marks(), later).news.len(),
        key.marks().len()
    );
}

#[test]
fn corrections_forget_as_far_everywhere() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let (old, key) = (conversation(1, 3), conversation(2, 3));
    prefix_index.record(slots[0], old.marks(), NOW);
    prefix_index.record(slots[0], key.marks(), NOW);
    let young = conversation(3, 3);
    prefix_index.record(slots[0], young.marks(), NOW);
    let again = prefix_index.record(slots[0], key.marks(), NOW);
    let expected = key.prompt_tokens();
    assert!(
        prefix_index
            .correct(slots[0], &again, expected, expected - 100)
            .is_empty(),
        "near enough"
    );
    let gone = prefix_index.correct(slots[0], &again, expected, 0);
    let tokens = |key: &Key| held(&prefix_index, &slots, key, NOW)[0];
    // The chain was computed anew; what was used before it must be gone, too; what was used after it may be there.
    assert_eq!(
        [tokens(&old), tokens(&key), tokens(&young)],
        [0, expected, young.prompt_tokens()]
    );
    // A part of them tells another replica, where the same was used in the same order, how far to forget.
    assert!(gone.len() < old.marks().len());
    let (mut other, others) = self::prefix_index(PrefixIndexSettings::default());
    for key in [&old, &key, &young] {
        let marks: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
        other.learn("a", 1, &marks, NOW);
    }
    other.unlearn("a", 1, &gone);
    let left = [&old, &key, &young].map(|key| held(&other, &others, key, NOW)[0]);
    assert_eq!(left, [0, expected, young.prompt_tokens()]);
    // A request that was refused takes back its own alone.
    let marks: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
    other.take_back("a", 1, &marks);
    let left = [&key, &young].map(|key| held(&other, &others, key, NOW)[0]);
    assert_eq!(left, [0, young.prompt_tokens()]);
}

/// Taken for new, it would be believed by the one replica for as long again as by the other.
#[test]
fn a_snapshot_leaves_out_what_is_nearer_to_its_end_than_to_its_last_use() {
    let settings = PrefixIndexSettings::default();
    let half = settings.age_max / 2;
    let (mut prefix_index, slots) = prefix_index(settings);
    let [old, young] = [1, 2].map(|number| conversation(number, 2));
    prefix_index.record(slots[0], old.marks(), NOW);
    prefix_index.record(slots[0], young.marks(), NOW + half);
    let marks = |key: &Key| key.marks().iter().map(|mark| mark.hash).collect::<Vec<_>>();
    let told = |after: Duration| prefix_index.snapshot("a", NOW + after).expect("known").1;
    assert_eq!(told(half), [marks(&old), marks(&young)]);
    assert_eq!(told(half + Duration::from_secs(1)), [marks(&young)]);
}

#[test]
fn snapshots_restore_what_is_known_and_its_order() {
    let (mut full, slots) = prefix_index(PrefixIndexSettings::default());
    for number in 0..40 {
        full.record(slots[0], conversation(number, 8).marks(), NOW);
    }
    let (epoch, records) = full.snapshot("a", NOW).unwrap();
    let (mut copy, copied) = prefix_index(PrefixIndexSettings::default());
    records
        .iter()
        .for_each(|marks| copy.learn("a", epoch, marks, NOW));
    assert_eq!(copy.len(), full.len());
    // With a smaller cache the copy forgets the same ones first.
    for (prefix_index, slot) in [(&mut full, slots[0]), (&mut copy, copied[0])] {
        prefix_index.set_capacity(slot, 40_000);
        prefix_index.record(slot, conversation(99, 1).marks(), NOW);
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

/// Whatever was used in between, in the same second, too: the sender's order is the one that counts.
#[test]
fn each_record_renews_its_chain() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let chain = marks_from(1, 4);
    prefix_index.learn("a", 1, &chain, NOW);
    for next in 10..13 {
        let behind_chain = [&chain[3..], &marks_from(next, 1)].concat();
        prefix_index.learn("a", 1, &marks_from(next + 10, 1), NOW);
        prefix_index.learn("a", 1, &behind_chain, NOW);
    }
    // Room for four.
    prefix_index.set_capacity(slots[0], 64);
    prefix_index.learn("a", 1, &chain[..1], NOW);
    let (_, left) = prefix_index.snapshot("a", NOW).expect("it is known");
    assert_eq!(left, [chain]);
}

/// Else one sender could have all others' chains forgotten.
#[test]
fn a_flood_of_short_records_keeps_no_chain_from_being_renewed() {
    let (mut prefix_index, slots) = prefix_index(PrefixIndexSettings::default());
    let (key, begin) = (conversation(1, 4), conversation(1, 1));
    let marks: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
    prefix_index.learn("a", 1, &marks, NOW);
    let flood = marks_from(1, 256);
    prefix_index.learn("b", 1, &flood, NOW);
    let later = NOW + Duration::from_secs(60);
    for _ in 0..10_000 {
        prefix_index.learn("b", 1, &flood[255..], later);
    }
    let spared = prefix_index.counters().spared;
    assert!(spared > 0, "the flood is beyond the limit");
    prefix_index.learn("a", 1, &marks[marks.len() - 1..], later);
    let age_max = PrefixIndexSettings::default().age_max;
    assert_eq!(
        held(&prefix_index, &slots, &begin, later + age_max)[0],
        begin.prompt_tokens()
    );
    assert_eq!(prefix_index.counters().spared, spared);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whoever places, and whoever's answers correct: once all was told, all replicas expect the same.
    #[test]
    fn prefix_indexes_stay_equal(
        steps in prop::collection::vec((0_usize..2, 0_usize..3, 0_u64..5, 1_usize..6, 0_u8..20), 1..60)
    ) {
        let settings = PrefixIndexSettings { cache_tokens: 6_000, ..PrefixIndexSettings::default() };
        let (one, slots) = prefix_index(settings);
        let mut both = [one.clone(), one];
        for (second, (who, worker, number, turns, end)) in (1..).zip(steps) {
            let (key, now) = (conversation(number, turns), NOW + Duration::from_secs(second));
            let id = ["a", "b", "c"][worker];
            let recorded = both[who].record(slots[worker], key.marks(), now);
            both[1 - who].learn(id, 1, &recorded.marks_to_send(), now);
            match end {
                0 | 1 => {
                    let gone = both[who].correct(slots[worker], &recorded, key.prompt_tokens(), 0);
                    both[1 - who].unlearn(id, 1, &gone);
                }
                2 | 3 => {
                    let gone = both[who].retract(id, 1, &recorded);
                    let kept = both[1 - who].take_back(id, 1, &gone);
                    prop_assert!(kept.is_empty(), "what others use in another second, they tell of");
                }
                _ => {}
            }
            prop_assert_eq!(both[0].len(), both[1].len());
            for number in 0..5 {
                let key = conversation(number, 5);
                let [here, there] = both.each_ref().map(|prefix_index| held(prefix_index, &slots, &key, now));
                prop_assert_eq!(here, there, "conversation {}", number);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Requests of several replicas with the same prompt, within the second in which nobody tells again of what is known.
    #[test]
    fn what_is_given_up_within_a_second_is_known_to_all_or_to_none(
        steps in prop::collection::vec((0_usize..3, 0_u64..3, 1_usize..5, any::<prop::sample::Index>(), any::<bool>()), 1..60)
    ) {
        let (one, slots) = prefix_index(PrefixIndexSettings::default());
        let mut all = [one.clone(), one.clone(), one];
        let others = |who: usize| (0..3).filter(move |at| *at != who);
        let mut open: Vec<(usize, Recorded)> = Vec::new();
        for (at, (who, number, turns, which, is_given_up)) in (0..).zip(steps) {
            let now = NOW + Duration::from_secs(at / 8);
            if is_given_up && !open.is_empty() {
                let (who, recorded) = open.swap_remove(which.index(open.len()));
                let gone = all[who].retract("a", 1, &recorded);
                let kept = others(who).map(|at| (at, all[at].take_back("a", 1, &gone))).collect::<Vec<_>>();
                for (at, records) in kept {
                    for marks in records {
                        others(at).for_each(|other| all[other].learn("a", 1, &marks, now));
                    }
                }
            } else {
                let recorded = all[who].record(slots[0], conversation(number, turns).marks(), now);
                let told = recorded.marks_to_send();
                others(who).for_each(|at| all[at].learn("a", 1, &told, now));
                open.push((who, recorded));
            }
            for number in 0..3 {
                let key = conversation(number, 4);
                let known = all.each_ref().map(|index| held(index, &slots, &key, now)[0]);
                prop_assert!(known.iter().all(|tokens| *tokens == known[0]), "conversation {}: {:?}", number, known);
            }
        }
    }
}

#[test]
fn what_is_in_use_is_renewed_at_the_others() {
    let (mut here, slots) = prefix_index(PrefixIndexSettings::default());
    let (mut there, others) = prefix_index(PrefixIndexSettings::default());
    for prefix_index in [&mut here, &mut there] {
        prefix_index.set_capacity(slots[0], 6_000);
    }
    let shared = conversation(0, 2);
    let tell = |here: &mut PrefixIndex, there: &mut PrefixIndex, key: &Key, second: u64| {
        let now = NOW + Duration::from_secs(second);
        let told = here.record(slots[0], key.marks(), now).marks_to_send();
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

/// Several conversations may begin with one new document within a second.
#[test]
fn what_follows_within_a_second_renews_its_beginning_at_the_others() {
    let settings = PrefixIndexSettings::default();
    let (mut here, slots) = prefix_index(settings);
    let (mut there, others) = prefix_index(settings);
    for (turns, second) in [(2, 0), (4, 0), (5, 30)] {
        let now = NOW + Duration::from_secs(second);
        let told = here.record(slots[0], conversation(0, turns).marks(), now);
        there.learn("a", 1, &told.marks_to_send(), now);
    }
    let beginning = conversation(0, 2);
    let later = NOW + settings.age_max + Duration::from_secs(20);
    for (index, slots) in [(&here, &slots), (&there, &others)] {
        assert_eq!(
            held(index, slots, &beginning, later)[0],
            beginning.prompt_tokens()
        );
    }
}

#[test]
fn what_another_request_brings_too_is_taken_back_with_the_last_of_them() {
    let key = conversation(0, 3);
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let (mut index, slots) = prefix_index(PrefixIndexSettings::default());
        let before = conversation(0, 1);
        index.record(slots[0], before.marks(), NOW);
        let requests = [0; 3].map(|_| index.record(slots[0], key.marks(), NOW));
        let mut gone = Vec::new();
        for (at, request) in order.into_iter().enumerate() {
            let is_there = held(&index, &slots, &key, NOW)[0] == key.prompt_tokens();
            assert!(is_there || at > 0 && order[at - 1] == 2, "{order:?}");
            gone.extend(index.retract("a", 1, &requests[request]));
        }
        assert_eq!(
            held(&index, &slots, &key, NOW)[0],
            before.prompt_tokens(),
            "{order:?}"
        );
        gone.sort_unstable();
        let mut new: Vec<u64> = key.marks().iter().map(|mark| mark.hash).collect();
        new.retain(|mark| before.marks().iter().all(|known| known.hash != *mark));
        new.sort_unstable();
        assert_eq!(gone, new, "{order:?}");
    }
}

/// Behind a balancer most of those that need the same come by other replicas.
#[test]
fn what_a_request_of_another_replica_brings_too_is_not_taken_back() {
    let (whole, beginning) = (conversation(0, 4), conversation(0, 2));
    for seconds in [0, 5] {
        let (mut one, slots) = prefix_index(PrefixIndexSettings::default());
        let (mut other, others) = prefix_index(PrefixIndexSettings::default());
        let first = one.record(slots[0], whole.marks(), NOW);
        other.learn("a", 1, &first.marks_to_send(), NOW);
        let later = NOW + Duration::from_secs(seconds);
        let second = other.record(others[0], whole.marks(), later);
        let told = second.marks_to_send();
        assert_eq!(told.len(), usize::from(seconds > 0));
        one.learn("a", 1, &told, later);
        let gone = one.retract("a", 1, &first);
        let kept = other.take_back("a", 1, &gone);
        assert_eq!(gone.is_empty(), seconds > 0, "the other replica told of it");
        assert_eq!(kept.is_empty(), seconds > 0, "it tells of it now");
        for marks in &kept {
            one.learn("a", 1, marks, later);
        }
        assert!(other.take_back("a", 1, &gone).is_empty(), "told once");
        assert_eq!(
            held(&other, &others, &whole, later)[0],
            whole.prompt_tokens()
        );
        let known = held(&one, &slots, &beginning, later)[0];
        assert_eq!(known, beginning.prompt_tokens());
    }
}

/// What heat shows of a prompt is in no record, and others may have computed it.
#[test]
fn no_more_is_taken_back_than_was_recorded() {
    let (mut index, slots) = prefix_index(PrefixIndexSettings::default());
    let (before, next) = (conversation(0, 3), conversation(0, 4));
    index.record(slots[0], before.marks(), NOW);
    let hot = 2;
    for _ in 0..3 {
        let recorded = index.record(slots[0], &next.marks()[hot..], NOW);
        index.retract("a", 1, &recorded);
    }
    assert_eq!(held(&index, &slots, &next, NOW)[0], before.prompt_tokens());
}
