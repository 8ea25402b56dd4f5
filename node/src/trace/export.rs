//! From the end of a span to the collector: a bounded queue, and one task that sends what waits in it.
//!
//! The SDK's own batch processor has a thread that blocks and counts what it drops for itself only; this one is a
//! task of the runtime, ends with the replica, and its counts are metrics. A message that fails is not sent again:
//! spans of a collector that is down are not worth the memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::Context;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use url::Url;

use super::TraceMetrics;
use crate::config::TraceConfig;
use crate::otlp::{self, Client, Signal};
use crate::shutdown::Phase;

/// Time for a message that is under way at the end of the process. With the time for the last spans it is less than the
/// replica waits for its tasks.
const UNDER_WAY_WITHIN: Duration = Duration::from_millis(500);
/// Time for the last spans behind it.
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
    /// Time for the last spans at the end.
    last_within: Duration,
    metrics: TraceMetrics,
    said: Arc<Mutex<Said>>,
    /// The last message was taken; a change is worth a line in the log.
    works: bool,
    /// It took a message without some of its spans, which was told.
    has_refused: bool,
}

/// What became of the last message. The exporter reports no more to its caller than that there was a failure.
#[derive(Debug, Default)]
struct Said {
    /// Why it failed, if it did and there was no answer, or why spans were refused.
    why: String,
    /// Spans that the collector left out.
    refused: usize,
}

pub(super) fn queue(
    config: &TraceConfig,
    endpoint: &Url,
    resource: &Resource,
    metrics: &TraceMetrics,
) -> anyhow::Result<(Queue, SpanSender)> {
    let said = Arc::default();
    let client = Reporting {
        client: Client::new(config.protocol, endpoint, config.timeout)?,
        said: Arc::clone(&said),
    };
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_retry_policy(RetryPolicy::disabled())
        // The message is the same in both protocols; the client puts it into a call where that is wanted.
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(config.timeout)
        .with_endpoint(Signal::Traces.target(config.protocol, endpoint))
        .build()?;
    exporter.set_resource(resource);
    // There from the start: nothing lost is a zero and not a gap.
    for result in ["sent", "refused", "failed", "dropped"] {
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
        last_within: LAST_WITHIN,
        metrics: metrics.clone(),
        said,
        works: true,
        has_refused: false,
    };
    Ok((queue, sender))
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
                // In this order: there may always be another span.
                biased;
                () = phase.closed() => break,
                () = self.gather(&mut batch) => {}
            }
            let patience = async {
                phase.closed().await;
                sleep(UNDER_WAY_WITHIN).await;
            };
            tokio::select! {
                () = self.send(&mut batch) => {}
                // The last spans may get through by a connection of their own.
                () = patience => break,
            }
        }
        let within = self.last_within;
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
        let _ = timeout(within, last).await;
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
        let message = UnderWay {
            spans: spans.len(),
            metrics: &self.metrics,
        };
        // A failure with an answer has no reason of its own, and is not to get that of an earlier one.
        *self.said.lock() = Said::default();
        match self.exporter.export(spans).await {
            Ok(()) => {
                let Said { why, refused } = std::mem::take(&mut *self.said.lock());
                message.was_taken(refused);
                if refused > 0 && !std::mem::replace(&mut self.has_refused, true) {
                    tracing::warn!(
                        refused,
                        why,
                        "the trace collector refuses some of the spans"
                    );
                }
                if !std::mem::replace(&mut self.works, true) {
                    tracing::info!("the trace collector accepts spans again");
                }
            }
            Err(error) => {
                drop(message);
                if std::mem::replace(&mut self.works, false) {
                    let why = std::mem::take(&mut self.said.lock().why);
                    tracing::warn!(%error, why, "the trace collector does not accept spans; they are dropped");
                }
            }
        }
    }
}

/// Spans on their way to the collector; dropped, they have failed.
struct UnderWay<'a> {
    spans: usize,
    metrics: &'a TraceMetrics,
}

impl UnderWay<'_> {
    fn was_taken(mut self, refused: usize) {
        let spans = std::mem::take(&mut self.spans);
        let refused = refused.min(spans);
        self.metrics.count("sent", spans - refused);
        self.metrics.count("refused", refused);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.metrics.count("failed", self.spans);
    }
}

/// The exporter's way out, which keeps what it reports.
#[derive(Debug)]
struct Reporting {
    client: Client,
    said: Arc<Mutex<Said>>,
}

