//! From the end of a span to the collector: a bounded queue, and one task that sends what waits in it.
//!
//! The SDK's own batch processor has a thread that blocks and counts what it drops for itself only; this one is a
//! task of the runtime, ends with the replica, and its counts are metrics. A message that fails is not sent again:
//! spans of a collector that is down are not worth the memory. Over HTTP and over gRPC (`grpc`) alike.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use opentelemetry::Context;
use opentelemetry_http::{HttpClient, HttpError, ResponseBodyTooLarge};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

use super::{TraceMetrics, grpc};
use crate::config::{TraceConfig, TraceProtocol};
use crate::shutdown::Phase;

/// Longest answer of a collector, in bytes, that is read; it says how many spans it refused.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Between two looks whether a connection that carries calls lives.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Time for the last spans at the end of the process.
const LAST_WITHIN: Duration = Duration::from_secs(1);

/// The SDK's side of the queue.
#[derive(Debug)]
pub(super) struct Queue {
    spans: mpsc::Sender<SpanData>,
    metrics: TraceMetrics,
}

/// The collector's side of the queue.
#[derive(Debug)]
pub struct SpanSender {
    spans: mpsc::Receiver<SpanData>,
    exporter: SpanExporter,
    batch: usize,
    interval: Duration,
    metrics: TraceMetrics,
    /// Why the last message that failed did.
    why: Why,
    /// The last message was taken; a change is worth a line in the log.
    works: bool,
}

/// The exporter reports no more to its caller than that there was a failure.
type Why = Arc<Mutex<String>>;

pub(super) fn queue(
    config: &TraceConfig,
    endpoint: &Url,
    resource: &Resource,
    metrics: &TraceMetrics,
) -> anyhow::Result<(Queue, SpanSender)> {
    let client = Client::new(config, endpoint)?;
    let why = Arc::clone(&client.why);
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_retry_policy(RetryPolicy::disabled())
        // The message is the same in both protocols; the client puts it into a call where that is wanted.
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(config.timeout)
        .with_endpoint(match config.protocol {
            TraceProtocol::HttpProtobuf => target(endpoint),
            TraceProtocol::Grpc => grpc::target(endpoint),
        })
        .build()?;
    exporter.set_resource(resource);
    // There from the start: nothing lost is a zero and not a gap.
    for result in ["sent", "failed", "dropped"] {
        metrics.count(result, 0);
    }
    let (spans, waiting) = mpsc::channel(config.queue as usize);
    let queue = Queue {
        spans,
        metrics: metrics.clone(),
    };
    let sender = SpanSender {
        spans: waiting,
        exporter,
        batch: config.batch as usize,
        interval: config.interval,
        metrics: metrics.clone(),
        why,
        works: true,
    };
    Ok((queue, sender))
}

/// OTLP's path where the endpoint has none of its own.
fn target(endpoint: &Url) -> String {
    let mut target = endpoint.clone();
    if target.path() == "/" {
        target.set_path("/v1/traces");
    }
    target.into()
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.metrics.count("dropped", 1);
        }
    }

    /// Nothing to do: the sender waits for no signal.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// Nothing to do: the sender ends with the replica.
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl SpanSender {
    /// Sends spans until the replica's end, then what is left.
    pub async fn run(mut self, phase: Phase) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                () = self.gather(&mut batch) => self.send(&mut batch).await,
                () = phase.closed() => break,
            }
        }
        let last = async {
            loop {
                let room = self.batch - batch.len().min(self.batch);
                batch.extend((0..room).map_while(|_| self.spans.try_recv().ok()));
                if batch.is_empty() {
                    break;
                }
                self.send(&mut batch).await;
            }
        };
        // What a collector does not take by then is lost.
        let _ = timeout(LAST_WITHIN, last).await;
    }

    /// Waits for a span, then for others until there are enough or the first has waited for long enough.
    async fn gather(&mut self, batch: &mut Vec<SpanData>) {
        if self.spans.recv_many(batch, self.batch).await == 0 {
            // No more spans are made; the process is ending.
            std::future::pending::<()>().await;
        }
        let until = Instant::now() + self.interval;
        while batch.len() < self.batch {
            let room = self.batch - batch.len();
            match timeout_at(until, self.spans.recv_many(batch, room)).await {
                Ok(more) if more > 0 => {}
                _ => break,
            }
        }
    }

    async fn send(&mut self, batch: &mut Vec<SpanData>) {
        let spans = std::mem::take(batch);
        let count = spans.len();
        match self.exporter.export(spans).await {
            Ok(()) => {
                self.metrics.count("sent", count);
                if !std::mem::replace(&mut self.works, true) {
                    tracing::info!("the trace collector accepts spans again");
                }
            }
            Err(error) => {
                self.metrics.count("failed", count);
                if std::mem::replace(&mut self.works, false) {
                    let why = std::mem::take(&mut *lock(&self.why));
                    tracing::warn!(%error, why, "the trace collector does not accept spans; they are dropped");
                }
            }
        }
    }
}

