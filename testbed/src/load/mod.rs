//! Load generator: closed loop (a number of clients, each with one request at a time) or open loop (a rate
//! that does not depend on the answers).
//!
//! Bounded in count *and* time. In the open loop latency counts from the moment a request was due,
//! so a stalled system cannot hide its stall by slowing the generator down (coordinated omission);
//! requests beyond `in_flight_max` are not sent but counted as shed.

mod prompts;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub(crate) use prompts::words;
pub use prompts::{Endpoint, Prompts};

use crate::client::{Ask, Client, Outcome};
use crate::tally::{Summary, Tally};

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// This many clients, each with one request at a time.
    Closed {
        /// At least 1.
        clients: usize,
    },
    /// A Poisson process with this mean rate.
    Open {
        /// Requests per second, above 0.
        rate: f64,
        /// Requests in flight above which further ones are shed.
        in_flight_max: usize,
    },
}

/// A run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// Requests after which the run ends.
    pub requests: u64,
    /// Time after which nothing new is sent.
    pub duration: Duration,
    /// Limit of one request; what is in flight when the run ends is waited for up to this.
    pub timeout: Duration,
    /// The requests.
    pub prompts: Prompts,
    /// Ask the router which worker answered.
    pub explain: bool,
    /// Seed of the arrivals.
    pub seed: u64,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Sums over the requests sent.
    #[serde(flatten)]
    pub summary: Summary,
    /// Open loop: requests that were due but not sent.
    pub shed: u64,
}

/// A request that has ended, and when.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The result of the request.
    pub outcome: Outcome,
    /// When it was due.
    pub due: Instant,
    /// Time from when it was due until it was sent.
    pub waited: Duration,
}

impl Ended {
    /// When it was sent.
    pub fn sent(&self) -> Instant {
        self.due + self.waited
    }

    /// When it ended.
    pub fn at(&self) -> Instant {
        self.sent() + self.outcome.latency
    }
}

/// Runs a plan against a client's targets. `observe` gets each outcome as it comes, and the sums so
/// far.
pub async fn run(
    client: Arc<Client>,
    plan: Plan,
    mut observe: impl FnMut(&Outcome, &Tally),
) -> Report {
    let never = CancellationToken::new();
    run_until(client, plan, &never, |ended, tally| {
        observe(&ended.outcome, tally);
    })
    .await
}

/// As [`run`], and nothing new is sent once `stop` is cancelled; what is in flight is waited for.
pub async fn run_until(
    client: Arc<Client>,
    plan: Plan,
    stop: &CancellationToken,
    observe: impl FnMut(&Ended, &Tally),
) -> Report {
    match plan.arrivals {
        Arrivals::Closed { clients } => closed(client, plan, clients, stop, observe).await,
        Arrivals::Open {
            rate,
            in_flight_max,
        } => open(client, plan, rate, in_flight_max, stop, observe).await,
    }
}

impl Plan {
    fn ask(&self, number: u64) -> Ask {
        Ask {
            explain: self.explain,
            ..self.prompts.ask(number)
        }
    }
}

async fn closed(
    client: Arc<Client>,
    plan: Plan,
    clients: usize,
    stop: &CancellationToken,
    mut observe: impl FnMut(&Ended, &Tally),
) -> Report {
    let start = Instant::now();
    let plan = Arc::new(plan);
    let next = Arc::new(AtomicU64::new(0));
    let (send, mut outcomes) = tokio::sync::mpsc::channel::<Ended>(1_024);
    let mut tasks = JoinSet::new();
    for _ in 0..clients.max(1) {
        let (client, plan) = (Arc::clone(&client), Arc::clone(&plan));
        let (next, send, stop) = (Arc::clone(&next), send.clone(), stop.clone());
        tasks.spawn(async move {
            while start.elapsed() < plan.duration && !stop.is_cancelled() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= plan.requests {
                    return;
                }
                let due = Instant::now();
                let outcome = client.exchange(&plan.ask(number), plan.timeout).await;
                let ended = Ended {
                    outcome,
                    due,
                    waited: Duration::ZERO,
                };
                if send.send(ended).await.is_err() {
                    return;
                }
            }
        });
    }
    drop(send);
    let mut tally = Tally::default();
    while let Some(ended) = outcomes.recv().await {
        tally.add(&ended.outcome, ended.waited);
        observe(&ended, &tally);
    }
    Report {
        summary: tally.summary(start.elapsed()),
        shed: 0,
    }
}

