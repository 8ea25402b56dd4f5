//! What the registry holds, as values: families, their series, and the samples of these. Pure.
//!
//! The library shows its metrics in its text form alone (its protobuf is another one than Prometheus scrapes), so they
//! are read from there. Protobuf (`protobuf`) and OpenTelemetry (`export`) are both written from this.

use std::borrow::Cow;

/// A label and its value.
pub(super) type Label<'a> = (&'a str, Cow<'a, str>);

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows.
    Counter,
    /// Grows and falls.
    Gauge,
    /// Counts observations by their size.
    Histogram,
}

/// One metric with all its series.
#[derive(Debug, PartialEq)]
pub(super) struct Metric<'a> {
    /// With its unit, and without what the names of samples have behind it.
    pub(super) name: &'a str,
    pub(super) help: &'a str,
    /// `seconds`, `bytes`, or nothing.
    pub(super) unit: &'a str,
    pub(super) kind: Kind,
    pub(super) series: Vec<Series<'a>>,
}

/// The values of one label set.
#[derive(Debug, PartialEq)]
pub(super) struct Series<'a> {
    pub(super) labels: Vec<Label<'a>>,
    pub(super) value: Value<'a>,
}

/// What a series holds.
#[derive(Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// Of counters and gauges.
    Number(f64),
    /// Of histograms.
    Histogram(Histogram<'a>),
}

/// Observations so far.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Histogram<'a> {
    pub(super) sum: f64,
    pub(super) count: u64,
    /// By rising bounds; the last one is infinite.
    pub(super) buckets: Vec<Bucket<'a>>,
}

/// Observations up to a bound.
#[derive(Debug, PartialEq)]
pub(super) struct Bucket<'a> {
    pub(super) bound: f64,
    /// Those of the buckets before it included.
    pub(super) count: u64,
    /// One of its own observations.
    pub(super) exemplar: Option<Exemplar<'a>>,
}

/// An observation, and the trace in which it was made.
#[derive(Debug, PartialEq)]
pub(super) struct Exemplar<'a> {
    pub(super) labels: Vec<Label<'a>>,
    pub(super) value: f64,
    /// Since 1970.
    pub(super) seconds: Option<f64>,
}

/// One line of the text.
pub(crate) struct Sample<'a> {
    /// With what is behind the metric's name, such as `_total`.
    pub(crate) name: &'a str,
    labels: Vec<Label<'a>>,
    /// As it is written.
    pub(crate) value: &'a str,
    exemplar: Option<Exemplar<'a>>,
}

/// The lines of OpenMetrics text that have a value.
pub(crate) fn samples(open: &str) -> impl Iterator<Item = Sample<'_>> {
    let lines = open.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(sample)
}

/// Reads OpenMetrics text as the library writes it; metrics without series are left out.
pub(super) fn metrics(open: &str) -> Vec<Metric<'_>> {
    let mut metrics: Vec<Metric<'_>> = Vec::new();
    // A metric is described before its type is named.
    let mut described = ("", "");
    for line in open.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            described = help.split_once(' ').unwrap_or_default();
        } else if let Some((name, kind)) = comment(line, "# TYPE ") {
            let kind = match kind {
                "counter" => Kind::Counter,
                "histogram" => Kind::Histogram,
                _ => Kind::Gauge,
            };
            metrics.push(Metric {
                name,
                help: if described.0 == name { described.1 } else { "" },
                unit: unit_of(name),
                kind,
                series: Vec::new(),
            });
        } else if let (Some(metric), Some(sample)) = (metrics.last_mut(), sample(line)) {
            metric.add(sample);
        }
    }
    metrics.retain(|metric| !metric.series.is_empty());
    metrics
}

/// A metric's name ends with its unit; the library knows that of some only.
fn unit_of(name: &str) -> &str {
    let end = name.rsplit('_').next().unwrap_or_default();
    match ["seconds", "bytes"].contains(&end) {
        true => end,
        false => "",
    }
}

fn comment<'a>(line: &'a str, start: &str) -> Option<(&'a str, &'a str)> {
    line.strip_prefix(start)?.split_once(' ')
}

