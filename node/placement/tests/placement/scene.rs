//! Four workers in the order of one key: what decisions are tried on.

use grapevine_placement::{
    Candidate, Decision, Key, Load, NoWorker, Policy, PolicySettings, Rate, Reason, Ring, Standing,
    decide,
};

use crate::common::{chat, equal_ring, idle};

pub(crate) fn settings(policy: Policy) -> PolicySettings {
    PolicySettings {
        policy,
        ..PolicySettings::default()
    }
}

/// Four equal workers, the key of a conversation, and its order.
pub(crate) struct Scene {
    pub(crate) ring: Ring,
    pub(crate) key: Key,
    pub(crate) order: Vec<usize>,
}

pub(crate) fn scene() -> Scene {
    let (ring, key) = (equal_ring(4), turns(&"q".repeat(4_000)));
    let order = ring.order(key.marks()[0].hash).unwrap().to_vec();
    Scene { ring, key, order }
}

/// Key of a conversation whose newest message is empty: all of `history` may be cached.
pub(crate) fn turns(history: &str) -> Key {
    chat(&[("user", history), ("assistant", "")])
}

impl Scene {
    /// Decides with candidates and tried workers given by their place in the order: 0 is the home.
    /// Answers the place of the worker.
    pub(crate) fn place(
        &self,
        settings: &PolicySettings,
        by_place: [Candidate; 4],
        tried: &[usize],
    ) -> Result<(usize, Reason), NoWorker> {
        let decision = self.decide(settings, by_place, tried)?;
        assert_eq!(decision.home, self.order[0]);
        let place = self
            .order
            .iter()
            .position(|&index| index == decision.worker)
            .unwrap();
        Ok((place, decision.reason))
    }

    pub(crate) fn decide(
        &self,
        settings: &PolicySettings,
        by_place: [Candidate; 4],
        tried: &[usize],
    ) -> Result<Decision, NoWorker> {
        let mut candidates = idle(4);
        for (place, candidate) in by_place.into_iter().enumerate() {
            candidates[self.order[place]] = candidate;
        }
        let tried: Vec<_> = tried.iter().map(|&place| self.order[place]).collect();
        decide(settings, &self.ring, &self.key, &candidates, &tried, 0)
    }
}

pub(crate) const IDLE: Candidate = Candidate {
    load: Load {
        requests: 0.0,
        prefill_tokens: 0.0,
        context_tokens: 0.0,
    },
    exact_requests: 0.0,
    surge_requests: 0.0,
    rate: Rate::TYPICAL,
    standing: Standing::Usable,
    at_cap: false,
    slow_start: None,
    held_tokens: 0,
    whole_ago: None,
    known_tokens: 0,
    told: None,
    kv_tokens: None,
};
