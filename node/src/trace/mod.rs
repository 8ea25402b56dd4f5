//! OpenTelemetry traces: one trace a request, continued from the client's and by the worker's. Off by default.
//!
//! | span | kind | from, to |
//! |---|---|---|
//! | request | server | the request's head, the last byte of its answer |
//! | `queue` | internal, child of request | waiting for admission, when it had to wait |
//! | `place` | internal, child of request | body read, worker chosen |
//! | attempt | client, child of request | connecting to a worker, the last byte of its answer or its failure |
//! | `stream` | internal, child of its attempt | the first event, the last byte |
//!
//! An attempt to go on with a broken stream begins with the break, and is one whoever is asked for it.
//!
//! Names and attributes follow the semantic conventions for HTTP and for generative AI (gen_ai), others begin with
//! `grapevine.`; prompts, answers, queries and keys are in none of them. Context travels by W3C `traceparent`: the
//! worker gets the attempt's span as its parent. `tracestate` and `baggage` go on as they came.
//!
//! Off, the client's headers go on as they came, and a request costs one branch. A request that is not sampled costs
//! ids and a header. Spans wait in a bounded queue for one task that sends them (`export`); nothing waits for it.

mod export;
mod metrics;
mod request;

use std::sync::Arc;

use anyhow::Context as _;
use http::HeaderMap;
use http::request::Parts;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

pub use export::SpanSender;
pub use metrics::TraceMetrics;
pub use request::{Ended, RequestTrace};

use crate::api::Endpoint;
use crate::config::{Collector, TraceConfig};
use crate::otlp;

/// Makes the spans of requests.
#[derive(Debug)]
pub struct Tracing {
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl Tracing {
    /// Sets traces up; none when no endpoint is configured. The sender has to be run.
    /// Errors: the client for the collector cannot be made, or a variable of OpenTelemetry in the environment is wrong.
    pub fn start(
        config: &TraceConfig,
        replica: &str,
        metrics: &TraceMetrics,
    ) -> anyhow::Result<Option<(Arc<Self>, SpanSender)>> {
        let Some(Collector { url: endpoint, .. }) = &config.endpoint else {
            return Ok(None);
        };
        let resource = otlp::resource(&config.service_name, replica);
        let (queue, sender) = export::queue(config, endpoint, &resource, metrics)
            .with_context(|| format!("cannot send traces to {endpoint}"))?;
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .with_sampler(Sampler::parent_based(Sampler::TraceIdRatioBased(
                config.sampling_ratio,
            )))
            .with_resource(resource)
            .build();
        let tracing = Self {
            // The tracer holds the provider.
            tracer: provider.tracer("grapevine"),
            propagator: TraceContextPropagator::new(),
        };
        Ok(Some((Arc::new(tracing), sender)))
    }

    /// Begins the span of a request, in the client's trace if it has one.
    pub fn request(self: &Arc<Self>, head: &Parts, endpoint: Endpoint) -> Box<RequestTrace> {
        let parent = self.parent(&head.headers);
        let method = head.method.as_str().to_owned();
        // What is behind an opened path may be anything: no name for a span.
        let route = Endpoint::route(head.uri.path());
        let name = match route {
            Some(route) => format!("{method} {route}"),
            None => method.clone(),
        };
        let mut attributes = vec![
            KeyValue::new("http.request.method", method),
            KeyValue::new("url.path", beginning(head.uri.path()).to_owned()),
            KeyValue::new("network.protocol.version", version(head.version)),
        ];
        if let Some(route) = route {
            attributes.push(KeyValue::new("http.route", route));
        }
        if let Some(operation) = operation(endpoint) {
            attributes.push(KeyValue::new("gen_ai.operation.name", operation));
            attributes.push(KeyValue::new("gen_ai.provider.name", "vllm"));
        }
        let builder = self.tracer.span_builder(name);
        let builder = builder
            .with_kind(SpanKind::Server)
            .with_attributes(attributes);
        let span = self.tracer.build_with_context(builder, &parent);
        let is_new = !parent.has_active_span();
        Box::new(RequestTrace::new(
            Arc::clone(self),
            head.method.clone(),
            span,
            is_new,
        ))
    }

    fn parent(&self, headers: &HeaderMap) -> Context {
        let none = Context::new();
        // Two of them are none: which one counts is not known.
        if headers.get_all("traceparent").iter().count() > 1 {
            return none;
        }
        self.propagator
            .extract_with_context(&none, &Parent(HeaderExtractor(headers)))
    }
}

/// Most of a client's `tracestate` that its spans carry, in bytes: as much as everybody should take (W3C Trace Context,
/// section 3.3.1.5). Each span has a copy, and a collector refuses a batch that is too large.
const TRACESTATE_BYTES_MAX: usize = 512;

/// Most of a client's path that its span carries, in bytes. Where all paths are open it may be as long as a head.
const PATH_BYTES_MAX: usize = 512;

fn beginning(path: &str) -> &str {
    let mut ends = (0..=PATH_BYTES_MAX.min(path.len())).rev();
    let end = ends.find(|end| path.is_char_boundary(*end));
    &path[..end.unwrap_or(0)]
}

/// The headers that name a span's parent.
struct Parent<'a>(HeaderExtractor<'a>);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let is_short = |value: &&str| key != "tracestate" || value.len() <= TRACESTATE_BYTES_MAX;
        self.0.get(key).filter(is_short)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys()
    }
}

fn operation(endpoint: Endpoint) -> Option<&'static str> {
    match endpoint {
        Endpoint::Chat | Endpoint::Responses | Endpoint::Messages => Some("chat"),
        Endpoint::Completions => Some("text_completion"),
        Endpoint::Embeddings => Some("embeddings"),
        _ => None,
    }
}

fn version(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "1.0",
        http::Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn spans_carry_no_long_path() {
        let carried = |path: &str| beginning(path).len();
        for length in [0, 1, 511, 512] {
            assert_eq!(carried(&"x".repeat(length)), length);
        }
        assert_eq!(carried(&"x".repeat(513)), 512);
        assert_eq!(carried(&format!("/{}", "ä".repeat(400))), 511);
    }

    #[test]
    fn spans_carry_no_long_tracestate() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        // Members that each may be as long as they are.
        let members = |count| {
            let members = (0..count).map(|number| format!("v{number}={}", "1".repeat(200)));
            members.collect::<Vec<_>>().join(",")
        };
        let (short, long) = (members(2), members(3));
        assert!(short.len() <= TRACESTATE_BYTES_MAX && long.len() > TRACESTATE_BYTES_MAX);
        for (state, carried) in [(&short, &*short), (&long, "")] {
            let mut headers = HeaderMap::new();
            let parent = format!("00-{trace}-b7ad6b7169203331-01");
            let value = |text: &str| HeaderValue::from_str(text).expect("visible");
            headers.insert("traceparent", value(&parent));
            headers.insert("tracestate", value(state));
            let parent = Parent(HeaderExtractor(&headers));
            let found =
                TraceContextPropagator::new().extract_with_context(&Context::new(), &parent);
            let found = found.span().span_context().clone();
            assert_eq!(found.trace_id().to_string(), trace);
            assert_eq!(found.trace_state().header(), carried);
        }
    }
}
