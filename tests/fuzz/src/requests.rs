//! The requests of a client's HTTP/1.1 connection, through the data port's server.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use grapevine::http::client_body::ClientBody;
use grapevine::listener::framing::HeadLimits;
use grapevine::listener::http1::{self, Wire};
use grapevine::listener::waits::Waits;
use grapevine::metrics::refusals::RefusalMetrics;
use grapevine::proxy::ClientLeft;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Builder, Runtime};

const HEADERS_MAX: usize = 32;
const LIMITS: HeadLimits = HeadLimits {
    bytes: 16 * 1024,
    lines: HEADERS_MAX,
};
/// Longer than any input takes.
const WAITS: Waits = Waits {
    header: Duration::from_secs(600),
    keep_alive: Duration::from_secs(600),
};
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

thread_local! {
    static RUNTIME: RefCell<Runtime> = RefCell::new(
        Builder::new_current_thread().enable_time().build().expect("a runtime")
    );
}

/// A request as the server gave it to its service.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Served {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    /// None if it broke off.
    body: Option<Vec<u8>>,
}

/// What a connection led to.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    served: Vec<Served>,
    answers: Vec<(u16, bool, Vec<u8>)>,
}

/// The first byte chooses in which pieces the rest arrives, the bytes of a connection up to its end.
///
/// # Panics
/// Which requests are served depends on the pieces, or another reader of HTTP finds other requests in the same bytes, or
/// the answers are not one for each of them.
pub fn requests(data: &[u8]) {
    let Some((&step, data)) = data.split_first() else {
        return;
    };
    let whole = heard(data, data.len().max(1));
    assert_eq!(whole, heard(data, usize::from(step) + 1));
    let mut rest = data;
    for served in &whole.served {
        rest = hold_against(served, rest);
    }
    let refusals = whole.answers.len() - whole.served.len();
    assert!(refusals <= 1, "{whole:?}");
    for (place, (status, is_last, body)) in whole.answers.iter().enumerate() {
        match whole.served.get(place) {
            Some(served) => assert_eq!(*body, echo(served)),
            None => assert!((400..500).contains(status) && *is_last, "{whole:?}"),
        }
        assert!(!is_last || place + 1 == whole.answers.len(), "{whole:?}");
    }
}

/// Serves the bytes of a client that closes behind them; a body that is whole is read to its end.
fn heard(data: &[u8], step: usize) -> Heard {
    static REFUSALS: OnceLock<RefusalMetrics> = OnceLock::new();
    let refusals = REFUSALS.get_or_init(|| RefusalMetrics::register(&mut Registry::default()));
    let output = Arc::new(Mutex::new(Vec::new()));
    let client = Client {
        input: data.to_vec(),
        at: 0,
        step,
        has_paused: false,
        output: Arc::clone(&output),
    };
    let served = RefCell::new(Vec::new());
    let service = async |request: Request<ClientBody>| {
        let one = read(request).await;
        let mut answer = Response::new(Full::new(Bytes::from(echo(&one))));
        if one.method == "CONNECT" {
            // An answer that agrees would have no body.
            *answer.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        }
        served.borrow_mut().push(one);
        Ok::<_, ClientLeft>(answer)
    };
    let wire = Wire::shared(client, LIMITS);
    let serving = http1::serve(&wire, WAITS, refusals, service);
    // However it ends: what was heard and said is looked at.
    let _ = RUNTIME.with_borrow(|runtime| runtime.block_on(serving));
    let (output, served) = (
        output.lock().unwrap_or_else(PoisonError::into_inner),
        served.into_inner(),
    );
    let answers = answers(&output, &served);
    Heard { served, answers }
}

async fn read(request: Request<ClientBody>) -> Served {
    let (head, body) = request.into_parts();
    let headers = head.headers.iter();
    Served {
        method: head.method.to_string(),
        target: head.uri.to_string(),
        headers: headers
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect(),
        body: body.collect().await.ok().map(|body| body.to_bytes().into()),
    }
}

fn echo(served: &Served) -> Vec<u8> {
    match &served.body {
        Some(body) => [b"whole ", &**body].concat(),
        None => b"broken".to_vec(),
    }
}

