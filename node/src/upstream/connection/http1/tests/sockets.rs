//! A connection against workers on real sockets that do as they like.

use std::io::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::http::worker_body::WorkerBody;
use crate::upstream::connection::http1::*;

const WITHIN: Duration = Duration::from_secs(30);
const SMALL: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

async fn pair() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let io = WorkerIo::Plain(client.expect("connected"));
    (Connection::new(io), accepted.expect("accepted").0)
}

fn request(body: &WorkerBody) -> WorkerRequest<'_> {
    static HEADERS: LazyLock<HeaderMap> = LazyLock::new(|| {
        let line = |name, value| (name, HeaderValue::from_static(value));
        let lines = [
            line(header::ACCEPT, "a"),
            line(header::AUTHORIZATION, "the client's"),
        ];
        lines.into_iter().collect()
    });
    let length = body.len();
    WorkerRequest {
        method: &Method::POST,
        target: Uri::from_static("/v1/completions?x=1"),
        headers: &HEADERS,
        own: [
            Some((header::HOST, HeaderValue::from_static("worker:1"))),
            Some((header::AUTHORIZATION, HeaderValue::from_static("own"))),
            None,
            (length > 0).then(|| (header::CONTENT_LENGTH, length.into())),
            None,
        ],
        body,
    }
}

fn small() -> WorkerBody {
    WorkerBody::unchanged(Bytes::from_static(b"{}"))
}

async fn head_of_request(worker: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(worker.read_u8().await.expect("a request"));
    }
    String::from_utf8(bytes).expect("text")
}

/// A worker that reads a small request, answers with these bytes, and then stays, or ends.
fn answering(mut worker: TcpStream, answer: String, stays: bool) -> JoinHandle<()> {
    tokio::spawn(async move {
        head_of_request(&mut worker).await;
        let mut body = [0; 2];
        worker.read_exact(&mut body).await.expect("a body");
        // Where the answer is refused in the middle, the rest may find nobody.
        let _ = worker.write_all(answer.as_bytes()).await;
        if stays {
            let _ = worker.read(&mut body).await;
        }
    })
}

async fn body_of(connection: &mut Connection, body: &mut AnswerBody) -> Result<Vec<u8>, Broken> {
    let mut all = Vec::new();
    let reading = async {
        while let Some(frame) = poll_fn(|cx| connection.poll_frame(body, cx)).await {
            if let Ok(data) = frame?.into_data() {
                all.extend_from_slice(&data);
            }
        }
        Ok::<_, Broken>(())
    };
    timeout(WITHIN, reading).await.expect("it ends")?;
    Ok(all)
}

async fn send(
    connection: &mut Connection,
    body: WorkerBody,
) -> Result<Response<AnswerBody>, SendError> {
    timeout(WITHIN, connection.send(&request(&body)))
        .await
        .expect("an answer, or none")
}

fn is_reusable_now(connection: &mut Connection) -> bool {
    connection.is_reusable(&mut Context::from_waker(std::task::Waker::noop()))
}

#[tokio::test]
async fn a_request_is_written_as_it_is_and_the_connection_serves_again() {
    let (mut connection, mut worker) = pair().await;
    let serving = tokio::spawn(async move {
        let mut heads = Vec::new();
        for body in ["{\"model\": \"name\"}", ""] {
            heads.push(head_of_request(&mut worker).await);
            let mut read = vec![0; body.len()];
            worker.read_exact(&mut read).await.expect("a body");
            assert_eq!(read, body.as_bytes());
            worker.write_all(SMALL.as_bytes()).await.expect("read");
        }
        heads
    });
    let bytes = Bytes::from_static(b"{\"model\": \"x\"}");
    let first = WorkerBody::with_text(&bytes, 10..13, "name");
    for body in [first, WorkerBody::unchanged(Bytes::new())] {
        let response = send(&mut connection, body).await.expect("answered");
        assert_eq!(response.status(), StatusCode::OK);
        let read = body_of(&mut connection, &mut response.into_body()).await;
        assert_eq!(read.expect("whole"), b"ok");
    }
    let heads = serving.await.expect("served");
    let line = "POST /v1/completions?x=1 HTTP/1.1\r\naccept: a\r\nhost: worker:1\r\nauthorization: own\r\n";
    assert_eq!(
        heads,
        [
            format!("{line}content-length: 17\r\n\r\n"),
            format!("{line}\r\n")
        ]
    );
}

