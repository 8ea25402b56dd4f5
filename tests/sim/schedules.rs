//! Random faults, then quiet, again and again: a round of faults may do anything, each quiet time must bring
//! agreement. All steps are drawn beforehand (`plan.rs`).

use std::collections::BTreeSet;
use std::time::Duration;

use grapevine_gossip::Ack;
use grapevine_gossip::worker::{RawWorker, Source, State, WorkerId, WorkerSpec};

use crate::cluster::Cluster;
use crate::gossiped::Gossiped;
use crate::invariants::{agree, nobody_offended};
use crate::ledger::Ledger;
use crate::plan::{Act, Fault, Origin, Plan, Step, Word};

const TICK: Duration = Duration::from_millis(10);
/// How often all views are compared with the ledger.
const LOOK: Duration = Duration::from_millis(250);
/// Several times the usual length of a quiet time.
const AGREE_WITHIN: Duration = Duration::from_secs(10);
const WHOLE_WITHIN: Duration = Duration::from_secs(20);
const HEARD_WITHIN: Duration = Duration::from_secs(20);
/// Longest warm-up in a plan.
const WARM_UPS: Duration = Duration::from_secs(40);

/// The result of a schedule.
pub(crate) struct Report {
    /// Hash of all views over time.
    pub(crate) trace: u64,
    /// Virtual milliseconds from the last repair to equal registries, one for each round.
    pub(crate) agreed_ms: Vec<u64>,
    /// The same until every replica is ready and all see it as alive.
    pub(crate) whole_ms: Vec<u64>,
    /// The same until every replica is connected to every other.
    pub(crate) linked_ms: Vec<u64>,
    pub(crate) words: usize,
    pub(crate) unsure: usize,
    pub(crate) records: u64,
    /// How often a replica had to have one of them.
    pub(crate) due: u64,
    pub(crate) virtual_s: u64,
}

/// A cluster under a plan, and the state that it must have.
struct Schedule {
    cluster: Cluster,
    ledger: Ledger,
    gossiped: Gossiped,
    /// Evidence is about this worker, which no step changes.
    constant: WorkerId,
    dead: BTreeSet<usize>,
    paused: BTreeSet<usize>,
    words: usize,
    linked_ms: Vec<u64>,
    epoch: u64,
    /// Steps done so far, for the report of a failure.
    done: Vec<String>,
}

/// Runs the plan of a seed, without the steps of these numbers.
pub(crate) fn run(seed: u64, length: Duration, skipped: &[usize]) -> Report {
    let plan = Plan::of(seed, length);
    let mut schedule = Schedule::start(seed, plan.size);
    let (mut agreed_ms, mut whole_ms) = (Vec::new(), Vec::new());
    let mut number = 0;
    for round in plan.rounds {
        for step in round {
            if !skipped.contains(&number) {
                schedule.step(number, step);
            }
            number += 1;
        }
        let (agreed, whole) = schedule.quiet();
        agreed_ms.push(millis(agreed));
        whole_ms.push(millis(whole));
    }
    schedule.end_warm_ups();
    Report {
        trace: schedule.cluster.trace(),
        agreed_ms,
        whole_ms,
        linked_ms: std::mem::take(&mut schedule.linked_ms),
        words: schedule.words,
        unsure: schedule.ledger.unsure,
        records: schedule.gossiped.records(),
        due: schedule.gossiped.due(),
        virtual_s: schedule.cluster.elapsed().as_secs(),
    }
}

/// Number of steps in the plan of a seed.
pub(crate) fn steps(seed: u64, length: Duration) -> usize {
    Plan::of(seed, length).rounds.iter().map(Vec::len).sum()
}

