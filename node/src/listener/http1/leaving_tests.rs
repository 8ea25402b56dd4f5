//! A connection that is told to leave, and what had come by then.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::combinators::BoxBody;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, sleep};

use super::tests::{GET, LIMITS, LOOK, WAITS, echo, served, text};
use super::*;
use crate::listener::channel_body::Channel;

/// What comes here is not read before the runtime knows of it, as with a socket of which the system has still to be asked.
struct Unheard {
    io: DuplexStream,
    is_known: Arc<AtomicBool>,
}

impl AsyncRead for Unheard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_known.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Unheard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_come_is_answered_though_nobody_knows_of_it_yet() {
    let refusals = RefusalMetrics::register(&mut Registry::default());
    for place_is_wanted in [false, true] {
        for has_come in [true, false] {
            let (mut client, io) = duplex(4096);
            let is_known = Arc::new(AtomicBool::new(false));
            let server = Unheard {
                io,
                is_known: Arc::clone(&is_known),
            };
            let wire = Wire::shared(server, LIMITS);
            let service = async |_| Ok::<_, ClientLeft>(text("here"));
            let mut serving = pin!(serve(&wire, WAITS, &refusals, service));
            tokio::select! {
                biased;
                ended = serving.as_mut() => panic!("{ended:?}"),
                () = sleep(LAST_CALL * 2) => {}
            }
            if has_come {
                client.write_all(GET.as_bytes()).await.expect("room");
            }
            match place_is_wanted {
                true => lock(&wire).make_room(),
                false => lock(&wire).leave(),
            }
            // What the runtime does next.
            tokio::spawn(async move { is_known.store(true, Ordering::SeqCst) });
            let ended = serving.await;
            assert!(matches!(ended, Ok(Ended::Closed)), "{ended:?}");
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("text");
            let case = format!("{place_is_wanted} {has_come}: {answer}");
            assert_eq!(answer.contains("connection: close\r\n"), has_come, "{case}");
            assert_eq!(answer.ends_with("\r\n\r\nhere"), has_come, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_told_to_leave_ends_between_two_requests_and_answers_what_has_come() {
    let (mut client, wire, task) = served(echo);
    client.write_all(GET.as_bytes()).await.expect("room");
    lock(&wire).leave();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("text");
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert!(answer.ends_with("GET / "), "{answer}");
    assert_eq!(task.await.expect("no panic"), Ok(false));
}

/// The head of an answer that is under way when the end is decided has promised that the connection goes on.
#[tokio::test(start_paused = true)]
async fn a_client_that_was_not_told_of_the_end_may_ask_once_more() {
    const PROMPT: Duration = Duration::from_millis(100);
    for late in [PROMPT, Duration::from_secs(2)] {
        let (sender, receiver) = mpsc::channel::<Bytes>(1);
        let receiver = std::sync::Mutex::new(Some(receiver));
        let (mut client, wire, task) = served(move |request| {
            let receiver = receiver.lock().expect("no panic").take();
            let path = request.uri().path().to_owned();
            async move {
                Ok(match receiver {
                    Some(first) => Response::new(BoxBody::new(Channel(first))),
                    None => text(path),
                })
            }
        });
        client.write_all(GET.as_bytes()).await.expect("room");
        sender.send(Bytes::from_static(b"a")).await.expect("asked");
        let mut begun = [0; 1];
        client.read_exact(&mut begun).await.expect("an answer");
        lock(&wire).leave();
        drop(sender);
        let mut first = Vec::new();
        while !first.ends_with(b"\r\n0\r\n\r\n") {
            client.read_buf(&mut first).await.expect("the rest");
        }
        let first = String::from_utf8(first).expect("text");
        assert!(!first.contains("connection: close"), "{first}");
        sleep(late).await;
        let sent = client.write_all(GET.as_bytes()).await;
        let mut next = String::new();
        let heard = client.read_to_string(&mut next).await;
        if late == PROMPT {
            assert!(next.contains("connection: close\r\n"), "{next} {sent:?}");
            assert!(next.ends_with("\r\n\r\n/"), "{next} {heard:?}");
        } else {
            assert_eq!(next, "", "nobody waits that long");
        }
        assert_eq!(task.await.expect("no panic"), Ok(false));
    }
}

/// A client whose answer has just ended, or that has just connected, has asked for more before it can see the end.
#[tokio::test(start_paused = true)]
async fn an_idle_connection_told_to_leave_waits_a_second_from_when_its_client_might_have_asked() {
    let ms = Duration::from_millis;
    // Whether it had an answer, how long it rested when it was told, how much later the client asks, whether it is served.
    for (had_one, rested, later, is_served) in [
        (true, ms(0), ms(900), true),
        (true, ms(800), ms(100), true),
        (true, ms(800), ms(300), false),
        (true, ms(1_100), ms(10), false),
        (false, ms(100), ms(700), true),
        (false, ms(100), ms(1_000), false),
    ] {
        let (mut client, wire, task) = served(echo);
        if had_one {
            client.write_all(GET.as_bytes()).await.expect("room");
            let mut answer = Vec::new();
            while !answer.ends_with(b"GET / ") {
                client.read_buf(&mut answer).await.expect("an answer");
            }
        }
        sleep(rested).await;
        lock(&wire).leave();
        sleep(later).await;
        let _ = client.write_all(GET.as_bytes()).await;
        let mut answer = String::new();
        let _ = client.read_to_string(&mut answer).await;
        let case = format!("{had_one} {rested:?} {later:?}");
        assert_eq!(
            answer.contains("connection: close\r\n"),
            is_served,
            "{case}"
        );
        assert_eq!(answer.ends_with("GET / "), is_served, "{case}");
        assert_eq!(task.await.expect("no panic"), Ok(false), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_drips_does_not_hold_up_the_end() {
    let (mut client, wire, task) = served(echo);
    let before = Instant::now();
    client.write_all(b"GET /").await.expect("room");
    sleep(Duration::from_millis(10)).await;
    lock(&wire).leave();
    let drip = async {
        loop {
            sleep(Duration::from_millis(100)).await;
            let _ = client.write_all(b"a").await;
        }
    };
    tokio::select! {
        () = drip => {}
        ended = task => assert_eq!(ended.expect("no panic"), Ok(false)),
    }
    let took = before.elapsed();
    assert!(took <= Duration::from_millis(1_050), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn where_the_place_is_needed_no_first_request_is_waited_for() {
    let (mut client, wire, task) = served(echo);
    sleep(Duration::from_millis(10)).await;
    let before = Instant::now();
    lock(&wire).make_room();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("text");
    assert_eq!(answer, "");
    assert!(before.elapsed() <= LOOK, "{:?}", before.elapsed());
    assert_eq!(task.await.expect("no panic"), Ok(false));
}
