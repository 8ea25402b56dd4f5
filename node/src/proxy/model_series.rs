//! The series of one model that its requests count in, looked up once a request and not once a metric.
//!
//! Models come and go, and adapters may be many, so the table is bounded: models beyond `metrics.model_series` share
//! [`OTHER`], and requests that name no model that is served share [`UNKNOWN`]. The series of a model that is served no
//! more end once none of its requests is under way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use parking_lot::RwLock;

use super::outcome::Outcome;
use super::request_families::RequestFamilies;
use crate::api::Endpoint;
use crate::metrics::cached_series::CachedSeries;
use crate::metrics::{
    Counter, Family, GapHistogram, ModelEndpointLabels, ModelLabels, RequestLabels, SampledSpan,
    TracedHistogram, TracedHistograms,
};

/// Requests for models that have no series of their own.
pub const OTHER: &str = "other";
/// Requests that name no model, or none that is served.
pub const UNKNOWN: &str = "unknown";

/// Which hundred a status is of; `none` where no answer began.
const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

fn class_of(status: Option<StatusCode>) -> usize {
    let hundreds = status.map_or(0, |status| usize::from(status.as_u16() / 100));
    if hundreds < CLASSES.len() {
        hundreds
    } else {
        0
    }
}

/// What the pace of a model's streams counts in.
#[derive(Debug, Clone)]
pub struct StreamPace {
    /// From the head of a request to its first token.
    pub first_token: TracedHistogram,
    /// Time between two tokens of a stream.
    pub inter_token: GapHistogram,
    /// Mean time for a token of a stream.
    pub per_token: TracedHistogram,
    /// Longest pause of a stream.
    pub pause: TracedHistogram,
}

/// The series of one model.
#[derive(Debug)]
pub struct ModelSeries {
    families: RequestFamilies,
    label: Arc<str>,
    pace: OnceLock<StreamPace>,
    endpoints: [OnceLock<Box<EndpointSeries>>; Endpoint::ALL.len()],
}

/// The series of one model's requests to one endpoint.
#[derive(Debug)]
struct EndpointSeries {
    /// By outcome, then by class of the status.
    ended: CachedSeries<Counter>,
    seconds: TracedHistogram,
}

impl ModelSeries {
    fn new(families: RequestFamilies, label: Arc<str>) -> Self {
        Self {
            families,
            label,
            pace: OnceLock::new(),
            endpoints: [const { OnceLock::new() }; Endpoint::ALL.len()],
        }
    }

    /// The model as a label.
    pub fn label(&self) -> &Arc<str> {
        &self.label
    }

    /// What its streams' pace counts in; made when first asked for.
    pub fn pace(&self) -> &StreamPace {
        self.pace.get_or_init(|| {
            let labels = ModelLabels::of(&self.label);
            let of = |family: &TracedHistograms<ModelLabels>| family.get_or_create_owned(&labels);
            StreamPace {
                first_token: of(&self.families.first_token_seconds),
                inter_token: self
                    .families
                    .inter_token_seconds
                    .get_or_create_owned(&labels),
                per_token: of(&self.families.time_per_output_token_seconds),
                pause: of(&self.families.stream_pause_seconds),
            }
        })
    }

    /// Its requests to this endpoint have series from now on: an outcome that comes later is seen to rise from 0.
    pub fn expect(&self, endpoint: Endpoint) {
        self.of(endpoint);
    }

    /// Counts the end of a request, which was traced in this span.
    pub fn ended(
        &self,
        endpoint: Endpoint,
        outcome: Outcome,
        status: Option<StatusCode>,
        elapsed: Duration,
        within: Option<SampledSpan>,
    ) {
        let of = self.of(endpoint);
        let class = class_of(status);
        let index = outcome as usize * CLASSES.len() + class;
        let find = || self.counter(endpoint, outcome, class);
        of.ended.count(index, find, |counter| {
            counter.inc();
        });
        of.seconds.observe(elapsed, within);
    }

