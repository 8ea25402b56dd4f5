//! The server on a stream of the test, in virtual time.

use std::convert::Infallible;
use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderValue, header};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;
use crate::listener::channel_body::Channel;
use crate::listener::framing::HeadLimits;

pub(super) const LIMITS: HeadLimits = HeadLimits {
    bytes: 1024,
    lines: 16,
};
pub(super) const WAITS: Waits = Waits {
    header: Duration::from_secs(15),
    keep_alive: Duration::from_secs(75),
};
/// Within this a connection notices what it was told.
pub(super) const LOOK: Duration = Duration::from_millis(5);
pub(super) const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

pub(super) type Answer = Response<BoxBody<Bytes, Infallible>>;

pub(super) fn text(body: impl Into<Bytes>) -> Answer {
    Response::new(Full::new(body.into()).boxed())
}

/// Answers with what came: method, target and body.
pub(super) async fn echo(request: Request<ClientBody>) -> Result<Answer, ClientLeft> {
    let what = format!("{} {} ", request.method(), request.uri());
    match request.into_body().collect().await {
        Ok(body) => Ok(text([what.as_bytes(), &body.to_bytes()].concat())),
        Err(_) => Ok(text("broken")),
    }
}

/// Serves one connection of the test.
pub(super) fn served<F>(
    service: impl Fn(Request<ClientBody>) -> F + Send + 'static,
) -> (
    DuplexStream,
    Shared<DuplexStream>,
    tokio::task::JoinHandle<Result<bool, String>>,
)
where
    F: Future<Output = Result<Answer, ClientLeft>> + Send + 'static,
{
    let (client, server) = duplex(4096);
    let wire = Wire::shared(server, LIMITS);
    let own = Arc::clone(&wire);
    let task = tokio::spawn(async move {
        let refusals = RefusalMetrics::register(&mut Registry::default());
        let mut serving = std::pin::pin!(serve(&own, WAITS, &refusals, service));
        // Whoever tells a connection something polls it behind that.
        let mut looks = tokio::time::interval(LOOK);
        let ended = loop {
            tokio::select! {
                ended = &mut serving => break ended,
                _ = looks.tick() => {}
            }
        };
        ended
            .map(|ended| matches!(ended, Ended::Switched(_)))
            .map_err(|error| error.to_string())
    });
    (client, wire, task)
}

/// All that a client hears that sends these pieces and then waits for the end; without dates.
async fn heard<F>(
    pieces: &[&[u8]],
    service: impl Fn(Request<ClientBody>) -> F + Send + 'static,
) -> String
where
    F: Future<Output = Result<Answer, ClientLeft>> + Send + 'static,
{
    let (client, wire, task) = served(service);
    drop(wire);
    let (mut from, mut to) = tokio::io::split(client);
    let writing = async {
        for piece in pieces {
            // An early end is the server's right.
            let _ = to.write_all(piece).await;
            let _ = to.flush().await;
            yield_now().await;
        }
    };
    let mut bytes = Vec::new();
    let reading = from.read_to_end(&mut bytes);
    let (_, read, ended) = tokio::join!(writing, reading, async {
        let ended = task.await;
        ended.expect("no panic")
    });
    read.expect("a duplex stream is read to its end");
    drop(ended);
    let text = String::from_utf8(bytes).expect("answers are text");
    let mut lines: Vec<&str> = text.split_inclusive("\r\n").collect();
    lines.retain(|line| !line.starts_with("date: "));
    lines.concat()
}

#[tokio::test(start_paused = true)]
async fn requests_behind_each_other_are_answered_in_their_order() {
    let all = "POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc\
        POST /b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nde\r\n1;x=y\r\nf\r\n0\r\nt: 1\r\n\r\n\
        \r\nHEAD /c HTTP/1.1\r\nhost: a\r\n\r\n\
        GET /d HTTP/1.1\r\nhost: a\r\nconnection: Close\r\n\r\nGET /e HTTP/1.1\r\nhost: a\r\n\r\n";
    let expected = "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nPOST /a abc\
        HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nPOST /b def\
        HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n\
        HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\nGET /d ";
    assert_eq!(heard(&[all.as_bytes()], echo).await, expected);
    let bytes: Vec<&[u8]> = all.as_bytes().chunks(1).collect();
    assert_eq!(heard(&bytes, echo).await, expected);
}

