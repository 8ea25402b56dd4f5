//! Weight of a worker: its share of keys and load relative to the others.

use std::fmt;

/// Share of a worker, in thousandths: 0.001 to 100, 1.0 is an ordinary worker.
///
/// An integer, so that digests and rings do not depend on how a decimal was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    /// An ordinary worker: 1.0.
    pub const ONE: Self = Self(1_000);
    /// The smallest weight, 0.001. To take a worker out, drain or remove it: zero is refused.
    pub const MIN: Self = Self(1);
    /// The largest weight, 100.0: it bounds the ring's memory.
    pub const MAX: Self = Self(100_000);

    /// Weight of `thousandths` / 1,000.
    /// Errors: outside 1..=100,000.
    pub const fn from_thousandths(thousandths: u32) -> Result<Self, WeightError> {
        if thousandths < Self::MIN.0 || thousandths > Self::MAX.0 {
            return Err(WeightError);
        }
        Ok(Self(thousandths))
    }

    /// The weight in thousandths, 1..=100,000.
    pub const fn thousandths(self) -> u32 {
        self.0
    }

    /// The weight as a number, 0.001..=100.0.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1_000.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

impl TryFrom<f64> for Weight {
    type Error = WeightError;

    /// Rounds to the nearest thousandth.
    fn try_from(value: f64) -> Result<Self, WeightError> {
        let thousandths = (value * 1_000.0).round();
        if !(f64::from(Self::MIN.0)..=f64::from(Self::MAX.0)).contains(&thousandths) {
            return Err(WeightError);
        }
        // In range: a small whole number.
        Ok(Self(thousandths as u32))
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_f64().fmt(f)
    }
}

/// A weight outside 0.001..=100, or not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightError;

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("weight must be 0.001 to 100; drain or remove a worker instead of weight 0")
    }
}

impl std::error::Error for WeightError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_useful_weights_are_accepted() {
        let table = [
            (1.0, Some(1_000)),
            (0.001, Some(1)),
            (0.0014, Some(1)),
            (2.5, Some(2_500)),
            (100.0, Some(100_000)),
            (0.0, None),
            (0.0004, None),
            (-1.0, None),
            (100.001, None),
            (f64::INFINITY, None),
            (f64::NAN, None),
        ];
        for (value, thousandths) in table {
            assert_eq!(
                Weight::try_from(value).ok().map(Weight::thousandths),
                thousandths,
                "{value}"
            );
        }
        assert_eq!(Weight::from_thousandths(0), Err(WeightError));
        assert_eq!(Weight::from_thousandths(100_001), Err(WeightError));
        assert_eq!(
            Weight::from_thousandths(2_500).map(|weight| weight.to_string()),
            Ok("2.5".to_owned())
        );
    }
}
