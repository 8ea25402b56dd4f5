//! The last hour, as the page shows it: samples, what became of each worker and replica, marks. Pure: times are
//! arguments, counted from the start of the replica.
//!
//! Everything is bounded: 360 samples of each series; 256 workers and 64 replicas with a history of their own;
//! 256 marks. 6 MB when all of it is in use, and the names in the marks; 0.3 MB with three replicas and a dozen workers.

pub mod buckets;
pub mod marks;
pub mod minute;
pub mod tracks;
pub mod watcher;

use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::buckets::Buckets;
use self::marks::{Mark, Marks};
use self::tracks::{ReplicaSample, Tracks, WorkerSample};

/// Between two samples.
pub const EVERY: Duration = Duration::from_secs(10);
/// Samples that are kept: an hour.
pub const SAMPLES_MAX: usize = 360;
/// Workers with a history of their own; of others only the present is shown.
pub const WORKERS_MAX: usize = 256;
/// Replicas with a history of their own.
pub const REPLICAS_MAX: usize = 64;

/// How requests end, as the metric `requests` labels it.
pub const OUTCOMES: [&str; 9] = [
    "success",
    "incomplete",
    "client_left",
    "error",
    "worker_error",
    "worker_broke",
    "worker_stalled",
    "out_of_time",
    "shut_down",
];

/// What comparisons with peers find, as the metric `agreement_samples` labels it.
pub const VERDICTS: [&str; 8] = [
    "same",
    "settings",
    "membership",
    "heat",
    "evidence",
    "health",
    "load",
    "unanswered",
];

/// What was counted since the start of the replica.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counted {
    /// Requests, by [`OUTCOMES`].
    pub outcomes: [u64; OUTCOMES.len()],
    /// Requests that were answered with "not now", by the router or by a worker; also before there is an endpoint.
    pub refused: u64,
    /// Requests that were answered with the error of a worker or of this replica. Answers that broke off are outcomes.
    pub failed: u64,
    /// Comparisons, by [`VERDICTS`].
    pub verdicts: [u64; VERDICTS.len()],
    /// Times to first tokens, in seconds.
    pub first_token: Buckets,
    /// Times between tokens, in seconds.
    pub inter_token: Buckets,
    /// Times in queues, in seconds.
    pub queue: Buckets,
}

/// What there is now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Levels {
    /// Requests at workers, from all replicas.
    pub in_flight: f32,
    /// Requests that wait at this replica.
    pub waiting: f32,
    /// Workers that may get requests.
    pub usable: f32,
    /// All workers.
    pub workers: f32,
    /// Live replicas.
    pub live: f32,
    /// Of these, with the ring and settings of this one.
    pub agreeing: f32,
}

/// Median and 99th percentile; NaN where nothing was observed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Median, in seconds.
    pub p50: f32,
    /// 99th percentile, in seconds.
    pub p99: f32,
}

/// One sample: what happened since the one before, and what there was then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// When, since the start.
    pub at: Duration,
    /// The time that it stands for, in seconds.
    pub over_s: f32,
    /// Ended requests, by [`OUTCOMES`].
    pub outcomes: [u32; OUTCOMES.len()],
    /// Requests that were answered with "not now".
    pub refused: u32,
    /// Requests that were answered with the error of a worker or of this replica.
    pub failed: u32,
    /// Comparisons, by [`VERDICTS`].
    pub verdicts: [u32; VERDICTS.len()],
    /// Times to first tokens.
    pub first_token: Spread,
    /// Times between tokens.
    pub inter_token: Spread,
    /// Times in queues.
    pub queue: Spread,
    /// What there was.
    pub levels: Levels,
}

/// One moment, in the time of the history and by the clock.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Since the start of the replica.
    pub at: Duration,
    /// By the clock.
    pub clock: SystemTime,
}

/// What is sampled at one moment.
#[derive(Debug, Default)]
pub struct Taken {
    /// Counted since the start.
    pub counted: Counted,
    /// What there is.
    pub levels: Levels,
    /// Every worker by id.
    pub workers: Vec<(String, WorkerSample)>,
    /// Every replica by id.
    pub replicas: Vec<(String, ReplicaSample)>,
}

/// The last hour.
#[derive(Debug, Clone)]
pub struct History {
    samples: VecDeque<Sample>,
    before: Option<(Duration, Counted)>,
    /// Times to first tokens as counted at each moment of the last minute, and at the last one before it.
    first_tokens: VecDeque<(Duration, Buckets)>,
    /// Workers by id.
    pub workers: Tracks<WorkerSample>,
    /// Replicas by id.
    pub replicas: Tracks<ReplicaSample>,
    /// What happened.
    pub marks: Marks,
}

impl Default for History {
    fn default() -> Self {
        Self {
            samples: VecDeque::with_capacity(SAMPLES_MAX),
            before: None,
            first_tokens: VecDeque::new(),
            workers: Tracks::new(WORKERS_MAX),
            replicas: Tracks::new(REPLICAS_MAX),
            marks: Marks::default(),
        }
    }
}

