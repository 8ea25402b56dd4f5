//! Decides whether a series grows: memory and open files of a process that runs for long.
//!
//! The slope is the median of the slopes between all pairs of points (Theil 1950, Sen 1968): a few outliers, a
//! load peak at either end, do not tilt it. Its 95 % interval is Sen's, from the variance of Kendall's count;
//! that variance assumes independent points, so the series is first cut into equal stretches of time, and the
//! median of each stretch is a point. Pure.

use super::record::{ReplicaSample, Sample};

/// Most points between which slopes are taken; each is the median of a stretch.
const POINTS_MAX: usize = 120;
/// With fewer points there is no verdict.
const POINTS_MIN: usize = 10;
const HOUR_MS: f64 = 3_600_000.0;
/// 97.5 % of a normal distribution lie below so many standard deviations.
const Z: f64 = 1.96;

/// How a series moves, in its own unit per hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Trend {
    pub(crate) per_hour: f64,
    /// With 95 % confidence the slope is not below this.
    pub(crate) least: f64,
    /// And not above this.
    pub(crate) most: f64,
    /// Time that the points span.
    pub(crate) span_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It grows no faster than the limit.
    Flat,
    /// It grows faster.
    Growing,
    /// The run was too short, or the noise too large, to tell.
    Unclear,
}

impl Trend {
    /// Against a limit in the series' unit per hour.
    pub(crate) fn against(&self, limit: f64) -> Verdict {
        if self.most <= limit {
            Verdict::Flat
        } else if self.least > limit {
            Verdict::Growing
        } else {
            Verdict::Unclear
        }
    }
}

