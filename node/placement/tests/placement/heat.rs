//! Laws of heat and of homes by heat.

use std::time::Duration;

use grapevine_placement::heat::REPORT_LINKS_MAX;
use grapevine_placement::{
    Candidate, HeatCounter, HeatReport, HeatSettings, HotSet, Key, Policy, PolicySettings, Reason,
    Ring, View, decide,
};
use proptest::prelude::*;

use crate::common::{busy, chat, equal_ring, idle, numbers, prompt};
use crate::scene::settings;

const SECOND: Duration = Duration::from_secs(1);

/// A counter that has seen these keys, and what it tells.
fn report(keys: impl IntoIterator<Item = Key>) -> HeatReport {
    let mut counter = HeatCounter::new(&HeatSettings::default());
    for key in keys {
        counter.count(&key);
    }
    counter.report(SECOND).clone()
}

/// Prompts that share a system message of 2,000 tokens and differ behind it.
fn shared(count: u64) -> impl Iterator<Item = Key> {
    (0..count).map(|number| {
        let own = format!("{number:08} {}", "q".repeat(2_000));
        chat(&[("system", &"s".repeat(8_000)), ("user", &own)])
    })
}

fn homes(ring: &Ring, hot: &HotSet) -> Vec<usize> {
    let settings = PolicySettings::default();
    let candidates = idle(ring.len());
    let view = View { ring, hot };
    let mut homes: Vec<_> = shared(400)
        .map(|key| {
            decide(&settings, view, &key, &candidates, &[], 0)
                .unwrap()
                .home
        })
        .collect();
    homes.sort_unstable();
    homes.dedup();
    homes
}

#[test]
fn what_everybody_sends_spreads_over_everybody() {
    let ring = equal_ring(8);
    assert_eq!(
        homes(&ring, &HotSet::EMPTY).len(),
        1,
        "nothing is known to be hot"
    );
    let told = report(shared(400));
    assert_eq!(homes(&ring, &HotSet::sum([&told])).len(), 8);
}

#[test]
fn the_whole_of_a_long_prefix_is_hot_soon() {
    let prompts = |count: u64| {
        (0..count).map(|number| {
            let own = format!("{number:08} {}", "q".repeat(2_000));
            chat(&[("system", &"s".repeat(16_000)), ("user", &own)])
        })
    };
    let ring = equal_ring(8);
    let hot = HotSet::sum([&report(prompts(40))]);
    let view = View {
        ring: &ring,
        hot: &hot,
    };
    let key = prompts(41).next_back().expect("some");
    let settings = PolicySettings::default();
    let decision = decide(&settings, view, &key, &idle(8), &[], 0).expect("workers");
    assert!(
        (3_900..4_100).contains(&decision.common_tokens),
        "{} of 4,000 tokens are hot",
        decision.common_tokens
    );
}

/// Requests that nobody has heard of yet bound those that may be many alike, and move no conversation.
#[test]
fn a_conversation_behind_a_hot_prefix_is_no_crowd() {
    let ring = equal_ring(4);
    let hot = HotSet::sum([&report(shared(400))]);
    let view = View {
        ring: &ring,
        hot: &hot,
    };
    let key = shared(401).last().expect("some");
    let settings = PolicySettings::default();
    let place = |candidates: &[Candidate]| {
        decide(&settings, view, &key, candidates, &[], 0).expect("workers")
    };
    let home = place(&idle(4)).home;
    // As many as the bound on what all know of forgives, and more than that of a surge does.
    let mut candidates = [busy(11.0); 4];
    for (index, candidate) in candidates.iter_mut().enumerate() {
        candidate.surge_requests = if index == home { 30.0 } else { 50.0 / 3.0 };
    }
    let unknown = place(&candidates);
    assert_eq!(unknown.reason, Reason::SpillBound);
    candidates[home].held_tokens = 2_400;
    let known = place(&candidates);
    assert!(known.common_tokens > unknown.common_tokens, "{known:?}");
    assert_eq!(known.worker, home);
}

