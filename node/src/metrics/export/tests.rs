//! Exports to a collector of a few lines, over real sockets.

use std::net::SocketAddr;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

const OPEN: &str =
    "# HELP a A.\n# TYPE a counter\na_total 3\n# HELP b B.\n# TYPE b gauge\nb 1\n# EOF\n";

fn giving(text: impl Into<String>) -> Arc<Read> {
    let text = text.into();
    Arc::new(move || text.clone())
}

fn exporter(address: SocketAddr) -> (Exporter, ExportMetrics) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let metrics = ExportMetrics::register(&mut Registry::default());
    let config = MetricsExportConfig {
        endpoint: Some(Collector {
            url: format!("http://{address}").parse().expect("a URL"),
            is_target: false,
        }),
        timeout: Duration::from_millis(500),
        ..MetricsExportConfig::default()
    };
    let exporter = Exporter::new(&config, "here", "r1", &metrics, |_| None);
    let exporter = exporter.expect("it can be set up").expect("an endpoint");
    (exporter, metrics)
}

/// Points that were sent, refused, failed.
fn counted(metrics: &ExportMetrics) -> [u64; 3] {
    ["sent", "refused", "failed"].map(|result| {
        let labels = ResultLabels { result };
        metrics.points.get_or_create(&labels).get()
    })
}

/// Takes one message and answers it; gives its head and its body.
async fn take(listener: &TcpListener, status: &str, answer: &[u8]) -> (String, Vec<u8>) {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let mut read = Vec::new();
    let (head, body) = loop {
        let n = stream.read_buf(&mut read).await.expect("bytes");
        assert!(n > 0, "it ended early");
        let text = String::from_utf8_lossy(&read).to_lowercase();
        let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let (_, length) = text.split_once("content-length: ").expect("a length");
        let length = length
            .split("\r\n")
            .next()
            .expect("a line")
            .parse::<usize>();
        let body = &read[end + 4..];
        if body.len() == length.expect("a number") {
            break (text, body.to_vec());
        }
    };
    let start = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    let whole = [start.as_bytes(), answer].concat();
    stream.write_all(&whole).await.expect("it reads");
    (head, body)
}

#[tokio::test]
async fn points_are_counted_by_what_the_collector_says() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (mut exporter, metrics) = exporter(address);
    assert_eq!(counted(&metrics), [0, 0, 0]);
    let partly = ExportMetricsServiceResponse {
        partial_success: Some(ExportMetricsPartialSuccess {
            rejected_data_points: 1,
            error_message: "not this".to_owned(),
        }),
    };
    for (status, answer, expected) in [
        ("200 OK", Vec::new(), [2, 0, 0]),
        ("200 OK", partly.encode_to_vec(), [3, 1, 0]),
        ("503 Busy", Vec::new(), [3, 1, 2]),
        ("200 OK", b"no protobuf".to_vec(), [5, 1, 2]),
    ] {
        let read = giving(OPEN);
        let export = exporter.export(&read);
        let ((), (head, body)) = tokio::join!(export, take(&listener, status, &answer));
        assert!(head.starts_with("post /v1/metrics http/1.1\r\n"), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf\r\n"),
            "{head}"
        );
        let request = ExportMetricsServiceRequest::decode(&body[..]).expect("OTLP");
        let metrics_sent = &request.resource_metrics[0].scope_metrics[0].metrics;
        let names: Vec<&str> = metrics_sent.iter().map(|of| of.name.as_str()).collect();
        assert_eq!(names, ["a_total", "b"]);
        assert_eq!(counted(&metrics), expected, "{status}");
        assert_eq!(
            exporter.works,
            status != "503 Busy" && expected != [3, 1, 0]
        );
    }
}

/// What fills three messages.
fn long() -> String {
    let mut open = "# HELP b B.\n# TYPE b gauge\n".to_owned();
    for number in 0..2_500 {
        open.push_str(&format!("b{{n=\"{number}\"}} 1\n"));
    }
    open
}

#[tokio::test]
async fn what_one_message_of_an_export_is_refused_for_is_told_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (mut exporter, metrics) = exporter(address);
    let partly = ExportMetricsServiceResponse {
        partial_success: Some(ExportMetricsPartialSuccess {
            rejected_data_points: 1,
            error_message: "not this".to_owned(),
        }),
    };
    let (partly, read) = (partly.encode_to_vec(), giving(long()));
    for (refuses, works) in [(true, false), (true, false), (false, true)] {
        let first = if refuses { &partly[..] } else { &[] };
        let collector = async {
            for answer in [first, &[], &[]] {
                take(&listener, "200 OK", answer).await;
            }
        };
        tokio::join!(exporter.export(&read), collector);
        assert_eq!(exporter.works, works);
    }
    assert_eq!(counted(&metrics), [7_498, 2, 0]);
}

#[test]
fn an_empty_variable_is_as_none() {
    let read = |own: Option<&'static str>| {
        headers(move |name| match name {
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS" => own.map(str::to_owned),
            _ => Some("x=general".to_owned()),
        })
    };
    for (own, expected) in [
        (None, "general"),
        (Some(""), "general"),
        (Some(" "), "general"),
        (Some("x=own"), "own"),
    ] {
        assert_eq!(read(own).expect("a list")["x"], expected, "{own:?}");
    }
    assert!(headers(|_| Some(String::new())).expect("none").is_empty());
}

#[tokio::test]
async fn a_collector_that_is_silent_or_gone_takes_one_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (mut exporter, metrics) = exporter(address);
    // The messages behind the first one are not tried.
    let open = long();
    exporter.export(&giving(open.clone())).await;
    assert_eq!(counted(&metrics), [0, 0, 2_500]);
    drop(listener);
    exporter.export(&giving(open)).await;
    assert_eq!(counted(&metrics), [0, 0, 5_000]);
}
