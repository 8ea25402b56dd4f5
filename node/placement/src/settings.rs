//! What all replicas of a cluster must agree on, and its fingerprint.

use std::time::Duration;

use crate::{
    canonical::{Canonical, Digest},
    evidence::PrefixIndexSettings,
    key::KeySettings,
    models::{self, Models},
    policy::{CacheAware, DECODE_POLICY, Policy, PolicySettings, Price, RolePolicies},
    ratio::Ratio,
    ring::RingSettings,
};

/// The `[cluster]` settings: a replica with other ones would place the same request elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterSettings {
    /// How workers become a ring.
    pub ring: RingSettings,
    /// How text becomes a key.
    pub key: KeySettings,
    /// How a worker is chosen for a key.
    pub policy: PolicySettings,
    /// How prefill and decode workers are chosen.
    pub roles: RolePolicies,
    /// How much is remembered of workers' caches. Its limits on memory decide too: what one replica forgot, and
    /// another still knows, sends the same prompt to two workers.
    pub prefix_index: PrefixIndexSettings,
    /// Header, in lower case, whose value is salted into keys: its tenants share no prefix.
    pub tenant_header: Option<String>,
    /// Headers, in lower case, that name a session where the well-known ones do not.
    pub session_headers: Vec<String>,
    /// Policies of single models, and aliases.
    pub models: Models,
}

impl ClusterSettings {
    /// The settings as canonical bytes, for [`crate::total_digest`].
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let Self {
            ring,
            key,
            policy,
            roles,
            prefix_index,
            tenant_header,
            session_headers,
            models,
        } = self;
        let bytes = Canonical::new("grapevine cluster 1").bytes(&ring.canonical_bytes());
        let bytes = prefix_index_bytes(prefix_index, policy_bytes(policy, key_bytes(key, bytes)))
            // No header has an empty name.
            .bytes(tenant_header.as_deref().unwrap_or_default().as_bytes());
        let bytes = price_bytes(&policy.price, models.canonical(bytes));
        let bytes = role_bytes(*roles, models, bytes);
        let bytes = match session_headers.is_empty() {
            // As releases without them have it.
            true => bytes,
            false => bytes.bytes(b"session headers"),
        };
        let names = session_headers.iter();
        names
            .fold(bytes, |bytes, name| bytes.bytes(name.as_bytes()))
            .into_bytes()
    }

    /// How workers of a model are chosen: its own policy where it has one, else the cluster's.
    pub fn policy_of(&self, model: &str) -> PolicySettings {
        PolicySettings {
            policy: self.models.policy_of(model).unwrap_or(self.policy.policy),
            ..self.policy
        }
    }

    /// How prefill workers of a model are chosen: as [`ClusterSettings::policy_of`], where nothing else is said of them.
    pub fn prefill_policy_of(&self, model: &str) -> PolicySettings {
        let whole = self.policy_of(model);
        let own = self.models.roles_of(model).prefill;
        let policy = own.or(self.roles.prefill).unwrap_or(whole.policy);
        PolicySettings { policy, ..whole }
    }

    /// How decode workers of a model are chosen: by [`DECODE_POLICY`], where nothing else is said of them.
    pub fn decode_policy_of(&self, model: &str) -> PolicySettings {
        let own = self.models.roles_of(model).decode;
        let policy = own.or(self.roles.decode).unwrap_or(DECODE_POLICY);
        PolicySettings {
            policy,
            ..self.policy
        }
    }

    /// The model that a request by this name goes to: the name itself, or one target of an alias.
    ///
    /// `split_key` is the conversation's ([`crate::Key::home`]); `served`: whether any worker serves a model. Targets
    /// that no worker serves are passed over. `None`: an alias of which no target is served.
    #[must_use]
    pub fn target_of<'a>(
        &'a self,
        name: &'a str,
        split_key: u64,
        served: impl Fn(&str) -> bool,
    ) -> Option<&'a str> {
        match self.models.targets_of(name) {
            None => Some(name),
            Some(targets) => models::race(self.key.hash, name, targets, split_key, served),
        }
    }

    /// CRC-32 of the canonical bytes: gossiped, so that a replica configured differently is noticed.
    pub fn fingerprint(&self) -> Digest {
        Digest(crc32fast::hash(&self.canonical_bytes()))
    }
}

// Without `..` in all of these: a new setting that is not written here does not compile.

fn key_bytes(key: &KeySettings, bytes: Canonical) -> Canonical {
    let KeySettings {
        hash,
        seed,
        text_key_bytes,
        bytes_per_token,
    } = key;
    bytes
        .bytes(hash.as_str().as_bytes())
        .number(*seed)
        .number(text_key_bytes.get().into())
        .number(bytes_per_token.get().into())
}

