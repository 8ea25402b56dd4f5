//! The answer to `GET /metrics`: gauges that follow from other state, and then everything.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::Admin;
use super::answer::{Answer, answer};
use super::shared::Shared;
use crate::api::ApiError;
use crate::api::error::ErrorKind;
use crate::cluster::Fleet;
use crate::metrics::Form;
use crate::metrics::process::TaskLabels;
use crate::proxy::model_series::{OTHER, UNKNOWN};
use crate::upstream::health_metrics::VerdictCounts;
use crate::upstream::worker::OTHER_WORKERS;
use crate::{logging, memory};

/// Expositions that are being made, by form, for all who ask for them at once.
pub type Scrapes = [Shared<Bytes>; Form::COUNT];

/// An exposition, of which all who get it have the same bytes.
struct Scrape(Arc<Bytes>);

impl AsRef<[u8]> for Scrape {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// What is shown of workers without series of their own, and of all together.
#[derive(Debug, Default)]
struct Others {
    count: i64,
    own: i64,
    of_cluster: f64,
    verdicts: VerdictCounts,
    paused: i64,
}

impl Admin {
    pub(super) async fn metrics(self: &Arc<Self>, form: Form) -> Result<Answer, ApiError> {
        let admin = Arc::clone(self);
        // With a thousand workers that is some tenths of a second of work, for which gossip does not wait.
        let scrapes = &self.scrapes[form as usize];
        let written = scrapes.get(move || form.of(admin.exposition())).await;
        let written =
            written.map_err(|_| ApiError::new(ErrorKind::Internal, "it could not be written"))?;
        let body = Bytes::from_owner(Scrape(written));
        Ok(answer(StatusCode::OK, form.content_type(), body))
    }

    /// All metrics as they are now, as OpenMetrics text. Gauges that follow from other state are set here, when they are
    /// read.
    pub fn exposition(&self) -> String {
        // Some are cleared before they are set.
        let _one = self.reading.lock();
        self.show_process();
        self.metrics
            .cluster
            .replicas_unheard
            .set(self.count_unheard());
        let fleet = self.cluster.fleet();
        let models = &self.metrics.requests.models;
        models.keep(|model| fleet.pool(model).is_some());
        let others = self.show_workers(&fleet);
        self.show_others(&others);
        self.caches.show(fleet.workers());
        let health = &self.metrics.health;
        health.show_verdicts(&others.verdicts);
        health.paused.set(others.paused);
        let left_alone = fleet.left_alone().count();
        health.models_left_alone.set(left_alone as i64);
        let pools = fleet.pools().iter();
        health.show_panic(pools.map(|pool| (pool.label(), pool.panics())));
        self.admission
            .show(|model| Arc::clone(models.of(model).label()));
        let quarantined = self.quarantine.count();
        self.metrics.marks.quarantined.set(quarantined as i64);
        self.metrics.encode()
    }

    fn show_process(&self) {
        self.metrics.system.read();
        let (readiness, process) = (&self.metrics.readiness, &self.metrics.process);
        readiness.ready.set(self.readiness.is_ready().into());
        let live = memory::allocator::live_bytes().unwrap_or(0);
        process
            .memory_live
            .set(i64::try_from(live).unwrap_or(i64::MAX));
        let dropped = &process.log_lines_dropped;
        dropped.inc_by(logging::lines_dropped().saturating_sub(dropped.get()));
        let panics = &process.panics;
        panics.inc_by(logging::panics().saturating_sub(panics.get()));
        for (task, is_lost) in self.lost_tasks.all() {
            let labels = TaskLabels { task };
            process
                .lost_tasks
                .get_or_create(&labels)
                .set(is_lost.into());
        }
    }

    fn show_workers(&self, fleet: &Fleet) -> Others {
        let mut others = Others::default();
        let upstream = self.metrics.of_upstream();
        let is_served =
            |model: &str| [OTHER, UNKNOWN].contains(&model) || fleet.pool(model).is_some();
        for member in fleet.members() {
            let worker = &member.worker;
            upstream.keep_models(worker, is_served);
            let own = i64::from(worker.load.own().requests);
            let of_cluster = self.cluster.load_of(worker).exact_requests;
            // One that is drained is about to end, one that sleeps was sent to, and nobody has to look then.
            if !member.is_out() {
                others.verdicts.count(worker);
            }
            others.paused += i64::from(worker.pause().is_some());
            if worker.has_series() {
                let show = || {
                    self.metrics.workers.show(&worker.label, own, of_cluster);
                    self.metrics.health.show(worker);
                };
                // This list may be older than what has been forgotten.
                worker.series.look_up(show, || ());
            } else {
                others.count += 1;
                others.own += own;
                others.of_cluster += of_cluster;
            }
        }
        others
    }

    fn show_others(&self, others: &Others) {
        let label: Arc<str> = OTHER_WORKERS.into();
        let without_series = &self.metrics.cluster.workers_without_series;
        if others.count > 0 {
            let workers = &self.metrics.workers;
            workers.show(&label, others.own, others.of_cluster);
        } else if without_series.get() > 0 {
            // The last of them has left.
            self.metrics.of_upstream().forget(&label);
        }
        without_series.set(others.count);
    }
}
