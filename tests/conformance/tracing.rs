//! Traces: the spans of a request, as a collector and a worker see them.

use grapevine_testbed::fake_worker::{Entry, Fault, How, Point, Rule};
use grapevine_tests::chat::{MODEL, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::collector::{Collector, Span, attribute, hex};
use grapevine_tests::http1::{self, Connection, Response, request as request_of};
use grapevine_tests::ports::free_address;
use grapevine_tests::wait::{LIMIT, eventually};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::house::{House, quick, until_log_says};

const CHATS: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
// `opentelemetry.proto.trace.v1.Span.SpanKind` and `Status.StatusCode`.
const SERVER: i32 = 2;
const CLIENT: i32 = 3;
const ERROR: i32 = 2;

fn tracing(collector: &Collector) -> Plan {
    Plan::default()
        .set("trace.endpoint", &collector.setting())
        .set("trace.interval", "\"20ms\"")
}

async fn ask(house: &House, headers: &[(&str, &str)], body: &Value) -> Response {
    let body = body.to_string();
    http1::exchange(house.data(), "POST", CHATS, headers, body.as_bytes()).await
}

/// The only value of a header that a worker saw.
fn seen<'a>(entry: &'a Entry, name: &str) -> Option<&'a str> {
    let mut named = entry
        .headers
        .iter()
        .filter(|(n, _)| n.eq_ignore_ascii_case(name));
    let value = named.next().map(|(_, value)| value.as_str());
    assert!(named.next().is_none(), "{name} is there twice");
    value
}

