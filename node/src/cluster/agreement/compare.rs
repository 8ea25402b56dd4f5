//! Two decisions on the same request, and why they differ. Pure.

use std::sync::Arc;

use grapevine_gossip::dry_run::{DryRunAnswer, KeyParts};
use grapevine_placement::{Digest, Explanation, Key, Row, Verdict as Fared, named};

use crate::cluster::pool::Pool;

/// A request of this replica: what it knew and decided, before it acted on it.
#[derive(Debug)]
pub struct Sample {
    /// Where the model's workers are.
    pub pool: Arc<Pool>,
    /// The request, as a peer needs it.
    pub key: KeyParts,
    /// The decision with its work.
    pub explanation: Explanation,
    /// Digest of the hot set that it was made with.
    pub heat: Digest,
    /// When it was made, by this replica's clock of load.
    pub at_us: u64,
}

impl Sample {
    /// Whether a worker was known to hold more of the prompt than what is hot.
    pub fn is_known(&self) -> bool {
        let decision = self.explanation.decision.as_ref();
        decision.is_ok_and(|decision| decision.known)
    }

    /// Seconds that the first token would come later by the peer's choice than by ours, as we reckon: what it matters
    /// that they differ. 0 where it would come no later.
    pub fn costs_more(&self, answer: &DryRunAnswer) -> f64 {
        let rows = &self.explanation.rows;
        let cost =
            |at: &dyn Fn(&Row) -> bool| Some(rows.iter().find(|row| at(row))?.first_token_ms);
        let members = self.pool.members();
        let theirs = cost(&|row| answer.worker.as_ref() == Some(&members[row.index].worker.id));
        let ours = cost(&|row| row.verdict == Fared::Chosen);
        match (ours, theirs) {
            (Some(ours), Some(theirs)) => (theirs - ours).max(0.0) / 1e3,
            _ => 0.0,
        }
    }
}

named! {
    /// The outcome of one comparison. Labels of a metric: stable.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Verdict {
        /// The same worker.
        Same = "same",
        /// The cluster-wide settings differ: a mistake in the configuration.
        Settings = "settings",
        /// The worker sets differ.
        Membership = "membership",
        /// Another home, because different prefixes are hot.
        Heat = "heat",
        /// One replica knows more of what workers hold.
        Evidence = "evidence",
        /// One replica passes over a worker that the other one would use.
        Health = "health",
        /// All of that is equal: the load of the workers looks different.
        Load = "load",
        /// The peer gave no decision.
        Unanswered = "unanswered",
    }
}

impl Verdict {
    /// Compares a peer's decision with ours; `settings` is our fingerprint.
    pub fn of(sample: &Sample, answer: &DryRunAnswer, settings: Digest) -> Self {
        let decision = sample.explanation.decision.as_ref().ok();
        let id = |index: usize| sample.pool.members()[index].worker.id.as_str();
        let ours = decision.map(|decision| id(decision.worker));
        let theirs = answer.worker.as_ref().map(|worker| worker.as_str());
        if ours == theirs {
            return Self::Same;
        }
        if answer.settings != settings.0 {
            return Self::Settings;
        }
        if answer.ring != sample.pool.digest().0 {
            return Self::Membership;
        }
        let home = decision.map(|decision| id(decision.home));
        if answer.heat != sample.heat.0 && answer.home.as_ref().map(|home| home.as_str()) != home {
            return Self::Heat;
        }
        let rows = &sample.explanation.rows;
        let Some(row) = rows.iter().find(|row| Some(id(row.index)) == theirs) else {
            return Self::Health;
        };
        if matches!(
            row.verdict,
            Fared::Unhealthy | Fared::Doubted | Fared::SlowStart | Fared::Draining | Fared::Full
        ) {
            return Self::Health;
        }
        if row.expected_tokens != answer.expected_tokens {
            return Self::Evidence;
        }
        let passed_over = ["failover", "drain", "spill_full", "slow_start"];
        let by_health = decision.map(|decision| decision.reason.as_str());
        if passed_over.contains(&answer.reason.as_str())
            != by_health.is_some_and(|reason| passed_over.contains(&reason))
        {
            return Self::Health;
        }
        Self::Load
    }
}

/// A key as gossip carries it.
pub(crate) fn encode_key(key: &Key) -> KeyParts {
    let parts = key.parts();
    KeyParts {
        model: parts.model,
        group: parts.group.map(|link| (link.hash, link.tokens)),
        home: parts.home,
        session: parts.session,
        user: parts.user,
        stable_tokens: parts.stable_tokens,
        prompt_tokens: parts.prompt_tokens,
        marks: parts.marks.iter().map(|l| (l.hash, l.tokens)).collect(),
    }
}