impl<'a> Metric<'a> {
    fn add(&mut self, mut sample: Sample<'a>) {
        let Some(end) = sample.name.strip_prefix(self.name) else {
            return;
        };
        if self.kind != Kind::Histogram {
            if let Ok(value) = sample.value.parse() {
                self.series.push(Series {
                    labels: sample.labels,
                    value: Value::Number(value),
                });
            }
            return;
        }
        // The library begins each series with its sum.
        if end == "_sum" {
            self.series.push(Series {
                labels: std::mem::take(&mut sample.labels),
                value: Value::Histogram(Histogram::default()),
            });
        }
        let Some(Value::Histogram(histogram)) = self.series.last_mut().map(|last| &mut last.value)
        else {
            return;
        };
        match end {
            "_sum" => histogram.sum = sample.value.parse().unwrap_or_default(),
            "_count" => histogram.count = sample.value.parse().unwrap_or_default(),
            _ => histogram.buckets.extend(sample.bucket()),
        }
    }
}

impl<'a> Sample<'a> {
    /// The value of a label.
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let (_, value) = self.labels.iter().find(|(of, _)| *of == name)?;
        Some(value)
    }

    fn bucket(self) -> Option<Bucket<'a>> {
        Some(Bucket {
            bound: self.label("le")?.parse().ok()?,
            count: self.value.parse().ok()?,
            exemplar: self.exemplar,
        })
    }
}

/// Reads `name{labels} value # {labels} value seconds`; what is behind the value may be missing.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    let (labels, rest) = labels(rest)?;
    let rest = rest.strip_prefix(' ')?;
    let (value, exemplar) = match rest.split_once(" # ") {
        Some((value, behind)) => (value, exemplar(behind)),
        None => (rest, None),
    };
    Some(Sample {
        name,
        labels,
        value,
        exemplar,
    })
}

fn exemplar(text: &str) -> Option<Exemplar<'_>> {
    let (labels, rest) = labels(text)?;
    let mut numbers = rest.split_ascii_whitespace().map(str::parse);
    Some(Exemplar {
        labels,
        value: numbers.next()?.ok()?,
        seconds: numbers.next().and_then(Result::ok),
    })
}

/// A line without what stands behind its value.
pub(super) fn without_exemplar(line: &str) -> &str {
    // Most lines have none, and are not read.
    let has_one = || {
        let (_, rest) = labels(&line[line.find(['{', ' '])?..])?;
        let (value, _) = rest.split_once(" # ")?;
        Some(line.len() - rest.len() + value.len())
    };
    match line.contains(" # {").then(has_one).flatten() {
        Some(end) => &line[..end],
        None => line,
    }
}

/// Labels in braces, if there are any, and what follows them.
fn labels(text: &str) -> Option<(Vec<Label<'_>>, &str)> {
    let mut labels = Vec::new();
    let Some(mut rest) = text.strip_prefix('{') else {
        return Some((labels, text));
    };
    loop {
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels, behind));
        }
        let (name, value) = rest.strip_prefix(',').unwrap_or(rest).split_once("=\"")?;
        let (value, behind) = quoted(value)?;
        labels.push((name, value));
        rest = behind;
    }
}

