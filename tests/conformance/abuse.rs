//! Clients that are slow on purpose, idle, many, or speak another protocol: the replica ends them, and other
//! clients do not notice.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Fault, Rule};
use grapevine_tests::chat::{CHATS, Ending, Stream, chat, paced, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::wait::{LIMIT, eventually, quantile, so};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::errors::assert_error;
use crate::house::{House, quick};

/// The limit that the slow clients of these tests reach.
const LATE: Duration = Duration::from_secs(2);
/// Between two bytes of a client that drips.
const DRIP: Duration = Duration::from_millis(500);

/// Sends `begin`, then `more` again and again, until the replica answers or closes; its answer.
async fn drip(
    mut connection: Connection,
    begin: Vec<u8>,
    more: &[u8],
) -> Result<http1::Response, http1::Cut> {
    let _ = connection.send(&begin).await;
    loop {
        match connection.response_within(DRIP).await {
            Some(answer) => {
                assert!(connection.is_closed().await, "open after the last word");
                return answer;
            }
            None if more.is_empty() => {}
            None => drop(connection.send(more).await),
        }
    }
}

/// A connection that the replica has accepted, and with it all earlier ones: the backlog is a queue. The kernel
/// silently drops a connection that does not fit into it, and a client that sends nothing would never notice.
async fn accepted(address: SocketAddr) -> Connection {
    let connection = Connection::open(address).await;
    let later = http1::get(address, "/liveness").await;
    assert_eq!(later.head.status, 200);
    connection
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_end_in_time_and_disturb_nobody() {
    const EACH: usize = 125;
    let late = format!("\"{}s\"", LATE.as_secs());
    let plan = Plan::default()
        .set("timeouts.first_byte", &late)
        .set("timeouts.header", &late)
        .set("timeouts.body_progress", &late);
    let house = House::of(plan, vec![quick()]).await;
    let data = house.data();
    let late_head = b"GET / HTTP/1.1\r\nhost: a\r\nx-drip: ".to_vec();
    let body = |length: usize, begun: usize| {
        let head = format!("POST {CHATS} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        [head.into_bytes(), vec![b' '; begun]].concat()
    };
    let began = Instant::now();
    let mut slow = JoinSet::new();
    for _ in 0..EACH {
        let connection = accepted(data).await;
        slow.spawn(async move {
            let silent = drip(connection, Vec::new(), b"").await;
            assert!(silent.is_err(), "an answer to silence");
        });
        let (connection, begin) = (accepted(data).await, late_head.clone());
        slow.spawn(async move {
            let answer = drip(connection, begin, b"v").await;
            assert_error(
                &answer.expect("a late head is answered"),
                408,
                "request_timeout",
            );
        });
        // A drip, and silence after 8 KiB, which earn no further time.
        for (begin, more) in [(body(999, 0), b" ".as_slice()), (body(9_999, 8 << 10), b"")] {
            let connection = accepted(data).await;
            slow.spawn(async move {
                let answer = drip(connection, begin, more).await;
                assert_error(
                    &answer.expect("a late body is answered"),
                    408,
                    "request_timeout",
                );
            });
        }
    }
    // All other clients are served as usual meanwhile.
    let mut others = Vec::new();
    while others.len() < 20 || !slow.is_empty() && began.elapsed() < LATE {
        let asked = Instant::now();
        let answer = http1::post(data, CHATS, &chat("quick", 1)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        others.push(asked.elapsed());
    }
    others.sort_unstable();
    while let Some(ended) = slow.join_next().await {
        ended.expect("a slow client ended as it must");
    }
    let took = began.elapsed();
    println!(
        "{} slow clients ended after {took:?} (limit {LATE:?}); {} others meanwhile, p99 {:?}",
        4 * EACH,
        others.len(),
        quantile(&others, 0.99)
    );
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    for limit in ["first_byte", "header", "body_progress"] {
        let reached = metrics.sum("grapevine_limits_reached_total", &format!("\"{limit}\""));
        assert!(reached >= EACH as f64, "{limit}: {reached}");
    }
    assert_eq!(house.workers[0].log().len(), others.len());
    house.close().await;
}

/// A byte that HTTP/2's preface begins with lies unread until it is known what comes. Whoever leaves meanwhile is let go of
/// at once, and not when the first byte's time is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_within_its_first_bytes_leaves_nothing_behind() {
    let plan = Plan::default().set("timeouts.first_byte", "\"1h\"");
    let house = House::of(plan, vec![quick()]).await;
    let open = async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        metrics.sum("grapevine_connections", "")
    };
    let mut begun = Vec::new();
    for first in [&b"P"[..], b"PRI * HTTP/2.0", b""].repeat(20) {
        let mut connection = accepted(house.data()).await;
        connection.send(first).await.expect("taken");
        begun.push(connection);
    }
    let (_, took) = eventually(LIMIT, "they are there", async || {
        let open = open().await;
        (open >= 60.0).then_some(()).ok_or(open.to_string())
    })
    .await;
    println!("{} connections after {took:?}", begun.len());
    drop(begun);
    eventually(LIMIT, "they are gone", async || {
        let open = open().await;
        (open == 0.0).then_some(()).ok_or(open.to_string())
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_cheap_and_close_quietly() {
    const CONNECTIONS: usize = 500;
    let plan = Plan::default().set("timeouts.keep_alive", "\"3s\"");
    let house = House::of(plan, vec![quick()]).await;
    let process = house.cluster.replicas[0].process();
    let live = request("GET", "/liveness", &[], b"");
    let before = process.resident_kib();
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::open(house.data()).await;
        connection.send(&live).await.expect("taken");
        let answer = connection.response().await.expect("answered");
        assert_eq!(answer.head.status, 200);
        idle.push(connection);
    }
    let kib = process.resident_kib().saturating_sub(before);
    println!(
        "{CONNECTIONS} idle connections: {kib} KiB, {:.1} each",
        kib as f64 / CONNECTIONS as f64
    );
    for mut connection in idle {
        // The connection ends without a byte: a client would take a 408 for the answer to a request that it
        // is sending.
        assert_eq!(connection.response().await.err(), Some(http1::Cut));
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_descriptors_the_idle_leave_and_the_busy_stay() {
    const CLIENTS: usize = 400;
    let house = House::of(Plan::default(), vec![paced(Duration::from_millis(10))]).await;
    let replica = &house.cluster.replicas[0];
    let live = request("GET", "/liveness", &[], b"");
    let mut early = Stream::open(house.data(), &streamed("early", 300))
        .await
        .expect("accepted");
    early.read_events(2).await.expect("it has begun");
    let open = replica.process().descriptors();
    replica.process().limit_descriptors(open + 50);
    let limited = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (data, live) = (house.data(), live.clone());
        // Some are accepted, some wait in the backlog, some do not reach the backlog.
        clients.spawn(async move {
            if let Ok(mut client) = Connection::try_open(data).await {
                let _ = client.send(&live).await;
                std::future::pending::<()>().await;
            }
        });
    }
    eventually(LIMIT, "a failed accept is said", async || {
        let said = replica.log().matches("accept failed").count();
        so(said > 0, || "not yet".to_owned())
    })
    .await;
    let (_, took) = eventually(LIMIT, "newcomers are served", async || {
        let client = Connection::try_open(house.data()).await;
        let mut client = client.map_err(|error| error.to_string())?;
        client.send(&live).await.map_err(|_| "cut".to_owned())?;
        match client.response_within(LIMIT).await {
            Some(Ok(answer)) if answer.head.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    println!("{CLIENTS} idle clients beyond the descriptors: a newcomer was served after {took:?}");
    let whole = early.finish().await;
    assert_eq!(whole.ending, Ending::Done, "{whole:?}");
    clients.shutdown().await;
    let log = replica.log();
    let said = log.matches("accept failed").count() as u64;
    // Many attempts a second, one line a second.
    let most = 2 + limited.elapsed().as_secs();
    assert!(said <= most, "{said} lines about failed accepts:\n{log}");
    let metrics = replica.admin().metrics().await;
    assert!(metrics.sum("grapevine_limits_reached_total", "\"accept\"") > 0.0);
    assert!(metrics.sum("grapevine_connections_shed_total", "\"data\"") > 0.0);
    house.close().await;
}

/// Nobody comes, so no accept fails: it is the connection to the worker that there is no file for.
#[tokio::test(flavor = "multi_thread")]
async fn without_descriptors_for_a_worker_the_idle_leave() {
    const CLIENTS: usize = 96;
    let house = House::of(Plan::default(), vec![quick()]).await;
    let replica = &house.cluster.replicas[0];
    let live = request("GET", "/liveness", &[], b"");
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Connection::open(house.data()).await;
        client.send(&live).await.expect("taken");
        let answer = client.response().await.expect("answered");
        assert_eq!(answer.head.status, 200);
        clients.push(client);
    }
    // A new file takes the lowest number that is free, and none is below this one.
    let process = replica.process();
    process.limit_descriptors(process.descriptors() - 8);
    let mut asking = clients.pop().expect("one of them");
    let body = chat("how are you", 1).to_string();
    let post = request("POST", CHATS, &[], body.as_bytes());
    asking.send(&post).await.expect("taken");
    let answer = asking.response_within(LIMIT).await.expect("in time");
    let answer = answer.expect("answered");
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let metrics = replica.admin().metrics().await;
    assert!(metrics.sum("grapevine_connections_shed_total", "\"data\"") > 0.0);
    let refused = metrics.sum("grapevine_limits_reached_total", "\"sockets\"");
    assert_eq!(refused, 0.0, "it was served");
    drop(clients);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn short_of_memory_new_requests_are_shed_but_one() {
    // Less memory than any process uses.
    let plan = Plan::default().set("limits.memory", "\"1MiB\"");
    let house = House::of(plan, vec![quick()]).await;
    let (worker, replica) = (&house.workers[0], &house.cluster.replicas[0]);
    house.until_log_says("short of memory").await;
    // Refusing the only request would free nothing.
    let answer = http1::post(house.data(), CHATS, &chat("alone", 1)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    worker
        .add_rule(Rule::next(1, Fault::never_answer()))
        .expect("room for a rule");
    let mut held = Connection::open(house.data()).await;
    let body = chat("held", 1).to_string();
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    held.send(&bytes).await.expect("taken");
    eventually(LIMIT, "the worker has it", async || {
        let begun = worker.stats().in_flight == 1;
        so(begun, || "not yet".to_owned())
    })
    .await;
    for _ in 0..10 {
        let answer = http1::post(house.data(), CHATS, &chat("one more", 1)).await;
        assert_error(&answer, 503, "overloaded");
    }
    let live = http1::get(house.data(), "/liveness").await;
    assert_eq!(live.head.status, 200, "probes are answered");
    let metrics = replica.admin().metrics().await;
    assert_eq!(
        metrics.sum("grapevine_limits_reached_total", "\"memory\""),
        10.0
    );
    assert!(metrics.sum("process_resident_memory_bytes", "") > f64::from(1 << 20));
    assert_eq!(
        replica.log().matches("short of memory: new").count(),
        1,
        "said once"
    );
    drop(held);
    eventually(LIMIT, "served again", async || {
        let status = http1::post(house.data(), CHATS, &chat("again", 1))
            .await
            .head
            .status;
        so(status == 200, || status.to_string())
    })
    .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_ends_at_once_and_quietly() {
    const EACH: usize = 20;
    let house = House::new(1).await;
    let hello = b"\x16\x03\x01\x00\xf4\x01\x00\x00\xf0\x03\x03";
    let noise: Vec<u8> = (0..2_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let noise_line = [noise.as_slice(), b"\r\n\r\n"].concat();
    let cases: [(&str, &[u8], &[u16]); 9] = [
        ("a TLS hello", hello, &[]),
        ("noise", &noise_line, &[400]),
        ("zeros", b"\0\0\0\0\0\0\0\0\r\n", &[400]),
        ("a line of text", b"hello\r\n", &[400]),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n", &[400]),
        (
            "a PROXY line",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            &[],
        ),
        (
            "an HTTP/2 preface that goes wrong",
            b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
            &[400],
        ),
        (
            "an HTTP/2 preface in lower case",
            b"pri * http/2.0\r\n\r\nsm\r\n\r\n",
            &[400],
        ),
        (
            "an HTTP/2 preface with noise behind it",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            &[],
        ),
    ];
    let mut slowest = Duration::ZERO;
    for (what, bytes, statuses) in cases {
        for _ in 0..EACH {
            let mut connection = Connection::open(house.data()).await;
            let sent = Instant::now();
            let _ = connection.send(bytes).await;
            if statuses.is_empty() {
                connection.discard().await;
            } else {
                let answer = connection.response().await;
                let answer = answer.unwrap_or_else(|_| panic!("no answer to {what}"));
                assert!(
                    statuses.contains(&answer.head.status),
                    "{what}: {}",
                    answer.head.status
                );
                assert!(connection.is_closed().await, "{what}: something followed");
            }
            slowest = slowest.max(sent.elapsed());
        }
    }
    for _ in 0..EACH {
        drop(Connection::open(house.data()).await);
    }
    println!("what is no HTTP was closed after {slowest:?} at most (1 s promised)");
    let log = house.cluster.replicas[0].log();
    let hints = log
        .lines()
        .filter(|line| line.contains("spoke TLS"))
        .count();
    assert!(
        (1..EACH).contains(&hints),
        "{hints} hints about TLS:\n{log}"
    );
    let others = log
        .lines()
        .filter(|line| line.contains("grapevine::listener"));
    let others: Vec<&str> = others.filter(|line| !line.contains("spoke TLS")).collect();
    assert!(others.is_empty(), "{others:#?}");
    assert!(house.workers[0].log().is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_cut() {
    let plan = Plan::default().set("timeouts.write_stall", "\"1s\"");
    let house = House::of(plan, vec![quick()]).await;
    let body = chat("never read", 1).to_string();
    let long = crate::slow_reader::long_answer();
    house.workers[0]
        .add_rule(Rule::next(1, long))
        .expect("room for a rule");
    let mut stalled = Connection::open(house.data()).await;
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    stalled.send(&bytes).await.expect("taken");
    stalled.head().await.expect("the answer has begun");
    eventually(LIMIT, "the worker sees that nobody reads", async || {
        let log = house.workers[0].log();
        let gone = log.last().and_then(|entry| entry.client_gone_us);
        gone.map(drop).ok_or_else(|| format!("{log:?}"))
    })
    .await;
    // The bytes that had been sent can be read, and then the connection ends.
    sleep(DRIP).await;
    assert!(
        stalled.rest().await.is_err(),
        "an answer that was cut is not whole"
    );
    eventually(LIMIT, "the limit counts", async || {
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        let cut = metrics.sum("grapevine_limits_reached_total", "\"write_stall\"");
        so(cut == 1.0, || format!("{cut} cut"))
    })
    .await;
    house.close().await;
}
