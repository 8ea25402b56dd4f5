//! Medians, and how sure they are. Pure: the draws come from a seed.
//!
//! The range is the percentile bootstrap: the median of as many values, drawn again with replacement, 10,000 times; the
//! middle 95 % of these medians. It asks nothing of the distribution of the values but that rounds do not depend on each
//! other.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Values below which no range is given: of fewer, the bootstrap is far too sure of itself.
pub(crate) const VALUES_MIN: usize = 6;
const DRAWS: usize = 10_000;

/// The middle value, or the mean of the two in the middle; `None` of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    middle(&sorted)
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        _ if sorted.is_empty() => None,
        1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// From where to where the median lies, with 95 % confidence; `None` of fewer than [`VALUES_MIN`] values.
pub(crate) fn median_range(values: &[f64], seed: u64) -> Option<(f64, f64)> {
    if values.len() < VALUES_MIN {
        return None;
    }
    let mut random = StdRng::seed_from_u64(seed);
    let mut drawn = vec![0.0; values.len()];
    let mut medians: Vec<f64> = std::iter::repeat_with(|| {
        drawn.fill_with(|| values[random.random_range(0..values.len())]);
        drawn.sort_by(f64::total_cmp);
        middle(&drawn).expect("as many as the values")
    })
    .take(DRAWS)
    .collect();
    medians.sort_by(f64::total_cmp);
    Some((medians[DRAWS / 40], medians[DRAWS - 1 - DRAWS / 40]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median_range(&[1.0; 5], 1), None);
        assert_eq!(median_range(&[2.0; 6], 1), Some((2.0, 2.0)));
    }

    /// Of many sets of rounds whose true median is 1, the range must hold it in about 95 of 100.
    #[test]
    fn the_range_holds_the_true_median_as_often_as_it_says() {
        let mut random = StdRng::seed_from_u64(11);
        let sets = 300;
        let hit = (0..sets).filter(|set| {
            // A skewed distribution, as ratios have: the exponential of a sum of three uniform draws.
            let mut ratio = || {
                let sum: f64 = (0..3).map(|_| random.random::<f64>() - 0.5).sum();
                (0.2 * sum).exp()
            };
            let rounds: Vec<f64> = (0..10).map(|_| ratio()).collect();
            let (low, high) = median_range(&rounds, *set).expect("10 rounds");
            (low..=high).contains(&1.0)
        });
        let share = hit.count() as f64 / sets as f64;
        assert!((0.90..=0.99).contains(&share), "{share}");
    }
}
