//! More connections than there is room for: on every port idle ones are closed for new ones, and busy ones
//! stay.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Fault, Rule};
use grapevine_tests::chat::{self, CHATS, Ending, Stream, chat, paced, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, Response, request};
use grapevine_tests::process::Process;
use grapevine_tests::wait::{LIMIT, eventually, so};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::errors::assert_error;
use crate::h2_floods::{GOAWAY, PREFACE, SETTINGS, frame};
use crate::house::{House, quick};
use crate::http2;

/// The promise to a new connection; the tests allow three times as much, for a busy machine.
const PROMISED: Duration = Duration::from_secs(1);

/// Idle connections: in turn one that got an answer and one that sent nothing.
async fn crowd(address: SocketAddr, path: &str, count: usize) -> Vec<Connection> {
    let bytes = request("GET", path, &[], b"");
    let mut crowd = Vec::with_capacity(count);
    for number in 0..count {
        let mut connection = Connection::open(address).await;
        if number % 2 == 0 {
            connection.send(&bytes).await.expect("taken");
            let answer = connection.response().await.expect("answered");
            assert!(matches!(answer.head.status, 200 | 503));
        }
        crowd.push(connection);
    }
    crowd
}

/// Waits for an answer within the time that is promised to a new connection.
async fn in_time(what: &str, answer: impl Future<Output = Response>) -> Response {
    let asked = Instant::now();
    let answer = timeout(3 * PROMISED, answer).await;
    let answer = answer.unwrap_or_else(|_| panic!("no answer to {what} for {:?}", asked.elapsed()));
    println!(
        "{what}: answered after {:?} ({PROMISED:?} promised)",
        asked.elapsed()
    );
    answer
}

