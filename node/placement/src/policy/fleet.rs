//! Fleet: the one view that all policies decide on.

use std::time::Duration;

use super::{
    Candidate, Decision, NoWorker, Policy, PolicySettings, Reason, Standing, View, home::Home,
};
use crate::{key::Key, load::Load, order::Order, rate::Rate, ring::Ring};

/// Part of a worker's cache that prompts may fill; the rest is for answers. Policy `least_kv`.
const PROMPTS_SHARE: f64 = 0.9;

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
    /// Most tokens of the prompt that any worker is known to hold.
    held_tokens: u32,
    ring: &'a Ring,
    candidates: &'a [Candidate],
    tried: &'a [usize],
    /// The same as a mark for each worker, where they are many; else empty.
    tried_marks: Vec<bool>,
    /// The health of more than half of those that do not drain is bad: it is not believed.
    pub(super) panic: bool,
    /// A worker is well: to use the others all the same spares those that are.
    spares_the_well: bool,
    /// Workers that refuse connections are passed over, unless no other is left: panic does not revive them.
    buries: bool,
    /// Workers that start slowly are spared, unless no other is left.
    spares: bool,
    /// Workers that other replicas doubt are passed over, unless no other is left.
    doubts: bool,
    /// Whether the bound keeps workers out: in policies `prefix` and `least_kv`, unless no usable worker is below it.
    bounded: bool,
    /// Workers whose cache has no room are passed over, policy `least_kv`, unless no usable worker has room: the
    /// engines count better what requests share, and let them wait.
    asks_for_room: bool,
    /// A worker may be above the bound: asked once of all, since mostly none is.
    pub(super) crowds: bool,
    /// First eligible worker in order: the home, or its stand-in. None if no worker is usable.
    holder: Option<usize>,
    /// Requests in flight per worker, the one being placed included.
    pub(super) mean_requests: f64,
    /// The same in a surge ([`Candidate::surge_requests`]).
    mean_surge: f64,
    /// Those of them that this replica alone knows of.
    mean_unheard: f64,
    /// Many requests like this one may come and end together: most of the prompt is hot and nothing is known of the rest,
    /// or it is what is sent all the time.
    alike: bool,
    /// In thousandths.
    mean_weight: f64,
    /// Weight over the mean weight, where that is the same for all workers.
    even_share: Option<f64>,
    /// Mean rate of those that share the load, in milliseconds a token.
    pub(super) rate: f64,
}

/// Sums over the workers that share the load.
struct Sums {
    count: f64,
    /// The request that is being placed counts.
    requests: f64,
    surge: f64,
    unheard: f64,
    /// In thousandths.
    weight: f64,
    rate: f64,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            count: 0.0,
            requests: 1.0,
            surge: 1.0,
            unheard: 0.0,
            weight: 0.0,
            rate: 0.0,
        }
    }
}

impl Sums {
    fn add(&mut self, candidate: &Candidate, weight: u32) {
        self.count += 1.0;
        self.requests += candidate.load.requests;
        self.surge += candidate.surge_requests;
        self.unheard += unheard(candidate);
        self.weight += f64::from(weight);
        self.rate += candidate.rate.millis();
    }
}

/// Requests that no other replica knows of.
fn unheard(candidate: &Candidate) -> f64 {
    (candidate.exact_requests - candidate.load.requests).max(0.0)
}

/// What the candidates are, counted.
#[derive(Default)]
struct Census {
    /// Workers that do not drain: the health of the others is no part of the picture, neither good nor bad.
    staying: usize,
    /// Workers whose health is bad, workers that others doubt, and workers that are well.
    bad: usize,
    doubted: usize,
    well: usize,
    /// Some worker starts slowly.
    has_slow_start: bool,
    /// The greatest counts of any worker.
    held_tokens: u32,
    requests: f64,
    surge_requests: f64,
    /// Least number of placements since a worker was sent the whole prompt.
    whole_ago: Option<u64>,
    /// Over those that are well.
    well_sums: Sums,
}

