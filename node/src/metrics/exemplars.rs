//! Exemplars: to each bucket of a histogram the last observation that was made in a sampled trace, and which trace that
//! was. At most one a bucket, and none where traces are off.

use std::fmt::{self, Display, Write as _};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanId, TraceId};
use prometheus_client::encoding::{
    EncodeLabel, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelSetEncoder,
    LabelValueEncoder, MetricEncoder,
};
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::{MetricType, TypedMetric};

/// The name that OpenTelemetry gives the label of a trace.
pub(super) const TRACE: &str = "trace_id";
/// The same for a span.
pub(super) const SPAN: &str = "span_id";

/// Where an observation was made: the span of a request whose trace is sampled. Text only where it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledSpan {
    /// The whole trace.
    pub trace: TraceId,
    /// The request's part of it.
    pub span: SpanId,
}

/// A histogram with exemplars. A clone counts the same.
#[derive(Debug, Clone)]
pub struct TracedHistogram(HistogramWithExemplars<SampledSpan>);

/// One for each of some labels.
pub type TracedHistograms<Labels> = Family<Labels, TracedHistogram, fn() -> TracedHistogram>;

impl TracedHistogram {
    /// Without observations; `bounds` rise, in seconds.
    pub fn new(bounds: impl IntoIterator<Item = f64>) -> Self {
        Self(HistogramWithExemplars::new(bounds.into_iter()))
    }

    /// Counts a time, which was taken in this span.
    pub fn observe(&self, time: Duration, within: Option<SampledSpan>) {
        let now = within.map(|_| SystemTime::now());
        self.0.observe(time.as_secs_f64(), within, now);
    }
}

impl TypedMetric for TracedHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for TracedHistogram {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl EncodeLabelSet for SampledSpan {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        (TRACE, Shown(self.trace)).encode(encoder.encode_label())?;
        (SPAN, Shown(self.span)).encode(encoder.encode_label())
    }
}

struct Shown<T>(T);

impl<T: Display> EncodeLabelValue for Shown<T> {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        write!(encoder, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn a_bucket_shows_the_last_sampled_observation() {
        let histogram = TracedHistogram::new([0.5, 1.0]);
        let mut registry = Registry::default();
        registry.register("t", "Time", histogram.clone());
        let within = |number: u8| SampledSpan {
            trace: TraceId::from_bytes([number; 16]),
            span: SpanId::from_bytes([number; 8]),
        };
        for (millis, span) in [
            (100, Some(1)),
            (200, Some(2)),
            (300, None),
            (9_000, Some(3)),
            (700, None),
        ] {
            histogram.observe(Duration::from_millis(millis), span.map(within));
        }
        let mut open = String::new();
        text::encode(&mut open, &registry).expect("a string can be written");
        let buckets: Vec<&str> = open
            .lines()
            .filter(|line| line.contains("_bucket"))
            .collect();
        let [low, middle, high] = buckets[..] else {
            panic!("{open}")
        };
        let ids = |number: &str| {
            let (trace, span) = (number.repeat(16), number.repeat(8));
            format!("# {{trace_id=\"{trace}\",span_id=\"{span}\"}}")
        };
        let start = format!("t_bucket{{le=\"0.5\"}} 3 {} 0.2 ", ids("02"));
        assert!(low.starts_with(&start), "{low}");
        assert_eq!(middle, "t_bucket{le=\"1.0\"} 4");
        let start = format!("t_bucket{{le=\"+Inf\"}} 5 {} 9.0 ", ids("03"));
        assert!(high.starts_with(&start), "{high}");
        // Beyond this many characters the labels of an exemplar are refused.
        assert!(TRACE.len() + 32 + SPAN.len() + 16 <= 128);
    }
}