/// The trend of `(ms, value)` by time, without those before `warm_up_ms`; `None` when too few are left.
pub(crate) fn trend(points: &[(u64, f64)], warm_up_ms: u64) -> Option<Trend> {
    let warm = points.partition_point(|(at, _)| *at < warm_up_ms);
    let points = medians(&points[warm..]);
    if points.len() < POINTS_MIN {
        return None;
    }
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (index, (at, value)) in points.iter().enumerate() {
        for (later, other) in &points[index + 1..] {
            slopes.push((other - value) / (later - at) * HOUR_MS);
        }
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let n = points.len() as f64;
    // Kendall's variance of the number of concordant pairs, without ties.
    let spread = Z * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let middle = slopes.len() as f64 / 2.0;
    let last = slopes.len() - 1;
    let rank = |at: f64| (at.max(0.0) as usize).min(last);
    Some(Trend {
        per_hour: median(&slopes),
        least: slopes[rank((middle - spread / 2.0).floor())],
        most: slopes[rank((middle + spread / 2.0).ceil())],
        span_ms: (points[points.len() - 1].0 - points[0].0) as u64,
    })
}

/// One figure of the longest life of a replica, as `(ms since that life began, value)`. Another process, or one
/// whose CPU time has fallen, is another life: its memory says nothing about the one before.
pub(crate) fn longest_life(
    samples: &[Sample],
    replica: &str,
    figure: fn(&ReplicaSample) -> Option<f64>,
) -> Vec<(u64, f64)> {
    let mut lives: Vec<Vec<(u64, f64)>> = vec![Vec::new()];
    let mut before: Option<(Option<u32>, Option<f64>)> = None;
    for sample in samples {
        let Some(seen) = sample.replicas.iter().find(|one| one.name == replica) else {
            continue;
        };
        let Some(value) = figure(seen) else {
            continue;
        };
        let reborn = before.is_some_and(|(pid, cpu_s)| pid != seen.pid || cpu_s > seen.cpu_s);
        if reborn {
            lives.push(Vec::new());
        }
        before = Some((seen.pid, seen.cpu_s));
        if let Some(life) = lives.last_mut() {
            life.push((sample.at_ms, value));
        }
    }
    let span = |life: &Vec<(u64, f64)>| match (life.first(), life.last()) {
        (Some((first, _)), Some((last, _))) => last - first,
        _ => 0,
    };
    let mut longest = lives.into_iter().max_by_key(span).unwrap_or_default();
    let born = longest.first().map_or(0, |(at, _)| *at);
    for (at, _) in &mut longest {
        *at -= born;
    }
    longest
}

/// At most [`POINTS_MAX`] stretches of equal length: the middle of each stretch's times, and its median.
fn medians(points: &[(u64, f64)]) -> Vec<(f64, f64)> {
    let (Some((first, _)), Some((last, _))) = (points.first(), points.last()) else {
        return Vec::new();
    };
    let length = (last - first).div_ceil(POINTS_MAX as u64).max(1);
    let same = |a: &(u64, f64), b: &(u64, f64)| (a.0 - first) / length == (b.0 - first) / length;
    let middle = |stretch: &[(u64, f64)]| {
        let mut values: Vec<f64> = stretch.iter().map(|(_, value)| *value).collect();
        values.sort_unstable_by(f64::total_cmp);
        let at = (stretch[0].0 + stretch[stretch.len() - 1].0) as f64 / 2.0;
        (at, median(&values))
    };
    points.chunk_by(same).map(middle).collect()
}

/// The median of sorted values; at least one.
fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[half]
    } else {
        f64::midpoint(sorted[half - 1], sorted[half])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const MINUTE: u64 = 60_000;

    /// A point a second for so many minutes.
    fn series(minutes: u64, value: impl Fn(f64) -> f64) -> Vec<(u64, f64)> {
        let at = (0..minutes * 60).map(|second| second * 1_000);
        at.map(|at| (at, value(at as f64 / HOUR_MS))).collect()
    }

    #[test]
    fn verdicts() {
        let noise = |at: f64| 5.0 * (at * 1_234.567).sin();
        for (name, points, verdict) in [
            ("flat", series(60, |_| 80.0), Verdict::Flat),
            (
                "flat and noisy",
                series(60, |h| 80.0 + noise(h)),
                Verdict::Flat,
            ),
            ("falling", series(60, |h| 80.0 - 30.0 * h), Verdict::Flat),
            ("a leak", series(60, |h| 80.0 + 20.0 * h), Verdict::Growing),
            (
                "a noisy leak",
                series(60, |h| 80.0 + 20.0 * h + noise(h)),
                Verdict::Growing,
            ),
            (
                "a leak by steps",
                series(60, |h| (20.0 * h).floor()),
                Verdict::Growing,
            ),
            (
                "a peak at the end",
                series(60, |h| if h > 0.97 { 500.0 } else { 80.0 }),
                Verdict::Flat,
            ),
            (
                "two minutes of noise",
                series(2, |h| 80.0 + 100.0 * noise(h * 7.0)),
                Verdict::Unclear,
            ),
        ] {
            let trend = trend(&points, 0).expect("enough points");
            assert_eq!(trend.against(4.0), verdict, "{name}: {trend:?}");
        }
    }

    #[test]
    fn growth_while_warming_up_is_not_a_leak() {
        let points = series(60, |h| 80.0 + 100.0 * h.min(0.5));
        let whole = trend(&points, 0).expect("enough");
        let warm = trend(&points, 30 * MINUTE).expect("enough");
        assert!(whole.most > 0.0 && warm.most == 0.0, "{whole:?} {warm:?}");
        assert_eq!(warm.span_ms / MINUTE, 29);
    }

    #[test]
    fn too_few_points_say_nothing() {
        assert_eq!(trend(&[], 0), None);
        assert_eq!(trend(&series(60, |_| 1.0), 60 * MINUTE), None);
        assert_eq!(trend(&[(5, 1.0); 50], 0), None, "all at one instant");
    }

    #[test]
    fn the_interval_holds_the_truth_about_as_often_as_it_says() {
        let mut random = StdRng::seed_from_u64(3);
        let mut inside = 0;
        for _ in 0..200 {
            let points: Vec<(u64, f64)> = series(30, |h| 7.0 * h)
                .into_iter()
                .map(|(at, value)| (at, value + random.random_range(-20.0..20.0)))
                .collect();
            let trend = trend(&points, 0).expect("enough");
            inside += u32::from(trend.least <= 7.0 && 7.0 <= trend.most);
        }
        assert!((180..=200).contains(&inside), "{inside} of 200");
    }

    #[test]
    fn another_process_is_another_life() {
        use super::super::record::ReplicaState;
        let sample = |at_ms: u64, pid: u32, cpu_s: f64, rss: u64| Sample {
            at_ms,
            replicas: vec![ReplicaSample {
                name: "r1".into(),
                state: ReplicaState::Up,
                seen: None,
                pid: Some(pid).filter(|pid| *pid > 0),
                rss_bytes: Some(rss).filter(|rss| *rss > 0),
                open_files: None,
                cpu_s: Some(cpu_s),
            }],
            agreement: None,
            agreement_idle: None,
        };
        let rss = |one: &ReplicaSample| one.rss_bytes.map(|bytes| bytes as f64);
        let restarted = [
            sample(0, 7, 1.0, 10),
            sample(1_000, 7, 2.0, 20),
            sample(2_000, 7, 2.0, 0),
            sample(3_000, 8, 0.1, 5),
            sample(4_000, 8, 0.2, 6),
            sample(9_000, 8, 0.3, 7),
        ];
        let life = [(0, 5.0), (1_000, 6.0), (6_000, 7.0)];
        assert_eq!(longest_life(&restarted, "r1", rss), life);
        assert_eq!(longest_life(&restarted, "r2", rss), []);
        let in_a_container = [
            sample(0, 0, 1.0, 10),
            sample(500, 0, 0.1, 20),
            sample(2_000, 0, 0.2, 30),
        ];
        assert_eq!(
            longest_life(&in_a_container, "r1", rss),
            [(0, 20.0), (1_500, 30.0)]
        );
    }

    proptest! {
        #[test]
        fn a_straight_line_has_its_own_slope(slope in -1_000.0..1_000.0f64, base in -1e6..1e6f64, minutes in 1..90u64) {
            let trend = trend(&series(minutes, |h| base + slope * h), 0).expect("enough");
            for found in [trend.per_hour, trend.least, trend.most] {
                prop_assert!((found - slope).abs() < 1e-3 + slope.abs() * 1e-6, "{:?}", trend);
            }
        }

        #[test]
        fn the_slope_lies_in_its_interval(values in proptest::collection::vec(-1e3..1e3f64, 10..400)) {
            let points: Vec<(u64, f64)> = (0..).map(|n| n * 700).zip(values).collect();
            if let Some(trend) = trend(&points, 0) {
                prop_assert!(trend.least <= trend.per_hour && trend.per_hour <= trend.most);
            }
        }
    }
}
