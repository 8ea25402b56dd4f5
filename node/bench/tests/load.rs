//! Load against fake workers: what is sent, counted and shed, and when a run ends.

use std::sync::Arc;
use std::time::Duration;

use grapevine_bench::client::{Client, Spread};
use grapevine_bench::load::{Arrivals, Pacing, Plan, Prompts, Stop, run, run_until};
use grapevine_testbed::fake_worker::{Config, FakeWorker, Fault, Rule};

async fn workers(count: usize) -> (Vec<FakeWorker>, Arc<Client>) {
    let mut workers = Vec::new();
    for _ in 0..count {
        let config = Config {
            speed: 1_000.0,
            ..Config::default()
        };
        let worker = FakeWorker::start(config).await;
        workers.push(worker.expect("port 0 is always free"));
    }
    let targets = workers.iter().map(|w| w.url().parse().expect("URL"));
    let client = Client::new(targets.collect(), Spread::RoundRobin).expect("targets");
    (workers, Arc::new(client))
}

fn plan(arrivals: Arrivals, requests: u64) -> Plan {
    let prompts = Prompts {
        max_tokens: 3,
        ..Prompts::default()
    };
    Plan {
        arrivals,
        requests,
        duration: Duration::from_secs(60),
        timeout: Duration::from_secs(20),
        source: prompts.into(),
        first_session: 0,
        explain: false,
        seed: 1,
    }
}

fn open(rate: f64, in_flight_max: usize) -> Arrivals {
    Arrivals::Open {
        rate,
        pacing: Pacing::Poisson,
        in_flight_max,
    }
}

#[tokio::test]
async fn closed_loop_sends_exactly_what_was_asked_with_so_many_clients() {
    let (workers, client) = workers(2).await;
    let mut seen = 0;
    let plan = plan(Arrivals::Closed { clients: 4 }, 50);
    let report = run(client, plan, |_, tally| seen = tally.requests()).await;
    let summary = &report.summary;
    assert_eq!((summary.succeeded, summary.requests, seen), (50, 50, 50));
    assert!(
        workers
            .iter()
            .all(|w| w.stats().requests == 25 && w.stats().in_flight_peak <= 4)
    );
    assert!(
        summary.hit_rate > 0.3,
        "groups share prefixes: {}",
        summary.hit_rate
    );
    assert_eq!(
        (report.shed, report.unfinished, summary.answer_events),
        (0, 0, 150)
    );
}

#[tokio::test]
async fn open_loop_sheds_what_it_may_not_send_and_ends() {
    let (workers, client) = workers(1).await;
    let slow = Rule::always(Fault::delay_ms(100));
    workers[0].add_rule(slow).expect("room");
    let report = run(client, plan(open(2_000.0, 10), 100), |_, _| ()).await;
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
async fn one_request_that_hangs_makes_no_rate_small() {
    let (workers, client) = workers(1).await;
    let silent = Rule::next(1, Fault::never_answer());
    workers[0].add_rule(silent).expect("room");
    let plan = Plan {
        timeout: Duration::from_secs(3),
        ..plan(Arrivals::Closed { clients: 2 }, 2)
    };
    let mut answered = None;
    let stop = Stop::default();
    let report = run_until(client, plan, &stop, |ended, _| {
        if ended.outcome.failure.is_none() {
            answered = Some(ended.waited + ended.outcome.latency);
        }
    });
    let report = report.await;
    let (took, answered) = (report.took, answered.expect("one of two"));
    assert!(took.elapsed >= Duration::from_secs(3), "{took:?}");
    // Before it was due, its task began.
    assert!(took.active >= answered && took.active < took.elapsed);
    assert_eq!(took.late, 1);
    let rate = 1.0 / took.active.as_secs_f64();
    assert!((report.summary.requests_per_s / rate - 1.0).abs() < 1e-6);
}

#[tokio::test]
async fn a_stop_ends_sending_and_waits_for_what_was_sent() {
    for arrivals in [Arrivals::Closed { clients: 2 }, open(200.0, 50)] {
        let (workers, client) = workers(1).await;
        let stop = Stop::default();
        let mut ended = 0;
        let report = run_until(client, plan(arrivals, u64::MAX), &stop, |request, _| {
            assert!(request.due <= request.sent() && request.sent() <= request.at());
            ended += 1;
            if ended == 5 {
                stop.sending.cancel();
            }
        });
        let report = report.await;
        let sent = workers[0].stats().requests;
        assert_eq!((report.summary.requests, ended), (sent, sent));
        assert!(report.summary.failures.is_empty() && ended >= 5);
    }
}

#[tokio::test]
async fn a_second_stop_drops_what_is_in_flight_and_counts_it() {
    let (workers, client) = workers(1).await;
    let silent = Rule::always(Fault::never_answer());
    workers[0].add_rule(silent).expect("room");
    let stop = Stop::default();
    let plan = plan(Arrivals::Closed { clients: 3 }, 8);
    let run = run_until(client, plan, &stop, |_, _| ());
    let pressed = async {
        let all_wait = async {
            while workers[0].stats().in_flight < 3 {
                tokio::task::yield_now().await;
            }
        };
        let seen = tokio::time::timeout(Duration::from_secs(10), all_wait);
        seen.await.expect("three clients, one request each");
        stop.sending.cancel();
        stop.waiting.cancel();
    };
    let (report, ()) = tokio::join!(run, pressed);
    assert_eq!((report.summary.requests, report.unfinished), (0, 3));
    assert!(report.summary.failures.is_empty());
}

#[tokio::test]
async fn turns_of_a_conversation_follow_each_other_and_find_what_was_said_cached() {
    let (workers, client) = workers(1).await;
    let prompts = Prompts {
        turns: 4,
        groups: 1_000_000,
        max_tokens: 3,
        ..Prompts::default()
    };
    let plan = Plan {
        source: prompts.into(),
        ..plan(open(1_000.0, 100), 10)
    };
    let report = run(client, plan, |_, _| ()).await;
    assert_eq!(
        (report.summary.succeeded, workers[0].stats().requests),
        (10, 10)
    );
    // Two whole conversations and half of one: seven turns go on from another.
    assert!(report.summary.hit_rate > 0.5, "{}", report.summary.hit_rate);
}

/// What is due while the endpoint stalls waits from then on, also if it is sent late: the stall shows in as many requests
/// as users would have felt it.
#[tokio::test]
async fn in_the_open_loop_requests_are_sent_when_they_are_due_whatever_the_endpoint_does() {
    let (workers, client) = workers(1).await;
    let silent = Rule::always(Fault::never_answer());
    workers[0].add_rule(silent).expect("room");
    let plan = Plan {
        timeout: Duration::from_millis(300),
        ..plan(
            Arrivals::Open {
                rate: 1_000.0,
                pacing: Pacing::Even,
                in_flight_max: 1_000,
            },
            50,
        )
    };
    let mut dues = Vec::new();
    let stop = Stop::default();
    let report = run_until(client, plan, &stop, |ended, _| dues.push(ended.due)).await;
    assert_eq!(report.summary.failures["timeout"], 50);
    dues.sort();
    // By the plan alone: 1 ms apart, although no answer came within 300 ms.
    assert!(
        dues.windows(2)
            .all(|pair| pair[1] - pair[0] == Duration::from_millis(1))
    );
}
