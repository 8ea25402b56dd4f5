//! How large a run is, and what it sends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;

use crate::chaos::record::Place;
use crate::chaos::scenario::{Rush, Shape};
use crate::chaos::traffic::TrafficPlan;
use crate::processes::MODEL;
use grapevine_bench::client::{Client, Target};
use grapevine_bench::load::{self, Arrivals, Pacing, Plan, Prompts, Stop};

/// Limit of one request: longer than any pause.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests in flight above which further ones are shed.
const IN_FLIGHT_MAX: usize = 1_000;
/// Short requests that warm the caches: the number for each prefix, the number of clients, and the time limit.
/// Enough run at once that some prefixes also reach the workers that they go to when their own is busy.
const WARM_REQUESTS: u64 = 8;
const WARM_CLIENTS: usize = 16;
const WARM_WITHIN: Duration = Duration::from_secs(120);

/// What a run needs besides its scenario.
#[derive(Debug, Clone)]
pub(crate) struct RunPlan {
    pub(crate) shape: Shape,
    pub(crate) place: Place,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Different shared prefixes.
    pub(crate) groups: u64,
    /// Seed of the texts.
    pub(crate) prompts_seed: u64,
    /// Time between two looks at the replicas.
    pub(crate) look_every: Duration,
    /// Time between two lines of progress.
    pub(crate) progress_every: Duration,
    /// Greatest length of the run. It may end in the middle of its steps; all faults are repaired then.
    pub(crate) longest: Option<Duration>,
}

impl RunPlan {
    pub(super) fn traffic(&self) -> TrafficPlan {
        TrafficPlan {
            arrivals: Arrivals::Open {
                rate: self.rate,
                pacing: Pacing::Poisson,
                in_flight_max: IN_FLIGHT_MAX,
            },
            prompts: Prompts {
                seed: self.prompts_seed,
                groups: self.groups,
                shared_bytes: 4_000,
                own_bytes: 400,
                max_tokens: 80,
                model: Some(MODEL.to_owned()),
                ..Prompts::default()
            },
            timeout: REQUEST_TIMEOUT,
            // The run ends with its steps, so the load must outlast them.
            longest: self.longest.unwrap_or(Duration::from_secs(3_600)) + Duration::from_secs(600),
            seed: self.shape.seed,
        }
    }

    pub(super) fn rush(&self, rush: Rush) -> TrafficPlan {
        let steady = self.traffic();
        TrafficPlan {
            arrivals: Arrivals::Open {
                rate: self.rate * rush.times,
                pacing: Pacing::Poisson,
                in_flight_max: IN_FLIGHT_MAX,
            },
            prompts: Prompts {
                seed: self.prompts_seed.wrapping_add(1),
                groups: if rush.same_prefix { 1 } else { self.groups },
                ..steady.prompts
            },
            longest: rush.time,
            ..steady
        }
    }

    /// Sends every shared prefix a few times, so that hit rates are compared from warm caches on.
    /// Errors: when one of these requests fails: the cluster has no fault yet.
    pub(super) async fn warm(&self, front: Target) -> anyhow::Result<()> {
        let steady = self.traffic();
        let plan = Plan {
            arrivals: Arrivals::Closed {
                clients: WARM_CLIENTS,
            },
            requests: self.groups * WARM_REQUESTS,
            duration: WARM_WITHIN,
            timeout: steady.timeout,
            source: Prompts {
                // The part after the shared one fills no block: the steady load has other endings.
                own_bytes: 8,
                max_tokens: 1,
                ..steady.prompts
            }
            .into(),
            first_session: 0,
            explain: false,
            seed: steady.seed,
        };
        let client = Arc::new(Client::one(front));
        let warmed = load::run_until(client, plan, &Stop::default(), |_, _| ()).await;
        let (all, well) = (warmed.summary.requests, warmed.summary.succeeded);
        ensure!(
            all == well,
            "{} of {all} requests failed before the first fault",
            all - well
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_worker::{Config, FakeWorker, Fault, Rule};
    use grapevine_bench::tally::share;

    #[tokio::test]
    async fn warm_caches_hold_what_is_shared_and_nothing_else() {
        let config = Config {
            speed: 1_000.0,
            ..Config::default()
        };
        let worker = FakeWorker::start(config).await.expect("port 0");
        let front: Target = worker.url().parse().expect("URL");
        let plan = RunPlan {
            shape: Shape {
                replicas: 1,
                workers: 1,
                quick: true,
                seed: 1,
                duration: Duration::ZERO,
            },
            place: Place::Processes,
            rate: 1.0,
            groups: 5,
            prompts_seed: 1,
            look_every: Duration::ZERO,
            progress_every: Duration::ZERO,
            longest: None,
        };
        plan.warm(front.clone())
            .await
            .expect("a worker that is well");
        let client = Client::one(front.clone());
        let (mut cached, mut prompt) = (0, 0);
        for number in 0..20 {
            let ask = plan.traffic().prompts.ask(number);
            let outcome = client.exchange(&ask, REQUEST_TIMEOUT).await;
            let usage = outcome.usage.expect("it was asked for");
            (cached, prompt) = (cached + usage.cached.unwrap_or(0), prompt + usage.prompt);
        }
        let hits = share(cached, prompt);
        assert!(
            (0.8..0.95).contains(&hits),
            "{hits}: 4,000 of 4,400 bytes are shared"
        );

        worker
            .add_rule(Rule::next(1, Fault::status(500)))
            .expect("room");
        let failed = plan.warm(front).await.expect_err("one request fails");
        assert!(failed.to_string().contains("1 of 40"), "{failed}");
    }
}
