//! Metrics of admission. Every series exists from the start, so that a request costs an atomic and no look-up.

use std::sync::Arc;
use std::time::Duration;

use grapevine_placement::named;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::api::Priority;
#[cfg(test)]
use crate::metrics::Row;
use crate::metrics::{Counter, Family, Gauge, Histogram, Histograms, label_sets, metrics, seconds};

named! {
    /// How a request's admission ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Verdict {
        Admitted = "admitted",
        TenantRequests = "tenant_requests",
        RequestRate = "request_rate",
        TokenRate = "token_rate",
        QueueFull = "queue_full",
        Displaced = "displaced",
        QueueTimeout = "queue_timeout",
        QueueBytes = "queue_bytes",
        ClientLeft = "client_left",
    }
}

/// Verdicts that say that this replica had no room.
const NO_ROOM: [Verdict; 4] = [
    Verdict::QueueFull,
    Verdict::QueueBytes,
    Verdict::QueueTimeout,
    Verdict::Displaced,
];

named! {
    /// What requests wait for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum For {
        /// A place among the requests of this replica.
        Admission = "admission",
        /// A worker below its own limit.
        Worker = "worker",
    }
}

label_sets! {
    /// A class of requests, and what became of one.
    AdmissionLabels { class: &'static str, result: &'static str }
    /// A queue and a class of requests.
    QueueLabels { queue: &'static str, class: &'static str }
    /// A model, and what its requests do.
    ModelStateLabels { model: Arc<str>, state: &'static str }
}

metrics! {
    /// Admission, by labels.
    Families {
        ended: Family<AdmissionLabels, Counter>, "admissions", "Requests by class, let in or why not";
        length: Family<QueueLabels, Gauge>, "queue_length", "Requests that wait";
        wait: Histograms<QueueLabels> = Family::new_with_constructor(|| seconds(0.001, 18)),
            "queue_wait" Seconds, "Time in a queue, of requests that had to wait, however it ended";
        models: Family<ModelStateLabels, Gauge>,
            "model_requests", "Requests of a model that have a place, or wait for one";
    }
}

/// Handles, each looked up by now.
#[derive(Debug, Clone)]
pub struct AdmissionMetrics {
    /// By class and verdict.
    ended: [[Counter; Verdict::ALL.len()]; Priority::ALL.len()],
    /// By what is waited for and class.
    waiting: [[Gauge; Priority::ALL.len()]; For::ALL.len()],
    waited: [[Histogram; Priority::ALL.len()]; For::ALL.len()],
    /// The same, by labels.
    wait: Histograms<QueueLabels>,
    models: Family<ModelStateLabels, Gauge>,
}

/// A request in a queue: counted while it lives; its wait is observed when it ends.
#[derive(Debug)]
pub(super) struct WaitTimer<'a> {
    length: &'a Gauge,
    waited: &'a Histogram,
    /// None: the queue did not take it.
    since: Option<Instant>,
}

impl AdmissionMetrics {
    /// The rows, in the order in which they are shown.
    #[cfg(test)]
    pub(crate) const ROWS: &'static [Row] = Families::ROWS;

    /// Registers all of them.
    pub fn register(registry: &mut Registry) -> Self {
        let Families {
            ended,
            length,
            wait,
            models,
        } = Families::register(registry);
        let class = Priority::as_str;
        let labels = |queue: For, of| QueueLabels {
            queue: queue.as_str(),
            class: class(of),
        };
        Self {
            ended: Priority::ALL.map(|of| {
                Verdict::ALL.map(|verdict| {
                    ended.get_or_create_owned(&AdmissionLabels {
                        class: class(of),
                        result: verdict.as_str(),
                    })
                })
            }),
            waiting: For::ALL.map(|queue| {
                Priority::ALL.map(|of| length.get_or_create_owned(&labels(queue, of)))
            }),
            waited: For::ALL
                .map(|queue| Priority::ALL.map(|of| wait.get_or_create_owned(&labels(queue, of)))),
            wait,
            models,
        }
    }

    /// Times in queues, by labels.
    pub(crate) fn waits(&self) -> &Histograms<QueueLabels> {
        &self.wait
    }

    /// Requests for which this replica had no room, by why not; what a key's own limits refuse is not among them.
    pub(crate) fn without_room(&self) -> [(&'static str, u64); NO_ROOM.len()] {
        NO_ROOM.map(|verdict| {
            let of_classes = self.ended.iter().map(|ended| ended[verdict as usize].get());
            (verdict.as_str(), of_classes.sum())
        })
    }

    /// Requests that wait now, in all queues.
    pub(crate) fn waiting(&self) -> i64 {
        self.waiting.iter().flatten().map(Gauge::get).sum()
    }

    /// Sets how many requests of each model have a place and how many wait for one; models without series of their own
    /// share a label.
    pub(crate) fn show_models(
        &self,
        held: Vec<(Arc<str>, u32)>,
        waiting: Vec<(Arc<str>, u32)>,
        label_of: impl Fn(&Arc<str>) -> Arc<str>,
    ) {
        // Models come and go.
        self.models.clear();
        for (state, counts) in [("in_progress", held), ("waiting", waiting)] {
            for (model, count) in counts {
                let model = label_of(&model);
                let labels = ModelStateLabels { model, state };
                self.models.get_or_create(&labels).inc_by(count.into());
            }
        }
    }

    pub(super) fn count(&self, class: Priority, verdict: Verdict) {
        self.ended[class.index()][verdict as usize].inc();
    }

    pub(super) fn wait(&self, queue: For, class: Priority) -> WaitTimer<'_> {
        let length = &self.waiting[queue as usize][class.index()];
        length.inc();
        WaitTimer {
            length,
            waited: &self.waited[queue as usize][class.index()],
            since: Some(Instant::now()),
        }
    }
}

impl WaitTimer<'_> {
    /// It was refused at once.
    pub(super) fn was_refused(&mut self) {
        self.since = None;
    }

    pub(super) fn waited(&self) -> Option<Duration> {
        self.since.map(|since| since.elapsed())
    }
}

impl Drop for WaitTimer<'_> {
    fn drop(&mut self) {
        self.length.dec();
        if let Some(waited) = self.waited() {
            self.waited.observe(waited.as_secs_f64());
        }
    }
}