/// All but the numbers of the price, which came later.
fn policy_bytes(policy: &PolicySettings, bytes: Canonical) -> Canonical {
    let PolicySettings {
        policy,
        price,
        bound,
        crowd_price,
        outer_bound,
        choices,
        heat,
        hash_bound,
        cache_aware,
        panic,
    } = policy;
    let CacheAware {
        match_share,
        imbalance_requests,
        imbalance_factor,
    } = cache_aware;
    bytes
        .bytes(policy.as_str().as_bytes())
        .bytes(price.as_str().as_bytes())
        .number(bound.factor.bits())
        .number(bound.slack.bits())
        .number(crowd_price.bits())
        .number(outer_bound.bits())
        .number((*choices).into())
        .number(heat.share.bits())
        .number(nanoseconds(heat.half_life))
        .bytes(hash_bound.as_str().as_bytes())
        .number(hash_bound.factor().bits())
        .number(match_share.bits())
        .number(imbalance_requests.bits())
        .number(imbalance_factor.bits())
        .number(u64::from(*panic))
}

fn prefix_index_bytes(prefix_index: &PrefixIndexSettings, bytes: Canonical) -> Canonical {
    let PrefixIndexSettings {
        entries_max,
        cache_tokens,
        age_max,
        told_after,
    } = prefix_index;
    let bytes = bytes
        .number(u64::from(*entries_max))
        .number(*cache_tokens)
        .number(nanoseconds(*age_max));
    // It came later, and a cluster that leaves it alone keeps its fingerprint.
    if *told_after == PrefixIndexSettings::default().told_after {
        return bytes;
    }
    bytes.bytes(b"told_after").number(nanoseconds(*told_after))
}

fn price_bytes(price: &Price, bytes: Canonical) -> Canonical {
    let ratios: &[Ratio] = match price {
        Price::Additive {
            prefill,
            context,
            tolerance,
        } => &[*prefill, *context, *tolerance],
        Price::Multiplicative {
            prefill,
            overhead,
            patience,
            tolerance,
        } => &[*prefill, *overhead, *patience, *tolerance],
    };
    let number = |bytes: Canonical, ratio: &Ratio| bytes.number(ratio.bits());
    ratios.iter().fold(bytes, number)
}

