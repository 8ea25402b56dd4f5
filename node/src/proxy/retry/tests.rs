//! The loop itself, over scripts of failures, in virtual time.

use std::collections::VecDeque;

use bytes::Bytes;
use http::StatusCode;
use proptest::prelude::*;

use super::*;

fn status(code: u16) -> Failure {
    Failure::Refused(StatusCode::from_u16(code).expect("a status"), Bytes::new())
}

fn no_connection() -> Failure {
    Failure::Connect(std::io::ErrorKind::ConnectionRefused.into())
}

/// What one attempt of a script comes to.
#[derive(Debug, Clone, Copy)]
enum Act {
    Answered,
    Refused,
    Closed,
    Malformed,
    Late,
    Freed,
    Full,
    Sick,
    OutOfTime,
    NoSocket,
}

impl Act {
    fn failure(self) -> Option<Failure> {
        Some(match self {
            Self::Answered => return None,
            Self::Refused => no_connection(),
            Self::Closed => Failure::Closed("cut".into()),
            Self::Malformed => Failure::Malformed("garbage".into()),
            Self::Late => Failure::Late,
            Self::Freed => Failure::WorkerBad,
            Self::Full => status(503),
            Self::Sick => status(500),
            Self::OutOfTime => Failure::OutOfTime,
            Self::NoSocket => Failure::NoSocket(std::io::ErrorKind::OutOfMemory.into()),
        })
    }

    fn is_free(self) -> bool {
        matches!(self, Self::Refused | Self::Closed | Self::Freed)
    }
}

/// Workers that act by a script, each attempt taking a while.
struct Script {
    workers: usize,
    tried: usize,
    /// They were known to refuse connections before.
    known_dead: bool,
    /// Workers that may end with the request.
    deaths_max: Option<usize>,
    /// Its body is marked after so many attempts, because of another request.
    marked_after: Option<usize>,
    acts: VecDeque<(Act, Duration)>,
    /// The workers that were asked, how it went, and when that was over.
    asked: Vec<(usize, Act, Instant)>,
}

impl Script {
    fn of(workers: usize, acts: impl IntoIterator<Item = (Act, Duration)>) -> Self {
        Self {
            workers,
            tried: 0,
            known_dead: false,
            deaths_max: None,
            marked_after: None,
            acts: acts.into_iter().collect(),
            asked: Vec::new(),
        }
    }
}

impl AttemptPlan for Script {
    /// The worker, and whether it was known to refuse connections.
    type Placed = (usize, bool);
    type Answer = ();

    async fn place_first(&mut self) -> Result<(usize, bool), Exhausted> {
        self.place()
    }

    fn place(&mut self) -> Result<(usize, bool), Exhausted> {
        if self.marked_after == Some(self.asked.len()) {
            return Err(Exhausted::Quarantined(Duration::from_secs(1)));
        }
        if self.tried == self.workers {
            return Err(Exhausted::Unplaced(NoWorker::Tried));
        }
        self.tried += 1;
        Ok((self.tried - 1, self.known_dead))
    }

    fn is_last_resort((_, known_dead): &(usize, bool)) -> bool {
        *known_dead
    }

    async fn send(
        &mut self,
        (worker, known_dead): (usize, bool),
        attempt: Attempt,
    ) -> Result<(), Failure> {
        assert_eq!(attempt.number as usize, self.asked.len() + 1);
        let counts = |act: &Act| known_dead || !matches!(act, Act::Refused);
        let before = self.asked.iter().filter(|(_, act, _)| counts(act));
        assert_eq!(attempt.counted as usize, before.count() + 1);
        let (act, takes) = self
            .acts
            .pop_front()
            .unwrap_or((Act::Answered, Duration::ZERO));
        sleep(takes).await;
        self.asked.push((worker, act, Instant::now()));
        act.failure().map_or(Ok(()), Err)
    }

    async fn is_condemned(&mut self) -> bool {
        let ended = self
            .asked
            .iter()
            .filter(|(_, act, _)| matches!(act, Act::Closed));
        self.deaths_max.is_some_and(|most| ended.count() >= most)
    }
}

fn acts() -> impl Strategy<Value = Vec<(Act, Duration)>> {
    let act = prop_oneof![
        1 => Just(Act::Answered),
        2 => Just(Act::Refused),
        2 => Just(Act::Closed),
        1 => Just(Act::Malformed),
        1 => Just(Act::Late),
        1 => Just(Act::Freed),
        2 => Just(Act::Full),
        2 => Just(Act::Sick),
        1 => Just(Act::OutOfTime),
        1 => Just(Act::NoSocket),
    ];
    let takes = (0_u64..3_000).prop_map(Duration::from_millis);
    prop::collection::vec((act, takes), 0..12)
}

