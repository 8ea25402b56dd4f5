//! The way to a collector of OpenTelemetry, for spans and for metrics: OTLP over HTTP or over gRPC.
//!
//! What is in a message is its sender's affair (`trace::export`, `metrics::export`). Here is how one gets there, so that
//! both fail alike: within a time limit, without redirects or proxies, and with an answer that is read to a limit.

mod client;
mod grpc;
mod headers;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use url::Url;

pub use client::Client;
pub use headers::{HeaderError, headers};

use crate::config::OtlpProtocol;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Spans.
    Traces,
    /// Metrics.
    Metrics,
}

impl Signal {
    /// Where its messages go: over HTTP, to OTLP's path where the endpoint has none of its own.
    pub fn target(self, protocol: OtlpProtocol, endpoint: &Url) -> String {
        let mut target = endpoint.clone();
        match protocol {
            OtlpProtocol::Grpc => target.set_path(self.method()),
            OtlpProtocol::HttpProtobuf if target.path() == "/" => target.set_path(self.path()),
            OtlpProtocol::HttpProtobuf => {}
        }
        target.into()
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }

    const fn method(self) -> &'static str {
        match self {
            Self::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        }
    }
}

/// Who sends: the same words for both.
pub fn resource(service_name: &str, replica: &str) -> Resource {
    Resource::builder()
        .with_service_name(service_name.to_owned())
        .with_attribute(KeyValue::new("service.instance.id", replica.to_owned()))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

/// An error and what is behind it: reqwest's own words alone name the address only.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let words: Vec<String> = causes.map(ToString::to_string).collect();
    words.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_otlps_unless_another_is_given() {
        use OtlpProtocol::{Grpc, HttpProtobuf};
        for (endpoint, protocol, traces, metrics) in [
            (
                "http://collector:4318",
                HttpProtobuf,
                "http://collector:4318/v1/traces",
                "http://collector:4318/v1/metrics",
            ),
            (
                "http://collector:4318/",
                HttpProtobuf,
                "http://collector:4318/v1/traces",
                "http://collector:4318/v1/metrics",
            ),
            (
                "https://x/otlp/v1/traces",
                HttpProtobuf,
                "https://x/otlp/v1/traces",
                "https://x/otlp/v1/traces",
            ),
            (
                "http://collector:4317",
                Grpc,
                "http://collector:4317/opentelemetry.proto.collector.trace.v1.TraceService/Export",
                "http://collector:4317/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            ),
        ] {
            let endpoint = endpoint.parse().expect("a URL");
            assert_eq!(Signal::Traces.target(protocol, &endpoint), traces);
            assert_eq!(Signal::Metrics.target(protocol, &endpoint), metrics);
        }
    }
}
