//! One run: the steps of a scenario, one after the other, under load and observed.

mod plan;
mod settled;
mod sight;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::excuse::Excuse;
use super::fault::{Fault, Node};
use super::fleet::Fleet;
use super::logs;
use super::observe::{MarkId, Observer};
use super::placement::{self, Placements};
use super::promise::{self, promise};
use super::record::{FAILURES_MAX, Origin, Promise, Record, Sample};
use super::scenario::{Expectation, Scenario, Sight, Terms};
use super::traffic::{Traffic, TrafficReport};
use grapevine_bench::client::Ask;
pub(crate) use plan::RunPlan;
use settled::settled;
use sight::{is_idle, short};

/// Limit for all in-flight counts to reach 0 after the load has ended.
const QUIET_WITHIN: Duration = Duration::from_secs(20);
/// Limit, after the last repair, for replicas to agree on the ring and to send prompts where they went
/// before.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// Percentage points of the hit rate that chance alone may take in a quick run: of its few requests a dozen that leave
/// their worker, because others wait for a processor of a busy machine, are more than three. Caches that are lost take
/// tens.
const DIP_OF_FEW: u32 = 4;
/// Prompts about which replicas are asked: before, after, and in each look of the observer.
const PLACEMENTS: u64 = 60;
const OBSERVED: u64 = 10;
/// Seeds that no load uses.
const PLACEMENT_SEED: u64 = 900_001;
const OBSERVER_SEED: u64 = 900_002;

struct Run<'a> {
    plan: &'a RunPlan,
    fleet: &'a mut Fleet,
    observer: &'a Observer,
    origin: Origin,
    /// Faults that are present now.
    broken: Vec<(Fault, MarkId)>,
    excuses: Vec<Excuse>,
    promises: Vec<Promise>,
    /// Expectations by their texts.
    met: BTreeMap<String, Met>,
    phase: Option<MarkId>,
    /// Workers that are registered.
    workers: BTreeSet<usize>,
    rushes: Vec<TrafficReport>,
    /// When the first fault was injected, and when the latest step was done.
    first_ms: Option<u64>,
    last_ms: u64,
}

/// Results of one expectation, over all times that it was checked.
#[derive(Debug, Default)]
struct Met {
    times: u32,
    slowest: Duration,
    /// The state that was seen instead, the first time.
    missed: Option<String>,
}

impl Met {
    fn promise(self, text: String) -> Promise {
        let slowest = self.slowest.as_secs_f64();
        let seen = match (&self.missed, self.times) {
            (Some(instead), _) => format!("not in time; {instead}"),
            (None, 1) => format!("after {slowest:.1} s"),
            (None, times) => format!("{times} times, the slowest after {slowest:.1} s"),
        };
        promise(text, self.missed.is_none(), seen)
    }
}

/// Runs a scenario on a healthy cluster, and judges. `stop` ends it early: all faults are repaired, and the
/// verdict is on what was seen until then.
/// Errors: when the cluster cannot be asked at all. Whatever goes wrong later is a broken promise.
pub(crate) async fn run(
    scenario: &Scenario,
    plan: &RunPlan,
    fleet: &mut Fleet,
    stop: &CancellationToken,
) -> anyhow::Result<Record> {
    let seats = fleet.seats();
    let samples = placement::samples(PLACEMENT_SEED, PLACEMENTS);
    let before = settled(async || same_placements(fleet, &samples).await).await;
    let before = before.context("the replicas do not agree before the first fault")?;
    if scenario.terms.hit_dip_max.is_some() {
        let warmed = plan.warm(fleet.front()).await;
        warmed.context("the caches cannot be warmed")?;
    }
    let observed = placement::samples(OBSERVER_SEED, OBSERVED);
    let origin = Origin::now();
    let observer = Observer::start(seats, plan.look_every, observed, origin);
    let traffic = Traffic::start(fleet.front(), plan.traffic(), origin);
    let mut run = Run::new(plan, fleet, &observer, origin);
    let initial = run.workers.clone();
    let steps = (scenario.steps)(&plan.shape);
    let mut notes = run.steps(&steps, &traffic, stop).await;
    run.settle().await;
    let mut reports = vec![traffic.stop().await?];
    run.quiet().await;
    let after = run.placements_again(&samples, &before, &initial).await;
    run.promises.push(after);
    let Run {
        mut promises,
        met,
        excuses,
        rushes,
        first_ms,
        last_ms,
        ..
    } = run;
    reports.extend(rushes);
    let ended_ms = origin.elapsed_ms();
    let seen = observer.finish();
    notes.extend(seen.notes);

    let few = if plan.shape.quick { DIP_OF_FEW } else { 0 };
    let dip_max = scenario.terms.hit_dip_max.map(|most| most + few);
    let dip = dip_max
        .zip(first_ms)
        .map(|(most, from)| (from, last_ms, most));
    let mut judged = judge(&scenario.terms, &reports, &excuses, &seen.samples, dip);
    let mut reports = reports.into_iter();
    let steady = reports
        .next()
        .expect("the first report is of the steady load");
    notes.extend(reports.map(|rush| {
        let totals = &rush.totals;
        format!(
            "{} requests of a rush, {} succeeded, {} due but not sent",
            totals.requests, totals.succeeded, rush.shed
        )
    }));
    let files = fleet.logs().await?;
    judged.push(read_logs(files, scenario.terms.errors).await?);
    judged.extend(met.into_iter().map(|(text, met)| met.promise(text)));
    judged.append(&mut promises);
    let failures = steady.failures.into_iter().take(FAILURES_MAX).collect();
    Ok(Record {
        scenario: scenario.name.to_owned(),
        title: scenario.title.to_owned(),
        place: plan.place,
        seed: Some(plan.shape.seed),
        began: origin.wall(),
        duration_ms: ended_ms,
        promises: judged,
        marks: seen.marks,
        samples: seen.samples,
        windows: steady.windows,
        failures,
        totals: steady.totals,
        shed: steady.shed,
        notes,
    })
}

