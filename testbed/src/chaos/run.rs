//! One run: the steps of a scenario, one after the other, under load and under watch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::excuse::Excuse;
use super::fleet::{Fault, Fleet, Node};
use super::logs;
use super::observe::{MarkId, Observer};
use super::placement::{self, Placements};
use super::promise::{self, promise};
use super::record::{FAILURES_MAX, MarkKind, Origin, Place, Promise, Record, ReplicaState, Sample};
use super::scenario::{Expectation, Rush, Scenario, Shape, Sight, Step};
use super::traffic::{Traffic, TrafficPlan, TrafficReport};
use crate::client::Ask;
use crate::load::{Arrivals, Prompts};
use crate::processes::MODEL;

/// Limit of one request: longer than anything stands still.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests in flight above which further ones are shed.
const IN_FLIGHT_MAX: usize = 1_000;
/// After the load has ended, limit for nothing to be in flight.
const QUIET_WITHIN: Duration = Duration::from_secs(20);
/// After all is repaired, limit for replicas to agree on the ring and to send prompts where they went before.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// Prompts that are asked about before and after, and by each look of the observer.
const PLACEMENTS: u64 = 60;
const OBSERVED: u64 = 10;
/// Seeds that no load uses.
const PLACEMENT_SEED: u64 = 900_001;
const OBSERVER_SEED: u64 = 900_002;
/// Between two tries while waiting.
const TRY_EVERY: Duration = Duration::from_millis(200);

/// What a run needs besides its scenario.
#[derive(Debug, Clone)]
pub(crate) struct RunPlan {
    pub(crate) shape: Shape,
    pub(crate) place: Place,
    /// Requests per second.
    pub(crate) rate: f64,
    /// Different shared prefixes.
    pub(crate) groups: u64,
    /// Between two looks at the replicas.
    pub(crate) look_every: Duration,
    /// Between two lines about how it goes.
    pub(crate) tell_every: Duration,
    /// The run ends after this, in the middle of its steps if need be; everything is repaired then.
    pub(crate) longest: Option<Duration>,
}

struct Run<'a> {
    plan: &'a RunPlan,
    fleet: &'a mut Fleet,
    observer: &'a Observer,
    origin: Origin,
    /// What is broken now.
    broken: Vec<(Fault, MarkId)>,
    excuses: Vec<Excuse>,
    promises: Vec<Promise>,
    /// Expectations by their texts.
    met: BTreeMap<String, Met>,
    phase: Option<MarkId>,
    /// Workers that are registered.
    workers: BTreeSet<usize>,
    rushes: Vec<TrafficReport>,
    /// When the first fault was done, and when the latest step was.
    first_ms: Option<u64>,
    last_ms: u64,
}

