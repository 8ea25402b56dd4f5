//! Prometheus' protobuf form: messages `io.prometheus.client.MetricFamily`, each behind its length. Pure.
//!
//! The numbers of fields are those of Prometheus' public schema, `metrics.proto`; messages and fields that this router
//! has no use for are not here. Values are written also where they are 0, as the schema has presence.

use prost::Message;

use super::snapshot::{self, Kind, Label, Metric, Series, Value};

#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricFamily {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) help: String,
    #[prost(enumeration = "MetricType", optional, tag = "3")]
    pub(super) kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    pub(super) metric: Vec<SeriesMessage>,
    #[prost(string, tag = "5")]
    pub(super) unit: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

/// `Metric` in the schema.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SeriesMessage {
    #[prost(message, repeated, tag = "1")]
    pub(super) label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    pub(super) gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    pub(super) counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    pub(super) histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LabelPair {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// `Gauge` and `Counter` in the schema, which begin alike.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Number {
    #[prost(double, optional, tag = "1")]
    pub(super) value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    pub(super) sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    pub(super) sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) bucket: Vec<Bucket>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    pub(super) cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    pub(super) upper_bound: Option<f64>,
    #[prost(message, optional, tag = "3")]
    pub(super) exemplar: Option<Exemplar>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    pub(super) label: Vec<LabelPair>,
    #[prost(double, optional, tag = "2")]
    pub(super) value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    pub(super) timestamp: Option<Timestamp>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

/// The whole exposition, from OpenMetrics text as the library writes it.
pub(super) fn written(open: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(open.len());
    for metric in snapshot::metrics(open) {
        let family = MetricFamily::from(metric);
        family
            .encode_length_delimited(&mut out)
            .expect("a vector grows as it is written");
    }
    out
}

impl From<Metric<'_>> for MetricFamily {
    fn from(metric: Metric<'_>) -> Self {
        // Counters are called here as in text format 0.0.4.
        let (end, kind) = match metric.kind {
            Kind::Counter => ("_total", MetricType::Counter),
            Kind::Gauge => ("", MetricType::Gauge),
            Kind::Histogram => ("", MetricType::Histogram),
        };
        let series = metric.series.into_iter();
        Self {
            name: format!("{}{end}", metric.name),
            help: metric.help.to_owned(),
            kind: Some(kind.into()),
            metric: series.map(|series| message(series, kind)).collect(),
            unit: metric.unit.to_owned(),
        }
    }
}

fn message(series: Series<'_>, kind: MetricType) -> SeriesMessage {
    let mut message = SeriesMessage {
        label: pairs(series.labels),
        ..SeriesMessage::default()
    };
    match series.value {
        Value::Number(value) if kind == MetricType::Counter => {
            message.counter = Some(Number { value: Some(value) });
        }
        Value::Number(value) => message.gauge = Some(Number { value: Some(value) }),
        Value::Histogram(histogram) => message.histogram = Some(histogram.into()),
    }
    message
}

fn pairs(labels: Vec<Label<'_>>) -> Vec<LabelPair> {
    let labels = labels.into_iter();
    labels
        .map(|(name, value)| LabelPair {
            name: name.to_owned(),
            value: value.into_owned(),
        })
        .collect()
}

impl From<snapshot::Histogram<'_>> for Histogram {
    fn from(histogram: snapshot::Histogram<'_>) -> Self {
        Self {
            sample_count: Some(histogram.count),
            sample_sum: Some(histogram.sum),
            bucket: histogram.buckets.into_iter().map(Bucket::from).collect(),
        }
    }
}

impl From<snapshot::Bucket<'_>> for Bucket {
    fn from(bucket: snapshot::Bucket<'_>) -> Self {
        Self {
            cumulative_count: Some(bucket.count),
            upper_bound: Some(bucket.bound),
            exemplar: bucket.exemplar.map(|exemplar| Exemplar {
                label: pairs(exemplar.labels),
                value: Some(exemplar.value),
                timestamp: exemplar.seconds.map(timestamp),
            }),
        }
    }
}

fn timestamp(seconds: f64) -> Timestamp {
    let whole = seconds.floor();
    Timestamp {
        seconds: whole as i64,
        nanos: ((seconds - whole) * 1e9) as i32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with a length: a message or text.
    fn field(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).expect("short");
        [&[tag << 3 | 2, length][..], content].concat()
    }

    fn double(tag: u8, value: f64) -> Vec<u8> {
        [&[tag << 3 | 1][..], &value.to_le_bytes()].concat()
    }

    fn pair(name: &str, value: &str) -> Vec<u8> {
        [field(1, name.as_bytes()), field(2, value.as_bytes())].concat()
    }

    /// Byte by byte after the schema, so that the messages here cannot be wrong together.
    #[test]
    fn the_bytes_are_those_of_prometheus_schema() {
        let open = "# HELP a Things.\n# TYPE a counter\na_total{kind=\"x\"} 3\n\
            # HELP b_bytes Size.\n# TYPE b_bytes gauge\n# UNIT b_bytes bytes\nb_bytes 0\n\
            # HELP t Time.\n# TYPE t histogram\nt_sum 1.5\nt_count 2\nt_bucket{le=\"0.5\"} 1\n\
            t_bucket{le=\"+Inf\"} 2 # {trace_id=\"1f\"} 1.25 1700000000.5\n# EOF\n";
        let counter = [field(1, &pair("kind", "x")), field(3, &double(1, 3.0))].concat();
        let counter = [
            field(1, b"a_total"),
            field(2, b"Things."),
            vec![3 << 3, 0],
            field(4, &counter),
        ];
        let gauge = [
            field(1, b"b_bytes"),
            field(2, b"Size."),
            vec![3 << 3, 1],
            field(4, &field(2, &double(1, 0.0))),
            field(5, b"bytes"),
        ];
        // 1,700,000,000 and 500,000,000 as varints.
        let time = b"\x08\x80\xe2\xcf\xaa\x06\x10\x80\xca\xb5\xee\x01";
        let exemplar = [
            field(1, &pair("trace_id", "1f")),
            double(2, 1.25),
            field(3, time),
        ];
        let buckets = [
            [vec![1 << 3, 1], double(2, 0.5)].concat(),
            [
                vec![1 << 3, 2],
                double(2, f64::INFINITY),
                field(3, &exemplar.concat()),
            ]
            .concat(),
        ];
        let histogram = [
            vec![1 << 3, 2],
            double(2, 1.5),
            field(3, &buckets[0]),
            field(3, &buckets[1]),
        ];
        let histogram = [
            field(1, b"t"),
            field(2, b"Time."),
            vec![3 << 3, 4],
            field(4, &field(7, &histogram.concat())),
        ];
        let families = [counter.concat(), gauge.concat(), histogram.concat()];
        let delimited = families.map(|family| {
            let length = u8::try_from(family.len()).expect("short");
            [vec![length], family].concat()
        });
        assert_eq!(written(open), delimited.concat());
    }
}
