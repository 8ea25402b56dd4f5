//! The bound and guesses about homes: when a worker is passed over, and when it is kept at a price.

use grapevine_placement::*;

use crate::common::*;
use crate::decisions::queued;
use crate::scene::IDLE;

#[test]
fn a_surge_stays_within_its_bound_before_anybody_hears_of_it() {
    // 80 requests on 4 workers, half of which nobody knows of: mean (80 + 1) / 4, so 30 fit on one.
    let ring = equal_ring(4);
    let key = chat(&[("user", &"the same long question ".repeat(40))]);
    let home = ring
        .order(key.marks().first().expect("long enough").hash)
        .expect("members")
        .home();
    let decide = |at_home: f64, elsewhere: f64, heard: f64, whole_ago: Option<u64>| {
        let mut candidates = [IDLE; 4];
        for (index, candidate) in candidates.iter_mut().enumerate() {
            candidate.load.requests = heard;
            candidate.surge_requests = if index == home { at_home } else { elsewhere };
            // Of three replicas.
            candidate.exact_requests = heard + (candidate.surge_requests - heard) / 3.0;
        }
        if whole_ago.is_some() {
            candidates[home].held_tokens = key.marks().last().expect("long enough").tokens;
            candidates[home].whole_ago = whole_ago;
        }
        decide(&PolicySettings::default(), &ring, &key, &candidates, &[], 0).expect("workers")
    };
    let heard = 11.0;
    assert_eq!(
        decide(30.0, 50.0 / 3.0, heard, Some(8)).reason,
        Reason::SpillBound
    );
    assert_eq!(decide(29.0, 51.0 / 3.0, heard, Some(8)).worker, home);
    // A prompt that was not seen before is no crowd, nor is one that comes less often than one request in twice as many
    // as there are workers, and neither are a replica's few requests.
    assert_eq!(decide(30.0, 50.0 / 3.0, heard, None).worker, home);
    assert_eq!(decide(30.0, 50.0 / 3.0, heard, Some(9)).worker, home);
    assert_eq!(decide(12.0, 4.0, 3.0, Some(0)).worker, home);
    // Of a crowd that nobody has heard of any prompt may be one.
    assert_eq!(
        decide(30.0, 50.0 / 3.0, 9.0, None).reason,
        Reason::SpillBound
    );
    // Eight at each of three replicas are above their bound by chance, at one of three workers, and nobody else sees it.
    let ring = equal_ring(3);
    let order = ring.order(key.marks().first().expect("long enough").hash);
    let home = order.expect("members").home();
    let handful = |at_home: f64| {
        let mut candidates = [IDLE; 3];
        for (index, candidate) in candidates.iter_mut().enumerate() {
            let own = if index == home {
                at_home
            } else {
                (8.0 - at_home) / 2.0
            };
            candidate.exact_requests = own;
            candidate.surge_requests = 3.0 * own;
        }
        let decision = grapevine_placement::decide(
            &PolicySettings::default(),
            &ring,
            &key,
            &candidates,
            &[],
            0,
        );
        decision.expect("workers").reason
    };
    assert_eq!(handful(5.0), Reason::Home);
    assert_eq!(handful(6.0), Reason::SpillBound);
}

#[test]
fn no_prompt_is_a_crowd_for_its_heat_where_heat_is_off() {
    let (ring, key) = (
        equal_ring(4),
        chat(&[("user", &"the same long question ".repeat(40))]),
    );
    let first = key.marks().first().expect("long enough").hash;
    let home = ring.order(first).expect("members").home();
    // Half of the requests are known to all; of a crowd the home had more than its part.
    let mut candidates = [IDLE; 4];
    for (index, candidate) in candidates.iter_mut().enumerate() {
        candidate.load.requests = 11.0;
        candidate.surge_requests = if index == home { 30.0 } else { 50.0 / 3.0 };
    }
    candidates[home].held_tokens = key.marks().last().expect("long enough").tokens;
    let reason = |share: f64, whole_ago: u64| {
        let mut settings = PolicySettings::default();
        settings.heat.share = Ratio::new(share).expect("a share");
        let mut candidates = candidates;
        candidates[home].whole_ago = Some(whole_ago);
        let decision = decide(&settings, &ring, &key, &candidates, &[], 0);
        decision.expect("workers").reason
    };
    assert_eq!(reason(0.5, 8), Reason::SpillBound);
    for whole_ago in [0, 8, 1_000_000] {
        assert_eq!(reason(0.0, whole_ago), Reason::Home, "{whole_ago}");
    }
}

#[test]
fn the_bound_is_passed_for_more_than_the_crowd_costs() {
    // 12,000 tokens of history at 6 each, less what tolerance forgives (1.5 * 4,096): 65,856 pay for 8 requests above
    // the bound at 8,192 each, and for no ninth. 400 tokens pay for none.
    let ring = equal_ring(4);
    let key = |tokens: usize| chat(&[("user", &"t".repeat(tokens * 4)), ("assistant", "")]);
    let settings = PolicySettings::default();
    // Three with so many requests, the holder with more: the bound is 1.5 times the mean.
    for (tokens, above, stays) in [(12_000, 8, true), (12_000, 9, false), (400, 1, false)] {
        let key = key(tokens);
        let home = ring.order(key.home()).expect("members").home();
        let mut candidates = [busy(40.0); 4];
        let held_tokens = u32::try_from(tokens).expect("small");
        let place = |requests: f64, candidates: &mut [Candidate; 4]| {
            candidates[home] = Candidate {
                held_tokens,
                ..busy(requests)
            };
            decide(&settings, &ring, &key, &*candidates, &[], 0).expect("workers")
        };
        // n + 1 - 1.5 * (120 + n + 1) / 4 requests above.
        let requests = (f64::from(above) + 0.375 * 121.0 - 1.0) / 0.625;
        let chosen = place(requests - 0.1, &mut candidates);
        assert_eq!(
            chosen.worker == home,
            stays,
            "{tokens} tokens, {above} above"
        );
        let outer = place(400.0, &mut candidates);
        assert_ne!(outer.worker, home, "no price passes the outer bound");
    }
}

#[test]
fn unknown_prompts_compare_the_first_in_their_order_only() {
    let ring = equal_ring(8);
    let key = chat(&[("user", "nobody knows this")]);
    let order = ring.order(key.home()).expect("members").to_vec();
    let mut candidates = vec![queued(50_000.0); 8];
    candidates[order[7]] = IDLE;
    let at = |choices| {
        let settings = PolicySettings {
            choices,
            ..PolicySettings::default()
        };
        decide(&settings, &ring, &key, &candidates, &[], 0)
            .expect("workers")
            .worker
    };
    assert_eq!((at(4), at(8), at(0)), (order[0], order[7], order[7]));
}