/// An expectation, as often as it came up.
#[derive(Debug, Default)]
struct Met {
    times: u32,
    slowest: Duration,
    /// What was seen instead, the first time.
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

/// Runs a scenario on a cluster that is well, and judges. `stop` ends it early, with everything repaired and a
/// verdict on what was seen until then.
///
/// # Errors
/// When the cluster cannot be asked at all; whatever goes wrong under way is a broken promise.
pub(crate) async fn run(
    scenario: &Scenario,
    plan: &RunPlan,
    fleet: &mut Fleet,
    stop: &CancellationToken,
) -> anyhow::Result<Record> {
    let origin = Origin::now();
    let seats = fleet.seats();
    let samples = placement::samples(PLACEMENT_SEED, PLACEMENTS);
    let before = same_placements(fleet, &samples).await;
    let before = before.context("the replicas do not agree before anything was done")?;
    let observed = placement::samples(OBSERVER_SEED, OBSERVED);
    let observer = Observer::start(seats, plan.look_every, observed, origin);
    let traffic = Traffic::start(fleet.front(), plan.traffic(), origin);
    let initial: BTreeSet<usize> = (1..=plan.shape.workers).collect();
    let mut run = Run {
        plan,
        fleet,
        observer: &observer,
        origin,
        broken: Vec::new(),
        excuses: Vec::new(),
        promises: Vec::new(),
        met: BTreeMap::new(),
        phase: None,
        workers: initial.clone(),
        rushes: Vec::new(),
        first_ms: None,
        last_ms: 0,
    };
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

    let terms = &scenario.terms;
    let (mut judged, mut steady) = (Vec::new(), None);
    for report in reports {
        judged.push(promise::requests(&report, &excuses, terms));
        judged.push(promise::streams(&report, &excuses));
        if steady.is_none() {
            steady = Some(report);
        } else {
            let totals = &report.totals;
            notes.push(format!(
                "{} requests of a rush, {} succeeded",
                totals.requests, totals.succeeded
            ));
        }
    }
    let steady = steady.expect("the first report is of the steady load");
    if terms.ring_stays {
        judged.push(promise::one_ring(&seen.samples));
    }
    if terms.agreement_stays {
        judged.push(promise::agreement(&seen.samples));
    }
    if let (Some(dip_max), Some(from)) = (terms.hit_dip_max, first_ms) {
        judged.push(promise::hit_dip(&steady.windows, from, last_ms, dip_max));
    }
    if terms.flat {
        judged.extend(promise::flat(&seen.samples));
    }
    let files = fleet.logs().await?;
    judged.push(read_logs(files, terms.errors).await?);
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

async fn read_logs(
    files: Vec<(String, PathBuf)>,
    expected: &'static [&'static str],
) -> anyhow::Result<Promise> {
    let loud = tokio::task::spawn_blocking(move || logs::loud(&files, expected)).await?;
    Ok(promise::quiet_logs(&loud?))
}

/// Where all replicas would send the samples, once they say the same.
async fn same_placements(fleet: &Fleet, samples: &[Ask]) -> anyhow::Result<Placements> {
    let seats = fleet.seats();
    let start = Instant::now();
    loop {
        let now = seats.borrow().clone();
        match placement::placements(&now, samples).await {
            Err(error) if start.elapsed() > SETTLED_WITHIN => return Err(error),
            Err(_) => sleep(TRY_EVERY).await,
            same => return same,
        }
    }
}

impl RunPlan {
    fn traffic(&self) -> TrafficPlan {
        TrafficPlan {
            arrivals: Arrivals::Open {
                rate: self.rate,
                in_flight_max: IN_FLIGHT_MAX,
            },
            prompts: Prompts {
                seed: self.shape.seed,
                groups: self.groups,
                shared_bytes: 4_000,
                own_bytes: 400,
                max_tokens: 80,
                model: Some(MODEL.to_owned()),
                ..Prompts::default()
            },
            timeout: REQUEST_TIMEOUT,
            // A run ends when its steps do; a day is no limit.
            longest: self.longest.unwrap_or(Duration::from_secs(3_600)) + Duration::from_secs(600),
            seed: self.shape.seed,
        }
    }

