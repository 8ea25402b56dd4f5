//! Clients of HTTP/2 that take their answers late or never, on a stream of the test, in virtual time.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use http::{Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::io::duplex;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::stream::{Answer, Streams};
use super::{server, windows};
use crate::config::LimitConfig;
use crate::http::client_body::Http2Body;
use crate::http::progress::Progress;
use crate::listener::channel_body::Channel;
use crate::metrics::refusals::RefusalMetrics;

const STALL: Duration = Duration::from_secs(60);
/// Of virtual time, for what must come.
const LIMIT: Duration = Duration::from_secs(3600);
/// What a client of these tests takes at once of a stream, which is a frame.
const WINDOW: usize = 16 * 1024;

type Made = BoxBody<Bytes, Infallible>;

/// A connection on which each request gets the next of the answers that the test gives.
struct House {
    /// Whether the client does anything at all.
    reads: watch::Sender<bool>,
    requests: SendRequest<Bytes>,
    answers: mpsc::Sender<Made>,
    progress: Progress,
    registry: Registry,
    server: JoinHandle<()>,
}

impl House {
    async fn new() -> Self {
        let (client, socket) = duplex(1 << 20);
        let mut registry = Registry::default();
        let streams = Streams::new(STALL, RefusalMetrics::register(&mut registry));
        let (answers, taken) = mpsc::channel::<Made>(1);
        let taken = Arc::new(Mutex::new(taken));
        let progress = Progress::default();
        let shared = progress.clone();
        let server = tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let is_head = request.method() == Method::HEAD;
                let progress = shared.begin();
                let taken = Arc::clone(&taken);
                let unread = Http2Body::from(request.into_body());
                async move {
                    let _unread = unread;
                    let body = taken.lock().await.recv().await.expect("an answer");
                    Ok::<_, Infallible>(Answer::of(Response::new(body), is_head, progress))
                }
            });
            let server = server(streams, &LimitConfig::default());
            let _ = server.serve_connection(TokioIo::new(socket), service).await;
        });
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW as u32);
        let (requests, connection) = builder.handshake(client).await.expect("HTTP/2");
        let (reads, mut may_read) = watch::channel(true);
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            while may_read.wait_for(|reads| *reads).await.is_ok() {
                tokio::select! {
                    biased;
                    stops = may_read.wait_for(|reads| !reads) => if stops.is_err() {
                        return;
                    },
                    _ = connection.as_mut() => return,
                }
            }
        });
        Self {
            reads,
            requests,
            answers,
            progress,
            registry,
            server,
        }
    }

    /// Asks, and gets this.
    async fn ask(&mut self, answer: Made) -> RecvStream {
        self.ask_by(Method::GET, answer).await.into_body()
    }

    async fn ask_by(&mut self, method: Method, answer: Made) -> Response<RecvStream> {
        self.answers.try_send(answer).expect("the server lives");
        let request = Request::builder().method(method);
        let request = request.uri("http://grapevine.test/").body(());
        let request = request.expect("a request");
        let asked = self.requests.send_request(request, true);
        let answer = asked.expect("a stream").0.await;
        answer.expect("an answer")
    }

    /// Times that a client was cut.
    fn cut(&self) -> usize {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("text");
        let line = "limits_reached_total{limit=\"write_stall\"} ";
        let count = text.lines().find_map(|text| text.strip_prefix(line));
        count.expect("counted").parse().expect("a number")
    }
}

fn whole(bytes: usize) -> Made {
    Full::new(Bytes::from(vec![b'x'; bytes])).boxed()
}

/// An answer of frames to come, and the end that they are sent by.
fn frames() -> (mpsc::Sender<Bytes>, Made) {
    let (sender, receiver) = mpsc::channel(16);
    (sender, BoxBody::new(Channel(receiver)))
}

fn frame(bytes: usize) -> Bytes {
    Bytes::from(vec![b'x'; bytes])
}

