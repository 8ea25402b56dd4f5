//! A schedule drawn from a seed before it runs, so that one can be run again without some of its steps.

use std::time::Duration;

use crate::rng;

/// Faults of the cluster. Numbers pick among the replicas, workers or splits that exist when the step is
/// done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    Kill(u64),
    /// Killed and restarted so many times, half a second apart.
    CrashLoop(u64, usize),
    Restart(u64),
    Pause(u64),
    Resume(u64),
    /// Cuts every link between two sides: a replica's bit gives its side.
    Split(u64),
    OneWay(u64),
    Hold(u64),
    /// Share of lost packets on every link.
    Loss(f64),
    Heal,
    /// Milliseconds by which the wall clock of a replica is ahead.
    Skew(u64, i64),
}

/// A change or message that is sent through a replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Word {
    Add(Origin),
    /// Adds a worker in state warming, for so many seconds.
    AddCold(u64),
    Change(u64),
    Drain(u64),
    /// A warm-up for an active worker, or the end of one.
    Warm(u64),
    Remove(u64),
    /// The worker's process was restarted.
    Epoch(u64),
    /// So many records of evidence.
    Tell(usize),
    Publish,
}

/// The source of a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Origin {
    Admin,
    Provider,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Act {
    Fault(Fault),
    /// The number picks the replica that gets the change.
    Word(u64, Word),
}

/// One step, and how long the cluster runs after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Step {
    pub(crate) act: Act,
    pub(crate) pause: Duration,
}

/// Replicas, and rounds of steps; after each round everything is repaired and all replicas must agree.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) size: usize,
    pub(crate) rounds: Vec<Vec<Step>>,
}

impl Plan {
    /// The plan of a seed, of about this much virtual time.
    pub(crate) fn of(seed: u64, length: Duration) -> Self {
        rng::start(seed);
        let size = 3 + rng::below(5);
        let mut planned = Duration::ZERO;
        let mut rounds = Vec::new();
        while planned < length {
            let steps: Vec<_> = (0..6 + rng::below(10)).map(|_| Step::draw()).collect();
            // Repairs take some seconds, too.
            planned += steps.iter().map(|step| step.pause).sum::<Duration>() + QUIET;
            rounds.push(steps);
        }
        Self { size, rounds }
    }
}

impl Step {
    fn draw() -> Self {
        let act = if rng::below(2) == 0 {
            Act::Fault(Fault::draw())
        } else {
            Act::Word(rng::next(), Word::draw())
        };
        // Mostly short, so that faults overlap; now and then long enough for every limit of ours.
        let ms = match rng::below(12) {
            0 => 10_000 + rng::next() % 60_000,
            1..=3 => 2_000 + rng::next() % 6_000,
            _ => rng::next() % 2_000,
        };
        Self {
            act,
            pause: Duration::from_millis(ms),
        }
    }
}

impl Fault {
    fn draw() -> Self {
        let which = rng::next();
        match rng::below(20) {
            0..=2 => Self::Kill(which),
            3 => Self::CrashLoop(which, 2 + rng::below(8)),
            4 | 5 => Self::Restart(which),
            6 | 7 => Self::Pause(which),
            8 => Self::Resume(which),
            9..=11 => Self::Split(which),
            12 | 13 => Self::OneWay(which),
            14 => Self::Hold(which),
            15 | 16 => Self::Loss([0.0, 0.05, 0.2, 0.4][rng::below(4)]),
            17 => Self::Heal,
            _ => Self::Skew(which, skew()),
        }
    }
}

/// Mostly within a minute, sometimes hours.
fn skew() -> i64 {
    let range = if rng::below(4) == 0 {
        3 * 3_600_000
    } else {
        60_000
    };
    let ms = rng::below(2 * range + 1);
    i64::try_from(ms).expect("hours") - i64::try_from(range).expect("hours")
}

impl Word {
    fn draw() -> Self {
        let which = rng::next();
        match rng::below(16) {
            0..=2 => Self::Add(Origin::Admin),
            3 => Self::Add(Origin::Provider),
            4 => Self::AddCold(5 + rng::next() % 30),
            5 => Self::Change(which),
            6 => Self::Drain(which),
            7 => Self::Warm(which),
            8 | 9 => Self::Remove(which),
            10 => Self::Epoch(which),
            11..=13 => Self::Tell(1 + rng::below(40)),
            _ => Self::Publish,
        }
    }
}

/// Approximate length of a quiet time.
const QUIET: Duration = Duration::from_secs(10);