/// Policies by role, the cluster's under the empty name, which no model has. None where none is set: they came later,
/// and a cluster without them keeps its fingerprint.
fn role_bytes(roles: RolePolicies, models: &Models, bytes: Canonical) -> Canonical {
    let all = std::iter::once(("", roles)).chain(models.roles());
    let set: Vec<_> = all.filter(|(_, roles)| !roles.is_unset()).collect();
    if set.is_empty() {
        return bytes;
    }
    let bytes = bytes.bytes(b"roles").number(set.len() as u64);
    set.into_iter().fold(bytes, |bytes, (name, roles)| {
        let RolePolicies { prefill, decode } = roles;
        let word = |policy: Option<Policy>| policy.map_or("", Policy::as_str);
        bytes
            .bytes(name.as_bytes())
            .bytes(word(prefill).as_bytes())
            .bytes(word(decode).as_bytes())
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU8, NonZeroU16, NonZeroU32};

    use super::*;
    use crate::{
        hash::HashAlgorithm,
        models::{ModelSettings, Target},
        policy::HashBound,
        weight::Weight,
    };

    #[test]
    fn every_setting_changes_the_fingerprint() {
        type Change = (&'static str, fn(&mut ClusterSettings));
        let changes: [Change; 37] = [
            ("nothing", |_| ()),
            ("virtual nodes", |all| {
                all.ring.virtual_nodes = NonZeroU16::MIN
            }),
            ("ring hash", |all| all.ring.hash = HashAlgorithm::City),
            ("ring seed", |all| all.ring.seed = 1),
            ("key hash", |all| all.key.hash = HashAlgorithm::City),
            ("key seed", |all| all.key.seed = 1),
            ("text key", |all| all.key.text_key_bytes = NonZeroU32::MIN),
            ("bytes per token", |all| {
                all.key.bytes_per_token = NonZeroU8::MIN
            }),
            ("policy", |all| all.policy.policy = Policy::Random),
            ("price", |all| all.policy.price = Price::MULTIPLICATIVE),
            ("price of context", |all| {
                all.policy.price = Price::Additive {
                    prefill: Ratio::constant(4.0),
                    context: Ratio::constant(0.06),
                    tolerance: Ratio::constant(0.5),
                };
            }),
            ("bound factor", |all| {
                all.policy.bound.factor = Ratio::constant(2.0)
            }),
            ("bound slack", |all| {
                all.policy.bound.slack = Ratio::constant(2.0)
            }),
            ("crowd price", |all| {
                all.policy.crowd_price = Ratio::constant(1.0)
            }),
            ("outer bound", |all| {
                all.policy.outer_bound = Ratio::constant(3.0)
            }),
            ("choices", |all| all.policy.choices = 2),
            ("heat share", |all| {
                all.policy.heat.share = Ratio::constant(0.7)
            }),
            ("heat half life", |all| {
                all.policy.heat.half_life = Duration::from_secs(7);
            }),
            ("hash bound", |all| {
                all.policy.hash_bound = HashBound::Requests(Ratio::constant(1.25));
            }),
            ("hash bound kind", |all| {
                all.policy.hash_bound = HashBound::PrefillTokens(Ratio::constant(1.25));
            }),
            ("match share", |all| {
                all.policy.cache_aware.match_share = Ratio::constant(0.5);
            }),
            ("imbalance requests", |all| {
                all.policy.cache_aware.imbalance_requests = Ratio::constant(32.0);
            }),
            ("imbalance factor", |all| {
                all.policy.cache_aware.imbalance_factor = Ratio::constant(1.1);
            }),
            ("panic", |all| all.policy.panic = false),
            ("tenant header", |all| {
                all.tenant_header = Some("x-tenant".to_owned());
            }),
            ("session headers", |all| {
                all.session_headers = vec!["thread-id".to_owned()];
            }),
            ("policy of a model", |all| {
                all.models = models("m", Some(Policy::Random), &[]);
            }),
            ("policy of prefill", |all| {
                all.roles.prefill = Some(Policy::Random);
            }),
            ("policy of decode", |all| {
                all.roles.decode = Some(Policy::Random);
            }),
            ("policy of a model's decode", |all| {
                let mut settings = ModelSettings::default();
                settings.roles.decode = Some(Policy::Random);
                let models = vec![("m".to_owned(), settings)];
                all.models = Models::new(models).expect("well-formed");
            }),
            ("an alias", |all| {
                all.models = models("m", None, &[("a", 1)])
            }),
            ("a target", |all| {
                all.models = models("m", None, &[("b", 1)])
            }),
            ("a weight", |all| {
                all.models = models("m", None, &[("b", 2)])
            }),
            ("prefix index entries", |all| {
                all.prefix_index.entries_max = 7
            }),
            ("cache tokens", |all| all.prefix_index.cache_tokens = 7),
            ("age of evidence", |all| {
                all.prefix_index.age_max = Duration::from_secs(7);
            }),
            ("evidence against what a worker says", |all| {
                all.prefix_index.told_after = Duration::from_secs(7);
            }),
        ];
        let mut seen = Vec::new();
        for (name, change) in changes {
            let mut settings = ClusterSettings::default();
            change(&mut settings);
            let fingerprint = settings.fingerprint();
            assert!(!seen.contains(&fingerprint), "{name}");
            seen.push(fingerprint);
        }
    }

    fn models(name: &str, policy: Option<Policy>, targets: &[(&str, u32)]) -> Models {
        let targets = targets.iter().map(|&(model, weight)| Target {
            model: model.to_owned(),
            weight: Weight::from_thousandths(weight).expect("in range"),
        });
        let targets = targets.collect();
        let settings = ModelSettings {
            policy,
            targets,
            ..ModelSettings::default()
        };
        Models::new(vec![(name.to_owned(), settings)]).expect("well-formed")
    }

    #[test]
    fn a_model_may_have_its_own_policy() {
        let settings = ClusterSettings {
            models: models("m", Some(Policy::Random), &[]),
            ..ClusterSettings::default()
        };
        assert_eq!(settings.policy_of("m").policy, Policy::Random);
        assert_eq!(settings.policy_of("n"), settings.policy);
        assert_eq!(settings.target_of("m", 1, |_| false), Some("m"));
    }

    #[test]
    fn roles_have_policies_of_their_own() {
        let of = |settings: &ClusterSettings, model| {
            let prefill = settings.prefill_policy_of(model).policy;
            (prefill, settings.decode_policy_of(model).policy)
        };
        let mut settings = ClusterSettings {
            models: models("m", Some(Policy::Sticky), &[]),
            ..ClusterSettings::default()
        };
        assert_eq!(of(&settings, "m"), (Policy::Sticky, DECODE_POLICY));
        assert_eq!(of(&settings, "n"), (Policy::default(), DECODE_POLICY));
        settings.roles = RolePolicies {
            prefill: Some(Policy::CacheAware),
            decode: Some(Policy::RoundRobin),
        };
        for model in ["m", "n"] {
            let expected = (Policy::CacheAware, Policy::RoundRobin);
            assert_eq!(of(&settings, model), expected);
        }
        let mut own = ModelSettings::default();
        own.roles.prefill = Some(Policy::Random);
        settings.models = Models::new(vec![("m".to_owned(), own)]).expect("well-formed");
        assert_eq!(of(&settings, "m"), (Policy::Random, Policy::RoundRobin));
    }

    #[test]
    fn ratios_are_finite_and_not_negative() {
        for (value, accepted) in [
            (0.0, true),
            (-0.0, true),
            (1.5, true),
            (1e6, true),
            (1e6 + 1.0, false),
            (-0.1, false),
            (f64::NAN, false),
            (f64::INFINITY, false),
        ] {
            assert_eq!(Ratio::new(value).is_ok(), accepted, "{value}");
        }
        assert_eq!(
            Ratio::new(-0.0).map(Ratio::bits),
            Ratio::new(0.0).map(Ratio::bits)
        );
    }
}