/// Reads the next bytes and makes no room for more.
async fn read(answer: &mut RecvStream) -> Result<usize, Option<Reason>> {
    let data = timeout(LIMIT, answer.data()).await;
    match data.expect("something comes, be it the end") {
        None => Ok(0),
        Some(Ok(data)) => Ok(data.len()),
        Some(Err(error)) => Err(error.reason()),
    }
}

/// Returns when the replica holds nothing of this answer any more.
async fn released(sender: &mpsc::Sender<Bytes>) {
    let closed = timeout(LIMIT, sender.closed()).await;
    closed.expect("what a request holds ends with it");
}

/// Takes what was read.
fn take(answer: &mut RecvStream, bytes: usize) {
    let taken = answer.flow_control().release_capacity(bytes);
    taken.expect("as much as there was");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_opens_no_window_is_cut_and_its_connection_goes_on() {
    for is_whole in [true, false] {
        let mut house = House::new().await;
        let (sender, mut body) = frames();
        if is_whole {
            body = whole(4 * WINDOW);
        }
        let mut answer = house.ask(body).await;
        let began = Instant::now();
        for _ in 0..3 {
            // Of the whole answer nobody waits for them.
            let _ = sender.send(frame(WINDOW)).await;
        }
        assert_eq!(read(&mut answer).await, Ok(WINDOW));
        tokio::time::sleep(STALL / 2).await;
        assert!(house.progress.is_busy(), "it is not taken");
        let mut neighbour = house.ask(whole(10)).await;
        assert_eq!(read(&mut neighbour).await, Ok(10));
        assert_eq!(read(&mut answer).await, Err(Some(Reason::CANCEL)));
        assert_eq!(began.elapsed(), STALL, "whole: {is_whole}");
        released(&sender).await;
        assert!(!house.progress.is_busy(), "what it held is free");
        assert_eq!(house.cut(), 1);
        let mut next = house.ask(whole(10)).await;
        assert_eq!(read(&mut next).await, Ok(10));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_gets_all_of_it() {
    const PIECES: usize = 8;
    let mut house = House::new().await;
    for is_whole in [true, false] {
        let (sender, mut body) = frames();
        if is_whole {
            body = whole(PIECES * WINDOW);
        }
        let mut answer = house.ask(body).await;
        for _ in 0..PIECES {
            let _ = sender.send(frame(WINDOW)).await;
        }
        drop(sender);
        let began = Instant::now();
        let mut got = 0;
        while got < PIECES * WINDOW {
            let bytes = read(&mut answer).await.expect("more of it");
            tokio::time::sleep(STALL * 9 / 10).await;
            take(&mut answer, bytes);
            got += bytes;
        }
        assert_eq!(read(&mut answer).await, Ok(0), "that is the end");
        assert!(began.elapsed() > 5 * STALL);
    }
    assert_eq!(house.cut(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_waits_for_its_worker_waits_for_no_client() {
    let mut house = House::new().await;
    let (sender, body) = frames();
    let mut answer = house.ask(body).await;
    for pause in [10 * STALL, STALL / 2, 3 * STALL] {
        tokio::time::sleep(pause).await;
        sender.send(frame(WINDOW)).await.expect("it is wanted");
        assert_eq!(read(&mut answer).await, Ok(WINDOW));
        // The next frame finds no room for a while, so that the timer was armed.
        sender.send(frame(WINDOW)).await.expect("it is wanted");
        tokio::time::sleep(STALL / 2).await;
        take(&mut answer, WINDOW);
        assert_eq!(read(&mut answer).await, Ok(WINDOW));
        take(&mut answer, WINDOW);
    }
    assert_eq!(house.cut(), 0);
    // From when the client's turn comes it has all of its time, and no more.
    tokio::time::sleep(STALL / 3).await;
    sender.send(frame(2 * WINDOW)).await.expect("it is wanted");
    let began = Instant::now();
    let mut got = 0;
    while let Ok(bytes) = read(&mut answer).await {
        got += bytes;
    }
    assert_eq!((got, began.elapsed()), (WINDOW, STALL));
    released(&sender).await;
}

/// A PING would not be answered, and hyper ends all streams of a connection for that.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_nothing_for_a_while_keeps_its_connection() {
    let mut house = House::new().await;
    let (sender, body) = frames();
    let mut answer = house.ask(body).await;
    // From the default of `timeouts.keep_alive` on, after the head of the request.
    tokio::time::sleep(Duration::from_secs(70)).await;
    house.reads.send_replace(false);
    sender.send(frame(10)).await.expect("it is wanted");
    tokio::time::sleep(STALL * 9 / 10).await;
    house.reads.send_replace(true);
    assert_eq!(read(&mut answer).await, Ok(10));
    sender.send(frame(20)).await.expect("it is wanted");
    assert_eq!(read(&mut answer).await, Ok(20));
    drop(sender);
    assert_eq!(read(&mut answer).await, Ok(0), "that is the end");
    let mut next = house.ask(whole(30)).await;
    assert_eq!(read(&mut next).await, Ok(30));
    assert_eq!(house.cut(), 0);
}

/// As at the end of a replica, which waits for no client that takes nothing.
#[tokio::test(start_paused = true)]
async fn the_end_of_the_connection_ends_a_stream_that_is_not_taken() {
    let mut house = House::new().await;
    let (sender, body) = frames();
    let mut answer = house.ask(body).await;
    for _ in 0..3 {
        sender.send(frame(WINDOW)).await.expect("it is wanted");
    }
    assert_eq!(read(&mut answer).await, Ok(WINDOW));
    let began = Instant::now();
    house.server.abort();
    released(&sender).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(!house.progress.is_busy());
}

#[tokio::test(start_paused = true)]
async fn the_head_alone_is_answered_without_a_body() {
    let mut house = House::new().await;
    let answer = house.ask_by(Method::HEAD, whole(10)).await;
    assert_eq!(answer.headers()["content-length"], "10");
    assert!(answer.body().is_end_stream());
    // An answer on its way is taken to its end, which is when what it holds is released as after a success.
    let (sender, body) = frames();
    sender.send(frame(10)).await.expect("room");
    let mut answer = house.ask_by(Method::HEAD, body).await;
    assert!(!answer.headers().contains_key("content-length"));
    drop(sender);
    assert_eq!(read(answer.body_mut()).await, Ok(0));
    assert!(!house.progress.is_busy());
}

/// A client such as httpx looks at its answer when it has sent all, and a reset before that makes it drop the answer.
#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_reads_is_taken_while_it_comes() {
    let second = Duration::from_secs(1);
    for (pieces, pause, is_taken, lasts) in [
        (20, second, true, 20 * second),
        // Nothing more comes.
        (1, 60 * second, false, 5 * second),
        // A drip does not hold its stream for ever.
        (60, second, false, 30 * second),
    ] {
        let mut house = House::new().await;
        house.answers.try_send(whole(10)).expect("room");
        let request = Request::post("http://grapevine.test/").body(());
        let asked = house
            .requests
            .send_request(request.expect("a request"), false);
        let (answer, mut body) = asked.expect("a stream");
        let mut answer = answer.await.expect("an answer").into_body();
        assert_eq!(read(&mut answer).await, Ok(10));
        let began = Instant::now();
        let mut reset = None;
        for left in (0..pieces).rev() {
            body.send_data(frame(1), false).expect("it is open");
            let heard = timeout(pause, poll_fn(|cx| body.poll_reset(cx))).await;
            reset = heard.ok();
            if reset.is_some() {
                break;
            }
            if left == 0 {
                body.send_data(Bytes::new(), true).expect("the end");
            }
        }
        assert_eq!(reset.is_none(), is_taken, "{pieces} pieces");
        assert_eq!(began.elapsed().as_secs(), lasts.as_secs());
    }
}

#[test]
fn a_connection_has_room_for_all_its_streams() {
    for (streams, expected) in [(1, 256 << 10), (256, 256 << 10), (65_536, 32_767)] {
        let (stream, connection) = windows(streams);
        assert_eq!(stream, expected);
        assert_eq!(
            u64::from(connection),
            u64::from(stream) * u64::from(streams)
        );
        assert!(connection < 1 << 31, "RFC 9113 allows no more");
    }
}
