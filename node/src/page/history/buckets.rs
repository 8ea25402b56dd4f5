//! A histogram as its metric counts it, and what of it came since an earlier look. Pure.

use super::Spread;

/// Bounds that are read; a metric has 19.
const BOUNDS_MAX: usize = 64;

/// Observations at or below each bound, in rising order of the bounds; the last bound is infinite.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets(Vec<(f64, u64)>);

impl Buckets {
    /// Adds `count` to those at or below `bound`: series of several labels are summed up so.
    pub fn add(&mut self, bound: f64, count: u64) {
        match self.0.binary_search_by(|(at, _)| at.total_cmp(&bound)) {
            Ok(at) => self.0[at].1 += count,
            Err(at) if self.0.len() < BOUNDS_MAX => self.0.insert(at, (bound, count)),
            Err(_) => {}
        }
    }

    /// Whether all that an earlier look counted is in it: the series of a model that left is not.
    pub fn has_grown_from(&self, before: &Self) -> bool {
        let mut bounds = before.0.iter();
        bounds.all(|(bound, count)| self.within(*bound) >= *count)
    }

    /// Observations at or below a bound; 0 where the bound is not known.
    fn within(&self, bound: f64) -> u64 {
        let known = self.0.binary_search_by(|(at, _)| at.total_cmp(&bound));
        known.map_or(0, |at| self.0[at].1)
    }

    /// Median and 99th percentile of what came since an earlier look; not known where it has not grown from it.
    pub fn spread_since(&self, before: &Self) -> Spread {
        if !self.has_grown_from(before) {
            return Spread {
                p50: f32::NAN,
                p99: f32::NAN,
            };
        }
        Spread {
            p50: self.quantile_since(before, 0.5),
            p99: self.quantile_since(before, 0.99),
        }
    }

    /// As Prometheus reckons it: evenly spread in its bucket. NaN without observations.
    fn quantile_since(&self, before: &Self, share: f64) -> f32 {
        let came = |at: usize| {
            let (bound, count) = self.0[at];
            (count - before.within(bound)) as f64
        };
        let all = self.0.len().checked_sub(1).map_or(0.0, came);
        if all == 0.0 {
            return f32::NAN;
        }
        let rank = share * all;
        let mut below = (0.0, 0.0);
        for at in 0..self.0.len() {
            let (bound, count) = (self.0[at].0, came(at));
            if count < rank {
                below = (bound, count);
                continue;
            }
            let (from, fewer) = below;
            // Of those above the last bound nothing more is known.
            let value = match bound.is_finite() && count > fewer {
                true => from + (bound - from) * (rank - fewer) / (count - fewer),
                false => from,
            };
            return value as f32;
        }
        f32::NAN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(counts: [u64; 4]) -> Buckets {
        let mut buckets = Buckets::default();
        for (bound, count) in [0.1, 1.0, 10.0, f64::INFINITY].into_iter().zip(counts) {
            buckets.add(bound, count);
        }
        buckets
    }

    #[test]
    fn quantiles_are_of_what_came_since() {
        let none = Buckets::default();
        assert!(none.spread_since(&none).p50.is_nan());
        let first = buckets([0, 100, 100, 100]);
        let spread = first.spread_since(&none);
        assert!((spread.p50 - 0.55).abs() < 1e-6, "{spread:?}");
        assert!((spread.p99 - 0.991).abs() < 1e-6, "{spread:?}");
        // Nothing new, then slow ones only, then some beyond the last bound.
        assert!(first.spread_since(&first).p99.is_nan());
        let spread = buckets([0, 100, 110, 110]).spread_since(&first);
        assert!((spread.p50 - 5.5).abs() < 1e-6, "{spread:?}");
        assert_eq!(buckets([0, 100, 100, 101]).spread_since(&first).p50, 10.0);
    }

    #[test]
    fn what_came_since_is_not_known_where_a_model_left() {
        let both = buckets([10, 100, 100, 100]);
        let one = buckets([0, 20, 40, 40]);
        assert!(!one.has_grown_from(&both));
        assert!(one.spread_since(&both).p50.is_nan());
        // Also where the other one was counted more often since.
        assert!(buckets([0, 200, 200, 200]).spread_since(&both).p99.is_nan());
        assert!(!Buckets::default().has_grown_from(&both));
        assert!(both.has_grown_from(&one) && both.has_grown_from(&both));
    }

    #[test]
    fn series_of_several_models_are_one() {
        let mut both = buckets([1, 2, 3, 4]);
        for (bound, count) in [(0.1, 1), (1.0, 1), (10.0, 1), (f64::INFINITY, 1)] {
            both.add(bound, count);
        }
        assert_eq!(both, buckets([2, 3, 4, 5]));
    }
}