    fn of(&self, endpoint: Endpoint) -> &EndpointSeries {
        self.endpoints[endpoint as usize].get_or_init(|| {
            for outcome in Outcome::ALL {
                // A session's answer switches protocols.
                let switches = (endpoint == Endpoint::Realtime).then_some(&1);
                for class in outcome.usual_classes().iter().chain(switches) {
                    drop(self.counter(endpoint, outcome, *class));
                }
            }
            let labels = self.endpoint_labels(endpoint);
            Box::new(EndpointSeries {
                ended: CachedSeries::new(Outcome::ALL.len() * CLASSES.len()),
                seconds: self.families.request_seconds.get_or_create_owned(&labels),
            })
        })
    }

    fn counter(&self, endpoint: Endpoint, outcome: Outcome, class: usize) -> Counter {
        let labels = self.labels(endpoint, outcome, class);
        self.families.requests.get_or_create_owned(&labels)
    }

    fn labels(&self, endpoint: Endpoint, outcome: Outcome, class: usize) -> RequestLabels {
        RequestLabels {
            endpoint: endpoint.as_str(),
            model: Arc::clone(&self.label),
            outcome: outcome.as_str(),
            status: CLASSES[class],
        }
    }

    fn endpoint_labels(&self, endpoint: Endpoint) -> ModelEndpointLabels {
        ModelEndpointLabels {
            endpoint: endpoint.as_str(),
            model: Arc::clone(&self.label),
        }
    }

    /// Takes all of them out of what is shown, and adds what they counted to `gone`.
    fn remove(&self, gone: &Family<RequestLabels, Counter>) {
        let families = &self.families;
        let labels = ModelLabels::of(&self.label);
        for family in [
            &families.first_token_seconds,
            &families.time_per_output_token_seconds,
            &families.stream_pause_seconds,
        ] {
            family.remove(&labels);
        }
        families.inter_token_seconds.remove(&labels);
        let used = Endpoint::ALL.into_iter();
        for endpoint in used.filter(|of| self.endpoints[*of as usize].get().is_some()) {
            let labels = self.endpoint_labels(endpoint);
            families.request_seconds.remove(&labels);
            for outcome in Outcome::ALL {
                for class in 0..CLASSES.len() {
                    let mut labels = self.labels(endpoint, outcome, class);
                    let counted = families.requests.get(&labels).map(|counter| counter.get());
                    families.requests.remove(&labels);
                    if let Some(counted) = counted.filter(|counted| *counted > 0) {
                        labels.model = OTHER.into();
                        gone.get_or_create(&labels).inc_by(counted);
                    }
                }
            }
        }
    }
}

/// The models that have series.
#[derive(Debug)]
pub struct ModelTable {
    families: RequestFamilies,
    most: AtomicUsize,
    known: RwLock<HashMap<Arc<str>, Arc<ModelSeries>, foldhash::fast::RandomState>>,
    other: Arc<ModelSeries>,
    unknown: Arc<ModelSeries>,
    gone: Family<RequestLabels, Counter>,
}

impl ModelTable {
    /// No models yet, and none with series of its own until a limit is set.
    pub fn new(families: &RequestFamilies) -> Self {
        let shared = |label: &str| Arc::new(ModelSeries::new(families.clone(), label.into()));
        Self {
            families: families.clone(),
            most: AtomicUsize::new(0),
            known: RwLock::default(),
            other: shared(OTHER),
            unknown: shared(UNKNOWN),
            gone: Family::default(),
        }
    }

