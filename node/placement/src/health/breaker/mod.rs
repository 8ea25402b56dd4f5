//! Circuit breaker of one worker, fed by the outcomes of requests.
//!
//! It opens after failures in a row, or when too few of the recent outcomes were good. Each time it opens again it
//! stays open for longer (an *ejection*), and it forgets ejections while it is closed and well. Only successes close
//! it, one trial request at a time. After Envoy's outlier detection and linkerd's unified breaker.

use std::{collections::VecDeque, num::NonZeroU32, time::Duration};

use super::rate::RateWindow;

#[cfg(test)]
mod tests;

/// Settings of a [`Breaker`]. Names are vllm-router's (`--cb-*`) where it has them. Local to a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerSettings {
    /// Failures in a row, all within [`Self::window`], that open it. Default 5, as Envoy (vllm-router: 10): each one
    /// cost a client the time of an attempt.
    pub failure_threshold: NonZeroU32,
    /// Successful trials in a row that close it. Default 3.
    pub success_threshold: NonZeroU32,
    /// Share of good outcomes within [`Self::rate_window`] below which it opens, 0 to 1. Default 0.5; 0: never.
    ///
    /// Finds a worker that fails often but not always. Neutral outcomes do not count.
    pub success_rate: f64,
    /// Outcomes within [`Self::rate_window`] below which the rate says nothing. Default 20.
    pub rate_outcomes: NonZeroU32,
    /// How far back the rate looks. Default 10 s.
    pub rate_window: Duration,
    /// How long it stays open, before a request may try, when it opens for the first time; the second time twice as
    /// long, and so on. Default 10 s (vllm-router: 60 s, but it then lets all requests through; one trial at a time can
    /// be risked sooner).
    pub timeout: Duration,
    /// Longest time that it stays open. Default 300 s.
    pub timeout_max: Duration,
    /// Share by which that time is lengthened or shortened, by a draw, 0 to 1. Default 0.2.
    ///
    /// Else workers, or replicas, that fail together are tried together.
    pub jitter: f64,
    /// Failures in a row that are older than this are forgotten; a breaker that has been closed for this long forgets
    /// half of its ejections. Default 120 s.
    pub window: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failure_threshold: const { NonZeroU32::new(5).expect("not zero") },
            success_threshold: const { NonZeroU32::new(3).expect("not zero") },
            success_rate: 0.5,
            rate_outcomes: const { NonZeroU32::new(20).expect("not zero") },
            rate_window: Duration::from_secs(10),
            timeout: Duration::from_secs(10),
            timeout_max: Duration::from_secs(300),
            jitter: 0.2,
            window: Duration::from_secs(120),
        }
    }
}

/// How an attempt ended, known at the end of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// A terminal event or a clean end. The only thing that closes a breaker.
    Success,
    /// Shows nothing of the worker's health: 4xx, back-pressure (429, 503 of its queue), the client left.
    Neutral,
    /// Refused, reset, broken, timed out, 5xx.
    Failure,
}

named! {
    /// State of a [`Breaker`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum BreakerState {
        /// Requests pass.
        Closed = "closed",
        /// No request passes.
        Open = "open",
        /// One request at a time passes, as a trial.
        HalfOpen = "half_open",
    }
}

/// Leave to send one request, to be handed back with its outcome ([`Breaker::record`]), in every case:
/// a request that was dropped is [`AttemptOutcome::Neutral`].
#[derive(Debug)]
#[must_use = "hand it back with the outcome"]
pub struct Permit {
    /// A stream that began before the breaker opened says nothing about the worker after it.
    era: u64,
    /// Number of the trial; 0 in a closed breaker, and for a request that no trial was granted for.
    trial: u64,
}

/// Circuit breaker of one worker: closed → open → half-open → closed.
#[derive(Clone, Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    stage: Stage,
    /// Times that it opened, as far as it remembers; at most what makes its longest time.
    ejections: u32,
    /// Counts the times it opened or closed.
    era: u64,
    /// Counts the trials of all eras.
    trials: u64,
}

