//! A collector of OpenTelemetry traces: takes OTLP, over HTTP or gRPC, and keeps the spans.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
pub use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A running collector; ends when it is dropped.
pub struct Collector {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Clone, Copy)]
enum Protocol {
    Http,
    Grpc(u16),
}

#[derive(Default)]
struct Seen {
    /// Path and content type of each message.
    heads: Vec<(String, String)>,
    bodies: Vec<Bytes>,
}

impl Collector {
    /// Listens on a port of the kernel's choice.
    pub async fn start() -> Self {
        Self::speaking(Protocol::Http).await
    }

    /// The same for gRPC; `status` is its answer to each call, 0 for success.
    pub async fn grpc(status: u16) -> Self {
        Self::speaking(Protocol::Grpc(status)).await
    }

    async fn speaking(protocol: Protocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut tasks = JoinSet::new();
        let kept = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let seen = Arc::clone(&kept);
                let io = TokioIo::new(stream);
                connections.spawn(async move {
                    // A sender that leaves is not a failure here.
                    match protocol {
                        Protocol::Http => {
                            let service = service_fn(|request| take(&seen, request));
                            let http = hyper::server::conn::http1::Builder::new();
                            let _ = http.serve_connection(io, service).await;
                        }
                        Protocol::Grpc(status) => {
                            let service = service_fn(|request| {
                                let seen = Arc::clone(&seen);
                                async move { take_call(&seen, request, status).await }
                            });
                            let executor = TokioExecutor::new();
                            let http = hyper::server::conn::http2::Builder::new(executor);
                            let _ = http.serve_connection(io, service).await;
                        }
                    }
                });
            }
        });
        Self {
            address,
            seen,
            _tasks: tasks,
        }
    }

    /// The endpoint, as a TOML string.
    pub fn setting(&self) -> String {
        format!("\"http://{}\"", self.address)
    }

    /// The same as gRPC's clients name it: `host:port`.
    pub fn target(&self) -> String {
        format!("\"{}\"", self.address)
    }

    /// Path and content type of each message so far.
    pub fn heads(&self) -> Vec<(String, String)> {
        self.seen().heads.clone()
    }

    /// Whether this text is anywhere in the received messages.
    pub fn was_told(&self, text: &str) -> bool {
        let seen = self.seen();
        let has = |body: &Bytes| body.windows(text.len()).any(|part| part == text.as_bytes());
        seen.bodies.iter().any(has)
    }

    /// Spans so far, by resource.
    pub fn resources(&self) -> Vec<ResourceSpans> {
        let seen = self.seen();
        let messages = seen.bodies.iter().map(|body| {
            ExportTraceServiceRequest::decode(body.clone()).expect("messages are protobuf")
        });
        messages
            .flat_map(|message| message.resource_spans)
            .collect()
    }

    /// Spans so far.
    pub fn spans(&self) -> Vec<Span> {
        let scopes = self
            .resources()
            .into_iter()
            .flat_map(|spans| spans.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("no holder of this lock panics")
    }
}

async fn take(
    seen: &Mutex<Seen>,
    request: Request<Incoming>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let head = head_of(&request);
    if let Ok(body) = request.into_body().collect().await {
        keep(seen, head, body.to_bytes());
    }
    Ok(Response::new(Empty::new()))
}

/// A call: a byte that marks it as not compressed, four bytes of length, and the message.
async fn take_call(
    seen: &Mutex<Seen>,
    request: Request<Incoming>,
    status: u16,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let head = head_of(&request);
    assert_eq!(request.headers()["te"], "trailers");
    if let Ok(body) = request.into_body().collect().await {
        let mut message = body.to_bytes();
        let prefix = message.split_to(5);
        let length = u32::try_from(message.len()).expect("a short message");
        assert_eq!(prefix[..], [&[0][..], &length.to_be_bytes()].concat()[..]);
        keep(seen, head, message);
    }
    let mut end = HeaderMap::new();
    end.insert("grpc-status", status.into());
    let mut response = Response::new(());
    response
        .headers_mut()
        .insert("content-type", "application/grpc".parse().expect("a value"));
    if status != 0 {
        // Servers refuse with a head alone.
        response.headers_mut().extend(end);
        return Ok(response.map(|()| Empty::new().boxed()));
    }
    // An answer that accepts everything is an empty message.
    let body = Full::new(Bytes::from_static(&[0; 5]));
    Ok(response.map(|()| body.with_trailers(async { Some(Ok(end)) }).boxed()))
}

fn head_of(request: &Request<Incoming>) -> (String, String) {
    let kind = request.headers().get("content-type");
    let kind = kind
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    (request.uri().path().to_owned(), kind.to_owned())
}

fn keep(seen: &Mutex<Seen>, head: (String, String), body: Bytes) {
    let mut seen = seen.lock().expect("no holder of this lock panics");
    seen.heads.push(head);
    seen.bodies.push(body);
}

/// An attribute of a span as text; numbers in decimal. `None` when it is not there.
pub fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span
        .attributes
        .iter()
        .find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        Value::DoubleValue(number) => Some(number.to_string()),
        Value::BoolValue(value) => Some(value.to_string()),
        other => panic!("{key}: {other:?}"),
    }
}

/// Bytes of an id in hexadecimal, as headers have them.
pub fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
