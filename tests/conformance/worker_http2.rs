//! Workers that are asked in HTTP/2 (`workers.http2`): a server of hyper's in front of a fake worker, and workers that
//! say what a test wrote, frame by frame.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt, TryStreamExt};
use grapevine_testbed::fake_worker::Rule;
use grapevine_tests::chat::{self, Ending, MODEL, Stream, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Connection, request};
use grapevine_tests::tls::{Authority, Front, Pair};
use grapevine_tests::wait::{LIMIT, eventually};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep};
use tokio_rustls::TlsAcceptor;

use crate::errors::assert_error;
use crate::h2_floods::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS,
    frame,
};
use crate::house::{House, quick};
use crate::odd_workers::raw_worker;
use crate::slow_reader::long_answer;

const CHATS: &str = "/v1/chat/completions";
const REFUSED_STREAM: u32 = 7;
const INTERNAL_ERROR: u32 = 2;
const NO_ERROR: u32 = 0;

/// Target and headers of a request.
type Asked = (String, Vec<(String, String)>);

/// What a front has seen in HTTP/2.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    requests: Mutex<Vec<Asked>>,
}

/// HTTP/2 in front of a fake worker; what is not in HTTP/2 is passed on as it is. It serves while it lives.
struct Http2Front {
    address: SocketAddr,
    seen: Arc<Seen>,
    _serving: JoinSet<()>,
}

impl Http2Front {
    async fn start(to: SocketAddr, tls: Option<&Pair>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let acceptor = tls.map(|pair| {
            let config = pair.server(None, &["h2", "http/1.1"]);
            TlsAcceptor::from(Arc::new(config))
        });
        let seen = Arc::new(Seen::default());
        let (shared, mut serving) = (Arc::clone(&seen), JoinSet::new());
        serving.spawn(async move {
            let client = reqwest_client();
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, client) = (Arc::clone(&shared), client.clone());
                let acceptor = acceptor.clone();
                open.spawn(async move {
                    let Some(acceptor) = acceptor else {
                        let is_http2 = begins_http2(&stream).await;
                        return serve(stream, is_http2, to, &client, &seen).await;
                    };
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                        serve(stream, is_http2, to, &client, &seen).await;
                    }
                });
            }
        });
        Self {
            address,
            seen,
            _serving: serving,
        }
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}", self.address.port())
    }

    fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::Relaxed)
    }

    fn requests(&self) -> Vec<Asked> {
        self.seen.requests.lock().expect("not poisoned").clone()
    }
}

fn reqwest_client() -> reqwest::Client {
    // A second installation in this process changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    client.build().expect("a client can be built")
}

async fn begins_http2(stream: &TcpStream) -> bool {
    let mut first = [0; 3];
    loop {
        match stream.peek(&mut first).await {
            Ok(3) => return first == PREFACE[..3],
            Ok(1..) => {}
            _ => return false,
        }
    }
}

async fn serve<S>(
    mut stream: S,
    is_http2: bool,
    to: SocketAddr,
    client: &reqwest::Client,
    seen: &Arc<Seen>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if !is_http2 {
        let mut outside = TcpStream::connect(to).await.expect("the worker is there");
        // Either side may leave.
        let _ = copy_bidirectional(&mut stream, &mut outside).await;
        return;
    }
    seen.connections.fetch_add(1, Ordering::Relaxed);
    let service = service_fn(|request: Request<Incoming>| {
        let (client, seen) = (client.clone(), Arc::clone(seen));
        async move { Ok::<_, Infallible>(pass_on(request, to, &client, &seen).await) }
    });
    let serving = http2::Builder::new(TokioExecutor::new());
    // The replica ends its connections when it is done with them.
    let _ = serving
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn pass_on(
    request: Request<Incoming>,
    to: SocketAddr,
    client: &reqwest::Client,
    seen: &Seen,
) -> Response<impl hyper::body::Body<Data = bytes::Bytes, Error = reqwest::Error> + use<>> {
    let (head, body) = request.into_parts();
    let headers = head.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value)
    });
    let request = (head.uri.to_string(), headers.collect());
    seen.requests.lock().expect("not poisoned").push(request);
    let path = head.uri.path_and_query().expect("a path").as_str();
    let body = body.collect().await.expect("a whole body").to_bytes();
    let answer = client.request(head.method, format!("http://{to}{path}"));
    let answer = answer.headers(head.headers).body(body).send().await;
    let answer = answer.expect("the fake worker answers");
    let mut response = Response::builder().status(answer.status());
    for (name, value) in answer.headers() {
        if !["connection", "transfer-encoding"].contains(&name.as_str()) {
            response = response.header(name, value);
        }
    }
    let frames = answer.bytes_stream().map_ok(Frame::data);
    response.body(StreamBody::new(frames)).expect("a response")
}