    /// Sets how many models have series of their own (`metrics.model_series`).
    pub fn limit(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// The series of requests that name no model, or none that is served.
    pub fn unknown(&self) -> &Arc<ModelSeries> {
        &self.unknown
    }

    /// What models counted that have no series any more, for who needs sums over all that never fall. They are in no
    /// scrape: whoever adds up rates has had them already, and would count them again in another series.
    pub fn gone(&self) -> &Family<RequestLabels, Counter> {
        &self.gone
    }

    /// The series of a served model; the empty name is that of no model.
    pub fn of(&self, model: &Arc<str>) -> Arc<ModelSeries> {
        match &**model {
            "" | UNKNOWN => return Arc::clone(&self.unknown),
            OTHER => return Arc::clone(&self.other),
            _ => {}
        }
        let known = self.known.read();
        if let Some(series) = known.get(model) {
            return Arc::clone(series);
        }
        drop(known);
        let mut known = self.known.write();
        if known.len() >= self.most.load(Ordering::Relaxed) && !known.contains_key(model) {
            return Arc::clone(&self.other);
        }
        let series = known.entry(Arc::clone(model)).or_insert_with(|| {
            let label = Arc::clone(model);
            Arc::new(ModelSeries::new(self.families.clone(), label))
        });
        Arc::clone(series)
    }

    /// Ends the series of models that are served no more, and of which no request is under way.
    pub fn keep(&self, is_served: impl Fn(&str) -> bool) {
        let mut known = self.known.write();
        known.retain(|model, series| {
            // Under the lock no request can begin to hold it.
            let stays = is_served(model) || Arc::strong_count(series) > 1;
            if !stays {
                series.remove(&self.gone);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::all_metrics::AllMetrics;

    const SECOND: Duration = Duration::from_secs(1);

    fn lines(metrics: &AllMetrics, with: &str) -> Vec<String> {
        let text = metrics.encode();
        let lines = text.lines().filter(|line| line.contains(with));
        lines.map(str::to_owned).collect()
    }

    fn end(series: &ModelSeries, status: u16) {
        let status = StatusCode::from_u16(status).ok();
        series.ended(Endpoint::Chat, Outcome::Success, status, SECOND, None);
    }

    #[test]
    fn models_beyond_the_limit_share_a_label_and_no_model_is_unknown() {
        let metrics = AllMetrics::new();
        let table = &metrics.requests.models;
        table.limit(2);
        for model in ["a", "b", "c", "d", "a", ""] {
            end(&table.of(&model.into()), 200);
        }
        let counted = |model: &str| {
            let series = format!("model=\"{model}\",outcome=\"success\",status=\"2xx\"}}");
            let lines = lines(&metrics, &series);
            assert!(lines.len() <= 1, "{lines:?}");
            let value = lines.first().and_then(|line| line.rsplit(' ').next());
            value.map_or(0, |value| value.parse().expect("a number"))
        };
        assert_eq!(
            ["a", "b", "c", OTHER, UNKNOWN].map(counted),
            [2, 1, 0, 2, 1]
        );
    }

    #[test]
    fn outcomes_are_there_before_they_come() {
        let metrics = AllMetrics::new();
        metrics.requests.models.unknown().expect(Endpoint::Chat);
        for outcome in Outcome::ALL.map(Outcome::as_str) {
            let series = format!("outcome=\"{outcome}\"");
            let lines = lines(&metrics, &series);
            assert!(!lines.is_empty(), "{outcome}");
            assert!(lines.iter().all(|line| line.ends_with(" 0")), "{lines:?}");
        }
    }

    #[test]
    fn a_status_counts_in_its_hundred() {
        let metrics = AllMetrics::new();
        let series = metrics.requests.models.unknown();
        for status in [101, 204, 302, 499, 599, 999] {
            end(series, status);
        }
        series.ended(Endpoint::Chat, Outcome::ClientLeft, None, SECOND, None);
        for class in CLASSES {
            let of_class = format!("status=\"{class}\"");
            let counted = lines(&metrics, &of_class);
            let ones = counted.iter().filter(|line| line.ends_with(" 1"));
            // What no class has counts as none.
            let expected = if class == "none" { 2 } else { 1 };
            assert_eq!(ones.count(), expected, "{class}: {counted:?}");
        }
    }

    #[test]
    fn series_end_with_their_model_and_its_last_request() {
        let metrics = AllMetrics::new();
        let table = &metrics.requests.models;
        table.limit(1);
        let under_way = table.of(&"gone".into());
        under_way.pace().first_token.observe(SECOND, None);
        end(&under_way, 200);
        table.keep(|_| false);
        assert!(
            !lines(&metrics, "\"gone\"").is_empty(),
            "a request is under way"
        );
        drop(under_way);
        table.keep(|_| true);
        assert!(!lines(&metrics, "\"gone\"").is_empty(), "it is served");
        table.keep(|_| false);
        assert_eq!(lines(&metrics, "\"gone\""), Vec::<String>::new());
        let others = lines(&metrics, "grapevine_requests_total");
        assert!(
            others.iter().all(|line| line.ends_with(" 0")),
            "counted in no other one: {others:?}"
        );
        end(&table.of(&"next".into()), 200);
        assert!(
            !lines(&metrics, "\"next\"").is_empty(),
            "there is room again"
        );
    }
}
