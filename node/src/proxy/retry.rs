//! May a failed attempt be followed by another? One place decides, before a byte has reached the client.
//!
//! Budget after Envoy's retry budget: retries at once are a share of requests at once, with a floor, so that
//! an overload is not multiplied. A refused or reset connection gave the worker nothing to do and costs no
//! budget, once per request and worker (each worker is tried once).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::attempt::Failure;
use crate::config::RetryConfig;

/// Retries and requests at once, on this replica.
#[derive(Debug, Default)]
pub struct Budget {
    requests: AtomicU32,
    retries: AtomicU32,
}

/// Counts one request, or one retry, while it lasts.
#[derive(Debug)]
pub struct Counted {
    budget: Arc<Budget>,
    is_retry: bool,
}

impl Budget {
    fn counter(&self, is_retry: bool) -> &AtomicU32 {
        if is_retry {
            &self.retries
        } else {
            &self.requests
        }
    }

    /// Counts a request from now on.
    pub fn request(self: &Arc<Self>) -> Counted {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Counted {
            budget: Arc::clone(self),
            is_retry: false,
        }
    }

    /// Counts a retry from now on, if the budget has room for it.
    pub fn retry(self: &Arc<Self>, config: &RetryConfig) -> Option<Counted> {
        let requests = f64::from(self.requests.load(Ordering::Relaxed));
        let share = (requests * config.budget) as u32;
        let max = share.max(config.budget_floor);
        self.retries
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                (now < max).then_some(now + 1)
            })
            .ok()
            .map(|_| Counted {
                budget: Arc::clone(self),
                is_retry: true,
            })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.budget
            .counter(self.is_retry)
            .fetch_sub(1, Ordering::Relaxed);
    }
}

/// What to do after a failed attempt.
#[derive(Debug)]
pub enum Next {
    /// Give the client the failure.
    Stop(&'static str),
    /// Try another worker after a pause; the count lasts as long as the attempt.
    Retry {
        /// Pause before it, zero for a worker that was full or not there.
        pause: Duration,
        /// Its place in the budget; `None` for a free retry.
        counted: Option<Counted>,
    },
}

/// Decides after `attempts` tries. `repeatable`: may the worker have seen the request twice? A completion
/// costs compute and no more; an unknown path may store something.
/// `draw` in 0..1 spreads the pauses.
pub fn after(
    failure: &Failure,
    attempts: u32,
    repeatable: bool,
    config: &RetryConfig,
    budget: &Arc<Budget>,
    draw: f64,
) -> Next {
    if !config.enabled {
        return Next::Stop("retries are disabled");
    }
    if attempts >= config.max_attempts.get() {
        return Next::Stop("attempts exhausted");
    }
    if failure.is_broken_connection() && (repeatable || matches!(failure, Failure::Connect(_))) {
        return Next::Retry {
            pause: Duration::ZERO,
            counted: None,
        };
    }
    if !repeatable {
        return Next::Stop("the request may not be repeated");
    }
    let Some(counted) = budget.retry(config) else {
        return Next::Stop("retry budget exhausted");
    };
    let pause = if failure.is_back_pressure() {
        Duration::ZERO
    } else {
        backoff(config, attempts, draw)
    };
    Next::Retry {
        pause,
        counted: Some(counted),
    }
}

fn backoff(config: &RetryConfig, attempts: u32, draw: f64) -> Duration {
    let exponent = i32::try_from(attempts.saturating_sub(1)).unwrap_or(i32::MAX);
    let grown = config.initial_backoff.as_secs_f64() * config.backoff_multiplier.powi(exponent);
    let capped = grown.min(config.max_backoff.as_secs_f64());
    Duration::from_secs_f64(capped * (1.0 + config.jitter * (2.0 * draw - 1.0)).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::StatusCode;

    fn config() -> RetryConfig {
        RetryConfig::default()
    }

    fn refused(code: u16) -> Failure {
        Failure::Refused(StatusCode::from_u16(code).expect("status"), Bytes::new())
    }

    fn no_connection() -> Failure {
        Failure::Connect(std::io::ErrorKind::ConnectionRefused.into())
    }

    #[test]
    fn budget_is_a_share_with_a_floor() {
        let budget = Arc::new(Budget::default());
        let config = config();
        let floor: Vec<_> = (0..config.budget_floor)
            .map(|_| budget.retry(&config).expect("below the floor"))
            .collect();
        assert!(budget.retry(&config).is_none());
        let requests: Vec<_> = (0..100).map(|_| budget.request()).collect();
        let more: Vec<_> = std::iter::from_fn(|| budget.retry(&config)).collect();
        assert_eq!(more.len() + floor.len(), 20);
        drop((requests, more, floor));
        assert_eq!(budget.retries.load(Ordering::Relaxed), 0);
        assert_eq!(budget.requests.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn refused_connections_cost_no_budget_and_no_pause() {
        let budget = Arc::new(Budget::default());
        let mut config = config();
        config.budget_floor = 0;
        let next = after(&no_connection(), 1, false, &config, &budget, 0.5);
        let Next::Retry { pause, counted } = next else {
            panic!("{next:?}")
        };
        assert!(pause.is_zero() && counted.is_none());
        assert!(matches!(
            after(&refused(500), 1, true, &config, &budget, 0.5),
            Next::Stop("retry budget exhausted")
        ));
    }

    #[test]
    fn stops() {
        let budget = Arc::new(Budget::default());
        let config = config();
        let last = config.max_attempts.get();
        assert!(matches!(
            after(&no_connection(), last, true, &config, &budget, 0.5),
            Next::Stop("attempts exhausted")
        ));
        assert!(matches!(
            after(&refused(500), 1, false, &config, &budget, 0.5),
            Next::Stop("the request may not be repeated")
        ));
        let off = RetryConfig {
            enabled: false,
            ..config
        };
        assert!(matches!(
            after(&no_connection(), 1, true, &off, &budget, 0.5),
            Next::Stop("retries are disabled")
        ));
    }

    #[test]
    fn full_workers_are_left_at_once_and_sick_ones_with_growing_pauses() {
        let budget = Arc::new(Budget::default());
        let config = config();
        let pause_after = |failure: &Failure, attempts| match after(
            failure, attempts, true, &config, &budget, 0.5,
        ) {
            Next::Retry { pause, .. } => pause,
            Next::Stop(why) => panic!("{why}"),
        };
        assert!(pause_after(&refused(503), 1).is_zero());
        let first = pause_after(&refused(500), 1);
        assert_eq!(first, config.initial_backoff);
        assert!(pause_after(&refused(500), 2) > first);
    }
}
