//! Policy `prefix` said once more without any shortcut: every rule asks every worker, in the key's whole order.
//!
//! What is fast in `policy/` must choose as this does, with the same reason, on any fleet.

use std::num::NonZeroU16;
use std::sync::OnceLock;

use grapevine_placement::*;
use proptest::prelude::*;

use crate::common::members;
use crate::scene::turns;

/// Rules that give way when nobody is left, the weakest first.
#[derive(Clone, Copy)]
struct Rules {
    spares: bool,
    bounded: bool,
    doubts: bool,
    buries: bool,
}

struct Plain<'a> {
    settings: &'a PolicySettings,
    key: &'a Key,
    order: Vec<usize>,
    weights: Vec<f64>,
    candidates: &'a [Candidate],
    tried: &'a [usize],
    /// What is true of all together, once it was found out.
    whole: Option<Whole>,
}

#[derive(Clone, Copy)]
struct Whole {
    panics: bool,
    somebody_is_well: bool,
    /// Requests, own requests, weight.
    means: (f64, f64, f64),
    /// Mean milliseconds a token.
    rate: f64,
    known: bool,
    alike: bool,
}

impl Plain<'_> {
    /// Finds out what is true of all together.
    fn looked_over(mut self) -> Self {
        let is_well = |of| matches!(of, Standing::Usable | Standing::Full | Standing::Doubted);
        let share = self.settings.heat.share.get();
        let often = self.candidates.len() as f64 / share;
        let is_often_whole =
            |of: &Candidate| share > 0.0 && of.whole_ago.is_some_and(|ago| ago as f64 <= often);
        let mut whole = Whole {
            panics: self
                .settings
                .panics(self.count(Standing::is_bad), self.staying()),
            somebody_is_well: self.count(is_well) > 0,
            means: (1.0, 1.0, 1.0),
            rate: Rate::TYPICAL.millis(),
            known: self.candidates.iter().any(|of| of.held_tokens > 0),
            alike: self.candidates.iter().any(is_often_whole),
        };
        self.whole = Some(whole);
        whole.means = self.means();
        whole.rate = self.mean_rate();
        self.whole = Some(whole);
        self
    }

    fn whole(&self) -> Whole {
        self.whole.unwrap()
    }

    fn count(&self, is: impl Fn(Standing) -> bool) -> usize {
        self.candidates.iter().filter(|of| is(of.standing)).count()
    }

    fn doubts(&self) -> bool {
        let doubted = self.count(|standing| standing == Standing::Doubted);
        let spoken_against = self.count(Standing::is_bad) + doubted;
        doubted > 0 && !self.settings.panics(spoken_against, self.staying())
    }

    /// Workers that are drained have no part in what is true of all together.
    fn staying(&self) -> usize {
        self.count(|standing| !standing.is_out())
    }

    fn stands(&self, rules: Rules, standing: Standing) -> bool {
        let panics = self.whole().panics;
        match standing {
            Standing::Usable => true,
            Standing::Doubted => !rules.doubts,
            Standing::Unhealthy => panics,
            Standing::Resting => panics && self.whole().somebody_is_well,
            Standing::Unreachable => panics && !rules.buries,
            Standing::Full | Standing::Draining | Standing::Asleep => false,
        }
    }

    fn strictest(&self) -> Rules {
        Rules {
            spares: self.candidates.iter().any(|of| of.slow_start.is_some()),
            bounded: true,
            doubts: self.doubts(),
            buries: true,
        }
    }

    /// Means over those that share the load: requests, requests in a surge, weight.
    fn means(&self) -> (f64, f64, f64) {
        let rules = self.strictest();
        let (mut count, mut requests, mut surge, mut weight) = (0.0, 1.0, 1.0, 0.0);
        for (index, candidate) in self.candidates.iter().enumerate() {
            let standing = candidate.standing;
            if standing == Standing::Full || self.stands(rules, standing) {
                count += 1.0;
                requests += candidate.load.requests;
                surge += candidate.surge_requests;
                weight += self.weights[index];
            }
        }
        match count > 0.0 {
            true => (requests / count, surge / count, weight / count),
            false => (1.0, 1.0, 1.0),
        }
    }

    /// The mean over those that share the load.
    fn mean_of(&self, what: impl Fn(&Candidate) -> f64) -> Option<f64> {
        let rules = self.strictest();
        let shares =
            |of: &&Candidate| of.standing == Standing::Full || self.stands(rules, of.standing);
        let sharing: Vec<f64> = self.candidates.iter().filter(shares).map(what).collect();
        (!sharing.is_empty()).then(|| sharing.iter().sum::<f64>() / sharing.len() as f64)
    }

    fn mean_rate(&self) -> f64 {
        let mean = self.mean_of(|of| of.rate.millis());
        mean.unwrap_or(Rate::TYPICAL.millis())
    }

    fn mean_unheard(&self) -> f64 {
        self.mean_of(unheard).unwrap_or(0.0)
    }

    fn is_spared(&self, rules: Rules, index: usize) -> bool {
        let (mean, of) = (self.whole().means.0, self.candidates[index]);
        let above = |share: f64| {
            let most = (share * mean).max(1.0);
            of.load.requests.floor() + 1.0 > most || of.exact_requests + 1.0 > 2.0 * most
        };
        rules.spares && of.slow_start.is_some_and(above)
    }

    fn usable(&self, rules: Rules, index: usize) -> bool {
        let of = self.candidates[index];
        let capped = of.standing.is_bad() && of.at_cap;
        let may_be_asked = !capped && !self.tried.contains(&index);
        self.stands(rules, of.standing) && may_be_asked && !self.is_spared(rules, index)
    }

    fn limit(&self, index: usize, mean: f64) -> f64 {
        let share = self.weights[index] / self.whole().means.2 * mean;
        let bound = self.settings.bound;
        (bound.factor.get() * share).max(mean + bound.slack.get())
    }

    fn is_surge(&self) -> bool {
        let (requests, surge, _) = self.whole().means;
        let bound = self.settings.bound;
        let is_crowd = (bound.factor.get() - 1.0) * surge >= bound.slack.get();
        is_crowd && (self.whole().alike || surge >= 2.0 * requests)
    }

    fn excess(&self, index: usize) -> f64 {
        let (requests, surge, _) = self.whole().means;
        let of = self.candidates[index];
        let of_cluster = of.load.requests + 1.0 - self.limit(index, requests);
        match self.is_surge() {
            true => {
                let of_surge = of.surge_requests + 1.0 - self.limit(index, surge);
                let slack = self.settings.bound.slack.get();
                let counted = unheard(&of) + 1.0 - (self.mean_unheard() + slack);
                of_cluster.max(match self.whole().alike {
                    true => of_surge,
                    false => of_surge.min(counted),
                })
            }
            false => of_cluster,
        }
    }

    fn eligible(&self, rules: Rules, index: usize) -> bool {
        self.usable(rules, index) && !(rules.bounded && self.excess(index) > 0.0)
    }

    fn first(&self, accepts: impl Fn(usize) -> bool) -> Option<usize> {
        self.order.iter().copied().find(|&index| accepts(index))
    }

    fn is_full(&self, rules: Rules) -> bool {
        let mut candidates = self.candidates.iter().enumerate();
        candidates.any(|(index, of)| {
            let bad_and_capped = of.standing.is_bad() && of.at_cap;
            let full =
                of.standing == Standing::Full || bad_and_capped && self.stands(rules, of.standing);
            full && !self.tried.contains(&index)
        })
    }

    fn expected(&self, index: usize) -> u32 {
        let of = self.candidates[index];
        of.held_tokens.min(self.key.prompt_tokens())
    }

    fn cost(&self, index: usize) -> f64 {
        let relative = self.weights[index] / self.whole().means.2;
        let load = self.candidates[index].load.scaled(1.0 / relative);
        let missing = f64::from(self.key.prompt_tokens() - self.expected(index));
        let tokens = match self.settings.price {
            Price::Additive {
                prefill, context, ..
            } => {
                load.prefill_tokens + prefill.get() * missing + context.get() * load.context_tokens
            }
            Price::Multiplicative {
                prefill,
                overhead,
                patience,
                ..
            } => {
                (load.prefill_tokens + prefill.get() * missing + overhead.get())
                    * (load.requests + patience.get())
            }
        };
        tokens * self.candidates[index].rate.millis()
    }

    fn tolerance(&self, least: f64) -> f64 {
        match self.settings.price {
            Price::Additive { tolerance, .. } => {
                tolerance.get() * f64::from(self.key.prompt_tokens().min(4_096)) * self.whole().rate
            }
            Price::Multiplicative { tolerance, .. } => least * (tolerance.get() - 1.0).max(0.0),
        }
    }

    fn decide(&self) -> Option<(usize, Reason, u32)> {
        let mut rules = self.strictest();
        let holder = loop {
            if let Some(holder) = self.first(|index| self.eligible(rules, index)) {
                break holder;
            }
            let may_ask_the_dead = !self.is_full(rules);
            if rules.spares {
                rules.spares = false;
            } else if rules.bounded {
                rules.bounded = false;
            } else if rules.doubts {
                rules.doubts = false;
            } else if rules.buries && may_ask_the_dead {
                rules.buries = false;
            } else {
                return None;
            }
        };
        let eligible = self.order.iter().copied();
        let eligible = eligible.filter(|&index| self.eligible(rules, index));
        let compared: Vec<usize> = match (self.whole().known, usize::from(self.settings.choices)) {
            (true, _) | (_, 0) => eligible.collect(),
            (false, choices) => eligible.take(choices.min(8)).collect(),
        };
        let costs = compared.iter().map(|&index| self.cost(index));
        let least = costs.fold(f64::INFINITY, f64::min);
        let tolerance = self.tolerance(least);
        let crowd = |index: usize| {
            let above = self.excess(index).ceil().max(1.0);
            let rate = match (self.candidates[index].rate, self.is_surge()) {
                (rate, true) if rate < Rate::TYPICAL => Rate::TYPICAL,
                (rate, _) => rate,
            };
            let rate = rate.millis();
            self.cost(index) + self.settings.crowd_price.get() * above * rate + tolerance
        };
        let outer = self.settings.outer_bound.get().max(1.0);
        let crowdable: Vec<usize> = (0..self.candidates.len())
            .filter(|&index| {
                let of = self.candidates[index];
                let (requests, surge, _) = self.whole().means;
                let below = |count: f64, mean| count + 1.0 <= outer * self.limit(index, mean);
                let within = below(of.load.requests, requests) && below(of.surge_requests, surge);
                !self.eligible(rules, index) && self.usable(rules, index) && within
            })
            .collect();
        let cheapest = crowdable.iter().map(|&index| crowd(index));
        let cheapest = cheapest.fold(f64::INFINITY, f64::min);
        // Five milliseconds are nothing; tolerance counts unless crowding is cheaper all the same.
        let limit = if cheapest < least {
            cheapest + 5.0
        } else {
            least + tolerance.max(5.0)
        };
        let worker = self.first(|index| {
            let is_near = compared.contains(&index) && self.cost(index) <= limit;
            is_near || crowdable.contains(&index) && crowd(index) <= cheapest.min(least) + 5.0
        });
        let worker = worker.unwrap_or(holder);
        let expected = self.expected(worker);
        Some((worker, self.reason(rules, worker), expected))
    }

    fn reason(&self, rules: Rules, worker: usize) -> Reason {
        let home = self.order[0];
        let of = self.candidates[home];
        if worker == home {
            Reason::Home
        } else if self.tried.contains(&home) {
            Reason::Failover
        } else if of.standing == Standing::Draining {
            Reason::Drain
        } else if of.standing == Standing::Full {
            Reason::SpillFull
        } else if !self.stands(rules, of.standing) {
            Reason::Failover
        } else if of.standing.is_bad() && of.at_cap {
            Reason::SpillFull
        } else if self.is_spared(rules, home) {
            Reason::SlowStart
        } else if self.excess(home) > 0.0 {
            Reason::SpillBound
        } else if self.expected(worker) > self.expected(home) {
            Reason::Evidence
        } else {
            Reason::SpillPrice
        }
    }
}

