//! A whole run: one endpoint, or two in turn.
//!
//! Two endpoints are never loaded at the same time, since they may share a machine: each round sends the same requests
//! to both, one after the other, and the one that begins changes from round to round. What drifts over minutes (a warm
//! processor, a busy neighbour) then meets both alike, and the ratio is taken within each round.

mod comparison;
mod result;

use std::sync::Arc;
use std::time::Duration;

pub use comparison::{Comparison, Ratio};
pub use result::{EndpointResult, RunResult, SCHEMA, WarmUp};

use crate::charts::{Mark, MarkKind};
use crate::client::Client;
use crate::load::{self, Arrivals, Plan, Stop};
use crate::tally::{Summary, Tally, Took};
use crate::windows::{Origin, Windows};

/// Sessions before the first that is measured are from here on: with the same shared parts, and texts of their own.
const WARM_UP_FIRST: u64 = 1 << 40;
/// Requests of a warm-up that are in flight at a time.
const WARM_UP_CLIENTS: usize = 8;

/// An endpoint under load.
#[derive(Clone)]
pub struct Side {
    /// As results call it.
    pub name: String,
    /// The URLs behind which it is.
    pub urls: Vec<String>,
    /// What sends to it.
    pub client: Arc<Client>,
}

/// What is to be measured.
pub struct Setup {
    /// One, or two that are compared.
    pub sides: Vec<Side>,
    /// The load of one side in one round.
    pub plan: Plan,
    /// At least 1.
    pub rounds: u64,
    /// Requests to each side before the first round, which are not counted.
    pub warm_up: u64,
}

/// Where a run is, for a line of progress.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Requests that have ended, of all sides and rounds.
    pub ended: u64,
    /// Of these, failed.
    pub failed: u64,
    /// Median time to the first token of this side in this round.
    pub first_token_p50: Duration,
}

/// What is known of one side so far.
struct Measured {
    warm_up: WarmUp,
    tally: Tally,
    windows: Windows,
    rounds: Vec<Summary>,
    took: Took,
    shed: u64,
    unfinished: u64,
}

/// Runs it to its end, or until it is stopped; what was measured by then is the result.
pub async fn run(setup: &Setup, stop: &Stop, mut observe: impl FnMut(Progress)) -> RunResult {
    let mut measured = Vec::with_capacity(setup.sides.len());
    for side in &setup.sides {
        let warm_up = warm_up(side, setup, stop).await;
        measured.push(Measured::new(setup, warm_up));
    }
    let origin = Origin::now();
    let mut marks = Vec::new();
    let (mut ended, mut failed) = (0, 0);
    for round in 0..setup.rounds {
        for index in order(round, setup.sides.len()) {
            if stop.sending.is_cancelled() {
                break;
            }
            let side = &setup.sides[index];
            if setup.sides.len() > 1 {
                marks.push(phase(origin.elapsed_ms(), &side.name));
            }
            let client = Arc::clone(&side.client);
            let plan = plan_of(&setup.plan, round);
            let part = measured[index].round(client, plan, stop, origin, |tally| {
                observe(Progress {
                    ended: ended + tally.requests(),
                    failed: failed + tally.failed(),
                    first_token_p50: tally.first_token_p50(),
                });
            });
            let tally = part.await;
            ended += tally.requests();
            failed += tally.failed();
        }
    }
    let duration_ms = origin.elapsed_ms();
    let endpoints = setup.sides.iter().zip(measured);
    let endpoints = endpoints.map(|(side, one)| one.result(side, duration_ms));
    RunResult::new(setup, origin, duration_ms, marks, endpoints.collect(), stop)
}

/// Which side begins: each in turn.
fn order(round: u64, sides: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sides).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// The same for both sides, and other requests in each round.
fn plan_of(plan: &Plan, round: u64) -> Plan {
    let sessions = plan.requests.div_ceil(plan.source.turns());
    Plan {
        first_session: plan.first_session + round.saturating_mul(sessions) % WARM_UP_FIRST,
        seed: plan.seed.wrapping_add(round),
        ..plan.clone()
    }
}

fn phase(at_ms: u64, name: &str) -> Mark {
    Mark {
        at_ms,
        until_ms: None,
        kind: MarkKind::Phase,
        node: None,
        text: name.to_owned(),
    }
}

async fn warm_up(side: &Side, setup: &Setup, stop: &Stop) -> WarmUp {
    let rounds = u32::try_from(setup.rounds).unwrap_or(u32::MAX);
    let plan = Plan {
        // As long as all rounds together.
        duration: setup.plan.duration.saturating_mul(rounds),
        arrivals: Arrivals::Closed {
            clients: WARM_UP_CLIENTS,
        },
        requests: setup.warm_up,
        first_session: WARM_UP_FIRST,
        ..setup.plan.clone()
    };
    let report = load::run_until(Arc::clone(&side.client), plan, stop, |_, _| ()).await;
    WarmUp {
        requests: report.summary.requests + report.unfinished,
        succeeded: report.summary.succeeded,
    }
}

impl Measured {
    fn new(setup: &Setup, warm_up: WarmUp) -> Self {
        let parts = setup.rounds * setup.sides.len() as u64;
        let parts = u32::try_from(parts).unwrap_or(u32::MAX);
        let longest = (setup.plan.duration + setup.plan.timeout).saturating_mul(parts);
        Self {
            warm_up,
            tally: Tally::default(),
            windows: Windows::new(0, longest, setup.plan.timeout),
            rounds: Vec::new(),
            took: Took::default(),
            shed: 0,
            unfinished: 0,
        }
    }

    /// Loads the side once, and returns the sums of this round.
    async fn round(
        &mut self,
        client: Arc<Client>,
        plan: Plan,
        stop: &Stop,
        origin: Origin,
        mut observe: impl FnMut(&Tally),
    ) -> Tally {
        let mut tally = Tally::default();
        let report = load::run_until(client, plan, stop, |request, so_far| {
            self.windows.add(request, origin);
            tally.add(&request.outcome, request.waited);
            observe(so_far);
        });
        let report = report.await;
        self.tally.merge(&tally);
        self.took += report.took;
        self.shed += report.shed;
        self.unfinished += report.unfinished;
        // A round that was broken off is no pair.
        if !stop.sending.is_cancelled() {
            self.rounds.push(report.summary);
        }
        tally
    }

    fn result(mut self, side: &Side, duration_ms: u64) -> EndpointResult {
        EndpointResult {
            name: side.name.clone(),
            urls: side.urls.clone(),
            warm_up: self.warm_up,
            summary: self.tally.summary(self.took),
            shed: self.shed,
            unfinished: self.unfinished,
            rounds: self.rounds,
            windows: self.windows.finish(duration_ms),
        }
    }
}
