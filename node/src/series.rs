//! Series of a metric that every request counts in, looked up once: a look-up takes the family's lock and hashes its labels.
//!
//! A series still exists only once something was counted in it. That of a worker which left the registry is
//! forgotten with it: what its last requests count goes nowhere, and brings no series back.

use std::sync::OnceLock;

use prometheus_client::metrics::counter::Counter;

/// Series in a fixed order, each looked up when it is first used.
#[derive(Debug)]
pub struct Shelf<M>(Box<[OnceLock<M>]>);

impl<M> Shelf<M> {
    /// Room for `count` series.
    pub fn new(count: usize) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// Counts in the series at `index`, which `find` looks up; beyond the room it is looked up each time.
    pub fn count(&self, index: usize, find: impl FnOnce() -> M, count: impl FnOnce(&M)) {
        match self.0.get(index) {
            Some(series) => count(series.get_or_init(find)),
            None => count(&find()),
        }
    }
}

/// The series of one worker that requests count in.
#[derive(Debug)]
pub struct WorkerSeries {
    /// Attempts, in the order of [`ATTEMPT_RESULTS`](crate::proxy::ATTEMPT_RESULTS).
    pub attempts: Shelf<Counter>,
    /// Tokens: of prompts, cached, generated, expected.
    pub tokens: Shelf<Counter>,
}

impl Default for WorkerSeries {
    fn default() -> Self {
        Self {
            attempts: Shelf::new(crate::proxy::ATTEMPT_RESULTS.len()),
            tokens: Shelf::new(4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_is_looked_up_once() {
        let series = [Counter::<u64>::default(), Counter::default()];
        let shelf = Shelf::new(1);
        let mut looked_up = 0;
        for _ in 0..3 {
            for (index, counter) in series.iter().enumerate() {
                let find = || {
                    looked_up += 1;
                    counter.clone()
                };
                shelf.count(index, find, |counter| {
                    counter.inc();
                });
            }
        }
        assert_eq!(series.map(|counter| counter.get()), [3, 3]);
        assert_eq!(looked_up, 1 + 3, "the second one has no room");
    }
}
