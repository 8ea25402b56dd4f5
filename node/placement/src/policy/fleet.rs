//! Fleet: the one view that all policies decide on.

use super::{Candidate, Decision, Home, NoWorker, Policy, PolicySettings, Reason, Standing, View};
use super::{
    cache_aware, consistent_hash, least_request, power_of_two, prefix, random, round_robin, sticky,
};
use crate::{key::Key, order::Order, ring::Ring};

/// Candidates of one request, and what is true of all of them together.
pub(super) struct Fleet<'a> {
    pub(super) settings: &'a PolicySettings,
    pub(super) key: &'a Key,
    /// Order of the hash that the policy looks up.
    pub(super) order: Order<'a>,
    /// Where the prompt belongs: which members of the order come first.
    place: Home,
    /// First member in order, whatever its standing.
    home: usize,
    /// Evidence knows of the prompt beyond what is hot: the hash alone is not believed.
    pub(super) known: bool,
    ring: &'a Ring,
    candidates: &'a [Candidate],
    tried: &'a [usize],
    /// The same as a mark for each worker, where they are many; else empty.
    tried_marks: Vec<bool>,
    /// The health of more than half is bad: it is not believed.
    pub(super) panic: bool,
    /// Somebody is well: to use the others all the same spares those that are.
    spares_the_well: bool,
    /// Workers that refuse connections are passed over, unless nobody else is left: panic does not raise the dead.
    buries: bool,
    /// Workers that start slowly are spared, unless nobody else is left.
    spares: bool,
    /// Workers that others speak against are passed over, unless nobody else is left.
    doubts: bool,
    /// Whether the bound keeps workers out: in policy `prefix`, unless nobody usable is below it.
    bounded: bool,
    /// Somebody may be above the bound: asked once of all, since mostly nobody is.
    pub(super) crowds: bool,
    /// First eligible worker in order: the home, or who stands in for it. None if nobody is usable.
    holder: Option<usize>,
    /// Requests in flight per worker, the one being placed included.
    pub(super) mean_requests: f64,
    /// The same in a surge ([`Candidate::surge_requests`]).
    mean_surge: f64,
    /// No turn of a conversation: most of the prompt is hot, or all of it was placed before.
    /// Many requests like it may come and end together.
    alike: bool,
    /// In thousandths.
    mean_weight: f64,
}

/// The greatest counts of any worker.
#[derive(Default)]
struct Most {
    requests: f64,
    surge: f64,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(
        settings: &'a PolicySettings,
        view: View<'a>,
        key: &'a Key,
        candidates: &'a [Candidate],
        tried: &'a [usize],
    ) -> Result<Self, NoWorker> {
        let ring = view.ring;
        assert_eq!(
            ring.len(),
            candidates.len(),
            "one candidate per member of the ring"
        );
        let place = Policy::home(settings, view, key);
        let order = ring.order(place.hash).ok_or(NoWorker::Empty)?;
        let home = place.first(&order, |_| true).ok_or(NoWorker::Empty)?;
        let (mut bad, mut doubted, mut well, mut spares) = (0, 0, 0, false);
        let (mut held, mut most) = (0, Most::default());
        for candidate in candidates {
            let standing = candidate.standing;
            bad += usize::from(standing.is_bad());
            doubted += usize::from(standing == Standing::Doubted);
            well += usize::from(matches!(standing, Standing::Usable | Standing::Full));
            spares |= candidate.slow_start.is_some();
            held = held.max(candidate.held_tokens);
            most.requests = most.requests.max(candidate.load.requests);
            most.surge = most.surge.max(candidate.surge_requests);
        }
        let is_whole = |held: u32| key.marks().last().is_some_and(|last| held >= last.tokens);
        let alike = place.inner_tokens > key.prompt_tokens() / 2 || is_whole(held);
        let mut fleet = Self {
            settings,
            key,
            order,
            home,
            known: held > place.inner_tokens,
            place,
            ring,
            candidates,
            tried,
            tried_marks: marked(tried, ring.len()),
            panic: settings.panics(bad, candidates.len()),
            spares_the_well: well + doubted > 0,
            buries: true,
            spares,
            // Together the others may doubt more than each of them alone is believed.
            doubts: doubted > 0 && !settings.panics(bad + doubted, candidates.len()),
            bounded: settings.policy == Policy::Prefix,
            crowds: true,
            holder: None,
            mean_requests: 1.0,
            mean_surge: 1.0,
            alike,
            mean_weight: 1.0,
        };

        // The mean is over those that share the load: a dead worker's zero would tighten everybody's bound.
        let (mut count, mut requests, mut surge, mut weight) = (0.0, 1.0, 1.0, 0.0);
        for index in (0..ring.len()).filter(|&index| fleet.in_service(index)) {
            count += 1.0;
            requests += candidates[index].load.requests;
            surge += candidates[index].surge_requests;
            weight += f64::from(fleet.weight(index));
        }
        if count > 0.0 {
            fleet.mean_requests = requests / count;
            fleet.mean_surge = surge / count;
            fleet.mean_weight = weight / count;
        }
        // No limit is below the mean and the slack.
        let is_above =
            |most: f64, mean: f64| most + 1.0 - (mean + settings.bound.slack.get()) > 0.0;
        fleet.crowds =
            is_above(most.requests, fleet.mean_requests) || is_above(most.surge, fleet.mean_surge);

        fleet.holder = fleet.first(|index| fleet.eligible(index));
        // None of these rules alone refuses a request: the weakest gives way first.
        while fleet.holder.is_none() {
            // Rather wait for somebody who answers than ask those who do not.
            let may_ask_the_dead = !fleet.is_full();
            let strictest = [&mut fleet.spares, &mut fleet.bounded, &mut fleet.doubts];
            match strictest.into_iter().find(|rule| **rule) {
                Some(rule) => *rule = false,
                None if fleet.buries && may_ask_the_dead => fleet.buries = false,
                None => break,
            }
            fleet.holder = fleet.first(|index| fleet.eligible(index));
        }
        Ok(fleet)
    }

