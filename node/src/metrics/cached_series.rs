//! Series of a metric that every request counts in, looked up once: a look-up takes the family's lock and hashes its
//! labels.
//!
//! A series still exists only once something was counted in it. That of a worker which left the registry is
//! forgotten with it: what its last requests count in it goes nowhere.

use std::sync::OnceLock;

/// Series in a fixed order, each looked up when it is first used.
#[derive(Debug)]
pub struct CachedSeries<M>(Box<[OnceLock<M>]>);

impl<M> CachedSeries<M> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Counter;

    #[test]
    fn each_series_is_looked_up_once() {
        let series = [Counter::<u64>::default(), Counter::default()];
        let cached = CachedSeries::new(1);
        let mut looked_up = 0;
        for _ in 0..3 {
            for (index, counter) in series.iter().enumerate() {
                let find = || {
                    looked_up += 1;
                    counter.clone()
                };
                cached.count(index, find, |counter| {
                    counter.inc();
                });
            }
        }
        assert_eq!(series.map(|counter| counter.get()), [3, 3]);
        assert_eq!(looked_up, 1 + 3, "the second one has no room");
    }
}
