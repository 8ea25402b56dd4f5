//! A Prometheus that asks for protobuf, and one that asks for OpenMetrics, scrape the same: values, types and exemplars.

use std::time::Duration;

use grapevine_tests::chat::{self, MODEL, streamed};
use grapevine_tests::cluster::{Cluster, Plan};
use grapevine_tests::collector::Collector;
use grapevine_tests::http1;
use grapevine_tests::wait::{eventually, so};
use serde_json::Value;

use super::LIMIT;
use super::prometheus::Prometheus;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
/// With this one Prometheus asks for protobuf first.
const OF_PROTOBUF: &str = "native-histograms";
const OF_EXEMPLARS: &str = "exemplar-storage";

/// A stream in a sampled trace of its client.
async fn ask(cluster: &Cluster) {
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let headers = [("traceparent", parent.as_str())];
    let body = streamed("a question", 3).to_string();
    let to = cluster.replicas[0].data();
    let path = "/v1/chat/completions";
    let answer = http1::exchange(to, "POST", path, &headers, body.as_bytes()).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
}

/// The only value of an expression, once there is one.
async fn value(prometheus: &Prometheus, expression: &str) -> f64 {
    let (value, _) = eventually(LIMIT, "an expression has a value", async || {
        let series = prometheus.query(expression).await;
        let value = series
            .first()
            .and_then(|series| series["value"][1].as_str());
        let value = value.and_then(|value| value.parse::<f64>().ok());
        value
            .filter(|value| *value > 0.0)
            .ok_or_else(|| format!("{expression}: {series:?}"))
    })
    .await;
    value
}

#[tokio::test(flavor = "multi_thread")]
async fn protobuf_and_text_tell_a_prometheus_the_same() {
    let collector = Collector::start().await;
    let workers = chat::workers(1, &chat::paced(Duration::from_millis(2))).await;
    let plan = Plan::default()
        .workers(&workers)
        .set("trace.endpoint", &collector.setting());
    let cluster = plan.start(1).await;
    ask(&cluster).await;
    let scrapers = [
        // Described by the names of samples in protobuf, by those of families in OpenMetrics.
        (vec![OF_EXEMPLARS, OF_PROTOBUF], "grapevine_requests_total"),
        (vec![OF_EXEMPLARS], "grapevine_requests"),
    ];
    let mut seen = Vec::new();
    for (features, described) in scrapers {
        let prometheus = Prometheus::start_with(&cluster, &features).await;
        let of_model = format!("{{model=\"{MODEL}\"}}");
        let mut values = Vec::new();
        for name in [
            "grapevine_requests_total",
            "grapevine_first_token_seconds_count",
            "grapevine_first_token_seconds_sum",
            "grapevine_inter_token_seconds_count",
            "grapevine_request_seconds_bucket",
        ] {
            values.push(value(&prometheus, &format!("sum({name}{of_model})")).await);
        }
        let bounds = "count by (le) (grapevine_first_token_seconds_bucket)";
        values.push(value(&prometheus, &format!("sum({bounds})")).await);
        // Bounds are spelled alike, which rules go by.
        let at_one = format!("grapevine_request_seconds_bucket{{model=\"{MODEL}\",le=\"1800.0\"}}");
        values.push(value(&prometheus, &at_one).await);
        seen.push(values);

        let metadata = prometheus.get("/api/v1/metadata").await;
        let kind = &metadata["data"][described][0]["type"];
        assert_eq!(
            kind, "counter",
            "{described}: it was scraped in another form"
        );
        let kind = &metadata["data"]["grapevine_first_token_seconds"][0]["type"];
        assert_eq!(kind, "histogram");
        for name in ["request", "first_token", "stream_pause"] {
            let expression = format!("grapevine_{name}_seconds_bucket{of_model}");
            eventually(LIMIT, "there is an exemplar", async || {
                let found = prometheus.exemplars(&expression).await;
                let id = |of: &Value| of["exemplars"][0]["labels"]["trace_id"] == TRACE;
                so(found.iter().any(id), || format!("{found:?}"))
            })
            .await;
        }
    }
    assert_eq!(seen[0], seen[1]);
}
