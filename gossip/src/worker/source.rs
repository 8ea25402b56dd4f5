//! The sources that declare workers.

use std::fmt;
use std::sync::Arc;

use super::WorkerError;

/// Greatest length of a discovery provider's name in bytes.
pub const PROVIDER_BYTES_MAX: usize = 64;

/// A source that declares that a worker exists. Each source speaks for itself and retracts only what it declared.
///
/// The order is the precedence of descriptions: where several sources describe one worker, the
/// smallest source is believed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The admin API, one for the cluster. Its removal masks all other sources.
    Admin,
    /// The configuration files of all replicas together.
    Config,
    /// A discovery provider (see [`Source::provider`]).
    Provider(ProviderName),
    /// Facts that a replica learned by asking the worker. Never makes a worker present.
    Learned,
    /// That the worker's process started at a time, its epoch, which is the entry's stamp. Never makes
    /// a worker present.
    Restart,
    /// What is known of a worker beyond its description, as small texts by name (see
    /// [`Labels`](super::Labels)). Never makes a worker present.
    Labels,
    /// That an administrator drains the worker, whatever the others declare of its state. Never makes a worker present.
    Drain,
    /// A source that a later release knows. Carried and counted like any other, so that replicas of both
    /// releases hold the same map; never makes a worker present here.
    Later(LaterSource),
}

/// A source of a later release: its code on the wire, and its name where it has one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaterSource {
    code: u8,
    name: Arc<str>,
}

impl LaterSource {
    /// Its code on the wire.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Its name; empty where it has none.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Name of a discovery provider: 1 to 64 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderName(Arc<str>);

impl Source {
    /// The source of one discovery provider.
    /// Errors: the name is not 1 to 64 visible ASCII characters.
    pub fn provider(name: &str) -> Result<Self, WorkerError> {
        let is_valid = (1..=PROVIDER_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_graphic());
        if is_valid {
            Ok(Self::Provider(ProviderName(name.into())))
        } else {
            Err(WorkerError::Provider(
                name.chars().take(PROVIDER_BYTES_MAX).collect(),
            ))
        }
    }
}

/// First code of the sources that this release does not know.
pub(crate) const LATER_SOURCES: u8 = 7;

impl Source {
    /// A source of a later release, by its code on the wire.
    /// Errors: the name is neither empty nor 1 to 64 visible ASCII characters.
    pub(crate) fn later(code: u8, name: &str) -> Result<Self, WorkerError> {
        debug_assert!(code >= LATER_SOURCES, "this release knows it");
        if !name.is_empty() {
            Self::provider(name)?;
        }
        let name = name.into();
        Ok(Self::Later(LaterSource { code, name }))
    }

    /// A nameless source by its code, as a release holds it that does not know the code, for tests of such releases.
    #[cfg(test)]
    pub(crate) fn unknown(code: u8) -> Self {
        let name = "".into();
        Self::Later(LaterSource { code, name })
    }
}

impl ProviderName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admin => f.write_str("admin"),
            Self::Config => f.write_str("config"),
            Self::Provider(name) => f.write_str(name.as_str()),
            Self::Learned => f.write_str("learned"),
            Self::Restart => f.write_str("restart"),
            Self::Labels => f.write_str("labels"),
            Self::Drain => f.write_str("drain"),
            Self::Later(later) => write!(f, "source {} of a later release", later.code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_names_are_bounded() {
        assert_eq!(Source::provider("dns").expect("valid").to_string(), "dns");
        for bad in ["", "a b", "ä", &"p".repeat(PROVIDER_BYTES_MAX + 1)] {
            assert!(Source::provider(bad).is_err(), "{bad:?}");
        }
    }
}