    pub(super) fn decide(&self, draw: u64) -> Result<Decision, NoWorker> {
        let holder = self.holder.ok_or_else(|| self.no_worker())?;
        let (worker, reason) = match self.settings.policy {
            Policy::Prefix => prefix::choose(self, holder),
            Policy::ConsistentHash => consistent_hash::choose(self, holder),
            Policy::CacheAware => cache_aware::choose(self),
            Policy::Sticky => sticky::choose(self, holder, draw),
            Policy::LeastRequest => least_request::choose(self),
            Policy::PowerOfTwo => power_of_two::choose(self, draw),
            Policy::Random => random::choose(self, draw),
            Policy::RoundRobin => round_robin::choose(self, draw),
        };
        Ok(Decision {
            worker,
            home: self.home,
            reason,
            shared_tokens: self.place.shared_tokens(worker),
            expected_tokens: self.expected_tokens(worker),
            known: self.known,
            panic: self.candidates[worker].standing.is_bad(),
            unreachable: self.candidates[worker].standing == Standing::Unreachable,
            prompt_tokens: self.key.prompt_tokens(),
        })
    }

    /// First accepted member: by heat, then in order.
    pub(super) fn first(&self, accepts: impl Fn(usize) -> bool) -> Option<usize> {
        self.place.first(&self.order, accepts)
    }

