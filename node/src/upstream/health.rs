//! Whether a worker is to be passed over: probes, refused connections, and the ends of requests.
//!
//! Only decides whom to skip. The ring never hears of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grapevine_placement::{
    Breaker, BreakerSettings, BreakerState, Health as Probed, Outcome, Permit, ProbeSettings,
    ProbeState,
};
use tokio::time::Instant;

use crate::config::{BreakerConfig, HealthConfig};

/// Opinion of one worker, formed by this replica.
#[derive(Debug)]
pub struct Health {
    /// Start of the time that the breaker counts in.
    born: Instant,
    breakers: bool,
    state: Mutex<State>,
    /// Nothing is wrong: lets a decision over hundreds of workers skip as many locks.
    clear: AtomicBool,
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
    probes: ProbeState,
    /// It refused a connection, and no probe has passed since.
    unreachable: bool,
}

impl Health {
    /// Nothing known yet: used like a healthy worker.
    pub fn new(breaker: &BreakerConfig, health: &HealthConfig) -> Self {
        let breaker_settings = BreakerSettings {
            failure_threshold: breaker.failure_threshold,
            success_threshold: breaker.success_threshold,
            timeout: breaker.open_for,
            window: breaker.window,
        };
        let probe_settings = ProbeSettings {
            failure_threshold: health.failure_threshold,
            success_threshold: health.success_threshold,
        };
        Self {
            born: Instant::now(),
            breakers: breaker.enabled,
            state: Mutex::new(State {
                breaker: Breaker::new(breaker_settings),
                probes: ProbeState::new(probe_settings),
                unreachable: false,
            }),
            clear: AtomicBool::new(true),
        }
    }

    fn now(&self) -> Duration {
        self.born.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change below is complete before anything could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, state: &State) {
        let clear = !state.unreachable
            && state.probes.health() != Probed::Unhealthy
            && state.breaker.state(self.now()) == BreakerState::Closed;
        self.clear.store(clear, Ordering::Release);
    }

    /// May a request be sent to it?
    pub fn is_usable(&self) -> bool {
        if self.clear.load(Ordering::Acquire) {
            return true;
        }
        let state = self.lock();
        !state.unreachable
            && state.probes.health() != Probed::Unhealthy
            && state.breaker.allows(self.now())
    }

    /// Asks to send one request; `None` when a half-open breaker has its trial already.
    pub fn begin(&self) -> Option<Permit> {
        self.lock().breaker.begin(self.now())
    }

    /// A permitted request ended.
    pub fn end(&self, permit: Permit, outcome: Outcome) {
        let mut state = self.lock();
        let outcome = match outcome {
            Outcome::Failure if !self.breakers => Outcome::Neutral,
            outcome => outcome,
        };
        state.breaker.record(permit, outcome, self.now());
        self.settle(&state);
    }

    /// It refused or dropped a connection: passed over until a probe passes.
    pub fn unreachable(&self) {
        let mut state = self.lock();
        state.unreachable = true;
        self.settle(&state);
    }

    /// A probe ended. True when the worker's health changed by it.
    pub fn probed(&self, good: bool) -> bool {
        let mut state = self.lock();
        let before = (state.probes.health(), state.unreachable);
        state.probes.record(good);
        state.unreachable &= !good;
        self.settle(&state);
        before != (state.probes.health(), state.unreachable)
    }

    /// What probes and connections say.
    pub fn probes(&self) -> Probed {
        let state = self.lock();
        if state.unreachable {
            Probed::Unhealthy
        } else {
            state.probes.health()
        }
    }

    /// What the ends of requests say.
    pub fn breaker(&self) -> BreakerState {
        self.lock().breaker.state(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        Health::new(&BreakerConfig::default(), &HealthConfig::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_connection_counts_until_a_probe_passes() {
        let health = health();
        assert!(health.is_usable());
        health.unreachable();
        assert!(!health.is_usable());
        assert!(!health.probed(false));
        assert!(!health.is_usable());
        assert!(health.probed(true));
        assert!(health.is_usable());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_open_the_breaker_and_a_trial_passes_later() {
        let config = BreakerConfig::default();
        let health = health();
        for _ in 0..config.failure_threshold.get() {
            let permit = health.begin().expect("closed");
            health.end(permit, Outcome::Failure);
        }
        assert_eq!(health.breaker(), BreakerState::Open);
        assert!(!health.is_usable() && health.begin().is_none());
        tokio::time::advance(config.open_for).await;
        let trial = health.begin().expect("one trial");
        assert!(health.begin().is_none() && !health.is_usable());
        health.end(trial, Outcome::Success);
        assert!(health.is_usable());
    }

    #[tokio::test(start_paused = true)]
    async fn disabled_breakers_never_open() {
        let config = BreakerConfig {
            enabled: false,
            ..BreakerConfig::default()
        };
        let health = Health::new(&config, &HealthConfig::default());
        for _ in 0..1000 {
            let permit = health.begin().expect("closed");
            health.end(permit, Outcome::Failure);
        }
        assert!(health.is_usable());
    }
}
