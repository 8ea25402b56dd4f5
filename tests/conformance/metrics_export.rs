//! Metrics as a collector of OpenTelemetry gets them, and what becomes of requests when it does not.

use grapevine_tests::chat::{CHATS, MODEL, chat, streamed};
use grapevine_tests::cluster::Plan;
use grapevine_tests::collector::{
    Collector, Data, Metric, NumberDataPoint, among, hex, number_data_point,
};
use grapevine_tests::http1;
use grapevine_tests::ports::free_address;
use grapevine_tests::process::{Program, run_with};
use grapevine_tests::wait::{LIMIT, eventually, so};
use tokio::net::TcpListener;

use crate::house::{House, quick, until_log_says};

const POINTS: &str = "grapevine_metrics_export_points_total";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
/// `opentelemetry.proto.metrics.v1.AggregationTemporality`.
const CUMULATIVE: i32 = 2;

fn exporting(collector: &Collector) -> Plan {
    Plan::default()
        .set("metrics_export.endpoint", &collector.setting())
        .set("metrics_export.interval", "\"50ms\"")
}

/// What a counter's points with this attribute add up to, and the earliest of their starts.
fn sum(metric: &Metric, key: &str, value: &str) -> (f64, u64) {
    let Some(Data::Sum(sum)) = &metric.data else {
        panic!("{metric:?}")
    };
    assert!(sum.is_monotonic && sum.aggregation_temporality == CUMULATIVE);
    let with = |of: &&NumberDataPoint| among(&of.attributes, key).as_deref() == Some(value);
    let points: Vec<_> = sum.data_points.iter().filter(with).collect();
    let number = |value: &Option<number_data_point::Value>| match value {
        Some(number_data_point::Value::AsDouble(value)) => *value,
        other => panic!("{other:?}"),
    };
    let total = points.iter().map(|point| number(&point.value)).sum();
    let start = points.iter().map(|point| point.start_time_unix_nano).min();
    for point in points {
        assert!(
            point.start_time_unix_nano < point.time_unix_nano,
            "{point:?}"
        );
    }
    (total, start.unwrap_or_default())
}

/// Waits until an export counts so many requests that ended well.
async fn successes(collector: &Collector, count: f64) -> Metric {
    let (metric, _) = eventually(LIMIT, "an export counts the requests", async || {
        let exports = collector.metric("grapevine_requests_total");
        let last = exports.last().ok_or("no export has requests")?;
        let (found, _) = sum(last, "outcome", "success");
        let found = (found >= count).then(|| last.clone());
        found.ok_or_else(|| format!("{last:?}"))
    })
    .await;
    metric
}

/// Waits until so many points ended like this at least.
async fn points(house: &House, result: &str, count: f64) {
    let admin = house.cluster.replicas[0].admin();
    eventually(LIMIT, "points are counted", async || {
        let metrics = admin.metrics().await;
        let found = metrics.count(POINTS, &format!("\"{result}\""));
        so(found >= count, || format!("{found} {result}"))
    })
    .await;
}