    fn rush(&self, rush: Rush) -> TrafficPlan {
        let steady = self.traffic();
        TrafficPlan {
            arrivals: Arrivals::Open {
                rate: self.rate * rush.times,
                in_flight_max: IN_FLIGHT_MAX,
            },
            prompts: Prompts {
                seed: self.shape.seed + 1,
                groups: if rush.same_prefix { 1 } else { self.groups },
                ..steady.prompts
            },
            longest: rush.time,
            ..steady
        }
    }
}

impl Run<'_> {
    /// All steps, until the end, the longest time, a stop or an error; whatever is broken then is repaired.
    /// Returns what a reader should know.
    async fn steps(
        &mut self,
        steps: &[Step],
        traffic: &Traffic,
        stop: &CancellationToken,
    ) -> Vec<String> {
        let longest = self.plan.longest.unwrap_or(Duration::MAX);
        let mut notes = Vec::new();
        let told = tell(self.origin, self.observer, traffic, self.plan.tell_every);
        let all = async {
            for step in steps {
                // A step is never left half done: what it began would not be known.
                let waits = match step {
                    Step::Wait(time) => Some(*time),
                    _ => None,
                };
                if let Some(time) = waits {
                    tokio::select! {
                        () = sleep(time) => {}
                        () = stop.cancelled() => {}
                    }
                } else {
                    self.step(step).await.with_context(|| format!("{step:?}"))?;
                }
                if stop.is_cancelled() {
                    return Ok(Some("stopped before its end".to_owned()));
                }
                if Duration::from_millis(self.origin.elapsed_ms()) >= longest {
                    return Ok(None);
                }
            }
            anyhow::Ok(None)
        };
        let done = tokio::select! {
            done = all => done,
            () = told => unreachable!("telling has no end"),
        };
        let done = match (done, self.repair().await) {
            (Ok(note), Ok(())) => {
                notes.extend(note);
                Ok(())
            }
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        let seen = done
            .as_ref()
            .map_or_else(|e| format!("{e:#}"), |()| "all".to_owned());
        self.promises
            .push(promise("every step can be done", done.is_ok(), seen));
        notes
    }

    async fn step(&mut self, step: &Step) -> anyhow::Result<()> {
        match step {
            Step::Phase(name) => {
                self.end_phase();
                self.phase = Some(self.observer.mark(MarkKind::Phase, None, *name));
                eprintln!("{} {name}", clock(self.origin));
            }
            Step::Wait(time) => sleep(*time).await,
            Step::Do(fault) => self.apply(fault).await?,
            Step::Add { via, worker } => {
                self.note(format!("worker {worker} is added by replica {via}"));
                self.fleet.add_worker(*via, *worker).await?;
                self.workers.insert(*worker);
            }
            Step::Remove { via, worker } => {
                self.note(format!("worker {worker} is removed by replica {via}"));
                self.fleet.remove_worker(*via, *worker).await?;
                self.workers.remove(worker);
            }
            Step::Scale(replicas) => {
                self.note(format!("{replicas} replicas"));
                self.fleet.scale(*replicas).await?;
            }
            Step::Rush(rush) => self.rush(*rush).await?,
            Step::Expect(expectation) => self.expect(expectation).await,
        }
        if !matches!(step, Step::Phase(_) | Step::Wait(_)) {
            self.last_ms = self.origin.elapsed_ms();
        }
        Ok(())
    }

    async fn apply(&mut self, fault: &Fault) -> anyhow::Result<()> {
        let now = self.origin.elapsed_ms();
        let name = fault.node().map(|node| self.fleet.name(node));
        let kind = match fault.repair() {
            Some(_) => MarkKind::Fault,
            None => MarkKind::Heal,
        };
        eprintln!("{} {fault}", clock(self.origin));
        self.first_ms.get_or_insert(now);
        // From here on what fails may be its doing, also if it fails half-way.
        if kind == MarkKind::Fault {
            let mark = self.observer.mark(kind, name.as_deref(), fault.to_string());
            self.broken.push((*fault, mark));
            let name = name.as_deref().unwrap_or_default();
            self.excuses.extend(Excuse::of(fault, name, now));
        }
        self.fleet.apply(fault).await?;
        let now = self.origin.elapsed_ms();
        if kind == MarkKind::Heal {
            self.observer.mark(kind, name.as_deref(), fault.to_string());
        }
        for (earlier, mark) in self
            .broken
            .extract_if(.., |(earlier, _)| fault.ends(earlier))
        {
            self.observer.end(mark);
            let text = earlier.to_string();
            self.excuses.iter_mut().for_each(|e| e.end(&text, now));
        }
        Ok(())
    }

    /// Puts right what is still broken, the latest first. All of it is tried.
    async fn repair(&mut self) -> anyhow::Result<()> {
        let mut failed = None;
        while let Some((fault, _)) = self.broken.last().copied() {
            let repair = fault.repair().expect("only faults are kept");
            if let Err(error) = self.apply(&repair).await {
                failed = Some(error.context(repair.to_string()));
                self.broken.pop();
            }
        }
        self.end_phase();
        failed.map_or(Ok(()), Err)
    }

    fn end_phase(&mut self) {
        if let Some(phase) = self.phase.take() {
            self.observer.end(phase);
        }
    }

    fn note(&self, text: String) {
        eprintln!("{} {text}", clock(self.origin));
        self.observer.mark(MarkKind::Note, None, text);
    }

    async fn rush(&mut self, rush: Rush) -> anyhow::Result<()> {
        self.first_ms.get_or_insert(self.origin.elapsed_ms());
        let text = format!("{} times as many requests more", rush.times);
        let mark = self.observer.mark(MarkKind::Fault, None, text);
        let traffic = Traffic::start(self.fleet.front(), self.plan.rush(rush), self.origin);
        sleep(rush.time).await;
        self.rushes.push(traffic.stop().await?);
        self.observer.end(mark);
        Ok(())
    }

    async fn expect(&mut self, expectation: &Expectation) {
        let start = Instant::now();
        let Expectation { what, within } = expectation;
        let seen = self
            .observer
            .until(*within, |sample| what.is_seen(sample))
            .await;
        let took = start.elapsed();
        let missed = seen.is_none().then(|| {
            eprintln!("{} not seen: {what}", clock(self.origin));
            match self.observer.latest() {
                Some(sample) => short(&sample),
                None => "the replicas were never seen".to_owned(),
            }
        });
        let text = format!("{what}, within {} s", within.as_secs());
        let met = self.met.entry(text).or_default();
        met.times += 1;
        met.slowest = met.slowest.max(took);
        met.missed = met.missed.take().or(missed);
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
        let idle = |sample: &Sample| {
            let mut seen = sample.replicas.iter().filter_map(|r| r.seen.as_ref());
            seen.all(|seen| seen.in_flight == 0)
        };
        let quiet = self.observer.until(QUIET_WITHIN, idle).await;
        let seen = match (&quiet, self.observer.latest()) {
            (None, Some(sample)) => short(&sample),
            _ => "nothing".to_owned(),
        };
        self.promises.push(promise(
            "nothing stays in flight when the load has ended",
            quiet.is_some(),
            seen,
        ));
    }

    /// Same prefix, same worker as before, on all replicas; but for workers that came or left.
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
        let mut seen = String::new();
        let again = async {
            loop {
                seen = match same_placements(self.fleet, samples).await {
                    Err(error) => format!("{error:#}"),
                    Ok(after) => {
                        let wrong = placement::moved_wrongly(before, &after, &left, &came);
                        if wrong == 0 {
                            return;
                        }
                        format!("{wrong} of {} prompts moved", samples.len())
                    }
                };
                sleep(TRY_EVERY).await;
            }
        };
        let held = timeout(SETTLED_WITHIN, again).await.is_ok();
        if held {
            let took = start.elapsed().as_secs_f64();
            seen = format!("all of {} prompts, after {took:.1} s", samples.len());
        }
        let text =
            "once repaired, every replica sends the same prefix to the same worker as before";
        promise(text, held, seen)
    }
}