/// What the load and the looks say of the scenario's promises; the first report is of the steady load. `dip`: from the first
/// fault to the end of the last step, and so many points of the hit rate may be missing.
fn judge(
    terms: &Terms,
    reports: &[TrafficReport],
    excuses: &[Excuse],
    samples: &[Sample],
    dip: Option<(u64, u64, u32)>,
) -> Vec<Promise> {
    let mut judged = Vec::new();
    for report in reports {
        judged.push(promise::requests(report, excuses, terms));
        judged.push(promise::streams(report, excuses));
    }
    if terms.ring_stays {
        judged.push(promise::one_ring(samples));
    }
    if terms.liveness_stays {
        judged.push(promise::liveness(samples));
    }
    if terms.agreement_stays {
        judged.push(promise::agreement(samples));
    }
    if let (Some((from, until, most)), [steady, ..]) = (dip, reports) {
        judged.push(promise::hit_dip(&steady.windows, from, until, most));
    }
    if terms.flat {
        judged.extend(promise::flat(samples));
    }
    judged
}

async fn read_logs(
    files: Vec<(String, PathBuf)>,
    expected: &'static [&'static str],
) -> anyhow::Result<Promise> {
    let loud = tokio::task::spawn_blocking(move || logs::loud(&files, expected)).await?;
    Ok(promise::quiet_logs(&loud?))
}

/// The workers to which all replicas would send the samples.
async fn same_placements(fleet: &Fleet, samples: &[Ask]) -> anyhow::Result<Placements> {
    let now = fleet.seats().borrow().clone();
    placement::placements(&now, samples).await
}

impl<'a> Run<'a> {
    /// Before the first step.
    fn new(
        plan: &'a RunPlan,
        fleet: &'a mut Fleet,
        observer: &'a Observer,
        origin: Origin,
    ) -> Self {
        Self {
            plan,
            fleet,
            observer,
            origin,
            broken: Vec::new(),
            excuses: Vec::new(),
            promises: Vec::new(),
            met: BTreeMap::new(),
            phase: None,
            workers: (1..=plan.shape.workers).collect(),
            rushes: Vec::new(),
            first_ms: None,
            last_ms: 0,
        }
    }

    /// All replicas agree once everything is repaired.
    async fn settle(&mut self) {
        let what = Sight::Agreed {
            workers: self.workers.len(),
        };
        let within = SETTLED_WITHIN;
        self.expect(&Expectation { what, within }).await;
    }

    async fn quiet(&mut self) {
        let quiet = self.observer.until(QUIET_WITHIN, is_idle).await;
        let seen = match (&quiet, self.observer.latest()) {
            (None, Some(sample)) => short(&sample),
            (None, None) => "the replicas were never seen".to_owned(),
            (Some(_), _) => "nothing".to_owned(),
        };
        self.promises.push(promise(
            "nothing stays in flight when the load has ended",
            quiet.is_some(),
            seen,
        ));
    }

    /// Checks that all replicas send each prefix to the same worker as before, except where workers were
    /// added or removed.
    async fn placements_again(
        &self,
        samples: &[Ask],
        before: &Placements,
        initial: &BTreeSet<usize>,
    ) -> Promise {
        let names = |numbers: Vec<usize>| -> BTreeSet<String> {
            let name = |number| self.fleet.name(Node::Worker(number));
            numbers.into_iter().map(name).collect()
        };
        let left = names(initial.difference(&self.workers).copied().collect());
        let came = names(self.workers.difference(initial).copied().collect());
        let start = Instant::now();
        let again = settled(async || {
            let after = same_placements(self.fleet, samples).await?;
            let wrong = placement::moved_wrongly(before, &after, &left, &came);
            ensure!(wrong == 0, "{wrong} of {} prompts moved", samples.len());
            Ok(())
        });
        let again = again.await;
        let seen = match &again {
            Ok(()) => format!(
                "all of {} prompts, after {:.1} s",
                samples.len(),
                start.elapsed().as_secs_f64()
            ),
            Err(error) => format!("{error:#}"),
        };
        let text =
            "once repaired, every replica sends the same prefix to the same worker as before";
        promise(text, again.is_ok(), seen)
    }
}
