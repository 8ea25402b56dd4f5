//! The spans of one request.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_sdk::trace::Span;

use super::Tracing;
use crate::metrics::SampledSpan;
use crate::upstream::failure::GIVEN_UP;

/// W3C trace context, level 1.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// How a request ended, for its span.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// The outcome's stable word.
    pub outcome: &'static str,
    /// The client or the worker is not to blame alone: the trace is marked as failed.
    pub is_failure: bool,
    /// Status that the client got.
    pub status: Option<StatusCode>,
    /// The model's name in the registry.
    pub model: Option<&'a str>,
    /// What the response cache had.
    pub cache: Option<&'static str>,
    /// Tokens of the prompt that the worker reported.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer that it reported.
    pub completion_tokens: Option<u64>,
    /// From the request's head to its first token.
    pub first_token: Option<Duration>,
}

/// The spans of one request that have begun. Dropped, they end.
#[derive(Debug)]
pub struct RequestTrace {
    tracing: Arc<Tracing>,
    // In the order in which they end.
    stream: Option<Span>,
    attempt: Option<Span>,
    /// The attempt's worker has answered.
    is_answered: bool,
    /// The prefill leg of a request that is divided.
    prefill: Option<Span>,
    attempts: u32,
    method: Method,
    span: Span,
    /// The client had no valid `traceparent`.
    is_new: bool,
}

impl RequestTrace {
    pub(super) fn new(tracing: Arc<Tracing>, method: Method, span: Span, is_new: bool) -> Self {
        Self {
            tracing,
            stream: None,
            attempt: None,
            is_answered: false,
            prefill: None,
            attempts: 0,
            method,
            span,
            is_new,
        }
    }

    /// The trace's id: 32 hexadecimal digits.
    pub fn id(&self) -> impl Display + use<> {
        self.span.span_context().trace_id()
    }

    /// Its span, if the trace is sampled: then the collector has it.
    pub fn sampled(&self) -> Option<SampledSpan> {
        let context = self.span.span_context();
        context.is_sampled().then(|| SampledSpan {
            trace: context.trace_id(),
            span: context.span_id(),
        })
    }

    /// The request waited this long for admission, until now.
    pub fn queued(&mut self, waited: Duration) {
        self.child("queue", waited, Vec::new());
    }

    /// The choice of a worker took this long, until now.
    pub fn placed(&mut self, took: Duration, reason: &'static str) {
        self.child(
            "place",
            took,
            vec![KeyValue::new("grapevine.reason", reason)],
        );
    }

    /// An attempt on a worker begins, which is reached there.
    pub fn attempt(&mut self, worker: &str, host: &str, port: u16) {
        self.attempts += 1;
        self.begin_attempt();
        self.asks(worker, host, port);
    }

    /// The worker of a stream broke off, and others are asked to go on: what they do is of the next attempt.
    pub fn moves(&mut self, headers: &mut HeaderMap) {
        self.begin_attempt();
        self.propagate(headers);
    }

    /// A worker goes on with the stream, the last of `attempts` that were asked.
    pub fn moved(
        &mut self,
        worker: &str,
        (host, port): (&str, u16),
        attempts: u32,
        status: StatusCode,
    ) {
        self.attempts += attempts;
        self.asks(worker, host, port);
        self.answers(status, true);
    }

    /// No worker goes on with the stream.
    pub fn moved_nowhere(&mut self, why: &'static str) {
        if !self.is_answered {
            self.attempt_failed(why, None);
        }
    }

    fn begin_attempt(&mut self) {
        // One that is still open passed a part of the answer and broke off.
        drop(self.stream.take());
        self.attempt_failed("broke_off", None);
        self.is_answered = false;
        self.attempt = self.span.is_recording().then(|| self.client_span());
    }