#[async_trait]
impl HttpClient for Reporting {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.client.exchange(request).await;
        match &answer {
            Err(error) => self.said.lock().why = otlp::chain(&**error),
            Ok(answer) if answer.status().is_success() => {
                // What it says is only how much it left out, so one that cannot be read is not worth an error.
                let answer = ExportTraceServiceResponse::decode(answer.body().clone());
                let partly = answer.unwrap_or_default().partial_success;
                let partly = partly.unwrap_or_default();
                *self.said.lock() = Said {
                    why: partly.error_message,
                    refused: usize::try_from(partly.rejected_spans).unwrap_or(0),
                };
            }
            Ok(_) => {}
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, Tracer as _, TracerProvider as _};
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use prometheus_client::registry::Registry;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::metrics::ResultLabels;
    use crate::shutdown::Shutdown;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A connection on which a message has begun.
    async fn message(collector: &TcpListener) -> TcpStream {
        let (mut stream, _) = collector.accept().await.expect("a connection");
        let read = stream.read(&mut [0; 16]).await.expect("bytes");
        assert!(read > 0, "it ended early");
        stream
    }

    /// A collector, and what sends it each span by itself.
    struct Scene {
        collector: TcpListener,
        provider: SdkTracerProvider,
        sender: SpanSender,
        metrics: TraceMetrics,
    }

    impl Scene {
        async fn new() -> Self {
            let _ = rustls::crypto::ring::default_provider().install_default();
            let collector = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = collector.local_addr().expect("bound");
            let endpoint = format!("http://{address}").parse().expect("a URL");
            let config = TraceConfig {
                timeout: 6 * LIMIT,
                batch: 1,
                ..TraceConfig::default()
            };
            let metrics = TraceMetrics::register(&mut Registry::default());
            let resource = otlp::resource("here", "r1");
            let made = queue(&config, &endpoint, &resource, &metrics);
            let (queue, sender) = made.expect("it can be set up");
            let provider = SdkTracerProvider::builder()
                .with_span_processor(queue)
                .build();
            Self {
                collector,
                provider,
                sender,
                metrics,
            }
        }

        /// Sends one span, for which the collector has this answer.
        async fn sends_one(&mut self, answer: &[u8]) {
            self.provider.tracer("test").start("one").end();
            let mut batch = Vec::new();
            self.sender.gather(&mut batch).await;
            let answers = async {
                let mut stream = message(&self.collector).await;
                stream.write_all(answer).await.expect("it reads");
                stream.shutdown().await.expect("it is open");
                let _ = stream.read_to_end(&mut Vec::new()).await;
            };
            let exchange = async { tokio::join!(self.sender.send(&mut batch), answers) };
            timeout(LIMIT, exchange).await.expect("it ends in time");
        }

        fn counted<const N: usize>(&self, results: [&'static str; N]) -> [u64; N] {
            results.map(|result| {
                let labels = ResultLabels { result };
                self.metrics.spans.get_or_create(&labels).get()
            })
        }
    }

    #[tokio::test]
    async fn a_collector_that_hangs_holds_up_neither_the_end_nor_the_last_spans() {
        let Scene {
            collector,
            provider,
            mut sender,
            metrics,
        } = Scene::new().await;
        // What is tested is that they are sent, however busy the machine is.
        sender.last_within = LIMIT;
        let tracer = provider.tracer("test");
        let shutdown = Shutdown::new();
        let sending = tokio::spawn(sender.run(shutdown.phase()));

        tracer.start("one").end();
        let _hangs = message(&collector).await;
        tracer.start("another").end();
        // The end.
        drop(shutdown);
        let last = async {
            let mut stream = message(&collector).await;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).await.expect("it reads");
            // Closed with unread bytes it would be reset, and the answer lost.
            let _ = stream.read_to_end(&mut Vec::new()).await;
            sending.await.expect("it does not panic");
        };
        timeout(LIMIT, last).await.expect("it ends in time");
        let counted = ["sent", "failed"].map(|result| {
            let labels = ResultLabels { result };
            metrics.spans.get_or_create(&labels).get()
        });
        assert_eq!(counted, [1, 1]);
    }

    #[tokio::test]
    async fn an_answer_that_is_a_refusal_is_not_told_with_the_reason_of_an_earlier_failure() {
        let mut scene = Scene::new().await;
        let refusal =
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        // The second is not worth a line in the log, so that its reason stays.
        for (answer, has_reason) in [(&b""[..], false), (b"", true), (refusal, false)] {
            scene.sends_one(answer).await;
            assert!(!scene.sender.works);
            assert_eq!(!scene.sender.said.lock().why.is_empty(), has_reason);
        }
    }

    #[tokio::test]
    async fn spans_that_a_collector_leaves_out_of_a_message_are_not_sent() {
        let mut scene = Scene::new().await;
        let partly = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: 1,
                error_message: "too old".to_owned(),
            }),
        };
        let partly = partly.encode_to_vec();
        for body in [&partly[..], &[]] {
            let length = body.len();
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            scene.sends_one(&[head.as_bytes(), body].concat()).await;
        }
        assert_eq!(scene.counted(["sent", "refused", "failed"]), [1, 1, 0]);
        assert!(scene.sender.works && scene.sender.has_refused);
    }
}
