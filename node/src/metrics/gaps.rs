//! Gaps between the tokens of streams. A histogram's lock for each token would be waited for by all streams, so a stream
//! counts its gaps for itself, and adds them all when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::buckets::INTER_TOKEN;

/// Those above the last bound have a place, too.
const PLACES: usize = INTER_TOKEN.len() + 1;

/// The gaps of one stream so far.
#[derive(Debug, Default)]
pub struct Gaps {
    counts: [u32; PLACES],
    sum: Duration,
}

impl Gaps {
    /// So many tokens came together: the first after this gap, the others after none.
    pub fn count(&mut self, gap: Duration, tokens: u64) {
        let Some(others) = tokens.checked_sub(1) else {
            return;
        };
        self.sum += gap;
        let place = place(gap.as_secs_f64());
        self.counts[place] = self.counts[place].saturating_add(1);
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        self.counts[0] = self.counts[0].saturating_add(others);
    }
}

fn place(seconds: f64) -> usize {
    INTER_TOKEN.partition_point(|bound| *bound < seconds)
}

/// The gaps of all streams that ended. A clone counts the same.
#[derive(Debug, Clone, Default)]
pub struct GapHistogram(Arc<Totals>);

#[derive(Debug, Default)]
struct Totals {
    counts: [AtomicU64; PLACES],
    /// As nanoseconds, the streams of a busy replica would fill it within weeks.
    micros: AtomicU64,
}

impl GapHistogram {
    /// Adds those of one stream.
    pub fn add(&self, gaps: &Gaps) {
        for (total, count) in self.0.counts.iter().zip(gaps.counts) {
            if count > 0 {
                total.fetch_add(count.into(), Ordering::Relaxed);
            }
        }
        let micros = u64::try_from(gaps.sum.as_micros()).unwrap_or(u64::MAX);
        self.0.micros.fetch_add(micros, Ordering::Relaxed);
    }
}

impl TypedMetric for GapHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for GapHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        // The library's mark of the bucket without a bound.
        let bounds = INTER_TOKEN.into_iter().chain([f64::MAX]);
        let counts = self.0.counts.iter().map(|of| of.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // The sum of what was read, so that the whole agrees with its parts.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = Duration::from_micros(self.0.micros.load(Ordering::Relaxed));
        encoder.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::metrics::snapshot::{self, Value};

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn a_stream_adds_each_of_its_gaps() {
        let histogram = GapHistogram::default();
        let mut registry = Registry::default();
        registry.register("gaps", "Gaps", histogram.clone());
        let mut gaps = Gaps::default();
        // On a bound it is within it, as the names of the buckets say.
        for (gap, tokens) in [
            (5 * MILLI, 1),
            (6 * MILLI, 3),
            (10_000 * MILLI, 1),
            (MILLI, 0),
        ] {
            gaps.count(gap, tokens);
        }
        histogram.add(&gaps);
        histogram.add(&gaps);
        let mut open = String::new();
        text::encode(&mut open, &registry).expect("a string can be written");
        let metrics = snapshot::metrics(&open);
        let Value::Histogram(read) = &metrics[0].series[0].value else {
            panic!("{metrics:?}")
        };
        assert_eq!(read.count, 10);
        assert!((read.sum - 20.022).abs() < 1e-6, "{}", read.sum);
        let up_to = |bound: f64| {
            let bucket = read.buckets.iter().find(|of| of.bound == bound);
            bucket.map(|bucket| bucket.count)
        };
        let found = [0.000_5, 0.003, 0.005, 0.007_5, 5.0, f64::INFINITY].map(up_to);
        assert_eq!(found, [4, 4, 6, 8, 8, 10].map(Some));
    }
}
