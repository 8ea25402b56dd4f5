//! Grids: many runs on all processor cores, compared with one router that knows everything.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

use super::contender::Contender;
use super::measure::Outcome;
use super::scenario::Scenario;
use super::search::capacity;
use super::sim::run;
use super::workload::Workload;

/// Rules are compared at this part of the all-knowing router's capacity.
const LOADED: f64 = 0.9;

/// One line of the comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The workload.
    pub load: String,
    /// The rule.
    pub policy: String,
    /// Router replicas.
    pub replicas: usize,
    /// Workers.
    pub workers: usize,
    /// Time between load frames.
    pub load_age_ms: u64,
    /// Part of the gossip that was lost.
    pub loss: f64,
    /// Requests a second that were offered.
    pub rate: f64,
    /// Capacity over the all-knowing router's; NaN where it was not searched.
    pub capacity: f64,
    /// What was measured at that rate.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A cluster to try rules on; `speed` is found, not given.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The cluster.
    pub scenario: Scenario,
    /// Whether capacities are searched, which takes about eight runs each.
    pub capacity: bool,
    /// The rules.
    pub contenders: Vec<Contender>,
}

impl Setting {
    /// These rules on that cluster.
    pub fn of(scenario: Scenario, capacity: bool, contenders: &[Contender]) -> Self {
        Self {
            scenario,
            capacity,
            contenders: contenders.to_vec(),
        }
    }
}

struct Job<'a> {
    workload: &'a Workload,
    contender: &'a Contender,
    setting: &'a Setting,
    /// The all-knowing router's factor.
    best: f64,
}

/// Runs every setting on every workload. `progress` gets jobs done, jobs in all and a name, from any thread.
pub fn compare(
    workloads: &[Workload],
    settings: &[Setting],
    progress: impl Fn(usize, usize, &str) + Sync,
) -> Vec<Line> {
    let oracle = Contender::oracle();
    // The all-knowing router's capacity depends on the workers alone.
    let mut sizes: Vec<usize> = settings.iter().map(|s| s.scenario.workers).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut searches = Vec::new();
    for workload in workloads {
        for &workers in &sizes {
            searches.push((workload, workers));
        }
    }
    let best = in_parallel(searches, |_, &(workload, workers)| {
        let first = settings.iter().find(|s| s.scenario.workers == workers);
        first.map_or(1.0, |setting| {
            let scenario = Scenario {
                replicas: 1,
                loss: 0.0,
                ..setting.scenario.clone()
            };
            progress(0, 0, &workload.name);
            capacity(workload, &oracle, &scenario, 1.0, || ())
        })
    });
    let mut jobs = Vec::new();
    for (workload, best) in workloads.iter().zip(best.chunks(sizes.len().max(1))) {
        for setting in settings {
            let size = sizes.binary_search(&setting.scenario.workers);
            let best = best[size.expect("collected from the same settings")];
            for contender in &setting.contenders {
                jobs.push(Job {
                    workload,
                    contender,
                    setting,
                    best,
                });
            }
        }
    }
    let (total, done) = (jobs.len(), AtomicUsize::new(0));
    in_parallel(jobs, |_, job| {
        let line = measure(job);
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        progress(done, total, &format!("{}, {}", line.load, line.policy));
        line
    })
}

fn measure(job: &Job<'_>) -> Line {
    let Job {
        workload,
        contender,
        setting,
        best,
    } = *job;
    let found = if setting.capacity {
        capacity(workload, contender, &setting.scenario, best, || ()) / best
    } else {
        f64::NAN
    };
    let rate = best * LOADED;
    let (load, speed) = workload
        .at(rate)
        .expect("it is below a rate that was tried, or its own");
    let scenario = Scenario {
        speed,
        ..setting.scenario.clone()
    };
    let outcome = run(&load, contender, &scenario, false).expect("it runs to its end");
    Line {
        load: workload.name.clone(),
        policy: contender.name.clone(),
        replicas: scenario.replicas,
        workers: scenario.workers,
        load_age_ms: scenario.load_age_us / 1_000,
        loss: scenario.loss,
        rate: workload.rate() * rate,
        capacity: found,
        outcome,
    }
}

/// Results in the order of the jobs, whatever order they were done in.
pub(super) fn in_parallel<T: Sync, U: Send>(
    jobs: Vec<T>,
    work: impl Fn(usize, &T) -> U + Sync,
) -> Vec<U> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<U>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(at) else {
                        return;
                    };
                    let result = work(at, job);
                    *results[at].lock() = Some(result);
                }
            });
        }
    });
    let done = results.into_iter().map(Mutex::into_inner);
    done.map(|result| result.expect("every job was done"))
        .collect()
}
