//! Why pods cannot be seen now, in words that say what to do.

use std::time::Duration;

use kube::core::Status;

use super::settings::{Namespace, Scope};
use crate::picture::PictureError;

#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Neither a kubeconfig nor a service account that can be used.
    #[error(
        "no credential for the API server: {0}; run in a pod with a service account, or name a kubeconfig"
    )]
    Credential(String),
    #[error("{settings}")]
    Settings {
        #[from]
        settings: super::SettingsError,
    },
    /// 403.
    #[error(
        "the API server does not allow to {verb} pods {place}: give this replica's service account a {role} with the \
         verbs get, list and watch on pods there; the server says: {says}"
    )]
    Forbidden {
        verb: &'static str,
        place: String,
        role: &'static str,
        says: String,
    },
    /// 401.
    #[error(
        "the API server does not accept the credential (401): check that the service account or the kubeconfig's user \
         still exists; its token is read again before each attempt"
    )]
    Unauthorized,
    /// 429.
    #[error("the API server has too many requests (429); asking again after {0:?}")]
    TooMany(Duration),
    /// Another refusal.
    #[error("the API server refuses to {verb} pods {place} ({code}): {says}")]
    Refused {
        verb: &'static str,
        place: String,
        code: u16,
        says: String,
    },
    /// The revision to go on from is refused again and again.
    #[error(
        "the API server forgets revisions faster than pods {0} can be listed and watched (410)"
    )]
    Expired(String),
    /// No answer, or no end of a watch.
    #[error(
        "the API server was silent for {silent:?} when asked to {verb} pods {place}: check the network between this \
         replica and the server"
    )]
    Silent {
        verb: &'static str,
        place: String,
        silent: Duration,
    },
    /// No connection, or a broken one.
    #[error("the API server cannot be reached to {verb} pods {place}: {error}")]
    Unreachable {
        verb: &'static str,
        place: String,
        error: String,
    },
    #[error("{0}")]
    Picture(#[from] PictureError),
}

impl Failure {
    pub(super) fn of(verb: &'static str, scope: &Scope, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::refused(verb, scope, status),
            other => Self::Unreachable {
                verb,
                place: scope.place(),
                error: chain(other),
            },
        }
    }

    pub(super) fn refused(verb: &'static str, scope: &Scope, status: &Status) -> Self {
        let place = scope.place();
        let says = status.message.clone();
        match status.code {
            401 => Self::Unauthorized,
            403 => Self::Forbidden {
                verb,
                place,
                role: match scope.namespace {
                    Namespace::All => "ClusterRole",
                    Namespace::Own | Namespace::Named(_) => "Role",
                },
                says,
            },
            429 => {
                let details = status.details.as_ref();
                let seconds = details.map_or(1, |details| details.retry_after_seconds);
                Self::TooMany(Duration::from_secs(seconds.clamp(1, 60).into()))
            }
            code => Self::Refused {
                verb,
                place,
                code,
                says,
            },
        }
    }

    /// At least this long until the next attempt.
    pub(super) fn pause(&self) -> Duration {
        match self {
            Self::TooMany(pause) => *pause,
            _ => Duration::ZERO,
        }
    }
}

impl Scope {
    pub(super) fn place(&self) -> String {
        match &self.namespace {
            Namespace::Own => "in its own namespace".to_owned(),
            Namespace::Named(name) => format!("in the namespace {name:?}"),
            Namespace::All => "in all namespaces".to_owned(),
        }
    }
}

/// An error with its causes: the outer ones alone say no more than that something failed.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}