/// Runs one script in virtual time.
fn play(
    script: &mut Script,
    policy: impl FnOnce() -> (RetryConfig, Arc<Budget>, bool, Option<Duration>),
) -> Result<(), Exhausted> {
    let (config, budget, repeatable, time) = policy();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let policy = RetryPolicy {
            config: &config,
            budget: &budget,
            repeatable,
            repeatable_if_refused: false,
            deadline: time.map(|time| Instant::now() + time),
        };
        let result = run(script, &policy).await;
        if let Some(deadline) = policy.deadline {
            for pair in script.asked.windows(2) {
                let free = pair[0].1.is_free();
                assert!(
                    free || pair[0].2 < deadline,
                    "asked again when time was over"
                );
            }
        }
        result
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_course_keeps_to_its_terms(
        workers in 0_usize..8,
        acts in acts(),
        repeatable: bool,
        enabled: bool,
        max_attempts in 1_u32..8,
        floor in 0_u32..4,
        millis in prop::option::of(1_u64..10_000),
    ) {
        let config = RetryConfig {
            enabled,
            max_attempts: max_attempts.try_into().expect("not zero"),
            budget_floor: floor,
            ..RetryConfig::default()
        };
        let budget = Arc::new(Budget::new(config.clone().into()));
        let mut script = Script::of(workers, acts);
        let time = millis.map(Duration::from_millis);
        let result = play(&mut script, || (config, Arc::clone(&budget), repeatable, time));
        let asked = &script.asked;

        let mut workers: Vec<usize> = asked.iter().map(|(worker, ..)| *worker).collect();
        workers.sort_unstable();
        workers.dedup();
        prop_assert_eq!(workers.len(), asked.len(), "a worker was asked twice");
        let attempts = asked.iter().filter(|(_, act, _)| !matches!(act, Act::Refused)).count();
        prop_assert!(attempts <= max_attempts as usize, "{} attempts", attempts);
        prop_assert!(enabled || asked.len() <= 1);
        // Nothing is sent after an answer, and an answer is the end.
        let answered = asked.iter().position(|(_, act, _)| matches!(act, Act::Answered));
        prop_assert_eq!(answered.is_some(), result.is_ok());
        if let Some(at) = answered {
            prop_assert_eq!(at + 1, asked.len());
        }
        let again = asked.len().saturating_sub(1);
        let failed = &asked[..again];
        let is_last = |act: &Act| matches!(act, Act::OutOfTime | Act::NoSocket);
        prop_assert!(!failed.iter().any(|(_, act, _)| is_last(act)));
        // What may have been processed is repeated only when it may be, and inside the budget.
        let counted = failed.iter().filter(|(_, act, _)| !act.is_free()).count();
        let unsent = failed.iter().all(|(_, act, _)| matches!(act, Act::Refused));
        prop_assert!(repeatable || unsent);
        prop_assert!(counted as u32 <= floor);
        // Tokens come back exactly when their retry was answered; one that was refused is for the next.
        let left = std::iter::from_fn(|| budget.lend()).collect::<Vec<_>>().len();
        let (mut spent, mut lent) = (0, false);
        for (number, (_, act, _)) in asked.iter().enumerate() {
            let is_last = number + 1 == asked.len();
            match act {
                Act::Answered => {}
                Act::Refused => spent += u32::from(lent && is_last),
                _ => {
                    spent += u32::from(lent);
                    lent = !act.is_free() && !is_last;
                }
            }
        }
        prop_assert_eq!(left as u32, floor - spent);
    }
}

fn policy(config: RetryConfig) -> (RetryConfig, Arc<Budget>, bool, Option<Duration>) {
    let budget = Arc::new(Budget::new(config.clone().into()));
    (config, budget, true, None)
}

const NOW: Duration = Duration::ZERO;

#[test]
fn dead_workers_cost_no_budget_and_no_pause() {
    let config = RetryConfig {
        budget: 0.0,
        budget_floor: 0,
        ..RetryConfig::default()
    };
    let mut script = Script::of(5, [(Act::Refused, NOW); 4]);
    assert!(play(&mut script, || policy(config.clone())).is_ok());
    assert_eq!(script.asked.len(), 5);
    assert_eq!(script.asked[0].2, script.asked[4].2, "without a pause");
    let mut script = Script::of(5, [(Act::Freed, NOW); 4]);
    assert!(play(&mut script, || policy(config.clone())).is_ok());
    assert_eq!(script.asked[0].2, script.asked[4].2, "without a pause");
    let mut script = Script::of(5, [(Act::Sick, NOW)]);
    assert!(play(&mut script, || policy(config)).is_err());
    assert_eq!(script.asked.len(), 1);
}