impl Census {
    fn of(candidates: &[Candidate], ring: &Ring) -> Self {
        let mut census = Self::default();
        for (index, candidate) in candidates.iter().enumerate() {
            let standing = candidate.standing;
            census.staying += usize::from(!standing.is_out());
            census.bad += usize::from(standing.is_bad());
            census.doubted += usize::from(standing == Standing::Doubted);
            if matches!(standing, Standing::Usable | Standing::Full) {
                census.well += 1;
                let weight = ring.weight(index).thousandths();
                census.well_sums.add(candidate, weight);
            }
            census.has_slow_start |= candidate.slow_start.is_some();
            census.held_tokens = census.held_tokens.max(candidate.held_tokens);
            census.requests = census.requests.max(candidate.load.requests);
            census.surge_requests = census.surge_requests.max(candidate.surge_requests);
            let ago = census.whole_ago.into_iter().chain(candidate.whole_ago);
            census.whole_ago = ago.min();
        }
        census
    }
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
        let place = Home::of(settings, view, key);
        let order = ring.order(place.hash).ok_or(NoWorker::Empty)?;
        let home = place.first(&order, |_| true).ok_or(NoWorker::Empty)?;
        let census = Census::of(candidates, ring);
        let known = census.held_tokens > place.inner_tokens();
        let is_mostly_hot = place.inner_tokens() > key.prompt_tokens() / 2;
        // As often as a hot prefix, before heat can know: counts of placements, far below 2^53.
        let share = settings.heat.share.get();
        let is_often = |ago: u64| share > 0.0 && share * ago as f64 <= ring.len() as f64;
        let mut fleet = Self {
            settings,
            key,
            order,
            home,
            known,
            held_tokens: census.held_tokens,
            // A conversation that goes on is one of its kind, however much of it all share.
            alike: is_mostly_hot && !known || census.whole_ago.is_some_and(is_often),
            place,
            ring,
            candidates,
            tried,
            tried_marks: marked(tried, ring.len()),
            panic: settings.panics(census.bad, census.staying),
            spares_the_well: census.well + census.doubted > 0,
            buries: true,
            spares: census.has_slow_start,
            // Together the others may doubt more than each of them alone is believed.
            doubts: census.doubted > 0
                && !settings.panics(census.bad + census.doubted, census.staying),
            bounded: matches!(settings.policy, Policy::Prefix | Policy::LeastKv),
            asks_for_room: settings.policy == Policy::LeastKv,
            crowds: true,
            holder: None,
            mean_requests: 1.0,
            mean_surge: 1.0,
            mean_unheard: 0.0,
            mean_weight: 1.0,
            even_share: None,
            rate: Rate::TYPICAL.millis(),
        };
        fleet.take_means(&census);
        // No limit is below the mean and the slack.
        let is_above =
            |most: f64, mean: f64| most + 1.0 - (mean + settings.bound.slack.get()) > 0.0;
        fleet.crowds = is_above(census.requests, fleet.mean_requests)
            || is_above(census.surge_requests, fleet.mean_surge);
        fleet.find_holder();
        Ok(fleet)
    }

    /// Means over those that share the load: a dead worker's zero would tighten all bounds.
    fn take_means(&mut self, census: &Census) {
        let all;
        let sums = if census.bad + census.doubted == 0 {
            // The usual case, in one pass: those that are well, and no others, are in service.
            &census.well_sums
        } else {
            let in_service = (0..self.len()).filter(|&index| self.in_service(index));
            all = in_service.fold(Sums::default(), |mut sums, index| {
                sums.add(&self.candidates[index], self.weight(index));
                sums
            });
            &all
        };
        if sums.count > 0.0 {
            self.mean_requests = sums.requests / sums.count;
            self.mean_surge = sums.surge / sums.count;
            self.mean_unheard = sums.unheard / sums.count;
            self.mean_weight = sums.weight / sums.count;
            self.rate = sums.rate / sums.count;
        }
        let even = self.ring.even_weight();
        self.even_share = even.map(|weight| f64::from(weight.thousandths()) / self.mean_weight);
    }

    /// Finds the first eligible worker. None of the rules here refuses a request alone: the weakest gives way first.
    fn find_holder(&mut self) {
        self.holder = self.first(|index| self.eligible(index));
        while self.holder.is_none() {
            // Rather wait for a worker that answers than ask those that do not.
            let may_ask_the_dead = !self.is_full();
            let strictest = [
                &mut self.spares,
                &mut self.bounded,
                &mut self.asks_for_room,
                &mut self.doubts,
            ];
            match strictest.into_iter().find(|rule| **rule) {
                Some(rule) => *rule = false,
                None if self.buries && may_ask_the_dead => self.buries = false,
                None => return,
            }
            self.holder = self.first(|index| self.eligible(index));
        }
    }

    /// First eligible worker in order: the home, or its stand-in.
    /// Errors: no worker may take the request.
    pub(super) fn holder(&self) -> Result<usize, NoWorker> {
        self.holder.ok_or_else(|| self.no_worker())
    }

    /// The decision for this worker, with all that is expected of it.
    pub(super) fn decision(&self, worker: usize, reason: Reason) -> Decision {
        let standing = self.candidates[worker].standing;
        Decision {
            worker,
            home: self.home,
            reason,
            shared_tokens: self.unrecorded_tokens(worker),
            expected_tokens: self.expected_tokens(worker),
            tokens_before: self.tokens_before(worker),
            first_token: Duration::try_from_secs_f64(self.first_token_ms(worker) / 1e3)
                .unwrap_or(Duration::MAX),
            known: self.known,
            common_tokens: self.place.inner_tokens().max(self.held_tokens),
            told: self.candidates[worker].told,
            panic: standing.is_bad(),
            unreachable: standing == Standing::Unreachable,
            prompt_tokens: self.key.prompt_tokens(),
        }
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
        self.ring.weight(index).thousandths()
    }

    /// Weight over the mean weight: 1.0 for an ordinary worker.
    pub(super) fn relative_weight(&self, index: usize) -> f64 {
        self.even_share
            .unwrap_or_else(|| f64::from(self.weight(index)) / self.mean_weight)
    }

    /// Milliseconds that this worker needs for a token to compute.
    pub(super) fn rate_of(&self, index: usize) -> f64 {
        self.candidates[index].rate.millis()
    }

    /// Load of this worker, by its share of what there is: that of an ordinary worker is as it is.
    pub(super) fn shared_load(&self, index: usize) -> Load {
        let share = 1.0 / self.relative_weight(index);
        self.candidates[index].load.scaled(share)
    }

    /// Tokens of the prompt that this worker would have to compute.
    pub(super) fn missing_tokens(&self, index: usize) -> u32 {
        self.key.prompt_tokens() - self.expected_tokens(index)
    }

    /// Tokens that would have to be computed here before the first one of the answer, this prompt's included.
    pub(super) fn tokens_before(&self, index: usize) -> u64 {
        // Sums of counts: far below 2^53.
        let waiting = self.shared_load(index).prefill_tokens as u64;
        waiting + u64::from(self.missing_tokens(index))
    }

    /// How long those take, in milliseconds.
    pub(super) fn first_token_ms(&self, index: usize) -> f64 {
        self.tokens_before(index) as f64 * self.rate_of(index)
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
    /// are well. Where none is, it holds, as it does for a model's only worker.
    pub(super) fn stands(&self, standing: Standing) -> bool {
        match standing {
            Standing::Usable => true,
            Standing::Doubted => !self.doubts,
            Standing::Unhealthy => self.panic,
            Standing::Resting => self.panic && self.spares_the_well,
            Standing::Unreachable => self.panic && !self.buries,
            Standing::Full | Standing::Draining | Standing::Asleep => false,
        }
    }

    /// Whether this worker starts slowly and has all that it may have for now.
    ///
    /// By what all replicas know: one request more or less is its whole share, and what only one of them knows of would
    /// part their decisions until it has started. What this replica knows exactly may be twice as much, no more. Parts
    /// of a request are what is left of failed and of old ones.
    pub(super) fn is_spared(&self, index: usize) -> bool {
        let Candidate {
            slow_start,
            load,
            exact_requests,
            ..
        } = self.candidates[index];
        let has_all = |share: f64| {
            // One at a time always: nothing else shows that it works.
            let most = (share * self.mean_requests).max(1.0);
            load.requests.floor() + 1.0 > most || exact_requests + 1.0 > 2.0 * most
        };
        self.spares && slow_start.is_some_and(has_all)
    }

    /// Whether this worker may take this request.
    pub(super) fn eligible(&self, index: usize) -> bool {
        self.usable(index) && (!self.bounded || self.within_bound(index)) && !self.is_cramped(index)
    }

    /// Whether the worker is passed over because its cache has no room for the prompt.
    pub(super) fn is_cramped(&self, index: usize) -> bool {
        self.asks_for_room && !self.has_room(index)
    }

    /// Whether the prompt fits into the worker's cache beside what is in flight there; where its size is not known: yes.
    ///
    /// What answers add is not known before they end, so a part of the cache is theirs.
    fn has_room(&self, index: usize) -> bool {
        let Candidate {
            load, kv_tokens, ..
        } = self.candidates[index];
        let prompt = f64::from(self.key.prompt_tokens());
        // Counts of tokens: far below 2^53.
        kv_tokens.is_none_or(|tokens| load.context_tokens + prompt <= PROMPTS_SHARE * tokens as f64)
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
    /// The bound is on what all replicas know. In a crowd of requests that are alike, and in one that no other replica
    /// knows of, what this replica alone knows of is bounded, too, taken for its part of a surge that all are in:
    /// hundreds of them come within the age of the news. Otherwise counts of a few requests are chance, and asking them
    /// would part the replicas' decisions for nothing: so prompts that are not alike have to be above the slack by what
    /// this replica counts itself, and not by that times the number of replicas alone.
    pub(super) fn excess(&self, index: usize) -> f64 {
        let candidate = &self.candidates[index];
        let of_cluster = candidate.load.requests + 1.0 - self.limit(index);
        if !self.is_surge() {
            return of_cluster;
        }
        let of_surge = candidate.surge_requests + 1.0 - self.limit_above(index, self.mean_surge);
        if self.alike {
            return of_cluster.max(of_surge);
        }
        let slack = self.settings.bound.slack.get();
        let counted = unheard(candidate) + 1.0 - (self.mean_unheard + slack);
        of_cluster.max(of_surge.min(counted))
    }

    /// Whether many requests like this one are in flight, or many that no other replica knows of.
    fn is_surge(&self) -> bool {
        let bound = self.settings.bound;
        // A replica's handful of requests says nothing about the cluster.
        let is_crowd = (bound.factor.get() - 1.0) * self.mean_surge >= bound.slack.get();
        let is_unheard = self.mean_surge >= 2.0 * self.mean_requests;
        is_crowd && (self.alike || is_unheard)
    }

    /// Milliseconds a token of what requests above the bound cost here.
    ///
    /// The worker's rate; but in a surge no less than what is typical. Its first tokens may come as soon as ever while
    /// the answers of a crowd that all came at once slow each other down.
    pub(super) fn crowd_rate(&self, index: usize) -> f64 {
        let rate = self.rate_of(index);
        if self.is_surge() {
            rate.max(Rate::TYPICAL.millis())
        } else {
            rate
        }
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

    /// Tokens of the prompt expected in this worker's cache: what it is known to hold, and what is hot there and needs no
    /// record: an answer is compared with this, and takes back what it shows to be gone.
    ///
    /// No worker is credited with more for its place in the order: what no replica knows of was evicted, mostly, and a
    /// guess that each replica corrects by the answers that it happens to see parts their decisions.
    pub(super) fn expected_tokens(&self, index: usize) -> u32 {
        let known = self.candidates[index].held_tokens;
        let tokens = known.max(self.unrecorded_tokens(index));
        tokens.min(self.key.prompt_tokens())
    }

    /// Tokens of the prompt that need no record there, since they are hot. Policy `cache_aware` goes by records alone: a
    /// hot prefix that nobody recorded any more would be forgotten.
    fn unrecorded_tokens(&self, index: usize) -> u32 {
        match self.settings.policy {
            Policy::CacheAware => 0,
            _ => self.place.shared_tokens(index),
        }
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
            _ if self.is_cramped(home) => Reason::SpillRoom,
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
    pub(super) fn in_service(&self, index: usize) -> bool {
        let standing = self.candidates[index].standing;
        standing == Standing::Full || self.stands(standing)
    }

    /// Whether a worker that could take the request is at its own limit. One that was tried could not: no room there
    /// would help the request.
    fn is_full(&self) -> bool {
        let mut candidates = self.candidates.iter().enumerate();
        candidates.any(|(index, candidate)| {
            let Candidate {
                standing, at_cap, ..
            } = *candidate;
            let is_full =
                standing == Standing::Full || standing.is_bad() && at_cap && self.stands(standing);
            is_full && !self.tried(index)
        })
    }

    /// Why no worker is usable; the most hopeful cause wins.
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
        } else if any(|standing| standing == Standing::Asleep) {
            NoWorker::Asleep
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
