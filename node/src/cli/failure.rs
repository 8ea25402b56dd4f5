//! Why a command did not do what it was asked, and the exit code that says so.

use std::process::ExitCode;

use grapevine_bench::cli::BenchError;

use crate::config::ConfigError;

/// Why a command did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// The command line cannot be followed; nothing was done.
    #[error("{0}")]
    Usage(String),
    /// A replica or the system refused.
    #[error("{0}")]
    Refused(String),
    /// The replica wants another token.
    #[error("{0}")]
    Unauthorized(String),
    /// A replica cannot do it now; later, or another one, may.
    #[error("{0}")]
    Overloaded(String),
    /// No replica answers at the admin address; whether a change was made is not known.
    #[error("{0}")]
    Unreachable(String),
    /// Something is wrong with the cluster; standard output says what.
    #[error("the cluster is not well")]
    NotWell,
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Usage(match error {
            ConfigError::Unreadable { .. } => error.to_string(),
            ConfigError::Invalid(_) => {
                let indented = error.to_string().replace('\n', "\n  ");
                format!("the configuration cannot be used:\n  {indented}")
            }
        })
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        let text = error.to_string();
        match error {
            BenchError::Usage(_) => Self::Usage(text),
            BenchError::Unreachable(_) => Self::Unreachable(text),
            BenchError::Refused(_) | BenchError::Write(..) => Self::Refused(text),
        }
    }
}

impl Failure {
    /// The same, with what it is about.
    pub(super) fn about(self, what: &str) -> Self {
        let about = |text: String| format!("{what}: {text}");
        match self {
            Self::Usage(text) => Self::Usage(about(text)),
            Self::Refused(text) => Self::Refused(about(text)),
            Self::Unauthorized(text) => Self::Unauthorized(about(text)),
            Self::Overloaded(text) => Self::Overloaded(about(text)),
            Self::Unreachable(text) => Self::Unreachable(about(text)),
            Self::NotWell => Self::NotWell,
        }
    }

    /// The same of a change that was sent to a replica which gave no answer.
    pub(super) fn or_done(self) -> Self {
        match self {
            Self::Unreachable(text) => Self::Unreachable(format!(
                "{text}; what was asked for may have been done, or may still be carried out: `grapevine status` shows it, and \
                 it can be asked for again"
            )),
            other => other,
        }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Refused(_) | Self::Unauthorized(_) | Self::Overloaded(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
            Self::NotWell => 4,
        })
    }
}
