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
    Full,
    Sick,
    OutOfTime,
}

impl Act {
    fn failure(self) -> Option<Failure> {
        Some(match self {
            Self::Answered => return None,
            Self::Refused => no_connection(),
            Self::Closed => Failure::Closed("cut".into()),
            Self::Malformed => Failure::Malformed("garbage".into()),
            Self::Late => Failure::Late,
            Self::Full => status(503),
            Self::Sick => status(500),
            Self::OutOfTime => Failure::OutOfTime,
        })
    }

    fn is_free(self) -> bool {
        matches!(self, Self::Refused | Self::Closed)
    }
}

/// Workers that act by a script, each attempt taking a while.
struct Script {
    workers: usize,
    acts: VecDeque<(Act, Duration)>,
    /// Who was asked, how it went, and when that was over.
    asked: Vec<(usize, Act, Instant)>,
}

impl Script {
    fn of(workers: usize, acts: impl IntoIterator<Item = (Act, Duration)>) -> Self {
        Self {
            workers,
            acts: acts.into_iter().collect(),
            asked: Vec::new(),
        }
    }
}

impl Course for Script {
    type Placed = usize;
    type Answer = ();

    async fn place_first(&mut self, tried: &mut Vec<usize>) -> Result<usize, Lost> {
        self.place(tried).map_err(Lost::Unplaced)
    }

    fn place(&mut self, tried: &mut Vec<usize>) -> Result<usize, NoWorker> {
        let next = (0..self.workers).find(|worker| !tried.contains(worker));
        let next = next.ok_or(NoWorker::Tried)?;
        tried.push(next);
        Ok(next)
    }

    async fn send(&mut self, worker: usize, attempt: u32) -> Result<(), Failure> {
        assert_eq!(attempt as usize, self.asked.len() + 1);
        let (act, takes) = self
            .acts
            .pop_front()
            .unwrap_or((Act::Answered, Duration::ZERO));
        sleep(takes).await;
        self.asked.push((worker, act, Instant::now()));
        act.failure().map_or(Ok(()), Err)
    }
}

fn acts() -> impl Strategy<Value = Vec<(Act, Duration)>> {
    let act = prop_oneof![
        1 => Just(Act::Answered),
        2 => Just(Act::Refused),
        2 => Just(Act::Closed),
        1 => Just(Act::Malformed),
        1 => Just(Act::Late),
        2 => Just(Act::Full),
        2 => Just(Act::Sick),
        1 => Just(Act::OutOfTime),
    ];
    let takes = (0_u64..3_000).prop_map(Duration::from_millis);
    prop::collection::vec((act, takes), 0..12)
}

/// Runs one script in virtual time.
fn play(
    script: &mut Script,
    terms: impl FnOnce() -> (RetryConfig, Arc<Budget>, bool, Option<Duration>),
) -> Result<(), Lost> {
    let (config, budget, repeatable, time) = terms();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let terms = Terms {
            config: &config,
            budget: &budget,
            repeatable,
            deadline: time.map(|time| Instant::now() + time),
        };
        let result = run(script, &terms).await;
        if let Some(deadline) = terms.deadline {
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
        let budget = Arc::new(Budget::new(&config));
        let mut script = Script::of(workers, acts);
        let time = millis.map(Duration::from_millis);
        let result = play(&mut script, || (config, Arc::clone(&budget), repeatable, time));
        let asked = &script.asked;

        let mut workers: Vec<usize> = asked.iter().map(|(worker, ..)| *worker).collect();
        workers.sort_unstable();
        workers.dedup();
        prop_assert_eq!(workers.len(), asked.len(), "a worker was asked twice");
        prop_assert!(asked.len() <= max_attempts as usize);
        prop_assert!(enabled || asked.len() <= 1);
        // Nothing is sent after an answer, and an answer is the end.
        let answered = asked.iter().position(|(_, act, _)| matches!(act, Act::Answered));
        prop_assert_eq!(answered.is_some(), result.is_ok());
        if let Some(at) = answered {
            prop_assert_eq!(at + 1, asked.len());
        }
        let again = asked.len().saturating_sub(1);
        let failed = &asked[..again];
        prop_assert!(failed.iter().all(|(_, act, _)| !matches!(act, Act::OutOfTime)));
        // What may have been processed is repeated only when it may be, and inside the budget.
        let counted = failed.iter().filter(|(_, act, _)| !act.is_free()).count();
        let unsent = failed.iter().all(|(_, act, _)| matches!(act, Act::Refused));
        prop_assert!(repeatable || unsent);
        prop_assert!(counted as u32 <= floor);
        // Tokens come back exactly when their retry was answered.
        let left = std::iter::from_fn(|| budget.lend()).collect::<Vec<_>>().len();
        let mut spent = 0;
        for pair in asked.windows(2) {
            if !pair[0].1.is_free() && !matches!(pair[1].1, Act::Answered) {
                spent += 1;
            }
        }
        prop_assert!(left <= floor as usize - spent.min(floor as usize));
    }
}

fn terms(config: RetryConfig) -> (RetryConfig, Arc<Budget>, bool, Option<Duration>) {
    let budget = Arc::new(Budget::new(&config));
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
    assert!(play(&mut script, || terms(config.clone())).is_ok());
    assert_eq!(script.asked.len(), 5);
    assert_eq!(script.asked[0].2, script.asked[4].2, "without a pause");
    let mut script = Script::of(5, [(Act::Sick, NOW)]);
    assert!(play(&mut script, || terms(config)).is_err());
    assert_eq!(script.asked.len(), 1);
}

#[test]
fn full_workers_are_left_at_once_and_sick_ones_with_growing_pauses() {
    let mut script = Script::of(5, [(Act::Full, NOW); 2]);
    assert!(play(&mut script, || terms(RetryConfig::default())).is_ok());
    assert_eq!(script.asked[0].2, script.asked[2].2);

    let config = RetryConfig {
        jitter: 0.0,
        ..RetryConfig::default()
    };
    let mut script = Script::of(5, [(Act::Sick, NOW); 3]);
    assert!(play(&mut script, || terms(config.clone())).is_ok());
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
    let (config, budget, ..) = terms(config);
    let time = Some(Duration::from_secs(5));
    let lost = play(&mut script, || (config, budget, true, time)).expect_err("no time");
    let Lost::Failed(failure) = lost else {
        panic!("{lost:?}")
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
