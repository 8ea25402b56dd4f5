//! What the metrics count, read for the history: from a small registry of its own that holds the same counters, since
//! the library shows a histogram in its text form alone.

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use crate::all_metrics::AllMetrics;
use crate::api::error::ErrorKind;
use crate::page::history::buckets::Buckets;
use crate::page::history::{Counted, OUTCOMES, VERDICTS};
use crate::proxy::record::Outcome;

/// Errors of the router's own that say "not now" to a client that did nothing wrong. That a tenant has used up what is
/// its own is between the two.
const NOT_NOW: [ErrorKind; 6] = [
    ErrorKind::Overloaded,
    ErrorKind::NoWorker,
    ErrorKind::UpstreamFailed,
    ErrorKind::UpstreamTimeout,
    ErrorKind::ShuttingDown,
    ErrorKind::Internal,
];

/// The counters that the history is made from.
pub(super) struct Counters(Registry);

impl Counters {
    pub(super) fn of(metrics: &AllMetrics) -> Self {
        let mut registry = Registry::default();
        let requests = metrics.requests.families();
        registry.register("requests", "", requests.requests.clone());
        registry.register("first", "", requests.first_token_seconds.clone());
        registry.register("between", "", requests.inter_token_seconds.clone());
        registry.register("queue", "", metrics.admission.waits().clone());
        registry.register("errors", "", metrics.refusals.errors.clone());
        let agreement = &metrics.cluster.agreement_samples;
        registry.register("agreement", "", agreement.clone());
        Self(registry)
    }

    pub(super) fn read(&self) -> Counted {
        let mut written = String::with_capacity(8 << 10);
        let mut counted = Counted::default();
        // Writing into a string cannot fail.
        if text::encode(&mut written, &self.0).is_ok() {
            written.lines().for_each(|line| count(line, &mut counted));
        }
        counted
    }
}

/// Limits that were reached since the start, and how often; the most frequent first.
pub fn reached(metrics: &AllMetrics) -> Vec<(String, u64)> {
    let mut registry = Registry::default();
    let counters = metrics.refusals.limits_reached.clone();
    registry.register("limits", "", counters);
    let mut written = String::new();
    if text::encode(&mut written, &registry).is_err() {
        return Vec::new();
    }
    let of_line = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{')?;
        let count = value.parse().ok().filter(|count| *count > 0)?;
        let limit = label(labels, "limit").filter(|_| name == "limits_total")?;
        Some((limit.to_owned(), count))
    };
    let mut reached: Vec<(String, u64)> = written.lines().filter_map(of_line).collect();
    reached.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    reached
}

/// Adds what a line says; one that says nothing of interest changes nothing.
fn count(line: &str, counted: &mut Counted) {
    let Some((series, value)) = line.rsplit_once(' ') else {
        return;
    };
    let Ok(value) = value.parse::<u64>() else {
        return;
    };
    let Some((name, labels)) = series.split_once('{') else {
        return;
    };
    let buckets = match name {
        "errors_total" => {
            let code = label(labels, "code");
            let is_not_now = code.is_some_and(|code| NOT_NOW.map(ErrorKind::code).contains(&code));
            counted.refused[0] += u64::from(is_not_now) * value;
            return;
        }
        "requests_total" => {
            let is_error = label(labels, "outcome") == Some(Outcome::Error.as_str());
            let is_ours = label(labels, "status") == Some("5xx");
            counted.refused[1] += u64::from(is_error && is_ours) * value;
            return add(
                &OUTCOMES,
                label(labels, "outcome"),
                value,
                &mut counted.outcomes,
            );
        }
        "agreement_total" => {
            return add(
                &VERDICTS,
                label(labels, "result"),
                value,
                &mut counted.verdicts,
            );
        }
        "first_bucket" => &mut counted.first_token,
        "between_bucket" => &mut counted.inter_token,
        "queue_bucket" => &mut counted.queue,
        _ => return,
    };
    add_bucket(buckets, labels, value);
}

/// The bound is the first label of a bucket, before what names from outside could imitate.
fn add_bucket(buckets: &mut Buckets, labels: &str, value: u64) {
    let bound = labels
        .strip_prefix("le=\"")
        .and_then(|rest| rest.split_once('"'));
    match bound.map(|(bound, _)| bound) {
        Some("+Inf") => buckets.add(f64::INFINITY, value),
        Some(bound) => {
            if let Ok(bound) = bound.parse() {
                buckets.add(bound, value);
            }
        }
        None => {}
    }
}

fn add<const N: usize>(names: &[&str; N], name: Option<&str>, value: u64, to: &mut [u64; N]) {
    if let Some(at) = names.iter().position(|of| Some(*of) == name) {
        to[at] += value;
    }
}

fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let labels = labels.trim_end_matches('}').split(',');
    let mut pairs = labels.filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(of, _)| *of == name)?;
    Some(value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http::StatusCode;

    use super::*;
    use crate::api::Endpoint;
    use crate::metrics::AgreementLabels;

    #[test]
    fn what_is_counted_is_read_whatever_models_are_called() {
        let metrics = AllMetrics::new();
        let counters = Counters::of(&metrics);
        assert_eq!(counters.read().outcomes, [0; OUTCOMES.len()]);
        let models = &metrics.requests.models;
        models.limit(8);
        let time = Duration::from_millis(30);
        for (endpoint, outcome) in [
            (Endpoint::Chat, Outcome::Success),
            (Endpoint::Completions, Outcome::Success),
            (Endpoint::Completions, Outcome::WorkerBroke),
        ] {
            models.unknown().ended(endpoint, outcome, None, time);
        }
        for status in [StatusCode::BAD_GATEWAY, StatusCode::BAD_REQUEST] {
            let ended = (Endpoint::Chat, Outcome::Error, Some(status));
            models.unknown().ended(ended.0, ended.1, ended.2, time);
        }
        for model in ["m", "le=\"9\",x=\"", "a} 7", "ü b"] {
            let series = models.of(&Arc::from(model));
            series.pace().first_token.observe(time.as_secs_f64());
        }
        let labels = AgreementLabels {
            result: "load",
            prompt: "known",
        };
        metrics
            .cluster
            .agreement_samples
            .get_or_create(&labels)
            .inc();
        metrics.refusals.own_error(ErrorKind::NoWorker);
        metrics.refusals.own_error(ErrorKind::Overloaded);
        for theirs in [
            ErrorKind::InvalidRequest,
            ErrorKind::RateLimited,
            ErrorKind::ModelNotFound,
        ] {
            metrics.refusals.own_error(theirs);
        }
        let counted = counters.read();
        assert_eq!((counted.outcomes[0], counted.refused), (2, [2, 1]));
        assert_eq!(counted.outcomes[5], 1);
        assert_eq!(counted.verdicts[6], 1);
        let spread = counted.first_token.spread_since(&Buckets::default());
        assert!((0.015..0.035).contains(&spread.p50), "{spread:?}");
        assert!(spread.p99 < 0.035, "{spread:?}");
    }
}
