//! Workers that are not there, and connections that a worker closed a moment ago.

use std::collections::HashSet;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Config, FakeWorker, Fault, Rule};
use grapevine_tests::admin::Explained;
use grapevine_tests::chat::{self, CHATS, Ending, MODEL, Stream, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1;
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::admission;
use crate::errors::assert_error;
use crate::house::{House, quick};

/// A URL at which nothing listens. The socket stays bound without listening, so no other process gets the
/// port.
pub(crate) fn closed_port() -> (tokio::net::TcpSocket, String) {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket
        .bind("127.0.0.1:0".parse().expect("an address"))
        .expect("a free port");
    let url = format!("http://{}", socket.local_addr().expect("bound"));
    (socket, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_connection_is_invisible_to_clients() {
    let (_bound, dead) = closed_port();
    let plan = Plan::default().worker(&dead, &[MODEL]);
    let house = House::of(plan, vec![quick(); 2]).await;
    let mut slowest = Duration::ZERO;
    for number in 0..60 {
        let asked = Instant::now();
        let answer =
            http1::post(house.data(), CHATS, &chat(&format!("question {number}"), 1)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        slowest = slowest.max(asked.elapsed());
    }
    println!("1 of 3 workers refuses connections: 60 of 60 answered, slowest {slowest:?}");
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "it is known to be unhealthy", async || {
        let workers = admin.workers().await;
        let dead = workers.iter().find(|worker| worker.id == dead);
        match dead.map(|worker| worker.health.as_str()) {
            Some("unhealthy") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    house.close().await;
}

/// What the router takes is counted up to its first choice: a connection that fails takes as long as the worker lets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_refused_a_connection_is_prepared_once() {
    let (_bound, dead) = closed_port();
    let plan = Plan::default()
        .worker(&dead, &[MODEL])
        .set("health.interval", "\"10s\"");
    let house = House::of(plan, vec![quick(); 2]).await;
    let admin = house.cluster.replicas[0].admin();
    let mut asked = 0.0;
    loop {
        asked += 1.0;
        assert!(asked < 100.0, "none of them was sent to it");
        let body = chat(&format!("question {asked}"), 1);
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        if admin.attempts(&dead).await > 0.0 {
            break;
        }
    }
    let metrics = admin.metrics().await;
    let prepared = metrics.sum("grapevine_preparation_seconds_count", "");
    assert_eq!(prepared, asked);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_workers_down_is_503_and_the_first_one_back_serves() {
    let mut house = House::new(2).await;
    let answer = http1::post(house.data(), CHATS, &chat("before", 1)).await;
    assert_eq!(answer.head.status, 200);
    let address = house.workers[0].addr();
    for worker in house.workers.drain(..) {
        worker.kill().await;
    }
    for body in [chat("none is left", 1), streamed("none is left", 1)] {
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_error(&answer, 503, "no_worker_available");
    }
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "all are unhealthy", async || {
        let workers = admin.workers().await;
        let all = workers.iter().all(|worker| worker.health == "unhealthy");
        so(all, || format!("{workers:?}"))
    })
    .await;
    let answer = http1::post(house.data(), CHATS, &chat("known to be down", 1)).await;
    assert_error(&answer, 503, "no_worker_available");
    eventually(
        LIMIT,
        "balancers are told that nobody serves here",
        async || {
            let ready = admin.is_ready().await;
            so(!ready, || "ready".to_owned())
        },
    )
    .await;

    house.workers.push(
        chat::worker(Config {
            listen: address,
            ..quick()
        })
        .await,
    );
    let (_, took) = eventually(LIMIT, "served again", async || {
        let outcome = chat::stream(house.data(), &streamed("after", 1)).await;
        so(outcome.ending == Ending::Done, || format!("{outcome:?}"))
    })
    .await;
    println!("served again {took:?} after a worker came back");
    house.close().await;
}

/// W25: most workers are gone, one is idle and healthy. Requests that arrive before this is known, and those that
/// arrive while it is known and health is not believed, all go to that one.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_serves_while_all_others_refuse() {
    const WORKERS: usize = 8;
    // First only requests can show that workers are dead; then probes show it for all.
    for probes in ["1h", "50ms"] {
        let plan = Plan::default().set("health.interval", &format!("\"{probes}\""));
        let plan = plan.set("retry.budget", "0.0");
        let plan = plan.set("retry.budget_floor", "0");
        let mut house = House::of(plan, vec![quick(); WORKERS]).await;
        let admin = house.cluster.replicas[0].admin();
        let dead: Vec<String> = house.workers[1..].iter().map(FakeWorker::url).collect();
        let answer = http1::post(house.data(), CHATS, &chat("all are well", 1)).await;
        assert_eq!(answer.head.status, 200);
        for worker in house.workers.drain(1..) {
            worker.kill().await;
        }
        if probes != "1h" {
            eventually(LIMIT, "seven are known to be gone", async || {
                let workers = admin.workers().await;
                let gone = workers.iter().filter(|w| w.health == "unhealthy").count();
                so(gone == WORKERS - 1, || format!("{workers:?}"))
            })
            .await;
        }
        let mut before = Vec::new();
        for url in &dead {
            before.push(admin.attempts(url).await);
        }
        for number in 0..40 {
            let body = chat(&format!("a new question, number {number}"), 1);
            let answer = http1::post(house.data(), CHATS, &body).await;
            assert_eq!(answer.head.status, 200, "{number}: {}", answer.text());
        }
        let mut asked = 0.0;
        for (url, before) in dead.iter().zip(before) {
            asked += admin.attempts(url).await - before;
        }
        println!("probes every {probes}: 40 of 40 answered, {asked} connections refused");
        let most = if probes == "1h" { 7.0 } else { 0.0 };
        assert!(asked <= most, "{asked} connections to what is gone");
        house.close().await;
    }
}

/// W14: a request does not try all workers that are known to be gone.
#[tokio::test(flavor = "multi_thread")]
async fn many_dead_workers_cost_a_request_a_few_connections() {
    const WORKERS: usize = 12;
    let plan = Plan::default().set("retry.max_attempts", "3");
    let mut house = House::of(plan, vec![quick(); WORKERS]).await;
    let admin = house.cluster.replicas[0].admin();
    for worker in house.workers.drain(..) {
        worker.kill().await;
    }
    let connections = async || {
        let metrics = admin.metrics().await;
        metrics.sum("grapevine_attempts_total", "result=\"connect\"")
    };
    let ask = async || {
        let answer = http1::post(house.data(), CHATS, &chat("anybody?", 1)).await;
        assert_error(&answer, 503, "no_worker_available");
    };
    ask().await;
    eventually(LIMIT, "all are known to be gone", async || {
        let workers = admin.workers().await;
        let all = workers.iter().all(|worker| worker.health == "unhealthy");
        so(all, || format!("{workers:?}"))
    })
    .await;
    let before = connections().await;
    for _ in 0..10 {
        ask().await;
    }
    let cost = connections().await - before;
    assert!(cost <= 30.0, "{cost} connections for 10 requests");
    house.close().await;
}

/// A request whose first worker refuses it waits for room at the others like a new request.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_waits_where_the_others_are_full() {
    let (_bound, dead) = closed_port();
    let alive = chat::worker(quick()).await;
    let slow = Rule::always(Fault::delay_ms(200));
    alive.add_rule(slow).expect("room for a rule");
    let plan = Plan::default().worker(&dead, &[MODEL]);
    let plan = plan.worker_with(&alive.url(), &[MODEL], "max_in_flight = 1");
    // Only requests can show that one is gone.
    let plan = plan.set("health.interval", "\"1h\"");
    let house = House::with(plan, vec![alive]).await;
    let data = house.data();
    let mut asked = JoinSet::new();
    for number in 0..6 {
        asked.spawn(async move {
            let body = chat(&format!("question {number}"), 1);
            http1::post(data, CHATS, &body).await
        });
    }
    while let Some(answer) = asked.join_next().await {
        let answer = answer.expect("no panic");
        assert_eq!(answer.head.status, 200, "{}", answer.text());
    }
    house.close().await;
}

/// So does one whose worker ends while it has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_worker_ends_waits_where_the_others_are_full() {
    let workers = [chat::worker(quick()).await, chat::worker(quick()).await];
    let plan = workers.iter().fold(Plan::default(), |plan, worker| {
        plan.worker_with(&worker.url(), &[MODEL], "max_in_flight = 1\n")
    });
    // Only requests can show that one is gone.
    let plan = plan.set("health.interval", "\"1h\"");
    let house = House::with(plan, Vec::from(workers)).await;
    let mut busy = Stream::open(house.data(), &streamed("busy", 100_000))
        .await
        .expect("accepted");
    busy.read_events(1).await.expect("it has begun");
    let at = busy.head().header("x-grapevine-worker");
    let ends = house
        .workers
        .iter()
        .find(|worker| at != Some(&worker.url()));
    let exit = Fault {
        exit: true,
        ..Fault::default()
    };
    let ends = ends.expect("the other one");
    ends.add_rule(Rule::next(1, exit)).expect("room for a rule");
    let data = house.data();
    let moves = tokio::spawn(async move { http1::post(data, CHATS, &chat("moves", 1)).await });
    admission::waiting(&house, "worker", 1).await;
    let admin = house.cluster.replicas[0].admin();
    assert_eq!(admin.attempts(&ends.url()).await, 1.0, "it was there first");
    busy.leave(false);
    let answer = moves.await.expect("no panic");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_accepts_and_closes_is_passed_over() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let closing = format!("http://{}", listener.local_addr().expect("bound"));
    let closer = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let plan = Plan::default().worker(&closing, &[MODEL]);
    let house = House::of(plan, vec![quick(); 2]).await;
    for number in 0..60 {
        let outcome = chat::stream(house.data(), &streamed(&format!("question {number}"), 1)).await;
        assert_eq!(outcome.ending, Ending::Done, "{outcome:?}");
    }
    closer.abort();
    house.close().await;
}

/// A URL at which SYNs are dropped: a listener whose queue is full. It stays so while the returned value
/// lives.
async fn black_hole() -> (Box<dyn Send>, String) {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket
        .bind("127.0.0.1:0".parse().expect("an address"))
        .expect("a free port");
    let listener = socket.listen(1).expect("it is bound");
    let address = listener.local_addr().expect("bound");
    let mut queued = Vec::new();
    // One connection more than the queue holds is not accepted, nor any after it.
    while let Ok(Ok(stream)) =
        timeout(Duration::from_millis(300), TcpStream::connect(address)).await
    {
        queued.push(stream);
        assert!(queued.len() < 100, "the queue of 1 is not full");
    }
    (Box::new((listener, queued)), format!("http://{address}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_costs_one_connect_timeout() {
    let (_held, hole) = black_hole().await;
    let plan = Plan::default().worker(&hole, &[MODEL]);
    let plan = plan.set("timeouts.connect", "\"500ms\"");
    // Its probes fail as well, but here only requests may show it.
    let plan = plan.set("health.failure_threshold", "1000000");
    let house = House::of(plan, vec![quick(); 2]).await;
    let mut slowest = Duration::ZERO;
    for number in 0..60 {
        let asked = Instant::now();
        let body = chat(&format!("question {number}"), 1);
        let answer = http1::post(house.data(), CHATS, &body).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        slowest = slowest.max(asked.elapsed());
    }
    println!("1 of 3 workers is a black hole, connect timeout 500 ms: slowest of 60 {slowest:?}");
    let admin = house.cluster.replicas[0].admin();
    let attempts = admin.attempts(&hole).await;
    assert!(attempts == 1.0, "{attempts} connections were tried");
    assert_eq!(admin.worker(&hole).await.verdict, "unreachable");
    house.close().await;
}

/// The connection took longer than a request may wait: it waits as if it had just arrived.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_refused_late_waits_as_a_new_one() {
    let (_held, hole) = black_hole().await;
    let alive = chat::worker(quick()).await;
    let plan = Plan::default().worker(&hole, &[MODEL]);
    let plan = plan.worker_with(&alive.url(), &[MODEL], "max_in_flight = 1");
    let plan = plan.set("timeouts.connect", "\"5s\"");
    let plan = plan.set("admission.queue_timeout", "\"4s\"");
    // Only requests can show that one is not there.
    let plan = plan.set("health.interval", "\"1h\"");
    let house = House::with(plan, vec![alive]).await;
    let admin = house.cluster.replicas[0].admin();
    let streams: Vec<_> = (0..40)
        .map(|number| streamed(&format!("long, {number}"), 100_000))
        .collect();
    let explained = admin.explain(&streams).await;
    let at_alive = |explained: &Explained| explained.worker == Some(house.workers[0].url());
    let busy = explained.iter().position(at_alive).expect("half of them");
    let mut busy = Stream::open(house.data(), &streams[busy])
        .await
        .expect("accepted");
    busy.read_events(1).await.expect("it has begun");

    let data = house.data();
    let refused = tokio::spawn(async move { http1::post(data, CHATS, &chat("late", 1)).await });
    admission::waiting(&house, "worker", 1).await;
    assert_eq!(admin.attempts(&hole).await, 1.0, "it was there first");
    busy.leave(false);
    let answer = refused.await.expect("no panic");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_the_worker_closes_when_idle_cost_no_request() {
    const IDLE: Duration = Duration::from_millis(50);
    const AT_ONCE: u64 = 40;
    const ROUNDS: u64 = 50;
    let config = Config {
        keep_alive: IDLE,
        ..quick()
    };
    let house = House::of(Plan::default(), vec![config]).await;
    for round in 0..ROUNDS {
        let mut requests = JoinSet::new();
        for number in 0..AT_ONCE {
            let data = house.data();
            requests.spawn(async move {
                let body = chat(&format!("round {round} request {number}"), 1);
                let answer = http1::post(data, CHATS, &body).await;
                assert_eq!(answer.head.status, 200, "{}", answer.text());
            });
        }
        requests.join_all().await;
        // From well before to just after the moment at which the worker closes them all.
        let early = Duration::from_micros(round * 600);
        sleep(IDLE + Duration::from_millis(1) - early).await;
    }
    let log = house.workers[0].log();
    let ids: HashSet<_> = log.iter().map(|entry| entry.request_id.clone()).collect();
    assert_eq!(
        log.len() as u64,
        AT_ONCE * ROUNDS,
        "each reached the worker once"
    );
    assert_eq!(ids.len(), log.len(), "none twice");
    println!(
        "{} requests over {} connections, 0 failures",
        log.len(),
        house.workers[0].stats().connections
    );
    house.close().await;
}
