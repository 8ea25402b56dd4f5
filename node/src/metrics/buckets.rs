//! Bounds of histograms, in seconds, where powers of two are too coarse or too few.

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::TracedHistogram;

/// Times to a first token: steps of a quarter between 20 ms and 2 s, where the promises of services are, and up to 10
/// minutes for long prompts that wait.
const FIRST_TOKEN: [f64; 33] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.025, 0.032, 0.04, 0.05, 0.063, 0.08, 0.1, 0.125, 0.16, 0.2,
    0.25, 0.32, 0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0,
    600.0,
];
/// The same for each worker: few, because workers are many.
const FIRST_TOKEN_OF_WORKER: [f64; 8] = [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0];
/// Whole requests: up to half an hour.
const REQUEST: [f64; 22] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 900.0, 1_200.0, 1_800.0,
];
/// Time between two tokens of a stream: fine where engines are, 5 to 100 ms.
pub(super) const INTER_TOKEN: [f64; 22] = [
    0.000_5, 0.001, 0.002, 0.003, 0.005, 0.007_5, 0.01, 0.012_5, 0.015, 0.02, 0.025, 0.03, 0.04,
    0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0,
];

/// Times to a first token.
pub fn first_token() -> TracedHistogram {
    TracedHistogram::new(FIRST_TOKEN)
}

/// Times to a first token of one worker.
pub fn first_token_of_worker() -> Histogram {
    Histogram::new(FIRST_TOKEN_OF_WORKER)
}

/// Times of whole requests.
pub fn request() -> TracedHistogram {
    TracedHistogram::new(REQUEST)
}

/// Times for each token of one stream.
pub fn per_token() -> TracedHistogram {
    TracedHistogram::new(INTER_TOKEN)
}

/// Longest pauses of streams: from 1 ms on, each bound twice the one before.
pub fn pause() -> TracedHistogram {
    TracedHistogram::new(exponential_buckets(0.001, 2.0, 18))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bounds out of order would make a histogram count into the wrong ones.
    #[test]
    fn bounds_rise() {
        for bounds in [
            &FIRST_TOKEN[..],
            &FIRST_TOKEN_OF_WORKER,
            &REQUEST,
            &INTER_TOKEN,
        ] {
            assert!(
                bounds.windows(2).all(|pair| pair[0] < pair[1]),
                "{bounds:?}"
            );
        }
    }

    #[test]
    fn what_services_promise_is_told_apart() {
        let fine = FIRST_TOKEN.windows(2);
        let mut fine = fine.filter(|pair| pair[0] >= 0.02 && pair[1] <= 2.0);
        assert!(fine.all(|pair| pair[1] / pair[0] <= 1.3));
        assert_eq!(REQUEST.last(), Some(&1_800.0), "half an hour");
    }
}
