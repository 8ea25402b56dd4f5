//! Metrics as messages of OTLP. Pure.
//!
//! Names are those of the scraped metrics, counters' with `_total`, so that a series is called alike whichever way it
//! came; labels are attributes. Values are cumulative.

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AttributeValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, Gauge, Histogram, HistogramDataPoint, Metric,
    NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, exemplar, number_data_point,
};
use prost::Message as _;

use super::starts::Starts;
use crate::metrics::exemplars::{SPAN, TRACE};
use crate::metrics::snapshot::{self, Kind, Label, Series, Value};

/// Points in one message: with the largest histograms and an exemplar in each bucket they stay below the 4 MiB that
/// servers of gRPC take.
const POINTS_MAX: usize = 1_000;

/// A part of an export.
#[derive(Debug)]
pub(super) struct Message {
    /// As protobuf.
    pub(super) body: Vec<u8>,
    /// Data points in it.
    pub(super) points: u64,
}

/// What all messages have around their metrics.
#[derive(Debug)]
pub(super) struct Scope(ResourceMetrics);

impl Scope {
    pub(super) fn of(resource: &opentelemetry_sdk::Resource) -> Self {
        let scope = InstrumentationScope {
            name: "grapevine".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        Self(ResourceMetrics {
            resource: Some(resource.into()),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope),
                ..ScopeMetrics::default()
            }],
            schema_url: resource.schema_url().unwrap_or_default().to_owned(),
        })
    }

    fn message(&self, metrics: Vec<Metric>, points: usize) -> Message {
        let mut all = self.0.clone();
        all.scope_metrics[0].metrics = metrics;
        let request = ExportMetricsServiceRequest {
            resource_metrics: vec![all],
        };
        Message {
            body: request.encode_to_vec(),
            points: points as u64,
        }
    }
}

/// All that was read `now`, in messages of limited size.
pub(super) fn messages(
    metrics: Vec<snapshot::Metric<'_>>,
    scope: &Scope,
    starts: &mut Starts,
    now: u64,
) -> Vec<Message> {
    let (mut messages, mut part, mut points) = (Vec::new(), Vec::new(), 0);
    for mut metric in metrics {
        let mut series = std::mem::take(&mut metric.series).into_iter().peekable();
        while series.peek().is_some() {
            let taken: Vec<_> = series.by_ref().take(POINTS_MAX - points).collect();
            points += taken.len();
            part.push(translate(&metric, taken, starts, now));
            if points == POINTS_MAX {
                messages.push(scope.message(std::mem::take(&mut part), points));
                points = 0;
            }
        }
    }
    if points > 0 {
        messages.push(scope.message(part, points));
    }
    starts.end(now);
    messages
}