/// A prefix that carries little more than a worker's share stays on a few workers, and every replica that it is
/// split over counts only a part of it.
#[test]
fn heat_is_the_sum_of_all_replicas() {
    let ring = equal_ring(8);
    let others = |from: u64| {
        numbers(from)
            .take(600)
            .map(|number| prompt(format!("{number:04000}").as_bytes()))
    };
    let parts: Vec<_> = (0..4)
        .map(|part| report(shared(100).chain(others(part))))
        .collect();
    let whole = HotSet::sum(&parts);
    let width = homes(&ring, &whole).len();
    assert!((2..8).contains(&width), "{width} homes");
}

#[test]
fn hot_sets_nest() {
    let ring = equal_ring(16);
    let wide = homes(&ring, &HotSet::sum([&report(shared(400))]));
    let others = numbers(9)
        .take(1_600)
        .map(|number| prompt(format!("{number:04000}").as_bytes()));
    let narrow = homes(&ring, &HotSet::sum([&report(shared(400).chain(others))]));
    assert!(narrow.len() < wide.len(), "{narrow:?} in {wide:?}");
    assert!(
        narrow.iter().all(|home| wide.contains(home)),
        "{narrow:?} in {wide:?}"
    );
}

#[test]
fn counter_memory_is_bounded() {
    let mut counter = HeatCounter::new(&HeatSettings::default());
    for number in numbers(1).take(50_000) {
        counter.count(&prompt(format!("{number:0900}").as_bytes()));
        counter.count(&prompt(format!("{:0900}", number % 2_000).as_bytes()));
    }
    assert!(counter.report(SECOND).counts.len() <= REPORT_LINKS_MAX);
    // Four thousand counted prompts at most: the flood does not even show in the size of the debug form.
    assert!(format!("{counter:?}").len() < 1_000_000);
}

#[test]
fn small_changes_are_not_reported() {
    let mut counter = HeatCounter::new(&HeatSettings::default());
    shared(400).for_each(|key| counter.count(&key));
    let first = counter.report(SECOND).clone();
    // Decay of a second and two requests more: below an eighth.
    shared(2).for_each(|key| counter.count(&key));
    assert_eq!(*counter.report(2 * SECOND), first);
    shared(400).for_each(|key| counter.count(&key));
    let later = counter.report(3 * SECOND).clone();
    assert!(
        later.version > first.version && later.total > first.total,
        "{later:?}"
    );
}

#[test]
fn heat_cools() {
    let mut counter = HeatCounter::new(&HeatSettings::default());
    shared(400).for_each(|key| counter.count(&key));
    assert!(!counter.report(SECOND).counts.is_empty());
    assert!(counter.report(1_200 * SECOND).counts.is_empty());
}

fn some_report() -> impl Strategy<Value = HeatReport> {
    prop::collection::btree_map(0_u64..50, 0_u32..1_000, 0..30).prop_map(|counts| HeatReport {
        version: 1,
        total: counts.values().sum(),
        counts: counts.into_iter().collect(),
    })
}

proptest! {
    #[test]
    fn order_of_reports_is_irrelevant(mut reports in prop::collection::vec(some_report(), 0..6)) {
        let forward = HotSet::sum(&reports);
        reports.reverse();
        let backward = HotSet::sum(&reports);
        prop_assert_eq!(forward.digest(), backward.digest());
        prop_assert_eq!(forward, backward);
    }
}

/// Policy `cache_aware` goes by what is recorded alone: a hot prefix that is recorded no more would be forgotten.
#[test]
fn cache_aware_records_what_is_hot_as_well() {
    let ring = equal_ring(8);
    let hot = HotSet::sum([&report(shared(400))]);
    let view = View {
        ring: &ring,
        hot: &hot,
    };
    let key = shared(1).next().expect("one");
    for (policy, records_all) in [(Policy::Prefix, false), (Policy::CacheAware, true)] {
        let settings = settings(policy);
        let decision = decide(&settings, view, &key, &idle(8), &[], 0).expect("workers");
        let recorded = decision.marks(&key);
        assert!(!recorded.is_empty(), "{policy}: its own part");
        assert_eq!(recorded == key.marks(), records_all, "{policy}");
        // What an answer is compared with: without a record it would take back what is known of other prompts.
        let is_guessed = decision.expected_tokens > 0;
        assert_eq!(is_guessed, !records_all, "{policy}");
    }
}