/// Asserts that all of these were closed without a byte.
async fn assert_closed(crowd: &mut [Connection]) {
    for connection in crowd {
        assert_eq!(connection.response().await.err(), Some(http1::Cut));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_leave_for_newcomers_and_busy_ones_stay() {
    const PLACES: usize = 16;
    const CROWD: usize = 64;
    let plan = Plan::default().set("limits.connections", &PLACES.to_string());
    let house = House::of(plan, vec![paced(Duration::from_millis(10))]).await;
    house.until_ready().await;
    let data = house.data();
    // The oldest connections; their clients send nothing more.
    let mut stream = Stream::open(data, &streamed("busy", 300))
        .await
        .expect("accepted");
    stream.read_events(2).await.expect("it has begun");
    let over_http2 = http2::client().post(format!("http://{data}{CHATS}"));
    let over_http2 = over_http2.json(&streamed("busy, too", 300)).send().await;
    let over_http2 = over_http2.expect("it has begun");
    for round in 0..3 {
        let mut crowd = crowd(data, "/liveness", CROWD).await;
        let live = in_time("GET /liveness", http1::get(data, "/liveness")).await;
        assert_eq!(live.head.status, 200);
        let ready = in_time("GET /readiness", http1::get(data, "/readiness")).await;
        assert_eq!(ready.head.status, 200);
        let answer = in_time("a chat", http1::post(data, CHATS, &chat("new", 1))).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        assert_closed(&mut crowd[..CROWD - PLACES]).await;
        let last = crowd.last_mut().expect("a crowd");
        let live = request("GET", "/liveness", &[], b"");
        last.send(&live).await.expect("the last one is there");
        let answer = last.response().await.expect("answered");
        assert_eq!(answer.head.status, 200, "round {round}");
    }
    let whole = stream.finish().await;
    assert_eq!(whole.ending, Ending::Done, "{whole:?}");
    let whole = over_http2.text().await.expect("a whole stream");
    assert!(whole.ends_with("data: [DONE]\n\n"), "{whole}");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let shed = metrics.sum("grapevine_connections_shed_total", "\"data\"");
    assert!(shed >= 3.0 * (CROWD - PLACES) as f64, "{shed}");
    let reached = metrics.sum("grapevine_limits_reached_total", "\"connections\"");
    assert!(reached >= shed, "{reached} {shed}");
    house.close().await;
}

/// A replica all of whose connections are busy: it has this many.
async fn all_busy(places: usize) -> (House, Vec<Connection>) {
    let plan = Plan::default().set("limits.connections", &places.to_string());
    let house = House::of(plan, vec![quick()]).await;
    let (data, worker) = (house.data(), &house.workers[0]);
    worker
        .add_rule(Rule::next(places as u32, Fault::never_answer()))
        .expect("room for a rule");
    let body = chat("held", 1).to_string();
    let mut held = Vec::new();
    for _ in 0..places {
        let mut connection = Connection::open(data).await;
        let bytes = request("POST", CHATS, &[], body.as_bytes());
        connection.send(&bytes).await.expect("taken");
        held.push(connection);
    }
    eventually(LIMIT, "the worker has them all", async || {
        let begun = worker.stats().in_flight;
        so(begun == places as u64, || begun.to_string())
    })
    .await;
    (house, held)
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_are_busy_probes_are_answered_and_requests_refused() {
    const PLACES: usize = 4;
    let (house, mut held) = all_busy(PLACES).await;
    let (data, worker) = (house.data(), &house.workers[0]);
    for _ in 0..10 {
        let answer = in_time("a chat", http1::post(data, CHATS, &chat("more", 1))).await;
        assert_error(&answer, 503, "overloaded");
        assert!(answer.head.header("x-request-id").is_some());
        for probe in ["/liveness", "/readiness"] {
            let answer = in_time(probe, http1::get(data, probe)).await;
            assert_ne!(answer.text(), "", "{probe}");
            assert!(!answer.text().contains("overloaded"), "{probe} is refused");
        }
    }
    assert_eq!(worker.stats().in_flight, PLACES as u64, "nobody was cut");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let turned_away = metrics.sum("grapevine_limits_reached_total", "\"connections_busy\"");
    assert_eq!(turned_away, 10.0);
    // Lines are written behind what they tell of.
    let (told, _) = eventually(LIMIT, "it is in the log", async || {
        let log = house.cluster.replicas[0].log();
        let told = log.matches("all connections of clients are busy").count();
        (told > 0).then_some(told).ok_or(log)
    })
    .await;
    assert!(told < 10, "at most one a second: {told}");
    held.pop();
    eventually(LIMIT, "a place is free", async || {
        let answer = http1::post(data, CHATS, &chat("again", 1)).await;
        so(answer.head.status == 200, || answer.text())
    })
    .await;
    drop(held);
    house.close().await;
}

/// Else it would keep a spare place, and ask the full replica again.
#[tokio::test(flavor = "multi_thread")]
async fn the_connection_of_who_is_refused_ends() {
    let (house, mut held) = all_busy(2).await;
    let data = house.data();
    let body = chat("more", 1).to_string();

    let mut over_http1 = Connection::open(data).await;
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    over_http1.send(&bytes).await.expect("taken");
    let answer = over_http1.response().await.expect("an answer");
    assert_error(&answer, 503, "overloaded");
    assert_eq!(answer.head.header("connection"), Some("close"));
    assert_eq!(over_http1.response().await.err(), Some(http1::Cut));

    // As many as there are spare places, which ask again and again.
    let mut asking = JoinSet::new();
    for _ in 0..4 {
        let body = body.clone();
        asking.spawn(async move {
            for round in 0.. {
                let socket = TcpStream::connect(data).await.expect("accepted");
                let Ok((mut requests, connection)) = h2::client::handshake(socket).await else {
                    // It gave way to another one before it had sent anything.
                    continue;
                };
                let connection = tokio::spawn(connection);
                let head = http::Request::post(format!("http://{data}{CHATS}"));
                let head = head.header("content-type", "application/json").body(());
                let head = head.expect("a head");
                let asked = async {
                    let (answer, mut sent) = requests.send_request(head, false)?;
                    sent.send_data(body.clone().into(), true)?;
                    answer.await
                };
                let Ok(answer) = asked.await else {
                    continue;
                };
                if answer.status() == 200 {
                    return round;
                }
                assert_eq!(answer.status(), 503);
                let (_, mut rest) = answer.into_parts();
                while let Some(data) = rest.data().await {
                    data.expect("the refusal is whole");
                }
                // The client would keep it.
                let ended = timeout(LIMIT, connection).await.expect("it is told to go");
                let _ = ended.expect("no panic");
                drop(requests);
            }
            unreachable!("it asks until it is served");
        });
    }
    let refusals = async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        metrics.sum("grapevine_errors_total", "\"overloaded\"")
    };
    eventually(LIMIT, "all of them are refused", async || {
        let refused = refusals().await;
        so(refused > 8.0, || refused.to_string())
    })
    .await;
    held.pop();
    let rounds = timeout(LIMIT, asking.join_all()).await;
    println!(
        "served after {:?} refusals",
        rounds.expect("one place serves them all")
    );
    drop(held);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_http2_connection_is_told_where_it_ends() {
    let plan = Plan::default().set("limits.connections", "2");
    let house = House::of(plan, vec![quick()]).await;
    let mut idle = TcpStream::connect(house.data()).await.expect("taken");
    let opening = [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat();
    idle.write_all(&opening).await.expect("taken");
    let mut seen = vec![0; 9];
    idle.read_exact(&mut seen).await.expect("it speaks HTTP/2");
    let _crowd = crowd(house.data(), "/liveness", 2).await;
    let ending = timeout(LIMIT, idle.read_to_end(&mut seen)).await;
    ending
        .expect("it is closed in time")
        .expect("and not reset");
    let mut goaways = Vec::new();
    let mut rest = seen.as_slice();
    while let Some((head, after)) = rest.split_at_checked(9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (payload, after) = after.split_at(length);
        if head[3] == GOAWAY {
            goaways.push(payload[4..8].to_vec());
        }
        rest = after;
    }
    assert!(!goaways.is_empty(), "no GOAWAY in {seen:?}");
    assert!(goaways.iter().all(|code| code == &[0; 4]), "{goaways:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_has_so_many_connections_and_no_more() {
    const MOST: usize = 4;
    let plan = Plan::default().set("limits.connections_per_address", &MOST.to_string());
    let house = House::of(plan, vec![quick()]).await;
    // Which of them are the longest idle is the server's to say: it may take a silent one later than the next.
    let mut reading = JoinSet::new();
    for mut connection in crowd(house.data(), "/liveness", 3 * MOST).await {
        reading.spawn(async move { connection.response().await.err() });
    }
    for _ in 0..2 * MOST {
        let ended = reading.join_next().await.expect("more of them");
        assert_eq!(ended.expect("no panic"), Some(http1::Cut));
    }
    let answer = http1::post(house.data(), CHATS, &chat("one more", 1)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    house.close().await;
}

#[derive(Deserialize)]
struct Listening {
    admin: SocketAddr,
    prometheus: SocketAddr,
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_do_not_keep_operators_out() {
    /// More connections than either port takes.
    const CROWD: usize = 300;
    let worker = chat::worker(quick()).await;
    let dir = tempfile::tempdir().expect("a folder");
    let url = worker.url();
    let args = ["serve", "--worker-urls", &url, "--port", "0"];
    let args = args
        .into_iter()
        .chain(["--admin-port", "0", "--prometheus-port", "0"]);
    let args: Vec<String> = args.map(str::to_owned).collect();
    let started = Process::start::<Listening>(&args, &dir.path().join("log")).await;
    let (_process, Listening { admin, prometheus }) = started;
    for (address, path) in [(admin, "/readyz"), (prometheus, "/metrics")] {
        // The crowd can be replaced at any time.
        for _ in 0..2 {
            let mut crowd = crowd(address, path, CROWD).await;
            let answer = in_time(path, http1::get(address, path)).await;
            assert!(matches!(answer.head.status, 200 | 503), "{}", answer.text());
            assert_closed(&mut crowd[..CROWD - 256]).await;
        }
    }
    let metrics = http1::get(prometheus, "/metrics").await.text();
    for port in ["admin", "metrics"] {
        let line = format!("grapevine_connections_shed_total{{port=\"{port}\"}} ");
        let shed = metrics.lines().find_map(|text| text.strip_prefix(&line));
        let shed: usize = shed.expect("counted").parse().expect("a number");
        assert!(shed >= 2 * (CROWD - 256), "{port}: {shed}");
    }
}

/// Anybody may send a token, so anybody may be slow to.
#[tokio::test(flavor = "multi_thread")]
async fn logins_of_one_address_do_not_keep_operators_of_others_out() {
    /// More connections than the port takes.
    const CROWD: usize = 300;
    let plan = Plan::default().set("admin.token", "\"the-token-of-operators\"");
    let mut cluster = plan.found().await;
    let admin = cluster.join("r1", Vec::new()).await.admin().0;
    let form = ("content-type", "application/x-www-form-urlencoded");
    let headers = [
        form,
        ("origin", "http://localhost"),
        ("content-length", "100"),
    ];
    let mut login = request("POST", "/page/login", &headers, b"");
    login.extend_from_slice(b"token=");
    let mut crowd = Vec::with_capacity(CROWD);
    for _ in 0..CROWD {
        let mut connection = Connection::open(admin).await;
        // One that is too many may be closed already.
        let _ = connection.send(&login).await;
        crowd.push(connection);
    }
    let elsewhere = async {
        let mut connection = Connection::open_from([127, 0, 0, 2].into(), admin).await;
        let ready = request("GET", "/readyz", &[], b"");
        connection.send(&ready).await.expect("taken");
        connection.response().await.expect("answered")
    };
    let answer = in_time("GET /readyz from another address", elsewhere).await;
    assert!(matches!(answer.head.status, 200 | 503), "{}", answer.text());
}
