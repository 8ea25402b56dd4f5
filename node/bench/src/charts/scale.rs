//! Where a value lies on a plot, which values get a line of the grid, and how numbers are written. Pure.

/// A range of values and how they are spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// From 0 to this.
    Linear(f64),
    /// From 10 to the power of this to 10 to the power of that.
    Log(i32, i32),
}

impl Scale {
    /// From 0 to a round number not below any value.
    pub fn linear(values: impl Iterator<Item = f64>) -> Self {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let step = round_step(most / 4.0);
        Self::Linear(if most > 0.0 {
            (most / step).ceil() * step
        } else {
            1.0
        })
    }

    /// As [`Scale::linear`], with steps of at least 1.
    pub fn whole(values: impl Iterator<Item = f64>) -> Self {
        match Self::linear(values) {
            Self::Linear(most) => Self::Linear(most.ceil().max(4.0)),
            log => log,
        }
    }

    /// Whole decades around all values above 0, at least one.
    pub fn log(values: impl Iterator<Item = f64>) -> Self {
        let positive = values.filter(|value| value.is_finite() && *value > 0.0);
        let (least, most) = positive.fold((f64::MAX, 0.0_f64), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        if most == 0.0 {
            return Self::Log(0, 1);
        }
        let from = least.log10().floor() as i32;
        Self::Log(from, (most.log10().ceil() as i32).max(from + 1))
    }

    /// From 0, at the bottom, to 1; values beyond stick to the edge.
    pub fn share(self, value: f64) -> f64 {
        let share = match self {
            Self::Linear(most) => value / most,
            Self::Log(from, to) => {
                (value.max(1e-9).log10() - f64::from(from)) / f64::from(to - from)
            }
        };
        share.clamp(0.0, 1.0)
    }

    /// Values with a line and a label, by size.
    pub fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear(most) => {
                let step = round_step(most / 4.0);
                let count = (most / step).round() as u32;
                (0..=count).map(|n| f64::from(n) * step).collect()
            }
            Self::Log(from, to) => (from..=to).map(|power| 10_f64.powi(power)).collect(),
        }
    }
}

/// The least of 1, 2, 5, 10, 20, ... and their tenths that is not below `value`.
fn round_step(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let unit = 10_f64.powi(value.log10().floor() as i32);
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * unit);
    // A small tolerance: 0.3 / 0.1 is not 3.
    let enough = steps.into_iter().find(|step| *step >= value * (1.0 - 1e-9));
    enough.unwrap_or(10.0 * unit)
}

/// Instants with a label on an axis of time, at most 9.
pub fn time_ticks(until_ms: u64) -> Vec<u64> {
    const STEPS_S: [u64; 14] = [
        1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200,
    ];
    let fits = |step: &&u64| until_ms / (**step * 1_000) <= 8;
    let step = STEPS_S.iter().find(fits).copied();
    let step_ms = 1_000 * step.unwrap_or_else(|| (until_ms / 8_000).max(1));
    (0..=until_ms / step_ms).map(|n| n * step_ms).collect()
}

/// `1:05`, `1:02:03`; fractions of a second are cut off.
pub fn clock(ms: u64) -> String {
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// As [`clock`], with tenths.
pub fn clock_tenths(ms: u64) -> String {
    format!("{}.{}", clock(ms), ms / 100 % 10)
}

/// At most four characters or so: `0`, `0.05`, `12`, `1.2k`, `3M`.
pub fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

/// As [`short`]; a dash for an unknown value.
pub fn known(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), short)
}

/// A share of 0 to 1 in percent, to a tenth; a dash for an unknown value.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.1}", 100.0 * share))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        let linear = |values: &[f64]| Scale::linear(values.iter().copied());
        assert_eq!(linear(&[3.0, 87.0]), Scale::Linear(100.0));
        assert_eq!(linear(&[]), Scale::Linear(1.0));
        assert_eq!(linear(&[0.0, f64::NAN]), Scale::Linear(1.0));
        assert_eq!(Scale::Linear(100.0).ticks(), [0.0, 50.0, 100.0]);
        assert_eq!(Scale::Linear(4.0).ticks(), [0.0, 1.0, 2.0, 3.0, 4.0]);
        let whole = |values: &[f64]| Scale::whole(values.iter().copied());
        assert_eq!(whole(&[1.0, 2.0]).ticks(), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(whole(&[87.0]), Scale::Linear(100.0));
        let log = |values: &[f64]| Scale::log(values.iter().copied());
        assert_eq!(log(&[3.0, 250.0]), Scale::Log(0, 3));
        assert_eq!(log(&[10.0]), Scale::Log(1, 2));
        assert_eq!(log(&[0.0]), Scale::Log(0, 1));
        assert_eq!(Scale::Log(0, 2).ticks(), [1.0, 10.0, 100.0]);
        assert_eq!(Scale::Log(0, 2).share(10.0), 0.5);
        assert_eq!(Scale::Log(0, 2).share(0.0), 0.0);
    }

    #[test]
    fn times_and_numbers() {
        assert_eq!(time_ticks(10_000).last(), Some(&10_000));
        assert_eq!(time_ticks(0), [0]);
        assert_eq!(time_ticks(3_600_000)[1], 600_000);
        assert_eq!(
            (clock(65_999), clock_tenths(3_723_450)),
            ("1:05".into(), "1:02:03.4".into())
        );
        let written = [0.0, 0.05, 1.0, 12.34, 250.0, 9_999.0, 12_345.0, 3e6].map(short);
        assert_eq!(
            written,
            ["0", "0.05", "1", "12.3", "250", "9999", "12.3k", "3M"]
        );
    }

    proptest! {
        #[test]
        fn every_value_is_on_the_plot(values in proptest::collection::vec(1e-6..1e12f64, 1..50), until in 0..400_000_000u64) {
            for scale in [Scale::linear(values.iter().copied()), Scale::log(values.iter().copied())] {
                let ticks = scale.ticks();
                prop_assert!((2..=20).contains(&ticks.len()), "{:?} {:?}", scale, ticks);
                let least = if let Scale::Linear(_) = scale { 0.0 } else { ticks[0] };
                for value in &values {
                    prop_assert!(*value >= least * (1.0 - 1e-9) && *value <= ticks[ticks.len() - 1] * (1.0 + 1e-9));
                }
            }
            prop_assert!(time_ticks(until).len() <= 9);
        }
    }
}