fn asking(http2: &str) -> Plan {
    Plan::default().set("workers.http2", &format!("{http2:?}"))
}

fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

/// A replica, one fake worker, and HTTP/2 in front of it, with TLS or without.
async fn fronted(plan: Plan, dir: &Path, with_tls: bool) -> (House, Http2Front) {
    let fake = chat::worker(quick()).await;
    let authority = Authority::new();
    let pair = authority.issue(dir, "worker", &["localhost"]);
    let ca = dir.join("ca.pem");
    authority.write(&ca);
    let front = Http2Front::start(fake.addr(), with_tls.then_some(&pair)).await;
    let url = front.url(if with_tls { "https" } else { "http" });
    let plan = plan.set("workers.ca", &quoted(&ca)).worker(&url, &[MODEL]);
    let house = House::with(plan, vec![fake]).await;
    until_healthy(&house, 1).await;
    (house, front)
}

async fn until_healthy(house: &House, count: usize) {
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "workers are healthy", async || {
        let known = admin.workers().await;
        let healthy = known.iter().filter(|worker| worker.health == "healthy");
        (healthy.count() == count)
            .then_some(())
            .ok_or_else(|| format!("{known:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_are_whole_and_connections_are_used_again() {
    const REQUESTS: usize = 20;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for (http2, with_tls) in [("on", false), ("on", true), ("tls", true)] {
        let alias = format!("[{{ name = \"alias\", targets = [{MODEL:?}] }}]");
        let plan = asking(http2).set("model", &alias);
        let (house, front) = fronted(plan, dir.path(), with_tls).await;
        for number in 0..REQUESTS {
            let answer = http1::post(house.data(), CHATS, &chat("plain", 3)).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
            // More than a window on its way to the worker, in pieces: the name stands behind it.
            let mut long = streamed(&format!("{number} {}", "x".repeat(200 << 10)), 5);
            long["model"] = "alias".into();
            let outcome = chat::stream(house.data(), &long).await;
            assert_eq!(outcome.ending, Ending::Done, "{http2}: {outcome:?}");
            assert_eq!(outcome.events.len(), 7, "role, 5 tokens, [DONE]");
        }
        let requests = front.requests();
        assert_eq!(requests.len(), 2 * REQUESTS, "{http2}: all in HTTP/2");
        assert!(front.connections() < REQUESTS, "{http2}: not used again");
        let target = front.url(if with_tls { "https" } else { "http" }) + CHATS;
        for (seen, headers) in requests {
            assert_eq!(seen, target);
            let of_one_hop = ["host", "connection", "transfer-encoding", "te", "upgrade"];
            let mut names = headers.iter().map(|(name, _)| name.as_str());
            assert!(names.all(|name| !of_one_hop.contains(&name)), "{headers:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_is_gone_from_the_worker() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for with_tls in [false, true] {
        let (house, _front) = fronted(asking("on"), dir.path(), with_tls).await;
        let stays = Stream::open(house.data(), &streamed("stays", 2_000)).await;
        for (gone, by_reset) in [(1, false), (2, true)] {
            let leaves = Stream::open(house.data(), &streamed("leaves", 100_000)).await;
            let mut leaves = leaves.expect("accepted");
            leaves.read_events(3).await.expect("it has begun");
            let left = Instant::now();
            leaves.leave(by_reset);
            eventually(LIMIT, "the worker sees it", async || {
                let seen = house.workers[0].stats().clients_gone;
                (seen == gone)
                    .then_some(())
                    .ok_or_else(|| format!("{seen} gone"))
            })
            .await;
            println!("left, and gone at the worker after {:?}", left.elapsed());
        }
        // It is on a connection of its own.
        let stays = stays.expect("accepted").finish().await;
        assert_eq!(stays.ending, Ending::Done);
    }
}

/// Clients that do not read: no more of an answer is held than over HTTP/1.1.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_hold_back_their_worker() {
    const CLIENTS: u64 = 20;
    /// The answer is 16 times as much.
    const KIB_EACH_MAX: u64 = 1 << 10;
    const WATCHED: Duration = Duration::from_secs(1);
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (house, front) = fronted(asking("on"), dir.path(), false).await;
    http1::post(house.data(), CHATS, &chat("warm", 1)).await;
    let process = house.cluster.replicas[0].process();
    let before = process.resident_kib();
    house.workers[0]
        .add_rule(Rule::always(long_answer()))
        .expect("room for a rule");
    let body = chat("a very long answer", 1).to_string();
    let bytes = request("POST", CHATS, &[], body.as_bytes());
    let mut stalled = Vec::new();
    for _ in 0..CLIENTS {
        let mut connection = Connection::open(house.data()).await;
        connection.send(&bytes).await.expect("taken");
        connection.head().await.expect("the answer has begun");
        stalled.push(connection);
    }
    let (watched, mut peak) = (Instant::now(), 0);
    while watched.elapsed() < WATCHED {
        peak = peak.max(process.resident_kib().saturating_sub(before));
        assert!(peak <= KIB_EACH_MAX * CLIENTS, "{peak} KiB");
        let open = house.workers[0].stats().in_flight;
        assert_eq!(open, CLIENTS, "a worker must wait for its client");
        sleep(Duration::from_millis(20)).await;
    }
    println!(
        "{} KiB for each of {CLIENTS} stalled clients",
        peak / CLIENTS
    );
    let mut reader = stalled.swap_remove(0);
    let rest = reader.rest().await.expect("the rest comes");
    assert_eq!(rest.len(), 16 << 20);
    assert!(front.requests().len() as u64 > CLIENTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_choose_http2_is_asked_in_http1() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let authority = Authority::new();
    let pair = authority.issue(dir.path(), "worker", &["localhost"]);
    let ca = dir.path().join("ca.pem");
    authority.write(&ca);
    let fake = chat::worker(quick()).await;
    let front = Front::start(&pair, None, fake.addr()).await;
    for (http2, url) in [
        ("on", front.url("localhost")),
        ("tls", front.url("localhost")),
        ("tls", fake.url()),
    ] {
        let plan = asking(http2)
            .set("workers.ca", &quoted(&ca))
            .worker(&url, &[MODEL]);
        let house = House::with(plan, Vec::new()).await;
        until_healthy(&house, 1).await;
        for _ in 0..3 {
            let answer = http1::post(house.data(), CHATS, &chat("hello", 2)).await;
            assert_eq!(answer.head.status, 200, "{http2} {url}: {}", answer.text());
        }
    }
}

/// Whose SETTINGS do not come is a worker that could not be reached, soon and with a line that says why.
#[tokio::test(flavor = "multi_thread")]
async fn who_must_speak_http2_and_does_not_is_named_in_the_log() {
    let fake = chat::worker(quick()).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent_url = format!("http://{}", silent.local_addr().expect("bound"));
    let refuses = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n";
    let (refusing_url, _refusing) = raw_worker(refuses).await;
    for (url, why) in [
        (silent_url, "timed out"),
        (refusing_url, "frame with invalid size"),
        // A reset, or an end, whichever comes first.
        (fake.url(), "error="),
    ] {
        let plan = asking("on")
            .set("timeouts.tls_handshake", "\"300ms\"")
            .set("health.interval", "\"1h\"")
            .worker(&url, &[MODEL]);
        let house = House::with(plan, Vec::new()).await;
        let begun = Instant::now();
        let answer = http1::post(house.data(), CHATS, &chat("hello", 1)).await;
        assert_error(&answer, 503, "no_worker_available");
        println!("{why}: refused after {:?}", begun.elapsed());
        assert!(begun.elapsed() < LIMIT / 2, "{why}: it hung");
        house.until_log_says("did not answer in it").await;
        let log = house.cluster.replicas[0].log();
        let mut lines = log.lines().filter(|line| line.contains("(workers.http2)"));
        let line = lines.next().expect("it says so");
        assert!(line.contains(&url) && line.contains(why), "{line}");
        assert_eq!(lines.next(), None, "once");
    }
    assert_eq!(fake.stats().requests, 0);
}

/// Sessions change protocols, which HTTP/2 does not.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_asked_for_in_http1() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    for with_tls in [false, true] {
        let (house, front) = fronted(asking("on"), dir.path(), with_tls).await;
        // Leaves a connection at rest that could be taken.
        let answer = http1::post(house.data(), CHATS, &chat("hello", 1)).await;
        assert_eq!(answer.head.status, 200, "{}", answer.text());
        let url = format!("ws://{}/v1/realtime?model={MODEL}", house.data());
        let stream = TcpStream::connect(house.data()).await.expect("connected");
        let opened = tokio_tungstenite::client_async(url, stream).await;
        let (mut socket, _) = opened.expect("a session");
        let greeting = socket.next().await.expect("no end").expect("a message");
        assert!(
            greeting.to_string().contains("session.created"),
            "{greeting}"
        );
        assert_eq!(front.requests().len(), 1, "the chat alone was in HTTP/2");
    }
}

/// What a scripted worker does with a request.
#[derive(Clone, Copy)]
enum Say {
    /// Answers with this JSON.
    Answer(&'static str),
    /// These frames, made for the stream's number; the connection stays.
    Frames(fn(u32) -> Vec<u8>),
    /// The same, and ends the connection.
    Last(fn(u32) -> Vec<u8>),
}

/// A worker that says what is written, one entry for each request, and the last for all that follow.
struct Scripted {
    url: String,
    /// Number of the connection and of the stream of each request.
    asked: Arc<Mutex<Vec<(usize, u32)>>>,
    _serving: JoinSet<()>,
}

impl Scripted {
    async fn start(script: &'static [Say]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (shared, mut serving) = (Arc::clone(&asked), JoinSet::new());
        serving.spawn(async move {
            let (mut open, mut connections) = (JoinSet::new(), 0);
            while let Ok((mut stream, _)) = listener.accept().await {
                if !begins_http2(&stream).await {
                    // A check, or a question for its models.
                    open.spawn(async move {
                        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                        let mut read = vec![0; 16 << 10];
                        while let Ok(1..) = stream.read(&mut read).await {
                            if stream.write_all(ok).await.is_err() {
                                break;
                            }
                        }
                    });
                    continue;
                }
                let asked = Arc::clone(&shared);
                open.spawn(async move {
                    // The replica may leave at any time.
                    let _ = speak(stream, script, connections, &asked).await;
                });
                connections += 1;
            }
        });
        Self {
            url,
            asked,
            _serving: serving,
        }
    }

    fn asked(&self) -> Vec<(usize, u32)> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

async fn speak(
    mut stream: TcpStream,
    script: &[Say],
    connection: usize,
    asked: &Mutex<Vec<(usize, u32)>>,
) -> std::io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, number @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await?;
        if kind == SETTINGS && flags == 0 {
            for setting in payload.chunks(6) {
                let value = u32::from_be_bytes(setting[2..].try_into().expect("four bytes"));
                // SETTINGS_INITIAL_WINDOW_SIZE, and SETTINGS_MAX_HEADER_LIST_SIZE.
                let is_bounded = ![4, 6].contains(&setting[1]) || value <= 64 << 10;
                assert!(is_bounded, "{setting:?}");
            }
            stream.write_all(&frame(SETTINGS, 1, 0, &[])).await?;
        }
        let is_whole = [HEADERS, DATA].contains(&kind) && flags & END_STREAM != 0;
        if !is_whole {
            continue;
        }
        let number = u32::from_be_bytes(number);
        let order = {
            let mut asked = asked.lock().expect("not poisoned");
            asked.push((connection, number));
            asked.len() - 1
        };
        match script[order.min(script.len() - 1)] {
            Say::Answer(json) => {
                let head = frame(
                    HEADERS,
                    END_HEADERS,
                    number,
                    &head_block("application/json"),
                );
                let body = frame(DATA, END_STREAM, number, json.as_bytes());
                stream.write_all(&[head, body].concat()).await?;
            }
            Say::Frames(frames) => stream.write_all(&frames(number)).await?,
            Say::Last(frames) => {
                stream.write_all(&frames(number)).await?;
                return stream.shutdown().await;
            }
        }
    }
}

/// `:status: 200` and `content-type` (RFC 7541: static names, literal values).
fn head_block(kind: &str) -> Vec<u8> {
    let mut block = vec![0x88, 0x0f, 0x10];
    block.push(u8::try_from(kind.len()).expect("short"));
    block.extend(kind.as_bytes());
    block
}

fn with_length(length: &str) -> Vec<u8> {
    let mut block = head_block("application/json");
    block.extend([0x0f, 0x0d, u8::try_from(length.len()).expect("short")]);
    block.extend(length.as_bytes());
    block
}

fn goaway(last: u32) -> Vec<u8> {
    let payload = [last.to_be_bytes(), NO_ERROR.to_be_bytes()].concat();
    frame(GOAWAY, 0, 0, &payload)
}

fn reset(stream: u32, reason: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &reason.to_be_bytes())
}

/// The head of a stream of events and its first one.
fn first_event(stream: u32) -> Vec<u8> {
    let event = br#"data: {"choices":[{"delta":{"content":"one"}}]}"#;
    let event = [&event[..], b"\n\n"].concat();
    let head = head_block("text/event-stream");
    [
        frame(HEADERS, END_HEADERS, stream, &head),
        frame(DATA, 0, stream, &event),
    ]
    .concat()
}

/// Workers of these scripts, each the only one of a model of its own, and a replica that asks each of them once a
/// request.
async fn scripted(scripts: &[&'static [Say]]) -> (House, Vec<Scripted>) {
    let mut plan = asking("on")
        .set("health.interval", "\"1h\"")
        .set("breaker.enabled", "false");
    let mut workers = Vec::new();
    for (number, script) in scripts.iter().enumerate() {
        let worker = Scripted::start(script).await;
        plan = plan.worker(&worker.url, &[&format!("model {number}")]);
        workers.push(worker);
    }
    (House::with(plan, Vec::new()).await, workers)
}

fn of_model(number: usize, mut body: serde_json::Value) -> serde_json::Value {
    body["model"] = format!("model {number}").into();
    body
}

/// What a worker says that it has not looked at is asked again, on another connection, and seen once.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_not_looked_at_is_sent_again() {
    const GOES: &[Say] = &[
        Say::Answer("{}"),
        Say::Last(|stream| goaway(stream - 2)),
        Say::Answer("{\"again\":1}"),
    ];
    const REFUSES: &[Say] = &[
        Say::Answer("{}"),
        Say::Frames(|stream| reset(stream, REFUSED_STREAM)),
        Say::Answer("{\"again\":1}"),
    ];
    // It goes after its answer, so nothing is sent on that connection any more.
    const LEAVES: &[Say] = &[
        Say::Last(|stream| {
            let head = frame(
                HEADERS,
                END_HEADERS,
                stream,
                &head_block("application/json"),
            );
            let body = frame(DATA, END_STREAM, stream, b"{}");
            [goaway(stream), head, body].concat()
        }),
        Say::Answer("{\"again\":1}"),
    ];
    let (house, workers) = scripted(&[GOES, REFUSES, LEAVES]).await;
    let asked = [
        &[(0, 1), (0, 3), (1, 1)][..],
        &[(0, 1), (0, 3), (1, 1)],
        &[(0, 1), (1, 1)],
    ];
    for (number, expected) in asked.into_iter().enumerate() {
        for text in ["{}", "{\"again\":1}"] {
            let body = of_model(number, chat("hello", 1));
            let answer = http1::post(house.data(), CHATS, &body).await;
            assert_eq!(
                (answer.head.status, &*answer.text()),
                (200, text),
                "{number}"
            );
        }
        assert_eq!(workers[number].asked(), expected, "{number}");
    }
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let answered = metrics.sum("grapevine_attempts_total", "result=\"answered\"");
    assert_eq!(answered, 6.0, "each attempt was answered");
}

/// The same where the worker says so of the first request of a connection: another worker gets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_goes_at_once_is_left_for_another() {
    for script in [
        &[Say::Last(|_| goaway(0))][..],
        &[Say::Frames(|stream| reset(stream, REFUSED_STREAM))],
    ] {
        let script: &'static [Say] = script;
        let goes = Scripted::start(script).await;
        let fake = chat::worker(quick()).await;
        let front = Http2Front::start(fake.addr(), None).await;
        let plan = asking("on")
            .set("health.interval", "\"1h\"")
            .set("cluster.policy", "\"round_robin\"")
            .worker(&goes.url, &[MODEL])
            .worker(&front.url("http"), &[MODEL]);
        let house = House::with(plan, vec![fake]).await;
        until_healthy(&house, 2).await;
        for _ in 0..4 {
            let answer = http1::post(house.data(), CHATS, &chat("hello", 1)).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
        }
        assert_eq!(goes.asked().len(), 1, "then it is left alone");
        assert_eq!(front.requests().len(), 4);
    }
}

/// A stream that is reset has broken off, also where the reset claims that nothing is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_answer_is_a_broken_one() {
    const SCRIPTS: &[&[Say]] = &[
        &[Say::Frames(|stream| {
            [first_event(stream), reset(stream, INTERNAL_ERROR)].concat()
        })],
        &[Say::Frames(|stream| {
            [first_event(stream), reset(stream, NO_ERROR)].concat()
        })],
        &[Say::Last(|stream| {
            [first_event(stream), goaway(0)].concat()
        })],
        &[Say::Last(first_event)],
    ];
    let (house, workers) = scripted(SCRIPTS).await;
    for (number, worker) in workers.iter().enumerate() {
        let outcome = chat::stream(house.data(), &of_model(number, streamed("cut", 9))).await;
        assert!(
            matches!(outcome.ending, Ending::ErrorEvent(_)),
            "{number}: {outcome:?}"
        );
        assert!(outcome.had_begun(), "{number}: {outcome:?}");
        assert_eq!(
            worker.asked().len(),
            1,
            "{number}: nothing is tried twice then"
        );
    }
}

