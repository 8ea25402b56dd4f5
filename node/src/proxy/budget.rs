//! How many retries a replica may make: a token bucket, so that an overload is not multiplied.
//!
//! After Finagle's `RetryBudget`: each request pays in a share of a token, a retry takes a whole one. The
//! bucket holds as much as Envoy's retry budget allows at once: that share of the requests in progress, with
//! a floor. A retry that is answered gives its token back. So while one worker of many fails, only the number
//! of retries at once is limited; when all fail, retries are never more than that share of all requests,
//! and the floor. The floor is there again once no retry has failed for a while: after a storm a replica with
//! little to do must not be left without retries until enough requests have paid in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tokio::time::{Duration, Instant};

use crate::config::RetryConfig;
use crate::live::Live;

/// Parts of a token that are counted.
const TOKEN: u64 = 1_000;
/// Without a failed retry for so long the storm is over; the lifetime of a token in Finagle's and linkerd's budgets.
const STORM_OVER_AFTER: Duration = Duration::from_secs(10);

/// The retries of one replica.
#[derive(Debug)]
pub(super) struct Budget {
    config: Live<RetryConfig>,
    requests: AtomicU32,
    tokens: AtomicU64,
    /// The floor that is in it.
    floor: AtomicU64,
    born: Instant,
    /// When the last retry failed, in milliseconds after `born`; 0 when none has since the last storm.
    failed_at: AtomicU64,
}

/// Counts one request while it lasts.
#[derive(Debug)]
pub(super) struct Counted(Arc<Budget>);

/// The token of one retry. Dropping it gives it back: the retry was answered, or no client waits for it.
#[derive(Debug)]
pub(super) struct Loan(Option<Arc<Budget>>);

impl Budget {
    /// A full bucket.
    pub(super) fn new(config: Live<RetryConfig>) -> Self {
        let floor = floor(&config.look());
        Self {
            config,
            requests: AtomicU32::new(0),
            tokens: AtomicU64::new(floor),
            floor: AtomicU64::new(floor),
            born: Instant::now(),
            failed_at: AtomicU64::new(0),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Puts the floor back, once after each storm.
    fn end_storm(&self) {
        let failed_at = self.failed_at.load(Ordering::Relaxed);
        let quiet = u128::from(self.now_ms().saturating_sub(failed_at));
        if failed_at == 0 || quiet < STORM_OVER_AFTER.as_millis() {
            return;
        }
        let is_first =
            self.failed_at
                .compare_exchange(failed_at, 0, Ordering::Relaxed, Ordering::Relaxed);
        if is_first.is_ok() {
            let floor = floor(&self.config.look());
            self.tokens.fetch_max(floor, Ordering::Relaxed);
        }
    }

    /// Puts in what the floor has grown by: where requests pay in nothing, it would never come.
    fn follow_floor(&self) {
        let floor = floor(&self.config.look());
        let before = self.floor.swap(floor, Ordering::Relaxed);
        let grown = floor.saturating_sub(before);
        self.tokens.fetch_add(grown, Ordering::Relaxed);
    }

    fn full(&self) -> u64 {
        let requests = u64::from(self.requests.load(Ordering::Relaxed));
        let config = self.config.look();
        floor(&config).max(requests * share(&config))
    }

    fn pay_in(&self, parts: u64) {
        let full = self.full();
        // Mostly the bucket is full, and nothing is written.
        let _ = self
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                let then = (now + parts).min(full);
                (then != now).then_some(then)
            });
    }

    /// Counts a request from now on.
    pub(super) fn request(self: &Arc<Self>) -> Counted {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let share = share(&self.config.look());
        self.pay_in(share);
        Counted(Arc::clone(self))
    }

    /// No token will come, whatever happens: there is no floor, and no request pays anything in.
    pub(super) fn lends_nothing(&self) -> bool {
        let config = self.config.look();
        floor(&config) == 0 && share(&config) == 0
    }

