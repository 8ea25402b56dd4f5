//! How fast a worker answers, as this replica has seen it. The rate that all replicas together make of it is in its
//! [`Glance`](super::Glance).

use grapevine_placement::Observed;
use parking_lot::Mutex;

/// A worker's pace.
#[derive(Debug, Default)]
pub struct Pace {
    /// By the answers to this replica.
    seen: Mutex<Observed>,
}

impl Pace {
    /// The first token came so many milliseconds after its request was sent, with so many tokens to be computed before.
    pub fn answered(&self, tokens_before: u64, millis: f64) {
        self.seen.lock().see(tokens_before as f64, millis);
    }

    /// All that this replica has seen.
    pub fn seen(&self) -> Observed {
        *self.seen.lock()
    }

    /// Time has passed: it counts for this part of what it did.
    pub fn fade(&self, part: f64) {
        self.seen.lock().fade(part);
    }

    /// Another process is the worker now.
    pub fn forget(&self) {
        *self.seen.lock() = Observed::default();
    }
}