/// A value up to its closing quote, and what follows that.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = text.find(['"', '\\'])?;
    if let Some(behind) = text[end..].strip_prefix('"') {
        return Some((text[..end].into(), behind));
    }
    let mut value = text[..end].to_owned();
    let mut chars = text[end..].chars();
    loop {
        match chars.next()? {
            '"' => return Some((value.into(), chars.as_str())),
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all_metrics::AllMetrics;

    #[test]
    fn text_is_read_as_values() {
        let open = "# HELP a Things, \"by\" kind.\n# TYPE a counter\na_total 0\n\
            a_total{kind=\"x, y=\\\"z\\\" \\\\ \\n} # {\",of=\"ü\"} 12\n\
            # HELP empty Nothing.\n# TYPE empty gauge\n\
            # HELP b_bytes Size.\n# TYPE b_bytes gauge\nb_bytes -1.5\n# EOF\n";
        let number = |labels: &[(&'static str, &'static str)], value| Series {
            labels: labels
                .iter()
                .map(|(name, of)| (*name, (*of).into()))
                .collect(),
            value: Value::Number(value),
        };
        let expected = [
            Metric {
                name: "a",
                help: "Things, \"by\" kind.",
                unit: "",
                kind: Kind::Counter,
                series: vec![
                    number(&[], 0.0),
                    number(&[("kind", "x, y=\"z\" \\ \n} # {"), ("of", "ü")], 12.0),
                ],
            },
            Metric {
                name: "b_bytes",
                help: "Size.",
                unit: "bytes",
                kind: Kind::Gauge,
                series: vec![number(&[], -1.5)],
            },
        ];
        assert_eq!(metrics(open), expected);
    }

    #[test]
    fn a_histogram_is_one_value_of_its_label_set() {
        let open = "# HELP t Time.\n# TYPE t histogram\n\
            t_sum{m=\"a\"} 0.75\nt_count{m=\"a\"} 3\n\
            t_bucket{le=\"0.5\",m=\"a\"} 2 # {trace_id=\"1f\",span_id=\"2e\"} 0.25 1700000000.5\n\
            t_bucket{le=\"+Inf\",m=\"a\"} 3 # {trace_id=\"1e\"} 9.0\n\
            t_sum{m=\"b\"} 0.0\nt_count{m=\"b\"} 0\nt_bucket{le=\"0.5\",m=\"b\"} 0\nt_bucket{le=\"+Inf\",m=\"b\"} 0\n";
        let bucket = |bound, count, exemplar| Bucket {
            bound,
            count,
            exemplar,
        };
        let series = |model: &'static str, histogram| Series {
            labels: vec![("m", model.into())],
            value: Value::Histogram(histogram),
        };
        let first = Exemplar {
            labels: vec![("trace_id", "1f".into()), ("span_id", "2e".into())],
            value: 0.25,
            seconds: Some(1_700_000_000.5),
        };
        let last = Exemplar {
            labels: vec![("trace_id", "1e".into())],
            value: 9.0,
            seconds: None,
        };
        let a = Histogram {
            sum: 0.75,
            count: 3,
            buckets: vec![
                bucket(0.5, 2, Some(first)),
                bucket(f64::INFINITY, 3, Some(last)),
            ],
        };
        let b = Histogram {
            sum: 0.0,
            count: 0,
            buckets: vec![bucket(0.5, 0, None), bucket(f64::INFINITY, 0, None)],
        };
        let [metric] = &metrics(open)[..] else {
            panic!("one metric")
        };
        assert_eq!(metric.series, [series("a", a), series("b", b)]);
    }

    /// What the library writes of the whole registry, is read whole.
    #[test]
    fn every_sample_is_read() {
        let all = AllMetrics::new();
        all.of_proxy()
            .requests
            .prepared(std::time::Duration::from_millis(3));
        let open = all.encode();
        let written = open.lines().filter(|line| !line.starts_with('#')).count();
        let metrics = metrics(&open);
        let samples = |series: &Series<'_>| match &series.value {
            Value::Number(_) => 1,
            // Beside its sum and its count.
            Value::Histogram(histogram) => 2 + histogram.buckets.len(),
        };
        let read: usize = metrics.iter().flat_map(|of| &of.series).map(samples).sum();
        assert_eq!(read, written);
        assert!(metrics.iter().all(|metric| !metric.help.is_empty()));
        // Registered with its unit, and with a name that has it.
        for (name, unit) in [
            ("grapevine_preparation_seconds", "seconds"),
            ("grapevine_agreement_cost_seconds", "seconds"),
        ] {
            let metric = metrics.iter().find(|metric| metric.name == name);
            assert_eq!(metric.map(|metric| metric.unit), Some(unit), "{name}");
        }
        for metric in metrics.iter().filter(|of| of.kind == Kind::Histogram) {
            assert_eq!(metric.unit, "seconds", "{}", metric.name);
            for series in &metric.series {
                let Value::Histogram(of) = &series.value else {
                    panic!("{series:?}")
                };
                let last = of.buckets.last().expect("buckets");
                assert_eq!((last.bound, last.count), (f64::INFINITY, of.count));
            }
        }
    }

    #[test]
    fn only_what_is_behind_the_value_is_cut_off() {
        for (line, expected) in [
            ("a 1", "a 1"),
            ("a{b=\"c # {d} 1\"} 2", "a{b=\"c # {d} 1\"} 2"),
            (
                "a{b=\"c # {d} 1\"} 2 # {t=\"e\"} 3 4",
                "a{b=\"c # {d} 1\"} 2",
            ),
            ("a 2 # {t=\"e\"} 3", "a 2"),
            ("a{b=\"never # {ended", "a{b=\"never # {ended"),
        ] {
            assert_eq!(without_exemplar(line), expected);
        }
    }
}
