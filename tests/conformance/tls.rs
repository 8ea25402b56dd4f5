//! TLS on the data port: both versions of HTTP, reload, certificates of clients, and clients that leave.

use std::path::Path;
use std::time::Duration;

use grapevine_testbed::fake_worker::{Fault, Rule};
use grapevine_tests::chat::{CHATS, chat, paced, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::process::Signal;
use grapevine_tests::tls::{Authority, Pair, connect};
use grapevine_tests::wait::{LIMIT, eventually, so};
use reqwest::{Certificate, Client, ClientBuilder, Identity, Version};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::client::TlsStream;

use crate::house::{House, quick};

/// Clients that speak the wrong protocol.
const MISLED: usize = 20;
const HOSTS: &[&str] = &["localhost", "127.0.0.1"];

/// A directory, an authority, and the pair in it that the data port uses.
struct Papers {
    dir: TempDir,
    authority: Authority,
    pair: Pair,
}

impl Papers {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let authority = Authority::new();
        let pair = authority.issue(dir.path(), "port", HOSTS);
        Self {
            dir,
            authority,
            pair,
        }
    }

    fn plan(&self) -> Plan {
        Plan::default()
            .set("tls.cert", &quoted(&self.pair.cert))
            .set("tls.key", &quoted(&self.pair.key))
    }

    fn client(&self) -> ClientBuilder {
        believing(&self.authority)
    }
}

fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

fn believing(authority: &Authority) -> ClientBuilder {
    // A second installation in this process changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let root = Certificate::from_pem(authority.pem().as_bytes()).expect("a certificate");
    Client::builder().no_proxy().tls_certs_only([root])
}

fn url(house: &House) -> String {
    format!("https://localhost:{}{CHATS}", house.data().port())
}

async fn stream_of(client: &Client, house: &House) -> (Version, String) {
    let request = client.post(url(house)).json(&streamed("over TLS", 5));
    let answer = request.send().await.expect("answered");
    let version = answer.version();
    (version, answer.text().await.expect("a whole stream"))
}

#[tokio::test(flavor = "multi_thread")]
async fn https_clients_are_served_and_others_told() {
    let papers = Papers::new();
    let house = House::of(papers.plan(), vec![quick()]).await;
    let build = |builder: ClientBuilder| builder.build().expect("a client can be built");
    let old = papers
        .client()
        .tls_version_max(reqwest::tls::Version::TLS_1_2);
    for (client, expected) in [
        (build(papers.client()), Version::HTTP_2),
        (build(papers.client().http1_only()), Version::HTTP_11),
        (build(old), Version::HTTP_2),
    ] {
        let (version, stream) = stream_of(&client, &house).await;
        assert_eq!(version, expected);
        assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
        assert_eq!(
            stream.matches("data: ").count(),
            7,
            "role, 5 tokens, [DONE]"
        );
    }
    let stranger = build(believing(&Authority::new()));
    let refused = stranger.post(url(&house)).json(&chat("x", 1)).send().await;
    assert!(
        refused.is_err(),
        "a client that does not believe the authority"
    );

    let begun = Instant::now();
    for _ in 0..MISLED {
        let mut plain = Connection::open(house.data()).await;
        let body = chat("plain", 1).to_string();
        // The replica may close before it has read everything.
        let _ = plain
            .send(&request("POST", CHATS, &[], body.as_bytes()))
            .await;
        assert!(
            plain.is_closed().await,
            "plain HTTP on the port with TLS was answered"
        );
    }
    let replica = &house.cluster.replicas[0];
    let metrics = replica.admin().metrics().await;
    let handshakes = |result| metrics.sum("grapevine_tls_handshakes_total", result);
    assert_eq!(handshakes("not_tls"), MISLED as f64);
    assert!(handshakes("\"ok\"") >= 3.0 && handshakes("failed") >= 1.0);
    assert!(metrics.sum("grapevine_tls_certificate_expires_seconds", "listener") > 1.7e9);
    assert_told(&house, "spoke plain HTTP", begun).await;
    house.close().await;
}

