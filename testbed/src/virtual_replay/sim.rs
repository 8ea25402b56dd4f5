//! The run: events in virtual time, from arrivals to last tokens.
//!
//! Requests go to replicas at random. A replica decides on the load that it and the others know of (told by the router's
//! own load plane, `news.rs`) and its prefix index (own placements at once, others' after
//! 10 ms, or repaired after 500 ms where a record was lost). Equal scenario and seed, equal result.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::rc::Rc;

use grapevine_gossip::load::Load;
use grapevine_placement::load::Seen;
use grapevine_placement::{
    Candidate, HotSet, Member, PolicySettings, Recorded, Ring, RingSettings, Weight,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::contender::{Contender, Evidence, Rule, Shared};
use super::measure::{Meter, Outcome};
use super::news::News;
use super::rates::Rates;
use super::replica::{Replica, micros};
use super::scenario::{Scenario, chance};
use super::timed_engine::{Done, Job, TimedEngine};
use super::workload::{Request, Workload};

/// Time of an evidence record on its way, batching included.
const EVIDENCE_US: u64 = 10_000;
/// Time until a lost record is repaired.
const REPAIR_US: u64 = 500_000;
const HEAT_US: u64 = 1_000_000;
/// Time between two tellings of rates.
const RATES_US: u64 = 1_000_000;
const SAMPLE_US: u64 = 500_000;
/// Part of the requests that only warm the caches.
const WARM_UP: f64 = 0.1;
/// Part of the requests that must meet the limit of the first token.
pub(super) const GOOD_SHARE: f64 = 0.9;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(usize),
    Step(usize),
    Tick(usize),
    Letter(usize),
    Told(usize),
    Heat,
    Rates,
    Sample,
}

/// A request that was placed and has not ended.
struct Placed {
    replica: usize,
    worker: usize,
    load: Load,
    expected: u32,
    tokens_before: u64,
    cached: u32,
    recorded: Recorded,
    arrived_us: u64,
}

/// Where a request goes.
struct Chosen {
    worker: usize,
    /// Tokens that it will compute, as far as its replica knows.
    prefill_tokens: u32,
    expected: u32,
    tokens_before: u64,
    recorded: Recorded,
}

struct Record {
    from: usize,
    worker: usize,
    marks: Vec<u64>,
    retract: bool,
    repaired: bool,
}

struct Run<'a> {
    workload: &'a Workload,
    scenario: &'a Scenario,
    settings: PolicySettings,
    shared: Shared,
    rule: &'a Rule,
    ring: Ring,
    replicas: Vec<Replica>,
    engines: Vec<TimedEngine>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    placed: Vec<Option<Placed>>,
    records: Vec<Option<Record>>,
    /// Next place in its chain, for each request.
    followers: Vec<Option<usize>>,
    first_arrivals: usize,
    random: StdRng,
    meter: Meter,
    news: News,
    rates: Rates,
    seen: Vec<Seen>,
    candidates: Vec<Candidate>,
    left: usize,
    /// Requests that only warm the caches.
    warm: usize,
    /// Blocks of all requests so far.
    computed: HashSet<u64>,
}

