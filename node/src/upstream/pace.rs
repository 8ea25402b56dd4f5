//! How fast a worker answers: what this replica has seen of it, and the rate that all replicas together make of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use grapevine_placement::{Observed, Rate};

/// A worker's pace.
#[derive(Debug)]
pub struct Pace {
    /// By the answers to this replica.
    seen: Mutex<Observed>,
    /// Bits of the milliseconds a token that decisions go by.
    rate: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            seen: Mutex::default(),
            rate: AtomicU64::new(Rate::TYPICAL.millis().to_bits()),
        }
    }
}

impl Pace {
    /// The first token came so many milliseconds after its request was sent, with so many tokens to be computed before.
    pub fn answered(&self, tokens_before: u64, millis: f64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.see(tokens_before as f64, millis);
    }

    /// All that this replica has seen.
    pub fn seen(&self) -> Observed {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What decisions go by.
    pub fn rate(&self) -> Rate {
        Rate::from_millis(f64::from_bits(self.rate.load(Ordering::Relaxed)))
    }

    /// Decides by another rate from now on.
    pub fn set_rate(&self, rate: Rate) {
        self.rate.store(rate.millis().to_bits(), Ordering::Relaxed);
    }
}
