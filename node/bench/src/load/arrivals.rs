//! When requests are due. Pure.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// This many clients, each with one request at a time.
    Closed {
        /// At least 1.
        clients: usize,
    },
    /// A rate that does not depend on the answers.
    Open {
        /// Sessions per second, above 0.
        rate: f64,
        /// How they are spread.
        pacing: Pacing,
        /// Sessions in flight above which further ones are shed.
        in_flight_max: usize,
    },
}

/// How arrivals of an open loop are spread over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Pacing {
    /// As of many people who do not know of each other
    #[default]
    Poisson,
    /// One after the other at equal distances
    Even,
}

impl Pacing {
    /// Times from each arrival to the next, without end.
    pub(super) fn times(self, rate: f64, seed: u64) -> impl Iterator<Item = Duration> {
        let mut random = StdRng::seed_from_u64(seed);
        let mean = 1.0 / rate.max(1e-6);
        std::iter::repeat_with(move || match self {
            Self::Poisson => exponential(&mut random, mean),
            Self::Even => Duration::from_secs_f64(mean),
        })
    }

    /// As it is called on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Even => "even",
        }
    }
}

/// Time to the next arrival of a Poisson process; capped at 1,000 times the mean.
fn exponential(random: &mut StdRng, mean: f64) -> Duration {
    let draw: f64 = random.random();
    Duration::from_secs_f64((-(1.0 - draw).ln() * mean).min(1_000.0 * mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_asked_for() {
        for pacing in [Pacing::Poisson, Pacing::Even] {
            let total: Duration = pacing.times(100.0, 7).take(10_000).sum();
            assert!((total.as_secs_f64() - 100.0).abs() < 4.0, "{total:?}");
        }
    }

    #[test]
    fn poisson_arrivals_scatter_and_even_ones_do_not() {
        let shorter = |pacing: Pacing| {
            let times = pacing.times(10.0, 7).take(10_000);
            times
                .filter(|time| *time < Duration::from_millis(50))
                .count()
        };
        // 1 - e^-0.5 of the intervals are below half the mean.
        assert!(
            (3_800..4_070).contains(&shorter(Pacing::Poisson)),
            "{}",
            shorter(Pacing::Poisson)
        );
        assert_eq!(shorter(Pacing::Even), 0);
    }
}
