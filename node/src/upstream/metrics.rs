//! Metrics of workers' health.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grapevine_placement::{BreakerState, Claim, Health as Probed};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Worker;
use super::revive::TOKEN_PROBE_RESULTS;
use crate::metrics::{ModelLabels, ResultLabels, WorkerLabels};

/// A worker and what its health became.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(missing_docs, reason = "the fields are the labels")]
pub struct ChangeLabels {
    pub worker: Arc<str>,
    pub to: &'static str,
}

/// One verdict.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[allow(missing_docs, reason = "the fields are the labels")]
pub struct VerdictLabels {
    pub verdict: &'static str,
}

/// Models of which each has a series; of the others one is shown for all.
const MODEL_SERIES_MAX: usize = 1_000;
/// What stands for the others.
const OTHER_MODELS: &str = "other";

/// Handles to the metrics of health.
#[derive(Debug, Default)]
pub struct HealthMetrics {
    healthy: Family<WorkerLabels, Gauge>,
    breaker: Family<WorkerLabels, Gauge>,
    stalled: Family<WorkerLabels, Gauge>,
    doubted: Family<WorkerLabels, Gauge>,
    ejections: Family<WorkerLabels, Gauge>,
    slow_start: Family<WorkerLabels, Gauge<f64, AtomicU64>>,
    changes: Family<ChangeLabels, Counter>,
    panic: Family<ModelLabels, Gauge>,
    verdicts: Family<VerdictLabels, Gauge>,
    /// Stalled workers that were asked for a token, by what came of it.
    pub token_probes: Family<ResultLabels, Counter>,
}

impl HealthMetrics {
    /// Registers them.
    pub fn register(r: &mut Registry) -> Self {
        let metrics = Self::default();
        // From the start, so that a count of 0 is told from none.
        for result in TOKEN_PROBE_RESULTS {
            drop(metrics.token_probes.get_or_create(&ResultLabels { result }));
        }
        r.register(
            "worker_healthy",
            "1 when health checks pass",
            metrics.healthy.clone(),
        );
        r.register(
            "worker_breaker",
            "0 closed, 1 half-open, 2 open",
            metrics.breaker.clone(),
        );
        r.register(
            "worker_stalled",
            "1 while it takes requests and delivers no token",
            metrics.stalled.clone(),
        );
        r.register(
            "worker_doubted",
            "1 while other replicas speak against it and nothing here speaks for it",
            metrics.doubted.clone(),
        );
        r.register(
            "worker_ejections",
            "Times that its breaker opened, as far as it remembers",
            metrics.ejections.clone(),
        );
        r.register(
            "worker_slow_start",
            "Share of the mean load that it may have; 1 unless it starts slowly",
            metrics.slow_start.clone(),
        );
        r.register(
            "worker_health_changes",
            "Changes of this replica's verdict, by what it became",
            metrics.changes.clone(),
        );
        r.register(
            "panic",
            "1 while more than half of a model's workers are unhealthy and health is not believed",
            metrics.panic.clone(),
        );
        r.register(
            "workers_by_verdict",
            "Workers by this replica's verdict",
            metrics.verdicts.clone(),
        );
        r.register(
            "token_probes",
            "Stalled or silent workers asked for a token, by what came of it",
            metrics.token_probes.clone(),
        );
        metrics
    }

    /// Sets what is known of a worker now.
    pub fn show(&self, worker: &Worker) {
        let report = worker.health.report();
        let labels = labels(&worker.label);
        let set = |family: &Family<WorkerLabels, Gauge>, value| {
            family.get_or_create(&labels).set(value);
        };
        set(&self.healthy, (report.probes == Probed::Healthy).into());
        set(
            &self.breaker,
            match report.breaker {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open => 2,
            },
        );
        set(&self.stalled, (report.verdict == Claim::Stalled).into());
        set(&self.doubted, report.doubt.is_some().into());
        set(&self.ejections, report.ejections.into());
        let share = report.slow_start.unwrap_or(1.0);
        self.slow_start.get_or_create(&labels).set(share);
        for (to, count) in worker.health.changes() {
            let counter = self.changes.get_or_create(&change(&worker.label, to));
            counter.inner().store(count, Ordering::Relaxed);
        }
    }

    /// Counts a worker under its verdict.
    pub fn count(&self, worker: &Worker, verdicts: &mut [i64; Claim::ALL.len()]) {
        verdicts[worker.health.report().verdict as usize] += 1;
    }

    /// Sets how many workers have which verdict.
    pub fn show_verdicts(&self, verdicts: &[i64; Claim::ALL.len()]) {
        for (claim, count) in Claim::ALL.into_iter().zip(verdicts) {
            let verdict = claim.as_str();
            let gauge = self.verdicts.get_or_create(&VerdictLabels { verdict });
            gauge.set(*count);
        }
    }

    /// Sets in which models' pools health is not believed now.
    pub fn show_panic<'a>(&self, pools: impl Iterator<Item = (Arc<str>, bool)> + 'a) {
        // Models come and go.
        self.panic.clear();
        let mut others = None;
        for (index, (model, panics)) in pools.enumerate() {
            if index < MODEL_SERIES_MAX {
                let labels = ModelLabels { model };
                self.panic.get_or_create(&labels).set(panics.into());
            } else {
                others = Some(others.unwrap_or(false) || panics);
            }
        }
        if let Some(panics) = others {
            let model = OTHER_MODELS.into();
            let labels = ModelLabels { model };
            self.panic.get_or_create(&labels).set(panics.into());
        }
    }

    /// Forgets the series of a worker that left the registry.
    pub fn forget(&self, worker: &Arc<str>) {
        let labels = labels(worker);
        for family in [
            &self.healthy,
            &self.breaker,
            &self.stalled,
            &self.doubted,
            &self.ejections,
        ] {
            family.remove(&labels);
        }
        self.slow_start.remove(&labels);
        for to in Claim::ALL {
            self.changes.remove(&change(worker, to));
        }
    }

    /// Gives every family a series, so that all are encoded.
    #[cfg(test)]
    pub(crate) fn fill(&self, worker: &Arc<str>) {
        let labels = labels(worker);
        for family in [
            &self.healthy,
            &self.breaker,
            &self.stalled,
            &self.doubted,
            &self.ejections,
        ] {
            drop(family.get_or_create(&labels));
        }
        drop(self.slow_start.get_or_create(&labels));
        drop(self.changes.get_or_create(&change(worker, Claim::Good)));
        self.show_panic([("m".into(), false)].into_iter());
        self.show_verdicts(&Default::default());
    }
}

fn labels(worker: &Arc<str>) -> WorkerLabels {
    WorkerLabels {
        worker: Arc::clone(worker),
    }
}

fn change(worker: &Arc<str>, to: Claim) -> ChangeLabels {
    ChangeLabels {
        worker: Arc::clone(worker),
        to: to.as_str(),
    }
}