#[test]
fn a_refused_connection_costs_no_attempt_unless_it_was_known() {
    let config = || RetryConfig {
        max_attempts: 2.try_into().expect("not zero"),
        budget_floor: 1,
        budget: 0.0,
        ..RetryConfig::default()
    };
    let dead = [(Act::Refused, NOW); 7];
    let mut script = Script::of(8, dead);
    assert!(play(&mut script, || policy(config())).is_ok());
    assert_eq!(script.asked.len(), 8, "the eighth is alive");
    let mut script = Script::of(8, dead);
    script.known_dead = true;
    assert!(play(&mut script, || policy(config())).is_err());
    assert_eq!(
        script.asked.len(),
        2,
        "hundreds of them would be asked for each request"
    );
    // The token that a sick worker's retry was lent survives refusals.
    let sick = [(Act::Sick, NOW), (Act::Refused, NOW), (Act::Refused, NOW)];
    let mut script = Script::of(8, sick);
    assert!(play(&mut script, || policy(config())).is_ok());
    assert_eq!(script.asked.len(), 4);
}

#[test]
fn nobody_gets_what_ended_two() {
    let ends = [(Act::Closed, NOW); 4];
    let mut script = Script::of(8, ends);
    script.deaths_max = Some(2);
    let exhausted = play(&mut script, || policy(RetryConfig::default())).expect_err("condemned");
    assert!(matches!(exhausted, Exhausted::Condemned), "{exhausted:?}");
    assert_eq!(script.asked.len(), 2);
}

#[test]
fn nobody_gets_what_is_marked_meanwhile() {
    for (marked_after, act) in [
        (0, Act::Answered),
        (1, Act::Refused),
        (1, Act::Closed),
        (2, Act::Full),
    ] {
        let mut script = Script::of(8, [(act, NOW); 3]);
        script.marked_after = Some(marked_after);
        let exhausted = play(&mut script, || policy(RetryConfig::default())).expect_err("marked");
        let is_expected = matches!(exhausted, Exhausted::Quarantined(_));
        assert!(is_expected, "{exhausted:?}");
        assert_eq!(script.asked.len(), marked_after);
    }
}

#[test]
fn full_workers_are_left_at_once_and_sick_ones_with_growing_pauses() {
    let mut script = Script::of(5, [(Act::Full, NOW); 2]);
    assert!(play(&mut script, || policy(RetryConfig::default())).is_ok());
    assert_eq!(script.asked[0].2, script.asked[2].2);

    let config = RetryConfig {
        jitter: 0.0,
        ..RetryConfig::default()
    };
    let mut script = Script::of(5, [(Act::Sick, NOW); 3]);
    assert!(play(&mut script, || policy(config.clone())).is_ok());
    let pauses: Vec<Duration> = script
        .asked
        .windows(2)
        .map(|pair| pair[1].2 - pair[0].2)
        .collect();
    assert_eq!(pauses[0], config.initial_backoff);
    assert!(pauses[1] > pauses[0] && pauses[2] > pauses[1], "{pauses:?}");
}

#[test]
fn no_pause_reaches_beyond_the_deadline() {
    let config = RetryConfig {
        initial_backoff: Duration::from_secs(10),
        ..RetryConfig::default()
    };
    let mut script = Script::of(3, [(Act::Sick, NOW)]);
    let (config, budget, ..) = policy(config);
    let time = Some(Duration::from_secs(5));
    let exhausted = play(&mut script, || (config, budget, true, time)).expect_err("no time");
    let Exhausted::Failed(failure) = exhausted else {
        panic!("{exhausted:?}")
    };
    assert_eq!(failure.status(), Some(StatusCode::INTERNAL_SERVER_ERROR));
    assert_eq!(script.asked.len(), 1);
}

#[test]
fn pauses_grow_to_their_limit_and_spread_around_it() {
    let config = RetryConfig::default();
    let middle = |attempts| backoff(&config, attempts, 0.5);
    assert_eq!(middle(1), config.initial_backoff);
    assert_eq!(middle(2), config.initial_backoff.mul_f64(1.5));
    assert_eq!(middle(1_000), config.max_backoff);
    assert_eq!(
        backoff(&config, 1, 0.0),
        config.initial_backoff.mul_f64(0.8)
    );
    assert_eq!(
        backoff(&config, 1, 1.0),
        config.initial_backoff.mul_f64(1.2)
    );
}