#[tokio::test]
async fn a_body_larger_than_the_sockets_room_arrives_whole() {
    let (mut connection, mut worker) = pair().await;
    let bytes: Bytes = (0..8_u32 << 20).map(|at| (at % 251) as u8).collect();
    let expected = bytes.clone();
    let serving = tokio::spawn(async move {
        let head = head_of_request(&mut worker).await;
        assert!(
            head.contains(&format!("content-length: {}\r\n", expected.len())),
            "{head}"
        );
        let mut read = vec![0; expected.len()];
        worker.read_exact(&mut read).await.expect("all of it");
        assert!(read == expected, "byte for byte");
        worker.write_all(SMALL.as_bytes()).await.expect("read");
        worker
    });
    let response = send(&mut connection, WorkerBody::unchanged(bytes)).await;
    let mut body = response.expect("answered").into_body();
    assert_eq!(
        body_of(&mut connection, &mut body).await.expect("whole"),
        b"ok"
    );
    let _open = serving.await.expect("served");
    assert!(is_reusable_now(&mut connection));
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_is_seen() {
    let early = "HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno";
    for stays in [true, false] {
        let (mut connection, mut worker) = pair().await;
        let serving = tokio::spawn(async move {
            head_of_request(&mut worker).await;
            worker.write_all(early.as_bytes()).await.expect("room");
            // Closed with unread bytes, the connection is reset.
            stays.then_some(worker)
        });
        let bytes = Bytes::from(vec![b'x'; 32 << 20]);
        let response = send(&mut connection, WorkerBody::unchanged(bytes)).await;
        let response = response.expect("answered");
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let read = body_of(&mut connection, &mut response.into_body()).await;
        assert_eq!(read.expect("whole"), b"no");
        assert!(
            !is_reusable_now(&mut connection),
            "the rest of a request is unsent"
        );
        drop(serving.await.expect("served"));
    }
}

/// The worker answered and closed the connection while the request was being written, of which the runtime knows nothing
/// when writing fails.
#[tokio::test]
async fn an_answer_is_seen_also_where_writing_fails_before_it_can_be_read() {
    let (mut connection, worker) = pair().await;
    worker.set_zero_linger().expect("an open socket");
    let mut worker = worker.into_std().expect("an open socket");
    worker.write_all(SMALL.as_bytes()).expect("room");
    drop(worker);
    let response = send(&mut connection, small()).await.expect("answered");
    let read = body_of(&mut connection, &mut response.into_body()).await;
    assert_eq!(read.expect("whole"), b"ok");
    assert!(!is_reusable_now(&mut connection));
}

/// What becomes of a request, in a word.
async fn outcome(answer: &str, stays: bool) -> String {
    let (mut connection, worker) = pair().await;
    let serving = answering(worker, answer.to_owned(), stays);
    let outcome = match send(&mut connection, small()).await {
        Err(SendError::Unsent(_)) => "unsent".to_owned(),
        Err(SendError::Unanswered(broken)) => format!("unanswered, cut: {}", broken.is_cut()),
        Err(SendError::Malformed(broken)) => format!("malformed, cut: {}", broken.is_cut()),
        Err(SendError::HeadTooLong) => "too long".to_owned(),
        Err(SendError::LengthInDoubt) => "in doubt".to_owned(),
        Ok(response) => match body_of(&mut connection, &mut response.into_body()).await {
            Ok(body) => format!(
                "{} bytes, again: {}",
                body.len(),
                is_reusable_now(&mut connection)
            ),
            Err(broken) => format!("broken, cut: {}", broken.is_cut()),
        },
    };
    drop(connection);
    serving.await.expect("served");
    outcome
}

#[tokio::test]
async fn what_is_no_whole_answer_is_told_apart() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let sized = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort";
    let table = [
        (String::new(), false, "unanswered, cut: true"),
        ("HTTP/1.1 200 OK\r\nx".into(), false, "malformed, cut: true"),
        (
            "HTTP/1.1 103 Hints\r\n\r\n".into(),
            false,
            "malformed, cut: true",
        ),
        ("nothing like it".into(), true, "malformed, cut: false"),
        (
            "HTTP/1.1 200 OK\r\na b: c\r\n\r\n".into(),
            true,
            "malformed, cut: false",
        ),
        (
            "HTTP/1.1 103 Hints\r\n\r\n".repeat(100_000),
            true,
            "too long",
        ),
        (
            format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(100_000)),
            true,
            "too long",
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n".into(),
            true,
            "in doubt",
        ),
        (sized.into(), false, "broken, cut: true"),
        (format!("{chunked}5\r\nhel"), false, "broken, cut: true"),
        (
            format!("{chunked}5\r\nhello\r\n0\r\n"),
            false,
            "broken, cut: true",
        ),
        (
            format!("{chunked}five\r\nhello\r\n"),
            true,
            "broken, cut: false",
        ),
    ];
    for (answer, stays, expected) in table {
        let begin: String = answer.chars().take(80).collect();
        assert_eq!(
            outcome(&answer, stays).await,
            expected,
            "{begin:?}, stays: {stays}"
        );
    }
}

