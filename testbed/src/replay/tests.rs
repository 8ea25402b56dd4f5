//! Replays against fake workers.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::fake_worker::{Config, EngineConfig, FakeWorker};
use grapevine_bench::client::Spread;
use grapevine_bench::load::Endpoint;

fn row(t_ms: u64, blocks: &[u64]) -> Row {
    let in_tokens = 32 * blocks.len() as u32;
    Row {
        t_ms,
        in_tokens,
        out_tokens: 3,
        blocks: blocks.to_vec(),
        session: None,
        gap_ms: None,
    }
}

fn plan(rows: Vec<Row>, speed: f64) -> Plan {
    Plan {
        trace: Arc::new(Trace {
            block_tokens: 32,
            system_blocks: 1,
            rows,
        }),
        speed,
        rate: 1.0,
        warm_up: 0.0,
        shape: Shape {
            endpoint: Endpoint::Completions,
            messages: Messages::Equal,
            tokens_scale: 1.0,
            answers_scale: 1.0,
            model: None,
            explain: false,
        },
        in_flight_max: 8,
        timeout: Duration::from_secs(20),
        worker_urls: Vec::new(),
        asking: None,
    }
}

async fn worker() -> (FakeWorker, Arc<Client>, Target) {
    let config = Config {
        speed: 1_000.0,
        ..Config::default()
    };
    let worker = FakeWorker::start(config)
        .await
        .expect("port 0 is always free");
    let target: Target = worker.url().parse().expect("URL");
    let client = Client::new(vec![target.clone()], Spread::RoundRobin).expect("target");
    (worker, Arc::new(client), target)
}

#[tokio::test]
async fn hit_rates_by_usage_and_by_the_workers_own_counters_agree() {
    let (_worker, client, target) = worker().await;
    // One at a time: the second and third find the first's 2 blocks, 64 tokens of 96.
    let rows = vec![row(0, &[0, 1, 2]), row(1, &[0, 1, 3]), row(2, &[0, 1, 4])];
    let plan = Plan {
        in_flight_max: 1,
        worker_urls: vec![target],
        ..plan(rows, 1.0)
    };
    let report = run(Arc::clone(&client), plan.clone(), |_| ())
        .await
        .expect("counters");
    assert_eq!(
        (report.summary.succeeded, report.summary.prompt_tokens),
        (3, 288)
    );
    assert_eq!(report.summary.cached_tokens, 128);
    let counted = report.worker_cache.expect("asked for");
    assert_eq!((counted.hit_tokens, counted.queried_tokens), (128, 288));
    let again = run(client, plan, |_| ())
        .await
        .expect("counters")
        .worker_cache
        .expect("asked for");
    assert_eq!(again.queried_tokens, 288, "only what happened meanwhile");
}

#[tokio::test]
async fn the_next_turn_finds_the_former_answer() {
    // Blocks of 32 tokens; the worker's have 16. A prompt of 80 tokens, and one that holds it and its answer of 40.
    let turn = |blocks: &[u64], in_tokens| Row {
        session: Some(1),
        gap_ms: Some(0),
        in_tokens,
        out_tokens: 40,
        ..row(0, blocks)
    };
    let rows = || vec![turn(&[0, 1, 2], 80), turn(&[0, 1, 3, 4, 5], 150)];
    // All but the last token of the answer are computed. A text: 119 tokens, 7 blocks. A chat: 34 bytes of marks around
    // messages of 320, so 89 tokens, and with the answer 128, 8 blocks.
    for (endpoint, messages, cached) in [
        (Endpoint::Completions, Messages::Equal, 7 * 16),
        (Endpoint::Chat, Messages::Sessions, 8 * 16),
    ] {
        let (_worker, client, _) = worker().await;
        let mut plan = plan(rows(), 1.0);
        plan.shape.endpoint = endpoint;
        plan.shape.messages = messages;
        let report = run(client, plan, |_| ()).await.expect("nobody to read");
        let summary = report.summary;
        assert_eq!(
            (summary.succeeded, summary.cached_tokens),
            (2, cached),
            "{endpoint:?}"
        );
    }
}

#[tokio::test]
async fn time_is_scaled_and_progress_ends_complete() {
    let (_worker, client, _) = worker().await;
    let rows = (0..20).map(|i| row(i * 1_000, &[0, 100 + i])).collect();
    let mut last = 0;
    let start = Instant::now();
    let report = run(client, plan(rows, 100.0), |p| last = p.tally.requests())
        .await
        .expect("no workers to read");
    assert_eq!((report.summary.succeeded, last), (20, 20));
    assert!(
        start.elapsed() >= Duration::from_millis(190),
        "19 s of trace at 100 times the speed"
    );
}

#[tokio::test]
async fn the_rate_moves_starts_alone_and_a_warm_up_is_not_counted() {
    let (worker, client, _) = worker().await;
    let turn = |t_ms, session| Row {
        session: Some(session),
        gap_ms: Some(300),
        ..row(t_ms, &[0, session])
    };
    let rows = vec![turn(0, 1), turn(0, 1), turn(20_000, 2), turn(20_000, 2)];
    let start = Instant::now();
    let plan = Plan {
        rate: 100.0,
        warm_up: 0.5,
        ..plan(rows, 1.0)
    };
    let report = run(client, plan, |_| ()).await.expect("nobody to read");
    let taken = start.elapsed();
    assert_eq!((report.summary.succeeded, worker.stats().complete), (2, 4));
    let (least, most) = (Duration::from_millis(800), Duration::from_secs(15));
    assert!(
        taken >= least && taken < most,
        "200 ms and two gaps: {taken:?}"
    );
}

