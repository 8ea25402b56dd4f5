//! Models: policies of single models, and aliases, whose requests go to one target or are split by weight.
//!
//! A split is a pure function of the alias and of the conversation, so a conversation stays on its version on every
//! replica. Targets run an exponential race, won in proportion to their weights: when one of them leaves, only its
//! own conversations move, to the others by their weights, and they come back with it.
//!
//! Invariants, each a test of that name: `shares_follow_weights`, `a_target_that_leaves_moves_only_its_own`,
//! `order_of_tables_and_targets_is_irrelevant`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    canonical::Canonical,
    hash::HashAlgorithm,
    logarithm::negative_ln_unit,
    policy::{Policy, RolePolicies},
    weight::Weight,
};

/// Most models with settings of their own.
pub const MODELS_MAX: usize = 1_000;
/// Most targets of one alias.
pub const TARGETS_MAX: usize = 16;
/// Longest name in bytes, as for the models of a worker.
pub const NAME_BYTES_MAX: usize = 256;

/// What is said of one model. Cluster-wide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSettings {
    /// Policy of the workers that serve it; none: the cluster's.
    pub policy: Option<Policy>,
    /// Policies of its prefill and decode workers; none: the cluster's.
    pub roles: RolePolicies,
    /// Models that requests with this name go to; empty: it is no alias.
    pub targets: Vec<Target>,
}

/// One version behind an alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A model as workers call it.
    pub model: String,
    /// Its share of the conversations, against the other targets.
    pub weight: Weight,
}

/// Checked settings of all models that have any, at most [`MODELS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models(BTreeMap<String, ModelSettings>);

impl Models {
    /// Checks that names are distinct and well-formed, and that aliases lead to models, not to aliases.
    /// Errors: the first rule that is broken, with the position of the model that breaks it. An error of the
    /// configuration.
    pub fn new(models: Vec<(String, ModelSettings)>) -> Result<Self, ModelsError> {
        let aliases: BTreeSet<String> = models
            .iter()
            .filter(|(_, settings)| !settings.targets.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        let mut checked = BTreeMap::new();
        for (index, (name, mut settings)) in models.into_iter().enumerate() {
            let refused = |fault| ModelsError { index, fault };
            if index == MODELS_MAX {
                return Err(refused(ModelFault::TooManyModels));
            }
            check(&name, &settings, &aliases).map_err(refused)?;
            // The order in which they are written decides nothing.
            settings.targets.sort_by(|a, b| a.model.cmp(&b.model));
            if checked.insert(name, settings).is_some() {
                return Err(refused(ModelFault::NamedTwice));
            }
        }
        Ok(Self(checked))
    }

    /// The policy of one model's workers, where it has its own.
    pub fn policy_of(&self, model: &str) -> Option<Policy> {
        self.0.get(model)?.policy
    }

    /// The policies of one model's prefill and decode workers, where it has its own.
    pub fn roles_of(&self, model: &str) -> RolePolicies {
        let settings = self.0.get(model);
        settings.map_or_else(RolePolicies::default, |settings| settings.roles)
    }

    /// The same of all models, by name.
    pub(crate) fn roles(&self) -> impl Iterator<Item = (&str, RolePolicies)> {
        let models = self.0.iter();
        models.map(|(name, settings)| (name.as_str(), settings.roles))
    }

    /// Where requests with this name go; `None`: it is no alias. Sorted by model, not empty.
    pub fn targets_of(&self, name: &str) -> Option<&[Target]> {
        let targets = &self.0.get(name)?.targets;
        (!targets.is_empty()).then_some(targets)
    }

    /// All aliases with their targets, sorted by name.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &[Target])> {
        let aliases = self
            .0
            .iter()
            .filter(|(_, settings)| !settings.targets.is_empty());
        aliases.map(|(name, settings)| (name.as_str(), settings.targets.as_slice()))
    }

    pub(crate) fn canonical(&self, bytes: Canonical) -> Canonical {
        let bytes = bytes.number(self.0.len() as u64);
        self.0.iter().fold(bytes, |bytes, (name, settings)| {
            // `roles` are written apart (`role_bytes`): they came later.
            let ModelSettings {
                policy,
                roles: _,
                targets,
            } = settings;
            let bytes = bytes
                .bytes(name.as_bytes())
                .bytes(policy.map_or("", Policy::as_str).as_bytes())
                .number(targets.len() as u64);
            targets.iter().fold(bytes, |bytes, target| {
                let weight = target.weight.thousandths();
                bytes.bytes(target.model.as_bytes()).number(weight.into())
            })
        })
    }
}

