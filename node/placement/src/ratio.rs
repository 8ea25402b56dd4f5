//! A bounded number of the settings.

use std::fmt;

/// A finite number from 0 to a million: factors, prices, slacks.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Ratio(f64);

impl Ratio {
    /// The largest ratio: keeps every product of ratios and token counts far from infinity.
    pub const MAX: Self = Self(1e6);

    /// Checks `value`.
    /// Errors: not a number, below 0 or above 1,000,000.
    pub const fn new(value: f64) -> Result<Self, RatioError> {
        if value >= 0.0 && value <= Self::MAX.0 {
            // -0.0 passes the check and has other bits: the sum makes it 0.0.
            return Ok(Self(value + 0.0));
        }
        Err(RatioError)
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }

    pub(crate) const fn constant(value: f64) -> Self {
        assert!(
            value >= 0.0 && value <= Self::MAX.0,
            "constant outside the range"
        );
        Self(value)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0.to_bits()
    }
}

impl TryFrom<f64> for Ratio {
    type Error = RatioError;

    fn try_from(value: f64) -> Result<Self, RatioError> {
        Self::new(value)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number outside 0..=1,000,000, or not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RatioError;

impl fmt::Display for RatioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be a number from 0 to 1,000,000")
    }
}

impl std::error::Error for RatioError {}