/// A replica that sends everything to the same worker, and counts in `asked` how often it is asked.
async fn replica(asked: &Arc<AtomicU64>) -> (Target, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port 0");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let asked = Arc::clone(asked);
    let serve = async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let asked = Arc::clone(&asked);
            let service = service_fn(move |_: Request<_>| {
                asked.fetch_add(1, Ordering::Relaxed);
                let text = Bytes::from_static(br#"{"worker":"w1"}"#);
                std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(text))))
            });
            connections
                .spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    };
    let task = AbortOnDropHandle::new(tokio::spawn(serve));
    (url.parse().expect("URL"), task)
}

#[tokio::test]
async fn a_warm_up_is_in_no_figure() {
    let (_worker, client, target) = worker().await;
    let asked = Arc::default();
    let (first, _first) = replica(&asked).await;
    let (second, _second) = replica(&asked).await;
    let gap = Duration::from_millis(300);
    let turn = |blocks: &[u64]| Row {
        session: Some(1),
        gap_ms: Some(300),
        ..row(0, blocks)
    };
    // The second turn is due 300 ms after the first one's answer, and that was due 300 ms after the start.
    let plan = Plan {
        warm_up: 0.5,
        worker_urls: vec![target],
        asking: Some(Asking {
            admins: vec![first, second],
            share: 1.0,
        }),
        ..plan(vec![turn(&[0, 1, 2]), turn(&[0, 1, 3])], 1.0)
    };
    let start = Instant::now();
    let report = run(client, plan, |_| ()).await.expect("counters");
    let taken = start.elapsed();
    let counted = report.worker_cache.expect("asked for");
    assert_eq!((report.summary.requests, counted.queried_tokens), (1, 96));
    let elapsed = Duration::from_secs_f64(report.summary.elapsed_s);
    assert!(elapsed + gap * 2 <= taken, "{elapsed:?} of {taken:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 2, "both, about one request");
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "a thread that stands still is the fault"
)]
async fn what_is_sent_late_counts_from_when_it_was_due() {
    let (_worker, client, _) = worker().await;
    let stall = Duration::from_millis(300);
    // The only thread stands still from before the first row is due until long after.
    tokio::spawn(async move { std::thread::sleep(stall) });
    let report = run(client, plan(vec![row(100, &[0, 1])], 1.0), |_| ()).await;
    let ttft = report.expect("nobody to read").summary.ttft;
    assert!(ttft.p50_ms >= 190.0, "{ttft:?}");
}

#[tokio::test]
async fn a_replay_that_cannot_be_sent_is_no_success() {
    let gap = Row {
        session: Some(1),
        gap_ms: Some(1_000),
        ..row(0, &[0])
    };
    // No clock holds a second at this speed.
    for rows in [vec![row(1_000, &[0])], vec![gap]] {
        let (_worker, client, _) = worker().await;
        let done = run(client, plan(rows, 1e-20), |_| ()).await;
        let error = done.expect_err("nothing was sent");
        assert!(format!("{error:#}").contains("panicked"), "{error:#}");
    }
}

#[tokio::test]
async fn closed_loop_rows_wait_for_the_answer_before() {
    let engine = EngineConfig {
        step_base: Duration::from_millis(10),
        ..EngineConfig::default()
    };
    let worker = FakeWorker::start(Config {
        engine,
        ..Config::default()
    })
    .await
    .expect("port 0 is always free");
    let client = Arc::new(Client::one(worker.url().parse().expect("URL")));
    let turn = |blocks: &[u64]| Row {
        session: Some(1),
        gap_ms: Some(20),
        ..row(0, blocks)
    };
    let rows = vec![turn(&[0, 1]), turn(&[0, 1, 2]), turn(&[0, 1, 2, 3])];
    let report = run(client, plan(rows, 1.0), |_| ())
        .await
        .expect("no workers to read");
    assert_eq!(report.summary.succeeded, 3);
    assert_eq!(worker.stats().in_flight_peak, 1);
    let log = worker.log();
    for pair in log.windows(2) {
        let end = pair[0].end_us.expect("ended");
        assert!(
            pair[1].start_us >= end + 15_000,
            "gap of 20 ms: {} us",
            pair[1].start_us - end
        );
    }
}

#[tokio::test]
async fn the_bound_on_requests_in_flight_holds_and_waiting_counts() {
    let (worker, client, _) = worker().await;
    let rows = (0..12).map(|i| row(0, &[0, i + 1])).collect();
    let delay = crate::fake_worker::Rule::always(crate::fake_worker::Fault::delay_ms(30));
    worker.add_rule(delay).expect("room");
    let report = run(
        client,
        Plan {
            in_flight_max: 3,
            ..plan(rows, 1.0)
        },
        |_| (),
    )
    .await
    .expect("no workers to read");
    assert!(worker.stats().in_flight_peak <= 3);
    assert!(
        report.summary.ttft.max_ms >= 120.0,
        "four rounds of 30 ms: {:?}",
        report.summary.ttft
    );
}

#[tokio::test]
async fn workers_without_counters_are_an_error() {
    let (worker, client, target) = worker().await;
    worker.kill().await;
    let plan = Plan {
        worker_urls: vec![target],
        ..plan(vec![row(0, &[0])], 1.0)
    };
    assert!(run(client, plan, |_| ()).await.is_err());
}
