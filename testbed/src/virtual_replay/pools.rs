//! Pools of workers by role: each has a ring, a policy and rates of its own, as in the router.

use std::ops::Range;

use grapevine_placement::{Member, Policy, PolicySettings, Ring, RingSettings, Weight};

use super::rates::Rates;
use super::scenario::Scenario;

/// Addresses of one net.
const HOSTS: usize = 256;
/// Nets are numbered in steps of this: one for each pool, and one to spare.
const NETS: usize = 4;
/// Most workers of a pool.
pub const WORKERS_MAX: usize = HOSTS / NETS * HOSTS;

/// What the workers of a pool do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Prompts and answers.
    Any,
    Prefill,
    Decode,
}

/// The workers of one role.
pub(super) struct Pool {
    pub(super) ring: Ring,
    pub(super) settings: PolicySettings,
    pub(super) rates: Rates,
    /// Which of [`Pools::all`] it is.
    pub(super) number: usize,
    /// Place of its first worker among all.
    first: usize,
}

impl Pool {
    /// Places of its workers among all.
    pub(super) fn places(&self) -> Range<usize> {
        self.first..self.first + self.ring.len()
    }
}

/// Where a worker of a pool is, by its number there: another place for each, up to [`WORKERS_MAX`].
fn address(net: u8, ring: u8, index: usize) -> String {
    let block = usize::from(net) + NETS * (index / HOSTS);
    format!("http://10.{block}.{ring}.{}:8000", index % HOSTS)
}

/// All pools.
pub(super) struct Pools {
    any: Pool,
    prefill: Pool,
    decode: Pool,
}

impl Pools {
    /// Decode workers are chosen by `least_kv`, all others by the policy of `settings`.
    pub(super) fn new(scenario: &Scenario, settings: &PolicySettings) -> Self {
        let (prefill, decode) = scenario.split.as_ref().map_or((0, 0), |split| {
            (split.prefill_workers, split.decode_workers)
        });
        let least_kv = PolicySettings {
            policy: Policy::LeastKv,
            ..*settings
        };
        let pool = |net: u8, workers: usize, first: usize, settings: &PolicySettings| {
            let members = (0..workers).map(|index| Member {
                id: address(net, scenario.ring, index),
                weight: Weight::ONE,
            });
            Pool {
                ring: Ring::build(&RingSettings::default(), members).expect("distinct ids"),
                settings: *settings,
                rates: Rates::new(scenario.replicas, workers),
                number: net.into(),
                first,
            }
        };
        Self {
            any: pool(0, scenario.workers, 0, settings),
            prefill: pool(1, prefill, scenario.workers, settings),
            decode: pool(2, decode, scenario.workers + prefill, &least_kv),
        }
    }

    pub(super) fn all(&self) -> [&Pool; 3] {
        [&self.any, &self.prefill, &self.decode]
    }

    pub(super) fn of(&self, role: Role) -> &Pool {
        match role {
            Role::Any => &self.any,
            Role::Prefill => &self.prefill,
            Role::Decode => &self.decode,
        }
    }

    fn all_mut(&mut self) -> [&mut Pool; 3] {
        [&mut self.any, &mut self.prefill, &mut self.decode]
    }

    /// Names of all workers, in the order of their places.
    pub(super) fn names(&self) -> Vec<String> {
        let members = self.all().into_iter().flat_map(|pool| pool.ring.members());
        members.map(|member| member.id.clone()).collect()
    }

    /// A worker computed so many tokens before a first one.
    pub(super) fn answered(&mut self, replica: usize, worker: usize, tokens_before: u64, us: u64) {
        for pool in self.all_mut() {
            if pool.places().contains(&worker) {
                let at = worker - pool.first;
                pool.rates.answered(replica, at, tokens_before, us);
            }
        }
    }

    /// Replicas exchange what they saw of rates; if `alone`, each uses only its own.
    pub(super) fn tell_rates(&mut self, alone: bool) {
        for pool in self.all_mut() {
            pool.rates.tell(alone);
        }
    }
}
