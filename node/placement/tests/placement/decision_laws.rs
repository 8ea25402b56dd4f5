//! Laws of every decision, on random rings, loads, standings and settings.

use grapevine_placement::*;
use proptest::prelude::*;

use crate::common::{members, prompt, ring_of};

fn some_candidate() -> impl Strategy<Value = Candidate> {
    let standing = prop::sample::select(vec![
        Standing::Usable,
        Standing::Usable,
        Standing::Full,
        Standing::Unhealthy,
        Standing::Unhealthy,
        Standing::Resting,
        Standing::Unreachable,
        Standing::Doubted,
        Standing::Draining,
        Standing::Asleep,
    ]);
    let slow_start = prop::option::weighted(0.2, 0.0..1.0);
    (0.0..50.0, 0.0..1e5, 0.0..1e6, standing, slow_start).prop_map(
        |(requests, prefill_tokens, context_tokens, standing, slow_start)| Candidate {
            load: Load {
                requests,
                prefill_tokens,
                context_tokens,
            },
            exact_requests: requests,
            surge_requests: requests,
            standing,
            slow_start,
            ..Candidate::default()
        },
    )
}

fn some_settings() -> impl Strategy<Value = PolicySettings> {
    let price = prop::sample::select(vec![Price::ADDITIVE, Price::MULTIPLICATIVE]);
    (
        prop::sample::select(Policy::ALL.to_vec()),
        price,
        any::<bool>(),
    )
        .prop_map(|(policy, price, panic)| PolicySettings {
            policy,
            price,
            panic,
            ..PolicySettings::default()
        })
}

/// Everything that a decision looks at.
#[derive(Debug)]
struct View {
    settings: PolicySettings,
    weights: Vec<u32>,
    candidates: Vec<Candidate>,
    tried: Vec<usize>,
    text: String,
    draw: u64,
}

fn some_view() -> impl Strategy<Value = View> {
    let pool = (1_usize..12).prop_flat_map(|workers| {
        let weights = prop::collection::vec(1_u32..5_000, workers);
        (weights, prop::collection::vec(some_candidate(), workers))
    });
    let tried = prop::collection::vec(0_usize..12, 0..4);
    (some_settings(), pool, tried, "[a-z]{0,2000}", any::<u64>()).prop_map(
        |(settings, (weights, candidates), tried, text, draw)| View {
            settings,
            weights,
            candidates,
            tried,
            text,
            draw,
        },
    )
}

impl View {
    fn decide(&self) -> Result<Decision, NoWorker> {
        let (ring, key) = (
            ring_of(&members(&self.weights)),
            prompt(self.text.as_bytes()),
        );
        decide(
            &self.settings,
            &ring,
            &key,
            &self.candidates,
            &self.tried,
            self.draw,
        )
    }

    /// Said again in the words of the design, apart from the code under test. Doubts of others and slow starts only
    /// order those that are.
    fn usable(&self, index: usize) -> bool {
        let candidates = &self.candidates;
        let any = |accepts: fn(Standing) -> bool| {
            let mut standings = candidates.iter().map(|candidate| candidate.standing);
            standings.any(accepts)
        };
        let bad = candidates
            .iter()
            .filter(|candidate| candidate.standing.is_bad());
        let draining = candidates
            .iter()
            .filter(|candidate| candidate.standing.is_out());
        let staying = candidates.len() - draining.count();
        let panic = self.settings.panic && bad.count() * 2 > staying;
        let is_well = |s| matches!(s, Standing::Usable | Standing::Full | Standing::Doubted);
        let accepts_connections = |index: usize| {
            !self.tried.contains(&index)
                && match candidates[index].standing {
                    Standing::Usable | Standing::Doubted => true,
                    Standing::Unhealthy => panic,
                    Standing::Resting => panic && any(is_well),
                    _ => false,
                }
        };
        let is_last_resort = |index: usize| {
            let room_to_come = (0..candidates.len()).any(|index| {
                candidates[index].standing == Standing::Full && !self.tried.contains(&index)
            });
            panic
                && candidates[index].standing == Standing::Unreachable
                && !self.tried.contains(&index)
                && !room_to_come
                && !(0..candidates.len()).any(accepts_connections)
        };
        accepts_connections(index) || is_last_resort(index)
    }
}

proptest! {
    #[test]
    fn equal_views_choose_equally(view in some_view()) {
        prop_assert_eq!(view.decide(), view.decide());
    }

    #[test]
    fn only_usable_workers_are_chosen(view in some_view()) {
        match view.decide() {
            Ok(decision) => prop_assert!(view.usable(decision.worker)),
            Err(_) => prop_assert!((0..view.candidates.len()).all(|index| !view.usable(index))),
        }
    }

    #[test]
    fn explanations_agree_with_decisions(view in some_view()) {
        let (ring, key) = (ring_of(&members(&view.weights)), prompt(view.text.as_bytes()));
        let explanation = explain(&view.settings, &ring, &key, &view.candidates, &view.tried, view.draw);
        let decision = view.decide();
        prop_assert_eq!(explanation.decision, decision);
        for row in explanation.rows {
            let chosen = decision.ok().filter(|decision| decision.worker == row.index);
            prop_assert_eq!(row.verdict == Verdict::Chosen, chosen.is_some());
            if let Some(chosen) = chosen {
                prop_assert_eq!(row.expected_tokens, chosen.expected_tokens);
                prop_assert!(chosen.expected_tokens <= chosen.prompt_tokens);
            }
            let usable = matches!(
                row.verdict,
                Verdict::Chosen | Verdict::Eligible | Verdict::OverBound | Verdict::Doubted | Verdict::SlowStart
            );
            prop_assert_eq!(usable, view.usable(row.index));
        }
    }
}