    /// The first eligible members, at most `count` and the room there is; none for a count of 0.
    pub(super) fn first_few<'b>(&self, room: &'b mut [usize], count: usize) -> &'b [usize] {
        let count = count.min(room.len());
        for at in 0..count {
            let before = &room[..at];
            let next = self.first(|index| self.eligible(index) && !before.contains(&index));
            let Some(next) = next else {
                return &room[..at];
            };
            room[at] = next;
        }
        &room[..count]
    }

    /// All members as [`Fleet::first`] would accept them one after the other.
    pub(super) fn ranked(&self) -> Vec<usize> {
        let mut ranked = self.order.to_vec();
        ranked.sort_by_key(|&index| !self.place.contains(index));
        ranked
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
        let mark = self.tried_marks.get(index);
        mark.map_or_else(|| self.tried.contains(&index), |mark| *mark)
    }

    /// Whether this worker may take this request, the bound apart.
    pub(super) fn usable(&self, index: usize) -> bool {
        let candidate = &self.candidates[index];
        let capped = candidate.standing.is_bad() && candidate.at_cap;
        let stands = self.stands(candidate.standing) && !capped;
        stands && !self.tried(index) && !self.is_spared(index)
    }

    /// Whether workers of this standing take requests now.
    ///
    /// An open breaker is no opinion that could be wrong, requests did fail: it is overruled only to spare those that
    /// are well. Where nobody is, it holds, as it does for a model's only worker.
    pub(super) fn stands(&self, standing: Standing) -> bool {
        match standing {
            Standing::Usable => true,
            Standing::Doubted => !self.doubts,
            Standing::Unhealthy => self.panic,
            Standing::Resting => self.panic && self.spares_the_well,
            Standing::Unreachable => self.panic && !self.buries,
            Standing::Full | Standing::Draining => false,
        }
    }

    /// Whether this worker starts slowly and has all that it may have for now.
    pub(super) fn is_spared(&self, index: usize) -> bool {
        let Candidate {
            slow_start,
            exact_requests,
            ..
        } = self.candidates[index];
        // One at a time always: nothing else tells that it works.
        self.spares
            && slow_start
                .is_some_and(|share| exact_requests + 1.0 > (share * self.mean_requests).max(1.0))
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

    /// Requests above the bound once this one is placed here; 0 or less within it.
    ///
    /// The bound is on what all replicas know. In a crowd of requests that are alike, and in one that nobody has heard
    /// of, what this replica alone knows of is bounded, too, taken for its part of a surge that all are in: hundreds of
    /// them come within the age of the news. Otherwise counts of a few requests are chance, and asking them would part
    /// the replicas' decisions for nothing.
    pub(super) fn excess(&self, index: usize) -> f64 {
        let Candidate {
            load,
            surge_requests,
            ..
        } = self.candidates[index];
        let of_cluster = load.requests + 1.0 - self.limit(index);
        let bound = self.settings.bound;
        // A replica's handful of requests says nothing about the cluster.
        let is_crowd = (bound.factor.get() - 1.0) * self.mean_surge >= bound.slack.get();
        let is_unheard = self.mean_surge >= 2.0 * self.mean_requests;
        if !(is_crowd && (self.alike || is_unheard)) {
            return of_cluster;
        }
        of_cluster.max(surge_requests + 1.0 - self.limit_above(index, self.mean_surge))
    }

    fn within_bound(&self, index: usize) -> bool {
        !self.crowds || self.excess(index) <= 0.0
    }

    /// Whether the request may be placed here above the bound, at a price.
    pub(super) fn crowdable(&self, index: usize) -> bool {
        let times = self.settings.outer_bound.get().max(1.0);
        let Candidate {
            load,
            surge_requests,
            ..
        } = self.candidates[index];
        let below = |requests: f64, mean| requests + 1.0 <= times * self.limit_above(index, mean);
        self.usable(index)
            && below(load.requests, self.mean_requests)
            && below(surge_requests, self.mean_surge)
    }

    /// Tokens of the prompt expected in this worker's cache: what it is known to hold, and what is hot there.
    ///
    /// Nobody is credited with more for its place in the order: what no replica knows of was evicted, mostly, and a
    /// guess that each replica corrects by the answers that it happens to see parts their decisions.
    pub(super) fn expected_tokens(&self, index: usize) -> u32 {
        let told = self.candidates[index].held_tokens;
        let tokens = told.max(self.place.shared_tokens(index));
        tokens.min(self.key.prompt_tokens())
    }

    /// Reason of a choice by order: what kept the request from its home.
    pub(super) fn why_not_home(&self, worker: usize) -> Reason {
        let home = self.home;
        if worker == home {
            return Reason::Home;
        }
        if self.tried(home) {
            return Reason::Failover;
        }
        match self.candidates[home].standing {
            Standing::Draining => Reason::Drain,
            Standing::Full => Reason::SpillFull,
            standing if !self.stands(standing) => Reason::Failover,
            standing if standing.is_bad() && self.candidates[home].at_cap => Reason::SpillFull,
            _ if self.is_spared(home) => Reason::SlowStart,
            _ if self.within_bound(home) => {
                if self.expected_tokens(worker) > self.expected_tokens(home) {
                    Reason::Evidence
                } else {
                    Reason::SpillPrice
                }
            }
            _ => Reason::SpillBound,
        }
    }

    /// Whether the worker takes a share of the load now.
    fn in_service(&self, index: usize) -> bool {
        let standing = self.candidates[index].standing;
        standing == Standing::Full || self.stands(standing)
    }

    /// Whether a worker that could have taken the request is at its own limit.
    fn is_full(&self) -> bool {
        self.candidates.iter().any(|candidate| {
            let Candidate {
                standing, at_cap, ..
            } = *candidate;
            standing == Standing::Full || standing.is_bad() && at_cap && self.stands(standing)
        })
    }

    /// Why nobody is usable; the most hopeful cause wins.
    fn no_worker(&self) -> NoWorker {
        let any = |is: fn(Standing) -> bool| {
            self.candidates
                .iter()
                .any(|candidate| is(candidate.standing))
        };
        let tried = |index: usize| self.tried(index) && self.in_service(index);
        if self.is_full() {
            NoWorker::Full
        } else if (0..self.len()).any(tried) {
            NoWorker::Tried
        } else if any(Standing::is_bad) {
            NoWorker::Unhealthy
        } else {
            NoWorker::Draining
        }
    }
}

/// A request for one certain worker has tried all others: thousands are not to be searched for each.
fn marked(tried: &[usize], workers: usize) -> Vec<bool> {
    const SEARCHED_MAX: usize = 8;
    if tried.len() <= SEARCHED_MAX {
        return Vec::new();
    }
    let mut marks = vec![false; workers];
    for &index in tried {
        if let Some(mark) = marks.get_mut(index) {
            *mark = true;
        }
    }
    marks
}