    fn asks(&mut self, worker: &str, host: &str, port: u16) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        attempt.set_attributes(reached(worker, host, port));
        if self.attempts > 1 {
            let resend = i64::from(self.attempts) - 1;
            attempt.set_attribute(KeyValue::new("http.request.resend_count", resend));
        }
    }

    /// The prefill leg of a request that is divided begins on a worker, which is reached there.
    pub fn prefill(&mut self, worker: &str, host: &str, port: u16) {
        if !self.span.is_recording() {
            return;
        }
        let mut leg = self.client_span();
        leg.set_attributes(reached(worker, host, port));
        leg.set_attribute(KeyValue::new("grapevine.leg", "prefill"));
        self.prefill = Some(leg);
    }

    /// The prefill leg ended, with a failure or not.
    pub fn prefill_ended(&mut self, failure: Option<&'static str>) {
        if let Some(mut prefill) = self.prefill.take() {
            mark(&mut prefill, failure);
        }
    }

    fn client_span(&self) -> Span {
        let (tracer, method) = (&self.tracing.tracer, self.method.as_str().to_owned());
        let builder = tracer
            .span_builder(method.clone())
            .with_kind(SpanKind::Client)
            .with_attributes([KeyValue::new("http.request.method", method)]);
        tracer.build_with_context(builder, &within(&self.span))
    }

    /// Makes the current attempt the parent of what the worker does.
    pub fn propagate(&self, headers: &mut HeaderMap) {
        self.propagate_as(self.attempt.as_ref(), headers);
    }

    /// Makes the prefill leg the parent of what its worker does.
    pub fn propagate_prefill(&self, headers: &mut HeaderMap) {
        self.propagate_as(self.prefill.as_ref(), headers);
    }

    fn propagate_as(&self, parent: Option<&Span>, headers: &mut HeaderMap) {
        let context = parent.unwrap_or(&self.span).span_context();
        let parent = format!(
            "00-{}-{}-{:02x}",
            context.trace_id(),
            context.span_id(),
            context.trace_flags()
        );
        let parent = HeaderValue::try_from(parent).expect("hexadecimal digits and hyphens");
        headers.insert(TRACEPARENT, parent);
        if self.is_new {
            // It belongs to a parent that cannot be read.
            headers.remove(TRACESTATE);
        }
    }

    /// The attempt gave nothing that may be shown.
    pub fn attempt_failed(&mut self, failure: &'static str, status: Option<StatusCode>) {
        if let Some(mut attempt) = self.attempt.take() {
            set_status_code(&mut attempt, status);
            attempt.set_attribute(KeyValue::new("error.type", failure));
            attempt.set_status(Status::error(failure));
        }
    }

    /// The current attempt's answer begins to pass; `streams`: as events.
    pub fn answers(&mut self, status: StatusCode, streams: bool) {
        self.is_answered = true;
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        set_status_code(attempt, Some(status));
        if streams {
            let tracer = &self.tracing.tracer;
            let builder = tracer.span_builder("stream");
            self.stream = Some(tracer.build_with_context(builder, &within(attempt)));
        }
    }

    /// The request ended.
    pub fn end(mut self, ended: &Ended<'_>) {
        drop(self.stream.take());
        let failure = ended.is_failure.then_some(ended.outcome);
        if let Some(mut attempt) = self.attempt.take() {
            // Nobody waited for its worker any more; what the client got then was not that worker's.
            let given_up = (!self.is_answered).then_some(GIVEN_UP);
            mark(&mut attempt, given_up.or(failure));
        }
        let span = &mut self.span;
        if !span.is_recording() {
            return;
        }
        let mut set = |key: &'static str, value: Option<Value>| {
            if let Some(value) = value {
                span.set_attribute(KeyValue::new(key, value));
            }
        };
        let count = |count: u64| Value::from(i64::try_from(count).unwrap_or(i64::MAX));
        set("grapevine.outcome", Some(ended.outcome.into()));
        set("grapevine.attempts", Some(i64::from(self.attempts).into()));
        set("grapevine.cache", ended.cache.map(Value::from));
        set(
            "gen_ai.request.model",
            ended.model.map(|model| model.to_owned().into()),
        );
        set("gen_ai.usage.input_tokens", ended.prompt_tokens.map(count));
        set(
            "gen_ai.usage.output_tokens",
            ended.completion_tokens.map(count),
        );
        // As vLLM names it in its own spans.
        let first_token = ended.first_token.map(|time| time.as_secs_f64().into());
        set("gen_ai.latency.time_to_first_token", first_token);
        set_status_code(span, ended.status);
        mark(span, failure);
    }

    /// A child that ends now.
    fn child(&self, name: &'static str, took: Duration, attributes: Vec<KeyValue>) {
        if self.span.is_recording() {
            let tracer = &self.tracing.tracer;
            let now = SystemTime::now();
            let builder = tracer
                .span_builder(name)
                .with_start_time(now.checked_sub(took).unwrap_or(now))
                .with_attributes(attributes);
            let mut child = tracer.build_with_context(builder, &within(&self.span));
            child.end_with_timestamp(now);
        }
    }
}

fn within(parent: &Span) -> Context {
    Context::new().with_remote_span_context(parent.span_context().clone())
}

/// Where a request goes.
fn reached(worker: &str, host: &str, port: u16) -> [KeyValue; 3] {
    [
        KeyValue::new("server.address", host.to_owned()),
        KeyValue::new("server.port", i64::from(port)),
        KeyValue::new("grapevine.worker", worker.to_owned()),
    ]
}

fn set_status_code(span: &mut Span, status: Option<StatusCode>) {
    if let Some(status) = status {
        let code = i64::from(status.as_u16());
        span.set_attribute(KeyValue::new("http.response.status_code", code));
    }
}

fn mark(span: &mut Span, failure: Option<&'static str>) {
    if let Some(failure) = failure {
        span.set_attribute(KeyValue::new("error.type", failure));
        span.set_status(Status::error(failure));
    }
}
