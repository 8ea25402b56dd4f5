//! Settings of what is sent to collectors of OpenTelemetry: traces, and metrics.

use std::time::Duration;

use super::setting::{HOUR, ms, secs};
use super::table::section;
use super::types::{Collector, OtlpProtocol};

section! {
    /// OpenTelemetry traces by OTLP, over HTTP (protobuf) or gRPC. Off until an endpoint is set.
    ///
    /// Spans hold no prompts and no answers. Headers for the collector: the variable OTEL_EXPORTER_OTLP_TRACES_HEADERS,
    /// else OTEL_EXPORTER_OTLP_HEADERS. Of OpenTelemetry's other variables OTEL_RESOURCE_ATTRIBUTES and those of the form
    /// OTEL_SPAN_*_COUNT_LIMIT count for what a span holds; none changes where or how spans are sent.
    [trace] TraceConfig {
        /// Where spans are sent, such as "http://collector:4318"; without a path, /v1/traces is added. For grpc such as
        /// "http://collector:4317" or "collector:4317", without a path; https with the system's authorities.
        ///
        /// Unset: the client's `traceparent` goes on to the worker as it came.
        endpoint: Option<Collector> = None, flag "otlp-traces-endpoint" Text;
        /// "http/protobuf" or "grpc", which a collector takes on different ports (4318 and 4317).
        protocol: OtlpProtocol = OtlpProtocol::HttpProtobuf, flag "otlp-traces-protocol" Text;
        /// Share of the requests that are traced when the client has not decided; its own decision counts.
        sampling_ratio: f64 = 1.0, in 0.0..=1.0, flag "otel-sampling-ratio" Text;
        /// `service.name` of the spans.
        service_name: String = "grapevine".to_owned();
        /// Spans that may wait to be sent; above it they are dropped, and counted.
        queue: u32 = 4_096, in 1..=1_000_000;
        /// Spans in one message to the collector.
        batch: u32 = 512, in 1..=65_536;
        /// How long a span waits for others at most.
        interval: Duration = secs(2), in ms(10)..=secs(60);
        /// How long the collector may take for one message; then its spans are dropped, and counted.
        timeout: Duration = secs(5), in ms(10)..=secs(60);
    }
}

section! {
    /// Metrics by OpenTelemetry's OTLP, besides what scrapers get. Off until an endpoint is set.
    ///
    /// Names, labels and values are those of /metrics, and `service.name` is that of [trace]. Headers for the collector:
    /// the variable OTEL_EXPORTER_OTLP_METRICS_HEADERS, else (also where it is empty) OTEL_EXPORTER_OTLP_HEADERS. No other
    /// variable of OpenTelemetry changes where or how metrics are sent.
    [metrics_export] MetricsExportConfig {
        /// Where metrics are sent, such as "http://collector:4318"; without a path, /v1/metrics is added. For grpc such as
        /// "http://collector:4317" or "collector:4317", without a path; https with the system's authorities.
        endpoint: Option<Collector> = None, flag "otlp-metrics-endpoint" Text;
        /// "http/protobuf" or "grpc", which a collector takes on different ports (4318 and 4317).
        protocol: OtlpProtocol = OtlpProtocol::HttpProtobuf, flag "otlp-metrics-protocol" Text;
        /// Time between two exports; one that is due while the last one goes on is left out.
        interval: Duration = secs(60), in ms(10)..=HOUR;
        /// How long the collector may take for one message; then the rest of the export is dropped, and counted. The
        /// next one has it all: values are cumulative.
        timeout: Duration = secs(5), in ms(10)..=secs(60);
    }
}