impl Schedule {
    fn start(seed: u64, size: usize) -> Self {
        let mut ledger = Ledger::default();
        let configured = ["constant", "config-0", "config-1", "config-2"].map(|zone| {
            let mut raw = RawWorker::at(format!("http://{zone}:9000"));
            raw.zone = Some(zone.to_owned());
            WorkerSpec::new(raw).expect("valid")
        });
        let seeds = ["r0", "r1", "r2"];
        let cluster = Cluster::start_configured(size, seed, &seeds, TICK, &configured);
        let sources = [Source::Admin, Source::Config, Source::Config, Source::Admin];
        for (spec, source) in configured.iter().zip(sources) {
            let zone = spec.zone().expect("given").to_owned();
            ledger.configured(spec.default_id(), source, zone, size);
        }
        let mut schedule = Self {
            gossiped: Gossiped::new(size),
            constant: configured[0].default_id(),
            ledger,
            cluster,
            dead: BTreeSet::new(),
            paused: BTreeSet::new(),
            words: 0,
            linked_ms: Vec::new(),
            epoch: 1000,
            done: Vec::new(),
        };
        schedule.cluster.until_joined(WHOLE_WITHIN);
        schedule
    }

    fn step(&mut self, number: usize, step: Step) {
        let now = self.cluster.elapsed();
        self.done.push(format!("#{number} {now:?} {step:?}"));
        match step.act {
            Act::Fault(fault) => self.break_it(fault),
            Act::Word(which, word) => self.speak(which, word),
        }
        self.pass(step.pause);
    }

    /// Lets time pass, and checks the views now and then.
    fn pass(&mut self, time: Duration) {
        let end = self.cluster.elapsed() + time;
        loop {
            self.look();
            let left = end.saturating_sub(self.cluster.elapsed());
            if left.is_zero() {
                return;
            }
            self.cluster.run(left.min(LOOK));
        }
    }

    fn look(&mut self) {
        self.ledger.observe(&self.cluster);
        self.gossiped.observe(&self.cluster);
    }

    fn break_it(&mut self, fault: Fault) {
        let size = self.cluster.size();
        match fault {
            Fault::Kill(which) => self.kill(pick(which, size)),
            Fault::CrashLoop(which, times) => {
                for _ in 0..times {
                    self.kill(pick(which, size));
                    self.pass(LOOK);
                    self.restart(pick(which, size));
                    self.pass(LOOK);
                }
            }
            Fault::Restart(which) => {
                let dead: Vec<_> = self.dead.iter().copied().collect();
                if !dead.is_empty() {
                    self.restart(dead[pick(which, dead.len())]);
                }
            }
            Fault::Pause(which) => {
                let at = pick(which, size);
                if !self.dead.contains(&at) {
                    self.paused.insert(at);
                    self.cluster.pause(at);
                }
            }
            Fault::Resume(which) => {
                let paused: Vec<_> = self.paused.iter().copied().collect();
                if !paused.is_empty() {
                    self.resume(paused[pick(which, paused.len())]);
                }
            }
            Fault::Split(which) => {
                let (here, there): (Vec<_>, Vec<_>) =
                    (0..size).partition(|at| which >> at & 1 == 1);
                self.cluster.cut(&here, &there);
            }
            Fault::OneWay(which) => {
                let (from, to) = pair(which, size);
                self.cluster.cut_oneway(from, to);
            }
            Fault::Hold(which) => {
                let (a, b) = pair(which, size);
                self.cluster.hold(a, b);
            }
            Fault::Loss(share) => self.cluster.lose(share),
            Fault::Heal => self.cluster.heal(),
            Fault::Skew(which, ms) => self.cluster.skew(pick(which, size), ms),
        }
    }

    /// Kills a replica, but not the last one.
    fn kill(&mut self, at: usize) {
        if self.dead.contains(&at) || self.dead.len() + 1 == self.cluster.size() {
            return;
        }
        self.look();
        nobody_offended(&self.cluster);
        self.cluster.kill(at);
        self.ledger.died(at);
        self.gossiped.died(at);
        self.dead.insert(at);
        self.paused.remove(&at);
    }

    fn restart(&mut self, at: usize) {
        if self.dead.remove(&at) {
            self.cluster.restart(at);
        }
    }

    fn resume(&mut self, at: usize) {
        self.paused.remove(&at);
        self.cluster.resume(at);
    }

