//! SIGTERM: not ready first, then nothing new, open streams to their end, exit code 0.

use std::net::SocketAddr;
use std::time::Duration;

use grapevine_tests::chat::{self, Ending, Stream, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection};
use grapevine_tests::invariants;
use grapevine_tests::process::Signal;
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_told_to_end_finishes_its_streams() {
    let workers = chat::workers(2, &chat::paced(Duration::from_millis(20))).await;
    let plan = Plan::default().set("timeouts.settle", "\"1s\"");
    let mut cluster = plan.workers(&workers).start(2).await;
    let [leaving, staying] = [&cluster.replicas[0], &cluster.replicas[1]];
    let (data, admin) = (leaving.data(), leaving.admin());

    // Four seconds of tokens: longer than settling, far shorter than the drain limit.
    let body = streamed("a long answer", 200);
    let mut open = Stream::open(data, &body).await.expect("it is accepted");
    open.read_events(2).await.expect("it has begun");
    leaving.process().signal(Signal::TERM);

    eventually(LIMIT, "not ready", async || match admin.is_ready().await {
        false => Ok(()),
        true => Err("ready".to_owned()),
    })
    .await;
    let settling = chat::chat("while it settles", 1);
    let answer = http1::post(data, "/v1/chat/completions", &settling).await;
    assert_eq!(answer.head.status, 200, "still served: {}", answer.text());
    assert_eq!(answer.head.header("connection"), Some("close"));
    let (_, took) = eventually(LIMIT, "the others know", async || {
        let view = staying.admin().view().await;
        let leaving = view.replicas.iter().find(|peer| peer.id == "r1");
        match leaving {
            Some(peer) if peer.leaving && !peer.ready => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    println!("the other replica knew after {took:?}");
    eventually(
        LIMIT,
        "the port refuses",
        async || match Connection::try_open(data).await {
            Ok(_) => Err("it was accepted".to_owned()),
            Err(_) => Ok(()),
        },
    )
    .await;

    // Until its last stream ends, the others see it as leaving, and its load counts.
    let view = staying.admin().view().await;
    let leaving_now = view.replicas.iter().find(|peer| peer.id == "r1");
    assert!(leaving_now.is_some_and(|peer| peer.live), "{view:?}");
    let seen = staying.admin().workers().await;
    let seen: f64 = seen.iter().map(|worker| worker.in_flight).sum();
    assert!(seen > 0.0, "the load of its stream counts no more");

    let outcome = open.finish().await;
    assert_eq!(outcome.ending, Ending::Done);
    assert_eq!(outcome.events.len(), 202, "role, 200 tokens, [DONE]");
    let status = cluster.replicas[0].ended().await;
    assert_eq!(status.code(), Some(0));
    let log = cluster.replicas[0].log();
    assert!(log.contains("every open request was finished"), "{log}");

    let rest = chat::stream(cluster.replicas[1].data(), &streamed("after it", 3)).await;
    assert_eq!(rest.ending, Ending::Done);
    invariants::hold(&cluster, &workers, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_takes_leave_of_those_who_know_it() {
    let cluster = Plan::default().start(1).await;
    let identity = cluster.issue("r2").await;
    let r1 = &cluster.replicas[0];
    // Nothing of it can be read before somebody writes, and by then it gossips.
    let certificate = cluster.dir().join("late.pem");
    let mut mkfifo = tokio::process::Command::new("mkfifo");
    let made = mkfifo.arg(&certificate).status().await;
    assert!(made.expect("there is mkfifo").success());
    let text = |path: &std::path::Path| path.display().to_string();
    let (config, late) = (text(&cluster.config()), text(&certificate));
    let files = [&identity.ca, &identity.cert, &identity.key].map(|path| text(path));
    let seed = r1.gossip_address();
    let args = [
        "serve",
        "--disable-prometheus",
        "--config",
        &config,
        "--replica-id",
        "r2",
        "--port",
        "0",
        "--admin-port",
        "0",
        "--gossip-port",
        "0",
        "--gossip-ca",
        &files[0],
        "--gossip-cert",
        &files[1],
        "--gossip-key",
        &files[2],
        "--seed",
        &seed,
        "--ssl-certfile",
        &late,
        "--ssl-keyfile",
        &late,
    ];
    let is_known = async |expected: bool| {
        let view = r1.admin().view().await;
        let known = view.replicas.iter().any(|peer| peer.id == "r2");
        let told = format!("{view:?}");
        (known == expected).then_some(()).ok_or(told)
    };
    let write = async {
        eventually(LIMIT, "it is known", async || is_known(true).await).await;
        let write = tokio::task::spawn_blocking(move || std::fs::write(&certificate, "none"));
        write.await.expect("no panic").expect("it is read");
    };
    let (ended, ()) = tokio::join!(grapevine_tests::process::run(&args), write);
    assert!(ended.text.contains("late.pem"), "{}", ended.text);
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    // One that died would stay in the list, as dead.
    eventually(LIMIT, "it has left", async || is_known(false).await).await;
}

/// R05: streams that the drain limit cuts get an error event, and a service manager sees an orderly end.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_outlast_the_drain_limit_end_with_an_error_event() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(100))).await;
    let plan = Plan::default()
        .set("timeouts.drain", "\"1s\"")
        .set("timeouts.settle", "\"200ms\"");
    let mut cluster = plan.workers(&workers).start(1).await;
    let data = cluster.replicas[0].data();
    let mut open = Vec::new();
    for number in 0..4 {
        let body = streamed(&format!("too long {number}"), 1_000);
        let mut stream = Stream::open(data, &body).await.expect("it is accepted");
        stream.read_events(2).await.expect("it has begun");
        open.push(stream);
    }
    let mut over_h2 = Http2::open(data, &streamed("too long by HTTP/2", 1_000)).await;
    over_h2.read_until("data: ").await;
    // No byte of this answer was sent yet: its client gets an error status.
    let plain = tokio::spawn(async move {
        let body = chat::chat("not begun", 1_000);
        http1::post(data, "/v1/chat/completions", &body).await
    });
    eventually(LIMIT, "six in flight", async || {
        let seen = workers[0].stats().in_flight;
        so(seen == 6, || format!("{seen}"))
    })
    .await;

    let told = Instant::now();
    cluster.replicas[0].process().signal(Signal::TERM);
    for stream in open {
        let Ending::ErrorEvent(error) = stream.finish().await.ending else {
            panic!("no error event");
        };
        assert_eq!(error["code"], "shutting_down", "{error}");
    }
    let rest = over_h2.read_to_end().await;
    assert!(
        rest.contains("shutting_down") && !rest.contains("[DONE]"),
        "{rest}"
    );
    let answer = plain.await.expect("an answer");
    assert_eq!(answer.head.status, 503, "{}", answer.text());
    assert!(answer.head.header("retry-after").is_some());
    assert!(answer.text().contains("shutting_down"), "{}", answer.text());
    let status = cluster.replicas[0].ended().await;
    println!(
        "settle 0.2 s, drain 1 s: ended {:?} after SIGTERM",
        told.elapsed()
    );
    assert_eq!(status.code(), Some(0));
    let log = cluster.replicas[0].log();
    assert!(
        log.contains("cut at the drain limit connections=6"),
        "{log}"
    );
    assert_eq!(log.matches("outcome=\"shut_down\"").count(), 6, "{log}");
    let refused = "status=503 error=\"shutting_down\" outcome=\"shut_down\"";
    let bytes = format!("bytes_out={}", answer.body.len());
    let told = |line: &&str| line.contains(refused) && line.split(' ').any(|part| part == bytes);
    assert_eq!(log.lines().filter(told).count(), 1, "{log}");
}

/// R05: who has sent nothing when the replica ends has a moment for its first request, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_has_sent_nothing_holds_up_no_end() {
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(100))).await;
    let plan = Plan::default()
        .set("timeouts.first_byte", "\"1h\"")
        .set("timeouts.drain", "\"1h\"")
        .set("timeouts.settle", "\"0s\"");
    let mut cluster = plan.workers(&workers).start(1).await;
    let data = cluster.replicas[0].data();
    let mut silent = Connection::open(data).await;
    eventually(LIMIT, "it is accepted", async || {
        let metrics = cluster.replicas[0].admin().metrics().await;
        let open = metrics.sum("grapevine_connections", "");
        so(open >= 1.0, || format!("{open}"))
    })
    .await;

    cluster.replicas[0].process().signal(Signal::TERM);
    assert!(silent.is_closed().await, "not the silent one's end");
    let status = cluster.replicas[0].ended().await;
    assert_eq!(status.code(), Some(0));
    let log = cluster.replicas[0].log();
    assert!(log.contains("every open request was finished"), "{log}");
}

/// One stream over HTTP/2 in plain text.
struct Http2 {
    response: reqwest::Response,
    read: String,
}

impl Http2 {
    async fn open(address: SocketAddr, body: &serde_json::Value) -> Self {
        // A second installation in this process changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .http2_prior_knowledge()
            .no_proxy()
            .tls_certs_only([])
            .build();
        let response = client
            .expect("a client")
            .post(format!("http://{address}/v1/chat/completions"))
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await
            .expect("an answer");
        assert_eq!(response.version(), reqwest::Version::HTTP_2);
        Self {
            response,
            read: String::new(),
        }
    }

    async fn read_until(&mut self, text: &str) {
        while !self.read.contains(text) {
            let piece = self.response.chunk().await.expect("it goes on");
            self.read
                .push_str(&String::from_utf8_lossy(&piece.expect("not the end")));
        }
    }

    async fn read_to_end(mut self) -> String {
        while let Some(piece) = self.response.chunk().await.expect("a well-formed end") {
            self.read.push_str(&String::from_utf8_lossy(&piece));
        }
        self.read
    }
}
