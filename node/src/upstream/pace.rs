//! How fast a worker answers, as this replica has seen it. The rate that all replicas together make of it is in its
//! [`Glance`](super::Glance).

use std::sync::{Mutex, PoisonError};

use grapevine_placement::Observed;

/// A worker's pace.
#[derive(Debug, Default)]
pub struct Pace {
    /// By the answers to this replica.
    seen: Mutex<Observed>,
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
}