    /// Takes a token for a retry, if there is one.
    pub(super) fn lend(self: &Arc<Self>) -> Option<Loan> {
        self.follow_floor();
        self.end_storm();
        let full = self.full();
        self.tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                now.min(full).checked_sub(TOKEN)
            })
            .ok()
            .map(|_| Loan(Some(Arc::clone(self))))
    }
}

/// What a request pays in, in parts of a token.
fn share(config: &RetryConfig) -> u64 {
    (config.budget * TOKEN as f64).round() as u64
}

/// What the bucket holds at least when it is full.
fn floor(config: &RetryConfig) -> u64 {
    u64::from(config.budget_floor) * TOKEN
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Loan {
    /// The retry did not help: its token is gone.
    pub(super) fn spend(mut self) {
        if let Some(budget) = self.0.take() {
            let now = budget.now_ms().max(1);
            budget.failed_at.store(now, Ordering::Relaxed);
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(budget) = self.0.take() {
            budget.pay_in(TOKEN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Arc<Budget> {
        Arc::new(Budget::new(RetryConfig::default().into()))
    }

    fn all(budget: &Arc<Budget>) -> Vec<Loan> {
        std::iter::from_fn(|| budget.lend()).collect()
    }

    #[test]
    fn retries_at_once_are_a_share_of_requests_at_once_with_a_floor() {
        let budget = budget();
        let few = all(&budget);
        assert_eq!(few.len(), 3);
        drop(few);
        let requests: Vec<_> = (0..100).map(|_| budget.request()).collect();
        let many = all(&budget);
        assert_eq!(many.len(), 20);
        drop(many);
        assert_eq!(
            all(&budget).len(),
            20,
            "what is given back can be lent again"
        );
        drop(requests);
        assert_eq!(all(&budget).len(), 3, "without requests the floor is left");
    }

    #[test]
    fn retries_that_do_not_help_are_a_share_of_all_requests() {
        let budget = budget();
        let mut spent = 0;
        for number in 1..=1_000_u32 {
            let _request = budget.request();
            while let Some(loan) = budget.lend() {
                loan.spend();
                spent += 1;
            }
            assert!(f64::from(spent) <= 3.0 + 0.2 * f64::from(number));
        }
        assert!(spent >= 200, "{spent} of at most 203");
    }

    #[test]
    fn retries_that_help_are_not_limited_over_time() {
        let budget = budget();
        for _ in 0..1_000 {
            let _request = budget.request();
            drop(budget.lend().expect("the last one was given back"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_floor_is_back_when_no_retry_has_failed_for_a_while() {
        let budget = budget();
        let spend_all = || all(&budget).into_iter().map(Loan::spend).count();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(spend_all(), 3);
        tokio::time::advance(STORM_OVER_AFTER - Duration::from_millis(1)).await;
        assert_eq!(spend_all(), 0, "too soon");
        tokio::time::advance(Duration::from_millis(1)).await;
        let lent = all(&budget);
        assert_eq!(lent.len(), 3);
        tokio::time::advance(STORM_OVER_AFTER).await;
        assert!(budget.lend().is_none(), "what is lent is not there twice");
        drop(lent);
        assert_eq!(spend_all(), 3);
    }

    #[test]
    fn a_floor_that_is_raised_is_there_without_any_budget() {
        let config = |floor| RetryConfig {
            budget: 0.0,
            budget_floor: floor,
            ..RetryConfig::default()
        };
        let live = Live::new(config(0));
        let budget = Arc::new(Budget::new(live.clone()));
        assert!(budget.lend().is_none());
        live.set(config(5));
        let lent = all(&budget);
        assert_eq!(lent.len(), 5);
        drop(lent);
        live.set(config(2));
        assert_eq!(all(&budget).len(), 2);
    }

    #[test]
    fn no_budget_is_no_retry() {
        let config = RetryConfig {
            budget: 0.0,
            budget_floor: 0,
            ..RetryConfig::default()
        };
        let budget = Arc::new(Budget::new(config.into()));
        let _requests: Vec<_> = (0..100).map(|_| budget.request()).collect();
        assert!(budget.lend().is_none());
    }
}