/// Small pools, and one above `order::SCORED_MAX`, whose near successors come first. Few points: built for speed.
fn rings() -> &'static [Ring] {
    static RINGS: OnceLock<Vec<Ring>> = OnceLock::new();
    RINGS.get_or_init(|| {
        let settings = RingSettings {
            virtual_nodes: NonZeroU16::new(8).unwrap(),
            ..RingSettings::default()
        };
        let pools = [1, 3, 16, 40, 1_020].map(|workers: u32| {
            let equal = vec![1_000; workers as usize];
            let unequal = (0..workers).map(|at| 200 + at * 7_919 % 4_000).collect();
            [equal, unequal]
        });
        let pools = pools.into_iter().flatten();
        pools
            .map(|weights: Vec<u32>| Ring::build(&settings, members(&weights)).unwrap())
            .collect()
    })
}

/// From a number, so that a thousand of them cost a seed. `rare`: one in so many differs from an ordinary worker.
fn unheard(candidate: &Candidate) -> f64 {
    (candidate.exact_requests - candidate.load.requests).max(0.0)
}

fn candidate(bits: u64, rare: u64, busy: f64) -> Candidate {
    let part = |at: u32| ((bits >> at) & 0xff) as f64 / 256.0;
    let is = |at: u32, of: u64| (bits >> at).is_multiple_of(rare * of);
    let standing = match (is(3, 1), bits >> 60) {
        (false, _) => Standing::Usable,
        (true, 0..=2) => Standing::Full,
        (true, 3..=5) => Standing::Unhealthy,
        (true, 6..=7) => Standing::Resting,
        (true, 8..=9) => Standing::Unreachable,
        (true, 10..=12) => Standing::Doubted,
        (true, _) => Standing::Draining,
    };
    let requests = (part(8) * busy).floor();
    Candidate {
        load: Load {
            requests,
            prefill_tokens: part(16) * 4_000.0 * requests,
            context_tokens: part(24) * 40_000.0 * requests,
        },
        exact_requests: (requests + 14.0 * part(32) - 2.0).max(0.0).floor(),
        surge_requests: requests + (part(32) * 12.0).floor(),
        standing,
        at_cap: standing.is_bad() && is(5, 1),
        kv_tokens: None,
        slow_start: is(7, 2).then_some(part(40)),
        held_tokens: if is(11, 3) {
            (part(48) * 3_000.0) as u32
        } else {
            0
        },
        whole_ago: is(12, 3).then_some((bits >> 44) & 0x3f),
        known_tokens: 0,
        told: None,
        // Of every size: a queue that costs nothing, and one that costs four times what is typical.
        rate: Rate::from_millis(0.1 * part(52).powi(3) * f64::from(u8::from(!is(13, 1)))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn shortcuts_choose_as_the_plain_rule_does(
        ring in 0_usize..10,
        seed: u64,
        rare in prop::sample::select(vec![2_u64, 5, 40, 5_000]),
        busy in prop::sample::select(vec![0.0, 1.0, 6.0, 60.0]),
        (choices, tried, length) in (0_u8..10, prop::collection::vec(0_usize..40, 0..3), 0_usize..20_000),
        (multiplicative, panic, has_heat) in any::<(bool, bool, bool)>(),
    ) {
        let ring = &rings()[ring];
        let candidates: Vec<_> = crate::common::numbers(seed)
            .take(ring.len())
            .map(|bits| candidate(bits, rare, busy))
            .collect();
        let price = if multiplicative { Price::MULTIPLICATIVE } else { Price::ADDITIVE };
        let mut settings = PolicySettings { price, panic, choices, ..PolicySettings::default() };
        if !has_heat {
            settings.heat.share = Ratio::new(0.0).unwrap();
        }
        let key = turns(&format!("{seed} ").repeat(length / 20 + 1));
        let home = key.marks().first().map_or(key.home(), |mark| mark.hash);
        let order = ring.order(home).unwrap().to_vec();
        let weights = ring.members().iter().map(|of| of.weight.thousandths().into());
        let plain = Plain {
            settings: &settings,
            key: &key,
            order,
            weights: weights.collect(),
            candidates: &candidates,
            tried: &tried,
            whole: None,
        }
        .looked_over();
        let decided = decide(&settings, ring, &key, &candidates, &tried, 0).ok();
        let decided = decided.map(|of| (of.worker, of.reason, of.expected_tokens));
        prop_assert_eq!(decided, plain.decide());
    }
}