/// Replays a workload. `hopeless` ends it early, without a result, once too few requests can still be good.
pub fn run(
    workload: &Workload,
    contender: &Contender,
    scenario: &Scenario,
    hopeless: bool,
) -> Option<Outcome> {
    let mut run = Run::new(workload, contender, scenario);
    let warm = run.warm;
    let bad_max = ((workload.requests.len() - warm) as f64 * (1.0 - GOOD_SHARE)) as usize;
    let (mut now_us, mut done) = (0, Vec::new());
    let mut started_us = None;
    while let Some(Reverse((at_us, _, event))) = run.events.pop() {
        if run.left == 0 {
            break;
        }
        now_us = at_us;
        if started_us.is_none() && run.first_arrivals > warm {
            started_us = Some(now_us);
        }
        run.handle(now_us, event, warm, &mut done);
        if hopeless && run.meter.bad > bad_max {
            return None;
        }
    }
    let seconds = (now_us - started_us.unwrap_or(0)) as f64 / 1e6;
    let entries = run
        .replicas
        .iter()
        .map(|replica| replica.prefix_index.len())
        .max();
    let corrected: u64 = run
        .replicas
        .iter()
        .map(|r| r.prefix_index.counters().corrected)
        .sum();
    let mut outcome = run.meter.outcome(seconds);
    outcome.load_bytes = run.news.bytes as f64 / workload.requests.len() as f64;
    outcome.prefix_index_entries = entries.unwrap_or(0);
    outcome.corrections = corrected as f64 / workload.requests.len() as f64;
    Some(outcome)
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, contender: &'a Contender, scenario: &'a Scenario) -> Self {
        let (settings, shared) = match &contender.rule {
            Rule::Placement { settings, shared } => (**settings, *shared),
            Rule::LeastPending | Rule::Oracle => (
                PolicySettings::default(),
                Shared {
                    load: true,
                    evidence: Evidence::Off,
                    heat: false,
                    damped: true,
                    common: true,
                    own_bound: true,
                    rates: true,
                },
            ),
        };
        let members = (0..scenario.workers).map(|index| Member {
            id: format!("http://10.0.{}.{index}:8000", scenario.ring),
            weight: Weight::ONE,
        });
        let ring = Ring::build(&RingSettings::default(), members).expect("distinct ids");
        let names: Vec<String> = ring.members().iter().map(|m| m.id.clone()).collect();
        let engine = |_| TimedEngine::new(workload.block_tokens, scenario.cache);
        let count = workload.requests.len();
        let cache = scenario.cache;
        let cache_tokens = u64::from(cache.device_tokens) + u64::from(cache.host_tokens);
        let mut run = Self {
            replicas: (0..scenario.replicas)
                .map(|_| Replica::new(&ring, &settings, contender.prefix_index, cache_tokens))
                .collect(),
            engines: (0..scenario.workers).map(engine).collect(),
            ring,
            workload,
            scenario,
            settings,
            shared,
            rule: &contender.rule,
            events: BinaryHeap::new(),
            order: 0,
            placed: (0..count).map(|_| None).collect(),
            records: Vec::new(),
            followers: vec![None; count],
            first_arrivals: 0,
            random: StdRng::seed_from_u64(scenario.seed),
            meter: Meter::default(),
            news: News::new(scenario, shared, &names),
            rates: Rates::new(scenario.replicas, scenario.workers),
            seen: Vec::new(),
            candidates: Vec::new(),
            left: count,
            warm: (count as f64 * WARM_UP) as usize,
            computed: HashSet::new(),
        };
        for chain in &workload.chains {
            let start = chain.start_us as f64 / scenario.speed;
            let gap = workload.requests[chain.requests[0]].gap_us;
            run.push(start as u64 + gap, Event::Arrive(chain.requests[0]));
            for pair in chain.requests.windows(2) {
                run.followers[pair[0]] = Some(pair[1]);
            }
        }
        run.push(HEAT_US, Event::Heat);
        run.push(RATES_US, Event::Rates);
        run.push(SAMPLE_US, Event::Sample);
        run
    }

    fn push(&mut self, at_us: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at_us, self.order, event)));
    }

    fn handle(&mut self, now_us: u64, event: Event, warm: usize, done: &mut Vec<Done>) {
        match event {
            Event::Arrive(request) => self.arrive(now_us, request),
            Event::Step(worker) => {
                if let Some(next) = self.engines[worker].advance(now_us, done) {
                    self.push(next, Event::Step(worker));
                }
                for done in done.drain(..) {
                    match done {
                        Done::First { request, cached } => {
                            self.first(now_us, request, cached, warm)
                        }
                        Done::Last { request } => self.last(now_us, request),
                    }
                }
            }
            Event::Tick(replica) => {
                let (letters, next) = self.news.tick(now_us, replica);
                for (at_us, letter) in letters {
                    self.push(at_us, Event::Letter(letter));
                }
                self.tick_at(next, replica);
            }
            Event::Letter(letter) => self.news.deliver(now_us, letter),
            Event::Told(record) => self.hear(now_us, record),
            Event::Heat => self.heat(now_us),
            Event::Rates => {
                if self.shared.rates {
                    self.rates.tell(self.scenario.loss >= 1.0);
                }
                self.push(now_us + RATES_US, Event::Rates);
            }
            Event::Sample => {
                // Before the caches are warm and when no more chains begin, traffic is not what was asked for.
                let last = self.workload.requests.len() * 19 / 20;
                if (self.warm..last).contains(&self.first_arrivals) {
                    self.meter
                        .sample(self.engines.iter().map(TimedEngine::requests));
                }
                self.push(now_us + SAMPLE_US, Event::Sample);
            }
        }
    }

    fn arrive(&mut self, now_us: u64, index: usize) {
        self.first_arrivals += 1;
        let workload = self.workload;
        let request = &workload.requests[index];
        let replica = self.random.random_range(0..self.scenario.replicas);
        let draw = match self.rule {
            Rule::Placement { settings, .. }
                if settings.policy == grapevine_placement::Policy::RoundRobin =>
            {
                self.replicas[replica].turns += 1;
                self.replicas[replica].turns
            }
            _ => self.random.random(),
        };
        let chosen = self.choose(now_us, replica, request, draw);
        let worker = chosen.worker;
        self.lose(request, worker, index);
        let load = Load {
            requests: 1,
            prefill_tokens: chosen.prefill_tokens.into(),
            context_tokens: request.in_tokens.into(),
        };
        let next = self
            .news
            .change(now_us, replica, worker, |cell| cell.add(load));
        self.tick_at(next, replica);
        self.meter.placed += 1;
        self.placed[index] = Some(Placed {
            replica,
            worker,
            load,
            expected: chosen.expected,
            tokens_before: chosen.tokens_before,
            cached: 0,
            recorded: chosen.recorded,
            arrived_us: now_us,
        });
        let job = Job {
            request: index,
            blocks: request.blocks.clone(),
            answer: request.answer.clone(),
            in_tokens: request.in_tokens,
            out_tokens: request.out_tokens,
        };
        if let Some(next) = self.engines[worker].submit(now_us, job) {
            self.push(next, Event::Step(worker));
        }
    }

    /// The worker that the rule names, and what it expects there.
    fn choose(&mut self, now_us: u64, replica: usize, request: &Request, draw: u64) -> Chosen {
        let blind = |worker| Chosen {
            worker,
            prefill_tokens: request.in_tokens,
            expected: 0,
            tokens_before: 0,
            recorded: Recorded::default(),
        };
        match self.rule {
            Rule::Oracle => blind(self.all_knowing(request)),
            Rule::LeastPending => blind(self.least_pending(now_us, replica, draw)),
            Rule::Placement { .. } => {
                let decision = self.ask(now_us, replica, request, draw);
                if self.scenario.replicas > 1 {
                    let other = self.random.random_range(0..self.scenario.replicas - 1);
                    let other = if other >= replica { other + 1 } else { other };
                    let draw = self.random.random();
                    let others = self.ask(now_us, other, request, draw);
                    self.meter.asked(&decision, &others);
                }
                Chosen {
                    worker: decision.worker,
                    prefill_tokens: decision.prefill_tokens(),
                    expected: decision.expected_tokens,
                    tokens_before: decision.tokens_before,
                    recorded: self.remember(now_us, replica, request, &decision),
                }
            }
        }
    }

    /// Counts what the chosen worker does not hold: tokens that another holds, and those that nobody holds any more.
    fn lose(&mut self, request: &Request, worker: usize, index: usize) {
        let at = |worker: usize| {
            let engine: &TimedEngine = &self.engines[worker];
            engine.matched_tokens(&request.blocks, request.in_tokens)
        };
        let here = at(worker);
        let most = (0..self.engines.len()).map(at).max().unwrap_or(0);
        let whole = (request.in_tokens.saturating_sub(1) / self.workload.block_tokens) as usize;
        let reusable = &request.blocks[..whole.min(request.blocks.len())];
        let ever = reusable
            .iter()
            .take_while(|block| self.computed.contains(block));
        let ever = ever.count() as u32 * self.workload.block_tokens;
        self.computed.extend(&request.blocks);
        self.computed.extend(&request.answer);
        if index >= self.warm {
            self.meter.lost(most - here, ever.saturating_sub(most));
        }
    }

    /// What a replica would do now.
    fn ask(
        &mut self,
        now_us: u64,
        replica: usize,
        request: &Request,
        draw: u64,
    ) -> grapevine_placement::Decision {
        self.see_load(now_us, replica);
        self.candidates.clear();
        let seen = self.seen.iter().zip(self.rates.of(replica));
        let seen = seen.map(|(seen, &rate)| Candidate {
            load: seen.common,
            rate,
            exact_requests: seen.exact_requests,
            surge_requests: if self.shared.own_bound {
                seen.surge_requests
            } else {
                seen.common.requests
            },
            ..Candidate::default()
        });
        self.candidates.extend(seen);
        self.replicas[replica].decide(
            &self.settings,
            &self.ring,
            &request.key,
            now_us,
            &mut self.candidates,
            draw,
        )
    }

    fn see_load(&mut self, now_us: u64, viewer: usize) {
        self.news.see(now_us, viewer, &mut self.seen);
    }

    fn remember(
        &mut self,
        now_us: u64,
        replica: usize,
        request: &Request,
        decision: &grapevine_placement::Decision,
    ) -> Recorded {
        if self.shared.heat {
            self.replicas[replica].heat.count(&request.key);
        }
        if self.shared.evidence == Evidence::Off {
            return Recorded::default();
        }
        let recorded = self.replicas[replica].record(decision, &request.key, now_us);
        let tell = match self.shared.evidence {
            Evidence::All => true,
            Evidence::Deviating => decision.worker != decision.home,
            Evidence::Off | Evidence::Own => false,
        };
        if tell {
            self.tell(
                now_us,
                replica,
                decision.worker,
                recorded.marks_to_send(),
                false,
            );
        }
        recorded
    }

    fn tell(&mut self, now_us: u64, from: usize, worker: usize, marks: Vec<u64>, retract: bool) {
        if marks.is_empty() || self.scenario.replicas == 1 || self.scenario.loss >= 1.0 {
            return;
        }
        self.meter.marks_told += marks.len() as u64;
        self.records.push(Some(Record {
            from,
            worker,
            marks,
            retract,
            repaired: false,
        }));
        self.push(now_us + EVIDENCE_US, Event::Told(self.records.len() - 1));
    }

    fn hear(&mut self, now_us: u64, index: usize) {
        let Some(mut record) = self.records[index].take() else {
            return;
        };
        let mut missed = false;
        for to in (0..self.replicas.len()).filter(|&to| to != record.from) {
            let lost =
                chance(self.scenario.seed ^ 1, record.from, to, index as u64) < self.scenario.loss;
            // Whoever heard it at once does not hear the repair.
            if lost != record.repaired {
                missed = true;
                continue;
            }
            let id = &self.ring.members()[record.worker].id;
            let prefix_index = &mut self.replicas[to].prefix_index;
            if record.retract {
                prefix_index.unlearn(id, 1, &record.marks);
            } else {
                prefix_index.learn(id, 1, &record.marks, micros(now_us));
            }
        }
        if missed && !record.repaired {
            record.repaired = true;
            self.records[index] = Some(record);
            self.push(now_us + REPAIR_US, Event::Told(index));
        }
    }

    fn heat(&mut self, now_us: u64) {
        if self.shared.heat {
            let reports: Vec<_> = self
                .replicas
                .iter_mut()
                .map(|replica| replica.heat.report(micros(now_us)).clone())
                .collect();
            let all = Rc::new(HotSet::sum(&reports));
            for (replica, report) in self.replicas.iter_mut().zip(&reports) {
                replica.hot = if self.scenario.loss >= 1.0 {
                    Rc::new(HotSet::sum([report]))
                } else {
                    Rc::clone(&all)
                };
            }
        }
        self.push(now_us + HEAT_US, Event::Heat);
    }

    fn tick_at(&mut self, at_us: Option<u64>, replica: usize) {
        if let Some(at_us) = at_us {
            self.push(at_us, Event::Tick(replica));
        }
    }

    fn first(&mut self, now_us: u64, index: usize, cached: u32, warm: usize) {
        let placed = self.placed[index].as_mut().expect("it was placed");
        let waited = Load {
            prefill_tokens: std::mem::take(&mut placed.load.prefill_tokens),
            ..Load::default()
        };
        placed.cached = cached;
        let (replica, worker) = (placed.replica, placed.worker);
        let us = now_us - placed.arrived_us;
        self.rates
            .answered(replica, worker, placed.tokens_before, us);
        let next = self
            .news
            .change(now_us, replica, worker, |cell| cell.subtract(waited));
        self.tick_at(next, replica);
        let request = &self.workload.requests[index];
        if index >= warm {
            let limit_us = self.scenario.limit_us
                + self.scenario.limit_token_us * u64::from(request.in_tokens);
            self.meter
                .first_token(us, request.in_tokens, cached, limit_us);
        }
    }

    fn last(&mut self, now_us: u64, index: usize) {
        let placed = self.placed[index].take().expect("it was placed");
        let (replica, worker) = (placed.replica, placed.worker);
        let next = self
            .news
            .change(now_us, replica, worker, |cell| cell.subtract(placed.load));
        self.tick_at(next, replica);
        if !matches!(self.shared.evidence, Evidence::Off) {
            let gone = self.replicas[placed.replica].correct(
                placed.worker,
                &placed.recorded,
                placed.expected,
                placed.cached,
            );
            if matches!(self.shared.evidence, Evidence::All | Evidence::Deviating) {
                self.tell(now_us, placed.replica, placed.worker, gone, true);
            }
        }
        if let Some(next) = self.followers[index] {
            self.push(
                now_us + self.workload.requests[next].gap_us,
                Event::Arrive(next),
            );
        }
        self.left -= 1;
    }

    fn all_knowing(&mut self, request: &Request) -> usize {
        let cost = |engine: &TimedEngine| {
            let new = request.in_tokens - engine.matched_tokens(&request.blocks, request.in_tokens);
            engine.pending_tokens() as f64 + 4.0 * f64::from(new) + 0.05 * engine.context_tokens()
        };
        self.least(|run, worker| cost(&run.engines[worker]), 0)
    }

    fn least_pending(&mut self, now_us: u64, replica: usize, draw: u64) -> usize {
        self.see_load(now_us, replica);
        self.least(|run, worker| run.seen[worker].common.prefill_tokens, draw)
    }

    /// The worker of least cost; of several, the one that the draw falls on.
    fn least(&self, cost: impl Fn(&Self, usize) -> f64, draw: u64) -> usize {
        let costs: Vec<f64> = (0..self.scenario.workers)
            .map(|worker| cost(self, worker))
            .collect();
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let ties: Vec<usize> = (0..costs.len())
            .filter(|&worker| costs[worker] <= least)
            .collect();
        ties[(draw % ties.len() as u64) as usize]
    }
}