    fn speak(&mut self, which: u64, word: Word) {
        let mut awake = self.cluster.running();
        awake.retain(|at| !self.paused.contains(at));
        if awake.is_empty() {
            return;
        }
        let at = awake[pick(which, awake.len())];
        self.look();
        match word {
            Word::Add(origin) => {
                let source = match origin {
                    Origin::Admin => Source::Admin,
                    Origin::Provider => Source::provider("dns").expect("valid"),
                };
                self.describe(at, None, source, Cast::Active);
            }
            Word::AddCold(seconds) => self.describe(at, None, Source::Admin, Cast::Cold(seconds)),
            Word::Change(which) => {
                // Also removed workers: a replica that holds the removal may take it back.
                let present = which % 4 != 0;
                self.redescribe(at, which, present, Cast::Active);
            }
            Word::Drain(which) => self.redescribe(at, which, true, Cast::Draining),
            Word::Warm(which) => self.finish_or_begin_warming(at, which),
            Word::Remove(which) => self.remove(at, which),
            Word::Epoch(which) => self.restarted(at, which),
            Word::Tell(count) => {
                let constant = self.constant.clone();
                self.gossiped.tell(&mut self.cluster, at, &constant, count);
            }
            Word::Publish => self.gossiped.publish(&mut self.cluster, at),
        }
    }

    /// A worker of which `at` holds the last change, if there is one.
    fn known(&self, at: usize, which: u64, present: bool) -> Option<(WorkerId, Source)> {
        let mut known = self.ledger.known_at(at, present);
        known.retain(|(id, _)| *id != self.constant);
        (!known.is_empty()).then(|| known.swap_remove(pick(which, known.len())))
    }

    fn redescribe(&mut self, at: usize, which: u64, present: bool, cast: Cast) {
        if let Some((id, source)) = self.known(at, which, present) {
            self.describe(at, Some(id), source, cast);
        }
    }

    /// Adds a worker, or describes a known one anew.
    fn describe(&mut self, at: usize, id: Option<WorkerId>, source: Source, cast: Cast) {
        self.words += 1;
        let zone = format!("z{}", self.words);
        let url = match &id {
            Some(id) => id.as_str().to_owned(),
            None => format!("http://w{}:8000", self.words),
        };
        let (said, told) = (zone.clone(), source.clone());
        let (id, ack) = self.cluster.call(at, move |agent| async move {
            let mut raw = RawWorker::at(url);
            raw.zone = Some(said);
            raw.state = match cast {
                Cast::Active => State::Active,
                Cast::Draining => State::Draining,
                Cast::Cold(seconds) => State::Warming {
                    until_ms: agent.hybrid_ms() + 1000 * seconds,
                },
            };
            let spec = WorkerSpec::new(raw).expect("valid");
            let id = spec.default_id();
            (id.clone(), agent.put_worker(id, told, spec).await)
        });
        let ack = ack.expect("room for a worker");
        self.said(at, id, source, Some(zone), ack);
    }

    fn remove(&mut self, at: usize, which: u64) {
        let Some((id, source)) = self.known(at, which, true) else {
            return;
        };
        self.words += 1;
        let (gone, told) = (id.clone(), source.clone());
        let ack = self.cluster.call(at, move |agent| async move {
            agent.remove_worker(&gone, told).await
        });
        let ack = ack.expect("the worker is known");
        self.said(at, id, source, None, ack);
    }

    /// Records a change; if it was confirmed, another replica holds it, too.
    fn said(&mut self, at: usize, id: WorkerId, source: Source, zone: Option<String>, ack: Ack) {
        // The views do not show that a removal reached a replica that never had the worker.
        let is_seen = ack.replicated && zone.is_some();
        self.ledger.said(at, id.clone(), source, zone);
        self.look();
        assert!(
            !is_seen || self.ledger.holders(&id) > 1,
            "seed {}: a word of r{at} on {id} was confirmed, and nobody else has it",
            self.cluster.seed()
        );
    }

    /// Ends the warm-up of a worker; if none is in progress, nothing may change.
    fn finish_or_begin_warming(&mut self, at: usize, which: u64) {
        let view = self.cluster.view(at);
        let warming: Vec<_> = view
            .workers()
            .iter()
            .filter_map(|worker| Some((worker.id.clone(), worker.warming.clone()?)))
            .collect();
        if warming.is_empty() {
            return self.redescribe(at, which, true, Cast::Cold(5));
        }
        let (id, warming) = warming[pick(which, warming.len())].clone();
        let ended = self.cluster.call(at, move |agent| async move {
            agent.finish_warming(&id, warming.stamp).await
        });
        ended.expect("nothing is refused");
    }