/// The exporter's way out. It follows no redirects and uses no proxy of the environment.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    protocol: TraceProtocol,
    within: Duration,
    why: Why,
}

impl Client {
    fn new(config: &TraceConfig, endpoint: &Url) -> anyhow::Result<Self> {
        let mut http = reqwest::Client::builder()
            .timeout(config.timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        if endpoint.scheme() == "http" {
            // Without this a bare image without CA roots is an error.
            http = http.tls_certs_only([]);
        }
        if config.protocol == TraceProtocol::Grpc {
            // One connection carries all calls, and nothing else would show that it is dead.
            http = http
                .http2_prior_knowledge()
                .http2_keep_alive_interval(KEEP_ALIVE)
                .http2_keep_alive_timeout(config.timeout);
        }
        Ok(Self {
            http: http.build()?,
            protocol: config.protocol,
            within: config.timeout,
            why: Why::default(),
        })
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        match self.protocol {
            TraceProtocol::HttpProtobuf => Ok(self.send(request).await?.0),
            TraceProtocol::Grpc => {
                let (response, end) = self.send(grpc::call(request, self.within)).await?;
                if response.status() != StatusCode::OK {
                    return Ok(response);
                }
                let (head, body) = response.into_parts();
                // Where there is no message, the head says it all.
                let end = end.as_ref().unwrap_or(&head.headers);
                let message = grpc::answer(body, end)?;
                Ok(Response::from_parts(head, message))
            }
        }
    }

    /// An answer, and the headers behind its body.
    async fn send(
        &self,
        request: Request<Bytes>,
    ) -> Result<(Response<Bytes>, Option<HeaderMap>), HttpError> {
        let answer = self.http.execute(request.try_into()?).await?;
        let (head, mut rest) = Response::<reqwest::Body>::from(answer).into_parts();
        let (mut body, mut end) = (Vec::new(), None);
        while let Some(frame) = rest.frame().await {
            match frame?.into_data() {
                Ok(data) if body.len() + data.len() > ANSWER_BYTES_MAX => {
                    return Err(Box::new(ResponseBodyTooLarge::new()));
                }
                Ok(data) => body.extend_from_slice(&data),
                Err(frame) => end = frame.into_trailers().ok(),
            }
        }
        Ok((Response::from_parts(head, body.into()), end))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.exchange(request).await;
        if let Err(error) = &answer {
            *lock(&self.why) = chain(&**error);
        }
        answer
    }
}

/// An error and what is behind it: reqwest's own words alone name the address only.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let words: Vec<String> = causes.map(ToString::to_string).collect();
    words.join(": ")
}

fn lock(why: &Why) -> std::sync::MutexGuard<'_, String> {
    // Each change is complete before anything could panic.
    why.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_otlps_unless_another_is_given() {
        for (endpoint, expected) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://collector:4318/", "http://collector:4318/v1/traces"),
            ("https://x/otlp/v1/traces", "https://x/otlp/v1/traces"),
        ] {
            assert_eq!(target(&endpoint.parse().expect("a URL")), expected);
        }
    }
}