fn check(
    name: &str,
    settings: &ModelSettings,
    aliases: &BTreeSet<String>,
) -> Result<(), ModelFault> {
    let ModelSettings {
        policy,
        roles,
        targets,
    } = settings;
    if !is_name(name) {
        return Err(ModelFault::BadName);
    }
    if targets.len() > TARGETS_MAX {
        return Err(ModelFault::TooManyTargets(targets.len()));
    }
    let mut seen = BTreeSet::new();
    for Target { model, .. } in targets {
        if !is_name(model) {
            return Err(ModelFault::BadTarget);
        }
        if !seen.insert(model) {
            return Err(ModelFault::TargetTwice(model.clone()));
        }
        // Its own name means the workers' model of that name: a canary beside what clients ask for already.
        if model != name && aliases.contains(model) {
            return Err(ModelFault::TargetIsAlias(model.clone()));
        }
    }
    let has_workers = targets.is_empty() || targets.iter().any(|target| target.model == name);
    if (policy.is_some() || !roles.is_unset()) && !has_workers {
        return Err(ModelFault::PolicyOfAlias);
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// The target of a conversation among those that are `served`; `None` if none is. Any order of targets gives the same.
pub(crate) fn race<'a>(
    hash: HashAlgorithm,
    alias: &str,
    targets: &'a [Target],
    split_key: u64,
    served: impl Fn(&str) -> bool,
) -> Option<&'a str> {
    let time = |target: &Target| {
        let bytes = Canonical::new("grapevine split 1")
            .bytes(alias.as_bytes())
            .bytes(target.model.as_bytes())
            .number(split_key)
            .into_bytes();
        negative_ln_unit(hash.hash(0, &bytes)) / f64::from(target.weight.thousandths())
    };
    let served = targets.iter().filter(|target| served(&target.model));
    served
        .map(|target| (time(target), target.model.as_str()))
        .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(b.1)))
        .map(|(_, model)| model)
}

/// A broken rule, and the model that breaks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelsError {
    /// Position in the list, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub fault: ModelFault,
}

/// What is wrong with a model's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFault {
    /// More than [`MODELS_MAX`].
    TooManyModels,
    /// Empty, longer than [`NAME_BYTES_MAX`], or with control characters.
    BadName,
    /// An earlier one has the same name.
    NamedTwice,
    /// More than [`TARGETS_MAX`].
    TooManyTargets(usize),
    /// The name of a target is empty, too long, or has control characters.
    BadTarget,
    /// This target is there twice.
    TargetTwice(String),
    /// This target is an alias itself.
    TargetIsAlias(String),
    /// A policy for a name that no worker serves.
    PolicyOfAlias,
}

