//! No secret of a client appears in the replica's log, metrics, or own errors, and nothing that clients send
//! makes its metrics grow.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Stdio;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Fault, Rule};
use grapevine_tests::chat::{CHATS, MODEL, Stream, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::process::{Process, Signal};
use grapevine_tests::wait::{LIMIT, quantile};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::house::{House, quick};

/// Any value with this text must stay between client and worker.
const CANARY: &str = "canary-4be1f70c";

#[derive(Deserialize)]
struct Listening {
    data: std::net::SocketAddr,
    admin: std::net::SocketAddr,
}

fn secret_headers() -> [(&'static str, String); 5] {
    [
        ("authorization", format!("Bearer {CANARY}")),
        ("x-api-key", CANARY.to_owned()),
        ("cookie", format!("session={CANARY}")),
        ("proxy-authorization", format!("Basic {CANARY}")),
        ("x-request-id", format!("not valid: {CANARY}")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_and_prompts_are_never_written_down() {
    let plan = Plan::default()
        .set("log.level", "\"trace\"")
        .set("limits.body_bytes", "20000")
        .set("timeouts.inter_token", "\"1s\"")
        .set("workers.api_key", &format!("\"{CANARY}\""));
    let house = House::of(plan, vec![quick(); 2]).await;
    let data = house.data();
    let headers = secret_headers();
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let target = format!("{CHATS}?api_key={CANARY}");
    let good = chat(&format!("my secret is {CANARY}"), 2);
    let mut salted = good.clone();
    salted["cache_salt"] = CANARY.into();
    salted["user"] = CANARY.into();

    // Every way to be refused by the replica itself, and answers.
    let long = format!("{CANARY}{}", " ".repeat(30_000));
    let bodies = [
        good.to_string(),
        salted.to_string(),
        String::new(),
        format!("{CANARY} is no JSON"),
        format!("{{\"model\":\"other\",\"messages\":[],\"x\":\"{CANARY}\"}}"),
        format!(
            "{{\"model\":\"{MODEL}\",\"cache_salt\":\"{}\"}}",
            CANARY.repeat(100)
        ),
        long,
    ];
    let mut written = String::new();
    let mut statuses = Vec::new();
    for body in &bodies {
        for extra in [
            None,
            Some(("content-encoding", "gzip")),
            Some(("authorization", CANARY)),
        ] {
            let headers: Vec<_> = headers.iter().copied().chain(extra).collect();
            let answer = http1::exchange(data, "POST", &target, &headers, body.as_bytes()).await;
            statuses.push(answer.head.status);
            if answer.head.status >= 400 {
                written.push_str(&answer.text());
            }
        }
    }
    for (method, target) in [
        ("GET", target.as_str()),
        ("CONNECT", "canary-4be1f70c:443"),
        ("POST", "/v1/models"),
    ] {
        let answer = http1::exchange(data, method, target, &headers, b"").await;
        assert!(answer.head.status >= 400, "{method} {target}");
        written.push_str(&answer.text());
    }
    for head in [
        format!("GET /{CANARY} HTTP/1.1\r\nauthorization: {CANARY}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: a\r\nauthorization: {CANARY}\n\r\n"),
        format!("{CANARY} /{CANARY} {CANARY}\r\n\r\n"),
        format!(
            "GET / HTTP/1.1\r\nhost: a\r\ncookie: {}\r\n\r\n",
            CANARY.repeat(10_000)
        ),
        format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", CANARY.repeat(10_000)),
        format!(
            "POST {CHATS} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{CANARY}\r\n"
        ),
    ] {
        let mut connection = Connection::open(data).await;
        let _ = connection.send(head.as_bytes()).await;
        let answer = connection.response().await.expect("answered");
        statuses.push(answer.head.status);
        written.push_str(&answer.text());
    }
    for expected in [200, 400, 404, 413, 414, 415, 431] {
        assert!(
            statuses.contains(&expected),
            "no {expected} among {statuses:?}"
        );
    }

    // Over HTTP/2 as well, whose library has a log of its own.
    let client = crate::http2::client();
    let url = format!("http://{data}{target}");
    for body in [good.to_string(), "{".to_owned()] {
        let sent = client.post(&url).bearer_auth(CANARY).body(body).send();
        assert_eq!(
            sent.await.expect("answered").version(),
            reqwest::Version::HTTP_2
        );
    }

    // Workers that fail in every place, and clients that leave.
    let prompt = format!("a stream of {CANARY}");
    for worker in &house.workers {
        let stalled =
            serde_json::from_value::<Fault>(json!({"stop": {"at": "event:2", "how": "stall"}}));
        let cut = serde_json::from_value::<Fault>(json!({"stop": {"at": "event:2", "how": "rst"}}));
        for fault in [stalled, cut] {
            let rule = Rule::next(1, fault.expect("a fault"));
            worker.add_rule(rule).expect("room for a rule");
        }
    }
    for _ in 0..6 {
        if let Ok(stream) = Stream::open(data, &streamed(&prompt, 5)).await {
            let outcome = stream.finish().await;
            let _ = write!(written, "{:?}", outcome.ending);
        }
    }
    let mut left = Stream::open(data, &streamed(&prompt, 10_000))
        .await
        .expect("accepted");
    left.read_events(2).await.expect("begun");
    left.leave(true);
    for worker in &house.workers {
        worker.clear_rules();
        let refusal =
            serde_json::from_value::<Fault>(json!({"stop": {"at": "head:0", "how": "rst"}}));
        let rule = Rule::always(refusal.expect("a fault"));
        worker.add_rule(rule).expect("room for a rule");
    }
    let answer =
        http1::exchange(data, "POST", &target, &headers, good.to_string().as_bytes()).await;
    assert!(answer.head.status >= 500, "{}", answer.text());
    written.push_str(&answer.text());
    for worker in &house.workers {
        worker.clear_rules();
    }

    let replica = &house.cluster.replicas[0];
    written.push_str(&http1::get(replica.admin().0, "/metrics").await.text());
    written.push_str(&http1::get(replica.admin().0, "/workers").await.text());
    written.push_str(&http1::get(replica.admin().0, "/cluster").await.text());
    house.until_log_says("client_left").await;
    written.push_str(&replica.log());
    assert!(written.contains("hyper"), "libraries speak at this level");
    for canary in [CANARY, "Y2FuYXJ5"] {
        let found: Vec<&str> = written
            .lines()
            .filter(|line| line.contains(canary))
            .collect();
        assert!(found.is_empty(), "{found:#?}");
    }
    let workers_saw = house.workers.iter().flat_map(|worker| worker.log());
    let key = |entry: grapevine_testbed::fake_worker::Entry| {
        entry
            .headers
            .iter()
            .any(|(_, value)| value.contains(CANARY))
    };
    assert!(
        workers_saw.into_iter().any(key),
        "the canary was on its way at all"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_send_adds_no_series() {
    const KINDS: usize = 5;
    const EACH: usize = 1_000;
    let house = House::new(1).await;
    let (data, admin) = (house.data(), house.cluster.replicas[0].admin().0);
    let ask = |kind: usize, number: usize| {
        let name = format!("made-up-{number}");
        let body = |model: &str| json!({"model": model, "messages": [], "user": name}).to_string();
        let id = format!("{name}-{kind}");
        let id = [
            ("x-request-id", id.as_str()),
            ("x-session-id", name.as_str()),
        ];
        match kind {
            0 => request("POST", CHATS, &id, body(&name).as_bytes()),
            1 => request("POST", "/v1/completions", &id, body(&name).as_bytes()),
            2 => request("GET", &format!("/v1/models/{name}"), &id, b""),
            3 => request("GET", &format!("/{name}"), &id, b""),
            _ => request("PUT", CHATS, &[("x-tenant-id", &name)], b""),
        }
    };
    let mut clients = JoinSet::new();
    let first = async |kind: usize| {
        let mut connection = Connection::open(data).await;
        connection.send(&ask(kind, 0)).await.expect("taken");
        connection.response().await.expect("answered").head.status
    };
    for kind in 0..KINDS {
        let status = first(kind).await;
        assert!((400..500).contains(&status), "{kind}: {status}");
    }
    let series = async || {
        let text = http1::get(admin, "/metrics").await.text();
        assert!(!text.contains("made-up"), "{text}");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let names = lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
        names.collect::<BTreeSet<_>>()
    };
    let before = series().await;
    for kind in 0..KINDS {
        let asks: Vec<Vec<u8>> = (1..=EACH).map(|number| ask(kind, number)).collect();
        clients.spawn(async move {
            let mut connection = Connection::open(data).await;
            for bytes in asks {
                if connection.send(&bytes).await.is_err() {
                    connection = Connection::open(data).await;
                    connection.send(&bytes).await.expect("taken");
                }
                let Ok(answer) = connection.response().await else {
                    connection = Connection::open(data).await;
                    continue;
                };
                if answer.head.header("connection") == Some("close") {
                    connection = Connection::open(data).await;
                }
            }
        });
    }
    clients.join_all().await;
    let after = series().await;
    let new: Vec<_> = after.difference(&before).collect();
    println!(
        "{} series before and {} after {} made-up names: {new:?}",
        before.len(),
        after.len(),
        KINDS * EACH
    );
    // A name of each kind would add a thousand. A gauge that a task sets for the first time may be new, too.
    assert!(new.len() < KINDS, "{new:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scraping_without_end_stops_nobody() {
    let house = House::new(1).await;
    let (data, admin) = (house.data(), house.cluster.replicas[0].admin().0);
    let until = Instant::now() + Duration::from_secs(2);
    let mut scrapers = JoinSet::new();
    for _ in 0..8 {
        scrapers.spawn(async move {
            let mut connection = Connection::open(admin).await;
            let accept = ("accept", "application/openmetrics-text");
            let bytes = request("GET", "/metrics", &[accept], b"");
            let mut times = Vec::new();
            while Instant::now() < until {
                let asked = Instant::now();
                connection.send(&bytes).await.expect("taken");
                let answer = connection.response().await.expect("answered");
                assert_eq!(answer.head.status, 200);
                assert!(answer.text().ends_with("# EOF\n"), "a whole exposition");
                times.push(asked.elapsed());
            }
            times
        });
    }
    let mut served = Vec::new();
    while Instant::now() < until {
        let asked = Instant::now();
        let answer = http1::post(data, CHATS, &chat("meanwhile", 1)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        served.push(asked.elapsed());
    }
    let mut scrapes = scrapers.join_all().await.concat();
    scrapes.sort_unstable();
    served.sort_unstable();
    println!(
        "{} scrapes, p99 {:?}; {} requests meanwhile, p99 {:?}",
        scrapes.len(),
        quantile(&scrapes, 0.99),
        served.len(),
        quantile(&served, 0.99)
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_stops_nothing() {
    let args = [
        "serve",
        "--port=0",
        "--admin-port=0",
        "--gossip-port=0",
        "--disable-prometheus",
    ];
    // Several lines for each request, of the HTTP library too.
    let args = [&args[..], &["--log-level=debug", "--settle-secs=0"]].concat();
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let (mut process, listening): (_, Listening) = Process::start_with(&args, Stdio::piped()).await;
    let mut connection = Connection::open(listening.data).await;
    let bytes = request("POST", CHATS, &[], b"{");
    let dropped = async || {
        let metrics = http1::get(listening.admin, "/metrics").await.text();
        let name = "grapevine_log_lines_dropped_total ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.parse::<f64>().ok())
            .expect("there is one")
    };
    let begun = Instant::now();
    let mut served = 0;
    while dropped().await == 0.0 {
        for _ in 0..200 {
            connection.send(&bytes).await.expect("taken");
            let answer = connection.response().await.expect("answered");
            assert_eq!(answer.head.status, 400);
            served += 1;
        }
        assert!(
            begun.elapsed() < 3 * LIMIT,
            "{served} requests, and no line was dropped"
        );
    }
    let answer: Value = http1::get(listening.data, "/v1/models").await.json();
    assert!(answer["data"].is_array(), "served on without a log");
    println!("{served} requests with a log that nobody reads");
    drop(connection);
    process.signal(Signal::TERM);
    assert_eq!(
        process.ended().await.code(),
        Some(0),
        "it ends without a reader, too"
    );
}
