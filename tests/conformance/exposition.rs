//! The form of `/metrics` for scrapers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use grapevine_testbed::fake_worker::Config as FakeWorkerConfig;
use grapevine_tests::chat::chat;
use grapevine_tests::cluster::Plan;
use grapevine_tests::http1::{self, Response};
use prost::Message;

use crate::house::{House, quick};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// `io.prometheus.client.MetricFamily` and what is in it, as far as these tests look.
#[derive(Clone, PartialEq, Message)]
struct Family {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    /// 0: counter, 1: gauge, 4: histogram.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<SeriesMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct SeriesMessage {
    #[prost(message, repeated, tag = "1")]
    label: Vec<Pair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
}

fn families(mut body: &[u8]) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::new();
    while !body.is_empty() {
        let family = Family::decode_length_delimited(&mut body).expect("a family");
        let name = family.name.clone().expect("a name");
        assert!(families.insert(name, family).is_none(), "twice");
    }
    families
}

/// Each family is described, counters alone end in `_total`, and each series has the value of its kind; how many there
/// are.
fn check_families(families: &BTreeMap<String, Family>) -> usize {
    for (name, family) in families {
        assert!(family.help.as_ref().is_some_and(|help| !help.is_empty()));
        assert_eq!(name.ends_with("_total"), family.kind == Some(0), "{name}");
        for series in &family.metric {
            let has = match family.kind {
                Some(0) => series.counter.is_some(),
                Some(1) => series.gauge.is_some(),
                Some(4) => series.histogram.as_ref().is_some_and(|histogram| {
                    let bounds = histogram.bucket.iter().map(|bucket| bucket.upper_bound);
                    let last = histogram.bucket.last().and_then(|of| of.cumulative_count);
                    bounds.is_sorted() && last == histogram.sample_count && last.is_some()
                }),
                _ => false,
            };
            assert!(has, "{name}: {series:?}");
        }
    }
    families.values().map(|family| family.metric.len()).sum()
}

/// The body of `/metrics`, which must have this content type.
async fn scrape(admin: SocketAddr, accept: Option<&str>, form: &str) -> String {
    fetch(admin, accept, form).await.text()
}

async fn fetch(admin: SocketAddr, accept: Option<&str>, form: &str) -> Response {
    let headers: Vec<_> = accept
        .map(|accept| ("accept", accept))
        .into_iter()
        .collect();
    let answer = http1::exchange(admin, "GET", "/metrics", &headers, b"").await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(answer.head.header("content-type"), Some(form), "{accept:?}");
    answer
}

/// The rules of the checker of text format 0.0.4: each sample belongs to a metric that was described once and has a
/// type, counters and only they end in `_total`, and there are no other lines.
fn check_text(text: &str) {
    let (mut helped, mut types) = (BTreeSet::new(), BTreeMap::new());
    let mut samples = 0;
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a help text");
            assert!(helped.insert(name) && !help.is_empty(), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(types.insert(name, kind).is_none(), "twice: {line}");
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            value.parse::<f64>().expect("a number");
            let name = series.split('{').next().expect("a name");
            let ends = ["_bucket", "_sum", "_count"];
            let of_histogram = ends.iter().filter_map(|end| name.strip_suffix(end));
            let mut of_histogram =
                of_histogram.filter(|base| types.get(base) == Some(&"histogram"));
            let metric = of_histogram.next().unwrap_or(name);
            assert!(
                types.contains_key(metric) && helped.contains(metric),
                "{line}"
            );
            samples += 1;
        }
    }
    assert!(samples > 100, "{samples} samples");
}

#[tokio::test(flavor = "multi_thread")]
async fn scrapers_get_the_form_that_they_ask_for() {
    const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let house = House::new(1).await;
    let answer = http1::post(house.data(), "/v1/chat/completions", &chat("counted", 2)).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let admin = house.cluster.replicas[0].admin().0;
    for accept in [None, Some("*/*"), Some("text/plain;version=0.0.4")] {
        let text = scrape(admin, accept, TEXT).await;
        check_text(&text);
        assert!(
            text.contains("\n# TYPE grapevine_requests_total counter\n"),
            "{text}"
        );
    }
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for accept in ["application/openmetrics-text", prometheus] {
        let open = scrape(admin, Some(accept), OPEN).await;
        assert!(
            open.contains("\n# TYPE grapevine_requests counter\n"),
            "{open}"
        );
        assert!(open.ends_with("\n# EOF\n"), "{open}");
    }
    let accept = format!("{}q=0.6,{prometheus}", PROTOBUF.replace("; ", ";") + ";");
    let answer = fetch(admin, Some(&accept), PROTOBUF).await;
    let families = families(&answer.body);
    let counted = check_families(&families);
    assert!(counted > 100, "{counted} series");
    let requests = &families["grapevine_requests_total"];
    let of_chat = |series: &&SeriesMessage| series.label.iter().any(|pair| pair.value == "2xx");
    let counts = requests.metric.iter().filter(of_chat);
    let counts = counts.filter_map(|series| series.counter.as_ref()?.value);
    assert_eq!(counts.sum::<f64>(), 1.0);
    house.close().await;
}

/// A worker's model may be called anything; a scraper that could not read one line would lose all of them.
#[tokio::test(flavor = "multi_thread")]
async fn no_name_of_a_model_breaks_a_scrape() {
    const ODD: &str = "odd\\ \"name\",outcome=\"} 9 # {";
    let worker = FakeWorkerConfig {
        models: vec![ODD.to_owned(), "fake-model".to_owned()],
        ..quick()
    };
    let house = House::of(Plan::default(), vec![worker]).await;
    let mut body = chat("counted", 2);
    body["model"] = ODD.into();
    let answer = http1::post(house.data(), "/v1/chat/completions", &body).await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    let admin = house.cluster.replicas[0].admin().0;
    let text = scrape(admin, None, TEXT).await;
    check_text(&text);
    let line = "model=\"odd\\\\ \\\"name\\\",outcome=\\\"} 9 # {\",outcome=\"success\"";
    assert!(text.contains(line), "{text}");
    let families = families(&fetch(admin, Some(PROTOBUF), PROTOBUF).await.body);
    check_families(&families);
    let requests = &families["grapevine_requests_total"].metric;
    let is_odd = |of: &SeriesMessage| of.label.iter().any(|pair| pair.value == ODD);
    assert!(requests.iter().any(is_odd), "{requests:?}");
    house.close().await;
}