/// A key that a peer sent.
/// Errors: it breaks a rule that no key of this release breaks.
pub(crate) fn decode_key(parts: KeyParts) -> Result<Key, grapevine_placement::KeyPartsError> {
    let link = |(hash, tokens)| grapevine_placement::Link { hash, tokens };
    Key::from_parts(grapevine_placement::KeyParts {
        model: parts.model,
        group: parts.group.map(link),
        home: parts.home,
        session: parts.session,
        user: parts.user,
        stable_tokens: parts.stable_tokens,
        prompt_tokens: parts.prompt_tokens,
        marks: parts.marks.into_iter().map(link).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use grapevine_placement::{
        ClusterSettings, Decision, Load, NoWorker, Reason, Row, Verdict as Fared,
    };

    use super::*;

    const SETTINGS: Digest = Digest(7);
    const HEAT: Digest = Digest(5);

    /// Two workers, `w0` with what it is expected to hold and how it fared, `w1` chosen.
    fn sample(w0_expected: u32, w0: Fared) -> Sample {
        let pool = crate::cluster::pool_for_tests(&ClusterSettings::default(), &["w0", "w1"]);
        let row = |index, expected_tokens, verdict| Row {
            index,
            cost: None,
            first_token_ms: 0.0,
            load: Load::default(),
            limit: None,
            expected_tokens,
            told: None,
            verdict,
        };
        let decision = Decision {
            worker: 1,
            home: 1,
            reason: Reason::Home,
            expected_tokens: 0,
            tokens_before: 0,
            first_token: std::time::Duration::ZERO,
            shared_tokens: 0,
            common_tokens: 0,
            told: None,
            known: false,
            panic: false,
            unreachable: false,
            prompt_tokens: 100,
        };
        Sample {
            pool: Arc::new(pool),
            key: KeyParts::default(),
            explanation: Explanation {
                decision: Ok(decision),
                panic: false,
                rows: vec![row(1, 0, Fared::Chosen), row(0, w0_expected, w0)],
            },
            heat: HEAT,
            at_us: 0,
        }
    }

    fn answer(
        sample: &Sample,
        worker: &str,
        change: impl FnOnce(&mut DryRunAnswer),
    ) -> DryRunAnswer {
        let id = |id: &str| Some(id.parse().expect("an id"));
        let mut answer = DryRunAnswer {
            worker: id(worker),
            reason: "home".to_owned(),
            ring: sample.pool.digest().0,
            settings: SETTINGS.0,
            heat: HEAT.0,
            home: id("w1"),
            expected_tokens: 0,
        };
        change(&mut answer);
        answer
    }

    #[test]
    fn each_difference_has_its_name() {
        type Change = fn(&mut DryRunAnswer);
        let table: [(Verdict, &str, u32, Fared, Change); 10] = [
            (Verdict::Same, "w1", 0, Fared::Eligible, |_| ()),
            // The same worker is the same, however it was found.
            (Verdict::Same, "w1", 0, Fared::Eligible, |a| a.settings = 1),
            (Verdict::Settings, "w0", 0, Fared::Eligible, |a| {
                a.settings = 1;
                a.ring = 1;
            }),
            (Verdict::Membership, "w0", 0, Fared::Eligible, |a| {
                a.ring ^= 1;
                a.heat = 1;
            }),
            (Verdict::Heat, "w0", 0, Fared::Eligible, |a| {
                a.heat = 1;
                a.home = a.worker.clone();
            }),
            // Other counts that leave the home where it is are not why.
            (Verdict::Load, "w0", 0, Fared::Eligible, |a| a.heat = 1),
            (Verdict::Evidence, "w0", 0, Fared::Eligible, |a| {
                a.expected_tokens = 50;
            }),
            (Verdict::Health, "w0", 0, Fared::Unhealthy, |_| ()),
            (Verdict::Health, "w0", 0, Fared::Eligible, |a| {
                a.reason = "failover".to_owned();
            }),
            (Verdict::Load, "w0", 30, Fared::OverBound, |a| {
                a.expected_tokens = 30;
            }),
        ];
        for (expected, worker, w0_expected, fared, change) in table {
            let sample = sample(w0_expected, fared);
            let answer = answer(&sample, worker, change);
            assert_eq!(
                Verdict::of(&sample, &answer, SETTINGS),
                expected,
                "{answer:?}"
            );
        }
    }

    #[test]
    fn a_difference_costs_what_the_peers_choice_would_cost_more() {
        let mut sample = sample(0, Fared::Eligible);
        let costs = |sample: &mut Sample, ours, theirs| {
            sample.explanation.rows[0].first_token_ms = ours;
            sample.explanation.rows[1].first_token_ms = theirs;
            sample.costs_more(&answer(sample, "w0", |_| ()))
        };
        assert!((costs(&mut sample, 1_000.0, 1_250.0) - 0.25).abs() < 1e-9);
        assert!(costs(&mut sample, 1_000.0, 900.0).abs() < 1e-9, "sooner");
        assert!(!sample.is_known());
    }

    #[test]
    fn nobody_is_compared_with_nobody() {
        let mut sample = sample(0, Fared::Eligible);
        sample.explanation.decision = Err(NoWorker::Full);
        let nobody = answer(&sample, "w1", |a| a.worker = None);
        assert_eq!(Verdict::of(&sample, &nobody, SETTINGS), Verdict::Same);
        let somebody = answer(&sample, "w0", |_| ());
        assert_ne!(Verdict::of(&sample, &somebody, SETTINGS), Verdict::Same);
    }

    #[test]
    fn labels_are_distinct() {
        let all = Verdict::ALL;
        let labels: BTreeMap<_, _> = all.iter().map(|v| (v.as_str(), v)).collect();
        assert_eq!(labels.len(), all.len());
    }
}
