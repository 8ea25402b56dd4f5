//! The form of `/metrics` for scrapers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use grapevine_tests::chat::chat;
use grapevine_tests::http1;

use crate::house::House;

/// The body of `/metrics`, which must have this content type.
async fn scrape(admin: SocketAddr, accept: Option<&str>, form: &str) -> String {
    let headers: Vec<_> = accept
        .map(|accept| ("accept", accept))
        .into_iter()
        .collect();
    let answer = http1::exchange(admin, "GET", "/metrics", &headers, b"").await;
    assert_eq!(answer.head.status, 200, "{}", answer.text());
    assert_eq!(answer.head.header("content-type"), Some(form), "{accept:?}");
    answer.text()
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
    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
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
    let prometheus = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
        application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for accept in ["application/openmetrics-text", prometheus] {
        let open = scrape(admin, Some(accept), OPEN).await;
        assert!(
            open.contains("\n# TYPE grapevine_requests counter\n"),
            "{open}"
        );
        assert!(open.ends_with("\n# EOF\n"), "{open}");
    }
    house.close().await;
}
