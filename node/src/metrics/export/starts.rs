//! When each cumulative series began to count: OpenTelemetry sends that with each value. Pure.
//!
//! Series that are there at the first look count since the replica's start. One that comes later, or that counts from 0
//! again because its worker or model left and came back, began after the look before.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::metrics::snapshot::Label;

/// The starts of all series of the last look; series that are gone are forgotten.
#[derive(Debug)]
pub(super) struct Starts {
    /// Series by the hash of their names and labels. Should two ever share one, a start would be wrong, and no value.
    known: HashMap<u64, Known>,
    hasher: RandomState,
    /// Time of the look before, or of the replica's start.
    before: u64,
    look: u64,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    start: u64,
    count: f64,
    look: u64,
}

impl Starts {
    /// Nothing was looked at yet; the replica started at `start`. Times are nanoseconds since 1970.
    pub(super) fn new(start: u64) -> Self {
        Self {
            known: HashMap::new(),
            hasher: RandomState::new(),
            before: start,
            look: 0,
        }
    }

    /// When a series began that counts `count` now.
    pub(super) fn of(&mut self, name: &str, labels: &[Label<'_>], count: f64) -> u64 {
        let key = self.hasher.hash_one((name, labels));
        let known = self.known.get(&key);
        let start = known.filter(|known| known.count <= count);
        let start = start.map_or(self.before, |known| known.start);
        let look = self.look;
        self.known.insert(key, Known { start, count, look });
        start
    }

    /// Time of the look before.
    pub(super) fn before(&self) -> u64 {
        self.before
    }

    /// All series were looked at, `now`.
    pub(super) fn end(&mut self, now: u64) {
        self.known.retain(|_, known| known.look == self.look);
        self.before = now;
        self.look += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_counts_since_it_was_seen_to_begin() {
        let mut starts = Starts::new(10);
        let labels = |worker: &'static str| vec![("worker", worker.into())];
        let of = |starts: &mut Starts, worker, count| starts.of("a", &labels(worker), count);
        assert_eq!(of(&mut starts, "first", 3.0), 10);
        starts.end(20);
        assert_eq!(of(&mut starts, "first", 3.0), 10, "it stands still");
        assert_eq!(of(&mut starts, "second", 1.0), 20, "it is new");
        starts.end(30);
        assert_eq!(of(&mut starts, "first", 2.0), 30, "it counts again");
        assert_eq!(of(&mut starts, "second", 9.0), 20);
        assert_eq!(starts.of("b", &labels("second"), 9.0), 30, "another metric");
        starts.end(40);
        assert_eq!(of(&mut starts, "first", 2.0), 30);
        starts.end(50);
        assert_eq!(starts.known.len(), 1, "what is gone is forgotten");
        assert_eq!(of(&mut starts, "second", 99.0), 50, "it is back");
    }
}