/// A window full of small events, as they lie behind a client or a replica that was busy for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_small_events_passes() {
    const EVENTS: usize = 1_000;
    const SCRIPT: &[Say] = &[Say::Frames(|stream| {
        let event = frame(DATA, 0, stream, b"data: {\"choices\":[]}\n\n");
        let done = frame(DATA, END_STREAM, stream, b"data: [DONE]\n\n");
        [first_event(stream), event.repeat(EVENTS), done].concat()
    })];
    let (house, workers) = scripted(&[SCRIPT]).await;
    for _ in 0..3 {
        let outcome = chat::stream(house.data(), &of_model(0, streamed("many", 9))).await;
        assert_eq!(outcome.ending, Ending::Done, "{:?}", outcome.events.len());
        assert_eq!(outcome.events.len(), 1 + EVENTS + 1);
    }
    assert_eq!(workers[0].asked(), [(0, 1), (0, 3), (0, 5)]);
}

/// What is no answer that HTTP/2 knows, or none to its end.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_is_a_502() {
    const SCRIPTS: &[&[Say]] = &[
        // A head of 90 KiB.
        &[Say::Frames(|stream| {
            // Of 10,127 bytes: 127, and 10,000 in groups of seven bits.
            let line = |number: u8| {
                let begun = vec![0, 3, b'x', b'-', b'a' + number, 0x7f, 0x90, 0x4e];
                [begun, vec![b'v'; 10_127]].concat()
            };
            let mut bytes = frame(HEADERS, 0, stream, &head_block("application/json"));
            for number in 0..9 {
                bytes.extend(frame(CONTINUATION, 0, stream, &line(number)));
            }
            bytes.extend(frame(CONTINUATION, END_HEADERS, stream, &[]));
            bytes.extend(frame(DATA, END_STREAM, stream, b"{}"));
            bytes
        })],
        // A head of 200 lines.
        &[Say::Frames(|stream| {
            let mut block = head_block("application/json");
            for number in 0..200_u8 {
                block.extend([
                    0,
                    4,
                    b'x',
                    b'-',
                    b'a' + number / 20,
                    b'a' + number % 20,
                    1,
                    b'v',
                ]);
            }
            let head = frame(HEADERS, END_HEADERS, stream, &block);
            [head, frame(DATA, END_STREAM, stream, b"{}")].concat()
        })],
        // Early hints without an end.
        &[Say::Frames(|stream| {
            let hint = frame(HEADERS, END_HEADERS, stream, &[8, 3, b'1', b'0', b'3']);
            hint.repeat(100_000)
        })],
        // Less than its head says, and more.
        &[Say::Frames(|stream| {
            let head = frame(HEADERS, END_HEADERS, stream, &with_length("9"));
            [head, frame(DATA, END_STREAM, stream, b"wrong")].concat()
        })],
        &[Say::Frames(|stream| {
            let head = frame(HEADERS, END_HEADERS, stream, &with_length("3"));
            [head, frame(DATA, END_STREAM, stream, b"wrong")].concat()
        })],
        // Two lengths.
        &[Say::Frames(|stream| {
            let block = [with_length("5"), vec![0x0f, 0x0d, 1, b'6']].concat();
            let head = frame(HEADERS, END_HEADERS, stream, &block);
            [head, frame(DATA, END_STREAM, stream, b"wrong")].concat()
        })],
        // Headers of one hop.
        &[Say::Frames(|stream| {
            let mut block = head_block("application/json");
            block.extend([0x0f, 0x2a, 7]);
            block.extend(b"chunked");
            let head = frame(HEADERS, END_HEADERS, stream, &block);
            [head, frame(DATA, END_STREAM, stream, b"wrong")].concat()
        })],
        // Reset before its head, and in the middle of what its length says.
        &[Say::Frames(|stream| reset(stream, INTERNAL_ERROR))],
        &[Say::Frames(|stream| {
            let head = frame(HEADERS, END_HEADERS, stream, &with_length("9"));
            [
                head,
                frame(DATA, 0, stream, b"wrong"),
                reset(stream, NO_ERROR),
            ]
            .concat()
        })],
    ];
    let (house, workers) = scripted(SCRIPTS).await;
    for (number, worker) in workers.iter().enumerate() {
        let answer = http1::post(house.data(), CHATS, &of_model(number, chat("well?", 1))).await;
        println!("{number}: {}", answer.text());
        assert_error(&answer, 502, "upstream_failed");
        assert!(!answer.text().contains("wrong"), "{number}");
        assert_eq!(worker.asked().len(), 1, "{number}");
    }
}