impl Sight {
    fn is_seen(&self, sample: &Sample) -> bool {
        // A paused or starting replica says nothing; a stopped one does not count.
        let mut running = sample
            .replicas
            .iter()
            .filter(|replica| replica.state != ReplicaState::Stopped);
        match self {
            Self::Agreed { workers } => {
                let well = running.all(|replica| {
                    let seen = replica.seen.as_ref();
                    seen.is_some_and(|seen| seen.ready && seen.workers == *workers as u64)
                });
                well && sample.rings().len() == 1 && sample.registries().len() == 1
            }
            Self::Peers { replica, alive } => {
                let nth = sample.replicas.get(replica - 1);
                let seen = nth.and_then(|replica| replica.seen.as_ref());
                seen.is_some_and(|seen| seen.live_peers == *alive)
            }
            Self::Apart => sample.rings().len() > 1,
        }
    }
}

impl std::fmt::Display for Sight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Agreed { workers } => {
                write!(f, "all replicas hold the same ring of {workers} workers")
            }
            Self::Peers { replica, alive } => {
                write!(f, "replica {replica} sees {alive} others alive")
            }
            Self::Apart => f.write_str("the cut bites: both sides hold different rings"),
        }
    }
}

/// What replicas say, in a line.
fn short(sample: &Sample) -> String {
    let one = |replica: &super::record::ReplicaSample| match &replica.seen {
        None => format!("{} {:?}", replica.name, replica.state),
        Some(seen) => format!(
            "{} {} ring {} of {} workers, {} peers, {} in flight",
            replica.name,
            if seen.ready { "ready" } else { "not ready" },
            seen.ring,
            seen.workers,
            seen.live_peers,
            seen.in_flight
        ),
    };
    sample
        .replicas
        .iter()
        .map(one)
        .collect::<Vec<_>>()
        .join("; ")
}

/// A line about how it goes, now and then, for ever.
async fn tell(origin: Origin, observer: &Observer, traffic: &Traffic, every: Duration) {
    loop {
        sleep(every).await;
        let live = traffic.live();
        let latest: Option<Arc<Sample>> = observer.latest();
        let mib = |bytes: u64| bytes >> 20;
        let of_replicas = latest.map_or_else(String::new, |sample| {
            let rss = sample.replicas.iter().filter_map(|r| r.rss_bytes).map(mib);
            format!(
                ", {} ring(s), memory {} MiB",
                sample.rings().len(),
                rss.map(|mib| mib.to_string()).collect::<Vec<_>>().join("/")
            )
        });
        eprintln!(
            "{} {} requests, {} failed, hits {:.0} %, TTFT {} ms{of_replicas}",
            clock(origin),
            live.ended,
            live.failed,
            100.0 * live.hit_rate,
            live.first_event_p50.as_millis(),
        );
    }
}

/// Minutes and seconds since the beginning.
fn clock(origin: Origin) -> String {
    let seconds = origin.elapsed_ms() / 1_000;
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}
