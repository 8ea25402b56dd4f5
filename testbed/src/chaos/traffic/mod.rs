//! Load while a scenario runs: sent until stopped, and summed up in windows of time.
//!
//! [`grapevine_bench::load`] sends and measures; this file places each request on the run's axis.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::record::{FailedRequest, Origin, Window};
use grapevine_bench::client::{Client, Failure, Target};
use grapevine_bench::load::{self, Arrivals, Ended, Plan, Prompts, Stop};
use grapevine_bench::tally::{Summary, Tally};
use grapevine_bench::windows::Windows;

/// Failures that are kept one by one; further ones are counted.
const FAILURES_KEPT: usize = 10_000;

/// What to send.
#[derive(Debug, Clone)]
pub(crate) struct TrafficPlan {
    /// Use the open loop for honest figures: a cluster that stalls does not slow it down.
    pub(crate) arrivals: Arrivals,
    pub(crate) prompts: Prompts,
    /// Limit of one request.
    pub(crate) timeout: Duration,
    /// Sending ends by itself after this, whatever the scenario does.
    pub(crate) longest: Duration,
    /// Seed of the arrivals.
    pub(crate) seed: u64,
}

/// Load that is running.
pub(crate) struct Traffic {
    shared: Arc<Shared>,
    stop: Stop,
    task: AbortOnDropHandle<load::Report>,
    origin: Origin,
}

struct Shared {
    state: Mutex<State>,
}

struct State {
    windows: Windows,
    failures: Vec<FailedRequest>,
    failures_beyond: u64,
    live: Live,
}

/// Sums so far, for a line of progress.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Live {
    /// Requests that have ended.
    pub(crate) ended: u64,
    pub(crate) failed: u64,
    /// Share of prompt tokens that caches supplied; 0 to 1.
    pub(crate) hit_rate: f64,
    pub(crate) first_token_p50: Duration,
}

/// What clients saw.
#[derive(Debug, Clone)]
pub(crate) struct TrafficReport {
    pub(crate) windows: Vec<Window>,
    /// In the order of their ends; at most 10,000.
    pub(crate) failures: Vec<FailedRequest>,
    /// Failures that are not among these.
    pub(crate) failures_beyond: u64,
    pub(crate) totals: Summary,
    /// Requests that were due but not sent, because too many were in flight.
    pub(crate) shed: u64,
}

impl Traffic {
    /// Sends to `front` from now on.
    pub(crate) fn start(front: Target, plan: TrafficPlan, origin: Origin) -> Self {
        let windows = Windows::new(origin.elapsed_ms(), plan.longest, plan.timeout);
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                windows,
                failures: Vec::new(),
                failures_beyond: 0,
                live: Live::default(),
            }),
        });
        let stop = Stop::default();
        let plan = Plan {
            arrivals: plan.arrivals,
            requests: u64::MAX,
            duration: plan.longest,
            timeout: plan.timeout,
            source: plan.prompts.into(),
            first_session: 0,
            explain: true,
            seed: plan.seed,
        };
        let (into, until) = (Arc::clone(&shared), stop.clone());
        let task = tokio::spawn(async move {
            let client = Arc::new(Client::one(front));
            load::run_until(client, plan, &until, |ended, tally| {
                into.state.lock().add(ended, tally, origin);
            })
            .await
        });
        Self {
            shared,
            stop,
            task: AbortOnDropHandle::new(task),
            origin,
        }
    }

    /// Sums so far.
    pub(crate) fn live(&self) -> Live {
        self.shared.state.lock().live
    }

    /// Sends nothing more and waits for what is in flight, at most for one request's limit.
    pub(crate) async fn stop(self) -> anyhow::Result<TrafficReport> {
        self.stop.sending.cancel();
        let report = self.task.await?;
        let mut state = self.shared.state.lock();
        Ok(TrafficReport {
            windows: state.windows.finish(self.origin.elapsed_ms()),
            failures: std::mem::take(&mut state.failures),
            failures_beyond: state.failures_beyond,
            totals: report.summary,
            shed: report.shed,
        })
    }
}

impl State {
    fn add(&mut self, ended: &Ended, tally: &Tally, origin: Origin) {
        self.windows.add(ended, origin);
        if let Some(failure) = &ended.outcome.failure {
            if self.failures.len() < FAILURES_KEPT {
                self.failures.push(failed(ended, failure, origin));
            } else {
                self.failures_beyond += 1;
            }
        }
        self.live = Live {
            ended: tally.requests(),
            failed: tally.failed(),
            hit_rate: tally.hit_rate(),
            first_token_p50: tally.first_token_p50(),
        };
    }
}

fn failed(ended: &Ended, failure: &Failure, origin: Origin) -> FailedRequest {
    FailedRequest {
        sent_ms: origin.ms(ended.sent()),
        failed_ms: origin.ms(ended.at()),
        begun: ended.outcome.had_begun(),
        replica: ended.outcome.replica.clone(),
        worker: ended.outcome.worker.clone(),
        kind: failure.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_worker::{Config, FakeWorker, Fault, How, Point, Rule};
    use tokio::time::{Instant, sleep};

    #[tokio::test]
    async fn windows_failures_and_totals_tell_the_same() {
        let config = Config {
            speed: 1_000.0,
            ..Config::default()
        };
        let worker = FakeWorker::start(config).await.expect("port 0");
        let cut = Fault::stop(Point::Event(2), How::Rst);
        worker.add_rule(Rule::next(3, cut)).expect("room");
        let plan = TrafficPlan {
            arrivals: Arrivals::Open {
                rate: 100.0,
                // None is shed however slow this machine is.
                in_flight_max: usize::MAX,
                pacing: load::Pacing::Poisson,
            },
            prompts: Prompts {
                max_tokens: 3,
                ..Prompts::default()
            },
            timeout: Duration::from_secs(20),
            longest: Duration::from_secs(60),
            seed: 1,
        };
        let origin = Origin::now();
        let traffic = Traffic::start(worker.url().parse().expect("URL"), plan, origin);
        while traffic.live().ended < 30 || traffic.live().failed < 3 {
            assert!(origin.ms(Instant::now()) < 50_000, "{:?}", traffic.live());
            sleep(Duration::from_millis(5)).await;
        }
        let report = traffic.stop().await.expect("it ends");
        let sum = |of: fn(&Window) -> u64| report.windows.iter().map(of).sum::<u64>();
        let totals = &report.totals;
        assert_eq!(
            (sum(|w| w.sent), sum(|w| w.succeeded)),
            (totals.requests, totals.succeeded)
        );
        assert_eq!(
            (sum(|w| w.failed), report.failures_beyond, report.shed),
            (3, 0, 0)
        );
        assert_eq!(sum(|w| w.cached_tokens), totals.cached_tokens);
        for failure in &report.failures {
            assert!(failure.begun && failure.kind == "cut" && failure.sent_ms <= failure.failed_ms);
        }
    }
}
