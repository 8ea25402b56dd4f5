//! Contenders: the rules that are compared. All but the references go through the real placement code.

use std::time::Duration;

use grapevine_placement::{HashBound, Policy, PolicySettings, PrefixIndexSettings, Price, Ratio};

use super::kv_events::KvEvents;

/// How a replica chooses.
#[derive(Debug, Clone)]
pub enum Rule {
    /// The router's code with these settings.
    Placement {
        /// Passed to every decision.
        settings: Box<PolicySettings>,
        /// What the replicas share by gossip.
        shared: Shared,
    },
    /// Fewest tokens that wait for prefill; ties drawn.
    LeastPending,
    /// One router with complete knowledge: true queues and contents, pending + 4 new + 0.05 context.
    Oracle,
}

/// What the replicas share by gossip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// In-flight counts.
    pub load: bool,
    /// Placements.
    pub evidence: Evidence,
    /// Heat.
    pub heat: bool,
    /// Damp load by age.
    pub damped: bool,
    /// Use own counts as the others know them, not the exact ones.
    pub common: bool,
    /// Bound also own requests that no other replica knows of yet. Nothing is sent for this; it belongs here
    /// because it changes what counts as load.
    pub own_bound: bool,
    /// Rates of workers: without them every worker counts as typical.
    pub rates: bool,
}

/// Which placements are sent to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Nothing is remembered at all.
    Off,
    /// Each replica remembers its own; none are sent.
    Own,
    /// Placements that did not go to the home are sent.
    Deviating,
    /// All are sent.
    All,
}

/// A rule with its name.
#[derive(Debug, Clone)]
pub struct Contender {
    /// Name in tables.
    pub name: String,
    /// How it chooses.
    pub rule: Rule,
    /// Limits of its prefix index.
    pub prefix_index: PrefixIndexSettings,
    /// What its replicas hear of the workers' caches.
    pub kv_events: Option<KvEvents>,
}

const ALL: Shared = Shared {
    load: true,
    evidence: Evidence::All,
    heat: true,
    damped: true,
    common: true,
    own_bound: true,
    rates: true,
};

fn ratio(value: f64) -> Ratio {
    Ratio::new(value).expect("a constant in range")
}

impl Contender {
    fn placement(name: &str, settings: PolicySettings, shared: Shared) -> Self {
        Self {
            name: name.to_owned(),
            rule: Rule::Placement {
                settings: Box::new(settings),
                shared,
            },
            prefix_index: PrefixIndexSettings {
                age_max: Duration::from_secs(1_200),
                ..PrefixIndexSettings::default()
            },
            kv_events: None,
        }
    }

    /// The default policy.
    pub fn prefix() -> Self {
        Self::placement("prefix", PolicySettings::default(), ALL)
    }

    /// One router with complete knowledge.
    pub fn oracle() -> Self {
        Self {
            name: "oracle".to_owned(),
            rule: Rule::Oracle,
            ..Self::prefix()
        }
    }

    /// All policies, the default one first.
    pub fn policies() -> Vec<Self> {
        let of = |policy| PolicySettings {
            policy,
            ..PolicySettings::default()
        };
        let own = Shared {
            load: false,
            evidence: Evidence::Own,
            heat: false,
            damped: true,
            common: true,
            own_bound: true,
            rates: true,
        };
        let bounded = |hash_bound| PolicySettings {
            hash_bound,
            ..of(Policy::ConsistentHash)
        };
        vec![
            Self::prefix(),
            Self {
                name: "least_pending".to_owned(),
                rule: Rule::LeastPending,
                ..Self::prefix()
            },
            Self::placement("least_request", of(Policy::LeastRequest), ALL),
            Self::placement("cache_aware shared", of(Policy::CacheAware), ALL),
            Self::placement("cache_aware own", of(Policy::CacheAware), own),
            Self::placement("consistent_hash", of(Policy::ConsistentHash), ALL),
            Self::placement(
                "chwbl requests",
                bounded(HashBound::Requests(ratio(1.25))),
                ALL,
            ),
            Self::placement(
                "chwbl pending",
                bounded(HashBound::PrefillTokens(ratio(1.25))),
                ALL,
            ),
            Self::placement("power_of_two", of(Policy::PowerOfTwo), ALL),
            Self::placement("round_robin", of(Policy::RoundRobin), ALL),
            Self::placement("random", of(Policy::Random), ALL),
        ]
    }

    /// The default policy with one part changed or left out.
    pub fn ablations() -> Vec<Self> {
        let base = PolicySettings::default();
        let Price::Additive {
            prefill: p,
            context: c,
            tolerance: t,
        } = Price::ADDITIVE
        else {
            return Vec::new();
        };
        let price = |name, [prefill, context, tolerance]: [f64; 3]| {
            let price = Price::Additive {
                prefill: ratio(prefill),
                context: ratio(context),
                tolerance: ratio(tolerance),
            };
            Self::placement(name, PolicySettings { price, ..base }, ALL)
        };
        let rule = |name, change: fn(&mut PolicySettings)| {
            let mut settings = base;
            change(&mut settings);
            Self::placement(name, settings, ALL)
        };
        let gossip = |name, change: fn(&mut Shared)| {
            let mut shared = ALL;
            change(&mut shared);
            Self::placement(name, base, shared)
        };
        let (p, c, t) = (p.get(), c.get(), t.get());
        vec![
            Self::prefix(),
            price("price 1", [1.0, c, t]),
            price("price 2", [2.0, c, t]),
            price("price 4", [4.0, c, t]),
            price("no context price", [p, 0.0, t]),
            price("no tolerance", [p, c, 0.0]),
            price("tolerance 0.25", [p, c, 0.25]),
            price("tolerance 1", [p, c, 1.0]),
            price("tolerance 2", [p, c, 2.0]),
            rule("multiplicative", |of| of.price = Price::MULTIPLICATIVE),
            rule("no bound", |of| {
                (of.bound.factor, of.bound.slack) = (ratio(1e6), ratio(1e6));
            }),
            rule("hard bound", |of| of.outer_bound = ratio(1.0)),
            gossip("no own bound", |of| of.own_bound = false),
            gossip("own counts at once", |of| of.common = false),
            gossip("no rates", |of| of.rates = false),
            rule("all choices", |of| of.choices = 0),
            rule("no heat", |of| of.heat.share = ratio(0.0)),
            rule("heat 0.25", |of| of.heat.share = ratio(0.25)),
            rule("heat 1", |of| of.heat.share = ratio(1.0)),
            gossip("evidence deviating", |of| of.evidence = Evidence::Deviating),
            gossip("evidence own", |of| of.evidence = Evidence::Own),
            gossip("no evidence", |of| of.evidence = Evidence::Off),
            gossip("no damping", |of| of.damped = false),
            gossip("no load", |of| of.load = false),
        ]
    }

    /// The contender of this name. A policy of the placement code may be followed by what its replicas hear of the
    /// workers' caches, and how long after: `prefix+events@5ms`, `prefix+learned@5ms` ([`KvEvents::named`]).
    pub fn named(name: &str) -> Option<Self> {
        if let Some((policy, events)) = name.split_once('+') {
            let contender = Self::named(policy)?;
            let is_placement = matches!(contender.rule, Rule::Placement { .. });
            return is_placement.then_some(Self {
                name: name.to_owned(),
                kv_events: Some(KvEvents::named(events)?),
                ..contender
            });
        }
        let mut all = Self::policies();
        all.extend(Self::ablations());
        all.push(Self::oracle());
        all.into_iter().find(|contender| contender.name == name)
    }
}
