//! What the metrics count, read for the history: from a small registry of its own that holds the same counters, since
//! the library shows a histogram in its text form alone.

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use crate::all_metrics::AllMetrics;
use crate::api::error::ErrorKind;
use crate::metrics::refusals::{BUSY, CONNECTIONS_BUSY, FAILED};
use crate::metrics::snapshot::{Sample, samples};
use crate::page::history::{Counted, OUTCOMES, VERDICTS};
use crate::proxy::outcome::Outcome;

/// Errors of the router's own that say "not now" to a client that did nothing wrong. That a tenant has used up what is
/// its own is between the two; that this replica ends has an outcome of its own.
const NOT_NOW: [ErrorKind; 2] = [ErrorKind::Overloaded, ErrorKind::NoWorker];

/// Those that tell a client of a fault of a worker or of this replica. A stream that broke off has an outcome that says so.
const FAULTS: [ErrorKind; 3] = [
    ErrorKind::UpstreamFailed,
    ErrorKind::UpstreamTimeout,
    ErrorKind::Internal,
];

/// The counters that the history is made from.
pub(super) struct Counters(Registry);

impl Counters {
    pub(super) fn of(metrics: &AllMetrics) -> Self {
        let mut registry = Registry::default();
        let requests = metrics.requests.families();
        registry.register("requests", "", requests.requests.clone());
        registry.register("gone_requests", "", metrics.requests.models.gone().clone());
        registry.register("first", "", requests.first_token_seconds.clone());
        registry.register("between", "", requests.inter_token_seconds.clone());
        registry.register("queue", "", metrics.admission.waits().clone());
        registry.register("errors", "", metrics.refusals.errors.clone());
        let worker_errors = metrics.refusals.worker_errors.clone();
        registry.register("worker_errors", "", worker_errors);
        let limits = metrics.refusals.limits_reached.clone();
        registry.register("limits", "", limits);
        let agreement = &metrics.cluster.agreement_samples;
        registry.register("agreement", "", agreement.clone());
        Self(registry)
    }

    pub(super) fn read(&self) -> Counted {
        let mut written = String::with_capacity(8 << 10);
        let mut counted = Counted::default();
        // Writing into a string cannot fail.
        if text::encode(&mut written, &self.0).is_ok() {
            samples(&written).for_each(|sample| count(&sample, &mut counted));
        }
        counted
    }
}

/// Limits that were reached since the start, and how often; the most frequent first. Requests for which queues had no room
/// are among them.
pub fn reached(metrics: &AllMetrics) -> Vec<(String, u64)> {
    let mut registry = Registry::default();
    let counters = metrics.refusals.limits_reached.clone();
    registry.register("limits", "", counters);
    let mut written = String::new();
    if text::encode(&mut written, &registry).is_err() {
        return Vec::new();
    }
    let of_sample = |sample: Sample<'_>| {
        let count = sample.value.parse().ok().filter(|count| *count > 0)?;
        Some((sample.label("limit")?.to_owned(), count))
    };
    let mut reached: Vec<(String, u64)> = samples(&written).filter_map(of_sample).collect();
    let without_room = metrics.admission.without_room().into_iter();
    let without_room = without_room.filter(|(_, count)| *count > 0);
    reached.extend(without_room.map(|(why, count)| (why.to_owned(), count)));
    reached.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    reached
}

/// Adds what a sample says; one that says nothing of interest changes nothing.
fn count(sample: &Sample<'_>, counted: &mut Counted) {
    let Ok(value) = sample.value.parse::<u64>() else {
        return;
    };
    let buckets = match sample.name {
        "errors_total" => {
            let code = sample.label("code").unwrap_or_default();
            let is_one_of = |kinds: &[ErrorKind]| kinds.iter().any(|kind| kind.code() == code);
            counted.refused += u64::from(is_one_of(&NOT_NOW)) * value;
            counted.failed += u64::from(is_one_of(&FAULTS)) * value;
            return;
        }
        "worker_errors_total" => {
            let result = sample.label("result");
            counted.refused += u64::from(result == Some(BUSY)) * value;
            counted.failed += u64::from(result == Some(FAILED)) * value;
            return;
        }
        // Sums over all models may not fall when one is served no more.
        "requests_total" | "gone_requests_total" => {
            let outcome = sample.label("outcome");
            return add(&OUTCOMES, outcome, value, &mut counted.outcomes);
        }
        // They are among the errors, and no series of requests has them.
        "limits_total" if sample.label("limit") == Some(CONNECTIONS_BUSY) => {
            let outcome = Outcome::Error.as_str();
            return add(&OUTCOMES, Some(outcome), value, &mut counted.outcomes);
        }
        "agreement_total" => {
            let result = sample.label("result");
            return add(&VERDICTS, result, value, &mut counted.verdicts);
        }
        "first_bucket" => &mut counted.first_token,
        "between_bucket" => &mut counted.inter_token,
        "queue_bucket" => &mut counted.queue,
        _ => return,
    };
    if let Some(bound) = sample.label("le").and_then(|bound| bound.parse().ok()) {
        buckets.add(bound, value);
    }
}