/// Status, whether it is the last, and body of each answer, as another reader of HTTP finds them.
fn answers(mut output: &[u8], served: &[Served]) -> Vec<(u16, bool, Vec<u8>)> {
    let mut found = Vec::new();
    while !output.is_empty() {
        if let Some(rest) = output.strip_prefix(CONTINUE) {
            output = rest;
            continue;
        }
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut answer = httparse::Response::new(&mut headers);
        let parsed = answer.parse(output).expect("an answer is well-formed");
        let httparse::Status::Complete(head) = parsed else {
            panic!("half an answer");
        };
        let header = |name| {
            let mut headers = answer.headers.iter();
            let found = headers.find(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| std::str::from_utf8(header.value).expect("own headers are text"))
        };
        let length = header("content-length").expect("the length is known");
        let length: usize = length.parse().expect("a number");
        let request = served.get(found.len());
        let is_head = request.is_some_and(|request| request.method == "HEAD");
        let sent = if is_head { 0 } else { length };
        let is_last = header("connection") == Some("close");
        let body = match is_head {
            false => output[head..head + sent].to_vec(),
            true => echo(request.expect("it is one")),
        };
        found.push((answer.code.expect("a status"), is_last, body));
        output = &output[head + sent..];
    }
    found
}

/// Finds the same request in the bytes; what lies behind it.
fn hold_against<'a>(served: &Served, data: &'a [u8]) -> &'a [u8] {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(data).expect("what is served is well-formed");
    let httparse::Status::Complete(head) = parsed else {
        panic!("half a head was served");
    };
    assert_eq!(request.method, Some(&*served.method));
    let others = request.headers.iter().map(|header| {
        let name = header.name.to_ascii_lowercase();
        (name, header.value.trim_ascii().to_vec())
    });
    let mut others: Vec<_> = others.collect();
    let mut own = served.headers.clone();
    let value = |name: &str| {
        let mut headers = others.iter();
        let found = headers.find(|(other, _)| other == name);
        found.map(|(_, value)| value.clone())
    };
    let is_chunked = value("transfer-encoding").is_some();
    let length = value("content-length");
    others.sort();
    own.sort();
    assert_eq!(own, others);
    let behind = &data[head..];
    let (body, rest) = match (is_chunked, length) {
        (true, None) => chunks(behind),
        (false, length) => {
            let text = String::from_utf8(length.unwrap_or(b"0".to_vec())).expect("digits");
            let length: usize = text.parse().unwrap_or(usize::MAX);
            match behind.split_at_checked(length) {
                Some((body, rest)) => (Some(body.to_vec()), rest),
                None => (None, &[][..]),
            }
        }
        (true, Some(_)) => panic!("two framings"),
    };
    // What the other reader takes may still be against the rules.
    if served.body.is_some() {
        assert_eq!(served.body, body);
    }
    rest
}

/// A chunked body, and what lies behind it.
fn chunks(mut data: &[u8]) -> (Option<Vec<u8>>, &[u8]) {
    let mut body = Vec::new();
    loop {
        let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(data) else {
            return (None, &[]);
        };
        data = &data[line..];
        if size == 0 {
            let mut trailers = [httparse::EMPTY_HEADER; 4096];
            return match httparse::parse_headers(data, &mut trailers) {
                Ok(httparse::Status::Complete((end, _))) => (Some(body), &data[end..]),
                _ => (None, &[]),
            };
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let Some((chunk, behind)) = data.split_at_checked(size) else {
            return (None, &[]);
        };
        body.extend_from_slice(chunk);
        match behind.strip_prefix(b"\r\n") {
            Some(behind) => data = behind,
            None => return (None, &[]),
        }
    }
}

/// A client that sends in pieces, takes all that it gets at once, and closes.
struct Client {
    input: Vec<u8>,
    at: usize,
    step: usize,
    /// Before the next piece.
    has_paused: bool,
    output: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            input,
            at,
            step,
            has_paused,
            ..
        } = &mut *self;
        let is_boundary = at.is_multiple_of(*step) && *at < input.len();
        if is_boundary && !std::mem::replace(has_paused, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        *has_paused = false;
        let piece = (*step - *at % *step).min(buf.remaining());
        let to = input.len().min(*at + piece);
        buf.put_slice(&input[*at..to]);
        *at = to;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        output.extend_from_slice(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
