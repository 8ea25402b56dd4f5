//! One row of a peer's flags.

/// A flag of another router.
#[derive(Debug)]
pub(in crate::cli) struct Row {
    /// Its name and its other names, without dashes.
    pub(in crate::cli) names: &'static [&'static str],
    /// What it is here.
    pub(in crate::cli) here: Here,
}

/// What a flag of another router is here.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(test),
    allow(
        dead_code,
        reason = "what is different is told by the page, which a test compares"
    )
)]
pub(in crate::cli) enum Here {
    /// The flag of that name; what is different, if anything is.
    Served(&'static str),
    /// The flag of this name; what is different, if anything is.
    Renamed(&'static str, &'static str),
    /// The flag of this name with this value; what is different, if anything is.
    Means(&'static str, &'static str, &'static str),
    /// Taken, and changes nothing: why.
    Accepted(&'static str),
    /// Taken with these values, which change nothing; else refused, with what replaces it.
    Only(&'static [&'static str], &'static str),
    /// Refused, with what replaces it.
    Refused(&'static str),
}

/// A peer's rows: each the name of a flag, its other names, and what it is here.
macro_rules! rows {
    ($($name:literal $(or $other:literal)*: $Kind:ident($($what:expr),*);)*) => {
        &[$(Row { names: &[$name $(, $other)*], here: Here::$Kind($($what),*) }),*]
    };
}
pub(super) use rows;

impl Here {
    /// The flag is one of ours under its own name.
    pub(in crate::cli) fn is_served(self) -> bool {
        matches!(self, Self::Served(_))
    }

    /// What to do instead, if it is refused with these values.
    pub(in crate::cli) fn refuses(self, values: &[&str]) -> Option<&'static str> {
        match self {
            Self::Served(_) | Self::Renamed(..) | Self::Means(..) | Self::Accepted(_) => None,
            Self::Only(harmless, instead) => {
                let is_harmless = |value: &&str| harmless.iter().any(|other| same(value, other));
                let all = !values.is_empty() && values.iter().all(is_harmless);
                (!all).then_some(instead)
            }
            Self::Refused(instead) => Some(instead),
        }
    }
}

/// Equal as text, or as a number: `0` and `0.0` are one value.
fn same(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    one == other || number(one).is_some_and(|one| Some(one) == number(other))
}
