//! Health of one worker: breaker (from requests) and probe state (from probes). Both are pure: `now` is the
//! time since any fixed start, and never runs backwards.
//!
//! Whom to skip, never who is where: nothing here touches the ring.

use std::{collections::VecDeque, num::NonZeroU32, time::Duration};

/// Settings of a [`Breaker`]. Names are vllm-router's (`--cb-*`). Local to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Failures in a row, all within [`Self::window`], that open it. Default 10.
    pub failure_threshold: NonZeroU32,
    /// Successful trials in a row that close it. Default 3.
    pub success_threshold: NonZeroU32,
    /// How long it stays open before a request may try. Default 10 s (vllm-router: 60 s, but it then lets
    /// everybody through; one trial at a time can be risked sooner).
    pub timeout: Duration,
    /// Failures older than this are forgotten. Default 120 s.
    pub window: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failure_threshold: const { NonZeroU32::new(10).expect("not zero") },
            success_threshold: const { NonZeroU32::new(3).expect("not zero") },
            timeout: Duration::from_secs(10),
            window: Duration::from_secs(120),
        }
    }
}

/// How an attempt ended, known at the end of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A terminal event or a clean end. The only thing that closes a breaker.
    Success,
    /// Says nothing of the worker's health: 4xx, back-pressure (429, 503 of its queue), the client left.
    Neutral,
    /// Refused, reset, broken, timed out, 5xx.
    Failure,
}

/// State of a [`Breaker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Requests pass.
    Closed,
    /// No request passes.
    Open,
    /// One request at a time passes, as a trial.
    HalfOpen,
}

impl BreakerState {
    /// Label in metrics and the admin API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// Leave to send one request, to be handed back with its outcome ([`Breaker::record`]), in every case:
/// a request that was dropped is [`Outcome::Neutral`].
#[derive(Debug)]
#[must_use = "hand it back with the outcome"]
pub struct Permit {
    /// A stream that began before the breaker opened says nothing about the worker after it.
    era: u64,
    /// Number of the trial; 0 in a closed breaker.
    trial: u64,
}

/// Circuit breaker of one worker: closed → open → half-open → closed.
#[derive(Clone, Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    stage: Stage,
    /// Counts the times it opened or closed.
    era: u64,
    /// Counts the trials of all eras.
    trials: u64,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Times of the failures in a row, at most the threshold.
    Closed { failures: VecDeque<Duration> },
    /// Nobody passes before `until`; then trials do.
    Open {
        until: Duration,
        successes: u32,
        trial: Option<Trial>,
    },
}

/// The newest request that tries whether the worker is back.
#[derive(Clone, Copy, Debug)]
struct Trial {
    number: u64,
    since: Duration,
}