    fn restarted(&mut self, at: usize, which: u64) {
        let Some((id, _)) = self.known(at, which, true) else {
            return;
        };
        self.epoch += 1;
        let epoch = self.epoch;
        let ack = self.cluster.call(
            at,
            move |agent| async move { agent.restarted(&id, epoch).await },
        );
        ack.expect("the worker is known");
    }

    /// Repairs everything, and waits until the cluster is whole again. Returns the time until the registries
    /// were equal, and until every replica was back.
    fn quiet(&mut self) -> (Duration, Duration) {
        self.done
            .push(format!("quiet at {:?}", self.cluster.elapsed()));
        self.look();
        for at in self.paused.clone() {
            self.resume(at);
        }
        for at in self.dead.clone() {
            self.restart(at);
        }
        self.cluster.lose(0.0);
        self.cluster.heal();
        let size = self.cluster.size();
        let agreed = self.cluster.until("agreement", AGREE_WITHIN, |cluster| {
            cluster.running().len() == size && agree(cluster)
        });
        let is_whole = |cluster: &Cluster| {
            (0..size).all(|at| cluster.is_ready(at) && cluster.live(at) == size) && agree(cluster)
        };
        let whole = agreed + self.cluster.until("all are back", WHOLE_WITHIN, is_whole);
        self.ledger.settle(&self.cluster);
        let is_linked = |cluster: &Cluster| {
            let linked = |at| cluster.gauge(at, "gossip_peers_linked");
            (0..size).all(|at| linked(at) == size as u64 - 1)
        };
        let linking = self
            .cluster
            .until("all are connected", WHOLE_WITHIN, is_linked);
        self.linked_ms.push(millis(whole + linking));
        let gossiped = &self.gossiped;
        let start = self.cluster.elapsed();
        while !gossiped.missing(&self.cluster).is_empty() {
            assert!(
                self.cluster.elapsed() - start < HEARD_WITHIN,
                "seed {}: not heard: {:?}\n{}",
                self.cluster.seed(),
                gossiped.missing(&self.cluster),
                self.cluster.describe()
            );
            self.cluster.run(LOOK);
        }
        self.gossiped.settle(&self.cluster);
        self.pass(Duration::from_secs(2));
        self.check_bounds();
        assert!(
            is_whole(&self.cluster),
            "seed {}: it fell apart in the quiet\n{}",
            self.cluster.seed(),
            self.cluster.describe()
        );
        (agreed, whole)
    }

    /// No table grows beyond what was put in, and no message of an honest replica was refused.
    fn check_bounds(&self) {
        nobody_offended(&self.cluster);
        let seed = self.cluster.seed();
        for at in self.cluster.running() {
            let entries = self.cluster.gauge(at, "gossip_registry_entries");
            let known = self.cluster.view(at).replicas().len();
            let states = self.cluster.gauge(at, "gossip_peer_states");
            let size = self.cluster.size();
            assert!(
                entries <= self.ledger.entries_max() as u64,
                "seed {seed}: r{at} holds {entries} entries"
            );
            assert!(
                known == size && states < size as u64,
                "seed {seed}: r{at} knows {known} replicas, {states} peer states"
            );
        }
    }

    /// Warm-ups end by themselves.
    fn end_warm_ups(&mut self) {
        self.pass(WARM_UPS);
        for at in self.cluster.running() {
            let view = self.cluster.view(at);
            let mut states = view.workers().iter().map(|worker| worker.spec.state());
            assert!(
                states.all(|state| !matches!(state, State::Warming { .. })),
                "seed {}: r{at} still warms\n{}",
                self.cluster.seed(),
                self.cluster.describe()
            );
        }
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.done.join("\n"));
        }
    }
}

/// The state of a worker in a description.
#[derive(Clone, Copy)]
enum Cast {
    Active,
    Draining,
    /// Warming, for so many seconds.
    Cold(u64),
}

fn pick(which: u64, count: usize) -> usize {
    usize::try_from(which % count as u64).expect("below a usize")
}

/// Two different replicas.
fn pair(which: u64, size: usize) -> (usize, usize) {
    let from = pick(which, size);
    let other = pick(which / size as u64, size - 1);
    (from, (from + 1 + other) % size)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("below an age")
}