impl fmt::Display for ModelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyModels => write!(f, "more than {MODELS_MAX} models"),
            Self::BadName | Self::BadTarget => write!(
                f,
                "a model's name has 1 to {NAME_BYTES_MAX} bytes without control characters"
            ),
            Self::NamedTwice => f.write_str("this name is there twice"),
            Self::TooManyTargets(count) => {
                write!(f, "{count} targets are more than {TARGETS_MAX}")
            }
            Self::TargetTwice(model) => write!(f, "`{model}` is there twice"),
            Self::TargetIsAlias(model) => write!(
                f,
                "`{model}` is an alias itself; name the models that workers serve"
            ),
            Self::PolicyOfAlias => {
                f.write_str("an alias has no workers of its own; give each of its targets a policy")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(model: &str, thousandths: u32) -> Target {
        Target {
            model: model.to_owned(),
            weight: Weight::from_thousandths(thousandths).expect("in range"),
        }
    }

    fn alias(name: &str, targets: &[&str]) -> (String, ModelSettings) {
        let targets = targets.iter().map(|model| target(model, 1_000)).collect();
        let settings = ModelSettings {
            targets,
            ..ModelSettings::default()
        };
        (name.to_owned(), settings)
    }

    fn chosen(targets: &[Target], key: u64, served: impl Fn(&str) -> bool) -> Option<&str> {
        race(HashAlgorithm::Xxh3, "alias", targets, key, served)
    }

    #[test]
    fn shares_follow_weights() {
        let targets = [target("a", 6_000), target("b", 3_000), target("c", 1_000)];
        let mut counts = BTreeMap::<&str, u32>::new();
        for key in 0..100_000 {
            *counts
                .entry(chosen(&targets, key, |_| true).expect("served"))
                .or_default() += 1;
        }
        for (model, share) in [("a", 60_000), ("b", 30_000), ("c", 10_000)] {
            // Five standard deviations of the largest share are 775.
            assert!(counts[model].abs_diff(share) < 800, "{counts:?}");
        }
    }

    #[test]
    fn a_target_that_leaves_moves_only_its_own() {
        let targets = [target("a", 6_000), target("b", 3_000), target("c", 1_000)];
        let mut moved = BTreeMap::<&str, u32>::new();
        for key in 0..50_000 {
            let before = chosen(&targets, key, |_| true).expect("served");
            let after = chosen(&targets, key, |model| model != "a").expect("served");
            if before == "a" {
                *moved.entry(after).or_default() += 1;
            } else {
                assert_eq!(before, after);
            }
        }
        let share = f64::from(moved["b"]) / f64::from(moved["b"] + moved["c"]);
        assert!((share - 0.75).abs() < 0.02, "{moved:?}");
        assert_eq!(chosen(&targets, 1, |_| false), None);
    }

    /// Another release must not move conversations to another version.
    #[test]
    fn choices_are_pinned() {
        let targets = [target("a", 1_000), target("b", 1_000)];
        let choices: String = (0..24)
            .filter_map(|key| chosen(&targets, key, |_| true))
            .collect();
        assert_eq!(choices, "bbaabbbbbaabaabbbbabbaba");
    }

    #[test]
    fn order_of_tables_and_targets_is_irrelevant() {
        let one = Models::new(vec![alias("x", &["a", "b"]), alias("y", &["c"])]);
        let other = Models::new(vec![alias("y", &["c"]), alias("x", &["b", "a"])]);
        assert_eq!(one, other);
        let backwards = [target("b", 1_000), target("a", 2_000)];
        let forwards = [target("a", 2_000), target("b", 1_000)];
        for key in 0..1_000 {
            assert_eq!(
                chosen(&forwards, key, |_| true),
                chosen(&backwards, key, |_| true)
            );
        }
    }

    #[test]
    fn broken_rules_are_named() {
        let with_policy = |(name, settings): (String, ModelSettings)| {
            let policy = Some(Policy::Random);
            (name, ModelSettings { policy, ..settings })
        };
        let fault = |models| Models::new(models).map_err(|error| (error.index, error.fault));
        assert!(fault(vec![alias("x", &["x", "y"])]).is_ok());
        assert!(fault(vec![with_policy(alias("x", &["x", "y"]))]).is_ok());
        assert!(fault(vec![with_policy(alias("x", &[]))]).is_ok());
        let long = "m".repeat(NAME_BYTES_MAX + 1);
        let many: Vec<String> = (0..=TARGETS_MAX).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (models, index, expected) in [
            (vec![alias("", &[])], 0, ModelFault::BadName),
            (vec![alias("a\nb", &[])], 0, ModelFault::BadName),
            (vec![alias("x", &[&long])], 0, ModelFault::BadTarget),
            (
                vec![alias("x", &["a"]), alias("x", &[])],
                1,
                ModelFault::NamedTwice,
            ),
            (
                vec![alias("x", &["a", "a"])],
                0,
                ModelFault::TargetTwice("a".to_owned()),
            ),
            (
                vec![alias("x", &["y"]), alias("y", &["a"])],
                0,
                ModelFault::TargetIsAlias("y".to_owned()),
            ),
            (
                vec![with_policy(alias("x", &["y"]))],
                0,
                ModelFault::PolicyOfAlias,
            ),
            (
                vec![alias("x", &many)],
                0,
                ModelFault::TooManyTargets(TARGETS_MAX + 1),
            ),
            (
                (0..=MODELS_MAX)
                    .map(|n| alias(&n.to_string(), &[]))
                    .collect(),
                MODELS_MAX,
                ModelFault::TooManyModels,
            ),
        ] {
            assert_eq!(fault(models), Err((index, expected)));
        }
    }
}
