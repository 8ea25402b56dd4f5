//! Circuit breaker of one worker, fed by the outcomes of requests.

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

#[cfg(test)]
mod tests {
    use super::*;
    use BreakerState::{Closed, HalfOpen, Open};
    use Outcome::{Failure, Neutral, Success};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Opens after 3 failures within 60 s, tries after 10 s, closes after 2 successes.
    fn breaker() -> Breaker {
        Breaker::new(BreakerSettings {
            failure_threshold: NonZeroU32::new(3).expect("not zero"),
            success_threshold: NonZeroU32::new(2).expect("not zero"),
            timeout: seconds(10),
            window: seconds(60),
        })
    }

    /// Runs one request at a time: (second, its outcome, state after it).
    fn check(name: &str, table: &[(u64, Outcome, BreakerState)]) {
        let mut breaker = breaker();
        for &(second, outcome, state) in table {
            let permit = breaker
                .begin(seconds(second))
                .unwrap_or_else(|| panic!("{name}: no permit at {second} s"));
            breaker.record(permit, outcome, seconds(second));
            assert_eq!(
                breaker.state(seconds(second)),
                state,
                "{name}: after {outcome:?} at {second} s"
            );
        }
    }

    #[test]
    fn failures_in_a_row_open_it_and_only_success_closes_it() {
        check(
            "opens",
            &[
                (0, Failure, Closed),
                (1, Failure, Closed),
                (2, Failure, Open),
            ],
        );
        check(
            "a success between",
            &[
                (0, Failure, Closed),
                (1, Failure, Closed),
                (2, Success, Closed),
                (3, Failure, Closed),
            ],
        );
        check(
            "neutral is no success",
            &[
                (0, Failure, Closed),
                (1, Failure, Closed),
                (2, Neutral, Closed),
                (3, Failure, Open),
            ],
        );
        check(
            "neutral is no failure",
            &[
                (0, Neutral, Closed),
                (1, Neutral, Closed),
                (2, Neutral, Closed),
                (3, Neutral, Closed),
            ],
        );
        let opened = [
            (0, Failure, Closed),
            (0, Failure, Closed),
            (0, Failure, Open),
        ];
        let then = |rest: &[_]| [&opened[..], rest].concat();
        check(
            "closes",
            &then(&[(10, Success, HalfOpen), (10, Success, Closed)]),
        );
        check(
            "neutral trial",
            &then(&[
                (10, Neutral, HalfOpen),
                (11, Neutral, HalfOpen),
                (12, Success, HalfOpen),
                (12, Success, Closed),
            ]),
        );
        check(
            "failed trial",
            &then(&[
                (10, Success, HalfOpen),
                (11, Failure, Open),
                (21, Success, HalfOpen),
                (21, Success, Closed),
            ]),
        );
    }

    #[test]
    fn window_really_counts() {
        check(
            "slow failures",
            &[
                (0, Failure, Closed),
                (40, Failure, Closed),
                (80, Failure, Closed),
                (90, Failure, Open),
            ],
        );
    }

    #[test]
    fn open_lets_nobody_through_until_the_timeout() {
        let mut breaker = opened_at_zero();
        assert!(breaker.begin(seconds(9)).is_none());
        assert_eq!(breaker.state(seconds(9)), Open);
        assert_eq!(breaker.state(seconds(10)), HalfOpen);
        assert!(breaker.begin(seconds(10)).is_some());
    }

    #[test]
    fn half_open_lets_one_trial_through_at_a_time() {
        let mut breaker = opened_at_zero();
        let trial = breaker.begin(seconds(10)).expect("the first trial");
        assert!(
            !breaker.allows(seconds(11)) && breaker.begin(seconds(11)).is_none(),
            "the trial still runs"
        );
        breaker.record(trial, Neutral, seconds(12));
        assert!(breaker.allows(seconds(12)), "its end frees the place");
    }

    #[test]
    fn a_long_trial_does_not_block_the_next_for_ever() {
        let mut breaker = opened_at_zero();
        let long = breaker.begin(seconds(10)).expect("the first trial");
        let next = breaker
            .begin(seconds(20))
            .expect("the first trial has run for a timeout");
        breaker.record(long, Success, seconds(21));
        assert!(
            !breaker.allows(seconds(21)),
            "the end of the long one does not free the place of the next"
        );
        breaker.record(next, Success, seconds(22));
        assert_eq!(breaker.state(seconds(22)), Closed, "both successes count");
    }

    #[test]
    fn outcomes_of_an_earlier_era_change_nothing() {
        let mut breaker = breaker();
        let [old_success, old_failure] =
            [(); 2].map(|()| breaker.begin(seconds(0)).expect("closed"));
        for _ in 0..3 {
            let permit = breaker.begin(seconds(0)).expect("closed");
            breaker.record(permit, Failure, seconds(0));
        }
        breaker.record(old_failure, Failure, seconds(9));
        assert_eq!(
            breaker.state(seconds(10)),
            HalfOpen,
            "a stream that began before does not prolong the break"
        );
        breaker.record(old_success, Success, seconds(10));
        let trial = breaker.begin(seconds(10)).expect("half open");
        breaker.record(trial, Success, seconds(10));
        assert_eq!(
            breaker.state(seconds(10)),
            HalfOpen,
            "nor does it count as a trial"
        );
    }

    fn opened_at_zero() -> Breaker {
        let mut breaker = breaker();
        for _ in 0..3 {
            let permit = breaker.begin(seconds(0)).expect("closed");
            breaker.record(permit, Failure, seconds(0));
        }
        breaker
    }
}
