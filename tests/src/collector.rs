//! A collector of OpenTelemetry: takes OTLP, over HTTP or gRPC, and keeps spans and metrics.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;
pub use opentelemetry_proto::tonic::metrics::v1::{
    Metric, NumberDataPoint, metric::Data, number_data_point,
};
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
pub use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
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
    messages: Vec<Received>,
    /// Status over HTTP, where it is not 200.
    status: Option<StatusCode>,
    /// Points of each message of metrics that are refused, over HTTP.
    refused: i64,
}

/// What came.
struct Received {
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Received {
    fn is_of(&self, signal: &str) -> bool {
        self.path.to_lowercase().contains(signal)
    }
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

    /// From now on each message over HTTP is answered with this status.
    pub fn answer(&self, status: u16) {
        let status = StatusCode::from_u16(status).expect("a status");
        self.seen().status = Some(status);
    }

    /// From now on so many points of each message of metrics over HTTP are refused.
    pub fn refuse(&self, points: i64) {
        self.seen().refused = points;
    }

    /// Path and content type of each message so far.
    pub fn heads(&self) -> Vec<(String, String)> {
        let seen = self.seen();
        let head =
            |message: &Received| (message.path.clone(), text(&message.headers["content-type"]));
        seen.messages.iter().map(head).collect()
    }

    /// A header of each message so far.
    pub fn headers(&self, name: &str) -> Vec<Option<String>> {
        let seen = self.seen();
        let header = |message: &Received| message.headers.get(name).map(text);
        seen.messages.iter().map(header).collect()
    }

    /// Whether this text is anywhere in the received messages.
    pub fn was_told(&self, text: &str) -> bool {
        let seen = self.seen();
        let has = |body: &Bytes| body.windows(text.len()).any(|part| part == text.as_bytes());
        seen.messages.iter().any(|message| has(&message.body))
    }

    /// Spans so far, by resource.
    pub fn resources(&self) -> Vec<ResourceSpans> {
        let seen = self.seen();
        let of_traces = seen.messages.iter().filter(|of| of.is_of("trace"));
        let messages = of_traces.map(|of| {
            ExportTraceServiceRequest::decode(of.body.clone()).expect("messages are protobuf")
        });
        messages
            .flat_map(|message| message.resource_spans)
            .collect()
    }

    /// Metrics so far, by resource; each export has all of them.
    pub fn metrics(&self) -> Vec<ResourceMetrics> {
        let seen = self.seen();
        let of_metrics = seen.messages.iter().filter(|of| of.is_of("metrics"));
        let messages = of_metrics.map(|of| {
            ExportMetricsServiceRequest::decode(of.body.clone()).expect("messages are protobuf")
        });
        messages
            .flat_map(|message| message.resource_metrics)
            .collect()
    }

    /// What came of one metric, oldest first.
    pub fn metric(&self, name: &str) -> Vec<Metric> {
        let scopes = self.metrics().into_iter().flat_map(|of| of.scope_metrics);
        let metrics = scopes.flat_map(|scope| scope.metrics);
        metrics.filter(|metric| metric.name == name).collect()
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
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    if let Ok(body) = body.collect().await {
        keep(seen, head, body.to_bytes());
    }
    let seen = seen.lock().expect("no holder of this lock panics");
    let partial = ExportMetricsPartialSuccess {
        rejected_data_points: seen.refused,
        error_message: "not these".to_owned(),
    };
    let answer = ExportMetricsServiceResponse {
        partial_success: (seen.refused > 0).then_some(partial),
    };
    let mut response = Response::new(Full::from(answer.encode_to_vec()));
    *response.status_mut() = seen.status.unwrap_or_default();
    Ok(response)
}

/// A call: a byte that marks it as not compressed, four bytes of length, and the message.
async fn take_call(
    seen: &Mutex<Seen>,
    request: Request<Incoming>,
    status: u16,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    assert_eq!(head.headers["te"], "trailers");
    if let Ok(body) = body.collect().await {
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

fn keep(seen: &Mutex<Seen>, head: Parts, body: Bytes) {
    let mut seen = seen.lock().expect("no holder of this lock panics");
    seen.messages.push(Received {
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body,
    });
}

fn text(value: &HeaderValue) -> String {
    value.to_str().expect("text").to_owned()
}

/// An attribute of a span as text; numbers in decimal. `None` when it is not there.
pub fn attribute(span: &Span, key: &str) -> Option<String> {
    among(&span.attributes, key)
}

/// The same among any attributes.
pub fn among(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
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