impl Moment {
    /// Seconds since 1970 of another time of the history.
    pub fn unix_s(&self, at: Duration) -> u64 {
        let clock = self.clock.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ago = self.at.saturating_sub(at);
        clock.saturating_sub(ago).as_secs()
    }
}

impl History {
    /// Adds a sample; the first one only says from where to count. Returns how many workers and replicas got no history
    /// of their own because there is no room.
    pub fn take(&mut self, at: Duration, taken: Taken) -> usize {
        let Taken {
            counted,
            levels,
            workers,
            replicas,
        } = taken;
        if let Some((since, before)) = &self.before {
            let sample = difference(*since, before, at, &counted, levels);
            let is_old = |sample: &Sample| sample.at + hour() < at;
            while self.samples.len() == SAMPLES_MAX || self.samples.front().is_some_and(is_old) {
                self.samples.pop_front();
            }
            self.samples.push_back(sample);
        }
        self.note_first_tokens(at, counted.first_token.clone());
        self.before = Some((at, counted));
        self.marks.forget_before(at.saturating_sub(hour()));
        self.workers.push(at, workers) + self.replicas.push(at, replicas)
    }

    /// Adds what happened.
    pub fn mark(&mut self, marks: impl IntoIterator<Item = Mark>) {
        marks.into_iter().for_each(|mark| self.marks.push(mark));
    }

    /// Oldest first.
    pub fn samples(&self) -> impl DoubleEndedIterator<Item = &Sample> + Clone {
        self.samples.iter()
    }
}

/// What the samples span.
pub fn hour() -> Duration {
    EVERY * SAMPLES_MAX as u32
}

fn difference(
    since: Duration,
    before: &Counted,
    at: Duration,
    now: &Counted,
    levels: Levels,
) -> Sample {
    Sample {
        at,
        over_s: at.saturating_sub(since).as_secs_f32().max(0.001),
        outcomes: grown(&before.outcomes, &now.outcomes),
        refused: grown_by(before.refused, now.refused),
        failed: grown_by(before.failed, now.failed),
        verdicts: grown(&before.verdicts, &now.verdicts),
        first_token: now.first_token.spread_since(&before.first_token),
        inter_token: now.inter_token.spread_since(&before.inter_token),
        queue: now.queue.spread_since(&before.queue),
        levels,
    }
}

fn grown<const N: usize>(before: &[u64; N], now: &[u64; N]) -> [u32; N] {
    std::array::from_fn(|at| grown_by(before[at], now[at]))
}

fn grown_by(before: u64, now: u64) -> u32 {
    u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::agreement::Verdict;

    #[test]
    fn a_sample_holds_what_happened_since_the_one_before_and_old_ones_go() {
        let mut history = History::default();
        for n in 0..=(SAMPLES_MAX as u64 + 5) {
            let mut taken = Taken::default();
            taken.counted.outcomes[0] = n * 3;
            taken.levels.usable = n as f32;
            history.take(EVERY * n as u32, taken);
        }
        assert_eq!(history.samples().count(), SAMPLES_MAX);
        let last = history.samples().next_back().expect("samples");
        assert_eq!((last.outcomes[0], last.over_s), (3, 10.0));
        assert_eq!(last.levels.usable, SAMPLES_MAX as f32 + 5.0);
        assert!(last.first_token.p50.is_nan());
        let first = history.samples().next().expect("samples");
        assert_eq!(first.at, EVERY * 6);
    }

    /// The machine slept, or had no time for it.
    #[test]
    fn what_came_before_a_gap_is_forgotten_in_its_time() {
        let mut history = History::default();
        let times = [0, 10, 20, 3_000, 3_615, 3_625].map(Duration::from_secs);
        for at in times {
            history.take(at, Taken::default());
        }
        let kept: Vec<_> = history.samples().map(|sample| sample.at).collect();
        assert_eq!(kept, [3_000, 3_615, 3_625].map(Duration::from_secs));
    }

    #[test]
    fn the_last_hour_of_the_largest_cluster_takes_at_most_6_mb() {
        let of_one = size_of::<(Duration, WorkerSample)>() * WORKERS_MAX
            + size_of::<(Duration, ReplicaSample)>() * REPLICAS_MAX
            + size_of::<Sample>()
            + size_of::<Mark>();
        assert!(of_one * SAMPLES_MAX <= 6_000_000, "{of_one} bytes a sample");
    }

    #[test]
    fn labels_are_those_of_the_metrics() {
        assert_eq!(VERDICTS, Verdict::ALL.map(Verdict::as_str));
        use crate::proxy::outcome::Outcome;
        let outcomes = [
            Outcome::Success,
            Outcome::Incomplete,
            Outcome::ClientLeft,
            Outcome::Error,
            Outcome::WorkerError,
            Outcome::WorkerBroke,
            Outcome::WorkerStalled,
            Outcome::OutOfTime,
            Outcome::ShutDown,
        ];
        assert_eq!(OUTCOMES, outcomes.map(Outcome::as_str));
    }
}
