//! Fleet: the one view that all policies decide on.

use super::{Candidate, Decision, NoWorker, Policy, PolicySettings, Reason, Standing};
use super::{consistent_hash, least_request, power_of_two, prefix, random, round_robin, sticky};
use crate::{key::Key, order::Order, ring::Ring};

/// Candidates of one request, and what is true of all of them together.
pub(super) struct Fleet<'a> {
    pub(super) settings: &'a PolicySettings,
    pub(super) key: &'a Key,
    /// Order of the hash that the policy looks up.
    pub(super) order: Order<'a>,
    ring: &'a Ring,
    candidates: &'a [Candidate],
    tried: &'a [usize],
    /// More than half unhealthy: health is not believed.
    pub(super) panic: bool,
    /// Whether the bound keeps workers out: in policy `prefix`, unless nobody usable is below it.
    bounded: bool,
    /// First eligible worker in order: the home, or who stands in for it. None if nobody is usable.
    holder: Option<usize>,
    /// Requests in flight per worker, the one being placed included.
    mean_requests: f64,
    /// The same of this replica's own requests.
    mean_own: f64,
    /// In thousandths.
    mean_weight: f64,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(
        settings: &'a PolicySettings,
        ring: &'a Ring,
        key: &'a Key,
        candidates: &'a [Candidate],
        tried: &'a [usize],
    ) -> Result<Self, NoWorker> {
        assert_eq!(
            ring.len(),
            candidates.len(),
            "one candidate per member of the ring"
        );
        let order = ring
            .order(settings.policy.hash(key))
            .ok_or(NoWorker::Empty)?;
        let unhealthy = candidates
            .iter()
            .filter(|candidate| candidate.standing == Standing::Unhealthy)
            .count();
        let panic = settings.panic && unhealthy * 2 > candidates.len();
        let mut fleet = Self {
            settings,
            key,
            order,
            ring,
            candidates,
            tried,
            panic,
            bounded: settings.policy == Policy::Prefix,
            holder: None,
            mean_requests: 1.0,
            mean_own: 1.0,
            mean_weight: 1.0,
        };

        // The mean is over those that share the load: a dead worker's zero would tighten everybody's bound.
        let (mut count, mut requests, mut own, mut weight) = (0.0, 1.0, 1.0, 0.0);
        for index in (0..ring.len()).filter(|&index| fleet.in_service(index)) {
            count += 1.0;
            requests += candidates[index].load.requests;
            own += candidates[index].own_requests;
            weight += f64::from(fleet.weight(index));
        }
        if count > 0.0 {
            fleet.mean_requests = requests / count;
            fleet.mean_own = own / count;
            fleet.mean_weight = weight / count;
        }

        fleet.holder = fleet.order.first(|index| fleet.eligible(index));
        if fleet.holder.is_none() {
            // Those below the bound are all tried or full. The bound alone never refuses a request.
            fleet.bounded = false;
            fleet.holder = fleet.order.first(|index| fleet.usable(index));
        }
        Ok(fleet)
    }

    pub(super) fn decide(&self, draw: u64) -> Result<Decision, NoWorker> {
        let holder = self.holder.ok_or_else(|| self.no_worker())?;
        let (worker, reason) = match self.settings.policy {
            Policy::Prefix => prefix::choose(self, holder),
            Policy::ConsistentHash => consistent_hash::choose(self, holder),
            Policy::Sticky => sticky::choose(self, holder, draw),
            Policy::LeastRequest => least_request::choose(self),
            Policy::PowerOfTwo => power_of_two::choose(self, draw),
            Policy::Random => random::choose(self, draw),
            Policy::RoundRobin => round_robin::choose(self, draw),
        };
        Ok(Decision {
            worker,
            home: self.order.home(),
            reason,
            expected_tokens: self.expected_tokens(worker),
            prompt_tokens: self.key.prompt_tokens(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.candidates.len()
    }

    pub(super) fn candidate(&self, index: usize) -> &Candidate {
        &self.candidates[index]
    }

    /// Weight in thousandths.
    pub(super) fn weight(&self, index: usize) -> u32 {
        self.ring.members()[index].weight.thousandths()
    }

    /// Weight over the mean weight: 1.0 for an ordinary worker.
    pub(super) fn relative_weight(&self, index: usize) -> f64 {
        f64::from(self.weight(index)) / self.mean_weight
    }

    pub(super) fn tried(&self, index: usize) -> bool {
        self.tried.contains(&index)
    }

    /// Whether this worker may take this request, the bound apart.
    pub(super) fn usable(&self, index: usize) -> bool {
        !self.tried(index)
            && match self.candidates[index].standing {
                Standing::Usable => true,
                Standing::Unhealthy => self.panic,
                Standing::Full | Standing::Draining => false,
            }
    }

    /// Whether this worker may take this request.
    pub(super) fn eligible(&self, index: usize) -> bool {
        self.usable(index) && (!self.bounded || self.within_bound(index))
    }

    /// Members that may be used by this request, in order of their ids.
    pub(super) fn usable_indices(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|&index| self.usable(index))
    }

    /// Most requests in flight that this worker may have.
    pub(super) fn limit(&self, index: usize) -> f64 {
        self.limit_above(index, self.mean_requests)
    }

    fn limit_above(&self, index: usize, mean: f64) -> f64 {
        let share = self.relative_weight(index) * mean;
        (self.settings.bound.factor.get() * share).max(mean + self.settings.bound.slack.get())
    }

    /// Whether the request, once placed here, stays within the bound: of the cluster, as far as its news is
    /// fresh, and of this replica's own requests, which are exact. Requests that end together make room that
    /// every replica sees before it sees who takes it; own bounds add up to the cluster's, however old the news.
    fn within_bound(&self, index: usize) -> bool {
        let candidate = &self.candidates[index];
        candidate.load.requests + 1.0 <= self.limit(index)
            && candidate.own_requests + 1.0 <= self.limit_above(index, self.mean_own)
    }

    /// Tokens of the prompt expected in this worker's cache: a part of the stable ones at the first eligible
    /// worker in order, none elsewhere.
    ///
    /// Not only at the home: a dead or crowded home's conversations would wander, each turn to whoever is idle.
    /// Every replica that skips the home expects them at the same heir.
    pub(super) fn expected_tokens(&self, index: usize) -> u32 {
        if Some(index) != self.holder {
            return 0;
        }
        let credit = self.settings.home_credit.get().min(1.0);
        // Rounded down; at most the stable tokens, so it fits.
        (credit * f64::from(self.key.stable_tokens())) as u32
    }

    /// Reason of a choice by order: what kept the request from its home.
    pub(super) fn why_not_home(&self, worker: usize) -> Reason {
        let home = self.order.home();
        if worker == home {
            return Reason::Home;
        }
        if self.tried(home) {
            return Reason::Failover;
        }
        match self.candidates[home].standing {
            Standing::Unhealthy if !self.panic => Reason::Failover,
            Standing::Draining => Reason::Drain,
            Standing::Full => Reason::SpillFull,
            Standing::Unhealthy | Standing::Usable if self.within_bound(home) => Reason::SpillPrice,
            Standing::Unhealthy | Standing::Usable => Reason::SpillBound,
        }
    }

    /// Whether the worker takes a share of the load now.
    fn in_service(&self, index: usize) -> bool {
        match self.candidates[index].standing {
            Standing::Usable | Standing::Full => true,
            Standing::Unhealthy => self.panic,
            Standing::Draining => false,
        }
    }

    /// Why nobody is usable; the most hopeful cause wins.
    fn no_worker(&self) -> NoWorker {
        let any = |standing| {
            self.candidates
                .iter()
                .any(|candidate| candidate.standing == standing)
        };
        let tried = |index: usize| self.tried(index) && self.in_service(index);
        if any(Standing::Full) {
            NoWorker::Full
        } else if (0..self.len()).any(tried) {
            NoWorker::Tried
        } else if any(Standing::Unhealthy) {
            NoWorker::Unhealthy
        } else {
            NoWorker::Draining
        }
    }
}
