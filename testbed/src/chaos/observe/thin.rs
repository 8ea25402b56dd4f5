//! Keeps the number of samples bounded in a run of any length. Pure.
//!
//! Samples around faults matter most, so those far from any mark are dropped first.

use super::super::record::{Mark, Sample};

/// Samples that are kept: one each 0.5 s for 50 minutes.
const SAMPLES_MAX: usize = 6_000;
/// Samples this close to the beginning or the end of a mark are near it.
const NEAR_MS: u64 = 10_000;
/// Greatest spacing far from marks; above it, samples near marks are dropped as well.
const FAR_MS_MAX: u64 = 10_000;
/// Spacing to begin with.
const FIRST_MS: u64 = 1_000;

/// How far apart samples are kept.
#[derive(Debug, Default)]
pub(super) struct Thinner {
    near_ms: u64,
    far_ms: u64,
    /// Samples that were dropped.
    pub(super) dropped: u64,
}

impl Thinner {
    /// Once there are too many `samples`, drops a quarter of them, so that this is rare.
    pub(super) fn bound(&mut self, samples: &mut Vec<Sample>, marks: &[Mark]) {
        if samples.len() <= SAMPLES_MAX {
            return;
        }
        let before = samples.len();
        self.pass(samples, marks);
        while samples.len() > SAMPLES_MAX * 3 / 4 {
            if self.far_ms < FAR_MS_MAX {
                self.far_ms = (2 * self.far_ms).clamp(FIRST_MS, FAR_MS_MAX);
            } else {
                self.near_ms = (2 * self.near_ms).max(FIRST_MS);
                self.far_ms = self.far_ms.max(self.near_ms);
            }
            self.pass(samples, marks);
        }
        self.dropped += (before - samples.len()) as u64;
    }

    /// Drops each sample that follows the one kept before it too closely; the latest stays.
    fn pass(&self, samples: &mut Vec<Sample>, marks: &[Mark]) {
        let mut edges: Vec<u64> = marks
            .iter()
            .flat_map(|mark| [Some(mark.at_ms), mark.until_ms])
            .flatten()
            .collect();
        edges.sort_unstable();
        let is_near = |at_ms: u64| {
            let after = edges.partition_point(|edge| *edge + NEAR_MS < at_ms);
            edges
                .get(after)
                .is_some_and(|edge| *edge <= at_ms + NEAR_MS)
        };
        let last = samples.last().map(|sample| sample.at_ms);
        let mut kept: Option<u64> = None;
        samples.retain(|sample| {
            let at_ms = sample.at_ms;
            let spacing = if is_near(at_ms) {
                self.near_ms
            } else {
                self.far_ms
            };
            let keep = Some(at_ms) == last || kept.is_none_or(|kept| at_ms >= kept + spacing);
            if keep {
                kept = Some(at_ms);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::record::MarkKind;
    use super::*;

    fn sample(at_ms: u64) -> Sample {
        Sample {
            at_ms,
            replicas: Vec::new(),
            agreement: None,
            agreement_idle: None,
        }
    }

    fn mark(at_ms: u64, until_ms: Option<u64>) -> Mark {
        Mark {
            at_ms,
            until_ms,
            kind: MarkKind::Fault,
            node: None,
            text: String::new(),
        }
    }

    /// All samples of so many seconds, two a second, added one after the other.
    fn watch(seconds: u64, marks: &[Mark]) -> (Vec<Sample>, Thinner) {
        let (mut samples, mut thinner) = (Vec::new(), Thinner::default());
        for half in 0..2 * seconds {
            samples.push(sample(500 * half));
            thinner.bound(&mut samples, marks);
            assert!(samples.len() <= SAMPLES_MAX);
        }
        (samples, thinner)
    }

    #[test]
    fn an_hour_keeps_full_resolution_around_marks() {
        let marks = [mark(600_000, Some(660_000))];
        let (samples, thinner) = watch(3_600, &marks);
        let between = |from: u64, until: u64| {
            let inside = |sample: &&Sample| (from..until).contains(&sample.at_ms);
            samples.iter().filter(inside).count()
        };
        assert_eq!(between(590_000, 610_000), 40);
        assert_eq!(between(650_000, 670_000), 40);
        assert!(between(1_000_000, 1_020_000) <= 20);
        assert_eq!(samples.len() as u64 + thinner.dropped, 7_200);
        assert_eq!(samples.last().map(|sample| sample.at_ms), Some(3_599_500));
    }

    #[test]
    fn eight_hours_full_of_marks_stay_bounded_and_even() {
        let marks: Vec<Mark> = (0..2_000).map(|n| mark(n * 14_400, None)).collect();
        let (samples, _) = watch(8 * 3_600, &marks);
        assert!(samples.len() > SAMPLES_MAX / 4, "{}", samples.len());
        let gap = |pair: &[Sample]| pair[1].at_ms - pair[0].at_ms;
        let widest = samples.windows(2).map(gap).max().expect("many");
        assert!(widest <= 20_000, "{widest}");
    }
}
