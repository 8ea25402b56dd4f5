//! From the end of a span to the collector: a bounded queue, and one task that sends what waits in it.
//!
//! The SDK's own batch processor has a thread that blocks and counts what it drops for itself only; this one is a
//! task of the runtime, ends with the replica, and its counts are metrics. A message that fails is not sent again:
//! spans of a collector that is down are not worth the memory.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::Context;
use opentelemetry_http::{HttpClient, HttpError, ResponseBodyTooLarge};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

use super::TraceMetrics;
use crate::config::TraceConfig;
use crate::shutdown::Phase;

/// Longest answer of a collector, in bytes, that is read; it says how many spans it refused.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
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
pub struct Sender {
    spans: mpsc::Receiver<SpanData>,
    exporter: SpanExporter,
    batch: usize,
    interval: Duration,
    metrics: TraceMetrics,
    /// The last message was taken; a change is worth a line in the log.
    works: bool,
}

pub(super) fn queue(
    config: &TraceConfig,
    endpoint: &Url,
    resource: &Resource,
    metrics: &TraceMetrics,
) -> anyhow::Result<(Queue, Sender)> {
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new(endpoint, config.timeout)?)
        .with_retry_policy(RetryPolicy::disabled())
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(config.timeout)
        .with_endpoint(target(endpoint))
        .build()?;
    exporter.set_resource(resource);
    let (spans, waiting) = mpsc::channel(config.queue as usize);
    let queue = Queue {
        spans,
        metrics: metrics.clone(),
    };
    let sender = Sender {
        spans: waiting,
        exporter,
        batch: config.batch as usize,
        interval: config.interval,
        metrics: metrics.clone(),
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

    /// Nothing to do: the sender waits for nobody's word.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// Nothing to do: the sender ends with the replica.
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Sender {
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
            // Nobody makes spans any more; the end is near.
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
                    tracing::info!("the collector of traces takes spans again");
                }
            }
            Err(error) => {
                self.metrics.count("failed", count);
                if std::mem::replace(&mut self.works, false) {
                    tracing::warn!(%error, "the collector of traces takes no spans; they are dropped");
                }
            }
        }
    }
}

/// The exporter's way out. It follows no redirects and uses no proxy of the environment.
#[derive(Debug)]
struct Client(reqwest::Client);

impl Client {
    fn new(endpoint: &Url, within: Duration) -> anyhow::Result<Self> {
        let mut client = reqwest::Client::builder()
            .timeout(within)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        if endpoint.scheme() == "http" {
            // Without this a bare image without CA roots is an error.
            client = client.tls_certs_only([]);
        }
        Ok(Self(client.build()?))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut answer = self.0.execute(request.try_into()?).await?;
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = answer.status();
        *response.headers_mut() = std::mem::take(answer.headers_mut());
        let mut body = Vec::new();
        while let Some(data) = answer.chunk().await? {
            if body.len() + data.len() > ANSWER_BYTES_MAX {
                return Err(Box::new(ResponseBodyTooLarge::new()));
            }
            body.extend_from_slice(&data);
        }
        *response.body_mut() = body.into();
        Ok(response)
    }
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
