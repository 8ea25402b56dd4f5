//! The run: events in virtual time, from arrivals to last tokens.
//!
//! `choose.rs` has the decisions, `legs.rs` what becomes of a request on its workers; here is what drives both.
//!
//! Requests go to replicas at random. A replica decides on the load that it and the others know of (told by the router's
//! own load plane, `news.rs`) and its prefix index (own placements at once, others' after
//! 10 ms, or repaired after 500 ms where a record was lost). Equal scenario and seed, equal result.

mod choose;
mod legs;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::rc::Rc;

use grapevine_gossip::load::Load;
use grapevine_placement::load::Seen;
use grapevine_placement::{Candidate, HotSet, PolicySettings, Recorded};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::contender::{Contender, Evidence, Rule, Shared};
use super::kv_events::Heard;
use super::measure::{Meter, Outcome};
use super::news::News;
use super::pools::Pools;
use super::replica::{Replica, micros};
use super::scenario::{Scenario, chance};
use super::split::Ports;
use super::timed_engine::{Done, TimedEngine};
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
    /// The keys and values of a request reached its decode worker.
    Transferred(usize),
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
    /// Where its prompt is computed; and its answer, unless `decode` does that.
    compute: Leg,
    decode: Option<Leg>,
    arrived_us: u64,
    first_us: u64,
    /// Whether the first token came within its limit.
    in_time: bool,
}

impl Placed {
    /// Whether this worker computes its prompt, and another its answer.
    fn is_prefill(&self, worker: usize) -> bool {
        self.decode.is_some() && self.compute.worker == worker
    }
}

/// A part of a request on a worker.
#[derive(Clone)]
struct Leg {
    /// Its place among all workers.
    worker: usize,
    /// What it counts for.
    load: Load,
    expected: u32,
    tokens_before: u64,
    recorded: Recorded,
    cached: u32,
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
    shared: Shared,
    rule: &'a Rule,
    pools: Pools,
    names: Vec<String>,
    ports: Ports,
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
    /// What is known of caches from the workers themselves.
    heard: Option<Heard>,
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
        run.handle(now_us, event, &mut done);
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
        let pools = Pools::new(scenario, &settings);
        let names = pools.names();
        let block_tokens = workload.block_tokens;
        let engine = |_| {
            let mut engine = TimedEngine::new(block_tokens, scenario.cache, scenario.step_tokens);
            if contender.kv_events.is_some() {
                engine.keep_changes();
            }
            engine
        };
        let count = workload.requests.len();
        let warm = (count as f64 * WARM_UP) as usize;
        let cache = scenario.cache;
        let cache_tokens = u64::from(cache.device_tokens) + u64::from(cache.host_tokens);
        let mut run = Self {
            replicas: (0..scenario.replicas)
                .map(|_| Replica::new(&pools, &settings, contender.prefix_index, cache_tokens))
                .collect(),
            engines: (0..names.len()).map(engine).collect(),
            pools,
            ports: Ports::new(names.len()),
            workload,
            scenario,
            shared,
            rule: &contender.rule,
            events: BinaryHeap::new(),
            order: 0,
            placed: (0..count).map(|_| None).collect(),
            records: Vec::new(),
            followers: vec![None; count],
            first_arrivals: 0,
            random: StdRng::seed_from_u64(scenario.seed),
            meter: Meter::new(warm, scenario.gap_limit_us),
            news: News::new(scenario, shared, &names),
            heard: contender
                .kv_events
                .map(|events| Heard::new(events, scenario, block_tokens)),
            names,
            seen: Vec::new(),
            candidates: Vec::new(),
            left: count,
            warm,
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

    fn handle(&mut self, now_us: u64, event: Event, done: &mut Vec<Done>) {
        match event {
            Event::Arrive(request) => self.arrive(now_us, request),
            Event::Step(worker) => self.step(now_us, worker, done),
            Event::Transferred(request) => self.transferred(now_us, request),
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
                    self.pools.tell_rates(self.scenario.loss >= 1.0);
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
        let (compute, decode) = self.choose(now_us, replica, request, draw);
        self.lose(request, compute.worker, index);
        for leg in [Some(&compute), decode.as_ref()].into_iter().flatten() {
            let (worker, load) = (leg.worker, leg.load);
            let next = self
                .news
                .change(now_us, replica, worker, |cell| cell.add(load));
            self.tick_at(next, replica);
        }
        self.meter.placed += 1;
        let (worker, is_divided) = (compute.worker, decode.is_some());
        self.placed[index] = Some(Placed {
            replica,
            compute,
            decode,
            arrived_us: now_us,
            first_us: now_us,
            in_time: false,
        });
        self.start(now_us, index, worker, is_divided);
    }

    /// Counts what the chosen worker does not hold: tokens that another holds, and those that nobody holds any more.
    fn lose(&mut self, request: &Request, worker: usize, index: usize) {
        let at = |worker: usize| {
            let engine: &TimedEngine = &self.engines[worker];
            engine.matched_tokens(&request.blocks, request.in_tokens)
        };
        let here = at(worker);
        let mut pools = self.pools.all().into_iter().map(|pool| pool.places());
        let pool = pools
            .find(|places| places.contains(&worker))
            .unwrap_or(0..0);
        let most = pool.map(at).max().unwrap_or(here);
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
            let id = &self.names[record.worker];
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
}
