//! A worker that only records, byte for byte, what reaches it, and checks that it is well-formed.
//!
//! Its reader is strict and shares no code with the replica: one request at a time, framed by one decimal
//! `Content-Length` or by nothing.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// Paths that replicas request by themselves.
const PROBES: [&str; 4] = ["/health", "/metrics", "/v1/models", "/kv_event_sources"];
const HEADERS_MAX: usize = 128;

/// One request as received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The request line, without its end.
    pub line: String,
    /// In order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Recorded {
    /// All values of a header; `name` in lower case.
    pub fn values(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(n, _)| n == name);
        named.map(|(_, value)| value.as_str()).collect()
    }
}

/// The worker. Dropping it ends it.
pub struct Recorder {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Seen {
    requests: Vec<Recorded>,
    faults: Vec<String>,
}

impl Recorder {
    /// Starts it.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::<Mutex<Seen>>::default();
        let all = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = Arc::clone(&all);
                tokio::spawn(async move {
                    if let Err(fault) = record(stream, &seen).await {
                        seen.lock().expect("not poisoned").faults.push(fault);
                    }
                });
            }
        });
        Self {
            address,
            seen,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Takes the requests since the last call, without probes. Panics if anything was not well-formed.
    pub fn take(&self) -> Vec<Recorded> {
        let mut seen = self.seen.lock().expect("not poisoned");
        assert!(seen.faults.is_empty(), "malformed: {:#?}", seen.faults);
        std::mem::take(&mut seen.requests)
    }
}

/// Answers one request after the other with `{}` until the connection ends.
async fn record(mut stream: TcpStream, seen: &Mutex<Seen>) -> Result<(), String> {
    let mut inbox = BytesMut::new();
    loop {
        let (mut request, length) = loop {
            if let Some(parsed) = parse(&mut inbox)? {
                break parsed;
            }
            if !matches!(stream.read_buf(&mut inbox).await, Ok(1..)) {
                return match inbox.is_empty() {
                    true => Ok(()),
                    false => Err(format!("ended within a head: {inbox:?}")),
                };
            }
        };
        while inbox.len() < length {
            if !matches!(stream.read_buf(&mut inbox).await, Ok(1..)) {
                return Err(format!("{} ended within its body", request.line));
            }
        }
        request.body = inbox.split_to(length).to_vec();
        if !inbox.is_empty() {
            return Err(format!("{} is followed by {inbox:?}", request.line));
        }
        let target = request.line.split(' ').nth(1).unwrap_or_default();
        let body = if target == "/v1/models" {
            r#"{"data":[]}"#
        } else {
            "{}"
        };
        if !PROBES.contains(&target) {
            let mut seen = seen.lock().expect("not poisoned");
            seen.requests.push(request);
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return Ok(());
        }
    }
}

/// Takes a whole head off the front, with the length of the body that follows it.
fn parse(inbox: &mut BytesMut) -> Result<Option<(Recorded, usize)>, String> {
    let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut slots);
    let fault = |what: &str| format!("{what}: {inbox:?}");
    let status = parsed.parse(inbox).map_err(|e| fault(&e.to_string()))?;
    let httparse::Status::Complete(length) = status else {
        return Ok(None);
    };
    let head = &inbox[..length];
    let feeds = head.iter().filter(|byte| **byte == b'\n').count();
    let ends = head.windows(2).filter(|pair| *pair == b"\r\n").count();
    let returns = head.iter().filter(|byte| **byte == b'\r').count();
    if feeds != ends || returns != ends {
        return Err(fault("a bare line feed or carriage return"));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let headers = parsed.headers.iter();
    let headers = headers.map(|h| (h.name.to_ascii_lowercase(), text(h.value)));
    let request = Recorded {
        line: text(line),
        headers: headers.collect(),
        body: Vec::new(),
    };
    if request.values("host").len() != 1 || !request.values("transfer-encoding").is_empty() {
        return Err(fault("no single host, or another framing than a length"));
    }
    let body = match request.values("content-length").as_slice() {
        [] => 0,
        [one] if one.bytes().all(|byte| byte.is_ascii_digit()) => {
            one.parse().map_err(|_| fault("a length that is none"))?
        }
        _ => return Err(fault("more than one length")),
    };
    let _ = inbox.split_to(length);
    Ok(Some((request, body)))
}