fn translate(
    metric: &snapshot::Metric<'_>,
    series: Vec<Series<'_>>,
    starts: &mut Starts,
    now: u64,
) -> Metric {
    let is_counter = metric.kind == Kind::Counter;
    let (mut numbers, mut histograms) = (Vec::new(), Vec::new());
    for series in series {
        let mut start = |count| starts.of(metric.name, &series.labels, count);
        match series.value {
            Value::Number(value) => {
                // The value of a gauge does not depend on when it began.
                let start = if is_counter { start(value) } else { 0 };
                numbers.push(number(series.labels, value, start, now));
            }
            Value::Histogram(histogram) => {
                let (start, before) = (start(histogram.count as f64), starts.before());
                histograms.push(point(series.labels, histogram, start, before, now));
            }
        }
    }
    let temporality = AggregationTemporality::Cumulative.into();
    let data = match metric.kind {
        Kind::Counter => Data::Sum(Sum {
            data_points: numbers,
            aggregation_temporality: temporality,
            is_monotonic: true,
        }),
        Kind::Gauge => Data::Gauge(Gauge {
            data_points: numbers,
        }),
        Kind::Histogram => Data::Histogram(Histogram {
            data_points: histograms,
            aggregation_temporality: temporality,
        }),
    };
    let end = if is_counter { "_total" } else { "" };
    Metric {
        name: format!("{}{end}", metric.name),
        description: metric.help.to_owned(),
        unit: unit(metric.unit).to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// As UCUM writes it.
fn unit(unit: &str) -> &str {
    match unit {
        "seconds" => "s",
        "bytes" => "By",
        other => other,
    }
}

fn number(labels: Vec<Label<'_>>, value: f64, start: u64, now: u64) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: start,
        time_unix_nano: now,
        value: Some(number_data_point::Value::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

fn point(
    labels: Vec<Label<'_>>,
    histogram: snapshot::Histogram<'_>,
    start: u64,
    before: u64,
    now: u64,
) -> HistogramDataPoint {
    let mut point = HistogramDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: start,
        time_unix_nano: now,
        count: histogram.count,
        sum: Some(histogram.sum),
        ..HistogramDataPoint::default()
    };
    let mut below = 0;
    for bucket in histogram.buckets {
        point.bucket_counts.push(bucket.count - below);
        below = bucket.count;
        if bucket.bound.is_finite() {
            point.explicit_bounds.push(bucket.bound);
        }
        // Those of earlier exports were in them.
        let exemplar = bucket.exemplar.map(exemplar);
        let exemplar = exemplar.filter(|exemplar| exemplar.time_unix_nano > before);
        point.exemplars.extend(exemplar);
    }
    point
}

fn exemplar(of: snapshot::Exemplar<'_>) -> Exemplar {
    let id = |name: &str| {
        let label = of.labels.iter().find(|(label, _)| *label == name);
        label.map(|(_, id)| bytes(id)).unwrap_or_default()
    };
    Exemplar {
        time_unix_nano: (of.seconds.unwrap_or_default() * 1e9) as u64,
        trace_id: id(TRACE),
        span_id: id(SPAN),
        value: Some(exemplar::Value::AsDouble(of.value)),
        ..Exemplar::default()
    }
}

/// Hexadecimal digits as bytes; what is none is left out.
fn bytes(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.filter_map(byte).collect()
}

fn attributes(labels: Vec<Label<'_>>) -> Vec<KeyValue> {
    let labels = labels.into_iter();
    labels
        .map(|(name, value)| KeyValue {
            key: name.to_owned(),
            value: Some(AnyValue {
                value: Some(AttributeValue::StringValue(value.into_owned())),
            }),
            ..KeyValue::default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 5;
    const NOW: u64 = 2_000_000_000_000_000_000;

    /// Metrics of each message.
    fn sent(open: &str, starts: &mut Starts) -> Vec<(Vec<Metric>, u64)> {
        let scope = Scope::of(&crate::otlp::resource("here", "r1"));
        let messages = messages(snapshot::metrics(open), &scope, starts, NOW);
        let read = |message: Message| {
            let request = ExportMetricsServiceRequest::decode(&message.body[..]).expect("OTLP");
            let [resource] = &request.resource_metrics[..] else {
                panic!("{request:?}")
            };
            let [scope] = &resource.scope_metrics[..] else {
                panic!("{request:?}")
            };
            (scope.metrics.clone(), message.points)
        };
        messages.into_iter().map(read).collect()
    }

    #[test]
    fn counters_and_gauges_are_sums_and_gauges() {
        let open = "# HELP a_bytes Things.\n# TYPE a_bytes counter\na_bytes_total{k=\"x\"} 3\n\
            # HELP b Size.\n# TYPE b gauge\nb -1.5\n";
        let sent = sent(open, &mut Starts::new(START));
        let [(metrics, 2)] = &sent[..] else {
            panic!("{sent:?}")
        };
        let point = NumberDataPoint {
            time_unix_nano: NOW,
            ..NumberDataPoint::default()
        };
        let sum = Sum {
            data_points: vec![NumberDataPoint {
                attributes: attributes(vec![("k", "x".into())]),
                start_time_unix_nano: START,
                value: Some(number_data_point::Value::AsDouble(3.0)),
                ..point.clone()
            }],
            aggregation_temporality: 2,
            is_monotonic: true,
        };
        let gauge = Gauge {
            data_points: vec![NumberDataPoint {
                value: Some(number_data_point::Value::AsDouble(-1.5)),
                ..point
            }],
        };
        let metric = |name: &str, description: &str, unit: &str, data| Metric {
            name: name.to_owned(),
            description: description.to_owned(),
            unit: unit.to_owned(),
            data: Some(data),
            ..Metric::default()
        };
        let expected = [
            metric("a_bytes_total", "Things.", "By", Data::Sum(sum)),
            metric("b", "Size.", "", Data::Gauge(gauge)),
        ];
        assert_eq!(metrics[..], expected);
    }

    #[test]
    fn a_histogram_has_counts_of_its_own_buckets_and_new_exemplars() {
        let open = "# HELP t_seconds Time.\n# TYPE t_seconds histogram\n# UNIT t_seconds seconds\n\
            t_seconds_sum 9.5\nt_seconds_count 7\nt_seconds_bucket{le=\"0.5\"} 2\n\
            t_seconds_bucket{le=\"1.0\"} 6 # {trace_id=\"1f00\",span_id=\"2e\"} 0.75 4.0\n\
            t_seconds_bucket{le=\"+Inf\"} 7 # {trace_id=\"1e\"} 8.5 1.5\n";
        let mut starts = Starts::new(START);
        starts.end(2_000_000_000);
        let sent = sent(open, &mut starts);
        let Some(Data::Histogram(histogram)) = &sent[0].0[0].data else {
            panic!("{sent:?}")
        };
        let expected = HistogramDataPoint {
            start_time_unix_nano: 2_000_000_000,
            time_unix_nano: NOW,
            count: 7,
            sum: Some(9.5),
            bucket_counts: vec![2, 4, 1],
            explicit_bounds: vec![0.5, 1.0],
            exemplars: vec![Exemplar {
                time_unix_nano: 4_000_000_000,
                trace_id: vec![0x1f, 0],
                span_id: vec![0x2e],
                value: Some(exemplar::Value::AsDouble(0.75)),
                ..Exemplar::default()
            }],
            ..HistogramDataPoint::default()
        };
        assert_eq!(histogram.data_points, [expected]);
        assert_eq!(histogram.aggregation_temporality, 2);
        assert_eq!(sent[0].0[0].unit, "s");
    }

    #[test]
    fn no_message_has_too_many_points() {
        let mut open = "# HELP a A.\n# TYPE a gauge\na 1\n# HELP b B.\n# TYPE b gauge\n".to_owned();
        for number in 0..2 * POINTS_MAX {
            open.push_str(&format!("b{{n=\"{number}\"}} {number}\n"));
        }
        let sent = sent(&open, &mut Starts::new(START));
        let names = |metrics: &[Metric]| -> Vec<String> {
            metrics.iter().map(|metric| metric.name.clone()).collect()
        };
        let shape: Vec<_> = sent
            .iter()
            .map(|(of, points)| (names(of), *points))
            .collect();
        let b = || vec!["b".to_owned()];
        let a = || vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(shape, [(a(), 1_000), (b(), 1_000), (b(), 1)]);
    }
}