impl Breaker {
    /// A closed breaker.
    #[must_use]
    pub fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            stage: Stage::closed(),
            era: 0,
            trials: 0,
        }
    }

    /// State at `now`.
    #[must_use]
    pub fn state(&self, now: Duration) -> BreakerState {
        match self.stage {
            Stage::Closed { .. } => BreakerState::Closed,
            Stage::Open { until, .. } if now < until => BreakerState::Open,
            Stage::Open { .. } => BreakerState::HalfOpen,
        }
    }

    /// Whether [`Breaker::begin`] would grant a permit: for the standing of a candidate.
    #[must_use]
    pub fn allows(&self, now: Duration) -> bool {
        match self.stage {
            Stage::Closed { .. } => true,
            // A trial that streams for long must not keep a worker idle that is back: the next one may start.
            Stage::Open { until, trial, .. } => {
                now >= until && trial.is_none_or(|trial| now >= trial.since + self.settings.timeout)
            }
        }
    }

    /// Asks to send a request now. Half-open, one trial passes at a time, or one per timeout where trials last longer.
    #[must_use]
    pub fn begin(&mut self, now: Duration) -> Option<Permit> {
        if !self.allows(now) {
            return None;
        }
        let mut number = 0;
        if let Stage::Open { trial, .. } = &mut self.stage {
            self.trials += 1;
            number = self.trials;
            *trial = Some(Trial { number, since: now });
        }
        Some(Permit {
            era: self.era,
            trial: number,
        })
    }

    /// Records how the permitted request ended.
    pub fn record(&mut self, permit: Permit, outcome: Outcome, now: Duration) {
        if permit.era != self.era {
            return;
        }
        match (&mut self.stage, outcome) {
            (Stage::Closed { .. }, Outcome::Neutral) => {}
            (Stage::Closed { failures }, Outcome::Success) => failures.clear(),
            (Stage::Closed { failures }, Outcome::Failure) => {
                failures.push_back(now);
                while failures
                    .front()
                    .is_some_and(|&first| first + self.settings.window < now)
                {
                    failures.pop_front();
                }
                if failures.len() >= self.settings.failure_threshold.get() as usize {
                    self.open(now);
                }
            }
            (
                Stage::Open {
                    trial, successes, ..
                },
                Outcome::Neutral | Outcome::Success,
            ) => {
                if trial.is_some_and(|trial| trial.number == permit.trial) {
                    *trial = None;
                }
                if outcome == Outcome::Success {
                    *successes += 1;
                    if *successes >= self.settings.success_threshold.get() {
                        self.era += 1;
                        self.stage = Stage::closed();
                    }
                }
            }
            (Stage::Open { .. }, Outcome::Failure) => self.open(now),
        }
    }

    fn open(&mut self, now: Duration) {
        self.era += 1;
        self.stage = Stage::Open {
            until: now + self.settings.timeout,
            successes: 0,
            trial: None,
        };
    }
}

impl Stage {
    fn closed() -> Self {
        Self::Closed {
            failures: VecDeque::new(),
        }
    }
}

/// Settings of a [`ProbeState`]. Names are vllm-router's (`--health-*-threshold`). Local to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// Failed probes in a row after which a worker is unhealthy. Default 3.
    pub failure_threshold: NonZeroU32,
    /// Good probes in a row after which an unhealthy worker is healthy again. Default 2.
    pub success_threshold: NonZeroU32,
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self {
            failure_threshold: const { NonZeroU32::new(3).expect("not zero") },
            success_threshold: const { NonZeroU32::new(2).expect("not zero") },
        }
    }
}

/// What probes say of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not probed yet, or not often enough: used like a healthy worker.
    Unknown,
    /// Answers.
    Healthy,
    /// Does not answer.
    Unhealthy,
}

impl Health {
    /// Label in metrics and the admin API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// Probe results of one worker, with hysteresis. Starts unknown; the first good probe makes it healthy.
#[derive(Clone, Debug)]
pub struct ProbeState {
    settings: ProbeSettings,
    health: Health,
    /// Results in a row that speak against `health`.
    against: u32,
}

impl ProbeState {
    /// An unknown worker.
    #[must_use]
    pub fn new(settings: ProbeSettings) -> Self {
        Self {
            settings,
            health: Health::Unknown,
            against: 0,
        }
    }

    /// What the probes say so far.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health
    }

    /// Records one probe; the new health where it changed.
    pub fn record(&mut self, answered: bool) -> Option<Health> {
        let (threshold, next) = match (self.health, answered) {
            (Health::Healthy, true) | (Health::Unhealthy, false) => {
                self.against = 0;
                return None;
            }
            (Health::Unknown, true) => (1, Health::Healthy),
            (Health::Unhealthy, true) => (self.settings.success_threshold.get(), Health::Healthy),
            (Health::Unknown | Health::Healthy, false) => {
                (self.settings.failure_threshold.get(), Health::Unhealthy)
            }
        };
        self.against += 1;
        if self.against < threshold {
            return None;
        }
        self.against = 0;
        self.health = next;
        Some(next)
    }
}