/// Waits for this many spans.
async fn spans(collector: &Collector, count: usize) -> Vec<Span> {
    let (spans, _) = eventually(LIMIT, "spans arrive", async || {
        let spans = collector.spans();
        let names: Vec<_> = spans.iter().map(|span| span.name.clone()).collect();
        (spans.len() >= count)
            .then_some(spans)
            .ok_or_else(|| format!("{names:?}"))
    })
    .await;
    assert_eq!(spans.len(), count, "{spans:#?}");
    spans
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

fn is(span: &Span, key: &str, expected: &str) {
    assert_eq!(
        attribute(span, key).as_deref(),
        Some(expected),
        "{key} of {}",
        span.name
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_one_trace_from_client_to_worker() {
    let collector = Collector::start().await;
    // Nothing is sent before the shutdown: the shutdown must send it.
    let plan = tracing(&collector).set("trace.interval", "\"60s\"");
    let mut house = House::of(plan, vec![quick()]).await;
    let mut body = streamed("a secret canary", 3);
    body["stream_options"] = serde_json::json!({ "include_usage": true });
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [
        ("traceparent", parent.as_str()),
        ("tracestate", "vendor=1"),
        ("authorization", "Bearer secret-key"),
    ];
    let answer = ask(&house, &headers, &body).await;
    assert_eq!(answer.head.status, 200);
    assert!(collector.spans().is_empty());
    assert!(house.cluster.replicas[0].terminate().await.success());

    let spans = spans(&collector, 4).await;
    assert!(
        spans.iter().all(|span| hex(&span.trace_id) == TRACE),
        "{spans:#?}"
    );
    let [request] = named(&spans, "POST /v1/chat/completions")[..] else {
        panic!("{spans:#?}")
    };
    let [place] = named(&spans, "place")[..] else {
        panic!("{spans:#?}")
    };
    let [attempt] = named(&spans, "POST")[..] else {
        panic!("{spans:#?}")
    };
    let [stream] = named(&spans, "stream")[..] else {
        panic!("{spans:#?}")
    };
    assert_eq!(hex(&request.parent_span_id), PARENT);
    assert_eq!(place.parent_span_id, request.span_id);
    assert_eq!(attempt.parent_span_id, request.span_id);
    assert_eq!(stream.parent_span_id, attempt.span_id);
    assert_eq!((request.kind, attempt.kind), (SERVER, CLIENT));
    for inner in [place, attempt, stream] {
        assert!(inner.start_time_unix_nano >= request.start_time_unix_nano);
        assert!(inner.end_time_unix_nano <= request.end_time_unix_nano);
    }
    for (key, value) in [
        ("http.request.method", "POST"),
        ("http.route", CHATS),
        ("http.response.status_code", "200"),
        ("network.protocol.version", "1.1"),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", MODEL),
        ("gen_ai.usage.output_tokens", "3"),
        ("grapevine.outcome", "success"),
        ("grapevine.attempts", "1"),
    ] {
        is(request, key, value);
    }
    assert!(attribute(request, "gen_ai.usage.input_tokens").is_some());
    assert!(attribute(request, "gen_ai.latency.time_to_first_token").is_some());
    is(attempt, "grapevine.worker", &house.workers[0].url());
    is(
        attempt,
        "server.port",
        &house.workers[0].addr().port().to_string(),
    );
    is(place, "grapevine.reason", "home");

    let log = house.workers[0].log();
    let expected = format!("00-{TRACE}-{}-01", hex(&attempt.span_id));
    assert_eq!(seen(&log[0], "traceparent"), Some(expected.as_str()));
    assert_eq!(seen(&log[0], "tracestate"), Some("vendor=1"));
    let line = house.cluster.replicas[0].log();
    assert!(line.contains(&format!("trace_id={TRACE}")), "{line}");

    let (path, kind) = &collector.heads()[0];
    assert_eq!(
        (path.as_str(), kind.as_str()),
        ("/v1/traces", "application/x-protobuf")
    );
    for name in ["grapevine", "r1"] {
        assert!(collector.was_told(name), "the resource names {name}");
    }
    for secret in ["canary", "secret-key"] {
        assert!(!collector.was_told(secret), "{secret}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_has_a_span_and_its_own_worker() {
    let collector = Collector::start().await;
    let house = House::of(tracing(&collector), vec![quick(); 2]).await;
    let body = chat("two attempts", 2);
    let home = house.home(&body).await;
    house.workers[home]
        .add_rule(Rule::next(1, Fault::status(500)))
        .expect("room for a rule");
    // An unreadable header begins a new trace, and its state is not passed on.
    let headers = [
        ("traceparent", "00-nonsense-01"),
        ("tracestate", "vendor=1"),
    ];
    let answer = ask(&house, &headers, &body).await;
    assert_eq!(answer.head.status, 200);

    let spans = spans(&collector, 4).await;
    let [request] = named(&spans, "POST /v1/chat/completions")[..] else {
        panic!("{spans:#?}")
    };
    assert!(request.parent_span_id.is_empty(), "{request:#?}");
    is(request, "grapevine.attempts", "2");
    let mut attempts = named(&spans, "POST");
    attempts.sort_by_key(|span| span.start_time_unix_nano);
    let [failed, good] = attempts[..] else {
        panic!("{spans:#?}")
    };
    let status = |span: &Span| span.status.as_ref().map_or(0, |status| status.code);
    assert_eq!(
        (status(failed), status(good), status(request)),
        (ERROR, 0, 0)
    );
    is(failed, "error.type", "status");
    is(failed, "http.response.status_code", "500");
    is(good, "http.request.resend_count", "1");
    for (span, worker) in [(failed, home), (good, 1 - home)] {
        is(span, "grapevine.worker", &house.workers[worker].url());
        let log = house.workers[worker].log();
        let expected = format!("00-{}-{}-01", hex(&request.trace_id), hex(&span.span_id));
        assert_eq!(seen(&log[0], "traceparent"), Some(expected.as_str()));
        assert_eq!(seen(&log[0], "tracestate"), None);
    }
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_goes_on_elsewhere_is_of_the_next_attempt() {
    let collector = Collector::start().await;
    let plan = tracing(&collector).set("failover.enabled", "true");
    let house = House::of(plan, vec![quick(); 2]).await;
    let body = streamed("moves", 5);
    let home = house.home(&body).await;
    house.workers[home]
        .add_rule(Rule::next(1, Fault::stop(Point::Event(3), How::Rst)))
        .expect("room for a rule");
    // The state belongs to a parent that cannot be read.
    let headers = [("tracestate", "vendor=1")];
    let answer = ask(&house, &headers, &body).await;
    assert!(answer.text().contains("[DONE]"), "{}", answer.text());

    let spans = spans(&collector, 6).await;
    let [request] = named(&spans, "POST /v1/chat/completions")[..] else {
        panic!("{spans:#?}")
    };
    is(request, "grapevine.attempts", "2");
    is(request, "grapevine.outcome", "success");
    let mut attempts = named(&spans, "POST");
    attempts.sort_by_key(|span| span.start_time_unix_nano);
    let [broken, next] = attempts[..] else {
        panic!("{spans:#?}")
    };
    is(broken, "error.type", "broke_off");
    assert_eq!(attribute(next, "error.type"), None);
    is(next, "http.request.resend_count", "1");
    for (span, worker) in [(broken, home), (next, 1 - home)] {
        is(span, "http.response.status_code", "200");
        is(span, "grapevine.worker", &house.workers[worker].url());
        let streams = named(&spans, "stream").into_iter();
        let of_it = streams.filter(|stream| stream.parent_span_id == span.span_id);
        assert_eq!(of_it.count(), 1, "{spans:#?}");
        let log = house.workers[worker].log();
        let expected = format!("00-{}-{}-01", hex(&request.trace_id), hex(&span.span_id));
        assert_eq!(seen(&log[0], "traceparent"), Some(expected.as_str()));
        assert_eq!(seen(&log[0], "tracestate"), None);
    }
    house.close().await;

    // Nobody else is there to go on.
    let collector = Collector::start().await;
    let plan = tracing(&collector).set("failover.enabled", "true");
    let house = House::of(plan, vec![quick()]).await;
    house.workers[0]
        .add_rule(Rule::next(1, Fault::stop(Point::Event(3), How::Rst)))
        .expect("room for a rule");
    ask(&house, &[], &body).await;
    let spans = self::spans(&collector, 5).await;
    let reasons = named(&spans, "POST").into_iter();
    let mut reasons: Vec<_> = reasons.map(|span| attribute(span, "error.type")).collect();
    reasons.sort();
    let expected = ["broke_off", "no_worker"].map(|reason| Some(reason.to_owned()));
    assert_eq!(reasons, expected);
    house.close().await;
}

/// Whatever its client was sent, or was not.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_no_worker_answered_has_no_status() {
    let collector = Collector::start().await;
    let plan = tracing(&collector).set("timeouts.whole_request", "\"300ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let silent = Rule::always(Fault::never_answer());
    house.workers[0].add_rule(silent).expect("room for a rule");
    let answer = ask(&house, &[], &chat("nobody answers", 1)).await;
    assert_eq!(answer.head.status, 504, "{}", answer.text());
    let spans = spans(&collector, 3).await;
    let [request] = named(&spans, "POST /v1/chat/completions")[..] else {
        panic!("{spans:#?}")
    };
    let [attempt] = named(&spans, "POST")[..] else {
        panic!("{spans:#?}")
    };
    is(request, "http.response.status_code", "504");
    assert_eq!(attribute(attempt, "http.response.status_code"), None);
    // It is marked as it is counted.
    let why = attribute(attempt, "error.type").expect("it gave nothing");
    let metrics = house.cluster.replicas[0].admin().metrics().await;
    let counted = metrics.sum("grapevine_attempts_total", &format!("\"{why}\""));
    assert_eq!(counted, 1.0, "{why}");
    house.close().await;

    let collector = Collector::start().await;
    let house = House::of(tracing(&collector), vec![quick()]).await;
    let silent = Rule::always(Fault::never_answer());
    house.workers[0].add_rule(silent).expect("room for a rule");
    let body = chat("nobody waits", 1).to_string();
    let mut client = Connection::open(house.data()).await;
    let bytes = request_of("POST", CHATS, &[], body.as_bytes());
    client.send(&bytes).await.expect("taken");
    eventually(LIMIT, "the worker has it", async || {
        let asked = house.workers[0].log().len();
        (asked > 0).then_some(()).ok_or_else(|| asked.to_string())
    })
    .await;
    drop(client);
    let spans = self::spans(&collector, 3).await;
    let [attempt] = named(&spans, "POST")[..] else {
        panic!("{spans:#?}")
    };
    is(attempt, "error.type", "given_up");
    assert_eq!(attribute(attempt, "http.response.status_code"), None);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_that_is_not_sampled_goes_on_unsampled() {
    let collector = Collector::start().await;
    let plan = tracing(&collector).set("trace.sampling_ratio", "0.0");
    let house = House::of(plan, vec![quick()]).await;
    let parent = |flags: &str| format!("00-{TRACE}-{PARENT}-{flags}");
    // The client's choice wins over the ratio, in both directions.
    let (unsampled, sampled) = (parent("00"), parent("01"));
    ask(
        &house,
        &[("traceparent", &unsampled)],
        &chat("unsampled", 1),
    )
    .await;
    ask(&house, &[], &chat("nobody's", 1)).await;
    ask(&house, &[("traceparent", &sampled)], &chat("sampled", 1)).await;
    let spans = spans(&collector, 3).await;
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));

    let log = house.workers[0].log();
    let parents: Vec<_> = log
        .iter()
        .map(|entry| seen(entry, "traceparent").expect("always"))
        .collect();
    assert!(parents[0].starts_with(&format!("00-{TRACE}-")) && parents[0].ends_with("-00"));
    assert!(
        !parents[0].contains(PARENT),
        "the router's own span is the parent"
    );
    assert!(
        !parents[1].contains(TRACE) && parents[1].ends_with("-00"),
        "{}",
        parents[1]
    );
    assert!(parents[2].ends_with("-01"));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_collector_gets_the_same_spans() {
    let collector = Collector::grpc(0).await;
    let plan = Plan::default()
        .set("trace.endpoint", &collector.target())
        .set("trace.protocol", "\"grpc\"")
        .set("trace.interval", "\"20ms\"");
    let house = House::of(plan, vec![quick()]).await;
    for number in 0..3 {
        let answer = ask(&house, &[], &chat(&format!("a secret canary {number}"), 1)).await;
        assert_eq!(answer.head.status, 200);
        // One connection takes one message after the other.
        let spans = spans(&collector, (number + 1) * 3).await;
        assert_eq!(named(&spans, "POST /v1/chat/completions").len(), number + 1);
        assert_eq!(named(&spans, "POST").len(), number + 1);
    }
    for (path, kind) in collector.heads() {
        assert_eq!(
            (path.as_str(), kind.as_str()),
            (
                "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
                "application/grpc"
            )
        );
    }
    assert!(collector.was_told("grapevine") && !collector.was_told("canary"));
    counted(&house, "sent", 9.0).await;
    house.close().await;

    // A collector that refuses gets no message twice, and the log has the reason.
    let refusing = Collector::grpc(12).await;
    let plan = Plan::default()
        .set("trace.endpoint", &refusing.target())
        .set("trace.protocol", "\"grpc\"")
        .set("trace.interval", "\"20ms\"");
    let house = House::of(plan, vec![quick()]).await;
    let answer = ask(&house, &[], &chat("refused", 1)).await;
    assert_eq!(answer.head.status, 200);
    counted(&house, "failed", 3.0).await;
    assert_eq!(refusing.spans().len(), 3);
    until_log_says(&house.cluster, "gRPC status 12").await;
    house.close().await;
}

/// Waits until so many spans ended like this.
async fn counted(house: &House, result: &str, count: f64) {
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "spans are counted", async || {
        let metrics = admin.metrics().await;
        let spans = metrics.series("grapevine_trace_spans_total");
        let found = spans
            .iter()
            .any(|(labels, found)| labels.contains(result) && *found >= count);
        found.then_some(()).ok_or_else(|| format!("{spans:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_waits_for_a_collector() {
    let address = free_address();
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent_address = silent.local_addr().expect("bound");
    for (address, timeout, result, protocol) in [
        (address, "\"5s\"", "failed", "\"http/protobuf\""),
        (address, "\"5s\"", "failed", "\"grpc\""),
        // The kernel accepts connections, and nothing ever answers.
        (silent_address, "\"60s\"", "dropped", "\"http/protobuf\""),
        (silent_address, "\"60s\"", "dropped", "\"grpc\""),
    ] {
        let plan = Plan::default()
            .set("trace.protocol", protocol)
            .set("trace.endpoint", &format!("\"http://{address}\""))
            .set("trace.interval", "\"10ms\"")
            .set("trace.timeout", timeout)
            .set("trace.queue", "1")
            .set("trace.batch", "1");
        let house = House::of(plan, vec![quick()]).await;
        for number in 0..10 {
            let answer = ask(&house, &[], &chat(&format!("question {number}"), 1)).await;
            assert_eq!(answer.head.status, 200, "{}", answer.text());
        }
        counted(&house, result, 1.0).await;
        house.close().await;
    }
}
