//! Metrics of workers' health.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use grapevine_placement::{BreakerState, Claim, Health as Probed, named};

use super::worker::Worker;
use crate::metrics::{
    Counter, Family, FloatGauge, Gauge, ModelLabels, ResultLabels, WorkerLabels, label_sets,
    metrics,
};

label_sets! {
    /// A worker and what its health became.
    ChangeLabels { worker: Arc<str>, to: &'static str }
    /// One verdict.
    VerdictLabels { verdict: &'static str }
}

/// An ejected worker whose time out of use is over: without traffic it stays so, and is of use all the same.
const ON_TRIAL: &str = "on_trial";

/// How many workers have which verdict, and behind these how many are on trial.
#[derive(Debug, Default)]
pub struct VerdictCounts([i64; Claim::ALL.len() + 1]);

impl VerdictCounts {
    /// Counts a worker under its verdict.
    pub fn count(&mut self, worker: &Worker) {
        let report = worker.health.report();
        let is_on_trial =
            report.verdict == Claim::Ejected && report.breaker == BreakerState::HalfOpen;
        let at = match is_on_trial {
            true => Claim::ALL.len(),
            false => report.verdict as usize,
        };
        self.0[at] += 1;
    }
}

/// Models of which each has a series; of the others one is shown for all.
const MODEL_SERIES_MAX: usize = 1_000;
/// What stands for the others.
const OTHER_MODELS: &str = "other";

metrics! {
    /// Health of workers.
    pub HealthMetrics {
        healthy: Family<WorkerLabels, Gauge>, "worker_healthy", "1 when health checks pass";
        breaker: Family<WorkerLabels, Gauge>, "worker_breaker", "0 closed, 1 open, 2 half-open";
        stalled: Family<WorkerLabels, Gauge>,
            "worker_stalled", "1 while it takes requests and delivers no token";
        asleep: Family<WorkerLabels, Gauge>, "worker_asleep", "1 while its engine sleeps, as it says";
        doubted: Family<WorkerLabels, Gauge>,
            "worker_doubted", "1 while other replicas speak against it and nothing here speaks for it";
        ejections: Family<WorkerLabels, Gauge>,
            "worker_ejections", "Times that its breaker opened, as far as it remembers";
        slow_start: Family<WorkerLabels, FloatGauge>,
            "worker_slow_start", "Share of the mean load that it may have; 1 unless it starts slowly";
        changes: Family<ChangeLabels, Counter>,
            "worker_health_changes", "Changes of this replica's verdict, by what it became";
        panic: Family<ModelLabels, Gauge>,
            "panic", "1 while more than half of a model's workers, without drained ones, are unhealthy and health is not believed";
        verdicts: Family<VerdictLabels, Gauge>, "workers_by_verdict", "Workers that are not drained, by this replica's verdict";
        paused: Gauge, "workers_paused", "Workers that are sent nothing until a time that they named";
        models_left_alone: Gauge,
            "models_left_alone", "Models of which every usable worker is sent nothing until a time that it named";
        token_probes: Family<ResultLabels, Counter>,
            "token_probes", "Stalled or silent workers asked for a token, by what came of it",
            ResultLabels { result } in TokenProbeResult::ALL.map(TokenProbeResult::as_str);
    }
}

named! {
    /// What became of a question for one token. Labels of a metric: stable.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum TokenProbeResult {
        /// A token, or an embedding.
        Token = "token",
        /// Nothing, in time; or an error.
        Nothing = "nothing",
        /// A refusal that says nothing about the engine.
        Refusal = "refused",
    }
}

impl HealthMetrics {
    /// Sets what is known of a worker now.
    pub fn show(&self, worker: &Worker) {
        let report = worker.health.report();
        let labels = WorkerLabels::of(&worker.label);
        let set = |family: &Family<WorkerLabels, Gauge>, value| {
            family.get_or_create(&labels).set(value);
        };
        set(&self.healthy, (report.probes == Probed::Healthy).into());
        set(&self.asleep, worker.asleep().is_some().into());
        set(
            &self.breaker,
            match report.breaker {
                BreakerState::Closed => 0,
                BreakerState::Open => 1,
                BreakerState::HalfOpen => 2,
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

    /// Sets how many workers have which verdict.
    pub fn show_verdicts(&self, verdicts: &VerdictCounts) {
        let labels = Claim::ALL.map(Claim::as_str).into_iter().chain([ON_TRIAL]);
        for (verdict, count) in labels.zip(verdicts.0) {
            let gauge = self.verdicts.get_or_create(&VerdictLabels { verdict });
            gauge.set(count);
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
        let labels = WorkerLabels::of(worker);
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

    /// Gives every family of a worker a series.
    #[cfg(test)]
    pub(crate) fn fill(&self, worker: &Arc<str>) {
        let labels = WorkerLabels::of(worker);
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
    }
}

fn change(worker: &Arc<str>, to: Claim) -> ChangeLabels {
    ChangeLabels {
        worker: Arc::clone(worker),
        to: to.as_str(),
    }
}