/// One line a second at most, however many clients provoke it.
async fn assert_told(house: &House, what: &str, begun: Instant) {
    house.until_log_says(what).await;
    let told = house.cluster.replicas[0].log().matches(what).count() as u64;
    assert!(told <= begun.elapsed().as_secs() + 1, "{told} lines");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_on_the_plain_port_is_closed_with_a_hint() {
    let house = House::new(1).await;
    let begun = Instant::now();
    for _ in 0..MISLED {
        let client = Authority::new().client();
        assert!(
            connect(client, house.data()).await.is_err(),
            "nobody speaks TLS there"
        );
    }
    let replica = &house.cluster.replicas[0];
    assert_told(&house, "set --ssl-certfile and --ssl-keyfile", begun).await;
    let metrics = replica.admin().metrics().await;
    assert_eq!(
        metrics.sum("grapevine_tls_handshakes_total", "unexpected_tls"),
        MISLED as f64
    );
    house.close().await;
}

/// The certificate that new connections get.
async fn shown(papers: &Papers, house: &House) -> Vec<u8> {
    let stream = connect(papers.authority.client(), house.data()).await;
    let stream = stream.expect("connected");
    let shown = stream
        .get_ref()
        .1
        .peer_certificates()
        .expect("one is shown");
    shown[0].to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_used_without_a_restart_and_a_bad_one_never() {
    let papers = Papers::new();
    // Only SIGHUP has the files read again in this test.
    let plan = papers.plan().set("tls.refresh", "\"24h\"");
    let house = House::of(plan, vec![paced(Duration::from_millis(20))]).await;
    let replica = &house.cluster.replicas[0];
    let first = papers.pair.leaf();
    assert_eq!(shown(&papers, &house).await, first.to_vec());

    let client = papers.client().build().expect("a client can be built");
    let long = client.post(url(&house)).json(&streamed("goes on", 10_000));
    let mut long = long.send().await.expect("answered");
    long.chunk().await.expect("it has begun").expect("a chunk");

    let second = papers
        .authority
        .issue(papers.dir.path(), "port", HOSTS)
        .leaf();
    assert_eq!(
        shown(&papers, &house).await,
        first.to_vec(),
        "nobody has said so yet"
    );
    replica.process().signal(Signal::HUP);
    eventually(LIMIT, "the second certificate is shown", async || {
        let now = shown(&papers, &house).await;
        so(now == second.to_vec(), || "still the first".to_owned())
    })
    .await;

    let other = papers.authority.issue(papers.dir.path(), "other", HOSTS);
    std::fs::copy(&other.cert, &papers.pair.cert).expect("copied");
    replica.process().signal(Signal::HUP);
    eventually(LIMIT, "the bad pair is reported", async || {
        let metrics = replica.admin().metrics().await;
        let failed = metrics.sum("grapevine_tls_reloads_total", "failed");
        so(failed >= 1.0, || format!("{failed} failed"))
    })
    .await;
    assert_eq!(shown(&papers, &house).await, second.to_vec());
    house.until_log_says("cannot be used together").await;

    for _ in 0..3 {
        let more = timeout(LIMIT, long.chunk()).await.expect("it goes on");
        more.expect("whole").expect("not at its end");
    }
    drop(long);
    let House { cluster, workers } = house;
    grapevine_tests::invariants::hold(&cluster, &workers, &["the old ones stay"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_has_ended_is_used_and_told() {
    let papers = Papers::new();
    let house = House::of(papers.plan(), vec![quick()]).await;
    let replica = &house.cluster.replicas[0];
    let days = async || {
        let answer = http1::get(replica.admin().0, "/cluster").await;
        let cluster: serde_json::Value = answer.json();
        cluster["data_certificate"]["days"].as_i64()
    };
    assert_eq!(days().await, Some(364));
    let ended = papers
        .authority
        .issue_for(papers.dir.path(), "port", HOSTS, Duration::ZERO)
        .leaf();
    replica.process().signal(Signal::HUP);
    let told = "the certificate in use is good at another time";
    house.until_log_says(told).await;
    house.until_log_says("it expired on").await;
    assert_eq!(shown(&papers, &house).await, ended.to_vec());
    assert_eq!(days().await, Some(-1));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_prove_who_they_are_where_that_is_required() {
    let papers = Papers::new();
    let clients = Authority::new();
    let ca = papers.dir.path().join("clients.pem");
    clients.write(&ca);
    let plan = papers.plan().set("tls.client_ca", &quoted(&ca));
    let house = House::of(plan, vec![quick()]).await;
    let ask = async |builder: ClientBuilder| {
        let client = builder.build().expect("a client can be built");
        let answer = client
            .post(url(&house))
            .json(&chat("hello", 1))
            .send()
            .await;
        answer.map(|answer| answer.status().as_u16())
    };
    let identity = |authority: &Authority| {
        let pair = authority.issue(papers.dir.path(), "client", &["client.example"]);
        Identity::from_pem(pair.pem().as_bytes()).expect("an identity")
    };
    assert!(ask(papers.client()).await.is_err(), "without a certificate");
    eventually(LIMIT, "the log says why", async || {
        let log = house.cluster.replicas[0].log();
        let says_why = log.contains("certificate of a client was refused client=127.0.0.1 error=");
        says_why.then_some(()).ok_or(log)
    })
    .await;
    let foreign = papers.client().identity(identity(&papers.authority));
    assert!(ask(foreign).await.is_err(), "with one of another authority");
    let known = papers.client().identity(identity(&clients));
    assert_eq!(ask(known).await.expect("answered"), 200);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_stops_is_ended() {
    let papers = Papers::new();
    let plan = papers.plan().set("timeouts.tls_handshake", "\"300ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let mut silent = Connection::open(house.data()).await;
    // The head of a record with a handshake message, and nothing of the message.
    silent.send(&[22, 3, 1, 2, 0]).await.expect("taken");
    assert!(silent.is_closed().await);
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    assert_eq!(metrics.sum("grapevine_tls_handshakes_total", "late"), 1.0);
    house.close().await;
}

#[derive(Debug, Clone, Copy)]
enum Way {
    /// The socket is closed without close_notify.
    Fin,
    /// It is reset.
    Rst,
    /// As TLS specifies: close_notify, then the end of sending. The socket stays open.
    CloseNotify,
    /// close_notify alone: only a reader sees it.
    NotifyAlone,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_over_tls_frees_the_worker() {
    let papers = Papers::new();
    let house = House::of(papers.plan(), vec![quick()]).await;
    let worker = &house.workers[0];
    let body = streamed("silent", 3).to_string();
    let request = request("POST", CHATS, &[], body.as_bytes());
    for extra in [b"".as_slice(), b"\r\n"] {
        for way in [Way::Fin, Way::Rst, Way::CloseNotify, Way::NotifyAlone] {
            if matches!(way, Way::NotifyAlone) && !extra.is_empty() {
                // Bytes before it are not read while the worker is silent.
                continue;
            }
            worker.reset();
            let rule = Rule::next(1, Fault::never_answer());
            worker.add_rule(rule).expect("room for a rule");
            let client = papers.authority.client();
            let mut stream = connect(client, house.data()).await.expect("connected");
            stream.write_all(&request).await.expect("taken");
            // In a record of its own, so that it may stay unread in the socket.
            stream.write_all(extra).await.expect("taken");
            eventually(LIMIT, "the worker has it", async || {
                let begun = worker.stats().in_flight == 1;
                so(begun, || "not yet".to_owned())
            })
            .await;
            let kept: Option<TcpStream> = match way {
                Way::Fin => {
                    // The plain socket, so that TLS sends nothing before it ends.
                    drop(stream.into_inner().0);
                    None
                }
                Way::Rst => {
                    stream
                        .get_ref()
                        .0
                        .set_zero_linger()
                        .expect("an open socket");
                    drop(stream);
                    None
                }
                Way::NotifyAlone => {
                    stream.get_mut().1.send_close_notify();
                    stream.flush().await.expect("an open socket");
                    Some(stream.into_inner().0)
                }
                Way::CloseNotify => {
                    stream.shutdown().await.expect("an open socket");
                    Some(stream.into_inner().0)
                }
            };
            let (_, took) = eventually(LIMIT, "the worker is freed", async || {
                let stats = worker.stats();
                let freed = stats.clients_gone == 1 && stats.in_flight == 0;
                so(freed, || format!("{way:?}, {extra:?}: {stats:?}"))
            })
            .await;
            println!("{way:?} after {extra:?}: closed at the worker after {took:?}");
            drop(kept);
        }
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_over_tls_is_cut() {
    let papers = Papers::new();
    let plan = papers.plan().set("timeouts.write_stall", "\"500ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let reply = grapevine_testbed::fake_worker::Canned {
        status: 200,
        headers: Vec::new(),
        body: Some("0123456789abcdef".repeat(64)),
        repeat: 64 << 10,
        gzip: false,
    };
    house.reply_next(reply);
    let client = papers.authority.client();
    let mut stream = connect(client, house.data()).await.expect("connected");
    let body = chat("much", 1).to_string();
    let request = request("POST", CHATS, &[], body.as_bytes());
    stream.write_all(&request).await.expect("taken");
    eventually(LIMIT, "the worker is freed", async || {
        let stats = house.workers[0].stats();
        let freed = stats.clients_gone == 1 && stats.in_flight == 0;
        so(freed, || format!("{stats:?}"))
    })
    .await;
    // The bytes in the kernel still arrive, and then the connection ends without the rest.
    let mut read = Vec::new();
    let ended = timeout(LIMIT, stream.read_to_end(&mut read)).await;
    ended
        .expect("the connection ends")
        .expect_err("without a close_notify, so it is known to be cut");
    assert!(read.len() < 64 << 20);
    house.close().await;
}

/// A connection on which both sides have chosen HTTP/2, and the client says nothing.
async fn silent_over_http2(papers: &Papers, house: &House) -> TlsStream<TcpStream> {
    let mut client = papers.authority.client();
    client.alpn_protocols = vec![b"h2".to_vec()];
    let stream = connect(client, house.data()).await.expect("connected");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_chose_http2_and_says_nothing_is_ended() {
    let papers = Papers::new();
    let plan = papers.plan().set("timeouts.first_byte", "\"500ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let mut silent = silent_over_http2(&papers, &house).await;
    // Its first flight is not whole: a preface without the frame that must follow, which hyper waits for.
    let mut begun = silent_over_http2(&papers, &house).await;
    begun.write_all(b"PRI * HTTP/2.0\r\n").await.expect("taken");
    begun.flush().await.expect("taken");
    for stream in [&mut silent, &mut begun] {
        // With or without a last word; what counts is the end.
        let mut last = Vec::new();
        let ended = timeout(LIMIT, stream.read_to_end(&mut last)).await;
        let _ = ended.expect("the connection ends");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let reached = metrics.sum("grapevine_limits_reached_total", "\"first_byte\"");
    assert_eq!(reached, 2.0);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_client_of_http2_does_not_hold_up_the_end() {
    let papers = Papers::new();
    let plan = papers.plan();
    let plan = ["timeouts.first_byte", "timeouts.drain"]
        .into_iter()
        .fold(plan, |plan, limit| plan.set(limit, "\"10min\""));
    let mut house = House::of(plan, vec![quick()]).await;
    let _silent = silent_over_http2(&papers, &house).await;
    let replica = &mut house.cluster.replicas[0];
    let told = Instant::now();
    let status = replica.terminate().await;
    println!("ended {:?} after it was told to", told.elapsed());
    assert!(status.success());
    assert!(
        replica
            .last_log()
            .contains("every open request was finished")
    );
}
