//! Which half of a request a worker takes.

use std::str::FromStr;

use super::WorkerError;

/// Which half of a request a worker takes when prefill and decode are separated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Whole requests.
    #[default]
    Any,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
    /// What only a later release knows, by its code on the wire: takes no requests here.
    Later(u8),
}

impl Role {
    /// The roles that this release knows.
    pub const ALL: [Self; 3] = [Self::Any, Self::Prefill, Self::Decode];

    /// Its name in settings, answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Later(_) => "later",
        }
    }
}

impl FromStr for Role {
    type Err = WorkerError;

    /// Errors: [`WorkerError::Role`] for anything but the names of [`Role::ALL`].
    fn from_str(text: &str) -> Result<Self, WorkerError> {
        let named = Self::ALL.into_iter().find(|role| role.as_str() == text);
        named.ok_or_else(|| WorkerError::Role(text.chars().take(32).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        for bad in ["", "both", "Prefill", "later"] {
            let refused = bad.parse::<Role>();
            assert_eq!(refused, Err(WorkerError::Role(bad.into())), "{bad:?}");
        }
    }
}
