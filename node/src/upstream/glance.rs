//! Glance: what every decision reads of every worker, in one line of the processor's cache.
//!
//! A decision over a thousand workers mostly waits for memory. What it always reads stands here together, apart from
//! what only requests to the worker touch. Those who form an opinion write it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use grapevine_placement::Rate;
use tokio::time::Instant;

use super::atomic_instant::AtomicInstant;

/// What a decision reads of a worker that nothing is wrong with.
#[derive(Debug)]
#[repr(align(64))]
pub struct Glance {
    /// Nothing is wrong with its health: a decision needs no closer look, and no lock.
    is_clear: AtomicBool,
    /// Bits of the milliseconds a token that decisions go by.
    rate: AtomicU64,
    /// Until then it asked not to be sent anything (`Retry-After`).
    pub paused_until: AtomicInstant,
}

impl Default for Glance {
    fn default() -> Self {
        Self {
            is_clear: AtomicBool::new(true),
            rate: AtomicU64::new(Rate::TYPICAL.millis().to_bits()),
            paused_until: AtomicInstant::default(),
        }
    }
}

impl Glance {
    /// Whether nothing is wrong with its health.
    pub fn is_clear(&self) -> bool {
        self.is_clear.load(Ordering::Acquire)
    }

    pub(super) fn set_clear(&self, is_clear: bool) {
        self.is_clear.store(is_clear, Ordering::Release);
    }

    /// How long it needs for a token to compute, as decisions go by it.
    pub fn rate(&self) -> Rate {
        Rate::from_millis(f64::from_bits(self.rate.load(Ordering::Relaxed)))
    }

    /// Decides by another rate from now on.
    pub fn set_rate(&self, rate: Rate) {
        self.rate.store(rate.millis().to_bits(), Ordering::Relaxed);
    }

    /// How much longer it wants to be left alone.
    pub fn pause(&self) -> Option<Duration> {
        let until = self.paused_until.get()?;
        let left = until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }
}