async fn asks(house: &House, text: &str) {
    let answer = http1::post(house.data(), CHATS, &chat(text, 1)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_what_scrapers_get() {
    let collector = Collector::start().await;
    let mut program = Program::default();
    program
        .environment
        .push(("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20key"));
    // Nothing is due before the end: the end must send it.
    let plan = exporting(&collector)
        .set("metrics_export.interval", "\"1h\"")
        .set("trace.endpoint", &collector.setting())
        .set("trace.service_name", "\"routers\"")
        .program(program);
    let mut house = House::of(plan, vec![quick()]).await;
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let body = streamed("a secret canary", 3).to_string();
    let headers = [("traceparent", parent.as_str())];
    let answer = http1::exchange(house.data(), "POST", CHATS, &headers, body.as_bytes()).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert!(collector.metrics().is_empty());
    assert!(house.cluster.replicas[0].terminate().await.success());

    let requests = successes(&collector, 1.0).await;
    let (of_model, start) = sum(&requests, "model", MODEL);
    assert_eq!(of_model, 1.0);
    assert!(start > 1_500_000_000_000_000_000, "{start}");
    let exports = collector.metrics();
    let resource = exports[0].resource.as_ref().expect("a resource");
    for (key, value) in [("service.name", "routers"), ("service.instance.id", "r1")] {
        assert_eq!(among(&resource.attributes, key).as_deref(), Some(value));
    }
    let keys = collector.headers("x-key");
    assert!(
        keys.iter().all(|key| key.as_deref() == Some("a key")),
        "{keys:?}"
    );
    assert!(!collector.was_told("canary"));
    let head = (
        "/v1/metrics".to_owned(),
        "application/x-protobuf".to_owned(),
    );
    assert!(collector.heads().contains(&head), "{:?}", collector.heads());

    // The slow parts of a request lead to its trace.
    let first_token = collector.metric("grapevine_first_token_seconds");
    let Some(Data::Histogram(histogram)) = &first_token[0].data else {
        panic!("{first_token:?}")
    };
    assert_eq!(histogram.aggregation_temporality, CUMULATIVE);
    let point = &histogram.data_points[0];
    assert_eq!((point.count, point.bucket_counts.iter().sum()), (1, 1));
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    let [exemplar] = &point.exemplars[..] else {
        panic!("{point:?}")
    };
    assert_eq!(hex(&exemplar.trace_id), TRACE);
    let spans = collector.spans();
    let mut ids = spans.iter().map(|span| &span.span_id);
    assert!(ids.any(|id| *id == exemplar.span_id), "{exemplar:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_cumulative_over_grpc_as_well() {
    let collector = Collector::grpc(0).await;
    let plan = Plan::default()
        .set("metrics_export.endpoint", &collector.target())
        .set("metrics_export.protocol", "\"grpc\"")
        .set("metrics_export.interval", "\"50ms\"");
    let house = House::of(plan, vec![quick()]).await;
    asks(&house, "first").await;
    let first = successes(&collector, 1.0).await;
    asks(&house, "second").await;
    let second = successes(&collector, 2.0).await;
    let of = |metric| sum(metric, "outcome", "success");
    assert_eq!((of(&first).0, of(&second).0), (1.0, 2.0));
    assert_eq!(of(&first).1, of(&second).1, "they began at the same time");
    let call = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
    for head in collector.heads() {
        assert_eq!(
            (head.0.as_str(), head.1.as_str()),
            (call, "application/grpc")
        );
    }
    points(&house, "sent", 1.0).await;
    house.close().await;

    let refusing = Collector::grpc(12).await;
    let plan = Plan::default()
        .set("metrics_export.endpoint", &refusing.target())
        .set("metrics_export.protocol", "\"grpc\"")
        .set("metrics_export.interval", "\"50ms\"");
    let house = House::of(plan, vec![quick()]).await;
    asks(&house, "refused").await;
    points(&house, "failed", 1.0).await;
    until_log_says(&house.cluster, "gRPC status 12").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_misses_nothing_for_ever() {
    let collector = Collector::start().await;
    collector.answer(503);
    let house = House::of(exporting(&collector), vec![quick()]).await;
    asks(&house, "while it refuses").await;
    points(&house, "failed", 1.0).await;
    until_log_says(&house.cluster, "status 503").await;
    // Some of them are refused.
    collector.refuse(2);
    collector.answer(200);
    points(&house, "refused", 2.0).await;
    points(&house, "sent", 1.0).await;
    collector.refuse(0);
    until_log_says(&house.cluster, "accepts metrics again").await;
    successes(&collector, 1.0).await;
    let log = house.cluster.replicas[0].log();
    assert_eq!(log.matches("does not accept metrics").count(), 1, "{log}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_waits_for_a_collector_of_metrics() {
    let address = free_address();
    // The kernel accepts connections, and nothing ever answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent_address = silent.local_addr().expect("bound");
    for (address, protocol, timeout) in [
        (address, "\"http/protobuf\"", "\"5s\""),
        (address, "\"grpc\"", "\"5s\""),
        (silent_address, "\"http/protobuf\"", "\"100ms\""),
        (silent_address, "\"grpc\"", "\"100ms\""),
    ] {
        let plan = Plan::default()
            .set("metrics_export.protocol", protocol)
            .set("metrics_export.endpoint", &format!("\"http://{address}\""))
            .set("metrics_export.interval", "\"10ms\"")
            .set("metrics_export.timeout", timeout);
        let house = House::of(plan, vec![quick()]).await;
        for number in 0..10 {
            asks(&house, &format!("question {number}")).await;
        }
        points(&house, "failed", 1.0).await;
        let metrics = house.cluster.replicas[0].admin().metrics().await;
        assert_eq!(metrics.count(POINTS, "\"sent\""), 0.0);
        house.close().await;
    }
}

/// A replica that had joined would leave peers behind that wait for it, and clients that it has answered.
#[tokio::test(flavor = "multi_thread")]
async fn headers_that_cannot_be_read_end_the_start_before_a_port_serves() {
    let variables = [("OTEL_EXPORTER_OTLP_HEADERS", "hush")];
    let serve = ["serve", "--otlp-metrics-endpoint", "http://127.0.0.1:9"];
    let ports = ["--port", "0", "--admin-port", "0", "--prometheus-port", "0"];
    for (more, code) in [(&ports[..], 1), (&["--check"][..], 2)] {
        let done = run_with(&variables, &[&serve[..], more].concat()).await;
        assert_eq!(done.code, Some(code), "{}", done.text);
        let why = "cannot read OTEL_EXPORTER_OTLP_HEADERS";
        assert!(done.text.contains(why), "{}", done.text);
        assert!(!done.text.contains("hush"), "{}", done.text);
        let listens = done.text.contains("\"admin\":");
        assert!(!listens, "{}", done.text);
    }
}