#[tokio::test]
async fn a_connection_serves_again_only_where_nothing_is_left_on_it() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let table = [
        (
            format!("{ok}content-length: 5\r\n\r\nhello"),
            "5 bytes, again: true",
        ),
        (
            format!("{ok}content-length: 0\r\n\r\n"),
            "0 bytes, again: true",
        ),
        (
            format!("{ok}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            "5 bytes, again: true",
        ),
        (
            format!("{ok}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nsum: 1\r\n\r\n"),
            "5 bytes, again: true",
        ),
        (
            format!("{ok}connection: close\r\ncontent-length: 5\r\n\r\nhello"),
            "5 bytes, again: false",
        ),
        (
            "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello".into(),
            "5 bytes, again: false",
        ),
        (
            format!("{ok}content-length: 5\r\n\r\nhello!"),
            "5 bytes, again: false",
        ),
        (
            format!("{ok}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nH"),
            "5 bytes, again: false",
        ),
    ];
    for (answer, expected) in table {
        assert_eq!(outcome(&answer, true).await, expected, "{answer:?}");
    }
    assert_eq!(
        outcome(&format!("{ok}\r\nhello"), false).await,
        "5 bytes, again: false"
    );
}

#[tokio::test]
async fn an_answer_that_is_not_read_to_its_end_keeps_the_connection() {
    let (mut connection, worker) = pair().await;
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel".to_owned();
    let _serving = answering(worker, answer, true);
    let response = send(&mut connection, small()).await.expect("answered");
    let mut body = response.into_body();
    assert!(!is_reusable_now(&mut connection));
    let frame = poll_fn(|cx| connection.poll_frame(&mut body, cx)).await;
    let data = frame.expect("some").expect("good").into_data();
    assert_eq!(data.expect("data"), "hel");
    assert!(!is_reusable_now(&mut connection));
}

#[tokio::test]
async fn a_worker_that_closes_or_speaks_meanwhile_gets_no_request() {
    for last in ["", "HTTP/1.1 408 Late\r\n\r\n"] {
        let (mut connection, mut worker) = pair().await;
        assert!(is_reusable_now(&mut connection));
        worker.write_all(last.as_bytes()).await.expect("room");
        if last.is_empty() {
            drop(worker);
        }
        timeout(WITHIN, async {
            while is_reusable_now(&mut connection) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("noticed");
        let sent = send(&mut connection, small()).await;
        assert!(matches!(sent, Err(SendError::Unsent(_))), "{sent:?}");
    }
}

#[tokio::test]
async fn a_connection_that_waits_holds_no_buffer() {
    let (mut connection, mut worker) = pair().await;
    let (head, event) = (
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        "9\r\ndata: 1\n\n\r\n",
    );
    let body = small();
    let request = request(&body);
    let mut sending = Box::pin(connection.send(&request));
    let early = timeout(Duration::ZERO, sending.as_mut()).await;
    assert!(early.is_err(), "nobody answered");
    head_of_request(&mut worker).await;
    worker.write_all(head.as_bytes()).await.expect("read");
    let mut body = sending.await.expect("answered").into_body();
    let cx = &mut Context::from_waker(std::task::Waker::noop());
    assert!(connection.poll_frame(&mut body, cx).is_pending());
    assert_eq!(connection.inbox.buf.capacity(), 0, "before the first event");
    for _ in 0..3 {
        worker.write_all(event.as_bytes()).await.expect("read");
        let frame = poll_fn(|cx| connection.poll_frame(&mut body, cx)).await;
        let data = frame.expect("some").expect("good").into_data();
        assert_eq!(data.expect("data"), "data: 1\n\n");
        assert!(connection.poll_frame(&mut body, cx).is_pending());
        assert_eq!(connection.inbox.buf.capacity(), 0, "between events");
    }
    worker.write_all(b"0\r\n\r\n").await.expect("read");
    assert_eq!(
        body_of(&mut connection, &mut body).await.expect("whole"),
        b""
    );
    assert!(is_reusable_now(&mut connection));
    assert_eq!(connection.inbox.buf.capacity(), 0, "at rest");
}

#[tokio::test]
async fn another_protocol_gets_the_socket_and_what_was_said_in_it() {
    let (mut connection, worker) = pair().await;
    let answer = "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nearly".to_owned();
    let serving = answering(worker, answer, true);
    let response = send(&mut connection, small()).await.expect("answered");
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert!(!is_reusable_now(&mut connection));
    let mut switched = connection.switch().await.expect("a socket");
    assert_eq!(switched.early, "early");
    switched.io.write_all(b"hi").await.expect("open");
    serving.await.expect("it was read");
}