fn add<const N: usize>(names: &[&str; N], name: Option<&str>, value: u64, to: &mut [u64; N]) {
    if let Some(at) = names.iter().position(|of| Some(*of) == name) {
        to[at] += value;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http::StatusCode;

    use super::*;
    use crate::api::Endpoint;
    use crate::metrics::AgreementLabels;
    use crate::page::history::buckets::Buckets;
    use crate::proxy::model_series::ModelSeries;

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
            models.unknown().ended(endpoint, outcome, None, time, None);
        }
        for status in [StatusCode::BAD_GATEWAY, StatusCode::BAD_REQUEST] {
            let ended = (Endpoint::Chat, Outcome::Error, Some(status));
            models
                .unknown()
                .ended(ended.0, ended.1, ended.2, time, None);
        }
        for model in ["m", "le=\"9\",x=\"", "a} 7", "ü b"] {
            let series = models.of(&Arc::from(model));
            series.pace().first_token.observe(time, None);
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
        assert_eq!((counted.outcomes[0], counted.outcomes[5]), (2, 1));
        assert_eq!((counted.refused, counted.failed), (2, 0));
        assert_eq!(counted.verdicts[6], 1);
        let spread = counted.first_token.spread_since(&Buckets::default());
        assert!((0.015..0.035).contains(&spread.p50), "{spread:?}");
        assert!(spread.p99 < 0.035, "{spread:?}");
    }

    /// As `of 5 requests 3 refused` counts both.
    #[test]
    fn whom_no_connection_was_left_for_is_a_request_that_was_refused() {
        let metrics = AllMetrics::new();
        let counters = Counters::of(&metrics);
        metrics.refusals.own_error(ErrorKind::Overloaded);
        metrics.refusals.limit_reached(CONNECTIONS_BUSY);
        metrics.refusals.limit_reached("connections");
        let counted = counters.read();
        let ended: u64 = counted.outcomes.iter().sum();
        assert_eq!((ended, counted.refused, counted.failed), (1, 1, 0));
    }

    #[test]
    fn what_a_model_counted_stays_when_it_is_served_no_more() {
        let metrics = AllMetrics::new();
        let counters = Counters::of(&metrics);
        let models = &metrics.requests.models;
        models.limit(8);
        let ended = |of: &ModelSeries| {
            let time = Duration::from_millis(30);
            of.ended(Endpoint::Chat, Outcome::Success, None, time, None);
        };
        for _ in 0..3 {
            ended(&models.of(&Arc::from("m")));
            let sum = || counters.read().outcomes.iter().sum::<u64>();
            let before = sum();
            models.keep(|_| false);
            assert_eq!(sum(), before);
        }
        assert_eq!(counters.read().outcomes.iter().sum::<u64>(), 3);
    }

    #[test]
    fn faults_of_workers_are_no_refusals() {
        let metrics = AllMetrics::new();
        let counters = Counters::of(&metrics);
        let counted = |status: Option<u16>, own: Option<ErrorKind>| {
            let before = counters.read();
            if let Some(kind) = own {
                metrics.refusals.own_error(kind);
            }
            if let Some(status) = status {
                let status = StatusCode::from_u16(status).expect("a status");
                metrics.refusals.worker_error(status);
            }
            let now = counters.read();
            (now.refused - before.refused, now.failed - before.failed)
        };
        for fault in FAULTS {
            assert_eq!(counted(None, Some(fault)), (0, 1), "{fault:?}");
        }
        for not_now in NOT_NOW {
            assert_eq!(counted(None, Some(not_now)), (1, 0), "{not_now:?}");
        }
        // It has an outcome of its own, which is a failure already.
        assert_eq!(counted(None, Some(ErrorKind::ShuttingDown)), (0, 0));
        for (status, expected) in [
            (400, (0, 0)),
            (429, (1, 0)),
            (500, (0, 1)),
            (502, (0, 1)),
            (503, (1, 0)),
            (504, (0, 1)),
        ] {
            assert_eq!(counted(Some(status), None), expected, "{status}");
        }
    }
}