#[derive(Clone, Debug)]
enum Stage {
    Closed {
        since: Duration,
        /// Times of the failures in a row, at most the greatest threshold so far.
        failures: VecDeque<Duration>,
        rate: RateWindow,
    },
    /// No request passes before `until`; then trials do.
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
    /// Other settings from now on. What was counted stays, but for the rate where its window has another length; a
    /// breaker that is open stays so for as long as it was to be.
    pub fn change(&mut self, settings: BreakerSettings) {
        if let Stage::Closed { rate, .. } = &mut self.stage
            && settings.rate_window != self.settings.rate_window
        {
            *rate = RateWindow::new(settings.rate_window);
        }
        self.settings = settings;
    }

    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        Self {
            stage: Stage::closed(&settings, Duration::ZERO),
            settings,
            ejections: 0,
            era: 0,
            trials: 0,
        }
    }

    /// State at `now`.
    pub fn state(&self, now: Duration) -> BreakerState {
        match self.stage {
            Stage::Closed { .. } => BreakerState::Closed,
            Stage::Open { until, .. } if now < until => BreakerState::Open,
            Stage::Open { .. } => BreakerState::HalfOpen,
        }
    }

    /// Times that it opened, as far as it remembers them.
    pub fn ejections(&self, now: Duration) -> u32 {
        let Stage::Closed { since, .. } = self.stage else {
            return self.ejections;
        };
        let windows = now.saturating_sub(since).as_nanos() / self.settings.window.as_nanos().max(1);
        let halvings = u32::try_from(windows).unwrap_or(u32::MAX);
        self.ejections.checked_shr(halvings).unwrap_or(0)
    }

    /// How long it still lets no request pass; zero when closed or half-open.
    pub fn shut_for(&self, now: Duration) -> Duration {
        match self.stage {
            Stage::Closed { .. } => Duration::ZERO,
            Stage::Open { until, .. } => until.saturating_sub(now),
        }
    }

    /// Whether [`Breaker::begin`] would grant a permit: for the standing of a candidate.
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

    /// Leave for a request that is sent although the breaker may be open, because health is not believed. Its success
    /// counts, its failure shows nothing new.
    pub fn begin_anyway(&mut self, now: Duration) -> Permit {
        match self.begin(now) {
            Some(permit) => permit,
            None => self.pass(),
        }
    }

    /// Leave for a request that is no trial, whatever the state: the caller looks whether it may be sent.
    pub fn pass(&self) -> Permit {
        Permit {
            era: self.era,
            trial: 0,
        }
    }

    /// Records how the permitted request ended. `draw`, in 0..1, spreads the time for which it opens.
    pub fn record(&mut self, permit: Permit, outcome: AttemptOutcome, now: Duration, draw: f64) {
        if permit.era != self.era {
            return;
        }
        match &mut self.stage {
            Stage::Closed { failures, rate, .. } => match outcome {
                AttemptOutcome::Neutral => {}
                AttemptOutcome::Success => {
                    failures.clear();
                    rate.record(true, now);
                }
                AttemptOutcome::Failure => {
                    rate.record(false, now);
                    failures.push_back(now);
                    let old = |first: &Duration| *first + self.settings.window < now;
                    while failures.front().is_some_and(old) {
                        failures.pop_front();
                    }
                    let in_a_row = failures.len() >= self.settings.failure_threshold.get() as usize;
                    let (good, all) = rate.outcomes(now);
                    let too_often = all >= self.settings.rate_outcomes.get()
                        && f64::from(good) < self.settings.success_rate * f64::from(all);
                    if in_a_row || too_often {
                        self.open(now, draw);
                    }
                }
            },
            Stage::Open {
                trial, successes, ..
            } => {
                if outcome == AttemptOutcome::Failure {
                    if permit.trial != 0 {
                        self.open(now, draw);
                    }
                    return;
                }
                if trial.is_some_and(|trial| trial.number == permit.trial) {
                    *trial = None;
                }
                if outcome == AttemptOutcome::Success {
                    *successes += 1;
                    if *successes >= self.settings.success_threshold.get() {
                        self.close(now);
                    }
                }
            }
        }
    }

    /// Opens it: a failure of another kind than an outcome, after which trials alone find out.
    pub fn open(&mut self, now: Duration, draw: f64) {
        let BreakerSettings {
            timeout,
            timeout_max,
            jitter,
            ..
        } = self.settings;
        let most = timeout_max.as_nanos().div_ceil(timeout.as_nanos().max(1));
        let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
        self.ejections = self.ejections(now).saturating_add(1).min(most);
        let spread = (1.0 + jitter.clamp(0.0, 1.0) * (2.0 * draw - 1.0)).max(0.0);
        let shut = timeout.saturating_mul(self.ejections).min(timeout_max);
        self.era += 1;
        self.stage = Stage::Open {
            until: now + shut.mul_f64(spread).min(timeout_max),
            successes: 0,
            trial: None,
        };
    }

    /// Closes it: the worker has shown otherwise that it is back. One that is closed forgets its failures.
    pub fn close(&mut self, now: Duration) {
        // It has been closed since then all the same, and goes on forgetting its ejections.
        let since = match self.stage {
            Stage::Closed { since, .. } => since,
            Stage::Open { .. } => now,
        };
        self.era += 1;
        self.stage = Stage::closed(&self.settings, since);
    }
}

impl Stage {
    fn closed(settings: &BreakerSettings, since: Duration) -> Self {
        Self::Closed {
            since,
            failures: VecDeque::new(),
            rate: RateWindow::new(settings.rate_window),
        }
    }
}