/// Whoever reads a body has a turn for each piece of it.
#[tokio::test(start_paused = true)]
async fn short_chunks_that_come_together_are_one_piece() {
    let pieces = async |request: Request<ClientBody>| {
        let (mut lengths, mut body) = (Vec::new(), request.into_body());
        while let Some(Ok(frame)) = body.frame().await {
            lengths.push(frame.into_data().expect("data").len().to_string());
        }
        Ok(text(lengths.join(" ")))
    };
    let head =
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let long = format!("578\r\n{}\r\n", "x".repeat(0x578));
    for (chunks, expected) in [
        ("1\r\na\r\n".repeat(100), "100"),
        ("1\r\na\r\n".repeat(3) + &long, "1403"),
        (long.clone() + "1\r\na\r\n", "1400 1"),
        (String::new(), ""),
    ] {
        let all = format!("{head}{chunks}0\r\n\r\n");
        let answer = heard(&[all.as_bytes()], pieces).await;
        assert!(
            answer.ends_with(&format!("\r\n\r\n{expected}")),
            "{expected}: {answer}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_client_is_answered_in_its_version() {
    let once = heard(&[b"GET / HTTP/1.0\r\n\r\n"], echo).await;
    assert_eq!(once, "HTTP/1.0 200 OK\r\ncontent-length: 6\r\n\r\nGET / ");
    let kept = b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n";
    let kept = heard(&[kept], echo).await;
    assert!(kept.contains("\r\nconnection: keep-alive\r\n"), "{kept}");
    let streamed = |_| async { Ok(Response::new(stream(["a", "b"]))) };
    let streamed = heard(&[b"GET / HTTP/1.0\r\n\r\n"], streamed).await;
    assert_eq!(streamed, "HTTP/1.0 200 OK\r\n\r\nab");
}

fn stream<const N: usize>(parts: [&'static str; N]) -> BoxBody<Bytes, Infallible> {
    let (sender, receiver) = mpsc::channel(N);
    for part in parts {
        let sent = sender.try_send(Bytes::from_static(part.as_bytes()));
        sent.expect("there is room for all");
    }
    BoxBody::new(Channel(receiver))
}

#[tokio::test(start_paused = true)]
async fn a_body_of_unknown_length_goes_out_in_chunks() {
    let service = |_| async { Ok(Response::new(stream(["hello", "", "!"]))) };
    let heard = heard(&[GET.as_bytes()], service).await;
    let expected =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n";
    assert_eq!(heard, expected);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_no_body_has_none() {
    for (method, status, length) in [
        ("GET", 204, ""),
        ("GET", 304, ""),
        ("HEAD", 200, "content-length: 4\r\n"),
    ] {
        let service = move |_| async move {
            let mut answer = text("body");
            *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
            Ok(answer)
        };
        let request = GET.replacen("GET", method, 1);
        let heard = heard(&[request.as_bytes()], service).await;
        let (head, body) = heard.split_once("\r\n\r\n").expect("a head");
        assert_eq!(body, "", "{heard}");
        assert_eq!(
            format!("{head}\r\n")
                .split_once("\r\n")
                .map(|(_, rest)| rest),
            Some(length),
            "{heard}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_ends_quietly_and_not_within_a_request() {
    let (mut client, _wire, task) = served(|request| async {
        tokio::time::sleep(WAITS.keep_alive * 10).await;
        echo(request).await
    });
    let began = Instant::now();
    client.write_all(GET.as_bytes()).await.expect("room");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("text");
    assert!(answer.ends_with("\r\n\r\nGET / "), "{answer}");
    assert_eq!(began.elapsed(), WAITS.keep_alive * 11);
    assert_eq!(task.await.expect("no panic"), Ok(false));
}

#[tokio::test(start_paused = true)]
async fn a_head_that_drips_is_answered_in_time() {
    let (client, _wire, task) = served(echo);
    let began = Instant::now();
    let (mut from, mut to) = tokio::io::split(client);
    let dripping = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        for byte in GET.as_bytes().iter().cycle() {
            if to.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    };
    let mut words = String::new();
    let reading = from.read_to_string(&mut words);
    tokio::select! {
        read = reading => read.map(drop).expect("text"),
        () = dripping => {}
    }
    assert_eq!(began.elapsed(), Duration::from_secs(60) + WAITS.header);
    assert!(words.starts_with("HTTP/1.1 408 ") && words.contains("connection: close"));
    assert!(task.await.expect("no panic").is_err());
}

#[tokio::test(start_paused = true)]
async fn a_bad_head_is_refused_behind_the_answer_before_it() {
    let both = [GET, "GET / HTTP/1.1\nhost: a\n\n"].concat();
    let words = heard(&[both.as_bytes()], echo).await;
    let expected = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nGET / HTTP/1.1 400 Bad Request\r\n";
    assert!(words.starts_with(expected), "{words}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_for_leave_gets_it_when_its_body_is_read() {
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    let (mut client, _wire, _task) = served(echo);
    client.write_all(head.as_bytes()).await.expect("room");
    let mut leave = [0; 25];
    client.read_exact(&mut leave).await.expect("leave");
    assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"ab").await.expect("room");
    let mut answer = [0; 15];
    client.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    // Refused without a look at the body: nobody can tell whether it will come.
    let refused = heard(&[head.as_bytes()], |_| async { Ok(text("no")) }).await;
    let last = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
    assert_eq!(refused, last);
}

/// As over TLS: what is written is taken, and goes out by a flush, which waits for the client.
#[tokio::test(start_paused = true)]
async fn leave_to_send_a_body_comes_also_where_it_cannot_go_out_at_once() {
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    let (mut client, server) = duplex(10);
    let wire = Wire::shared(BufWriter::new(server), LIMITS);
    let task = tokio::spawn(async move {
        let refusals = RefusalMetrics::register(&mut Registry::default());
        serve(&wire, WAITS, &refusals, echo).await.map(|_| ())
    });
    client.write_all(head.as_bytes()).await.expect("room");
    let mut leave = [0; 25];
    let heard = tokio::time::timeout(Duration::from_secs(1), client.read_exact(&mut leave)).await;
    heard.expect("it is flushed").expect("leave");
    assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
    task.abort();
}

/// A body that breaks off behind its first part.
struct Broken(Option<&'static str>);

impl Body for Broken {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let part = self.0.take().ok_or(io::ErrorKind::BrokenPipe);
        let frame = part.map(|part| Frame::data(Bytes::from_static(part.as_bytes())));
        Poll::Ready(Some(frame.map_err(Into::into)))
    }
}

/// In HTTP/1.0 the end of the connection is that of the answer; chunks tell it by themselves.
#[tokio::test(start_paused = true)]
async fn a_broken_answer_that_ends_with_its_connection_is_known_as_cut_short() {
    for (version, whole, is_cut_short) in [
        ("1.0", false, true),
        ("1.0", true, false),
        ("1.1", false, false),
    ] {
        let (mut client, server) = duplex(4096);
        let wire = Wire::shared(server, LIMITS);
        let refusals = RefusalMetrics::register(&mut Registry::default());
        let request = format!("GET / HTTP/{version}\r\nhost: a\r\n\r\n");
        client.write_all(request.as_bytes()).await.expect("room");
        let ended = if whole {
            let service = |_| async { Ok(Response::new(stream(["half"]))) };
            serve(&wire, WAITS, &refusals, service).await.map(drop)
        } else {
            let service = |_| async { Ok(Response::new(Broken(Some("half")))) };
            serve(&wire, WAITS, &refusals, service).await.map(drop)
        };
        let case = format!("{version} {whole}: {ended:?}");
        assert_eq!(ended.is_ok(), whole, "{case}");
        assert_eq!(lock(&wire).is_cut_short(), is_cut_short, "{case}");
    }
}

/// Answers with the target alone.
async fn unread(request: Request<ClientBody>) -> Result<Answer, ClientLeft> {
    Ok(text(request.uri().path().to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_reads_is_passed_over() {
    let body = "POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab";
    let two = [body, GET].concat();
    let both = heard(&[two.as_bytes()], unread).await;
    assert_eq!(both.matches("HTTP/1.1 200").count(), 2, "{both}");
    // Half of it: what comes later cannot be told from a request.
    let half = &body[..body.len() - 1];
    let one = heard(&[half.as_bytes()], unread).await;
    assert_eq!(one.matches("HTTP/1.1 200").count(), 1, "{one}");
    // Its end may come after the answer.
    let (mut client, _wire, _task) = served(unread);
    let mut answer = vec![0; one.len() + "date: \r\n".len() + 29];
    client.write_all(half.as_bytes()).await.expect("room");
    client.read_exact(&mut answer).await.expect("an answer");
    tokio::time::sleep(WAITS.header / 2).await;
    client.write_all(b"b").await.expect("room");
    client.write_all(GET.as_bytes()).await.expect("room");
    let mut next = [0; 15];
    client.read_exact(&mut next).await.expect("the next answer");
    assert_eq!(&next, b"HTTP/1.1 200 OK");
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_body_that_nobody_reads_is_not_waited_for_long() {
    let (mut client, _wire, task) = served(unread);
    let began = Instant::now();
    let half = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\na";
    client.write_all(half).await.expect("room");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("text");
    assert!(answer.ends_with("\r\n\r\n/a"), "{answer}");
    assert_eq!(began.elapsed(), WAITS.header);
    assert_eq!(task.await.expect("no panic"), Ok(false));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_the_last_says_so() {
    let large = "content-length: 1000000\r\n\r\n";
    let chunked = "transfer-encoding: chunked\r\n\r\n1\r\na\r\n";
    let malformed = "transfer-encoding: chunked\r\n\r\nx";
    for rest in [large, chunked, malformed] {
        let post = format!("POST / HTTP/1.1\r\nhost: a\r\n{rest}");
        let words = heard(&[post.as_bytes()], unread).await;
        assert!(words.contains("\r\nconnection: close\r\n"), "{words}");
    }
    let words = heard(&[GET.as_bytes(), GET.as_bytes()], |_| async {
        let mut late = text("late");
        *late.status_mut() = StatusCode::REQUEST_TIMEOUT;
        Ok(late)
    })
    .await;
    assert!(words.contains("\r\nconnection: close\r\n"), "{words}");
    assert_eq!(words.matches("HTTP/1.1 408").count(), 1, "{words}");
}

#[tokio::test(start_paused = true)]
async fn the_body_is_asked_for_more_only_when_the_client_has_taken_what_came() {
    const PART: usize = 1024;
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let receiver = std::sync::Mutex::new(Some(receiver));
    let (mut client, _wire, _task) = served(move |_| {
        let receiver = receiver.lock().expect("no panic").take();
        async move {
            Ok(Response::new(BoxBody::new(Channel(
                receiver.expect("one request"),
            ))))
        }
    });
    client.write_all(GET.as_bytes()).await.expect("room");
    let mut taken = 0;
    let part = || Bytes::from(vec![b'x'; PART]);
    let full = async {
        while sender.send(part()).await.is_ok() {
            taken += 1;
        }
    };
    let full = tokio::time::timeout(Duration::from_secs(1), full).await;
    assert!(full.is_err(), "the stream has a limit");
    // The stream holds four of them; another one waits to be written, and one in the channel.
    assert!(taken <= 6, "{taken}");
    let before = taken;
    let mut bytes = vec![0; 2048];
    client.read_exact(&mut bytes).await.expect("bytes");
    drop(sender);
    let mut rest = Vec::new();
    let reading = client.read_to_end(&mut rest);
    let _ = tokio::time::timeout(WAITS.keep_alive * 2, reading).await;
    let sent = [bytes, rest].concat();
    let sent = sent.iter().filter(|byte| **byte == b'x').count();
    assert_eq!(sent, before * PART);
}

#[tokio::test(start_paused = true)]
async fn an_answer_shorter_than_it_says_is_cut() {
    let words = heard(&[GET.as_bytes()], |_| async {
        let mut answer = Response::new(stream(["abc"]));
        let length = HeaderValue::from_static("5");
        answer.headers_mut().insert(header::CONTENT_LENGTH, length);
        Ok(answer)
    })
    .await;
    assert_eq!(words, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc");
    let longer = heard(&[GET.as_bytes(), GET.as_bytes()], |_| async {
        let mut answer = Response::new(stream(["abc", "def"]));
        let length = HeaderValue::from_static("4");
        answer.headers_mut().insert(header::CONTENT_LENGTH, length);
        Ok(answer)
    })
    .await;
    assert_eq!(longer.matches("abcd").count(), 2, "{longer}");
    assert!(!longer.contains("abcde"), "{longer}");
}

#[tokio::test(start_paused = true)]
async fn one_length_is_said_and_it_is_that_of_the_body() {
    let said = async |status: u16, lengths: &'static [&'static str]| {
        heard(&[GET.as_bytes()], move |_| async move {
            let mut answer = Response::new(stream(["abc"]));
            *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
            for length in lengths {
                let length = HeaderValue::from_static(length);
                answer.headers_mut().append(header::CONTENT_LENGTH, length);
            }
            Ok(answer)
        })
        .await
    };
    let right = said(200, &["3"]).await;
    assert_eq!(right, "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc");
    for doubtful in [&["3", "3"][..], &["+3"], &["3, 3"], &[""]] {
        let chunked = said(200, doubtful).await;
        let expected = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(chunked, expected, "{doubtful:?}");
    }
    let none = said(204, &["3"]).await;
    assert_eq!(none, "HTTP/1.1 204 No Content\r\n\r\n");
    let would = said(304, &["3"]).await;
    assert_eq!(
        would,
        "HTTP/1.1 304 Not Modified\r\ncontent-length: 3\r\n\r\n"
    );
    let own = heard(&[GET.as_bytes()], |_| async {
        let mut answer = text("abc");
        let wrong = HeaderValue::from_static("5");
        answer.headers_mut().insert(header::CONTENT_LENGTH, wrong);
        Ok(answer)
    })
    .await;
    assert_eq!(own, "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc");
}

#[tokio::test(start_paused = true)]
async fn another_protocol_begins_only_if_the_client_has_waited_for_it() {
    let switch = |_| async {
        let mut answer = Response::new(Empty::new().boxed());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        Ok(answer)
    };
    let (mut client, _wire, task) = served(switch);
    client.write_all(GET.as_bytes()).await.expect("room");
    let mut line = [0; 34];
    client.read_exact(&mut line).await.expect("a head");
    assert_eq!(&line, b"HTTP/1.1 101 Switching Protocols\r\n");
    assert_eq!(task.await.expect("no panic"), Ok(true));
    let (mut client, _wire, task) = served(switch);
    let early = [GET, "early"].concat();
    client.write_all(early.as_bytes()).await.expect("room");
    assert_eq!(task.await.expect("no panic"), Ok(false));
}

#[tokio::test(start_paused = true)]
async fn a_body_of_known_length_is_read_to_where_it_belongs() {
    let length = 100_000;
    let service = |request: Request<ClientBody>| async move {
        let mut body = request.into_body();
        let mut buffer = BytesMut::with_capacity(100_000);
        let place = buffer.as_ptr() as usize;
        while body.read_into(&mut buffer).await.expect("a whole body") > 0 {}
        assert_eq!(buffer.as_ptr() as usize, place, "it has not moved");
        Ok(text(buffer.len().to_string()))
    };
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    let body = vec![b'b'; length];
    let heard = heard(&[head.as_bytes(), &body, GET.as_bytes()], service).await;
    assert!(heard.contains("\r\n\r\n100000HTTP/1.1 200"), "{heard}");
}

#[tokio::test(start_paused = true)]
async fn a_body_does_not_outlive_its_request() {
    let (sender, mut bodies) = mpsc::channel(1);
    let (mut client, _wire, _task) = served(move |request: Request<ClientBody>| {
        let sender = sender.clone();
        async move {
            let _ = sender.send(request.into_body()).await;
            Ok(text("x"))
        }
    });
    let post = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab";
    client.write_all(post.as_bytes()).await.expect("room");
    let mut kept = bodies.recv().await.expect("a body");
    let mut answer = [0; 15];
    client.read_exact(&mut answer).await.expect("an answer");
    // Not a byte of the next request is its.
    assert!(kept.frame().await.expect("an end").is_err());
    client.write_all(post.as_bytes()).await.expect("room");
    let mut kept = bodies.recv().await.expect("another body");
    client.write_all(post.as_bytes()).await.expect("room");
    let _ = bodies.recv().await.expect("another body");
    assert!(kept.frame().await.expect("an end").is_err());
}