async fn open(
    client: Arc<Client>,
    plan: Plan,
    rate: f64,
    in_flight_max: usize,
    stop: &CancellationToken,
    mut observe: impl FnMut(&Ended, &Tally),
) -> Report {
    let start = Instant::now();
    let mut random = StdRng::seed_from_u64(plan.seed);
    let mut tally = Tally::default();
    let mut in_flight: JoinSet<Ended> = JoinSet::new();
    let mut shed = 0;
    let mut due = start;
    let mut number = 0;
    let mut count = |tally: &mut Tally, ended: Ended| {
        tally.add(&ended.outcome, ended.waited);
        observe(&ended, tally);
    };
    while number < plan.requests && due - start < plan.duration {
        tokio::select! {
            () = stop.cancelled() => break,
            () = sleep_until(due) => {
                if in_flight.len() < in_flight_max {
                    let (client, ask, timeout) = (Arc::clone(&client), plan.ask(number), plan.timeout);
                    in_flight.spawn(async move {
                        let waited = due.elapsed();
                        let outcome = client.exchange(&ask, timeout).await;
                        Ended { outcome, due, waited }
                    });
                } else {
                    shed += 1;
                }
                number += 1;
                due += exponential(&mut random, rate);
            }
            Some(done) = in_flight.join_next() => count(&mut tally, done.expect("requests do not panic")),
        }
    }
    while let Some(done) = in_flight.join_next().await {
        count(&mut tally, done.expect("requests do not panic"));
    }
    Report {
        summary: tally.summary(start.elapsed()),
        shed,
    }
}

/// Time to the next arrival of a Poisson process; capped at 1,000 times the mean.
fn exponential(random: &mut StdRng, rate: f64) -> Duration {
    let mean = 1.0 / rate.max(1e-6);
    let draw: f64 = random.random();
    Duration::from_secs_f64((-(1.0 - draw).ln() * mean).min(1_000.0 * mean))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Spread;
    use crate::fake_worker::{Config, FakeWorker, Fault, Rule};

    async fn workers(count: usize) -> (Vec<FakeWorker>, Arc<Client>) {
        let mut workers = Vec::new();
        for _ in 0..count {
            let config = Config {
                speed: 1_000.0,
                ..Config::default()
            };
            workers.push(
                FakeWorker::start(config)
                    .await
                    .expect("port 0 is always free"),
            );
        }
        let targets = workers
            .iter()
            .map(|w| w.url().parse().expect("URL"))
            .collect();
        let client = Client::new(targets, Spread::RoundRobin).expect("targets");
        (workers, Arc::new(client))
    }

    fn plan(arrivals: Arrivals, requests: u64) -> Plan {
        Plan {
            arrivals,
            requests,
            duration: Duration::from_secs(60),
            timeout: Duration::from_secs(20),
            prompts: Prompts {
                max_tokens: 3,
                ..Prompts::default()
            },
            explain: false,
            seed: 1,
        }
    }

    #[tokio::test]
    async fn closed_loop_sends_exactly_what_was_asked_with_so_many_clients() {
        let (workers, client) = workers(2).await;
        let mut seen = 0;
        let report = run(
            client,
            plan(Arrivals::Closed { clients: 4 }, 50),
            |_, tally| seen = tally.requests(),
        )
        .await;
        assert_eq!(
            (report.summary.succeeded, report.summary.requests, seen),
            (50, 50, 50)
        );
        assert_eq!(workers.iter().map(|w| w.stats().requests).sum::<u64>(), 50);
        assert!(
            workers
                .iter()
                .all(|w| w.stats().requests == 25 && w.stats().in_flight_peak <= 4)
        );
        assert!(
            report.summary.hit_rate > 0.3,
            "groups share prefixes: {}",
            report.summary.hit_rate
        );
    }

    #[tokio::test]
    async fn open_loop_sheds_what_it_may_not_send_and_ends() {
        let (workers, client) = workers(1).await;
        workers[0]
            .add_rule(Rule::always(Fault::delay_ms(100)))
            .expect("room");
        let arrivals = Arrivals::Open {
            rate: 2_000.0,
            in_flight_max: 10,
        };
        let report = run(client, plan(arrivals, 100), |_, _| ()).await;
        assert_eq!(report.summary.requests + report.shed, 100);
        assert!(report.shed > 0 && workers[0].stats().in_flight_peak <= 10);
    }

    #[tokio::test]
    async fn time_ends_a_run_too() {
        let (_workers, client) = workers(1).await;
        let plan = Plan {
            duration: Duration::from_millis(50),
            ..plan(Arrivals::Closed { clients: 2 }, u64::MAX)
        };
        let report = run(client, plan, |_, _| ()).await;
        assert!(report.summary.requests > 0);
    }

    #[tokio::test]
    async fn a_stop_ends_sending_and_waits_for_what_was_sent() {
        for arrivals in [
            Arrivals::Closed { clients: 2 },
            Arrivals::Open {
                rate: 200.0,
                in_flight_max: 50,
            },
        ] {
            let (workers, client) = workers(1).await;
            let stop = CancellationToken::new();
            let mut ended = 0;
            let report = run_until(client, plan(arrivals, u64::MAX), &stop, |request, _| {
                assert!(request.due <= request.sent() && request.sent() <= request.at());
                ended += 1;
                if ended == 5 {
                    stop.cancel();
                }
            })
            .await;
            let sent = workers[0].stats().requests;
            assert_eq!((report.summary.requests, ended), (sent, sent));
            assert!(report.summary.failures.is_empty() && ended >= 5);
        }
    }

    #[test]
    fn arrivals_have_the_rate_asked_for() {
        let mut random = StdRng::seed_from_u64(7);
        let total: Duration = (0..10_000).map(|_| exponential(&mut random, 100.0)).sum();
        assert!((total.as_secs_f64() - 100.0).abs() < 4.0, "{total:?}");
    }
}
