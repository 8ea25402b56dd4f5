//! Which workers a request goes to: one that does both, or a pair of which one prefills and one decodes.

use grapevine_gossip::load::Load;
use grapevine_placement::{Candidate, Decision, Recorded};
use rand::Rng;

use super::super::contender::{Evidence, Rule};
use super::super::pools::Role;
use super::super::timed_engine::TimedEngine;
use super::super::workload::Request;
use super::{Leg, Run};

/// Decisions about a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plan {
    /// One worker does both.
    Alone(Role, Decision),
    /// One worker prefills, another decodes.
    Pair { prefill: Decision, decode: Decision },
}

impl Plan {
    /// Where the prompt is computed, for what is known of it there.
    pub(super) fn computing(&self) -> &Decision {
        match self {
            Self::Alone(_, decision) => decision,
            Self::Pair { prefill, .. } => prefill,
        }
    }

    /// Whether both name the same workers.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Alone(role, one), Self::Alone(others, other)) => {
                role == others && one.worker == other.worker
            }
            (
                Self::Pair { prefill, decode },
                Self::Pair {
                    prefill: other_prefill,
                    decode: other_decode,
                },
            ) => prefill.worker == other_prefill.worker && decode.worker == other_decode.worker,
            _ => false,
        }
    }
}

impl Run<'_> {
    /// The workers that the rule names, and what it expects there: where the prompt is computed, and where the answer
    /// is generated if not there.
    pub(super) fn choose(
        &mut self,
        now_us: u64,
        replica: usize,
        request: &Request,
        draw: u64,
    ) -> (Leg, Option<Leg>) {
        let blind = |worker| Leg {
            worker,
            load: Load {
                requests: 1,
                prefill_tokens: request.in_tokens.into(),
                context_tokens: request.in_tokens.into(),
            },
            expected: 0,
            tokens_before: 0,
            recorded: Recorded::default(),
            cached: 0,
        };
        match self.rule {
            Rule::Oracle => (blind(self.all_knowing(request)), None),
            Rule::LeastPending => (blind(self.least_pending(now_us, replica, draw)), None),
            Rule::Placement { .. } => {
                let plan = self.plan(now_us, replica, request, draw);
                if self.scenario.replicas > 1 {
                    let other = self.random.random_range(0..self.scenario.replicas - 1);
                    let other = if other >= replica { other + 1 } else { other };
                    let draw = self.random.random();
                    let others = self.plan(now_us, other, request, draw);
                    self.meter.asked(
                        plan.agrees(&others),
                        plan.computing().known,
                        others.computing().known,
                    );
                }
                self.commit(now_us, replica, request, &plan)
            }
        }
    }

    /// What a replica would do now.
    fn plan(&mut self, now_us: u64, replica: usize, request: &Request, draw: u64) -> Plan {
        let alone = |run: &mut Self| run.ask(now_us, replica, Role::Any, request, draw);
        let Some(split) = self.scenario.split else {
            return Plan::Alone(Role::Any, alone(self));
        };
        let is_short = |decision: &Decision| split.divide.is_short(decision.prefill_tokens());
        let whole = (self.scenario.workers > 0).then(|| alone(self));
        if let Some(whole) = whole.filter(is_short) {
            return Plan::Alone(Role::Any, whole);
        }
        let prefill = self.ask(now_us, replica, Role::Prefill, request, draw);
        let is_sooner = |whole: &Decision| split.divide.is_sooner_whole(whole, &prefill);
        if let Some(whole) = whole.filter(is_sooner) {
            return Plan::Alone(Role::Any, whole);
        }
        let decode = self.ask(now_us, replica, Role::Decode, request, draw);
        if whole.is_none() && is_short(&decode) {
            return Plan::Alone(Role::Decode, decode);
        }
        Plan::Pair { prefill, decode }
    }

    /// A replica's decision in one pool.
    fn ask(
        &mut self,
        now_us: u64,
        replica: usize,
        role: Role,
        request: &Request,
        draw: u64,
    ) -> Decision {
        self.see_load(now_us, replica);
        let pool = self.pools.of(role);
        self.candidates.clear();
        let seen = self.seen[pool.places()].iter().zip(pool.rates.of(replica));
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
        if let Some(heard) = &mut self.heard {
            let places = pool.places();
            heard.tell(now_us, replica, places, request, &mut self.candidates);
        }
        self.replicas[replica].decide(pool, &request.key, now_us, &mut self.candidates, draw)
    }

    fn see_load(&mut self, now_us: u64, viewer: usize) {
        self.news.see(now_us, viewer, &mut self.seen);
    }

    /// Remembers and tells the decisions.
    fn commit(
        &mut self,
        now_us: u64,
        replica: usize,
        request: &Request,
        plan: &Plan,
    ) -> (Leg, Option<Leg>) {
        if self.shared.heat {
            self.replicas[replica].heat.count(&request.key);
        }
        let mut leg = |role, decision| self.leg(now_us, replica, role, request, decision);
        match plan {
            Plan::Alone(role, decision) => (leg(*role, decision), None),
            Plan::Pair { prefill, decode } => {
                let prefill = leg(Role::Prefill, prefill);
                let mut decode = leg(Role::Decode, decode);
                // It computes nothing.
                decode.load.prefill_tokens = 0;
                (prefill, Some(decode))
            }
        }
    }

    fn leg(
        &mut self,
        now_us: u64,
        replica: usize,
        role: Role,
        request: &Request,
        decision: &Decision,
    ) -> Leg {
        let worker = self.pools.of(role).places().start + decision.worker;
        Leg {
            worker,
            load: Load {
                requests: 1,
                prefill_tokens: decision.prefill_tokens().into(),
                context_tokens: request.in_tokens.into(),
            },
            expected: decision.expected_tokens,
            tokens_before: decision.tokens_before,
            recorded: self.remember(now_us, replica, worker, request, decision),
            cached: 0,
        }
    }

    fn remember(
        &mut self,
        now_us: u64,
        replica: usize,
        worker: usize,
        request: &Request,
        decision: &Decision,
    ) -> Recorded {
        if self.shared.evidence == Evidence::Off {
            return Recorded::default();
        }
        let recorded = self.replicas[replica].record(worker, decision, &request.key, now_us);
        let tell = match self.shared.evidence {
            Evidence::All => true,
            Evidence::Deviating => decision.worker != decision.home,
            Evidence::Off | Evidence::Own => false,
        };
        if tell {
            self.tell(now_us, replica, worker, recorded.marks_to_send(), false);
        }
        recorded
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
